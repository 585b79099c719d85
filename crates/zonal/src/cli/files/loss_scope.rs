//! `--if-lost`: a target, node or zone that is assumed to be lost.

use crate::exit::{Failure, NOT_FOUND};
use std::collections::BTreeSet;
use zonal_types::{NodeId, TargetId, ZoneId};
use zonal_zonemap::{Target, ZoneMap};

/// A target, a node with its targets, or a zone with its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossScope {
    Target(TargetId),
    Node(NodeId),
    Zone(ZoneId),
}

impl std::fmt::Display for LossScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Target(id) => write!(f, "target:{id}"),
            Self::Node(id) => write!(f, "node:{id}"),
            Self::Zone(id) => write!(f, "zone:{id}"),
        }
    }
}

impl std::str::FromStr for LossScope {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(kind, number)| {
            let number = number.parse().ok()?;
            match kind {
                "target" => Some(Self::Target(TargetId(number))),
                "node" => Some(Self::Node(NodeId(number))),
                "zone" => Some(Self::Zone(ZoneId(u16::try_from(number).ok()?))),
                _ => None,
            }
        });
        parsed.ok_or_else(|| "target:N, node:N or zone:N".to_owned())
    }
}

impl LossScope {
    fn has(self, map: &ZoneMap, target: &Target) -> bool {
        match self {
            Self::Target(id) => target.id == id,
            Self::Node(id) => target.node == id,
            Self::Zone(id) => map.node(target.node).is_some_and(|node| node.zone == id),
        }
    }

    fn is_known(self, map: &ZoneMap) -> bool {
        match self {
            Self::Target(id) => map.target(id).is_some(),
            Self::Node(id) => map.node(id).is_some(),
            Self::Zone(id) => map.zone(id).is_some(),
        }
    }
}

/// Refuses what the map does not have.
pub fn refuse_unknown(map: &ZoneMap, scopes: &[LossScope]) -> anyhow::Result<()> {
    match scopes.iter().find(|scope| !scope.is_known(map)) {
        None => Ok(()),
        Some(unknown) => Err(
            Failure::new(NOT_FOUND, format!("the cell has no {unknown}"))
                .hint("`zonal zone-map show` lists zones, nodes and targets")
                .into(),
        ),
    }
}

/// The targets of the map that are in one of the scopes.
pub fn targets_in(map: &ZoneMap, scopes: &[LossScope]) -> BTreeSet<TargetId> {
    let is_in = |target: &&Target| scopes.iter().any(|scope| scope.has(map, target));
    let found = map.targets.iter().filter(is_in);
    found.map(|target| target.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_a_kind_and_a_number() {
        for text in ["target:2", "node:7", "zone:1"] {
            assert_eq!(text.parse::<LossScope>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "2",
            "target",
            "target:",
            "disk:1",
            "zone:99999",
            "node:x",
        ] {
            assert!(text.parse::<LossScope>().is_err(), "{text}");
        }
    }
}
