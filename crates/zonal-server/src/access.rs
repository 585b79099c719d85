//! Who may ask a server what, by the role and the node that a connection has proved.
//!
//! | request | from |
//! | --- | --- |
//! | `Join`, with the starts of its stores | the server of that node, with the roles that it claims |
//! | `Edit`, `Revoke`; the server's own state | commands |
//! | what shards ask one another | servers |
//! | all else | anybody in the cell |

use zonal_net::{Peer, Role, ServerRoles};
use zonal_types::ErrorCode;
use zonal_wire::ManagerRequest;

/// Whether a peer may ask a manager for this.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_manager(peer: &Peer, request: &ManagerRequest) -> Result<(), ErrorCode> {
    let may = match request {
        ManagerRequest::GetMap { .. }
        | ManagerRequest::Junction { .. }
        | ManagerRequest::GetRevoked { .. } => true,
        ManagerRequest::Edit { .. } | ManagerRequest::Revoke { .. } => peer.role == Role::Tool,
        ManagerRequest::Join {
            node,
            meta,
            targets,
            ..
        } => {
            let claimed = ServerRoles {
                manager: false,
                meta: *meta,
                storage: !targets.is_empty(),
            };
            let certified = peer.certified.as_ref();
            peer.role == Role::Server
                && peer.node == *node
                && certified.is_none_or(|known| known.subject.roles().include(claimed))
        }
    };
    match may {
        true => Ok(()),
        false => Err(ErrorCode::NotPermitted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use zonal_net::{Certified, Serial, Subject};
    use zonal_types::{Blob, CellId, MapVersion, NodeId, ZoneId};
    use zonal_wire::JoinTarget;

    const CELL: CellId = CellId([3; 16]);

    fn peer(role: Role, node: u32, subject: Option<&str>) -> Peer {
        let certified = subject.map(|subject| {
            let subject = Subject::parse(&format!("zonal://{CELL}/{subject}")).unwrap();
            Arc::new(Certified {
                subject,
                serial: Serial(1),
            })
        });
        Peer {
            endpoint: zonal_net::Endpoint::Tcp(([127, 0, 0, 1], 1).into()),
            cell: CELL,
            role,
            node: NodeId(node),
            version: 1,
            features: 0,
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
    fn the_map_and_the_list_of_the_revoked_are_changed_by_commands_alone() {
        let edit = ManagerRequest::Edit {
            expected: MapVersion(1),
            edits: Blob(Vec::new()),
        };
        let revoke = ManagerRequest::Revoke { serials: vec![1] };
        for request in [edit, revoke] {
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
}
