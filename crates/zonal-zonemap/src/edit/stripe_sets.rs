//! Stripe sets of a zone: which targets form a set, which sets new files use, which sets are
//! removed.
//!
//! A set is open once a shard may give it to files, and then stays until its targets are removed. A
//! joining target replaces the zone's sets that are not open, so that targets that join one by one
//! leave no set behind each. An open set that is wide enough stays a default set. The targets of a
//! narrow one form a new set with the new targets, and the old set serves its files on. See
//! docs/rfcs/2026-11-25-stripe-sets-of-bounded-width.md.
//!
//! Sets over all zones ([`ZoneId::CELL`]) follow the same rules. A cell has none until they are
//! opened the first time. Their slots take the zones in turn.

use super::EditError;
use crate::map::{Node, Slot, SlotState, StripeSet, Target, TargetState, ZoneMap};
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{Epoch, NodeId, StripeSetId, TargetId, ZoneId};

impl ZoneMap {
    /// The serving targets of a zone or of the cell, in rising order.
    fn serving(&self, zone: ZoneId) -> BTreeSet<TargetId> {
        let is_in = |node: &&Node| zone == ZoneId::CELL || node.zone == zone;
        let nodes = self.nodes.iter().filter(is_in);
        let nodes: Vec<NodeId> = nodes.map(|node| node.id).collect();
        let is_there = |target: &&Target| {
            target.state.takes_files() && nodes.binary_search(&target.node).is_ok()
        };
        let targets = self.targets.iter().filter(is_there);
        targets.map(|target| target.id).collect()
    }

    /// The list of default sets of a zone or of the cell.
    fn default_list(&mut self, zone: ZoneId) -> Option<&mut Vec<StripeSetId>> {
        if zone == ZoneId::CELL {
            return Some(&mut self.cell_sets);
        }
        let found = self.zones.iter_mut().find(|known| known.id == zone);
        found.map(|zone| &mut zone.default_sets)
    }

    /// Orders the targets of new sets: in a zone by number, in the cell zone by zone in turn.
    fn slot_order(&self, zone: ZoneId, targets: BTreeSet<TargetId>) -> Vec<TargetId> {
        if zone != ZoneId::CELL {
            return targets.into_iter().collect();
        }
        let mut ranks: BTreeMap<ZoneId, usize> = BTreeMap::new();
        let mut order = Vec::with_capacity(targets.len());
        for id in targets {
            let node = self.target(id).and_then(|target| self.node(target.node));
            let zone = node.map_or(ZoneId::CELL, |node| node.zone);
            let rank = ranks.entry(zone).or_default();
            order.push((*rank, zone, id));
            *rank += 1;
        }
        order.sort_unstable();
        order.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Regroups the stripe sets of a zone and those of the cell, where it has any, after the zone's
    /// targets changed.
    pub(super) fn regroup_with(&mut self, zone: ZoneId) {
        self.regroup(zone);
        if !self.cell_sets.is_empty() {
            self.regroup(ZoneId::CELL);
        }
    }

    /// Regroups the stripe sets of a zone or of the cell after its targets changed: each serving
    /// target gets into exactly one default set. Apart from the targets of sets that are not open,
    /// the new sets have at most 1.5 times the set width of targets.
    fn regroup(&mut self, zone: ZoneId) {
        let Some(before) = self.default_list(zone).map(std::mem::take) else {
            return;
        };
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
        let mut loose = self.slot_order(zone, loose).into_iter();
        while left > 0 {
            // Widths of the new sets differ by one slot at most.
            let slots = left.div_ceil(left.div_ceil(width));
            now.push(self.add_set(zone, loose.by_ref().take(slots)));
            left -= slots;
        }
        now.sort_unstable();
        if let Some(list) = self.default_list(zone) {
            *list = now;
        }
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
        if zone == ZoneId::CELL && self.cell_sets.is_empty() {
            self.regroup(zone);
        }
        let ids = self.default_list(zone);
        let ids = ids.ok_or(EditError::Unknown { what: "zone" })?.clone();
        let sets = self.sets.iter_mut();
        for set in sets.filter(|set| ids.contains(&set.id)) {
            set.is_open = true;
        }
        Ok(())
    }

    pub(super) fn use_target(&mut self, id: TargetId, state: TargetState) -> Result<(), EditError> {
        self.refuse_drained(id)?;
        let found = self.target(id);
        let found = found.ok_or(EditError::Unknown { what: "target" })?;
        let state = match (found.state, state) {
            (now, TargetState::Serving) if now.is_leaving() => TargetState::Returning,
            (TargetState::Returning, TargetState::Serving) => TargetState::Returning,
            // Relocations under way are dropped first.
            (TargetState::Shedding { salt, .. }, TargetState::Serving) => TargetState::Shedding {
                salt,
                is_ending: true,
            },
            (TargetState::Serving | TargetState::Shedding { .. }, TargetState::Shedding { .. }) => {
                state
            }
            (_, TargetState::Shedding { .. }) => return Err(EditError::NotServing { target: id }),
            (_, state) => state,
        };
        self.set_target_state(id, state)
    }

    /// Lets a target serve whose objects have returned, or stay elsewhere, or are even.
    pub(super) fn end_return(&mut self, id: TargetId) -> Result<(), EditError> {
        match self.target_state(id) {
            Some(TargetState::Returning | TargetState::Shedding { .. }) => {
                self.set_target_state(id, TargetState::Serving)
            }
            Some(_) => Ok(()),
            None => Err(EditError::Unknown { what: "target" }),
        }
    }

    fn set_target_state(&mut self, id: TargetId, state: TargetState) -> Result<(), EditError> {
        let found = self.targets.iter_mut().find(|known| known.id == id);
        let found = found.ok_or(EditError::Unknown { what: "target" })?;
        let before = std::mem::replace(&mut found.state, state);
        if before.takes_files() == state.takes_files() {
            return Ok(());
        }
        let node = found.node;
        let zone = self.node(node).map(|node| node.zone);
        let zone = zone.ok_or(EditError::Unknown { what: "node" })?;
        if self.serving(zone).is_empty() {
            return Err(EditError::OnlyTarget { target: id, zone });
        }
        self.regroup_with(zone);
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
        let is_used = zones.any(|zone| self.default_sets(zone.id).any(has_it))
            || self.default_sets(ZoneId::CELL).any(has_it);
        if found.state.takes_files() || found.state.is_leaving() || is_used {
            return Err(EditError::InUse { target: id });
        }
        // Files lie over the other slots of a drained target's sets.
        if found.state != TargetState::Drained {
            self.sets.retain(|set| !has_it(set));
        }
        self.targets.retain(|target| target.id != id);
        let has_more = self.targets.iter().any(|target| target.node == node)
            || self
                .shards
                .iter()
                .any(|shard| shard.replicas.contains(&node));
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
