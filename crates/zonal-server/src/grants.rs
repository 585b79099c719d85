//! What clients with a scope may do with the bytes of files: where they have the file open at its shard. docs/rfcs/2026-11-25-scopes.md.
//!
//! *Invariants*: (1) a peer without a scope costs one branch; (2) only what a shard has said within [`GRANT_MS`] is believed, and only a yes.

use crate::clock;
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::storage_role::Refused;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zonal_net::{Peer, Serial};
use zonal_types::limits::{GRANT_MS, GRANTS_KEPT_MAX};
use zonal_types::{Blob, Codec, DataId, ErrorCode, Instant};
use zonal_wire::{ManagerReply, MetaReply, MetaRequest, StorageRequest};
use zonal_zonemap::ZoneMap;

type Kept = BTreeMap<(Serial, DataId, bool), Instant>;

/// Asks shards, and keeps what they say for a while.
pub(crate) struct Grants {
    map: Arc<MapCache>,
    peers: Arc<Peers>,
    /// Until when a certificate may use a file's bytes; true: write them.
    kept: Mutex<Kept>,
}

impl Grants {
    pub(crate) fn new(map: Arc<MapCache>, peers: Arc<Peers>) -> Self {
        Self {
            map,
            peers,
            kept: Mutex::default(),
        }
    }

