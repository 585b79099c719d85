//! Join tokens: sealed credentials that the manager keeps for new nodes, each for one claim.
//!
//! *Invariants*:
//! 1. A claim is durable before the sealed credential leaves, and erases it. So no second claim
//!    gets it.
//! 2. There are at most [`JOIN_TOKENS_MAX`] tokens.
//! 3. No two tokens that can still be claimed name one node or target.
//! 4. The manager can open no sealed credential.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use zonal_basics::to_hex;
use zonal_disk::{Engine, LogRoom};
use zonal_driver::shard::Durability;
use zonal_net::join_token::proof_hash;
use zonal_net::{ClaimOutcome, TokenClaim};
use zonal_types::describe::Described;
use zonal_types::limits::{JOIN_TOKENS_MAX, SEALED_BYTES_MAX};
use zonal_types::{Blob, Codec, ErrorCode, KvChange, KvRead, TargetId, codec_struct, is_title};
use zonal_wire::{JoinTokenStatus, JoinTokenTerms, ManagerReply};
use zonal_zonemap::ZoneMap;

use super::ManagerError;
use crate::shard_log::ShardLog;

/// Key of a token, behind the junctions; its name follows.
const KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf5];
const KEY_END: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf6];

codec_struct! {
    /// A token in its stored form.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JoinTokenRecord {
        /// Its terms.
        terms: JoinTokenTerms,
        /// Hash of the proof of a claim.
        proof: [u8; 32],
        /// The sealed credential; empty once it was claimed.
        sealed: Blob,
    }
}

/// Why a token is not kept.
#[derive(Debug, thiserror::Error)]
pub enum JoinTokenRefusal {
    /// There are too many.
    #[error(
        "no more than {JOIN_TOKENS_MAX} join tokens are kept. Hint: `zonal token revoke` removes those that nobody needs"
    )]
    Full,
    /// Another node or token has the number.
    #[error("{what} {id} is in the zone map, or another join token names it")]
    Taken {
        /// Node or target.
        what: &'static str,
        /// The number.
        id: u32,
    },
    /// The request cannot be used.
    #[error("the join token cannot be used: {0}")]
    Invalid(&'static str),
}

impl JoinTokenRefusal {
    pub(super) fn code(&self) -> ErrorCode {
        match self {
            Self::Full => ErrorCode::NoSpace,
            Self::Taken { .. } => ErrorCode::Exists,
            Self::Invalid(_) => ErrorCode::Invalid,
        }
    }
}

fn key(id: [u8; 8]) -> Vec<u8> {
    [&KEY[..], &id].concat()
}

