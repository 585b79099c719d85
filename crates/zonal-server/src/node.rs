//! A node: hands each request to its role, measures it, and logs slow ones.

use crate::access::check_admin;
use crate::access::{check_manager, check_meta, check_put_back, check_replica, check_storage};
use crate::agent_role::{AgentRole, ParkedPoll};
use crate::control::Control;
use crate::cpu_use::CpuUse;
use crate::grants::{Grants, as_asked_by, as_seen_by};
use crate::manager_link::ManagerService;
use crate::map_cache::MapCache;
use crate::meta_role::ReplyFuture;
use crate::metrics::Metrics;
use crate::node_watch::NodeWatch;
use crate::peers::as_part_of;
use crate::pending_reply;
use crate::replica_role::ReplicaRole;
use crate::shard_service::ShardService;
use crate::storage_role::StorageRole;
use crate::subjects::Subjects;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};
use zonal_net::{ClaimOutcome, Handler, Peer, ReplyBuilder, Role, TokenClaim};
use zonal_types::{Codec, ErrorCode, HolderNumber, NodeId, ZoneId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{
    AdminReply, AdminRequest, AgentReply, AgentRequest, Header, ManagerReply, ManagerRequest,
    MetaReply, MetaRequest, ReplicaReply, ReplicaRequest, Service, StorageReply, StorageRequest,
};

/// The roles of a node behind one listener.
pub struct ServerNode {
    /// Metrics of operations.
    pub metrics: Arc<Metrics>,
    /// The map cache.
    pub map: Arc<MapCache>,
    /// The manager role.
    pub manager: Option<ManagerService>,
    /// The root's shard or a zone's.
    pub shard: Option<ShardService>,
    /// The storage role.
    pub storage: Option<Arc<StorageRole>>,
    /// The agent role.
    pub agent: Option<Arc<AgentRole>>,
    /// Answers requests of commands.
    pub control: Arc<Control>,
    /// The node's watch over its neighbours.
    pub(crate) watch: OnceLock<Arc<NodeWatch>>,
    /// CPU use of the machine.
    pub(crate) cpu: Arc<CpuUse>,
    /// Files that clients with a scope have open.
    pub(crate) grants: Grants,
    /// Proved identities of peers.
    pub(crate) subjects: Subjects,
    /// Requests that take longer are logged.
    pub slow: Duration,
    /// The node has joined: it has all its roles.
    pub(crate) is_whole: bool,
}

/// A finished request, for metrics and logs.
struct FinishedRequest {
    tag: u8,
    name: &'static str,
    failed: Option<ErrorCode>,
    /// The request is a long poll, so its duration means nothing.
    waits: bool,
}

impl FinishedRequest {
    /// A request that was not a long poll.
    fn at_once(tag: u8, name: &'static str, failed: Option<ErrorCode>) -> Self {
        Self {
            tag,
            name,
            failed,
            waits: false,
        }
    }
}

/// A request to the shard that is not yet answered.
struct PendingRequest {
    start: Instant,
    tag: u8,
    name: &'static str,
    waits: bool,
    /// Of a shard with replicas, where it waits for a commit in most cases.
    replica: Option<Arc<ReplicaRole>>,
    /// Name of the client that opens a session.
    client: Option<String>,
    answer: ReplyFuture,
}

impl ServerNode {
    /// True where every role serves.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.storage.as_ref().is_none_or(|role| role.is_healthy())
            && self.shard.as_ref().is_none_or(|role| role.is_healthy())
    }

    /// Ends waits, so that connections and background threads can end.
    pub fn stopping_roles(&self) {
        self.control.stop();
        if let Some(agent) = &self.agent {
            agent.stop();
        }
        if let Some(shard) = &self.shard {
            shard.stop();
        }
    }

    /// Answers the requests of nodes that watch one another.
    fn watched(
        &self,
        (peer, header): (&Peer, &Header),
        request: &AdminRequest,
    ) -> Option<AdminReply> {
        check_admin(peer.role, request).ok()?;
        if let (AdminRequest::Heartbeat, Some(watch)) = (request, self.watch.get()) {
            watch.hear_of_map(header.map_version);
        }
        match (request, self.watch.get()) {
            (AdminRequest::Heartbeat, _) => Some(AdminReply::Heartbeat {
                serves: self.is_healthy(),
            }),
            (AdminRequest::Sightings { zone, sightings }, Some(watch)) => {
                Some(watch.take_sightings((peer.node, *zone), sightings))
            }
            _ => None,
        }
    }

    fn admin(
        &self,
        (peer, header): (&Peer, &Header),
        body: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Option<FinishedRequest> {
        let request = AdminRequest::from_bytes(body).ok()?;
        let watched = self.watched((peer, header), &request);
        let mut answer = watched.unwrap_or_else(|| self.control.handle(peer.role, &request));
        if let AdminReply::Activity { activity } = &mut answer {
            activity.operations = self.metrics.operation_times();
            activity.cpu_per_mille = self.cpu.per_mille();
        }
        reply.message(&answer);
        let failed = match answer {
            AdminReply::Failed { code, .. } => Some(code.0),
            _ => None,
        };
        Some(FinishedRequest::at_once(
            request.tag(),
            request.name(),
            failed,
        ))
    }

    /// Answers a request to the agent; the inner result is `None` where it is parked.
    #[expect(clippy::option_option, reason = "not decoded, parked, done")]
    fn agent(
        &self,
        peer: &Peer,
        body: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Option<Option<FinishedRequest>> {
        let parked: Option<Box<ParkedPoll>> =
            reply.take_kept().and_then(|kept| kept.downcast().ok());
        let request = AgentRequest::from_bytes(body).ok()?;
        let (tag, name) = (request.tag(), request.name());
        let waits = matches!(request, AgentRequest::Poll { .. });
        let answer = match (&self.agent, parked) {
            (Some(agent), Some(parked)) => agent.poll(*parked, true, reply),
            (Some(agent), None) => agent.answer(peer, request, reply),
            (None, _) => Some(AgentReply::Failed {
                code: ErrorNumber(self.lacks_role()),
                detail: "no agent here".into(),
            }),
        };
        let Some(answer) = answer else {
            return Some(None);
        };
        reply.message(&answer);
        let failed = match answer {
            AgentReply::Failed { code, .. } => Some(code.0),
            _ => None,
        };
        Some(Some(FinishedRequest {
            tag,
            name,
            failed,
            waits,
        }))
    }

    fn manager(
        &self,
        peer: &Peer,
        body: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Option<FinishedRequest> {
        let request = ManagerRequest::from_bytes(body).ok()?;
        let (tag, name) = (request.tag(), request.name());
        let answer = match &self.manager {
            Some(_) if let Err(code) = self.check_manager(peer, &request) => {
                tracing::warn!(peer = %peer.endpoint, role = ?peer.role, node = peer.node.0, request = name, "refused: not for this peer");
                ManagerReply::Failed {
                    code: ErrorNumber(code),
                    detail: "not for this role or node".into(),
                }
            }
            Some(manager) => as_seen_by(peer, manager.handle(peer, as_asked_by(peer, request))),
            None => ManagerReply::Failed {
                code: ErrorNumber(ErrorCode::WrongTarget),
                detail: "no manager here".into(),
            },
        };
        reply.message(&answer);
        let failed = match answer {
            ManagerReply::Failed { code, .. } => Some(code.0),
            _ => None,
        };
        Some(FinishedRequest::at_once(tag, name, failed))
    }

    fn check_manager(&self, peer: &Peer, request: &ManagerRequest) -> Result<(), ErrorCode> {
        check_manager(peer, request)?;
        check_put_back(peer, &self.map.current(), request)
    }

    /// Answers a request to the shard's replica.
    fn replica(
        &self,
        (peer, header): (&Peer, &Header),
        body: &[u8],
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Option<FinishedRequest> {
        let request = ReplicaRequest::from_bytes(body).ok()?;
        let shard = request.shard();
        let here = self.shard.as_ref().and_then(ShardService::replica);
        let answer = match here.filter(|replica| replica.shard() == shard) {
            _ if let Err(code) = check_replica(peer, &request) => ReplicaReply::Failed {
                code: ErrorNumber(code),
                detail: "not for this role".into(),
            },
            Some(replica) => replica.handle((peer, header), &request, payload, reply),
            None => ReplicaReply::Failed {
                code: ErrorNumber(ErrorCode::NotOwner),
                detail: format!("no replica of shard {shard} is here"),
            },
        };
        reply.message(&answer);
        let failed = match answer {
            ReplicaReply::Failed { code, .. } => Some(code.0),
            _ => None,
        };
        Some(FinishedRequest::at_once(
            request.tag(),
            request.name(),
            failed,
        ))
    }

    /// Begins a request to the shard.
    fn meta(&self, peer: &Peer, header: &Header, body: &[u8]) -> Option<PendingRequest> {
        let request = MetaRequest::from_bytes(body).ok()?;
        let (tag, name) = (request.tag(), request.name());
        let waits = matches!(request, MetaRequest::PollEvents { .. });
        let here = self.shard.as_ref().and_then(ShardService::replica);
        let replica = here.filter(|_| !waits).cloned();
        let client = match &request {
            MetaRequest::OpenSession { name, .. } => Some(name.clone()),
            _ => None,
        };
        let refuse = |code| -> ReplyFuture {
            let code = ErrorNumber(code);
            Box::pin(std::future::ready(MetaReply::Failed { code }))
        };
        let answer = match &self.shard {
            Some(_) if let Err(code) = check_meta(peer, header, &request) => refuse(code),
            Some(shard) => shard.answer(header, self.subjects.holder(peer), request),
            None => refuse(ErrorCode::NotOwner),
        };
        Some(PendingRequest {
            start: Instant::now(),
            tag,
            name,
            waits,
            replica,
            client,
            answer,
        })
    }

    /// Continues a request to the shard; `None` where it is parked.
    fn go_on(
        mut begun: Box<PendingRequest>,
        was_parked: bool,
        (peer, header): (&Peer, &Header),
        reply: &mut ReplyBuilder,
    ) -> Option<(Instant, FinishedRequest)> {
        let polled = match begun.replica.as_ref().filter(|_| !was_parked) {
            Some(replica) => {
                let calls = replica.begin_calls();
                pending_reply::poll_briefly(&mut begun.answer, reply, calls)
            }
            None => pending_reply::poll(&mut begun.answer, reply),
        };
        let answer = match polled {
            Poll::Ready(answer) => answer,
            // The peer's end has resumed the request. Dropping it leaves nothing behind.
            Poll::Pending if was_parked && reply.is_peer_gone() => {
                reply.close_after();
                return None;
            }
            Poll::Pending => {
                reply.park(begun);
                return None;
            }
        };
        if let Some(name) = &begun.client
            && let MetaReply::Session {
                session, resumed, ..
            } = &answer
        {
            let client = format_args!("{:016x}", header.identity.client.0);
            let incarnation = header.identity.incarnation.0;
            tracing::info!(%client, incarnation, name, peer = %peer.endpoint, session = session.0, resumed, "a session is opened");
        }
        reply.message(&answer);
        let done = FinishedRequest {
            tag: begun.tag,
            name: begun.name,
            failed: match answer {
                MetaReply::Failed { code } => Some(code.0),
                MetaReply::StaleShard { .. } => Some(ErrorCode::StaleEpoch),
                MetaReply::NotLeader { .. } => Some(ErrorCode::NotOwner),
                _ => None,
            },
            waits: begun.waits,
        };
        Some((begun.start, done))
    }

    /// The error for requests to a role that is not here, or not yet.
    fn lacks_role(&self) -> ErrorCode {
        match self.is_whole {
            true => ErrorCode::WrongTarget,
            false => ErrorCode::NotReady,
        }
    }

    /// The zone of a node; 0 where the map does not have it.
    fn zone_of(&self, node: NodeId) -> ZoneId {
        let map = self.map.current();
        map.node(node).map(|node| node.zone).unwrap_or_default()
    }

    fn storage(
        &self,
        peer: &Peer,
        header: &Header,
        body: &[u8],
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Option<FinishedRequest> {
        let request = StorageRequest::from_bytes(body).ok()?;
        let failed = match &self.storage {
            Some(_) if let Err(code) = check_storage(peer, &request) => {
                reply.message(&StorageReply::Failed {
                    code: ErrorNumber(code),
                    detail: "not for this peer".into(),
                });
                Some(code)
            }
            Some(_) if let Err(refused) = self.grants.check(peer, &request, payload.len()) => {
                reply.message(&StorageReply::Failed {
                    code: ErrorNumber(refused.code),
                    detail: refused.detail,
                });
                Some(refused.code)
            }
            Some(storage) => {
                let holder = self.subjects.holder(peer);
                let subject = holder.as_ref().map(|holder| holder.subject.as_str());
                let holder = HolderNumber::of(subject);
                let from = (header, holder);
                let outcome = storage.handle(from, &request, payload, reply);
                if outcome.is_ok() {
                    let moved = (payload.len(), reply.payload_bytes());
                    let zone = match peer.role {
                        Role::Server => self.zone_of(peer.node),
                        Role::Client | Role::Tool => peer.zone,
                    };
                    storage.traffic.count(zone, &request, moved);
                }
                outcome.err()
            }
            None => {
                let code = self.lacks_role();
                reply.message(&StorageReply::Failed {
                    code: ErrorNumber(code),
                    detail: "no target here".into(),
                });
                Some(code)
            }
        };
        Some(FinishedRequest::at_once(
            request.tag(),
            request.name(),
            failed,
        ))
    }
}

/// A message that cannot be decoded ends its connection; the sender gets the reason.
fn refuse(peer: &Peer, header: &Header, reply: &mut ReplyBuilder) {
    tracing::warn!(peer = %peer.endpoint, service = ?header.service, trace = format_args!("{:016x}", header.trace.0), "cannot decode a message");
    let code = ErrorNumber(ErrorCode::Protocol);
    let detail = "the message cannot be decoded".to_owned();
    match header.service {
        Service::Meta => reply.message(&MetaReply::Failed { code }),
        Service::Storage => reply.message(&StorageReply::Failed { code, detail }),
        Service::Admin => reply.message(&AdminReply::Failed { code, detail }),
        Service::Agent => reply.message(&AgentReply::Failed { code, detail }),
        Service::Replica => reply.message(&ReplicaReply::Failed { code, detail }),
        Service::Manager | Service::Connection => {
            reply.message(&ManagerReply::Failed { code, detail });
        }
    }
    reply.close_after();
}

impl Handler for ServerNode {
    fn claim(&self, claim: &TokenClaim) -> ClaimOutcome {
        let manager = self.manager.as_ref();
        manager.map_or(ClaimOutcome::Unknown, |manager| manager.claim(claim))
    }

    fn handle(
        &self,
        peer: &Peer,
        header: &Header,
        body: &[u8],
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) {
        let start = Instant::now();
        let served = as_part_of(header.trace, || {
            let done = match header.service {
                Service::Manager => self.manager(peer, body, reply),
                Service::Storage => self.storage(peer, header, body, payload, reply),
                Service::Admin => self.admin((peer, header), body, reply),
                Service::Connection => None,
                Service::Replica => self.replica((peer, header), body, payload, reply),
                Service::Agent => {
                    return self
                        .agent(peer, body, reply)
                        .map(|done| done.map(|done| (start, done)));
                }
                Service::Meta => {
                    let kept = reply.take_kept();
                    let was_parked = kept.is_some();
                    let begun = match kept {
                        Some(kept) => kept.downcast().ok(),
                        None => self.meta(peer, header, body).map(Box::new),
                    };
                    let go_on = |begun| Self::go_on(begun, was_parked, (peer, header), reply);
                    return begun.map(go_on);
                }
            };
            done.map(|done| Some((start, done)))
        });
        reply.header.map_version = self.map.current().version;
        let Some(answered) = served else {
            refuse(peer, header, reply);
            return;
        };
        let Some((start, done)) = answered else {
            return;
        };
        let took = start.elapsed();
        self.metrics.record(
            header.service,
            done.tag,
            done.name,
            took,
            done.failed.is_some(),
        );
        if took >= self.slow && !done.waits {
            tracing::warn!(
                trace = format_args!("{:016x}", header.trace.0),
                operation = done.name,
                service = ?header.service,
                ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                session = header.session.0,
                peer = %peer.endpoint,
                failed = done.failed.map(ErrorCode::text),
                "slow operation"
            );
        }
    }

    fn stopping(&self) {
        self.stopping_roles();
    }
}
