//! The shape of a testbed: numbers of racks and nodes, rates of links; with the documented limits.
//!
//! *Units*: a rate is bits on the wire a second, frames' headers included.

use crate::exit::{Failure, USAGE};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use zonal_server::units::ByteSize;

/// Most racks of a testbed.
pub const RACKS_MAX: u16 = 8;
/// Most nodes of a rack.
pub const RACK_NODES_MAX: u16 = 32;
/// Most nodes of all racks together: each has three processes, and two cores run them all.
pub const NODES_MAX: u16 = 32;
/// Lowest rate of a link, in bits a second: below, servers miss their deadlines.
pub const RATE_MIN: u64 = 1_000_000;
/// Highest rate of a link, in bits a second.
pub const RATE_MAX: u64 = 1_000_000_000;
/// Most replicas of a shard.
const REPLICAS_MAX: u16 = 5;
/// Smallest capacity of a target, in bytes.
const CAPACITY_MIN: u64 = 256 << 20;

/// Rate of a link in one direction, in bits a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkRate(pub u64);

/// Units of rates, the largest first.
const UNITS: [(&str, u64); 4] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: &&(&str, u64)| self.0 >= unit.1 && self.0.is_multiple_of(unit.1);
        let (name, bits) = UNITS.iter().find(fits).unwrap_or(&("bit", 1));
        f.pad(&format!("{}{name}", self.0 / bits))
    }
}

impl FromStr for LinkRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no rate; examples: 200mbit, 1gbit");
        let digits = text.find(|letter: char| !letter.is_ascii_digit());
        let (number, unit) = text.split_at(digits.ok_or_else(bad)?);
        let unit = unit.trim().to_ascii_lowercase();
        let (_, bits) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(bad)?;
        let number: u64 = number.parse().map_err(|_error| bad())?;
        number.checked_mul(*bits).map(Self).ok_or_else(bad)
    }
}

impl LinkRate {
    /// The rate, if it is within the limits.
    pub fn checked(self) -> anyhow::Result<Self> {
        if (RATE_MIN..=RATE_MAX).contains(&self.0) {
            return Ok(self);
        }
        let text = format!(
            "a rate of {self} is not between {} and {}",
            Self(RATE_MIN),
            Self(RATE_MAX)
        );
        let hint = "`zonal testbed cut LINK` stops all traffic of a link";
        Err(Failure::new(USAGE, text).hint(hint).into())
    }
}

/// The shape that `zonal testbed up` is asked for.
#[derive(Debug, Clone, Copy)]
pub struct TestbedShape {
    /// Number of racks; each is a zone.
    pub racks: u16,
    /// Nodes in each rack.
    pub nodes: u16,
    /// The first nodes of each rack that have a target.
    pub storage_nodes: u16,
    /// Managers, and replicas of each zone's shard.
    pub replicas: u16,
    /// The replicas of each zone's shard are in different racks.
    pub spread_replicas: bool,
    /// Rate of each node's link.
    pub node_rate: LinkRate,
    /// Rate of each rack's uplink.
    pub uplink_rate: LinkRate,
    /// Capacity of each target, in bytes.
    pub capacity: ByteSize,
}

