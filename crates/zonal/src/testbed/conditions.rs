//! Added delay and loss of links: read from arguments, kept in the state, and written for the
//! processes of each node.
//!
//! The processes of a node hold back what they send by [`zonal_net::link_condition`]. So each node
//! has a file with the conditions of its paths to all other nodes. On a path are both nodes' links,
//! and both uplinks where the racks differ.
//!
//! *Units*: a delay is one way; a loss is of frames of Zonal's own protocol.

use super::cell_folder;
use super::plan::{NodePlace, TestbedPlan};
use super::state::{TestbedFolder, TestbedState};
use crate::cell::folder::replace;
use crate::exit::{Failure, USAGE};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;
use zonal_net::{ConditionTable, LinkCondition};

/// Longest delay of a link, in microseconds: connecting ends after 5 s, so with more nothing works.
pub const DELAY_US_MAX: u64 = 10_000_000;
/// Highest loss of a link, in frames of a million.
pub const LOSS_MAX: u32 = 500_000;

/// Added delay of a link in one direction, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkDelay(pub u64);

/// Lost frames of a link, of a million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkLoss(pub u32);

/// Added delay and loss of a link, as the state file has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredCondition {
    /// Delay, one way.
    pub delay_us: LinkDelay,
    /// Loss in each direction.
    pub lost_of_million: LinkLoss,
}

/// Units of delays, the largest first.
const UNITS: [(&str, u64); 3] = [("s", 1_000_000), ("ms", 1_000), ("us", 1)];
/// Lost frames of a million in one percent.
const PERCENT: u32 = 10_000;

impl fmt::Display for LinkDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: &&(&str, u64)| self.0 >= unit.1 && self.0.is_multiple_of(unit.1);
        let (name, micros) = UNITS.iter().find(fits).unwrap_or(&("us", 1));
        f.pad(&format!("{}{name}", self.0 / micros))
    }
}

impl FromStr for LinkDelay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no delay; examples: 20ms, 500us, 1s");
        let digits = text.find(|letter: char| !letter.is_ascii_digit());
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let number: u64 = number.parse().map_err(|_error| bad())?;
        if unit.is_empty() && number == 0 {
            return Ok(Self(0));
        }
        let (_, micros) = UNITS
            .iter()
            .find(|(name, _)| *name == unit.trim())
            .ok_or_else(bad)?;
        number.checked_mul(*micros).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for LinkLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = format!(".{:04}", self.0 % PERCENT);
        let rest = rest.trim_end_matches(['0', '.']);
        f.pad(&format!("{}{rest}%", self.0 / PERCENT))
    }
}

impl FromStr for LinkLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no percentage; examples: 1, 0.5, 2.25%");
        let number = text.strip_suffix('%').unwrap_or(text);
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let are_digits =
            |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if !are_digits(whole) || !are_digits(part) || part.len() > 4 {
            return Err(bad());
        }
        let whole: u32 = whole.parse().map_err(|_error| bad())?;
        let part: u32 = format!("{part:0<4}").parse().map_err(|_error| bad())?;
        let lost = whole.checked_mul(PERCENT);
        lost.and_then(|lost| lost.checked_add(part))
            .map(Self)
            .ok_or_else(bad)
    }
}

impl StoredCondition {
    /// The condition, if it is within the limits.
    pub fn checked(self) -> anyhow::Result<Self> {
        let refused = |text: String| {
            let hint = "`zonal testbed cut LINK` stops all traffic of a link";
            Err(Failure::new(USAGE, text).hint(hint).into())
        };
        if self.delay_us.0 > DELAY_US_MAX {
            let max = LinkDelay(DELAY_US_MAX);
            return refused(format!("a delay of {} is above {max}", self.delay_us));
        }
        if self.lost_of_million.0 > LOSS_MAX {
            let max = LinkLoss(LOSS_MAX);
            return refused(format!("a loss of {} is above {max}", self.lost_of_million));
        }
        Ok(self)
    }

    /// Whether it changes anything.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    fn of_frames(self) -> LinkCondition {
        LinkCondition {
            delay: Duration::from_micros(self.delay_us.0),
            lost_of_million: self.lost_of_million.0,
        }
    }
}

impl fmt::Display for StoredCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}, {} lost", self.delay_us, self.lost_of_million))
    }
}

