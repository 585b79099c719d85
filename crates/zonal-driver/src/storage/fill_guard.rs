//! Steps of fills that are under way, and whether a client has changed their range meanwhile.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_object::ObjectId;

/// The steps under way.
#[derive(Debug, Default)]
pub(super) struct FillGuard(Mutex<FillSteps>);

#[derive(Debug, Default)]
struct FillSteps {
    next: u64,
    under_way: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    number: u64,
    object: ObjectId,
    range: Range<u64>,
    /// The first byte behind the step's begin that a client has changed.
    changed: Option<u64>,
}

/// A step under way, until it is dropped.
#[derive(Debug)]
pub(super) struct FillStep<'a> {
    guard: &'a FillGuard,
    number: u64,
}

impl FillGuard {
    fn steps(&self) -> MutexGuard<'_, FillSteps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a step, whose end is not known yet.
    pub(super) fn begin(&self, object: ObjectId, offset: u64) -> FillStep<'_> {
        let mut steps = self.steps();
        let number = steps.next;
        steps.next += 1;
        steps.under_way.push(Step {
            number,
            object,
            range: offset..u64::MAX,
            changed: None,
        });
        FillStep {
            guard: self,
            number,
        }
    }

    /// Notes a client's change. Called under the target's mutex, with its commit.
    pub(super) fn note(
        &self,
        object: ObjectId,
        ranges: &(impl Iterator<Item = Range<u64>> + Clone),
    ) {
        let mut steps = self.steps();
        let of_object = steps.under_way.iter_mut();
        for step in of_object.filter(|step| step.object == object) {
            let from = step.range.start;
            let behind = ranges.clone().filter(|range| range.end > from);
            let first = behind.map(|range| range.start.max(from)).min();
            if let Some(first) = first {
                zonal_types::mark!(FillOvertaken);
                step.changed = Some(step.changed.map_or(first, |at| at.min(first)));
            }
        }
    }
}

impl FillStep<'_> {
    /// Sets the end of the step.
    pub(super) fn end_at(&self, end: u64) {
        let mut steps = self.guard.steps();
        let mut under_way = steps.under_way.iter_mut();
        if let Some(step) = under_way.find(|step| step.number == self.number) {
            step.range.end = end;
        }
    }

    /// Whether a client has changed a byte of the step's range.
    pub(super) fn is_overtaken(&self) -> bool {
        let steps = self.guard.steps();
        let step = steps.under_way.iter();
        let mut own = step.filter(|step| step.number == self.number);
        own.any(|step| step.changed.is_some_and(|at| at < step.range.end))
    }
}

impl Drop for FillStep<'_> {
    fn drop(&mut self) {
        let mut steps = self.guard.steps();
        steps.under_way.retain(|step| step.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Column, DataId};

    #[test]
    fn a_change_of_the_steps_range_overtakes_it() {
        let guard = FillGuard::default();
        let object = |column: u16| ObjectId {
            data_id: DataId(7),
            column: Column(column),
        };
        guard.note(object(1), &std::iter::once(0..10));
        let step = guard.begin(object(1), 100);
        let other = guard.begin(object(3), 0);
        guard.note(object(2), &std::iter::once(100..200));
        guard.note(object(1), &[0..100, 200..300].into_iter());
        assert!(step.is_overtaken(), "the end may lie behind");
        step.end_at(200);
        assert!(!step.is_overtaken());
        guard.note(object(1), &[150..151, 199..200].into_iter());
        assert!(step.is_overtaken());
        assert!(!other.is_overtaken(), "of another object");
        drop(step);
        assert!(!guard.begin(object(1), 100).is_overtaken());
    }
}
