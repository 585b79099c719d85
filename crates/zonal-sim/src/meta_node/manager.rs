//! The manager beside the root's shard: the map's versions.

use super::MetaNode;
use super::host::SimulatedHost;
use std::sync::Arc;
use zonal_meta::JunctionChange;
use zonal_types::{Blob, Codec, ErrorCode};
use zonal_wire::{ErrorNumber, ManagerReply, ManagerRequest};
use zonal_zonemap::{MapEdit, ZoneMap};

impl SimulatedHost {
    pub(super) fn change_map(&self, junctions: Vec<JunctionChange>) -> Option<Arc<ZoneMap>> {
        if junctions.is_empty() {
            return None;
        }
        let edits: Vec<MapEdit> = junctions
            .into_iter()
            .map(|change| match change {
                JunctionChange::Add { ino, path, zone } => MapEdit::AddJunction { ino, path, zone },
                JunctionChange::Move { ino, path } => MapEdit::MoveJunction { ino, path },
                JunctionChange::Remove { ino } => MapEdit::RemoveJunction { ino },
            })
            .collect();
        let edited = self.line.map.borrow().edited(&edits);
        if let Ok(Some(next)) = edited {
            // As the server does: a map version is durable, with its record, before anybody hears of it.
            self.disk.sync();
            *self.line.map.borrow_mut() = Arc::new(next);
        }
        Some(self.line.map.borrow().clone())
    }
}

impl MetaNode {
    pub(super) fn manage(&self, body: &[u8]) -> ManagerReply {
        let map = self.host().line.map.borrow();
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
