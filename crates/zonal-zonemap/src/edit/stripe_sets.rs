//! Stripe sets of a zone: which targets form a set, which sets new files use, which sets are
//! removed.
//!
//! A set is open once a shard may give it to files, and then stays until its targets are removed. A
//! joining target replaces the zone's sets that are not open, so that targets that join one by one
//! leave no set behind each. An open set that is wide enough stays a default set. The targets of a
//! narrow one form a new set with the new targets, and the old set serves its files on. See
//! docs/rfcs/2026-11-25-stripe-sets-of-bounded-width.md.

use super::EditError;
use crate::map::{Slot, SlotState, StripeSet, Target, TargetState, ZoneMap};
use std::collections::BTreeSet;
use zonal_types::{Epoch, NodeId, StripeSetId, TargetId, ZoneId};

impl ZoneMap {
    /// The serving targets of a zone, in rising order.
    fn serving(&self, zone: ZoneId) -> BTreeSet<TargetId> {
        let nodes = self.nodes.iter().filter(|node| node.zone == zone);
        let nodes: Vec<NodeId> = nodes.map(|node| node.id).collect();
        let is_there = |target: &&Target| {
            target.state == TargetState::Serving && nodes.binary_search(&target.node).is_ok()
        };
        let targets = self.targets.iter().filter(is_there);
        targets.map(|target| target.id).collect()
    }

    /// Regroups the stripe sets of a zone after its targets changed: each serving target gets into
    /// exactly one default set. Apart from the targets of sets that are not open, the new sets have
    /// at most 1.5 times the set width of targets.
    pub(super) fn regroup(&mut self, zone: ZoneId) {
        let Ok(index) = self.zones.binary_search_by_key(&zone, |zone| zone.id) else {
            return;
        };
        let before = std::mem::take(&mut self.zones[index].default_sets);
        let mut loose = self.serving(zone);
        let mut kept: Vec<(usize, StripeSetId)> = Vec::new();
        for id in &before {
            let Some(set) = self.set(*id).filter(|set| set.is_open) else {
                continue;
            };
            let targets: BTreeSet<TargetId> = set.slots.iter().map(|slot| slot.target).collect();
            if targets.is_subset(&loose) {
                loose = loose.difference(&targets).copied().collect();
                kept.push((set.slots.len(), *id));
            }
        }
        let width = usize::from(self.set_width).max(1);
        // A narrow set would give its files little bandwidth.
        while !loose.is_empty()
            && loose.len() * 2 < width
            && let Some(narrowest) = kept.iter().min().copied()
        {
            kept.retain(|set| *set != narrowest);
            let slots = self.set(narrowest.1).map_or(&[][..], |set| &set.slots);
            loose.extend(slots.iter().map(|slot| slot.target));
        }
        let is_left = |set: &StripeSet| set.is_open || !before.contains(&set.id);
        self.sets.retain(is_left);
        let mut now: Vec<StripeSetId> = kept.into_iter().map(|(_, id)| id).collect();
        let mut left = loose.len();
        let mut loose = loose.into_iter();
        while left > 0 {
            // Widths of the new sets differ by one slot at most.
            let slots = left.div_ceil(left.div_ceil(width));
            now.push(self.add_set(zone, loose.by_ref().take(slots)));
            left -= slots;
        }
        now.sort_unstable();
        self.zones[index].default_sets = now;
    }

    fn add_set(&mut self, zone: ZoneId, targets: impl Iterator<Item = TargetId>) -> StripeSetId {
        let id = self.next_set;
        self.next_set = StripeSetId(id.0.saturating_add(1));
        let slot_epoch = Epoch(self.version.0);
        let slots = targets.map(|target| Slot {
            target,
            previous: None,
            state: SlotState::Serving,
            slot_epoch,
        });
        self.sets.push(StripeSet {
            id,
            zone,
            is_open: false,
            slots: slots.collect(),
        });
        id
    }

    pub(super) fn open_sets(&mut self, zone: ZoneId) -> Result<(), EditError> {
        let known = self.zone(zone);
        let ids = known
            .ok_or(EditError::Unknown { what: "zone" })?
            .default_sets
            .clone();
        let sets = self.sets.iter_mut();
        for set in sets.filter(|set| ids.contains(&set.id)) {
            set.is_open = true;
        }
        Ok(())
    }

    pub(super) fn use_target(&mut self, id: TargetId, state: TargetState) -> Result<(), EditError> {
        let found = self.targets.iter_mut().find(|known| known.id == id);
        let found = found.ok_or(EditError::Unknown { what: "target" })?;
        if found.state == state {
            return Ok(());
        }
        found.state = state;
        let node = found.node;
        let zone = self.node(node).map(|node| node.zone);
        let zone = zone.ok_or(EditError::Unknown { what: "node" })?;
        if self.serving(zone).is_empty() {
            return Err(EditError::OnlyTarget { target: id, zone });
        }
        self.regroup(zone);
        Ok(())
    }

    pub(super) fn remove_target(&mut self, id: TargetId) -> Result<(), EditError> {
        let found = self.target(id);
        let found = found.ok_or(EditError::Unknown { what: "target" })?;
        let node = found.node;
        let has_it = |set: &StripeSet| {
            let mut slots = set.slots.iter();
            slots.any(|slot| slot.target == id || slot.previous == Some(id))
        };
        let mut zones = self.zones.iter();
        let is_used = zones.any(|zone| self.default_sets(zone.id).any(has_it));
        if found.state == TargetState::Serving || is_used {
            return Err(EditError::InUse { target: id });
        }
        self.sets.retain(|set| !has_it(set));
        self.targets.retain(|target| target.id != id);
        let has_more = self.targets.iter().any(|target| target.node == node)
            || self.shards.iter().any(|shard| shard.node == node);
        if !has_more {
            self.nodes.retain(|known| known.id != node);
        }
        Ok(())
    }

    pub(super) fn set_slot(
        &mut self,
        set: StripeSetId,
        slot: u16,
        target: TargetId,
    ) -> Result<(), EditError> {
        let slot_epoch = Epoch(self.version.0);
        let found = self.sets.iter_mut().find(|known| known.id == set);
        let slots = &mut found
            .ok_or(EditError::Unknown { what: "stripe set" })?
            .slots;
        let slot = slots
            .get_mut(usize::from(slot))
            .ok_or(EditError::Unknown { what: "slot" })?;
        if slot.target != target {
            slot.previous = Some(slot.target);
            slot.target = target;
        }
        slot.slot_epoch = slot_epoch;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
