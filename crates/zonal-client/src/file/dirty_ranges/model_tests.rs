//! Dirty ranges against an array of optional bytes. A sequence of calls that fails shrinks to a
//! short one.

use super::*;
use proptest::prelude::*;

/// Bytes of the array; writes begin before 500 and have fewer than 90.
const BYTES: usize = 600;
const UNIT: u64 = 64;

#[derive(Debug, Clone)]
enum Step {
    Insert {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The write comes with its memory; at the end of the run before `offset`, where it `follows`.
    Adopt {
        offset: u64,
        bytes: Vec<u8>,
        follows: bool,
    },
    Remove {
        offset: u64,
        length: usize,
    },
    TakeFull {
        behind: u64,
    },
    TakeFirst {
        behind: u64,
    },
    TakeBefore {
        end: u64,
    },
    TakeMany {
        behind: u64,
        runs: usize,
        bytes: usize,
    },
}

fn offset() -> impl Strategy<Value = u64> {
    // Some offsets are near those of others, or at a unit.
    prop_oneof![
        0..500_u64,
        (0..8_u64).prop_map(|unit| unit * UNIT),
        0..40_u64
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..90);
    prop_oneof![
        6 => (offset(), bytes()).prop_map(|(offset, bytes)| Step::Insert { offset, bytes }),
        4 => (offset(), bytes(), any::<bool>()).prop_map(
            |(offset, bytes, follows)| Step::Adopt { offset, bytes, follows }
        ),
        3 => (offset(), 0..90_usize).prop_map(|(offset, length)| Step::Remove { offset, length }),
        1 => offset().prop_map(|behind| Step::TakeFull { behind }),
        1 => offset().prop_map(|behind| Step::TakeFirst { behind }),
        1 => offset().prop_map(|end| Step::TakeBefore { end }),
        1 => (offset(), 0..4_usize, 0..200_usize).prop_map(
            |(behind, runs, bytes)| Step::TakeMany { behind, runs, bytes }
        ),
    ]
}

type Bytes = [Option<u8>];

fn put(model: &mut Bytes, offset: u64, bytes: &[u8]) {
    let at = to_usize(offset);
    for (place, byte) in model[at..].iter_mut().zip(bytes) {
        *place = Some(*byte);
    }
}

/// The first dirty byte from `from` on.
fn first_dirty(model: &Bytes, from: u64) -> Option<u64> {
    let at = model.iter().skip(to_usize(from)).position(Option::is_some);
    at.map(|at| from + at as u64)
}

/// Takes a run out of the array, which had its bytes.
fn take(model: &mut Bytes, (at, run): &(u64, Run)) -> Result<(), TestCaseError> {
    let at = to_usize(*at);
    prop_assert!(!run.is_empty());
    for (place, byte) in model[at..].iter_mut().zip(run.iter()) {
        prop_assert_eq!(place.take(), Some(*byte));
    }
    Ok(())
}

fn make(step: Step, dirty: &mut DirtyRanges, model: &mut Bytes) -> Result<(), TestCaseError> {
    match step {
        Step::Insert { offset, bytes } => {
            dirty.insert(offset, &bytes);
            put(model, offset, &bytes);
        }
        Step::Adopt {
            offset,
            bytes,
            follows,
        } => {
            let before = dirty.runs.range(..=offset).next_back();
            let end = before.map(|(at, run)| at + run.len() as u64);
            let offset = end.filter(|end| follows && *end < 500).unwrap_or(offset);
            // The memory has a head before the bytes and room behind.
            let memory = [&[0xdd; 8], &bytes[..], &[0xdd; 16]].concat();
            let run = Run::new(Box::new(memory), 8..8 + bytes.len());
            if dirty.adopt(offset, run, UNIT).is_ok() {
                put(model, offset, &bytes);
            }
        }
        Step::Remove { offset, length } => {
            dirty.remove(offset, offset + length as u64);
            let from = to_usize(offset);
            model[from..from + length].fill(None);
        }
        Step::TakeFull { behind } => {
            // The search begins only where a write was long.
            dirty.has_long = true;
            if let Some(taken) = dirty.take_full(UNIT, behind) {
                let end = taken.0 + taken.1.len() as u64;
                prop_assert!(taken.0 == behind || taken.0 % UNIT == 0);
                prop_assert_eq!(end % UNIT, 0);
                take(model, &taken)?;
            }
        }
        Step::TakeFirst { behind } => {
            let taken = dirty.take_first(behind);
            let first = first_dirty(model, behind);
            prop_assert_eq!(taken.as_ref().map(|taken| taken.0), first);
            if let Some(taken) = taken {
                take(model, &taken)?;
            }
        }
        Step::TakeBefore { end } => {
            let taken = dirty.take_before(end);
            let first = first_dirty(model, 0).filter(|first| *first < end);
            prop_assert_eq!(taken.as_ref().map(|taken| taken.0), first);
            if let Some(taken) = taken {
                prop_assert!(taken.0 + taken.1.len() as u64 <= end);
                take(model, &taken)?;
            }
        }
        Step::TakeMany {
            behind,
            runs,
            bytes,
        } => {
            let all = dirty.take_many(behind, runs, bytes);
            prop_assert!(all.len() <= runs);
            for taken in &all {
                prop_assert_eq!(first_dirty(model, behind), Some(taken.0));
                take(model, taken)?;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dirty_ranges_hold_what_an_array_of_bytes_holds(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut dirty = DirtyRanges::default();
        let mut model = vec![None; BYTES];
        for step in steps {
            make(step, &mut dirty, &mut model)?;
            prop_assert_eq!(dirty.bytes(), model.iter().flatten().count());
            prop_assert_eq!(dirty.is_empty(), dirty.bytes() == 0);
            let end = model.iter().rposition(Option::is_some).map_or(0, |at| at + 1);
            prop_assert_eq!(dirty.end(), end as u64);
            let mut seen = vec![None; BYTES];
            for (at, bytes) in dirty.copies(0, BYTES as u64) {
                put(&mut seen, at, &bytes);
            }
            prop_assert_eq!(&seen, &model);
        }
    }
}
