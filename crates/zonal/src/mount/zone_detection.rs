//! Detection of this machine's zone and node.
//!
//! The node, for a mount without --node, has a target and an address of this machine that is not
//! loopback. The first of several counts. Without one the mount has no node.
//!
//! The zone, for a mount without --zone, is given by the first rule that fits:
//!
//! 1. The cell has one zone: that zone.
//! 2. An address of this machine outside of loopback is in a subnet of the manager's table: the
//!    subnet's zone. Addresses in subnets of several zones are refused, and so is a zone without
//!    nodes.
//! 3. Every node is on this machine (its addresses are loopback, or this machine's own): the first
//!    zone.
//! 4. A node has an address of this machine that is not loopback: its zone; the first of several.
//! 5. Otherwise the mount is refused and the error lists the zones. A wrong guess would send every
//!    byte through the core switch.

use super::options::MountSettings;
use crate::cell::CellHandle;
use crate::exit::{Failure, UNREACHABLE};
use std::net::{IpAddr, SocketAddr};
use zonal_net::address::{is_own, own_addresses};
use zonal_types::{NodeId, OneLine, ZoneId};
use zonal_wire::{ManagerReply, ManagerRequest, SubnetZone};
use zonal_zonemap::{Node, Subnet, ZoneMap};

/// Exit code for wrong usage.
const USAGE: u8 = 2;
/// Advice where no zone was found.
const NAME_IT: &str = "name this machine's zone: --zone N (fstab: zone=N)";
/// Attempts to fetch the map.
const TRIES: usize = 3;

/// The place of a mount in its cell.
#[derive(Debug)]
pub struct MountSite {
    pub zone: ZoneId,
    /// 0: none of the cell.
    pub node: NodeId,
    /// A note about the choice for the user.
    pub note: Option<String>,
}

/// The place of the mount.
pub fn site(options: &MountSettings, cell: &CellHandle) -> anyhow::Result<MountSite> {
    let map = match (options.zone, options.node) {
        (Some(zone), Some(node)) => return Ok(given(ZoneId(zone), NodeId(node))),
        // The mount asks for the map again, and longer.
        (Some(zone), None) => match map(cell) {
            Ok(map) => return Ok(given(ZoneId(zone), own_node(&map, is_own))),
            Err(_) => return Ok(given(ZoneId(zone), NodeId(0))),
        },
        (None, _) => map(cell)?,
    };
    let node = options.node.map(NodeId);
    let node = node.unwrap_or_else(|| own_node(&map, is_own));
    let by_subnet = match map.zones.len() {
        0 | 1 => None,
        _ => of_subnets(&map, &subnets(cell)?, &own_addresses(cell.first_manager()))?,
    };
    let zone = by_subnet.or_else(|| choose(&map, is_own));
    let zone = zone.ok_or_else(|| unknown(&map))?;
    let is_told = cell.folder.is_none() && map.zones.len() > 1;
    let note = is_told.then(|| {
        format!(
            "mounted as a machine of zone {zone}; the cell has zones {}: choose with --zone N (fstab: zone=N)",
            listed(&map)
        )
    });
    Ok(MountSite { zone, node, note })
}

fn given(zone: ZoneId, node: NodeId) -> MountSite {
    MountSite {
        zone,
        node,
        note: None,
    }
}

/// The first node of this machine that has a target; 0: none.
fn own_node(map: &ZoneMap, is_own: impl Fn(IpAddr) -> bool) -> NodeId {
    let is_here = |node: &&Node| {
        let address = node.address.parse::<SocketAddr>();
        address.is_ok_and(|of| !of.ip().is_loopback() && is_own(of.ip()))
            && map.targets.iter().any(|target| target.node == node.id)
    };
    let mut nodes = map.nodes.iter();
    nodes.find(is_here).map_or(NodeId(0), |node| node.id)
}

/// Fetches the map; repeats it if the manager is slow, as the mount itself does.
fn map(cell: &CellHandle) -> anyhow::Result<ZoneMap> {
    let is_slow = |error: &anyhow::Error| {
        let mut causes = error.chain();
        causes.any(|cause| {
            let net = cause.downcast_ref::<zonal_net::NetError>();
            matches!(net, Some(zonal_net::NetError::TimedOut { .. }))
        })
    };
    for _again in 1..TRIES {
        match cell.map() {
            Err(error) if is_slow(&error) => {}
            other => return other,
        }
    }
    cell.map()
}