/// A token in printable form, without what is sealed; `None` where the key is another one, or the
/// value is damaged.
#[must_use]
pub fn describe(key: &[u8], value: &[u8]) -> Option<Described> {
    let _id = key.strip_prefix(&KEY)?;
    let token = JoinTokenRecord::from_bytes(value).ok()?;
    let terms = token.terms;
    Some(
        Described::new("join token")
            .with("id", to_hex(&terms.id))
            .with("expires", terms.expires)
            .with("node", terms.node.0)
            .with("target", terms.target.0)
            .with("roles", terms.roles)
            .with("is_used", token.sealed.0.is_empty()),
    )
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn status(token: &JoinTokenRecord) -> JoinTokenStatus {
    JoinTokenStatus {
        terms: token.terms.clone(),
        is_used: token.sealed.0.is_empty(),
    }
}

fn is_live(token: &JoinTokenRecord, now: u64) -> bool {
    !token.sealed.0.is_empty() && token.terms.expires > now
}

/// The manager's list.
pub(super) struct JoinTokenList {
    tokens: Mutex<BTreeMap<[u8; 8], JoinTokenRecord>>,
}

impl JoinTokenList {
    /// Loads the list.
    pub(super) fn open(engine: &Engine) -> Result<Self, ManagerError> {
        let (mut tokens, mut damaged) = (BTreeMap::new(), false);
        let scanned = engine.scan(&KEY, &KEY_END, &mut |_key, value| {
            match JoinTokenRecord::from_bytes(value) {
                Ok(token) => drop(tokens.insert(token.terms.id, token)),
                Err(_error) => damaged = true,
            }
            true
        });
        scanned.map_err(ManagerError::Stored)?;
        match damaged {
            true => Err(ManagerError::Stored(ErrorCode::Corrupt)),
            false => Ok(Self {
                tokens: Mutex::new(tokens),
            }),
        }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<[u8; 8], JoinTokenRecord>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn list(&self) -> ManagerReply {
        ManagerReply::JoinTokens {
            tokens: self.locked().values().map(status).collect(),
        }
    }

    /// Keeps a token. The oldest one that is of no use makes room.
    pub(super) fn add(
        &self,
        log: &ShardLog,
        map: &ZoneMap,
        (terms, proof, sealed): (JoinTokenTerms, [u8; 32], Blob),
    ) -> Result<ManagerReply, ManagerError> {
        let now = now();
        if sealed.0.is_empty() || sealed.0.len() > SEALED_BYTES_MAX || !is_title(&terms.roles) {
            return Err(JoinTokenRefusal::Invalid("its length or its roles").into());
        }
        let mut tokens = self.locked();
        check_free(&tokens, map, &terms, now)?;
        let mut changes = Vec::new();
        let mut gone = None;
        if tokens.len() >= JOIN_TOKENS_MAX {
            let useless = tokens.values().filter(|token| !is_live(token, now));
            let oldest = useless.min_by_key(|token| token.terms.expires);
            let id = oldest.ok_or(JoinTokenRefusal::Full)?.terms.id;
            changes.push(KvChange::remove(key(id)));
            gone = Some(id);
        }
        let token = JoinTokenRecord {
            terms,
            proof,
            sealed,
        };
        changes.push(KvChange::put(key(token.terms.id), token.to_bytes()));
        write(log, changes)?;
        if let Some(gone) = gone {
            tokens.remove(&gone);
        }
        let kept = vec![status(&token)];
        tokens.insert(token.terms.id, token);
        Ok(ManagerReply::JoinTokens { tokens: kept })
    }

    pub(super) fn remove(&self, log: &ShardLog, id: [u8; 8]) -> Result<ManagerReply, ManagerError> {
        let mut tokens = self.locked();
        let removed: Vec<JoinTokenStatus> = tokens.get(&id).map(status).into_iter().collect();
        if !removed.is_empty() {
            write(log, vec![KvChange::remove(key(id))])?;
            tokens.remove(&id);
        }
        Ok(ManagerReply::JoinTokens { tokens: removed })
    }

    /// Answers a claim. Only the holder of the token learns whether it was used or has expired.
    pub(super) fn claim(&self, log: &ShardLog, claim: &TokenClaim) -> ClaimOutcome {
        let mut tokens = self.locked();
        let known = tokens.get(&claim.id);
        let Some(known) = known.filter(|token| token.proof == proof_hash(&claim.proof)) else {
            tracing::warn!("a claim with an unknown join token is refused");
            return ClaimOutcome::Unknown;
        };
        if known.sealed.0.is_empty() {
            return ClaimOutcome::Used;
        }
        if known.terms.expires <= now() {
            return ClaimOutcome::Expired;
        }
        let used = JoinTokenRecord {
            sealed: Blob(Vec::new()),
            ..known.clone()
        };
        let sealed = known.sealed.clone();
        let change = KvChange::put(key(claim.id), used.to_bytes());
        if let Err(error) = write(log, vec![change]) {
            tracing::warn!(%error, "a claim of a join token cannot be written");
            return ClaimOutcome::NotReady;
        }
        tracing::info!(node = used.terms.node.0, "a new node claims its credential");
        tokens.insert(claim.id, used);
        ClaimOutcome::Sealed { sealed }
    }
}

/// Checks that the numbers of a new token are free.
fn check_free(
    tokens: &BTreeMap<[u8; 8], JoinTokenRecord>,
    map: &ZoneMap,
    terms: &JoinTokenTerms,
    now: u64,
) -> Result<(), JoinTokenRefusal> {
    let live = || tokens.values().filter(|token| is_live(token, now));
    let (node, target) = (terms.node, terms.target);
    let is_named = live().any(|token| token.terms.node == node);
    if is_named || map.node(node).is_some() || tokens.contains_key(&terms.id) {
        let (what, id) = ("node", node.0);
        return Err(JoinTokenRefusal::Taken { what, id });
    }
    let is_named = live().any(|token| token.terms.target == target);
    if target != TargetId(0) && (is_named || map.target(target).is_some()) {
        let (what, id) = ("target", target.0);
        return Err(JoinTokenRefusal::Taken { what, id });
    }
    Ok(())
}

/// Writes a change durably.
fn write(log: &ShardLog, changes: Vec<KvChange>) -> Result<(), ManagerError> {
    log.append(changes, LogRoom::Normal, Durability::Later)?;
    log.flush_now()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager_tests::manager;
    use zonal_testkit::Scratch;
    use zonal_types::NodeId;
    use zonal_wire::ManagerRequest;

    fn adding(number: u8, expires: u64) -> ManagerRequest {
        ManagerRequest::AddJoinToken {
            terms: JoinTokenTerms {
                id: [number; 8],
                expires,
                node: NodeId(100 + u32::from(number)),
                target: TargetId(100 + u32::from(number)),
                roles: "storage".into(),
            },
            proof: proof_hash(&[number; 32]),
            sealed: Blob(vec![number; 9]),
        }
    }

    fn claim(id: u8, proof: u8) -> TokenClaim {
        TokenClaim {
            id: [id; 8],
            proof: [proof; 32],
        }
    }

    fn is_refused(reply: &ManagerReply) -> bool {
        matches!(reply, ManagerReply::Failed { .. })
    }

    #[test]
    fn a_token_is_claimed_once_with_its_proof_until_its_term_ends_over_restarts() {
        let scratch = Scratch::new("join-tokens");
        let later = now() + 1000;
        {
            let (manager, _cache) = manager(&scratch);
            for (number, expires) in [(1, later), (2, now() - 1), (3, later)] {
                assert!(!is_refused(&manager.handle(adding(number, expires))));
            }
            assert_eq!(manager.claim(&claim(1, 9)), ClaimOutcome::Unknown);
            assert_eq!(manager.claim(&claim(9, 9)), ClaimOutcome::Unknown);
            assert_eq!(manager.claim(&claim(2, 2)), ClaimOutcome::Expired);
            assert_eq!(manager.claim(&claim(2, 1)), ClaimOutcome::Unknown);
            let sealed = Blob(vec![1; 9]);
            assert_eq!(manager.claim(&claim(1, 1)), ClaimOutcome::Sealed { sealed });
            assert_eq!(manager.claim(&claim(1, 1)), ClaimOutcome::Used);
            let id = [3; 8];
            let _ = manager.handle(ManagerRequest::RemoveJoinToken { id });
            assert_eq!(manager.claim(&claim(3, 3)), ClaimOutcome::Unknown);
        }
        let (manager, _cache) = manager(&scratch);
        assert_eq!(manager.claim(&claim(1, 1)), ClaimOutcome::Used);
        assert_eq!(manager.claim(&claim(1, 2)), ClaimOutcome::Unknown);
        assert_eq!(manager.claim(&claim(2, 2)), ClaimOutcome::Expired);
        assert_eq!(manager.claim(&claim(3, 3)), ClaimOutcome::Unknown);
        let list = manager.handle(ManagerRequest::JoinTokens);
        let ManagerReply::JoinTokens { tokens } = list else {
            panic!("{list:?}");
        };
        let used: Vec<bool> = tokens.iter().map(|token| token.is_used).collect();
        assert_eq!(used, [true, false]);
    }

    #[test]
    fn tokens_are_bounded_and_those_of_no_use_make_room() {
        let scratch = Scratch::new("join-tokens-many");
        let (manager, _cache) = manager(&scratch);
        let later = now() + 1000;
        assert!(!is_refused(&manager.handle(adding(0, now() - 1))));
        for number in 1..=255 {
            assert!(!is_refused(&manager.handle(adding(number, later))));
        }
        // The expired one makes room for one more; its number is free again.
        let mut more = adding(0, later);
        if let ManagerRequest::AddJoinToken { terms, .. } = &mut more {
            terms.id = [0xee, 0, 0, 0, 0, 0, 0, 0];
        }
        assert!(!is_refused(&manager.handle(more.clone())));
        assert!(is_refused(&manager.handle(more.clone())));
        if let ManagerRequest::AddJoinToken { terms, .. } = &mut more {
            terms.id[7] = 1;
            terms.node = NodeId(999);
            terms.target = TargetId(999);
        }
        let full = manager.handle(more);
        assert!(format!("{full:?}").contains("256 join tokens"), "{full:?}");
    }
}
