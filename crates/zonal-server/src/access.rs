//! Access control: which peers may send which requests, by the role and the node that a connection
//! has proved.
//!
//! | server | request | allowed for |
//! | --- | --- | --- |
//! | manager | `Join`, with the starts of its stores | the server of that node, in its roles |
//! | manager | `CheckClock` | the server of that node |
//! | manager | `ReportLoad` | the server of that node, with a target |
//! | manager | `Digest` | the server of that node |
//! | manager | `ClientLost` | servers with a shard |
//! | manager | `RenewLease` | the server of that node, with a target |
//! | manager | `PutBack`, `RenewEpochs` | the server of that target's node |
//! | manager | `TakeOut` | every member |
//! | manager | `NodeStates`, `Events` | commands and servers |
//! | manager | `Edit`, `Revoke`, `WantShards`, `GetDrains`, join tokens | commands |
//! | manager | `Claim`, in the handshake | the holder of a join token |
//! | manager | the map, the subnets, the list of revoked certificates | every member |
//! | shard | calls between shards (see below) | servers with a shard |
//! | shard | any other request without a session of the sender | servers with a shard |
//! | shard | `HasOpen`, `FencesOf`, `MendCopy`, `CopiesOf` | servers with a target |
//! | shard | `StaleFiles` | servers with a target, commands |
//! | shard | `RelocateObjects` | servers of managers |
//! | shard | `EvictSession` | commands and servers |
//! | shard | `FileOf`, `GetShardLoads`, `MovePartition`, `GetMoves`, `CancelMove` | commands |
//! | shard | `OpenSession`, `StatFs`, `Sync` | every member, within its scope |
//! | shard | other requests with a session of the sender | every member, within its scope |
//! | target | `Delete`, `Fence` | servers with a shard |
//! | target | `Read` | servers with a target; other servers may send nothing |
//! | target | other requests | every member; with a scope: `grants.rs` |
//! | replica | messages of replicas, snapshots | servers with a shard |
//! | replica | `Status`, `HandOver` | commands and servers with a shard |
//! | any | `NumberClaimed`, `Heartbeat`, `Sightings` | servers |
//! | any | health, scrubs, sessions, lists of objects, snapshots | commands |
//!
//! Calls between shards: `MakeDetachedDir`, `AttachDir`, `DetachDir`, `DropDir`, `HasEntry`,
//! `SettleDir`, `OpenSets`, `FirstLevel`, `ReportShardLoad`, `MorePartitions`,
//! `MoveBegin`, `MoveEntries`, `MoveEnd`, `MoveDropped`, `GivePartition`.
//! A member is a process with a credential of the cell.
//!
//! By a Unix socket, and in a cell without keys, the role is the one that the peer claims.

use crate::store_starts;
use zonal_net::{Peer, Role, ServerRoles};
use zonal_types::{ErrorCode, SessionId};
use zonal_wire::{
    AdminRequest, Header, ManagerRequest, MetaRequest, ReplicaRequest, StorageRequest,
};
use zonal_zonemap::ZoneMap;

fn permitted(may: bool) -> Result<(), ErrorCode> {
    match may {
        true => Ok(()),
        false => Err(ErrorCode::NotPermitted),
    }
}

/// True where a server's certificate has a role; a server without a certificate is trusted.
fn has_role(peer: &Peer, role: impl Fn(ServerRoles) -> bool) -> bool {
    let certified = peer.certified.as_ref();
    certified.is_none_or(|known| role(known.subject.roles()))
}

/// True where a peer, a server, has a shard. The manager has the root's.
fn is_shards(peer: &Peer) -> bool {
    has_role(peer, |roles| roles.meta || roles.manager)
}

