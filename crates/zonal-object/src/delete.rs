//! Deletion of objects: many small ones in one record, one large one in many.
//!
//! A deletion that does not fit a record marks the header (the object then reads as absent and
//! refuses writes) and leaves a tombstone, so that a restarted target goes on:
//! `StorageTarget::unfinished_deletes`. Needs no space.

use crate::edit::{BLOCKS_END, STEP_CHUNKS};
use crate::ids::ObjectId;
use crate::key;
use crate::note::EffectRecord;
use crate::object_update::{Batch, ObjectUpdate};
use crate::target::StorageTarget;
use zonal_types::{ErrorCode, KvChange, KvRead};

/// Objects looked at in one step, so that the lock is not held for long.
const STEP_OBJECTS: usize = 256;

/// A deletion under way.
#[derive(Debug)]
pub struct Delete {
    objects: Vec<ObjectId>,
    at: usize,
    /// Blocks of the present object that are done.
    from: u64,
}

/// What the shell does next for a deletion.
#[derive(Debug)]
pub enum DeleteStep {
    /// Append this in the same critical section, and step again.
    Log(EffectRecord),
    /// Step again (the lock may be given to others in between).
    Again,
    /// All are gone.
    Done,
}

impl Delete {
    /// Deletes these objects; those that do not exist are fine.
    #[must_use]
    pub fn new(mut objects: Vec<ObjectId>) -> Self {
        objects.sort_unstable();
        objects.dedup();
        Self {
            objects,
            at: 0,
            from: 0,
        }
    }
}

impl StorageTarget {
    /// Makes the next step of a deletion; under the target's lock.
    ///
    /// # Errors
    /// `Corrupt` for a damaged index, or what `kv` gives.
    pub fn delete_step(
        &mut self,
        kv: &dyn KvRead,
        delete: &mut Delete,
    ) -> Result<DeleteStep, ErrorCode> {
        for object in delete.objects.iter().skip(delete.at).take(STEP_OBJECTS) {
            self.gone.add(*object);
        }
        let mut batch = Batch::default();
        let mut left = STEP_CHUNKS;
        let (mut at, mut from) = (delete.at, delete.from);
        let (mut begun, mut ended) = (None, Vec::new());
        for object in delete.objects.iter().skip(delete.at).take(STEP_OBJECTS) {
            if left == 0 {
                break;
            }
            let mut draft = ObjectUpdate::load(kv, &self.config, &self.pending, *object)?;
            if draft.exists() {
                let done = draft.clear(from, BLOCKS_END, left)?;
                left = left.saturating_sub(draft.loaded_chunks().max(1));
                if done < BLOCKS_END {
                    zonal_types::mark!(DeleteInParts);
                    from = done;
                    draft.header.deleting = true;
                    draft.finish(&mut batch);
                    let value = crate::index_value::seal(&key::tombstone(*object), |_| {});
                    let put = KvChange::put(key::tombstone(*object), value);
                    batch.changes.push(put);
                    begun = Some(*object);
                    break;
                }
                self.untold.take(*object);
                draft.finish_removed(&mut batch);
            }
            if self.deleting.contains(object) {
                batch
                    .changes
                    .push(KvChange::remove(key::tombstone(*object)));
                ended.push(*object);
            }
            at += 1;
            from = 0;
        }
        let (nothing, finished) = (batch.changes.is_empty(), at == delete.objects.len());
        let step = match (nothing, finished) {
            (true, true) => DeleteStep::Done,
            (true, false) => DeleteStep::Again,
            (false, _) => DeleteStep::Log(self.apply(batch)?),
        };
        self.deleting.extend(begun);
        for object in ended {
            self.deleting.remove(&object);
        }
        (delete.at, delete.from) = (at, from);
        Ok(step)
    }
}
