//! Resync: a target fills its stale copies, and objects that move to it, from copies that have all
//! changes (docs/rfcs/2026-11-27-outages.md, docs/rfcs/2026-11-27-relocations.md).
//!
//! The target asks a shard for the files that it has to fill. It takes each object step by
//! step from another target. Then it has the shard remove the mark.
//!
//! While a copy is filled, a client sends each change to the other copies first, then here. So
//! bytes that were taken before the change must not replace it. [`FillStep`] knows whether a client
//! changed its range; then the step begins again. Changes and steps are compared under the target's
//! mutex. Several files are filled at a time ([`ResyncQueue`]), for one waits for the other target
//! and for its own disk in turn.
//!
//! *Cost* of a step: one call to another target, one commit, no flush. A file costs one flush and
//! one call to its shard.

use super::fill_guard::FillStep;
use super::resync_queue::{ResyncQueue, ResyncThreads};
use super::{ChangeSender, CopyBytes, Refused, TargetDriver, TargetHost, named};
use std::ops::Range;
use zonal_layout::{PlaceUse, object_of, place_use, relocation_of};
use zonal_object::{ChangeOutcome, Edit, ObjectId};
use zonal_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use zonal_types::{
    Column, Component, ErrorCode, FileData, Ino, RelocationState, ShardId, TargetId,
};
use zonal_wire::{MetaReply, MetaRequest, ObjectRef, StorageRequest};
use zonal_zonemap::ZoneMap;

/// Bytes of one step.
const STEP_BYTES: u64 = CHUNK_BYTES as u64;
/// How often a step begins again because clients change its range.
const STEP_TRIES: u32 = 64;

/// The outcome of a resync of one shard's files.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ResyncRound {
    /// Files whose mark was removed.
    pub mended: u64,
    /// Files that stay marked: a later round tries again.
    pub left: u64,
    /// Those of them with objects that clients may not know yet: a fence must come first.
    pub unfenced: u64,
    /// Bytes taken from other targets.
    pub bytes: u64,
}

impl ResyncRound {
    fn add(&mut self, other: Self) {
        self.mended += other.mended;
        self.left += other.left;
        self.unfenced += other.unfenced;
        self.bytes += other.bytes;
    }
}

/// A copy here, and one that has all changes.
struct FilledObject {
    own: ObjectRef,
    from: ObjectRef,
    /// Copies that have all changes.
    whole: usize,
    kind: FilledKind,
}

/// Why an object is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilledKind {
    /// It misses changes.
    Stale,
    /// It moves here.
    Moved,
    /// The column gets one copy more.
    New,
}

impl<H: TargetHost> TargetDriver<H> {
    /// Fills the stale copies of a shard's files, as far as possible now. The most endangered go
    /// first: files with a column of which one whole copy is left.
    ///
    /// # Errors
    /// The shard does not answer; the target does not serve.
    pub async fn resync(
        &self,
        shard: ShardId,
        threads: &impl ResyncThreads<H>,
    ) -> Result<ResyncRound, Refused> {
        let mut round = ResyncRound::default();
        if self.resync_files(shard, true, threads, &mut round).await? {
            self.resync_files(shard, false, threads, &mut round).await?;
        }
        Ok(round)
    }

    /// Fills the files that are urgent, or the others. Returns whether it passed some over.
    async fn resync_files(
        &self,
        shard: ShardId,
        urgent: bool,
        threads: &impl ResyncThreads<H>,
        round: &mut ResyncRound,
    ) -> Result<bool, Refused> {
        let (mut after, mut has_passed) = (Ino(0), false);
        loop {
            let target = self.id;
            let request = MetaRequest::StaleFiles { target, after };
            let reply = self.host.ask_shard(shard, &request).await;
            let Some(MetaReply::Files { mut files, next }) = reply else {
                return Err(ErrorCode::NotReady.into());
            };
            let (map, before) = (self.host.map(), files.len());
            files.retain(|(_, data)| is_urgent(&map, self.id, data) == urgent);
            has_passed |= files.len() < before;
            let queue = ResyncQueue::new(shard, files);
            threads.fill(self, &queue, queue.threads()).await;
            round.add(queue.finish()?);
            match next {
                Some(next) if next > after => after = next,
                _ => return Ok(has_passed),
            }
        }
    }