    /// Whether a peer may ask a target for this.
    ///
    /// # Errors
    /// `Access` where it has not opened the file so; `ReadOnly`; why the shard does not say.
    pub(crate) fn check(&self, peer: &Peer, request: &StorageRequest) -> Result<(), Refused> {
        let (Some(scope), Some(certified)) = (peer.scope(), &peer.certified) else {
            return Ok(());
        };
        let Some((data_id, writes)) = bytes_of(request) else {
            return Ok(());
        };
        if writes && scope.is_read_only {
            return Err(ErrorCode::ReadOnly.into());
        }
        if self.is_kept(certified.serial, data_id, writes) {
            return Ok(());
        }
        // Before the question: what the shard says was so at some time since.
        let asked = clock::instant();
        let subject = certified.subject.to_string();
        if !self.ask(subject, data_id, writes)? {
            let detail = "this client does not have the file open so";
            return Err(Refused::new(ErrorCode::Access, detail.into()));
        }
        let mut kept = self.kept();
        if kept.len() >= GRANTS_KEPT_MAX {
            kept.retain(|_, until| *until > asked);
        }
        if kept.len() >= GRANTS_KEPT_MAX {
            kept.clear();
        }
        let until = asked.plus_ms(GRANT_MS);
        kept.insert((certified.serial, data_id, writes), until);
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_kept(&self, serial: Serial, data_id: DataId, writes: bool) -> bool {
        let now = clock::instant();
        let kept = self.kept();
        let holds = |writes| {
            let until = kept.get(&(serial, data_id, writes));
            until.is_some_and(|until| *until > now)
        };
        // Who may write may read.
        holds(true) || (!writes && holds(false))
    }

    fn ask(&self, subject: String, data_id: DataId, writes: bool) -> Result<bool, Refused> {
        let mut map = self.map.current();
        if data_id.is_valid() && map.shard_of(data_id.partition()).is_none() {
            // Its shard has joined since.
            self.map.refresh();
            map = self.map.current();
        }
        let shard = map.shard_of(data_id.partition());
        let Some(shard) = shard.filter(|_| data_id.is_valid()) else {
            return Ok(false);
        };
        let request = MetaRequest::HasOpen {
            subject,
            data_id,
            writes,
        };
        let reply = self.peers.shard(&self.map, shard.id, &request);
        let reply = reply.map_err(|error| {
            let detail = format!("shard {} does not say who has it open: {error}", shard.id);
            Refused::new(error.code(), detail)
        })?;
        match reply {
            MetaReply::Yes { yes } => Ok(yes),
            MetaReply::Failed { code } if code.0 == ErrorCode::NotOwner => {
                self.map.refresh();
                Err(ErrorCode::NotReady.into())
            }
            MetaReply::Failed { code } => Err(code.0.into()),
            _ => Err(ErrorCode::NotReady.into()),
        }
    }
}

/// The data id whose bytes a request is about; true: it changes them.
fn bytes_of(request: &StorageRequest) -> Option<(DataId, bool)> {
    match request {
        StorageRequest::Read { object, .. }
        | StorageRequest::Map { object, .. }
        | StorageRequest::Stat { object }
        | StorageRequest::MapExtents { object, .. } => Some((object.data_id, false)),
        StorageRequest::Write { object, .. }
        | StorageRequest::WriteRanges { object, .. }
        | StorageRequest::Truncate { object }
        | StorageRequest::Punch { object, .. }
        | StorageRequest::Allocate { object, .. }
        | StorageRequest::Prepare { object, .. }
        | StorageRequest::Commit { object, .. }
        | StorageRequest::Abort { object, .. }
        | StorageRequest::Resolve { object, .. }
        | StorageRequest::CommitExtents { object, .. } => Some((object.data_id, true)),
        StorageRequest::Sync { .. }
        | StorageRequest::StatFs { .. }
        // Of servers, as `access.rs` sees to.
        | StorageRequest::Fence { .. }
        | StorageRequest::Delete { .. } => None,
    }
}

/// The manager's answer as the peer may see it: a client with a path learns of no other first-level directory.
pub(crate) fn as_seen_by(peer: &Peer, reply: ManagerReply) -> ManagerReply {
    let first = peer.scope().and_then(|scope| scope.path.first());
    let (Some(first), ManagerReply::Map { version, map }) = (first, &reply) else {
        return reply;
    };
    let Ok(mut seen) = ZoneMap::decode(&map.0) else {
        return ManagerReply::Unchanged { version: *version };
    };
    let path = format!("/{first}");
    seen.junctions.retain(|junction| junction.path == path);
    ManagerReply::Map {
        version: *version,
        map: Blob(seen.to_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::peer;
    use zonal_net::Role;
    use zonal_types::{Column, Ino, MapVersion, StripeSetId, TargetId, ZoneId};
    use zonal_wire::ObjectRef;
    use zonal_zonemap::map::Junction;

    fn grants() -> Grants {
        let identity = zonal_net::Identity::new(
            zonal_types::CellId([3; 16]),
            Role::Server,
            zonal_types::NodeId(9),
            None,
        );
        let pool = Arc::new(zonal_net::Pool::new(
            identity,
            zonal_net::PoolConfig::default(),
        ));
        let cell = zonal_types::CellId([3; 16]);
        let peers = Arc::new(Peers::new(pool, cell));
        Grants::new(Arc::new(MapCache::here(cell)), peers)
    }

    fn object(id: u64) -> ObjectRef {
        ObjectRef {
            target: TargetId(1),
            set: StripeSetId(1),
            slot: 0,
            data_id: DataId(id),
            column: Column(0),
            layout_gen: 0,
            truncate_seq: 0,
            truncate_bytes: 0,
        }
    }

    #[test]
    fn bytes_are_for_those_who_have_the_file_open() {
        let grants = grants();
        let read = |id| StorageRequest::Read {
            object: object(id),
            offset: 0,
            length: 1,
        };
        let truncate = |id| StorageRequest::Truncate { object: object(id) };
        let code = |peer: &Peer, request: &StorageRequest| {
            let outcome = grants.check(peer, request);
            outcome.map_err(|refused| refused.code)
        };
        for (role, subject) in [
            (Role::Client, None),
            (Role::Client, Some("client/a")),
            (Role::Tool, Some("admin/a")),
        ] {
            let peer = peer(role, 0, subject);
            assert_eq!(code(&peer, &read(77)), Ok(()));
            assert_eq!(code(&peer, &truncate(77)), Ok(()));
        }
        let scoped = peer(Role::Client, 0, Some("client/a?path=/projects/a"));
        // No shard has it.
        assert_eq!(code(&scoped, &read(77)), Err(ErrorCode::Access));
        let target = TargetId(1);
        assert_eq!(code(&scoped, &StorageRequest::Sync { target }), Ok(()));
        let reader = peer(Role::Client, 0, Some("client/a?read-only"));
        assert_eq!(code(&reader, &truncate(77)), Err(ErrorCode::ReadOnly));
        // What a shard has said counts for its time, for that certificate and that file.
        let serial = scoped.certified.as_ref().unwrap().serial;
        let until = clock::instant().plus_ms(60_000);
        grants.kept().insert((serial, DataId(77), false), until);
        assert_eq!(code(&scoped, &read(77)), Ok(()));
        assert_eq!(code(&scoped, &truncate(77)), Err(ErrorCode::Access));
        assert_eq!(code(&scoped, &read(78)), Err(ErrorCode::Access));
        grants.kept().insert((serial, DataId(77), true), until);
        grants.kept().remove(&(serial, DataId(77), false));
        assert_eq!(code(&scoped, &read(77)), Ok(()));
        assert_eq!(code(&scoped, &truncate(77)), Ok(()));
        grants
            .kept()
            .insert((serial, DataId(77), true), clock::instant());
        assert_eq!(code(&scoped, &read(77)), Err(ErrorCode::Access));
    }

    #[test]
    fn a_client_with_a_path_learns_of_no_other_first_level_directory() {
        let mut map = ZoneMap::new(zonal_types::CellId([3; 16]));
        let junction = |ino, path: &str| Junction {
            ino: Ino(ino),
            path: path.into(),
            zone: ZoneId(1),
        };
        map.junctions = vec![junction(17, "/projects"), junction(18, "/secret")];
        let reply = ManagerReply::Map {
            version: MapVersion(3),
            map: Blob(map.to_bytes()),
        };
        let seen = |subject: Option<&str>| match as_seen_by(
            &peer(Role::Client, 0, subject),
            reply.clone(),
        ) {
            ManagerReply::Map { map, .. } => {
                let map = ZoneMap::decode(&map.0).unwrap();
                map.junctions
                    .iter()
                    .map(|junction| junction.path.clone())
                    .collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(seen(None).len(), 2);
        assert_eq!(seen(Some("client/a")).len(), 2);
        assert_eq!(seen(Some("client/a?read-only")).len(), 2);
        assert_eq!(seen(Some("client/a?path=/projects/a")), ["/projects"]);
        assert_eq!(seen(Some("client/a?path=/none")), [""; 0]);
    }
}
