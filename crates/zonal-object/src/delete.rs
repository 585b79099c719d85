//! Deletion of objects: many small ones in one record, a large one in several.
//!
//! A deletion that does not fit into one record marks the header and leaves a tombstone. The object
//! then reads as absent and refuses writes. A restarted target goes on with the deletion by
//! `StorageTarget::unfinished_deletes`. Needs no space.

use crate::edit::{BLOCKS_END, STEP_CHUNKS};
use crate::ids::ObjectId;
use crate::key;
use crate::note::EffectRecord;
use crate::object_update::{Batch, ObjectUpdate};
use crate::target::StorageTarget;
use zonal_types::{ErrorCode, KvChange, KvRead};

/// Objects visited by a step, so that the lock is not held for long.
const STEP_OBJECTS: usize = 256;

/// A deletion in progress.
#[derive(Debug)]
pub struct Delete {
    objects: Vec<ObjectId>,
    at: usize,
    /// Blocks of the current object below this one are deleted.
    from: u64,
    /// The objects may come again.
    may_return: bool,
}

/// The shell's next action for a deletion.
#[derive(Debug)]
pub enum DeleteStep {
    /// Append this in the same critical section, and step again.
    Log(EffectRecord),
    /// Step again; others may take the lock in between.
    Again,
    /// All objects are deleted.
    Done,
}

impl Delete {
    /// A deletion of these objects; objects that do not exist are no error.
    #[must_use]
    pub fn new(mut objects: Vec<ObjectId>) -> Self {
        objects.sort_unstable();
        objects.dedup();
        Self {
            objects,
            at: 0,
            from: 0,
            may_return: false,
        }
    }

    /// As [`Self::new`], of objects that lie elsewhere now and may move here again. Their late
    /// writes are refused by the epochs of slots.
    #[must_use]
    pub fn of_leftovers(objects: Vec<ObjectId>) -> Self {
        Self {
            may_return: true,
            ..Self::new(objects)
        }
    }
}

impl StorageTarget {
    /// Makes the next step of a deletion, under the target's lock.
    ///
    /// # Errors
    /// `Corrupt` for a damaged index; errors of `kv`.
    pub fn delete_step(
        &mut self,
        kv: &dyn KvRead,
        delete: &mut Delete,
    ) -> Result<DeleteStep, ErrorCode> {
        let now = delete.objects.iter().skip(delete.at).take(STEP_OBJECTS);
        for object in now.filter(|_| !delete.may_return) {
            self.recent_deletes.add(*object);
        }
        let mut batch = Batch::default();
        let mut left = STEP_CHUNKS;
        let (mut at, mut from) = (delete.at, delete.from);
        let (mut begun, mut ended) = (None, Vec::new());
        for object in delete.objects.iter().skip(delete.at).take(STEP_OBJECTS) {
            if left == 0 {
                break;
            }
            let mut update = ObjectUpdate::load(kv, &self.config, &self.pending, *object)?;
            if update.exists() {
                let done = update.clear(from, BLOCKS_END, left)?;
                left = left.saturating_sub(update.loaded_chunks().max(1));
                if done < BLOCKS_END {
                    zonal_types::mark!(DeleteInParts);
                    from = done;
                    update.header.deleting = true;
                    update.finish(&mut batch);
                    let value = crate::index_value::seal(&key::tombstone(*object), |_| {});
                    let put = KvChange::put(key::tombstone(*object), value);
                    batch.changes.push(put);
                    begun = Some(*object);
                    break;
                }
                self.unreported_truncations.take(*object);
                update.finish_removed(&mut batch);
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
