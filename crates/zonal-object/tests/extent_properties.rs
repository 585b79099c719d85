//! The extents of an object against a byte vector: writes, truncations, holes and reserved space,
//! with checkpoints and restarts between them. A sequence that fails shrinks to a short one.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod harness;

use harness::*;
use proptest::prelude::*;
use zonal_object::*;

const CONFIG: TargetConfig = TargetConfig {
    segment_units: 64,
    segments: 24,
    pending_blocks_max: 4096,
};
/// Steps change bytes before this one: two chunks.
const BYTES: usize = 2 * (256 << 10);

#[derive(Debug, Clone)]
enum Step {
    Write {
        offset: usize,
        length: usize,
        byte: u8,
    },
    Truncate {
        bytes: usize,
        /// Only the next request tells the target.
        is_silent: bool,
    },
    Punch {
        offset: usize,
        length: usize,
    },
    Allocate {
        offset: usize,
        length: usize,
        zero: bool,
    },
    FlushPending,
    Checkpoint,
    Restart,
}

/// A place and a length: some of whole blocks, some within a block, some across chunks.
fn range() -> impl Strategy<Value = (usize, usize)> {
    let offset = || 0..BYTES - 80 * 1024;
    prop_oneof![
        2 => (offset(), 1..300_usize),
        2 => (offset(), 1..80 * 1024_usize),
        2 => (0..100_usize, 1..20_usize).prop_map(|(at, blocks)| (at * BLOCK, blocks * BLOCK)),
        1 => (1..BLOCK).prop_map(|by| (BYTES / 2 - by, 2 * by)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![0..BYTES, (0..128_usize).prop_map(|blocks| blocks * BLOCK)];
    prop_oneof![
        6 => (range(), 1..=255_u8).prop_map(
            |((offset, length), byte)| Step::Write { offset, length, byte }
        ),
        2 => (length, any::<bool>()).prop_map(
            |(bytes, is_silent)| Step::Truncate { bytes, is_silent }
        ),
        2 => range().prop_map(|(offset, length)| Step::Punch { offset, length }),
        2 => (range(), any::<bool>()).prop_map(
            |((offset, length), zero)| Step::Allocate { offset, length, zero }
        ),
        1 => Just(Step::FlushPending),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
    ]
}

/// The object of the test: its bytes, and the last truncation.
struct Model {
    bytes: Vec<u8>,
    truncation: Truncation,
}

impl Model {
    /// Bytes of a range that the object has.
    fn within(&mut self, offset: usize, length: usize) -> &mut [u8] {
        let end = self.bytes.len().min(offset + length);
        self.bytes.get_mut(offset..end).unwrap_or_default()
    }

    fn make(&mut self, step: &Step, shell: &mut Shell) {
        let (object, truncation) = (object(1), self.truncation);
        match *step {
            Step::Write {
                offset,
                length,
                byte,
            } => {
                // Each byte differs from its neighbours.
                let payload: Vec<u8> = (0..length).map(|at| byte ^ (at % 251) as u8).collect();
                let bytes = self.bytes.len().max(offset + length);
                self.bytes.resize(bytes, 0);
                self.within(offset, length).copy_from_slice(&payload);
                shell
                    .write(object, truncation, offset as u64, &payload)
                    .unwrap();
            }
            Step::Truncate { bytes, is_silent } if bytes < self.bytes.len() => {
                // The shard confirms one truncation before it takes the next.
                shell.run_edit(Edit::truncate(object, truncation)).unwrap();
                self.bytes.truncate(bytes);
                self.truncation = Truncation {
                    seq: truncation.seq + 1,
                    bytes: bytes as u64,
                };
                if !is_silent {
                    let edit = Edit::truncate(object, self.truncation);
                    shell.run_edit(edit).unwrap();
                }
            }
            Step::Truncate { .. } => {}
            Step::Punch { offset, length } => {
                let edit = Edit::punch(object, truncation, offset as u64, length as u64);
                shell.run_edit(edit.unwrap()).unwrap();
                self.within(offset, length).fill(0);
            }
            Step::Allocate {
                offset,
                length,
                zero,
            } => {
                let edit = Edit::allocate(object, truncation, offset as u64, length as u64, zero);
                shell.run_edit(edit.unwrap()).unwrap();
                if zero {
                    self.within(offset, length).fill(0);
                }
            }
            Step::FlushPending => shell.flush_pending(usize::MAX),
            Step::Checkpoint => shell.checkpoint(true),
            Step::Restart => shell.kill(),
        }
    }

    /// Compares the contents, and the map: bytes outside of its ranges are zeros.
    fn compare(&self, shell: &Shell) -> Result<(), TestCaseError> {
        let (object, truncation) = (object(1), self.truncation);
        let read = shell.read(object, truncation, 0, 2 * BYTES).unwrap();
        prop_assert_eq!(read.len(), self.bytes.len());
        let differs = read
            .iter()
            .zip(&self.bytes)
            .position(|(one, other)| one != other);
        prop_assert_eq!(differs, None);
        let map = shell
            .target
            .map(&shell.store, object, truncation, 0, u64::MAX, 1000);
        let map = map.unwrap();
        prop_assert_eq!(map.object_bytes, self.bytes.len() as u64);
        let mut covered = 0;
        let end = (self.bytes.len() as u64, 0);
        for (start, length) in map.ranges.iter().copied().chain([end]) {
            let hole = &self.bytes[covered.min(start as usize)..start as usize];
            prop_assert!(
                hole.iter().all(|byte| *byte == 0),
                "a hole before {}",
                start
            );
            covered = (start + length) as usize;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn an_object_reads_as_a_vector_of_its_bytes(
        steps in prop::collection::vec(step(), 1..20),
    ) {
        let mut shell = Shell::new(CONFIG);
        let mut model = Model { bytes: Vec::new(), truncation: UNTRUNCATED };
        for step in &steps {
            model.make(step, &mut shell);
            model.compare(&shell)?;
        }
        shell.check();
    }
}