/// Fetches the manager's table of subnets.
fn subnets(cell: &CellHandle) -> anyhow::Result<Vec<SubnetZone>> {
    match cell.ask_manager(&ManagerRequest::GetSubnets)? {
        ManagerReply::Subnets { subnets } => Ok(subnets),
        other => {
            let text = format!("the manager answers {} for its subnets", other.name());
            Err(Failure::new(UNREACHABLE, text).into())
        }
    }
}

/// The zone of the subnets that have the addresses; `None` where none has one.
fn of_subnets(
    map: &ZoneMap,
    table: &[SubnetZone],
    own: &[IpAddr],
) -> Result<Option<ZoneId>, Failure> {
    let mut found: Option<(IpAddr, &SubnetZone)> = None;
    let zone = |entry: &SubnetZone| match entry.zone {
        ZoneId(0) => format!("zone \"{}\"", OneLine(&entry.zone_name)),
        zone => format!("zone {zone}"),
    };
    let place =
        |ip: IpAddr, entry: &SubnetZone| format!("{ip} is of {} ({})", zone(entry), entry.subnet);
    for (ip, entry) in own
        .iter()
        .filter_map(|ip| Some((*ip, entry_of(table, *ip)?)))
    {
        match found {
            None => found = Some((ip, entry)),
            Some((_, first)) if zone(first) == zone(entry) => {}
            Some((first_ip, first)) => {
                let (one, other) = (place(first_ip, first), place(ip, entry));
                let text = format!("this machine has addresses in two zones: {one}, {other}");
                return Err(Failure::new(USAGE, text).hint(NAME_IT));
            }
        }
    }
    let Some((ip, entry)) = found else {
        return Ok(None);
    };
    if map.zone(entry.zone).is_some() {
        return Ok(Some(entry.zone));
    }
    let text = format!("{}, which has no node yet", place(ip, entry));
    Err(Failure::new(USAGE, text).hint("start the zone's servers, or name another: --zone N"))
}

/// The first entry with the address.
fn entry_of(table: &[SubnetZone], ip: IpAddr) -> Option<&SubnetZone> {
    table.iter().find(|entry| {
        let subnet = entry.subnet.parse::<Subnet>();
        subnet.is_ok_and(|subnet| subnet.contains(ip))
    })
}

fn choose(map: &ZoneMap, is_own: impl Fn(IpAddr) -> bool) -> Option<ZoneId> {
    let first = map.zones.first()?.id;
    if map.zones.len() == 1 {
        return Some(first);
    }
    let ip = |address: &str| Some(address.parse::<SocketAddr>().ok()?.ip());
    let is_here = |address: &str| ip(address).is_some_and(&is_own);
    if map.nodes.iter().all(|node| is_here(&node.address)) {
        return Some(first);
    }
    let is_outside = |address: &str| ip(address).is_some_and(|ip| !ip.is_loopback());
    let own = map
        .nodes
        .iter()
        .filter(|node| is_outside(&node.address) && is_here(&node.address));
    own.map(|node| node.zone).min()
}

fn listed(map: &ZoneMap) -> String {
    let zones: Vec<String> = map.zones.iter().map(|zone| zone.id.to_string()).collect();
    zones.join(", ")
}

