//! Check of a map's invariants; each violation is described in words.

use super::{Node, Shard, SlotState, StripeSet, Target, Zone, ZoneMap};
use crate::change::{Item, ItemKey, MapChange};
use std::collections::BTreeSet;
use zonal_types::limits::{NODES_MAX, SLOTS_MAX, ZONES_MAX};
use zonal_types::{StripeSetId, ZoneId};

impl ZoneMap {
    /// Describes every violated invariant.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let sorted = is_sorted(&self.zones, |zone| zone.id)
            && is_sorted(&self.nodes, |node| node.id)
            && is_sorted(&self.targets, |target| target.id)
            && is_sorted(&self.shards, |shard| shard.id)
            && is_sorted(&self.sets, |set| set.id);
        if !sorted {
            broken.push("a list is not sorted or an id occurs twice".to_owned());
        }
        self.check_whole(&mut broken);
        self.check_all_references(&mut broken);
        self.check_partitions(&mut broken);
        broken
    }

    /// Checks a map that a change made from a sound one. Unchanged items are checked only where
    /// something was removed.
    #[must_use]
    pub(crate) fn check_changed(&self, change: &MapChange) -> Vec<String> {
        let mut broken = Vec::new();
        self.check_whole(&mut broken);
        let is_set = |key: &ItemKey| key.kind == 6;
        if !change.gone.iter().all(is_set) {
            self.check_all_references(&mut broken);
            self.check_partitions(&mut broken);
            return broken;
        }
        if !change.gone.is_empty() {
            let zones = self.zones.iter();
            zones.for_each(|zone| self.check_zone(zone, &mut broken));
        }
        for item in &change.puts {
            match item {
                Item::Zone { zone } => self.check_zone(zone, &mut broken),
                Item::Node { node } => self.check_node(node, &mut broken),
                Item::Target { target } => self.check_target(target, &mut broken),
                Item::Shard { shard } => self.check_shard(shard, &mut broken),
                Item::Partitions { .. } => self.check_partitions(&mut broken),
                Item::Set { set } => self.check_set(set, &mut broken),
            }
        }
        broken
    }

    /// Invariants of the map as a whole.
    fn check_whole(&self, broken: &mut Vec<String>) {
        if self.zones.len() > ZONES_MAX || self.nodes.len() > NODES_MAX {
            broken.push("too many zones or nodes".to_owned());
        }
        for node in self
            .managers
            .iter()
            .filter(|node| self.node(**node).is_none())
        {
            broken.push(format!("unknown node {node} keeps the map"));
        }
        let is_foreign =
            |id: &StripeSetId| self.set(*id).is_none_or(|set| set.zone != ZoneId::CELL);
        if self.cell_sets.iter().any(is_foreign) || !is_sorted(&self.cell_sets, |id| *id) {
            broken.push("a default set over all zones is not the cell's".to_owned());
        }
        if self.zone(ZoneId::CELL).is_some() {
            broken.push("a zone has the number that stands for all zones".to_owned());
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
    }

    fn check_all_references(&self, broken: &mut Vec<String>) {
        self.zones
            .iter()
            .for_each(|zone| self.check_zone(zone, broken));
        self.nodes
            .iter()
            .for_each(|node| self.check_node(node, broken));
        let targets = self.targets.iter();
        targets.for_each(|target| self.check_target(target, broken));
        let shards = self.shards.iter();
        shards.for_each(|shard| self.check_shard(shard, broken));
        self.sets.iter().for_each(|set| self.check_set(set, broken));
    }

    fn check_zone(&self, zone: &Zone, broken: &mut Vec<String>) {
        let is_foreign = |id: &StripeSetId| self.set(*id).is_none_or(|set| set.zone != zone.id);
        let sets = &zone.default_sets;
        if sets.iter().any(is_foreign) || !is_sorted(sets, |id| *id) {
            let id = zone.id;
            broken.push(format!("zone {id} has a default set that is not its own"));
        }
    }

    fn check_node(&self, node: &Node, broken: &mut Vec<String>) {
        if self.zone(node.zone).is_none() {
            broken.push(format!("node {} is in unknown zone {}", node.id, node.zone));
        }
    }

    fn check_target(&self, target: &Target, broken: &mut Vec<String>) {
        let (id, node) = (target.id, target.node);
        if self.node(node).is_none() {
            broken.push(format!("target {id} is on unknown node {node}"));
        }
    }

    fn check_shard(&self, shard: &Shard, broken: &mut Vec<String>) {
        let (id, node) = (shard.id, shard.node);
        if self.node(node).is_none() || !Shard::has_sound_replicas(node, &shard.replicas) {
            broken.push(format!(
                "shard {id} is on unknown node {node}, or its replicas are not sound"
            ));
        }
        let replicas = shard.replicas.iter();
        for node in replicas.filter(|node| self.node(**node).is_none()) {
            broken.push(format!("unknown node {node} keeps shard {id}"));
        }
    }

    fn check_set(&self, set: &StripeSet, broken: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for slot in &set.slots {
            let target = self.target(slot.target);
            let node = target.and_then(|target| self.node(target.node));
            let zone = node.map(|node| node.zone);
            let is_own = zone.is_some_and(|zone| set.zone == ZoneId::CELL || zone == set.zone);
            let has_left = target.is_none() && slot.state == SlotState::Out;
            if !(is_own || has_left) || !seen.insert(slot.target) {
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
