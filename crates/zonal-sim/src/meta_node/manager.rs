//! The manager beside the root's shard: its core on the process's own disk. What is durable is put
//! on a board ([`super::MapCell`]) that all processes read, in place of their fetches.

use super::host::SimulatedHost;
use crate::disk::Disk;
use std::sync::Arc;
use zonal_meta::JunctionChange;
use zonal_types::{CellId, Codec, ErrorCode, KvChange, ZoneId};
use zonal_wire::{ErrorNumber, ManagerReply, ManagerRequest, MetaReply};
use zonal_zonemap::{EditError, Manager, MapEdit, PlannedChange, ZoneMap};

/// The manager of what a root's disk has. What is there is made durable before anybody hears of it.
pub(super) fn load(disk: &Disk, cell: CellId) -> Result<Manager, ErrorCode> {
    let manager = Manager::load(disk, cell)?;
    disk.sync();
    Ok(manager)
}

impl SimulatedHost {
    /// A version that others have heard of is there after each start.
    pub(super) fn publish_map(&self, map: &Arc<ZoneMap>) -> Result<(), ErrorCode> {
        let mut board = self.line.map.borrow_mut();
        if map.version < board.version || (map.version == board.version && **map != **board) {
            return Err(ErrorCode::StaleEpoch);
        }
        *board = Arc::clone(map);
        Ok(())
    }

    /// Keys of junctions, for the record of the root's effect.
    pub(super) fn plan_junctions(&self, junctions: Vec<JunctionChange>) -> Vec<KvChange> {
        let manager = self.manager.borrow();
        let planned = manager
            .as_ref()
            .map(|manager| manager.plan(self.disk.as_ref(), &[], junctions, None));
        match planned {
            Some(Ok(planned)) => planned.changes,
            // The check of junctions against the root tells.
            Some(Err(_)) | None => Vec::new(),
        }
    }

    /// Changes the map, durably, where this process keeps it.
    ///
    /// # Errors
    /// Where an edit is refused.
    pub(super) fn edit(&self, edits: &[MapEdit]) -> Result<(), EditError> {
        let mut manager = self.manager.borrow_mut();
        let Some(manager) = manager.as_mut() else {
            return Ok(());
        };
        let mut planned = manager.plan(self.disk.as_ref(), edits, Vec::new(), None)?;
        self.log(&mut planned);
        manager.logged(planned);
        let newest = Arc::clone(manager.newest());
        manager.flushed(&newest);
        let published = self.publish_map(&newest);
        published.map_err(|_older| EditError::Broken("the map on the board is newer".into()))
    }

    fn log(&self, planned: &mut PlannedChange) {
        let changes = std::mem::take(&mut planned.changes);
        if !changes.is_empty() {
            self.disk.append_changes(changes);
        }
        self.disk.sync();
    }

    /// Has the default sets of a zone open, where the map is kept.
    pub(super) fn open_sets_of(&self, zone: ZoneId) -> Result<MetaReply, ErrorCode> {
        if self.manager.borrow().is_none() {
            return Err(ErrorCode::NotOwner);
        }
        let edited = self.edit(&[MapEdit::OpenSets { zone }]);
        edited.map_err(|_unknown| ErrorCode::Invalid)?;
        Ok(self.line.map.borrow().opened(zone))
    }

    pub(super) fn manage(&self, body: &[u8]) -> ManagerReply {
        let mut manager = self.manager.borrow_mut();
        let request = ManagerRequest::from_bytes(body).ok();
        let answered = manager.as_mut().zip(request).map(|(manager, request)| {
            let answered = manager.answer(self.disk.as_ref(), &request);
            answered.transpose().unwrap_or(Err(ErrorCode::NotSupported))
        });
        let answered = answered.unwrap_or(Err(ErrorCode::WrongTarget));
        answered.unwrap_or_else(|code| ManagerReply::Failed {
            code: ErrorNumber(code),
            detail: String::new(),
        })
    }

    /// The disk has another map, as after a backup was restored.
    ///
    /// # Errors
    /// A map that is none.
    pub(super) fn read_map_again(&self) -> Result<(), ErrorCode> {
        let cell = self.line.map.borrow().cell;
        let manager = load(&self.disk, cell)?;
        *self.line.map.borrow_mut() = Arc::clone(manager.durable());
        *self.manager.borrow_mut() = Some(manager);
        Ok(())
    }
}