fn unknown(map: &ZoneMap) -> Failure {
    let named = map.zones.iter();
    let named: Vec<String> = named
        .map(|zone| format!("{} ({})", zone.id, zone.name))
        .collect();
    let text = format!(
        "no node of the cell has an address of this machine, so its zone is not known; the zones are {}",
        named.join(", ")
    );
    Failure::new(USAGE, text).hint(NAME_IT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{CellId, TargetId};
    use zonal_wire::JoinTarget;
    use zonal_zonemap::MapEdit;

    fn map(nodes: &[(u16, &str)]) -> ZoneMap {
        let edits: Vec<MapEdit> = (1..)
            .zip(nodes)
            .map(|(node, (zone, address))| MapEdit::Join {
                node: NodeId(node),
                zone: ZoneId(*zone),
                zone_name: String::new(),
                address: (*address).to_owned(),
                shard: None,
                targets: vec![JoinTarget {
                    target: TargetId(node),
                    uuid: [7; 16],
                    capacity: 1 << 30,
                }],
            })
            .collect();
        ZoneMap::new(CellId([1; 16]))
            .edited(&edits)
            .unwrap()
            .unwrap()
    }

    /// Runs the rules for a machine with this address.
    fn of_machine(own: &str, nodes: &[(u16, &str)]) -> Option<u16> {
        let own: IpAddr = own.parse().unwrap();
        choose(&map(nodes), |ip| ip.is_loopback() || ip == own).map(|zone| zone.0)
    }

    #[test]
    fn the_zone_is_that_of_a_node_on_this_machine() {
        let cell = [
            (1, "10.0.1.1:1"),
            (1, "10.0.1.2:1"),
            (2, "10.0.2.1:1"),
            (3, "[fd00::3]:1"),
        ];
        assert_eq!(of_machine("10.0.1.2", &cell), Some(1));
        assert_eq!(of_machine("10.0.2.1", &cell), Some(2));
        assert_eq!(of_machine("fd00::3", &cell), Some(3));
        assert_eq!(of_machine("10.0.9.9", &cell), None);
        let text = unknown(&map(&cell)).to_string();
        assert!(text.contains("1 (zone1), 2 (zone2), 3 (zone3)"), "{text}");
    }

    #[test]
    fn an_address_in_a_subnet_gives_the_zone() {
        let cell = map(&[(1, "10.0.1.1:1"), (2, "10.0.2.1:1")]);
        let entry = |subnet: &str, zone, name: &str| SubnetZone {
            subnet: subnet.into(),
            zone: ZoneId(zone),
            zone_name: name.into(),
        };
        let table = [
            entry("10.1.0.0/16", 1, ""),
            entry("10.2.0.0/16", 2, "zone2"),
            entry("10.3.0.0/16", 0, "row3"),
            entry("fd00:2::/32", 2, ""),
        ];
        let of = |own: &[&str]| {
            let own: Vec<IpAddr> = own.iter().map(|ip| ip.parse().unwrap()).collect();
            of_subnets(&cell, &table, &own).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["192.0.2.1", "10.2.9.9"]), Ok(Some(ZoneId(2))));
        assert_eq!(of(&["10.2.9.9", "fd00:2::7"]), Ok(Some(ZoneId(2))));
        assert_eq!(of(&["192.0.2.1"]), Ok(None));
        let two = of(&["10.1.0.5", "fd00:2::7"]).unwrap_err();
        for named in ["10.1.0.5", "zone 1", "10.1.0.0/16", "fd00:2::7", "zone 2"] {
            assert!(two.contains(named), "{two}");
        }
        let none = of(&["10.3.0.1"]).unwrap_err();
        assert!(none.contains("zone \"row3\" (10.3.0.0/16)"), "{none}");
    }

    #[test]
    fn the_node_is_the_first_with_an_address_of_this_machine() {
        let cell = map(&[(1, "127.0.0.1:1"), (1, "10.0.1.2:1"), (2, "10.0.1.2:2")]);
        let of = |own: &str| {
            let own: IpAddr = own.parse().unwrap();
            own_node(&cell, |ip| ip.is_loopback() || ip == own)
        };
        assert_eq!(of("10.0.1.2"), NodeId(2));
        assert_eq!(of("10.0.9.9"), NodeId(0));
    }

    #[test]
    fn one_zone_or_one_machine_needs_no_choice() {
        assert_eq!(of_machine("10.0.9.9", &[(4, "10.0.1.1:1")]), Some(4));
        let loopback = [(1, "127.0.0.1:1"), (2, "127.0.0.2:1"), (2, "[::1]:1")];
        assert_eq!(of_machine("10.0.9.9", &loopback), Some(1));
        let own = [(1, "127.0.0.1:1"), (2, "10.0.9.9:1")];
        assert_eq!(of_machine("10.0.9.9", &own), Some(1));
        // A manager on loopback tells nothing about this machine's place.
        let mixed = [(1, "127.0.0.1:1"), (2, "10.0.2.1:1")];
        assert_eq!(of_machine("10.0.9.9", &mixed), None);
    }
}
