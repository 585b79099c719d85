//! Leftovers: a target deletes what is left of objects that moved away, or that were to come here
//! and stayed where they were. So it does with objects of copies that are gone
//! (docs/rfcs/2026-11-27-relocations.md). Before, it says how many bytes they have.
//!
//! *Invariant*: an object is deleted only by a map under which the target refuses each client that
//! knows the place. The layout knows all of that map's epochs. So nobody reads the object, and no
//! change makes it again. The shard gives the target no object of which something is to be deleted
//! here.

use super::{Refused, TargetDriver, TargetHost};
use zonal_object::{Delete, ObjectId};
use zonal_types::{Column, DataId, ErrorCode, FileData, Ino, RelocationState, ShardId, TargetId};
use zonal_wire::MetaRequest;
use zonal_zonemap::ZoneMap;

/// An object of which something is left.
type Left = (DataId, Column);

/// Objects of a file that left a target.
#[derive(Debug, Default)]
pub(super) struct LeftObjects {
    /// To be deleted.
    pub(super) leftover: Vec<Left>,
    /// Their bytes count in the file.
    pub(super) dropped: Vec<Left>,
    /// Clients may not know yet that nothing is there for them.
    pub(super) is_unfenced: bool,
}

impl LeftObjects {
    pub(super) fn at(map: &ZoneMap, target: TargetId, data: &FileData) -> Self {
        let mut left = Self::default();
        for component in &data.layout.components {
            for record in zonal_layout::leftovers(component) {
                let slot = map.slot_of_relocation(record);
                if slot.is_none_or(|slot| slot.target != target) {
                    continue;
                }
                left.is_unfenced |= !map.is_fenced(component, record.as_of);
                match record.state {
                    RelocationState::Dropped => &mut left.dropped,
                    _leftover => &mut left.leftover,
                }
                .push((component.data_id, record.object));
            }
        }
        left
    }
}

/// True where copies of a file leave the target, or are gone and to be counted: more is to be done
/// after the shard's answer.
pub(super) fn has_leaving(map: &ZoneMap, target: TargetId, data: &FileData) -> bool {
    data.layout.relocations().any(|of| {
        let slot = map.slot_of_relocation(of);
        (of.state.is_leaving() || of.state == RelocationState::Dropped)
            && slot.is_some_and(|slot| slot.target == target)
    })
}

/// True where a layout names this target for the object.
fn is_named(map: &ZoneMap, target: TargetId, data: &FileData, (data_id, object): Left) -> bool {
    let mut components = data.layout.components.iter();
    components.any(|component| {
        component.data_id == data_id
            && zonal_layout::places(component).any(|place| {
                let slot = map.slot_of_place(component, place).map(|of| of.slot);
                zonal_layout::object_of(component, place) == object
                    && slot.is_none_or(|slot| slot.target == target)
            })
    })
}

impl<H: TargetHost> TargetDriver<H> {
    /// Has the shard drop the relocations of a file's objects to this target, which is full. A
    /// later round deletes the bytes that came already.
    pub(super) async fn give_up_places(&self, shard: ShardId, ino: Ino) {
        let request = MetaRequest::MendCopy {
            ino,
            target: self.id,
            as_of: self.host.map().version,
            allocated_delta: 0,
            relocated: Vec::new(),
            full: true,
        };
        // The next round asks again.
        self.host.ask_shard(shard, &request).await;
    }

    /// Deletes what is left here of a file's objects. Returns these objects.
    ///
    /// # Errors
    /// `StaleEpoch` where the layout may be older than one that clients have. Else that of the
    /// deletion.
    pub(super) async fn delete_leftovers(
        &self,
        map: &ZoneMap,
        data: &FileData,
    ) -> Result<Vec<Left>, Refused> {
        let LeftObjects {
            leftover: left,
            is_unfenced,
            ..
        } = LeftObjects::at(map, self.id, data);
        if left.is_empty() {
            return Ok(left);
        }
        let mut components = data.layout.components.iter();
        if is_unfenced || !components.all(|of| map.knows_outages(of, data.as_of)) {
            return Err(ErrorCode::StaleEpoch.into());
        }
        if left
            .iter()
            .any(|object| is_named(map, self.id, data, *object))
        {
            return Err(ErrorCode::Corrupt.into());
        }
        let ids = left.iter().map(|(data_id, column)| ObjectId {
            data_id: *data_id,
            column: *column,
        });
        self.delete(Delete::of_leftovers(ids.collect())).await?;
        Ok(left)
    }

    /// The objects of copies that are gone, and the bytes that they have here. No client changes
    /// them any more.
    ///
    /// # Errors
    /// `StaleEpoch` as [`Self::delete_leftovers`]; `Corrupt`.
    pub(super) fn count_dropped(
        &self,
        map: &ZoneMap,
        data: &FileData,
    ) -> Result<(Vec<Left>, u64), Refused> {
        let left = LeftObjects::at(map, self.id, data);
        if !left.dropped.is_empty() && left.is_unfenced {
            return Err(ErrorCode::StaleEpoch.into());
        }
        let mut bytes = 0_u64;
        for (data_id, column) in &left.dropped {
            let id = ObjectId {
                data_id: *data_id,
                column: *column,
            };
            let stat = self.lock().stat(self.host.store(), id)?;
            bytes = bytes.saturating_add(stat.allocated);
        }
        Ok((left.dropped, bytes))
    }
}
