//! Grants of clients with a scope: the client may use the bytes of a file only while it has the
//! file open at its shard. See docs/rfcs/2026-11-25-scopes.md.
//!
//! *Invariants*:
//! 1. A peer without a scope costs one branch.
//! 2. Only answers that a shard gave within [`GRANT_MS`] count, and only positive ones.
//! 3. A request is accepted only at the slot and the column of the file's layout, and within the
//!    longest file.
//! 4. Its truncation number must be one that the shard has issued for the file.

use crate::clock;
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::storage_role::Refused;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zonal_layout::{file_offset_of, leftovers, object_of};
use zonal_net::{Peer, Serial};
use zonal_types::limits::{FILE_BYTES_MAX, GRANT_MS, GRANTS_KEPT_MAX};
use zonal_types::{Component, DataId, ErrorCode, Instant};
use zonal_wire::meta::{BytesPlace, FileUse};
use zonal_wire::{ManagerReply, ManagerRequest, MetaReply, MetaRequest, ObjectRef, StorageRequest};

/// An answer of a shard.
#[derive(Clone)]
struct Grant {
    until: Instant,
    place: BytesPlace,
}

type GrantCache = BTreeMap<(Serial, DataId, FileUse), Grant>;

/// Asks shards, and caches their answers for a while.
pub(crate) struct Grants {
    map: Arc<MapCache>,
    peers: Arc<Peers>,
    /// How long a certificate may use a file's bytes, and for which use.
    kept: Mutex<GrantCache>,
}

impl Grants {
    pub(crate) fn new(map: Arc<MapCache>, peers: Arc<Peers>) -> Self {
        Self {
            map,
            peers,
            kept: Mutex::default(),
        }
    }

    /// Checks that a peer may send this request to a target.
    ///
    /// # Errors
    /// `Access` where it has not opened the file for that; `ReadOnly`; the shard's error where it
    /// does not answer.
    pub(crate) fn check(
        &self,
        peer: &Peer,
        request: &StorageRequest,
        payload_bytes: usize,
    ) -> Result<(), Refused> {
        let (Some(scope), Some(certified)) = (peer.scope(), &peer.certified) else {
            return Ok(());
        };
        let Some((object, for_use)) = bytes_of(request) else {
            return Ok(());
        };
        let data_id = object.data_id;
        let last = last_byte(request, payload_bytes as u64);
        if for_use == FileUse::Write && scope.is_read_only {
            return Err(ErrorCode::ReadOnly.into());
        }
        if let Some(place) = self.kept_for(certified.serial, data_id, for_use)
            // A later truncation may be news that the cached answer lacks.
            && object.truncate_seq <= place.truncate_seq
        {
            return self.check_place(&place.component, object, last);
        }
        // Taken before the question: the shard's answer was true at some time since.
        let asked = clock::instant();
        let subject = certified.subject.to_string();
        let Some(place) = self.ask(subject, data_id, for_use)? else {
            let detail = "this client does not have the file open so";
            return Err(Refused::new(ErrorCode::Access, detail));
        };
        if object.truncate_seq > place.truncate_seq {
            let detail = "the file has had no truncation of this number";
            return Err(Refused::new(ErrorCode::Access, detail));
        }
        let mut kept = self.kept();
        if kept.len() >= GRANTS_KEPT_MAX {
            kept.retain(|_, granted| granted.until > asked);
        }
        if kept.len() >= GRANTS_KEPT_MAX {
            kept.clear();
        }
        let until = asked.plus_ms(GRANT_MS);
        let granted = Grant {
            until,
            place: place.clone(),
        };
        kept.insert((certified.serial, data_id, for_use), granted);
        drop(kept);
        self.check_place(&place.component, object, last)
    }

    /// Refuses an object that the layout does not have there, and bytes that no file has.
    fn check_place(
        &self,
        component: &Component,
        object: &ObjectRef,
        last: u64,
    ) -> Result<(), Refused> {
        let map = self.map.current();
        let mut places = zonal_layout::places(component);
        let is_at = |place| {
            let found = map.slot_of_place(component, place);
            object_of(component, place) == object.column
                && found.is_some_and(|of| (of.set, of.number) == (object.set, object.slot))
        };
        // A client may not know yet that the object has left the place.
        let is_left = |of: &zonal_types::Relocation| {
            (of.object, of.set, of.slot) == (object.column, object.set, object.slot)
        };
        let is_of_file = (places.any(is_at) || leftovers(component).any(is_left))
            && last < FILE_BYTES_MAX
            && file_offset_of(component, object.column, last) < FILE_BYTES_MAX;
        if is_of_file {
            return Ok(());
        }
        let detail = "the file's layout has no such object or byte there";
        Err(Refused::new(ErrorCode::Access, detail))
    }

