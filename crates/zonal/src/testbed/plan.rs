//! The plan of a testbed: names of namespaces and links, addresses. A pure value of the testbed's
//! id and shape.
//!
//! | thing | name | address |
//! | --- | --- | --- |
//! | namespace of the core switch | `zonal-ID-core` | 10.77.255.254 |
//! | namespace of a rack's switch | `zonal-ID-r1` | 10.77.1.254 |
//! | namespace of a node | `zonal-ID-r1n2` | 10.77.1.2 |
//! | link of a node, uplink of a rack | `r1n2`, `r1` | |
//!
//! All addresses are of one network of 16 bits, so that no routes are needed; no packet leaves the
//! namespaces. A switch has an address for `zonal testbed check` alone.

use super::shape::LinkRate;
use crate::exit::{Failure, NOT_FOUND};
use std::net::Ipv4Addr;
use std::path::Path;

/// Start of the names of all network namespaces of testbeds.
pub const PREFIX: &str = "zonal-";
/// The bridge in the namespace of a switch.
pub const SWITCH: &str = "switch";
/// The interface of a node.
const NODE_PORT: &str = "eth0";
/// The interface of a rack's switch towards the core.
const UPLINK_PORT: &str = "uplink";

/// Names and addresses of a testbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestbedPlan {
    /// The testbed's id, part of the names of its namespaces.
    pub id: String,
    /// Number of racks.
    pub racks: u16,
    /// Nodes in each rack.
    pub nodes: u16,
}

/// A node of a testbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePlace {
    /// Rack, and zone, from 1.
    pub rack: u16,
    /// Number in its rack, from 1.
    pub index: u16,
}

impl NodePlace {
    /// Name of the node and of its link.
    pub fn name(self) -> String {
        format!("r{}n{}", self.rack, self.index)
    }

    /// Address of the node.
    pub fn address(self) -> Ipv4Addr {
        address(self.rack, self.index)
    }
}

fn address(third: u16, fourth: u16) -> Ipv4Addr {
    // The limits of a testbed keep both below 255.
    let [_, third] = third.to_be_bytes();
    let [_, fourth] = fourth.to_be_bytes();
    Ipv4Addr::new(10, 77, third, fourth)
}

/// One end of a link: an interface in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkEnd {
    /// Name of the network namespace.
    pub namespace: String,
    /// Name of the interface.
    pub interface: String,
    /// Address of what is at this end.
    pub address: Ipv4Addr,
}

/// A link: a pair of interfaces, each of which shapes what it sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestbedLink {
    /// `r1n2` or `r1`.
    pub name: String,
    /// The end nearer to the nodes; what it sends goes up.
    pub lower: LinkEnd,
    /// The end nearer to the core; what it sends goes down.
    pub upper: LinkEnd,
    /// Whether it is a rack's uplink.
    pub is_uplink: bool,
}

/// The id of a testbed in a folder: the same for each run, so that leftovers are found.
pub fn id_of(dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let sum = crc_fast::checksum(
        crc_fast::CrcAlgorithm::Crc64Nvme,
        dir.as_os_str().as_bytes(),
    );
    format!("{sum:016x}").split_off(6)
}

impl TestbedPlan {
    fn namespace(&self, what: &str) -> String {
        format!("{PREFIX}{}-{what}", self.id)
    }

    /// Namespace of the core switch.
    pub fn core(&self) -> String {
        self.namespace("core")
    }

    /// Namespace of a rack's switch.
    pub fn rack(&self, rack: u16) -> String {
        self.namespace(&format!("r{rack}"))
    }

    /// Namespace of a node.
    pub fn node(&self, node: NodePlace) -> String {
        self.namespace(&node.name())
    }

    /// All nodes, rack by rack.
    pub fn places(&self) -> Vec<NodePlace> {
        let racks = 1..=self.racks;
        let of = |rack| (1..=self.nodes).map(move |index| NodePlace { rack, index });
        racks.flat_map(of).collect()
    }

    /// All network namespaces, the switches' first.
    pub fn namespaces(&self) -> Vec<String> {
        let mut names = self.switches();
        names.extend(self.places().into_iter().map(|node| self.node(node)));
        names
    }

    /// The network namespaces of the switches, the core's first.
    pub fn switches(&self) -> Vec<String> {
        let racks = (1..=self.racks).map(|rack| self.rack(rack));
        std::iter::once(self.core()).chain(racks).collect()
    }

    /// Addresses of the switches, in the order of [`Self::switches`].
    pub fn switch_addresses(&self) -> Vec<Ipv4Addr> {
        let racks = (1..=self.racks).map(|rack| address(rack, 254));
        std::iter::once(address(255, 254)).chain(racks).collect()
    }

