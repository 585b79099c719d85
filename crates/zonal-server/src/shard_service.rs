//! The shard of a node, as its requests find it: alone, or as a replica that may lead.

use crate::meta_role::{MetaRole, ReplyFuture};
use crate::replica_role::ReplicaRole;
use std::sync::Arc;
use zonal_types::{ErrorCode, Holder, ShardId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{Header, MetaReply, MetaRequest};

/// The shard of a node.
#[derive(Clone)]
pub enum ShardService {
    /// It has no other replicas.
    Alone(Arc<MetaRole>),
    /// A replica of it is here.
    Group(Arc<ReplicaRole>),
}

impl ShardService {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> ShardId {
        match self {
            Self::Alone(role) => role.identity().0,
            Self::Group(replica) => replica.shard(),
        }
    }

    /// The shard, where it serves here.
    #[must_use]
    pub fn serving(&self) -> Option<Arc<MetaRole>> {
        match self {
            Self::Alone(role) => Some(Arc::clone(role)),
            Self::Group(replica) => replica.serving(),
        }
    }

    /// The replica, where the shard has others.
    #[must_use]
    pub(crate) fn replica(&self) -> Option<&Arc<ReplicaRole>> {
        match self {
            Self::Alone(_) => None,
            Self::Group(replica) => Some(replica),
        }
    }

    /// True where it works with its store.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        match self {
            Self::Alone(role) => role.is_healthy(),
            Self::Group(replica) => replica.is_healthy(),
        }
    }

    /// Begins to answer a request.
    pub(crate) fn answer(
        &self,
        header: &Header,
        from: Option<Arc<Holder>>,
        request: MetaRequest,
    ) -> ReplyFuture {
        let replica = match self {
            Self::Alone(role) => return role.answer(header, from, request),
            Self::Group(replica) => replica,
        };
        let Some(role) = replica.serving() else {
            return Box::pin(std::future::ready(replica.not_leader()));
        };
        let replica = Arc::clone(replica);
        let answer = role.answer(header, from, request);
        Box::pin(async move {
            match answer.await {
                // The reign has ended meanwhile: another replica decides what became of it.
                MetaReply::Failed { code } if is_of_reign(code) && !replica.serves(&role) => {
                    replica.not_leader()
                }
                reply => reply,
            }
        })
    }

    /// Ends waits and background threads.
    pub(crate) fn stop(&self) {
        match self {
            Self::Alone(role) => role.stop(),
            Self::Group(replica) => replica.stop(),
        }
    }
}

/// Errors that a shard gives whose reign has ended.
fn is_of_reign(code: ErrorNumber) -> bool {
    matches!(
        code.0,
        ErrorCode::NotOwner | ErrorCode::NotReady | ErrorCode::Io | ErrorCode::Overloaded
    )
}