    fn kept(&self) -> MutexGuard<'_, GrantCache> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept_for(&self, serial: Serial, data_id: DataId, for_use: FileUse) -> Option<BytesPlace> {
        let now = clock::instant();
        let kept = self.kept();
        let of = |for_use| {
            let granted = kept.get(&(serial, data_id, for_use));
            granted.filter(|granted| granted.until > now)
        };
        let granted = match for_use {
            FileUse::Look => of(for_use)
                .or_else(|| of(FileUse::Read))
                .or_else(|| of(FileUse::Write)),
            FileUse::Read | FileUse::Write => of(for_use),
        };
        granted.map(|granted| granted.place.clone())
    }

    fn ask(
        &self,
        subject: String,
        data_id: DataId,
        for_use: FileUse,
    ) -> Result<Option<BytesPlace>, Refused> {
        let mut map = self.map.current();
        if data_id.is_valid() && map.shard_of(data_id.partition()).is_none() {
            // Its shard has joined since.
            map = self.map.newest().ok_or_else(|| {
                let detail = "the manager does not say which shard has the file";
                Refused::new(ErrorCode::NotReady, detail)
            })?;
        }
        let shard = map.shard_of(data_id.partition());
        let Some(shard) = shard.filter(|_| data_id.is_valid()) else {
            return Ok(None);
        };
        let request = MetaRequest::HasOpen {
            subject,
            data_id,
            for_use,
        };
        let reply = self.peers.shard(&self.map, shard.id, &request);
        let reply = reply.map_err(|error| {
            let detail = format!("shard {} does not say who has it open: {error}", shard.id);
            Refused::new(error.code(), detail)
        })?;
        match reply {
            MetaReply::MayUse { place } => Ok(place),
            MetaReply::Failed { code } if code.0 == ErrorCode::NotOwner => {
                self.map.refresh();
                Err(ErrorCode::NotReady.into())
            }
            MetaReply::Failed { code } => Err(code.0.into()),
            _ => Err(ErrorCode::NotReady.into()),
        }
    }
}

/// The object of a request, and its use.
fn bytes_of(request: &StorageRequest) -> Option<(&ObjectRef, FileUse)> {
    match request {
        StorageRequest::Map { object, .. } | StorageRequest::Stat { object } => {
            Some((object, FileUse::Look))
        }
        StorageRequest::Read { object, .. } | StorageRequest::MapExtents { object, .. } => {
            Some((object, FileUse::Read))
        }
        StorageRequest::Write { object, .. }
        | StorageRequest::WriteRanges { object, .. }
        | StorageRequest::Truncate { object }
        | StorageRequest::Punch { object, .. }
        | StorageRequest::Allocate { object, .. }
        | StorageRequest::Prepare { object, .. }
        | StorageRequest::Commit { object, .. }
        | StorageRequest::Abort { object, .. }
        | StorageRequest::Resolve { object, .. }
        | StorageRequest::CommitExtents { object, .. } => Some((object, FileUse::Write)),
        StorageRequest::Sync { .. }
        | StorageRequest::StatFs { .. }
        // Only servers may send these: `access.rs` checks that.
        | StorageRequest::Fence { .. }
        | StorageRequest::Delete { .. } => None,
    }
}

/// The last byte of the object that a request may create; 0: none.
fn last_byte(request: &StorageRequest, payload_bytes: u64) -> u64 {
    let end = match request {
        StorageRequest::Write { offset, .. } => offset.saturating_add(payload_bytes),
        StorageRequest::WriteRanges { ranges, .. } => {
            let ends = ranges
                .iter()
                .map(|(at, bytes)| at.saturating_add(u64::from(*bytes)));
            ends.max().unwrap_or(0)
        }
        StorageRequest::Allocate { offset, length, .. } => offset.saturating_add(*length),
        _ => 0,
    };
    end.saturating_sub(1)
}

/// Restricts a peer's request to the manager: a client with a path may not learn of other
/// first-level directories, nor how many there are.
pub(crate) fn as_asked_by(peer: &Peer, request: ManagerRequest) -> ManagerRequest {
    let first = peer.scope().and_then(|scope| scope.path.first());
    match (first, &request) {
        (
            Some(first),
            ManagerRequest::Junction { .. }
            | ManagerRequest::Junctions { .. }
            | ManagerRequest::JunctionsAt { .. },
        ) => ManagerRequest::JunctionsAt {
            path: format!("/{first}"),
        },
        _ => request,
    }
}