/// Checks that a peer may send this request to a shard. The shard itself checks who owns the
/// session that it names.
///
/// # Errors
/// `NotPermitted`; `UnknownSession` where the request needs a session.
pub(crate) fn check_meta(
    peer: &Peer,
    header: &Header,
    request: &MetaRequest,
) -> Result<(), ErrorCode> {
    if peer.role == Role::Server {
        return permitted(match request {
            MetaRequest::HasOpen { .. }
            | MetaRequest::FencesOf { .. }
            | MetaRequest::StaleFiles { .. }
            | MetaRequest::MendCopy { .. }
            | MetaRequest::CopiesOf { .. } => has_role(peer, |roles| roles.storage),
            MetaRequest::RelocateObjects { .. } => has_role(peer, |roles| roles.manager),
            MetaRequest::OpenSession { .. } => peer.certified.is_none(),
            _ => is_shards(peer),
        });
    }
    match request {
        // These skip all permission checks of files.
        MetaRequest::MakeDetachedDir { .. }
        | MetaRequest::AttachDir { .. }
        | MetaRequest::DetachDir { .. }
        | MetaRequest::DropDir { .. }
        | MetaRequest::HasEntry { .. }
        | MetaRequest::SettleDir { .. }
        | MetaRequest::HasOpen { .. }
        | MetaRequest::FencesOf { .. }
        | MetaRequest::MendCopy { .. }
        | MetaRequest::RelocateObjects { .. }
        | MetaRequest::CopiesOf { .. }
        | MetaRequest::OpenSets { .. }
        | MetaRequest::FirstLevel { .. }
        | MetaRequest::MorePartitions { .. }
        | MetaRequest::MoveBegin { .. }
        | MetaRequest::MoveEntries { .. }
        | MetaRequest::MoveEnd { .. }
        | MetaRequest::MoveDropped { .. }
        | MetaRequest::GivePartition { .. }
        | MetaRequest::ReportShardLoad { .. } => Err(ErrorCode::NotPermitted),
        MetaRequest::EvictSession
        | MetaRequest::GetShardLoads
        | MetaRequest::MovePartition { .. }
        | MetaRequest::GetMoves
        | MetaRequest::StaleFiles { .. }
        | MetaRequest::CancelMove { .. } => permitted(peer.role == Role::Tool),
        MetaRequest::FileOf { .. } if peer.role != Role::Tool => Err(ErrorCode::NotPermitted),
        MetaRequest::OpenSession { .. } | MetaRequest::StatFs | MetaRequest::Sync => Ok(()),
        _ if header.session == SessionId(0) => Err(ErrorCode::UnknownSession),
        _ => Ok(()),
    }
}

/// Checks that a peer may send this request to a target.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_storage(peer: &Peer, request: &StorageRequest) -> Result<(), ErrorCode> {
    let is_for_servers = matches!(
        request,
        StorageRequest::Delete { .. } | StorageRequest::Fence { .. }
    );
    permitted(match peer.role {
        Role::Server => {
            is_shards(peer)
                || (has_role(peer, |roles| roles.storage)
                    && matches!(request, StorageRequest::Read { .. }))
        }
        Role::Client | Role::Tool => !is_for_servers,
    })
}

/// Checks that a peer may send this request to a replica.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_replica(peer: &Peer, request: &ReplicaRequest) -> Result<(), ErrorCode> {
    permitted(match request {
        ReplicaRequest::Exchange { .. }
        | ReplicaRequest::Starts { .. }
        | ReplicaRequest::SnapshotBegin { .. }
        | ReplicaRequest::SnapshotRead { .. } => peer.role == Role::Server && is_shards(peer),
        ReplicaRequest::Status { .. } | ReplicaRequest::HandOver { .. } => {
            peer.role == Role::Tool || (peer.role == Role::Server && is_shards(peer))
        }
    })
}

/// Checks that a role may send this request about the server itself.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_admin(role: Role, request: &AdminRequest) -> Result<(), ErrorCode> {
    permitted(match request {
        AdminRequest::NumberClaimed { .. }
        | AdminRequest::Heartbeat
        | AdminRequest::Sightings { .. } => role == Role::Server,
        _ => role == Role::Tool,
    })
}

