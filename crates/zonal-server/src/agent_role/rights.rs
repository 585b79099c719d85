//! Rights: the askers that may run a command on this node, and their users.
//!
//! | asker | may run |
//! | --- | --- |
//! | without a credential, but by the Unix socket of a server of its own user | as any user |
//! | an admin, or a client whose credential covers all | as any user |
//! | a client whose credential is for a range of users | as one of them |
//! | a client whose credential has a path, or is for reading only | nothing: a command sees all |
//! | a server, or a process without a credential | nothing |
//!
//! "Any user" means one from `user_min` of node.toml on. The rule holds for groups, too: lower ones
//! are left out, as membership in a group of the system can be as much as root. A credential for a
//! range of users gets none below 1000 whatever `user_min` says: its holder chooses the groups that
//! it names. An agent that is not root runs commands of its own user only, with the groups of its
//! own process.

use zonal_net::{Peer, Role};
use zonal_types::limits::AGENT_USER_MIN_DEFAULT;
use zonal_types::{Credentials, ErrorCode, Scope};

/// A refusal with its reason.
pub(super) type RightsRefusal = (ErrorCode, String);

fn refuse<T>(reason: impl Into<String>) -> Result<T, RightsRefusal> {
    Err((ErrorCode::NotPermitted, reason.into()))
}

/// Checks that a peer may ask this agent for anything.
pub(super) fn check_peer(peer: &Peer) -> Result<(), RightsRefusal> {
    if peer.role == Role::Server {
        return refuse("servers run no commands");
    }
    if peer.certified.is_none() && !peer.endpoint.is_unix() {
        return refuse("an agent serves holders of the cell's credentials only");
    }
    let Some(scope) = peer.scope() else {
        return Ok(());
    };
    if !scope.path.is_empty() || scope.is_read_only {
        return refuse("a credential for a path or for reading only runs no commands");
    }
    Ok(())
}

/// The user as whom a command runs, after all checks. `own`: this process's user id.
pub(super) fn user(
    asked: &Credentials,
    scope: Option<&Scope>,
    (own, mut user_min): (u32, u32),
) -> Result<Credentials, RightsRefusal> {
    let uid = asked.uid;
    if scope.is_some_and(|scope| scope.uids.is_some()) {
        user_min = user_min.max(AGENT_USER_MIN_DEFAULT);
    }
    if let Some(scope) = scope {
        if scope.squashes_root && uid == 0 {
            return refuse("the credential does not run commands as root");
        }
        if let Some((first, last)) = scope.uids
            && !(first..=last).contains(&uid)
        {
            return refuse(format!("the credential is for user ids {first} to {last}"));
        }
    }
    if uid < user_min || asked.gid < user_min {
        return refuse(format!(
            "user {uid} with group {} is below {user_min}, the first that this agent serves",
            asked.gid
        ));
    }
    if own != 0 && uid != own {
        return refuse(format!("this agent is not root: it serves user {own} only"));
    }
    let groups = asked.groups.iter().copied();
    Ok(Credentials {
        groups: groups.filter(|group| *group >= user_min).collect(),
        ..*asked
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::peer;

    fn asked(uid: u32) -> Credentials {
        Credentials {
            uid,
            gid: 1000,
            groups: vec![4, 1000, 2000],
        }
    }

    #[test]
    fn a_credential_is_needed_and_its_scope_holds() {
        for (subject, may) in [
            (None, false),
            (Some("admin/a"), true),
            (Some("client/a"), true),
            (Some("client/a?uids=1000-1999"), true),
            (Some("client/a?read-only"), false),
            (Some("client/a?path=/a"), false),
        ] {
            let asker = peer(Role::Client, 0, subject);
            assert_eq!(check_peer(&asker).is_ok(), may, "{subject:?}");
        }
        let server = peer(Role::Server, 3, Some("server/3?roles=storage"));
        assert!(check_peer(&server).is_err());
        let mut local = peer(Role::Tool, 0, None);
        local.endpoint = zonal_net::Endpoint::Local { uid: 0, pid: 1 };
        assert!(check_peer(&local).is_ok());
    }

    #[test]
    fn users_are_those_of_the_scope_and_of_the_agent() {
        let scope = Scope {
            uids: Some((1000, 1999)),
            squashes_root: true,
            ..Scope::default()
        };
        assert!(user(&asked(1500), Some(&scope), (0, 1000)).is_ok());
        assert!(user(&asked(2000), Some(&scope), (0, 1000)).is_err());
        assert!(user(&asked(2000), None, (0, 1000)).is_ok());
        assert!(user(&asked(999), None, (0, 1000)).is_err());
        assert!(user(&asked(0), None, (0, 1000)).is_err());
        assert!(user(&asked(0), None, (0, 0)).is_ok());
        let squashed = Scope {
            squashes_root: true,
            ..Scope::default()
        };
        assert!(user(&asked(0), Some(&squashed), (0, 0)).is_err());
        assert!(user(&asked(1500), None, (1500, 1000)).is_ok());
        assert!(user(&asked(1501), None, (1500, 1000)).is_err());
        let low = Credentials {
            gid: 6,
            ..asked(1500)
        };
        assert!(user(&low, None, (0, 1000)).is_err());
    }

    #[test]
    fn a_range_of_users_never_gets_users_or_groups_of_the_system() {
        let scope = Scope {
            uids: Some((0, 1999)),
            ..Scope::default()
        };
        let found = user(&asked(1500), Some(&scope), (0, 0)).unwrap();
        assert_eq!(found.groups, [1000, 2000]);
        for (uid, gid) in [(1500, 0), (1500, 6), (0, 1000), (999, 1000)] {
            let low = Credentials { gid, ..asked(uid) };
            assert!(user(&low, Some(&scope), (0, 0)).is_err(), "{uid} {gid}");
        }
        // Another scope, and none, may what `user_min` says.
        assert!(user(&asked(0), Some(&Scope::default()), (0, 0)).is_ok());
    }

    #[test]
    fn groups_of_the_system_are_left_out() {
        let found = user(&asked(1500), None, (0, 1000)).unwrap();
        assert_eq!(found.groups, [1000, 2000]);
        assert_eq!(user(&asked(0), None, (0, 0)).unwrap(), asked(0));
    }
}
