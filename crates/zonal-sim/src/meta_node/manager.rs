//! The manager beside the root's shard: its core on the process's own disk. Durable maps are
//! published in a cell ([`super::MapCell`]) that all processes read, in place of fetching them.

use super::host::SimulatedHost;
use crate::disk::VirtualDisk;
use std::sync::Arc;
use zonal_driver::shard::ShardHost;
use zonal_meta::JunctionChange;
use zonal_types::limits::TARGET_LEASE_WAIT_MS;
use zonal_types::{
    CellId, Codec, ErrorCode, KvChange, NodeId, PartitionId, ShardId, TargetId, ZoneId,
};
use zonal_wire::{ErrorNumber, Header, ManagerReply, ManagerRequest, MetaReply};
use zonal_zonemap::{EditError, Manager, MapEdit, PlannedChange, ZoneMap};

/// Loads the manager from a root's disk. Makes the disk durable before anybody learns of its map.
pub(super) fn load(disk: &VirtualDisk, cell: CellId) -> Result<Manager, ErrorCode> {
    let manager = Manager::load(disk, cell)?;
    disk.sync();
    Ok(manager)
}

impl SimulatedHost {
    /// Makes a map durable before others learn of it, so that the manager has it after each start.
    pub(super) fn publish_map(&self, map: &Arc<ZoneMap>) -> Result<(), ErrorCode> {
        let mut board = self.peers.map.borrow_mut();
        if map.version < board.version || (map.version == board.version && **map != **board) {
            return Err(ErrorCode::StaleEpoch);
        }
        *board = Arc::clone(map);
        Ok(())
    }

    /// Returns the changes of junctions for the record of the root's effect.
    pub(super) fn plan_junctions(&self, junctions: Vec<JunctionChange>) -> Vec<KvChange> {
        let manager = self.manager.borrow();
        let planned = manager
            .as_ref()
            .map(|manager| manager.plan(self.disk.as_ref(), &[], junctions, None));
        match planned {
            Some(Ok(planned)) => planned.changes,
            // The check of junctions against the root reports this.
            Some(Err(_)) | None => Vec::new(),
        }
    }

    /// Changes the map durably, where this process is the manager.
    ///
    /// # Errors
    /// The manager refuses an edit.
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

    /// Opens the default sets of a zone, where this process is the manager.
    pub(super) fn open_sets_of(&self, zone: ZoneId) -> Result<MetaReply, ErrorCode> {
        if self.manager.borrow().is_none() {
            return Err(ErrorCode::NotOwner);
        }
        let edited = self.edit(&[MapEdit::OpenSets { zone }]);
        edited.map_err(|_unknown| ErrorCode::Invalid)?;
        Ok(self.peers.map.borrow().opened(zone))
    }

    /// Gives a shard more partitions, where this process is the manager.
    pub(super) fn partitions_for(&self, shard: ShardId) -> Result<MetaReply, ErrorCode> {
        if self.manager.borrow().is_none() {
            return Err(ErrorCode::NotOwner);
        }
        let edited = self.edit(&[MapEdit::AddPartitions { shard }]);
        edited.map_err(|_unknown| ErrorCode::Invalid)?;
        Ok(MetaReply::Done)
    }

    /// Gives a partition to another shard, where this process is the manager.
    pub(super) fn give(
        &self,
        partition: PartitionId,
        from: ShardId,
        to: ShardId,
    ) -> Result<MetaReply, ErrorCode> {
        if self.manager.borrow().is_none() {
            return Err(ErrorCode::NotOwner);
        }
        let edited = self.edit(&[MapEdit::MovePartition {
            partition,
            from,
            to,
        }]);
        edited.map_err(|_refused| ErrorCode::Invalid)?;
        Ok(MetaReply::Done)
    }

    pub(super) fn manage(&self, header: &Header, body: &[u8]) -> ManagerReply {
        let request = ManagerRequest::from_bytes(body).ok();
        let node = NodeId(header.trace.0 as u32);
        let own = match &request {
            Some(ManagerRequest::TakeOut { target }) => Some(self.take_out(*target)),
            Some(ManagerRequest::PutBack { target }) => {
                Some(self.change_map(&MapEdit::PutBack { target: *target }))
            }
            Some(ManagerRequest::RenewEpochs { target, .. }) => {
                let edit = MapEdit::RenewEpochs { target: *target };
                Some(self.change_map(&edit))
            }
            Some(ManagerRequest::GetMap { .. }) if node != NodeId(0) => {
                let now = self.now().instant;
                self.leases.borrow_mut().insert(node, now);
                None
            }
            _ => None,
        };
        if let Some(own) = own {
            return own.unwrap_or_else(refused);
        }
        let mut manager = self.manager.borrow_mut();
        let answered = manager.as_mut().zip(request).map(|(manager, request)| {
            let answered = manager.answer(self.disk.as_ref(), &request);
            answered.transpose().unwrap_or(Err(ErrorCode::NotSupported))
        });
        let answered = answered.unwrap_or(Err(ErrorCode::WrongTarget));
        answered.unwrap_or_else(refused)
    }

    fn change_map(&self, edit: &MapEdit) -> Result<ManagerReply, ErrorCode> {
        if self.manager.borrow().is_none() {
            return Err(ErrorCode::WrongTarget);
        }
        let edited = self.edit(std::slice::from_ref(edit));
        edited.map_err(|_refused| ErrorCode::Invalid)?;
        let version = self.peers.map.borrow().version;
        Ok(ManagerReply::At { version })
    }

    /// Takes a target out once its lease is over, by this process's clock. No watch of nodes says
    /// that it is down: also one that serves, and is cut off from the manager alone, goes out.
    pub(super) fn take_out(&self, target: TargetId) -> Result<ManagerReply, ErrorCode> {
        let map = self.peers.map.borrow().clone();
        let node = map.target(target).map(|of| of.node);
        let node = node.ok_or(ErrorCode::Invalid)?;
        let leases = self.leases.borrow();
        let last = leases.get(&node).copied().unwrap_or(self.began);
        drop(leases);
        let is_over = self.now().instant.ms_since(last) >= TARGET_LEASE_WAIT_MS;
        if !is_over && !map.is_out(target) {
            return Err(ErrorCode::NotReady);
        }
        self.change_map(&MapEdit::TakeOut { target })
    }

    /// Loads the map from the disk again, as after a restore from a backup.
    ///
    /// # Errors
    /// The disk has no valid map.
    pub(super) fn read_map_again(&self) -> Result<(), ErrorCode> {
        let cell = self.peers.map.borrow().cell;
        let manager = load(&self.disk, cell)?;
        *self.peers.map.borrow_mut() = Arc::clone(manager.durable());
        *self.manager.borrow_mut() = Some(manager);
        Ok(())
    }
}

fn refused(code: ErrorCode) -> ManagerReply {
    ManagerReply::Failed {
        code: ErrorNumber(code),
        detail: String::new(),
    }
}
