//! Damage repair: a target replaces damaged blocks of files with copies by the blocks of another
//! copy.
//!
//! A read or a scrub that finds a block whose checksum is wrong notes it here. The target asks the
//! shard for the file, takes the block from a copy without a mark, and writes it where it is still
//! damaged. A client that changes a damaged block replaces all of it, as its old bytes cannot be
//! read. Then the block is not damaged any more, or [`super::fill_guard::FillGuard`] has seen the
//! change. So no older bytes replace newer ones.

use super::resync::{own_ref, whole_refs};
use super::{CopyBytes, Refused, TargetDriver, TargetHost, named};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use zonal_object::ObjectId;
use zonal_types::limits::{BLOCK_BYTES, DAMAGED_BLOCKS_MAX};
use zonal_types::{ErrorCode, FileData};
use zonal_wire::{MetaReply, MetaRequest, ObjectRef, StorageRequest};
use zonal_zonemap::ZoneMap;

/// Blocks found damaged, by object and offset. Those beyond the bound are found again.
#[derive(Debug, Default)]
pub(super) struct DamagedBlocks(Mutex<BTreeSet<(ObjectId, u64)>>);

impl DamagedBlocks {
    fn add(&self, object: ObjectId, offset: u64) {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.len() < DAMAGED_BLOCKS_MAX {
            blocks.insert((object, offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64));
        }
    }

    fn take(&self) -> BTreeSet<(ObjectId, u64)> {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut blocks)
    }
}

impl<H: TargetHost> TargetDriver<H> {
    /// Notes a damaged block, to be repaired.
    pub fn note_damage(&self, object: ObjectId, offset: u64) {
        self.damaged.add(object, offset);
    }

    /// Repairs the damaged blocks that are known. Returns how many.
    pub async fn repair_damage(&self) -> u64 {
        let mut repaired = 0;
        for (object, offset) in self.damaged.take() {
            match self.repair_block(object, offset).await {
                Ok(true) => repaired += 1,
                Ok(false) => {}
                Err(refused) => {
                    let is_passing = matches!(
                        refused.code,
                        ErrorCode::NotReady
                            | ErrorCode::Unreachable
                            | ErrorCode::TimedOut
                            | ErrorCode::StaleEpoch
                    );
                    if is_passing {
                        self.damaged.add(object, offset);
                    }
                }
            }
        }
        repaired
    }

    /// True where the block was damaged and is repaired.
    async fn repair_block(&self, object: ObjectId, offset: u64) -> Result<bool, Refused> {
        let map = self.host.map();
        let Some(shard) = map.shard_of(object.data_id.partition()) else {
            return Ok(false);
        };
        let data_id = object.data_id;
        let request = MetaRequest::CopiesOf { data_id };
        let reply = self.host.ask_shard(shard.id, &request).await;
        let Some(MetaReply::Files { files, .. }) = reply else {
            return Err(ErrorCode::NotReady.into());
        };
        let Some((_ino, data)) = files.first() else {
            return Ok(false);
        };
        let Some((own, others)) = self.copies_of(&map, data, object)? else {
            return Ok(false);
        };
        let mut failed = Ok(false);
        for from in others {
            match self.replace_block(&map, (&own, from), offset).await {
                Ok(is_repaired) => return Ok(is_repaired),
                Err(refused) => failed = Err(refused),
            }
        }
        failed
    }

    /// The object here, and its copies that have all changes; none where this one has not: resync
    /// fills it.
    fn copies_of(
        &self,
        map: &ZoneMap,
        data: &FileData,
        object: ObjectId,
    ) -> Result<Option<(ObjectRef, Vec<ObjectRef>)>, ErrorCode> {
        let mut components = data.layout.components.iter();
        let component = components.find(|component| component.data_id == object.data_id);
        match component {
            Some(component) if !data.layout.is_stale(self.id) => {
                let Some(own) = own_ref(map, data, component, (self.id, object.column)) else {
                    return Ok(None);
                };
                let others = whole_refs(map, data, component, own)?;
                Ok(Some((own, others)))
            }
            _gone => Ok(None),
        }
    }

    async fn replace_block(
        &self,
        map: &ZoneMap,
        (own, from): (&ObjectRef, ObjectRef),
        offset: u64,
    ) -> Result<bool, Refused> {
        let (id, truncation) = named(own);
        let step = self.fills.begin(id, offset);
        step.end_at(offset + BLOCK_BYTES as u64);
        let plan = {
            let target = self.lock();
            target.plan_read(self.host.store(), id, truncation, offset, BLOCK_BYTES)?
        };
        let mut buffer = vec![0; plan.buffer_len()];
        let is_read = self.fill(&plan, &mut buffer).await.is_ok();
        let Some(length) = plan
            .object_bytes()
            .checked_sub(offset)
            .filter(|left| *left > 0)
        else {
            return Ok(false);
        };
        if is_read && plan.finish(&mut buffer).is_ok() {
            return Ok(false);
        }
        let request = StorageRequest::Read {
            object: from,
            offset,
            length: u32::try_from(BLOCK_BYTES).unwrap_or(u32::MAX),
        };
        let CopyBytes { mut bytes, order } = self.host.read_copy(map, &request).await?;
        // All of the block up to the object's end is replaced, so that nothing old is needed.
        let length = zonal_basics::to_usize(length).min(BLOCK_BYTES);
        bytes.resize(length, 0);
        match self.write_filled(own, offset, (&bytes, order), &step).await {
            Ok(_written) => {
                zonal_types::mark!(DamageRepaired);
                Ok(true)
            }
            Err(_overtaken) if step.is_overtaken() => Ok(false),
            Err(refused) => Err(refused),
        }
    }
}