/// Conditions of the paths from a node to all others. Each node has its own random numbers.
fn table_of(
    plan: &TestbedPlan,
    conditions: &BTreeMap<String, StoredCondition>,
    seed: u64,
    from: NodePlace,
) -> ConditionTable {
    let of = |link: String| {
        let found = conditions.get(&link).copied().unwrap_or_default();
        found.of_frames()
    };
    let path = |to: NodePlace| {
        let ends = of(from.name()).and_then(of(to.name()));
        match from.rack == to.rack {
            true => ends,
            false => {
                let uplinks = [from, to].map(|node| of(format!("r{}", node.rack)));
                ends.and_then(uplinks[0]).and_then(uplinks[1])
            }
        }
    };
    let others = plan.places().into_iter().filter(|place| *place != from);
    let all = others.map(|place| (IpAddr::from(place.address()), path(place)));
    ConditionTable {
        seed: seed ^ (u64::from(u32::from(from.address())) << 32),
        by_address: all
            .filter(|(_address, path)| *path != LinkCondition::default())
            .collect(),
    }
}

/// Writes the conditions of all nodes, for their processes.
pub fn write(folder: &TestbedFolder, state: &TestbedState) -> anyhow::Result<()> {
    let plan = state.plan();
    for node in plan.places() {
        let table = table_of(&plan, &state.conditions, state.loss_seed, node);
        let path = cell_folder::condition_file(&folder.cell(), node);
        replace(&path, &table.to_text())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_and_losses_are_read_and_shown() {
        for (text, micros, shown) in [
            ("20ms", 20_000, "20ms"),
            ("500us", 500, "500us"),
            ("2 s", 2_000_000, "2s"),
            ("0", 0, "0us"),
        ] {
            let delay: LinkDelay = text.parse().unwrap();
            assert_eq!((delay.0, delay.to_string().as_str()), (micros, shown));
        }
        for text in [
            "",
            "20",
            "ms",
            "-1ms",
            "1.5ms",
            "1h",
            "99999999999999999999s",
        ] {
            assert!(text.parse::<LinkDelay>().is_err(), "{text}");
        }
        for (text, lost, shown) in [
            ("1", 10_000, "1%"),
            ("0.5%", 5_000, "0.5%"),
            ("10.0025", 100_025, "10.0025%"),
            ("0", 0, "0%"),
        ] {
            let loss: LinkLoss = text.parse().unwrap();
            assert_eq!((loss.0, loss.to_string().as_str()), (lost, shown));
        }
        for text in ["", "%", "-1", "1.", ".5", "1.00001", "1e1", "999999999"] {
            assert!(text.parse::<LinkLoss>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_path_has_the_conditions_of_all_its_links() {
        let plan = TestbedPlan {
            id: "0123456789".to_owned(),
            racks: 3,
            nodes: 2,
        };
        let added = |micros, lost| StoredCondition {
            delay_us: LinkDelay(micros),
            lost_of_million: LinkLoss(lost),
        };
        let conditions = BTreeMap::from([
            ("r1".to_owned(), added(1_000, 0)),
            ("r2".to_owned(), added(20, 0)),
            ("r1n2".to_owned(), added(3, 500_000)),
        ]);
        let place = |rack, index| NodePlace { rack, index };
        let table = |from| table_of(&plan, &conditions, 7, from);
        let path = |from: NodePlace, to: NodePlace| {
            let found = table(from).by_address.get(&to.address().into()).copied();
            found.map(|found| (found.delay.as_micros(), found.lost_of_million))
        };
        assert_eq!(path(place(1, 1), place(2, 1)), Some((1_020, 0)));
        assert_eq!(path(place(2, 1), place(1, 2)), Some((1_023, 500_000)));
        assert_eq!(path(place(1, 2), place(1, 1)), Some((3, 500_000)));
        assert_eq!(path(place(2, 1), place(2, 2)), None);
        assert_eq!(path(place(3, 1), place(3, 1)), None);
        let seeds = [place(1, 1), place(1, 2)].map(|node| table(node).seed);
        assert_ne!(seeds[0], seeds[1]);
    }

    #[test]
    fn conditions_past_the_limits_are_refused_with_a_hint() {
        for (delay, loss) in [(DELAY_US_MAX + 1, 0), (0, LOSS_MAX + 1)] {
            let added = StoredCondition {
                delay_us: LinkDelay(delay),
                lost_of_million: LinkLoss(loss),
            };
            let error = added.checked().unwrap_err();
            assert_eq!(crate::exit::code(&error), USAGE);
            assert!(crate::exit::hint(&error).is_some());
        }
        let most = StoredCondition {
            delay_us: LinkDelay(DELAY_US_MAX),
            lost_of_million: LinkLoss(LOSS_MAX),
        };
        assert_eq!(most.checked().unwrap().to_string(), "10s, 50% lost");
    }
}