/// Restricts the manager's answer in the same way.
pub(crate) fn as_seen_by(peer: &Peer, reply: ManagerReply) -> ManagerReply {
    let has_path = peer.scope().is_some_and(|scope| !scope.path.is_empty());
    match reply {
        ManagerReply::Junctions { junctions, .. } if has_path => ManagerReply::Junctions {
            version: 0,
            count: junctions.len() as u64,
            junctions,
            end: true,
        },
        reply => reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::peer;
    use zonal_net::Role;
    use zonal_types::{
        Column, ComponentKind, Epoch, Ino, MapVersion, Redundancy, StripeSetId, TargetId, ZoneId,
    };
    use zonal_wire::ObjectRef;
    use zonal_zonemap::ZoneMap;
    use zonal_zonemap::map::{Slot, SlotState, StripeSet};

    fn pool() -> Arc<zonal_net::Pool> {
        let identity = zonal_net::Identity::new(
            zonal_types::CellId([3; 16]),
            Role::Server,
            zonal_types::NodeId(9),
            None,
        );
        let config = zonal_net::PoolConfig::default();
        Arc::new(zonal_net::Pool::new(identity, config))
    }

    fn grants() -> Grants {
        let cell = zonal_types::CellId([3; 16]);
        let peers = Arc::new(Peers::new(pool(), cell));
        let map = Arc::new(MapCache::here(cell));
        map.publish(Arc::new(striped_over_two(cell)));
        Grants::new(map, peers)
    }

    /// Set 1 has two slots, set 2 one.
    fn striped_over_two(cell: zonal_types::CellId) -> ZoneMap {
        let mut map = ZoneMap::new(cell);
        let slot = |target| Slot {
            target: TargetId(target),
            previous: None,
            state: SlotState::Serving,
            slot_epoch: Epoch(1),
        };
        let set = |id, slots| StripeSet {
            id: StripeSetId(id),
            zone: ZoneId(1),
            is_open: true,
            slots,
        };
        map.sets = vec![set(1, vec![slot(1), slot(2)]), set(2, vec![slot(1)])];
        map.version = MapVersion(2);
        map
    }

    fn place(id: u64) -> BytesPlace {
        let component = Component {
            kind: ComponentKind::Striped,
            start: 0,
            end: u64::MAX,
            data_id: DataId(id),
            zone: ZoneId(1),
            set: StripeSetId(1),
            start_column: Column(0),
            count: 2,
            unit: 1 << 20,
            span: 0,
            redundancy: Redundancy::None,
            relocations: Vec::new(),
        };
        BytesPlace {
            component,
            truncate_seq: 4,
        }
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
            let outcome = grants.check(peer, request, 0);
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
        // No shard has this data id.
        assert_eq!(code(&scoped, &read(77)), Err(ErrorCode::Access));
        let target = TargetId(1);
        assert_eq!(code(&scoped, &StorageRequest::Sync { target }), Ok(()));
        let reader = peer(Role::Client, 0, Some("client/a?read-only"));
        assert_eq!(code(&reader, &truncate(77)), Err(ErrorCode::ReadOnly));
        // A shard's answer counts for its time, for that certificate and that file.
        let serial = scoped.certified.as_ref().unwrap().serial;
        let granted = |until| Grant {
            until,
            place: place(77),
        };
        let until = clock::instant().plus_ms(60_000);
        grants
            .kept()
            .insert((serial, DataId(77), FileUse::Read), granted(until));
        let stat = |id| StorageRequest::Stat { object: object(id) };
        assert_eq!(code(&scoped, &read(77)), Ok(()));
        assert_eq!(code(&scoped, &stat(77)), Ok(()));
        assert_eq!(code(&scoped, &truncate(77)), Err(ErrorCode::Access));
        assert_eq!(code(&scoped, &read(78)), Err(ErrorCode::Access));
        grants
            .kept()
            .insert((serial, DataId(77), FileUse::Write), granted(until));
        grants.kept().remove(&(serial, DataId(77), FileUse::Read));
        assert_eq!(code(&scoped, &read(77)), Err(ErrorCode::Access));
        assert_eq!(code(&scoped, &stat(77)), Ok(()));
        assert_eq!(code(&scoped, &truncate(77)), Ok(()));
        grants.kept().insert(
            (serial, DataId(77), FileUse::Write),
            granted(clock::instant()),
        );
        assert_eq!(code(&scoped, &truncate(77)), Err(ErrorCode::Access));
    }

    /// A target that joined before a shard did has an older map, and its manager may not answer
    /// now.
    #[test]
    fn a_file_of_a_shard_that_is_not_known_yet_is_asked_for_again() {
        let cell = zonal_types::CellId([3; 16]);
        let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let peers = Arc::new(Peers::new(pool(), cell).with_managers(&[nobody]));
        let map = MapCache::of_managers(cell, Arc::clone(&peers));
        let grants = Grants::new(Arc::new(map), peers);
        let scoped = peer(Role::Client, 0, Some("client/a?path=/projects/a"));
        let object = object(77);
        let (offset, length) = (0, 1);
        let read = StorageRequest::Read {
            object,
            offset,
            length,
        };
        for _just_after_another in 0..2 {
            let refused = grants.check(&scoped, &read, 0).unwrap_err();
            assert_eq!(refused.code, ErrorCode::NotReady);
        }
    }

    /// Its client could fill any target with what no file has, and no deletion finds.
    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of wrong objects")]
    fn only_objects_and_bytes_of_the_layout_are_accepted() {
        let grants = grants();
        let scoped = peer(Role::Client, 0, Some("client/a?path=/projects/a"));
        let serial = scoped.certified.as_ref().unwrap().serial;
        let granted = Grant {
            until: clock::instant().plus_ms(60_000),
            place: place(77),
        };
        for for_use in [FileUse::Read, FileUse::Write] {
            let granted = granted.clone();
            grants.kept().insert((serial, DataId(77), for_use), granted);
        }
        let write = |object, offset| StorageRequest::Write {
            object,
            offset,
            sync: false,
            expected_version: 0,
            txn: 0,
            snap_epoch: 0,
        };
        let code = |request: &StorageRequest, bytes| {
            let outcome = grants.check(&scoped, request, bytes);
            outcome.map_err(|refused| refused.code)
        };
        let no = Err(ErrorCode::Access);
        assert_eq!(code(&write(object(77), 0), 1 << 20), Ok(()));
        // A number that the shard, which does not have the file, does not know.
        for (truncate_seq, is_known) in [(4, true), (5, false), (u64::MAX, false)] {
            let object = ObjectRef {
                truncate_seq,
                ..object(77)
            };
            let expected = if is_known {
                Ok(())
            } else {
                Err(ErrorCode::Access)
            };
            assert_eq!(code(&write(object, 0), 1), expected);
            assert_eq!(code(&StorageRequest::Truncate { object }, 0), expected);
        }
        let second = ObjectRef {
            slot: 1,
            column: Column(1),
            ..object(77)
        };
        assert_eq!(code(&write(second, 0), 1), Ok(()));
        for wrong in [
            ObjectRef {
                column: Column(2),
                ..object(77)
            },
            ObjectRef {
                column: Column(1),
                ..object(77)
            },
            ObjectRef {
                column: Column(1000),
                slot: 1,
                ..object(77)
            },
            ObjectRef {
                slot: 1,
                ..object(77)
            },
            ObjectRef {
                set: StripeSetId(0),
                ..object(77)
            },
            ObjectRef {
                set: StripeSetId(2),
                ..object(77)
            },
        ] {
            assert_eq!(code(&write(wrong, 0), 1), no, "{wrong:?}");
            let read = StorageRequest::Read {
                object: wrong,
                offset: 0,
                length: 1,
            };
            assert_eq!(code(&read, 0), no);
        }
        // With two columns each has half of the longest file.
        let half = FILE_BYTES_MAX / 2;
        assert_eq!(code(&write(object(77), half - (1 << 20)), 1 << 20), Ok(()));
        assert_eq!(code(&write(object(77), half - (1 << 20)), 3 << 20), no);
        for offset in [half + (1 << 20), FILE_BYTES_MAX - 1, u64::MAX] {
            assert_eq!(code(&write(object(77), offset), 1), no, "{offset}");
            let object = object(77);
            let (ranges, length) = (vec![(0, 1), (offset, 1)], 1);
            assert_eq!(code(&StorageRequest::WriteRanges { object, ranges }, 2), no);
            let allocate = StorageRequest::Allocate {
                object,
                offset,
                length,
                zero: false,
            };
            assert_eq!(code(&allocate, 0), no);
        }
    }

    #[test]
    fn a_client_with_a_path_sees_no_other_first_level_directory() {
        let all = ManagerRequest::Junctions {
            after: None,
            entries: 100,
        };
        let of_one = ManagerRequest::Junction { ino: Ino(18) };
        let by = |subject: Option<&str>, request: &ManagerRequest| {
            as_asked_by(&peer(Role::Client, 0, subject), request.clone())
        };
        for request in [&all, &of_one] {
            assert_eq!(by(None, request), *request);
            assert_eq!(by(Some("client/a"), request), *request);
            assert_eq!(by(Some("client/a?read-only"), request), *request);
            let own = ManagerRequest::JunctionsAt {
                path: "/projects".into(),
            };
            assert_eq!(by(Some("client/a?path=/projects/a"), request), own);
        }
        let reply = ManagerReply::Junctions {
            version: 9,
            count: 70,
            junctions: Vec::new(),
            end: true,
        };
        let seen = |subject| as_seen_by(&peer(Role::Client, 0, subject), reply.clone());
        assert_eq!(seen(Some("client/a")), reply);
        let hidden = seen(Some("client/a?path=/projects/a"));
        assert!(matches!(
            hidden,
            ManagerReply::Junctions {
                version: 0,
                count: 0,
                ..
            }
        ));
    }
}