    /// Fills the copies of a file, deletes what is left here, and makes the shard note it. The
    /// shard sees by the message that no client reads a copy here which leaves.
    pub(super) async fn resync_file(
        &self,
        shard: ShardId,
        ino: Ino,
        data: &FileData,
    ) -> Result<u64, Refused> {
        let map = self.host.map();
        let (mut delta, mut bytes) = (0_i64, 0);
        let mut relocated = self.delete_leftovers(&map, data).await?;
        let (dropped, dropped_bytes) = self.count_dropped(&map, data)?;
        relocated.extend(dropped);
        delta = delta.saturating_sub_unsigned(dropped_bytes);
        for object in objects_to_fill(&map, self.id, data)? {
            let (filled, allocated) = self.fill_object(&map, &object).await?;
            bytes += filled;
            let id = (object.own.data_id, object.own.column);
            match object.kind {
                FilledKind::Stale => delta = delta.saturating_add(allocated),
                // The file counts the object at the place that it leaves.
                FilledKind::Moved => relocated.push(id),
                FilledKind::New => {
                    let stat = self.lock().stat(self.host.store(), named(&object.own).0)?;
                    delta = delta.saturating_add_unsigned(stat.allocated);
                    relocated.push(id);
                }
            }
        }
        self.flush(self.host.head()).await?;
        let request = MetaRequest::MendCopy {
            ino,
            target: self.id,
            as_of: map.version,
            allocated_delta: delta,
            relocated,
            full: false,
        };
        match self.host.ask_shard(shard, &request).await {
            Some(MetaReply::Done) => Ok(bytes),
            Some(MetaReply::Failed { code }) => Err(code.0.into()),
            _no_answer => Err(ErrorCode::NotReady.into()),
        }
    }

    /// Makes an object equal to its copy. Returns the bytes taken, and the change of allocated
    /// bytes.
    async fn fill_object(
        &self,
        map: &ZoneMap,
        object: &FilledObject,
    ) -> Result<(u64, i64), Refused> {
        let (mut offset, mut delta) = (0, 0_i64);
        loop {
            let (bytes, allocated) = self.fill_step(map, object, offset).await?;
            delta = delta.saturating_add(allocated);
            offset += bytes;
            if bytes < STEP_BYTES {
                return Ok((offset, delta));
            }
        }
    }

    async fn fill_step(
        &self,
        map: &ZoneMap,
        object: &FilledObject,
        offset: u64,
    ) -> Result<(u64, i64), Refused> {
        let (id, _truncation) = named(&object.own);
        for _try in 0..STEP_TRIES {
            let step = self.fills.begin(id, offset);
            let length = u32::try_from(STEP_BYTES).unwrap_or(u32::MAX);
            let request = StorageRequest::Read {
                object: object.from,
                offset,
                length,
            };
            let copied = self.host.read_copy(map, &request).await?;
            let taken = copied.bytes.len() as u64;
            if taken == STEP_BYTES {
                step.end_at(offset + STEP_BYTES);
            }
            match self.store_step(object, offset, &copied, &step).await {
                Ok(delta) => {
                    zonal_types::mark!(CopyFilled);
                    return Ok((taken, delta));
                }
                Err(_overtaken) if step.is_overtaken() => {}
                Err(refused) => return Err(refused),
            }
        }
        Err(ErrorCode::Overloaded.into())
    }

    /// Writes the blocks of a step, and makes holes of those that are zeros.
    async fn store_step(
        &self,
        object: &FilledObject,
        offset: u64,
        copied: &CopyBytes,
        step: &FillStep<'_>,
    ) -> Result<i64, Refused> {
        let CopyBytes {
            bytes: payload,
            order,
        } = copied;
        let is_gone = || step.is_overtaken();
        let sender = ChangeSender::filling(&is_gone, *order);
        let (id, truncation) = named(&object.own);
        let mut delta = 0_i64;
        for (range, is_hole) in parts(payload) {
            let at = offset + range.start as u64;
            let outcome = if is_hole {
                let punch = Edit::punch(id, truncation, at, range.len() as u64)?;
                self.edit_range(punch, sender).await?
            } else {
                let bytes = payload.get(range).unwrap_or_default();
                self.write_filled(&object.own, at, (bytes, *order), step)
                    .await?
            };
            delta = delta.saturating_add(outcome.allocated_delta);
        }
        let behind = offset + payload.len() as u64;
        let rest = self.length_of(id)?.saturating_sub(behind);
        // Where the copy ends, nothing of ours behind it stays.
        if (payload.len() as u64) < STEP_BYTES && rest > 0 {
            let punch = Edit::punch(id, truncation, behind, rest)?;
            let outcome = self.edit_range(punch, sender).await?;
            delta = delta.saturating_add(outcome.allocated_delta);
        }
        Ok(delta)
    }

    /// Writes bytes of another copy with their order, unless a client changes the step's range.
    pub(super) async fn write_filled(
        &self,
        object: &ObjectRef,
        at: u64,
        (bytes, order): (&[u8], u64),
        step: &FillStep<'_>,
    ) -> Result<ChangeOutcome, Refused> {
        let is_gone = || step.is_overtaken();
        let sender = ChangeSender::filling(&is_gone, order);
        let length = u32::try_from(bytes.len()).map_err(|_error| ErrorCode::Invalid)?;
        let written = self.write(object, sender, &[(at, length)], bytes).await?;
        Ok(written.0)
    }

    fn length_of(&self, object: ObjectId) -> Result<u64, Refused> {
        let stat = self.lock().stat(self.host.store(), object)?;
        Ok(stat.object_bytes)
    }
}

