//! Makes the network of a plan: namespaces, bridges, links, addresses, shaping.
//!
//! Interfaces get no link-local addresses and bridges no spanning tree, so that an idle link is
//! idle: what its counters show was sent by programs.

use super::plan::{LinkEnd, NodePlace, SWITCH, TestbedLink, TestbedPlan};
use super::shape::LinkRate;
use super::shaping::{self, ShapedPorts};
use super::{iproute, namespaces};
use crate::console;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// `ip` and `tc` commands by namespace.
type Commands = BTreeMap<String, String>;

/// Congestion control of all nodes, whatever the machine has. It is the only one that each kernel
/// lets a namespace choose. With BBR many connections overfill a queue, and a tenth or more of the
/// bytes are dropped and sent again.
const CONGESTION_CONTROL: &str = "reno";
/// The setting of the namespace that a thread is in.
const CONGESTION_FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The commands that make a switch.
fn switch(address: Ipv4Addr) -> String {
    format!(
        "link set dev lo up\n\
         link add name {SWITCH} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set dev {SWITCH} addrgenmode none\n\
         addr add {address}/16 dev {SWITCH}\n\
         link set dev {SWITCH} up\n"
    )
}

/// The command that makes both ends of a link, in the upper end's namespace.
fn pair(link: &TestbedLink) -> String {
    format!(
        "link add name {} type veth peer name {} netns {}\n",
        link.upper.interface, link.lower.interface, link.lower.namespace
    )
}

/// The commands that plug an end of a link into the switch.
fn plug(end: &LinkEnd) -> String {
    let port = &end.interface;
    format!(
        "link set dev {port} addrgenmode none\n\
         link set dev {port} master {SWITCH}\n\
         link set dev {port} up\n"
    )
}

/// The commands for a node.
fn node(port: &str, node: NodePlace) -> String {
    format!(
        "link set dev lo up\n\
         link set dev {port} addrgenmode none\n\
         addr add {}/16 dev {port}\n\
         link set dev {port} up\n",
        node.address()
    )
}

/// The `ip` commands by namespace.
fn ip_commands(plan: &TestbedPlan) -> Commands {
    let mut commands = Commands::new();
    for (name, address) in plan.switches().into_iter().zip(plan.switch_addresses()) {
        commands.insert(name, switch(address));
    }
    for link in plan.links() {
        let upper = commands.entry(link.upper.namespace.clone()).or_default();
        *upper += &(pair(&link) + &plug(&link.upper));
        if link.is_uplink {
            let lower = commands.entry(link.lower.namespace.clone()).or_default();
            *lower += &plug(&link.lower);
        }
    }
    for place in plan.places() {
        let name = plan.node(place);
        let port = plan.links().into_iter().map(|link| link.lower);
        let mut port = port.filter(|end| end.namespace == name);
        if let Some(port) = port.next() {
            commands.insert(name, node(&port.interface, place));
        }
    }
    commands
}

/// Has all sockets in a namespace use [`CONGESTION_CONTROL`]. Where settings cannot be written, the
/// machine's own congestion control stays.
fn set_congestion_control(namespace: &str) -> anyhow::Result<()> {
    namespaces::inside(namespace, || {
        if let Err(error) = std::fs::write(CONGESTION_FILE, CONGESTION_CONTROL) {
            console::note(format_args!("{namespace}: {CONGESTION_FILE}: {error}"));
        }
        Ok(())
    })
}

/// Makes everything and checks that the kernel took each rate.
pub fn make(plan: &TestbedPlan, rates: &BTreeMap<String, LinkRate>) -> anyhow::Result<()> {
    let names = plan.namespaces();
    names.iter().try_for_each(|name| namespaces::make(name))?;
    names
        .iter()
        .try_for_each(|name| set_congestion_control(name))?;
    let commands = ip_commands(plan);
    // The core makes the ends of uplinks in the racks, the racks those of links in the nodes.
    for name in &names {
        iproute::ip_batch(name, &commands[name])?;
    }
    let links = plan.links();
    let mut shaping_commands = Commands::new();
    for link in &links {
        for end in [&link.lower, &link.upper] {
            let text = shaping::command("add", &end.interface, rates[&link.name]);
            *shaping_commands.entry(end.namespace.clone()).or_default() += &text;
        }
    }
    for (name, commands) in &shaping_commands {
        iproute::tc_batch(name, commands)?;
    }
    let ports = ShapedPorts::read(&names)?;
    for link in &links {
        ports.require(&link.lower, rates[&link.name])?;
        ports.require(&link.upper, rates[&link.name])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_for_a_namespace_of_the_plan() {
        let plan = TestbedPlan {
            id: "0123456789".to_owned(),
            racks: 2,
            nodes: 2,
        };
        let commands = ip_commands(&plan);
        let mut names = plan.namespaces();
        names.sort();
        assert_eq!(commands.keys().cloned().collect::<Vec<_>>(), names);
        let core = &commands["zonal-0123456789-core"];
        assert_eq!(core.matches("type bridge").count(), 1, "{core}");
        assert_eq!(core.matches("type veth").count(), 2, "{core}");
        let rack = &commands["zonal-0123456789-r2"];
        assert!(
            rack.contains("peer name eth0 netns zonal-0123456789-r2n1"),
            "{rack}"
        );
        assert!(rack.contains("link set dev uplink master switch"), "{rack}");
        let node = &commands["zonal-0123456789-r2n1"];
        assert!(node.contains("addr add 10.77.2.1/16 dev eth0"), "{node}");
    }
}
