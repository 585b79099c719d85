//! Whether a map holds together: its invariants, each broken one in words.

use super::ZoneMap;
use std::collections::BTreeSet;
use zonal_types::StripeSetId;
use zonal_types::limits::{NODES_MAX, SLOTS_MAX, ZONES_MAX};

impl ZoneMap {
    /// Every broken invariant, in words.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let sorted = is_sorted(&self.zones, |zone| zone.id)
            && is_sorted(&self.nodes, |node| node.id)
            && is_sorted(&self.targets, |target| target.id)
            && is_sorted(&self.shards, |shard| shard.id)
            && is_sorted(&self.sets, |set| set.id)
            && is_sorted(&self.junctions, |junction| junction.ino);
        if !sorted {
            broken.push("a list is not sorted or an id occurs twice".to_owned());
        }
        if self.zones.len() > ZONES_MAX || self.nodes.len() > NODES_MAX {
            broken.push("too many zones or nodes".to_owned());
        }
        let replicas = self.shards.iter().flat_map(|shard| &shard.replicas);
        let keepers = replicas.chain(&self.managers);
        for node in keepers.filter(|node| self.node(**node).is_none()) {
            broken.push(format!("unknown node {node} keeps the map or a shard"));
        }
        if self.set_width == 0 || usize::from(self.set_width) > SLOTS_MAX {
            broken.push(format!("sets are to have {} slots", self.set_width));
        }
        if self
            .sets
            .last()
            .is_some_and(|last| last.id >= self.next_set)
        {
            broken.push("the number of a set would be given again".to_owned());
        }
        self.check_references(&mut broken);
        self.check_partitions(&mut broken);
        broken
    }

    fn check_references(&self, broken: &mut Vec<String>) {
        for node in self
            .nodes
            .iter()
            .filter(|node| self.zone(node.zone).is_none())
        {
            broken.push(format!("node {} is in unknown zone {}", node.id, node.zone));
        }
        for target in self
            .targets
            .iter()
            .filter(|target| self.node(target.node).is_none())
        {
            broken.push(format!(
                "target {} is on unknown node {}",
                target.id, target.node
            ));
        }
        for shard in self.shards.iter().filter(|shard| {
            self.node(shard.node).is_none() || !shard.replicas.contains(&shard.node)
        }) {
            broken.push(format!(
                "shard {} is on unknown node {}, or not among its replicas",
                shard.id, shard.node
            ));
        }
        for set in &self.sets {
            let mut seen = BTreeSet::new();
            for slot in &set.slots {
                let zone = self
                    .target(slot.target)
                    .and_then(|target| self.node(target.node))
                    .map(|node| node.zone);
                if zone != Some(set.zone) || !seen.insert(slot.target) {
                    broken.push(format!(
                        "set {} has target {} twice or from elsewhere",
                        set.id, slot.target
                    ));
                }
            }
            let mut epochs = set.slots.iter().map(|slot| slot.slot_epoch.0);
            if epochs.any(|of| of == 0 || of > self.version.0) {
                broken.push(format!(
                    "set {} has a slot epoch that no version of the map gave",
                    set.id
                ));
            }
            if set.slots.is_empty() || set.slots.len() > SLOTS_MAX {
                broken.push(format!("set {} has {} slots", set.id, set.slots.len()));
            }
        }
        for zone in &self.zones {
            let is_foreign = |id: &StripeSetId| self.set(*id).is_none_or(|set| set.zone != zone.id);
            if zone.default_sets.iter().any(is_foreign) || !is_sorted(&zone.default_sets, |id| *id)
            {
                broken.push(format!(
                    "zone {} has a default set that is not its own",
                    zone.id
                ));
            }
        }
        for junction in self
            .junctions
            .iter()
            .filter(|junction| self.zone(junction.zone).is_none())
        {
            broken.push(format!(
                "junction {} leads to unknown zone {}",
                junction.path, junction.zone
            ));
        }
    }

    fn check_partitions(&self, broken: &mut Vec<String>) {
        let mut free_from = 0;
        for range in &self.partitions {
            let end = range.first.0.checked_add(range.count);
            if range.count == 0
                || range.first.0 < free_from
                || end.is_none_or(|end| end > zonal_types::ids::PARTITIONS_MAX)
            {
                broken.push(format!(
                    "partitions from {} overlap or are out of range",
                    range.first
                ));
            }
            if self.shard(range.shard).is_none() {
                broken.push(format!(
                    "partitions from {} have unknown shard {}",
                    range.first, range.shard
                ));
            }
            free_from = end.unwrap_or(u32::MAX);
        }
    }
}

fn is_sorted<T, K: Ord>(list: &[T], key: impl Fn(&T) -> K) -> bool {
    list.windows(2).all(|pair| key(&pair[0]) < key(&pair[1]))
}
