//! The part of `zonal status` about rebalances that are under way: the targets of a zone that give
//! objects to others. The leading manager is asked for what is left only where there is one.

use crate::cell::connection::CellHandle;
use crate::cli::drain::drains_of;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use zonal_types::{TargetId, ZoneId};
use zonal_wire::DrainStatus;
use zonal_zonemap::{TargetState, ZoneMap};

/// Rebalances by their zones.
#[derive(Debug, Default)]
pub struct RebalanceSummary(BTreeMap<ZoneId, Rebalanced>);

/// The rebalance of a zone.
#[derive(Debug, Default)]
struct Rebalanced {
    /// Targets that give objects away.
    targets: Vec<TargetId>,
    /// True where it was cancelled, or ends.
    is_ending: bool,
    /// Objects on their way; `None` where the manager does not know it yet.
    objects_left: Option<u64>,
}

impl RebalanceSummary {
    /// Looks at the map, and asks the manager where something moves.
    pub fn look(cell: &CellHandle, map: &ZoneMap) -> Self {
        let mut targets = map.targets.iter();
        match targets.any(|target| target.state.is_shedding()) {
            true => Self::of(map, &drains_of(cell).unwrap_or_default()),
            false => Self::default(),
        }
    }

    fn of(map: &ZoneMap, drains: &[DrainStatus]) -> Self {
        let mut zones: BTreeMap<ZoneId, Rebalanced> = BTreeMap::new();
        for target in &map.targets {
            let TargetState::Shedding { is_ending, .. } = target.state else {
                continue;
            };
            let Some(node) = map.node(target.node) else {
                continue;
            };
            let own = zones.entry(node.zone).or_default();
            own.targets.push(target.id);
            own.is_ending |= is_ending;
            let known = drains.iter().find(|drain| drain.target == target.id);
            if let Some(known) = known.filter(|known| known.most > 0) {
                let left = own.objects_left.get_or_insert(0);
                *left = left.saturating_add(known.filling);
            }
        }
        Self(zones)
    }

    /// Lines for people; none where nothing is rebalanced.
    pub fn lines(&self) -> Vec<String> {
        let line = |(zone, own): (&ZoneId, &Rebalanced)| {
            let targets: Vec<String> = own.targets.iter().map(TargetId::to_string).collect();
            let left = match own.objects_left {
                Some(objects) => format!("{objects} objects left to move"),
                None => "looking for objects".to_owned(),
            };
            let end = if own.is_ending { ", it is ending" } else { "" };
            format!(
                "zone {zone} is rebalanced: targets that give objects away: {}; {left}{end}",
                targets.join(", ")
            )
        };
        self.0.iter().map(line).collect()
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        let zones = self.0.iter().map(|(zone, own)| {
            let targets = own.targets.iter().map(|target| target.0);
            json!({
                "zone": zone.0,
                "targets": targets.collect::<Vec<_>>(),
                "is_ending": own.is_ending,
                "objects_left": own.objects_left,
            })
        });
        zones.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{CellId, NodeId};
    use zonal_zonemap::{MapEdit, Target};

    fn map(states: &[TargetState]) -> ZoneMap {
        let join = MapEdit::Join {
            node: NodeId(1),
            zone: ZoneId(3),
            zone_name: "three".into(),
            address: "127.0.0.1:1".into(),
            shard: None,
            targets: Vec::new(),
        };
        let map = ZoneMap::new(CellId([1; 16])).edited(&[join]);
        let mut map = map.unwrap().unwrap();
        let target = |(id, state): (u32, &TargetState)| Target {
            id: TargetId(id),
            node: NodeId(1),
            uuid: [7; 16],
            capacity: 1 << 30,
            state: *state,
        };
        map.targets = (1..).zip(states).map(target).collect();
        map
    }

    fn drain(target: u32, filling: u64, most: u64) -> DrainStatus {
        DrainStatus {
            target: TargetId(target),
            filling,
            most,
            stuck: 0,
            no_room: 0,
            ms: 5,
        }
    }

    #[test]
    fn a_rebalance_is_told_with_its_targets_and_what_is_left() {
        let shedding = TargetState::Shedding {
            salt: 1,
            is_ending: false,
        };
        let map = map(&[shedding, TargetState::Serving, shedding]);
        let begun = RebalanceSummary::of(&map, &[]);
        let line =
            "zone 3 is rebalanced: targets that give objects away: 1, 3; looking for objects";
        assert_eq!(begun.lines(), [line]);
        assert_eq!(begun.json()[0]["objects_left"], Value::Null);
        let drains = [drain(1, 4, 9), drain(2, 50, 50), drain(3, 2, 2)];
        let moving = RebalanceSummary::of(&map, &drains);
        assert_eq!(moving.json()[0]["objects_left"], 6);
        assert_eq!(moving.json()[0]["targets"], json!([1, 3]));
        assert!(moving.lines()[0].ends_with("; 6 objects left to move"));
    }

    #[test]
    fn a_cell_without_a_rebalance_has_no_line() {
        let still = RebalanceSummary::of(&map(&[TargetState::Serving]), &[drain(1, 4, 9)]);
        assert!(still.lines().is_empty());
        assert_eq!(still.json(), json!([]));
    }
}
