//! The allocator against a state for each unit. A sequence of calls that fails shrinks to a short
//! one.

use super::*;
use crate::ids::ObjectId;
use proptest::prelude::*;
use proptest::sample::Index;
use zonal_types::DataId;

/// More than one word of a bitmap, and no whole number of them.
const CONFIG: TargetConfig = TargetConfig {
    segment_units: 70,
    segments: 3,
    pending_blocks_max: 8,
};
const UNITS: usize = 210;

#[derive(Debug, Clone)]
enum Step {
    /// Units, and the object that they are for.
    Allocate(u32, u64),
    /// A write in flight ends without a record.
    Release(Index),
    /// A record refers to the extents of a write.
    Adopt(Index),
    /// A record that refers to an extent ends.
    Free(Index),
    Checkpoint,
    CheckpointDone,
}

fn step() -> impl Strategy<Value = Step> {
    let count = prop_oneof![1..8_u32, 1..80_u32];
    prop_oneof![
        6 => (count, 0..5_u64).prop_map(|(count, of)| Step::Allocate(count, of)),
        2 => any::<Index>().prop_map(Step::Release),
        4 => any::<Index>().prop_map(Step::Adopt),
        3 => any::<Index>().prop_map(Step::Free),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::CheckpointDone),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnitState {
    Free,
    InFlight,
    Live,
    /// Free after the next checkpoint.
    Waiting,
    /// Free when the checkpoint that is being made is durable.
    Frozen,
}

#[derive(Debug)]
struct Model {
    units: Vec<UnitState>,
    in_flight: Vec<Vec<Extent>>,
    live: Vec<Extent>,
}

impl Model {
    fn change(
        &mut self,
        extents: &[Extent],
        from: UnitState,
        to: UnitState,
    ) -> Result<(), TestCaseError> {
        for place in extents.iter().flat_map(|extent| extent.places()) {
            let unit = place.segment * CONFIG.segment_units + place.unit;
            let state = &mut self.units[unit as usize];
            prop_assert_eq!(
                *state,
                from,
                "unit {} of segment {}",
                place.unit,
                place.segment
            );
            *state = to;
        }
        Ok(())
    }

    fn count(&self, state: UnitState) -> u64 {
        let units = self.units.iter().filter(|unit| **unit == state);
        units.count() as u64
    }

    fn replace(&mut self, from: UnitState, to: UnitState) {
        for unit in self.units.iter_mut().filter(|unit| **unit == from) {
            *unit = to;
        }
    }
}

fn make(step: &Step, space: &mut Space, model: &mut Model) -> Result<(), TestCaseError> {
    use UnitState::{Free, Frozen, InFlight, Live, Waiting};
    match step {
        Step::Allocate(count, of) => {
            let object = ObjectId {
                data_id: DataId(*of),
                ..ObjectId::default()
            };
            let extents = space.allocate_for(object, *count);
            let fits = u64::from(*count) <= model.count(Free);
            prop_assert_eq!(extents.is_some(), fits, "{} units", count);
            if let Some(extents) = extents {
                let taken: u32 = extents.iter().map(|extent| extent.count).sum();
                prop_assert_eq!(taken, *count);
                model.change(&extents, Free, InFlight)?;
                model.in_flight.push(extents);
            }
        }
        Step::Release(at) if !model.in_flight.is_empty() => {
            let extents = model.in_flight.remove(at.index(model.in_flight.len()));
            space.release(&extents);
            model.change(&extents, InFlight, Free)?;
        }
        Step::Adopt(at) if !model.in_flight.is_empty() => {
            let extents = model.in_flight.remove(at.index(model.in_flight.len()));
            for extent in &extents {
                prop_assert_eq!(space.adopt(extent), Ok(()));
                prop_assert_eq!(space.adopt(extent), Err(ErrorCode::Corrupt));
            }
            model.change(&extents, InFlight, Live)?;
            model.live.extend(extents);
        }
        Step::Free(at) if !model.live.is_empty() => {
            let extent = model.live.remove(at.index(model.live.len()));
            prop_assert_eq!(space.free_later(&extent), Ok(()));
            prop_assert_eq!(space.free_later(&extent), Err(ErrorCode::Corrupt));
            model.change(&[extent], Live, Waiting)?;
        }
        Step::Checkpoint => {
            space.freeze(&mut Vec::new());
            model.replace(Waiting, Frozen);
        }
        Step::CheckpointDone => {
            space.checkpoint_done();
            model.replace(Frozen, Free);
        }
        Step::Release(_) | Step::Adopt(_) | Step::Free(_) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn units_are_free_in_flight_live_or_waiting_as_in_a_list_of_them(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut space = Space::new(&CONFIG);
        let mut model = Model {
            units: vec![UnitState::Free; UNITS],
            in_flight: Vec::new(),
            live: Vec::new(),
        };
        for step in &steps {
            make(step, &mut space, &mut model)?;
            let waiting = model.count(UnitState::Waiting) + model.count(UnitState::Frozen);
            prop_assert_eq!(space.free(), model.count(UnitState::Free));
            prop_assert_eq!(space.in_flight(), model.count(UnitState::InFlight));
            prop_assert_eq!(space.live(), model.count(UnitState::Live));
            prop_assert_eq!(space.waiting(), waiting);
        }
    }
}