/// Checks that a peer may send this request to a manager.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_manager(peer: &Peer, request: &ManagerRequest) -> Result<(), ErrorCode> {
    let may = match request {
        ManagerRequest::GetMap { .. }
        | ManagerRequest::GetMapPart { .. }
        | ManagerRequest::Junction { .. }
        | ManagerRequest::Junctions { .. }
        | ManagerRequest::JunctionsAt { .. }
        | ManagerRequest::GetRevoked { .. }
        | ManagerRequest::GetSubnets => true,
        ManagerRequest::Digest { reporter, .. } => {
            peer.role == Role::Server && peer.node == *reporter
        }
        ManagerRequest::ClientLost { .. } => peer.role == Role::Server && is_shards(peer),
        ManagerRequest::NodeStates { .. } | ManagerRequest::Events { .. } => {
            peer.role != Role::Client
        }
        ManagerRequest::Edit { .. }
        | ManagerRequest::GetDrains
        | ManagerRequest::Revoke { .. }
        | ManagerRequest::WantShards { .. }
        | ManagerRequest::AddJoinToken { .. }
        | ManagerRequest::JoinTokens
        | ManagerRequest::RemoveJoinToken { .. } => peer.role == Role::Tool,
        ManagerRequest::TakeOut { .. } => true,
        ManagerRequest::PutBack { .. } | ManagerRequest::RenewEpochs { .. } => {
            peer.role == Role::Server && has_role(peer, |roles| roles.storage)
        }
        ManagerRequest::CheckClock { node, .. } => peer.role == Role::Server && peer.node == *node,
        ManagerRequest::ReportLoad { node, .. } | ManagerRequest::RenewLease { node } => {
            peer.role == Role::Server && peer.node == *node && has_role(peer, |roles| roles.storage)
        }
        ManagerRequest::Join {
            node,
            meta,
            targets,
            starts,
            ..
        } => {
            let claimed = ServerRoles {
                manager: starts.iter().any(|start| start.kind == store_starts::ROOT),
                meta: *meta,
                storage: !targets.is_empty(),
                agent: false,
            };
            let certified = peer.certified.as_ref();
            peer.role == Role::Server
                && peer.node == *node
                && certified.is_none_or(|known| known.subject.roles().include(claimed))
        }
    };
    permitted(may)
}

