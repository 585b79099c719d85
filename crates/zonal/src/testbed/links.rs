//! Links of a running testbed: their counters; cutting, healing, and another rate.

use super::conditions::StoredCondition;
use super::iproute;
use super::plan::TestbedLink;
use super::shape::LinkRate;
use super::shaping::{self, ShapedPort, ShapedPorts};
use super::state::TestbedState;
use crate::exit::{FAILED, Failure};
use std::collections::BTreeSet;

/// A link as the kernel tells it.
#[derive(Debug, Clone)]
pub struct LinkReport {
    /// The link.
    pub link: TestbedLink,
    /// The rate that was asked for.
    pub asked: LinkRate,
    /// Added delay and loss.
    pub added: StoredCondition,
    /// Nothing passes.
    pub is_cut: bool,
    /// Towards the core.
    pub up: ShapedPort,
    /// Towards the nodes.
    pub down: ShapedPort,
}

/// Upper ends that are on, as (namespace, interface).
fn ports_on(links: &[TestbedLink]) -> anyhow::Result<BTreeSet<(String, String)>> {
    let mut on = BTreeSet::new();
    let namespaces: BTreeSet<&str> = links
        .iter()
        .map(|link| link.upper.namespace.as_str())
        .collect();
    for namespace in namespaces {
        for port in iproute::link_show(namespace)? {
            let flags = port["flags"].as_array();
            let is_on = flags.is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
            if let Some(name) = port["ifname"].as_str().filter(|_| is_on) {
                on.insert((namespace.to_owned(), name.to_owned()));
            }
        }
    }
    Ok(on)
}

/// All links, the uplinks first.
pub fn report(state: &TestbedState) -> anyhow::Result<Vec<LinkReport>> {
    let plan = state.plan();
    let links = plan.links();
    let ports = ShapedPorts::read(&plan.namespaces())?;
    let on = ports_on(&links)?;
    let one = |link: TestbedLink| {
        let upper = (link.upper.namespace.clone(), link.upper.interface.clone());
        Ok(LinkReport {
            asked: state.rates[&link.name],
            added: state
                .conditions
                .get(&link.name)
                .copied()
                .unwrap_or_default(),
            is_cut: !on.contains(&upper),
            up: ports.of(&link.lower)?,
            down: ports.of(&link.upper)?,
            link,
        })
    };
    links.into_iter().map(one).collect()
}

/// Cuts or heals a link in both directions; its counters stay.
pub fn set_cut(link: &TestbedLink, is_cut: bool) -> anyhow::Result<()> {
    let word = if is_cut { "down" } else { "up" };
    let end = &link.upper;
    let command = format!("link set dev {} {word}\n", end.interface);
    iproute::ip_batch(&end.namespace, &command)?;
    let key = (end.namespace.clone(), end.interface.clone());
    if ports_on(std::slice::from_ref(link))?.contains(&key) == is_cut {
        let text = format!("the link {} is not {word}", link.name);
        return Err(Failure::new(FAILED, text).into());
    }
    Ok(())
}

/// Gives a link another rate, in both directions; its counters stay.
pub fn set_rate(link: &TestbedLink, rate: LinkRate) -> anyhow::Result<()> {
    let ends = [&link.lower, &link.upper];
    for end in ends {
        let command = shaping::command("change", &end.interface, rate);
        iproute::tc_batch(&end.namespace, &command)?;
    }
    let ports = ShapedPorts::read(&ends.map(|end| end.namespace.clone()))?;
    ends.iter().try_for_each(|end| ports.require(end, rate))
}