    /// All links, the uplinks first.
    pub fn links(&self) -> Vec<TestbedLink> {
        let uplinks = (1..=self.racks).map(|rack| TestbedLink {
            name: format!("r{rack}"),
            lower: LinkEnd {
                namespace: self.rack(rack),
                interface: UPLINK_PORT.to_owned(),
                address: address(rack, 254),
            },
            upper: LinkEnd {
                namespace: self.core(),
                interface: format!("r{rack}"),
                address: address(255, 254),
            },
            is_uplink: true,
        });
        let own = self.places().into_iter().map(|node| TestbedLink {
            name: node.name(),
            lower: LinkEnd {
                namespace: self.node(node),
                interface: NODE_PORT.to_owned(),
                address: node.address(),
            },
            upper: LinkEnd {
                namespace: self.rack(node.rack),
                interface: node.name(),
                address: address(node.rack, 254),
            },
            is_uplink: false,
        });
        uplinks.chain(own).collect()
    }

    /// The node of a name.
    pub fn find_node(&self, name: &str) -> anyhow::Result<NodePlace> {
        let mut places = self.places().into_iter();
        let found = places.find(|node| node.name() == name);
        found.ok_or_else(|| self.unknown("node", name, "").into())
    }

    /// The link of a name.
    pub fn find_link(&self, name: &str) -> anyhow::Result<TestbedLink> {
        let mut links = self.links().into_iter();
        let found = links.find(|link| link.name == name);
        found.ok_or_else(|| {
            let uplinks = format!("; uplinks of racks are r1 to r{}", self.racks);
            self.unknown("link", name, &uplinks).into()
        })
    }

    fn unknown(&self, what: &str, name: &str, more: &str) -> Failure {
        let text = format!("the testbed has no {what} {name:?}");
        let hint = format!("nodes are r1n1 to r{}n{}{more}", self.racks, self.nodes);
        Failure::new(NOT_FOUND, text).hint(hint)
    }

    /// The rate that a link of this shape begins with.
    pub fn first_rate(link: &TestbedLink, node: LinkRate, uplink: LinkRate) -> LinkRate {
        if link.is_uplink { uplink } else { node }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::shape::{NODES_MAX, RACK_NODES_MAX, RACKS_MAX};
    use std::collections::BTreeSet;

    fn plan(racks: u16, nodes: u16) -> TestbedPlan {
        TestbedPlan {
            id: id_of(Path::new("/var/lib/zonal/testbed")),
            racks,
            nodes,
        }
    }

    #[test]
    fn a_plan_has_a_switch_for_each_rack_and_a_link_for_each_node() {
        let plan = plan(2, 3);
        assert_eq!(plan.id.len(), 10);
        let prefix = format!("zonal-{}-", plan.id);
        let names = plan.namespaces();
        let names: Vec<&str> = names.iter().map(|name| &name[prefix.len()..]).collect();
        assert_eq!(
            names,
            [
                "core", "r1", "r2", "r1n1", "r1n2", "r1n3", "r2n1", "r2n2", "r2n3"
            ]
        );
        let links = plan.links();
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(
            names,
            ["r1", "r2", "r1n1", "r1n2", "r1n3", "r2n1", "r2n2", "r2n3"]
        );
        let link = plan.find_link("r2n3").unwrap();
        assert_eq!(link.lower.namespace, format!("{prefix}r2n3"));
        assert_eq!(link.upper.namespace, format!("{prefix}r2"));
        assert_eq!(link.lower.address, Ipv4Addr::new(10, 77, 2, 3));
        let uplink = plan.find_link("r2").unwrap();
        assert_eq!(uplink.lower.namespace, format!("{prefix}r2"));
        assert_eq!(uplink.upper.namespace, format!("{prefix}core"));
    }

    #[test]
    fn names_and_addresses_are_distinct_and_short_enough() {
        for (racks, nodes) in [(RACKS_MAX, NODES_MAX / RACKS_MAX), (2, RACK_NODES_MAX)] {
            let plan = plan(racks, nodes);
            let ends = |link: TestbedLink| [link.lower, link.upper];
            let ends: Vec<LinkEnd> = plan.links().into_iter().flat_map(ends).collect();
            let places: BTreeSet<_> = ends
                .iter()
                .map(|end| (end.namespace.clone(), end.interface.clone()))
                .collect();
            assert_eq!(places.len(), ends.len());
            assert!(ends.iter().all(|end| end.interface.len() <= 15));
            let mut addresses: Vec<Ipv4Addr> = plan.switch_addresses();
            addresses.extend(plan.places().into_iter().map(NodePlace::address));
            let distinct: BTreeSet<_> = addresses.iter().collect();
            assert_eq!(distinct.len(), addresses.len());
            assert_eq!(addresses.len(), plan.namespaces().len());
        }
    }

    #[test]
    fn unknown_nodes_and_links_are_refused_with_a_hint() {
        let plan = plan(2, 8);
        for name in ["", "r0n1", "r1n0", "r3n1", "r1n9", "r01n1", "r1", "core"] {
            let error = plan.find_node(name).unwrap_err();
            assert_eq!(crate::exit::code(&error), NOT_FOUND, "{name}");
            assert!(crate::exit::hint(&error).is_some(), "{name}");
        }
        assert!(plan.find_link("r3").is_err() && plan.find_link("r2").is_ok());
    }

    #[test]
    fn folders_have_ids_of_their_own() {
        let ids = ["/a", "/b", "/a/b"].map(|dir| id_of(Path::new(dir)));
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 3);
        assert!(ids.iter().all(|id| id.len() == 10));
    }
}