/// Checks that a peer asks to put back a target of its own.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_put_back(
    peer: &Peer,
    map: &ZoneMap,
    request: &ManagerRequest,
) -> Result<(), ErrorCode> {
    let (ManagerRequest::PutBack { target } | ManagerRequest::RenewEpochs { target, .. }) = request
    else {
        return Ok(());
    };
    let known = map.target(*target);
    permitted(known.is_none_or(|known| known.node == peer.node))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Arc;
    use zonal_net::{PeerCertificate, Serial, Subject};
    use zonal_types::{Blob, CellId, MapVersion, NodeId, ZoneId};
    use zonal_wire::JoinTarget;

    const CELL: CellId = CellId([3; 16]);

    pub(crate) fn peer(role: Role, node: u32, subject: Option<&str>) -> Peer {
        let certified = subject.map(|subject| {
            let subject = Subject::parse(&format!("zonal://{CELL}/{subject}")).unwrap();
            Arc::new(PeerCertificate {
                subject,
                serial: Serial(1),
            })
        });
        Peer {
            endpoint: zonal_net::Endpoint::Tcp(([127, 0, 0, 1], 1).into()),
            cell: CELL,
            role,
            node: NodeId(node),
            zone: ZoneId(0),
            version: 1,
            features: 0,
            offers_plain: false,
            certified,
        }
    }

    fn join(node: u32, meta: bool, targets: usize) -> ManagerRequest {
        let target = JoinTarget {
            target: zonal_types::TargetId(1),
            uuid: [1; 16],
            capacity: 1,
        };
        ManagerRequest::Join {
            node: NodeId(node),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: "127.0.0.1:1".into(),
            meta,
            meta_zone: ZoneId(0),
            targets: vec![target; targets],
            starts: Vec::new(),
        }
    }

    #[test]
    fn only_a_nodes_own_server_joins_as_it() {
        let storage = peer(Role::Server, 3, Some("server/3?roles=storage"));
        assert_eq!(check_manager(&storage, &join(3, false, 1)), Ok(()));
        let no = Err(ErrorCode::NotPermitted);
        assert_eq!(check_manager(&storage, &join(4, false, 1)), no);
        assert_eq!(check_manager(&storage, &join(3, true, 0)), no);
        assert_eq!(check_manager(&storage, &join(3, true, 1)), no);
        for (role, subject) in [
            (Role::Client, "client/a"),
            (Role::Client, "admin/a"),
            (Role::Tool, "admin/a"),
        ] {
            let other = peer(role, 0, Some(subject));
            assert_eq!(check_manager(&other, &join(3, false, 1)), no);
            assert_eq!(check_manager(&other, &join(0, false, 0)), no);
        }
        // By a Unix socket, or in a cell without keys.
        assert_eq!(
            check_manager(&peer(Role::Server, 3, None), &join(3, true, 1)),
            Ok(())
        );
    }

    #[test]
    fn only_a_node_with_a_target_reports_its_own_load() {
        let report = |node| ManagerRequest::ReportLoad {
            node: NodeId(node),
            cpu_per_mille: 5,
        };
        let may = |role, subject, node| {
            check_manager(&peer(role, 3, Some(subject)), &report(node)).is_ok()
        };
        assert!(may(Role::Server, "server/3?roles=meta,storage", 3));
        assert!(!may(Role::Server, "server/3?roles=storage", 4));
        assert!(!may(Role::Server, "server/3?roles=meta", 3));
        assert!(!may(Role::Client, "client/a", 3));
        assert!(!may(Role::Tool, "admin/a", 3));
    }

    #[test]
    fn only_a_targets_own_server_puts_it_back_and_every_member_has_it_taken_out() {
        let target = zonal_types::TargetId(1);
        let mut map = ZoneMap::new(CELL);
        map.targets.push(zonal_zonemap::Target {
            id: target,
            node: NodeId(3),
            uuid: [1; 16],
            capacity: 1,
            state: zonal_zonemap::TargetState::Serving,
        });
        let back = ManagerRequest::PutBack { target };
        let may = |peer: &Peer, request: &ManagerRequest| {
            let checked = check_manager(peer, request);
            checked.and_then(|()| check_put_back(peer, &map, request))
        };
        let no = Err(ErrorCode::NotPermitted);
        let renewal = ManagerRequest::RenewLease { node: NodeId(3) };
        let out = ManagerRequest::TakeOut { target };
        let own = peer(Role::Server, 3, Some("server/3?roles=storage"));
        assert_eq!(may(&own, &back), Ok(()));
        assert_eq!(may(&own, &renewal), Ok(()));
        for other in [
            peer(Role::Server, 4, Some("server/4?roles=storage")),
            peer(Role::Server, 3, Some("server/3?roles=meta")),
            peer(Role::Client, 3, Some("client/a")),
            peer(Role::Tool, 3, Some("admin/a")),
        ] {
            assert_eq!(may(&other, &back), no);
            assert_eq!(may(&other, &renewal), no);
            assert_eq!(may(&other, &out), Ok(()));
        }
    }

    #[test]
    fn only_commands_edit_the_map_and_revoke_certificates() {
        let edit = ManagerRequest::Edit {
            expected: MapVersion(1),
            edits: Blob(Vec::new()),
        };
        let revoke = ManagerRequest::Revoke { serials: vec![1] };
        let list = ManagerRequest::JoinTokens;
        for request in [edit, revoke, list] {
            let no = Err(ErrorCode::NotPermitted);
            let client = peer(Role::Client, 0, Some("client/a"));
            assert_eq!(check_manager(&client, &request), no);
            let server = peer(Role::Server, 3, Some("server/3?roles=storage"));
            assert_eq!(check_manager(&server, &request), no);
            let admin = peer(Role::Tool, 0, Some("admin/a"));
            assert_eq!(check_manager(&admin, &request), Ok(()));
        }
        let get = ManagerRequest::GetMap {
            have: MapVersion(0),
        };
        let client = peer(Role::Client, 0, Some("client/a"));
        assert_eq!(check_manager(&client, &get), Ok(()));
    }

    #[test]
    fn messages_between_replicas_are_for_servers_with_a_shard_only() {
        let shard = zonal_types::ShardId(1);
        let begin = ReplicaRequest::SnapshotBegin { shard };
        for request in [ReplicaRequest::Exchange { shard }, begin] {
            let may = |role, subject| check_replica(&peer(role, 3, Some(subject)), &request);
            assert_eq!(may(Role::Server, "server/3?roles=meta"), Ok(()));
            let no = Err(ErrorCode::NotPermitted);
            assert_eq!(may(Role::Server, "server/3?roles=storage"), no);
            assert_eq!(may(Role::Client, "client/a"), no);
            assert_eq!(may(Role::Tool, "admin/a"), no);
        }
    }

    fn header(session: u64) -> Header {
        let mut header = Header::request(zonal_wire::Service::Meta, CELL);
        header.session = SessionId(session);
        header
    }

    #[test]
    fn calls_between_shards_are_for_servers_only() {
        use zonal_types::{Ino, Timestamp};
        use zonal_wire::meta::FileUse;
        let ino = Ino(17);
        let server = peer(Role::Server, 3, Some("server/3?roles=meta,storage"));
        let own = [
            MetaRequest::MakeDetachedDir {
                uid: 0,
                gid: 0,
                mode: 0o777,
                default_acl: None,
                token: 1,
            },
            MetaRequest::AttachDir { ino },
            MetaRequest::DetachDir { ino },
            MetaRequest::DropDir { ino },
            MetaRequest::HasEntry { ino },
            MetaRequest::MorePartitions {
                shard: zonal_types::ShardId(1),
            },
            MetaRequest::GivePartition {
                partition: zonal_types::PartitionId(1),
                from: zonal_types::ShardId(1),
                to: zonal_types::ShardId(2),
            },
            MetaRequest::ReportShardLoad {
                shard: zonal_types::ShardId(1),
                inodes: 1,
                requests: 1,
            },
            MetaRequest::SettleDir {
                ino,
                since: Timestamp::default(),
                has_entry: true,
            },
            MetaRequest::HasOpen {
                subject: String::new(),
                data_id: zonal_types::DataId(9),
                for_use: FileUse::Look,
            },
            MetaRequest::FencesOf {
                target: zonal_types::TargetId(1),
                after: zonal_types::ClientId(0),
                holder: zonal_types::HolderNumber(0),
            },
        ];
        for (role, subject) in [(Role::Client, "client/a"), (Role::Tool, "admin/a")] {
            for peer in [peer(role, 0, Some(subject)), peer(role, 0, None)] {
                for request in &own {
                    let no = Err(ErrorCode::NotPermitted);
                    assert_eq!(check_meta(&peer, &header(9), request), no, "{request:?}");
                }
                let data = false;
                let attr = MetaRequest::GetAttr { ino, data };
                let none = Err(ErrorCode::UnknownSession);
                assert_eq!(check_meta(&peer, &header(0), &attr), none);
                assert_eq!(check_meta(&peer, &header(9), &attr), Ok(()));
                assert_eq!(check_meta(&peer, &header(0), &MetaRequest::StatFs), Ok(()));
                let evict = check_meta(&peer, &header(9), &MetaRequest::EvictSession);
                assert_eq!(evict.is_ok(), role == Role::Tool);
            }
        }
        for request in &own {
            assert_eq!(check_meta(&server, &header(0), request), Ok(()));
        }
        assert_eq!(
            check_meta(&server, &header(9), &MetaRequest::EvictSession),
            Ok(())
        );
    }

    #[test]
    fn deletions_are_for_servers_and_server_requests_for_commands() {
        let target = zonal_types::TargetId(1);
        let delete = StorageRequest::Delete {
            target,
            objects: Vec::new(),
        };
        let fence = StorageRequest::Fence {
            target,
            fences: Vec::new(),
        };
        let claimed = AdminRequest::NumberClaimed {
            node: NodeId(1),
            claimed_by: String::new(),
        };
        for role in [Role::Client, Role::Tool, Role::Server] {
            let peer = peer(role, 3, None);
            let is_server = role == Role::Server;
            assert_eq!(check_storage(&peer, &delete).is_ok(), is_server);
            assert_eq!(check_storage(&peer, &fence).is_ok(), is_server);
            assert_eq!(
                check_storage(&peer, &StorageRequest::Sync { target }),
                Ok(())
            );
            assert_eq!(check_admin(role, &claimed).is_ok(), is_server);
            let is_tool = role == Role::Tool;
            assert_eq!(check_admin(role, &AdminRequest::Health).is_ok(), is_tool);
        }
    }

    #[test]
    fn a_storage_server_may_not_act_as_a_shard() {
        let header = Header::request(zonal_wire::Service::Meta, CELL);
        let storage = peer(Role::Server, 3, Some("server/3?roles=storage"));
        let meta = peer(Role::Server, 2, Some("server/2?roles=meta"));
        let root = peer(Role::Server, 1, Some("server/1?roles=manager"));
        let no = Err(ErrorCode::NotPermitted);
        let settle = MetaRequest::StatFs;
        assert_eq!(check_meta(&storage, &header, &settle), no);
        for shard in [&meta, &root] {
            assert_eq!(check_meta(shard, &header, &settle), Ok(()));
        }
        let session = MetaRequest::OpenSession {
            zone: ZoneId(1),
            name: String::new(),
        };
        for server in [&storage, &meta, &root] {
            assert_eq!(check_meta(server, &header, &session), no);
        }
        let target = StorageRequest::StatFs {
            target: zonal_types::TargetId(1),
        };
        assert_eq!(check_storage(&storage, &target), no);
        assert_eq!(check_storage(&meta, &target), Ok(()));
    }
}
