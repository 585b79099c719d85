//! Verifies one chunk of a target: reads it from the medium and compares it with its checksums.

use crate::storage_role::StorageRole;
use std::collections::BTreeMap;
use zonal_disk::DiskError;
use zonal_net::AlignedBuf;
use zonal_object::{ObjectId, ReadPlan, Truncation};
use zonal_types::limits::{BLOCK_BYTES, CHUNK_BYTES};

/// Result of verifying a chunk.
#[derive(Default)]
pub(super) struct Verified {
    pub(super) bytes: u64,
    pub(super) damaged: BTreeMap<u64, String>,
}

/// Compares a chunk with its checksums.
pub(super) fn verify(
    storage: &StorageRole,
    object: ObjectId,
    number: u64,
    buffer: &mut AlignedBuf,
) -> Verified {
    let offset = number.saturating_mul(CHUNK_BYTES as u64);
    let mut before: Option<ReadPlan> = None;
    loop {
        let planned = storage.lock().plan_read(
            &*storage.engine,
            object,
            Truncation::default(),
            offset,
            CHUNK_BYTES,
        );
        let plan = match planned {
            Ok(plan) => plan,
            Err(code) => {
                let text = format!("its record in the index: {code}");
                return Verified {
                    bytes: 0,
                    damaged: BTreeMap::from([(offset, text)]),
                };
            }
        };
        buffer.set_len(plan.buffer_len());
        let mut found = read(storage, &plan, offset, buffer.as_mut_slice());
        for damage in plan.damaged(buffer.as_slice()) {
            let text = || damage.to_string();
            found.damaged.entry(damage.offset).or_insert_with(text);
        }
        if found.damaged.is_empty() || before.as_ref() == Some(&plan) {
            return found;
        }
        before = Some(plan);
    }
}

/// Reads the runs of a plan from the medium; a run that cannot be read is read block by block.
fn read(storage: &StorageRole, plan: &ReadPlan, offset: u64, buffer: &mut [u8]) -> Verified {
    let mut found = Verified::default();
    for read in plan.reads() {
        let first = read.buffer.start;
        let Some(run) = buffer.get_mut(read.buffer) else {
            continue;
        };
        found.bytes += run.len() as u64;
        let segments = &storage.segments;
        if segments.read_medium(read.segment, read.offset, run).is_ok() {
            continue;
        }
        for (index, block) in run.chunks_mut(BLOCK_BYTES).enumerate() {
            let at = (index * BLOCK_BYTES) as u64;
            if let Err(error) = segments.read_medium(read.segment, read.offset + at, block) {
                if matches!(error, DiskError::Io { .. }) {
                    storage.medium_health.medium(&error.to_string());
                }
                let place = offset + first as u64 + at;
                found.damaged.insert(place, error.to_string());
            }
        }
    }
    found
}
