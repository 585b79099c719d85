//! The manager beside the root's shard: the map's versions.

use super::{MetaNode, failed};
use std::sync::Arc;
use zonal_meta::JunctionChange;
use zonal_types::{Blob, Codec, ErrorCode, ShardId, ZoneId};
use zonal_wire::{ErrorNumber, ManagerReply, ManagerRequest, MetaReply};
use zonal_zonemap::MapEdit;

impl MetaNode {
    pub(super) fn change_map(&self, junctions: Vec<JunctionChange>) {
        if junctions.is_empty() {
            return;
        }
        let edits: Vec<MapEdit> = junctions
            .into_iter()
            .map(|change| match change {
                JunctionChange::Add { ino, path, zone } => MapEdit::AddJunction { ino, path, zone },
                JunctionChange::Move { ino, path } => MapEdit::MoveJunction { ino, path },
                JunctionChange::Remove { ino } => MapEdit::RemoveJunction { ino },
            })
            .collect();
        let edited = self.map.borrow().edited(&edits);
        if let Ok(Some(next)) = edited {
            // As the server does: a map version is durable, with its record, before anybody hears of it.
            self.disk.sync();
            *self.map.borrow_mut() = Arc::new(next);
        }
    }

    /// Has the default sets of a zone open, where the map is kept.
    pub(super) fn open_sets(&self, zone: ZoneId) -> MetaReply {
        if self.id != ShardId(0) {
            return failed(ErrorCode::NotOwner);
        }
        let mut map = self.map.borrow_mut();
        match map.edited(&[MapEdit::OpenSets { zone }]) {
            Ok(Some(next)) => *map = Arc::new(next),
            Ok(None) => {}
            Err(_unknown) => return failed(ErrorCode::Invalid),
        }
        map.opened(zone)
    }

    pub(super) fn manage(&self, body: &[u8]) -> ManagerReply {
        let map = self.map.borrow();
        match ManagerRequest::from_bytes(body) {
            Ok(ManagerRequest::GetMap { have }) if have >= map.version => ManagerReply::Unchanged {
                version: map.version,
            },
            Ok(ManagerRequest::GetMap { .. }) => ManagerReply::Map {
                version: map.version,
                map: Blob(map.to_bytes()),
            },
            _other => ManagerReply::Failed {
                code: ErrorNumber(ErrorCode::NotSupported),
                detail: String::new(),
            },
        }
    }
}
