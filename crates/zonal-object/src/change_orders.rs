//! Orders of changes: by them all copies of an object end with the same bytes
//! (docs/rfcs/2026-11-27-write-order.md).
//!
//! A client gives each change of a file with copies a number, its order, and sends it with the same
//! order to all copies. A target refuses a change that meets bytes of a higher order, and applies
//! nothing of it. So of two changes that meet, the one with the higher order is the last one at
//! each copy, however their messages arrive. Order 0 has no order: the file has one copy.
//!
//! The highest order of an object is in its header, and lasts. The orders of its ranges are in
//! memory only: they spare changes that do not meet a refusal. Bytes outside of these ranges count
//! with the object's floor.
//!
//! Two clients may give the same order. Then the target takes the one that came first. Their
//! orders differ once the other one has raised its own.
//!
//! *Invariants*:
//!
//! 1. Ranges of an object do not overlap, and none is empty.
//! 2. No byte of an object has had a higher order than its range in memory, or else the floor.
//! 3. Memory has at most `ORDER_RANGES_MAX` ranges. The lowest order of all is forgotten first.

use crate::ids::{ChangeAttempt, ObjectId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use zonal_types::limits::ORDER_RANGES_MAX;
use zonal_types::{ClientId, ErrorCode};

/// The last change of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    end: u64,
    order: u64,
    /// The client that made it; 0: unknown, as another copy had the bytes.
    client: ClientId,
}

#[derive(Debug)]
struct ObjectOrders {
    /// Bytes outside of the ranges have this order at most.
    floor: u64,
    ranges: BTreeMap<u64, Known>,
}

impl ObjectOrders {
    /// The ranges that meet `of`, with their begins.
    fn meeting(&self, of: &Range<u64>) -> impl Iterator<Item = (u64, Known)> {
        let before = self.ranges.range(..of.start).next_back();
        let before = before.filter(|(_, known)| known.end > of.start);
        let from = before.map_or(of.start, |(start, _)| *start);
        let found = self.ranges.range(from..of.end.max(from));
        found.map(|(start, known)| (*start, *known))
    }
}

/// Orders of ranges of all objects.
#[derive(Debug)]
pub(crate) struct ChangeOrders {
    objects: BTreeMap<ObjectId, ObjectOrders>,
    /// All ranges: order, object, begin.
    by_order: BTreeSet<(u64, ObjectId, u64)>,
    ranges_max: usize,
}

impl Default for ChangeOrders {
    fn default() -> Self {
        Self::with_bound(ORDER_RANGES_MAX)
    }
}

impl ChangeOrders {
    fn with_bound(ranges_max: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            by_order: BTreeSet::new(),
            ranges_max,
        }
    }

    /// Admits a change, unless it meets bytes of a higher order. `stored`: the highest order of the
    /// object, of its header.
    ///
    /// # Errors
    /// `Overtaken`.
    pub(crate) fn admit(
        &self,
        (object, stored): (ObjectId, u64),
        attempt: ChangeAttempt,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<(), ErrorCode> {
        // Bytes that fill a copy are newer than what it has, or a client's change has overtaken
        // them.
        if attempt.order == 0 || attempt.is_fill {
            return Ok(());
        }
        let known = self.objects.get(&object);
        let floor = known.map_or(stored, |known| known.floor);
        let client = attempt.sender.identity.client;
        let is_over = |known: Known| {
            let is_its = known.client == client || known.client == ClientId(0);
            known.order > attempt.order || (known.order == attempt.order && !is_its)
        };
        let is_overtaken = attempt.order <= floor
            || known.is_some_and(|known| {
                let mut ranges = ranges.into_iter();
                ranges.any(|range| known.meeting(&range).any(|(_, of)| is_over(of)))
            });
        if is_overtaken {
            zonal_types::mark!(ChangeOvertaken);
            return Err(ErrorCode::Overtaken);
        }
        Ok(())
    }

    /// Notes a change that is applied. `stored`: the highest order of the object before it.
    pub(crate) fn note(
        &mut self,
        (object, stored): (ObjectId, u64),
        attempt: ChangeAttempt,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) {
        if attempt.order == 0 {
            return;
        }
        for range in ranges {
            self.insert((object, stored), attempt, range);
        }
        while self.by_order.len() > self.ranges_max {
            self.forget_lowest();
        }
    }

    /// The highest order that a byte of the range may have.
    pub(crate) fn highest(&self, (object, stored): (ObjectId, u64), range: &Range<u64>) -> u64 {
        let Some(known) = self.objects.get(&object) else {
            return stored;
        };
        let orders = known.meeting(range).map(|(_, of)| of.order);
        orders.fold(known.floor, u64::max)
    }

    /// Sets a range, but for parts that have a higher order.
    fn insert(
        &mut self,
        (object, stored): (ObjectId, u64),
        attempt: ChangeAttempt,
        range: Range<u64>,
    ) {
        let ranges = BTreeMap::new();
        let floor = stored;
        let of = self.objects.entry(object);
        let of = of.or_insert(ObjectOrders { floor, ranges });
        let met: Vec<(u64, Known)> = of.meeting(&range).collect();
        let mut put: Vec<(u64, Known)> = Vec::new();
        let client = match attempt.is_fill {
            true => ClientId(0),
            false => attempt.sender.identity.client,
        };
        let order = attempt.order;
        let mut at = range.start;
        for (start, known) in met {
            if known.order > order {
                let end = start.min(range.end);
                put.push((at, Known { end, order, client }));
                at = known.end.max(at);
                continue;
            }
            of.ranges.remove(&start);
            self.by_order.remove(&(known.order, object, start));
            let end = range.start;
            put.push((start, Known { end, ..known }));
            put.push((range.end, known));
        }
        let end = range.end;
        put.push((at, Known { end, order, client }));
        for (start, known) in put {
            if start < known.end {
                of.ranges.insert(start, known);
                self.by_order.insert((known.order, object, start));
            }
        }
    }

    fn forget_lowest(&mut self) {
        let Some((order, object, start)) = self.by_order.pop_first() else {
            return;
        };
        let Some(of) = self.objects.get_mut(&object) else {
            return;
        };
        of.ranges.remove(&start);
        of.floor = of.floor.max(order);
        if of.ranges.is_empty() {
            // From now on the header's order counts, which is as high.
            self.objects.remove(&object);
        }
    }
}

#[cfg(test)]
mod tests;