/// The objects of a file that a target has to fill, each with a copy that has all changes. Its own
/// copies are stale, or it gets the object by a relocation.
///
/// # Errors
/// `StaleEpoch` where the file's layout is older than an outage that the map knows: it may lack
/// marks. `NotReady` where no copy without a mark is in service.
fn objects_to_fill(
    map: &ZoneMap,
    target: TargetId,
    data: &FileData,
) -> Result<Vec<FilledObject>, ErrorCode> {
    let mut found = Vec::new();
    let is_stale = data.layout.is_stale(target);
    for component in &data.layout.components {
        for place in zonal_layout::places(component) {
            let own = place_ref(map, data, component, place)?;
            let is_relocated = place_use(component, place) == PlaceUse::Filling;
            if own.target != target || !(is_relocated || is_stale) {
                continue;
            }
            let relocation = relocation_of(component, object_of(component, place));
            let kind = match relocation.map(|of| of.state) {
                Some(RelocationState::Missing) => FilledKind::New,
                _ if is_relocated => FilledKind::Moved,
                _ => FilledKind::Stale,
            };
            let all = whole_refs(map, data, component, own)?;
            let from = *all.first().ok_or(ErrorCode::NotReady)?;
            let whole = all.len();
            found.push(FilledObject {
                own,
                from,
                whole,
                kind,
            });
        }
    }
    Ok(found)
}

/// True for a file that is not to wait: one more failure could take the only whole copy of an
/// object that the target fills. Also where it fills nothing, or that is not known.
fn is_urgent(map: &ZoneMap, target: TargetId, data: &FileData) -> bool {
    objects_to_fill(map, target, data).map_or(true, |objects| {
        objects.is_empty() || objects.iter().any(|object| object.whole < 2)
    })
}

/// True where a target has to fill an object that clients may not know yet, or has one that leaves
/// and that clients may read.
pub(super) fn has_unfenced(map: &ZoneMap, target: TargetId, data: &FileData) -> bool {
    data.layout.components.iter().any(|component| {
        zonal_layout::places(component).any(|place| {
            let relocation = relocation_of(component, object_of(component, place));
            let is_its = map
                .slot_of_place(component, place)
                .is_some_and(|found| found.slot.target == target);
            let is_filled = place_use(component, place) == PlaceUse::Filling;
            let is_read = relocation.is_some_and(|of| of.state == RelocationState::Leaving);
            is_its
                && (is_filled || is_read)
                && relocation.is_some_and(|of| !map.is_fenced(component, of.as_of))
        })
    })
}

/// The copies of an object that have all changes and are in service, on other targets.
///
/// # Errors
/// `StaleEpoch` where the layout is older than an outage that the map knows: it may lack marks.
pub(super) fn whole_refs(
    map: &ZoneMap,
    data: &FileData,
    component: &Component,
    own: ObjectRef,
) -> Result<Vec<ObjectRef>, ErrorCode> {
    if !map.knows_outages(component, data.as_of) {
        return Err(ErrorCode::StaleEpoch);
    }
    let column = own.column.0.checked_rem(component.count).unwrap_or(0);
    let whole = map.whole_places(&data.layout, component, column, true);
    let refs = whole.into_iter().filter_map(|place| {
        let found = place_ref(map, data, component, place);
        found.ok().filter(|found| found.target != own.target)
    });
    Ok(refs.collect())
}

/// The place at which a target has an object of a file, and clients read it.
pub(super) fn own_ref(
    map: &ZoneMap,
    data: &FileData,
    component: &Component,
    (target, object): (TargetId, Column),
) -> Option<ObjectRef> {
    if object.0 >= zonal_layout::object_count(component) {
        // Its copy is gone.
        return None;
    }
    let place = zonal_layout::main_place(component, object);
    let found = place_ref(map, data, component, place).ok()?;
    (found.target == target).then_some(found)
}

fn place_ref(
    map: &ZoneMap,
    data: &FileData,
    component: &Component,
    place: Column,
) -> Result<ObjectRef, ErrorCode> {
    let found = map.slot_of_place(component, place);
    let found = found.ok_or(match map.knows_sets(component) {
        true => ErrorCode::Corrupt,
        false => ErrorCode::NotReady,
    })?;
    Ok(ObjectRef {
        target: found.slot.target,
        set: found.set,
        slot: found.number,
        data_id: component.data_id,
        column: object_of(component, place),
        layout_gen: data.layout.layout_gen.0,
        truncate_seq: data.truncate_seq,
        truncate_bytes: zonal_layout::object_bytes(component, data.truncate_size, place),
    })
}

/// The parts of a payload: runs of blocks that are zeros, and of others.
fn parts(payload: &[u8]) -> Vec<(Range<usize>, bool)> {
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    for (block, bytes) in payload.chunks(BLOCK_BYTES).enumerate() {
        let at = block * BLOCK_BYTES;
        let is_hole = bytes.iter().all(|byte| *byte == 0);
        match parts.last_mut() {
            Some((range, kind)) if *kind == is_hole => range.end = at + bytes.len(),
            _ => parts.push((at..at + bytes.len(), is_hole)),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_holes() {
        let mut payload = vec![0; 3 * BLOCK_BYTES + 10];
        payload[BLOCK_BYTES + 5] = 1;
        let parts = parts(&payload);
        let block = BLOCK_BYTES;
        let last = 2 * block..3 * block + 10;
        assert_eq!(
            parts,
            [(0..block, true), (block..2 * block, false), (last, true)]
        );
    }
}