impl TestbedShape {
    /// Refuses what is past the documented limits.
    pub fn check(&self) -> anyhow::Result<()> {
        let refused = |text: String, hint: &str| Err(Failure::new(USAGE, text).hint(hint).into());
        let within = |name: &str, number: u16, max: u16| {
            if (1..=max).contains(&number) {
                return Ok(());
            }
            let text = format!("{name} {number} is not between 1 and {max}");
            refused(text, "docs/testbed.md has the limits and their reasons")
        };
        within("--racks", self.racks, RACKS_MAX)?;
        within("--nodes", self.nodes, RACK_NODES_MAX)?;
        let all = u32::from(self.racks) * u32::from(self.nodes);
        if all > u32::from(NODES_MAX) {
            let text = format!(
                "{} racks with {} nodes each are {all} nodes; a testbed has at most {NODES_MAX}",
                self.racks, self.nodes
            );
            return refused(text, "name fewer with --racks or --nodes");
        }
        if !(1..=self.nodes).contains(&self.storage_nodes) {
            let text = format!(
                "--storage-nodes {} is not between 1 and the {} nodes of a rack",
                self.storage_nodes, self.nodes
            );
            return refused(text, "without --storage-nodes every node has a target");
        }
        if self.replicas.is_multiple_of(2) || self.replicas > REPLICAS_MAX {
            let text = format!("--replicas {} is not 1, 3 or 5", self.replicas);
            return refused(
                text,
                "a majority of an even number survives no more failures",
            );
        }
        if self.replicas > self.nodes {
            let text = format!(
                "{} replicas of a zone's shard need so many nodes in a rack, not {}",
                self.replicas, self.nodes
            );
            return refused(text, "raise --nodes");
        }
        if self.spread_replicas && self.replicas > self.racks {
            let text = format!(
                "{} replicas in different racks need so many racks, not {}",
                self.replicas, self.racks
            );
            return refused(text, "raise --racks");
        }
        if self.capacity.0 < CAPACITY_MIN {
            let text = format!("--capacity {} is below 256 MiB", self.capacity);
            return refused(text, "a target's file grows only as it is written");
        }
        self.node_rate.checked()?;
        self.uplink_rate.checked()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> TestbedShape {
        TestbedShape {
            racks: 2,
            nodes: 8,
            storage_nodes: 8,
            replicas: 1,
            spread_replicas: false,
            node_rate: LinkRate(200_000_000),
            uplink_rate: LinkRate(100_000_000),
            capacity: ByteSize(4 << 30),
        }
    }

    #[test]
    fn rates_are_read_and_shown() {
        for (text, bits) in [
            ("200mbit", 200_000_000),
            ("1gbit", 1_000_000_000),
            ("1500kbit", 1_500_000),
            ("7bit", 7),
            ("2 Mbit", 2_000_000),
        ] {
            assert_eq!(text.parse(), Ok(LinkRate(bits)), "{text}");
        }
        assert_eq!(LinkRate(200_000_000).to_string(), "200mbit");
        assert_eq!(LinkRate(1_500_000).to_string(), "1500kbit");
        assert_eq!(LinkRate(0).to_string(), "0bit");
        for text in [
            "",
            "200",
            "mbit",
            "-1mbit",
            "1.5gbit",
            "1mb",
            "99999999999gbit",
        ] {
            assert!(text.parse::<LinkRate>().is_err(), "{text}");
        }
    }

    #[test]
    fn shapes_past_the_limits_are_refused_with_a_hint() {
        shape().check().unwrap();
        let refused: [fn(&mut TestbedShape); 15] = [
            |shape| shape.racks = 0,
            |shape| shape.racks = RACKS_MAX + 1,
            |shape| shape.nodes = 0,
            |shape| shape.nodes = RACK_NODES_MAX + 1,
            |shape| (shape.racks, shape.nodes) = (8, 5),
            |shape| shape.storage_nodes = 0,
            |shape| shape.storage_nodes = 9,
            |shape| shape.replicas = 0,
            |shape| shape.replicas = 2,
            |shape| shape.replicas = 7,
            |shape| (shape.nodes, shape.storage_nodes, shape.replicas) = (2, 2, 3),
            |shape| shape.node_rate = LinkRate(0),
            |shape| shape.uplink_rate = LinkRate(0),
            |shape| shape.uplink_rate = LinkRate(RATE_MAX + 1),
            |shape| shape.capacity = ByteSize(1),
        ];
        for (index, change) in refused.iter().enumerate() {
            let mut shape = shape();
            change(&mut shape);
            let error = shape.check().expect_err(&index.to_string());
            assert_eq!(crate::exit::code(&error), USAGE, "{error}");
            assert!(crate::exit::hint(&error).is_some(), "{error}");
        }
    }
}
