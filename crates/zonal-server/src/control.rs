//! Requests of commands to a running server: health, scrubs, lists of objects, snapshots for
//! backups. Mounts are refused.
//!
//! A snapshot keeps a copy of the store's overlay in memory and pages of its index on disk. So
//! there is one at a time, and a snapshot that is not read expires (a thread that lives as long as
//! the snapshot). Lock order: no other lock is taken under `Control::held`.

use crate::access::check_admin;
use crate::clock;
use crate::meta_role::MetaRole;
use crate::rate_limited_log::RateLimit;
use crate::scrub::ScrubTask;
use crate::shard_service::ShardService;
use crate::storage_role::{Refused, StorageRole};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_disk::View;
use zonal_disk::replica::APPLIED_KEY;
use zonal_net::Role;
use zonal_object::{ObjectId, content_digest, index_walk};
use zonal_types::limits::{OBJECTS_LISTED_MAX, SNAPSHOT_TERM_MS};
use zonal_types::{Blob, ErrorCode, KvRead, NodeId, ShardId, TargetId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{AdminReply, AdminRequest, NodeActivity, ObjectEntry, RoleHealth, ScrubOf};

/// Bytes of keys and values in one reply; the last entry may exceed it.
const ENTRIES_BYTES: usize = 256 << 10;
/// Index records of chunks after which a list of objects with digests ends early: some 50 ms.
const DIGEST_CHUNKS_AT_ONCE: usize = 16_384;
/// End of the keys of a shard or a manager (exclusive).
const END_KEY: [u8; 8] = [0xff; 8];

struct HeldSnapshot {
    id: u64,
    view: Arc<View>,
    used: Instant,
}

/// Answers requests of commands.
pub struct Control {
    /// This node, and its advertised address.
    me: (NodeId, SocketAddr),
    claimed: RateLimit,
    storage: Option<(Arc<StorageRole>, Arc<ScrubTask>)>,
    shard: Option<(ShardService, Option<Arc<ScrubTask>>)>,
    held: Mutex<(Option<HeldSnapshot>, bool)>,
    change: Condvar,
}

impl Control {
    pub(crate) fn new(
        me: (NodeId, SocketAddr),
        storage: Option<(Arc<StorageRole>, Arc<ScrubTask>)>,
        shard: Option<(ShardService, Option<Arc<ScrubTask>>)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            me,
            claimed: RateLimit::default(),
            storage,
            shard,
            held: Mutex::new((None, false)),
            change: Condvar::new(),
        })
    }

    /// Ends the scrub's thread and drops the snapshot.
    pub(crate) fn stop(&self) {
        for scrub in self.scrubs() {
            scrub.stop_thread();
        }
        *self.held() = (None, true);
        self.change.notify_all();
    }

    /// Gauges for `zonal status` and `/metrics`.
    pub(crate) fn gauges(&self) -> Vec<(String, u64)> {
        self.scrubs().flat_map(|scrub| scrub.gauges()).collect()
    }

    fn scrubs(&self) -> impl Iterator<Item = &Arc<ScrubTask>> {
        let target = self.storage.as_ref().map(|(_, scrub)| scrub);
        let shard = self.shard.as_ref().and_then(|(_, scrub)| scrub.as_ref());
        target.into_iter().chain(shard)
    }

    fn held(&self) -> MutexGuard<'_, (Option<HeldSnapshot>, bool)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request.
    pub(crate) fn handle(self: &Arc<Self>, asking: Role, request: &AdminRequest) -> AdminReply {
        let answer = match check_admin(asking, request) {
            Ok(()) => self.answer(request),
            Err(code) => Err(Refused {
                code,
                detail: "for commands, not for mounts".into(),
            }),
        };
        answer.unwrap_or_else(|refused| AdminReply::Failed {
            code: ErrorNumber(refused.code),
            detail: refused.detail,
        })
    }

    fn answer(self: &Arc<Self>, request: &AdminRequest) -> Result<AdminReply, Refused> {
        Ok(match request {
            AdminRequest::Health => AdminReply::Health {
                roles: self.health(),
            },
            AdminRequest::ScrubStart { of, rate, anew } => {
                self.scrub(*of)?.begin(*rate, *anew);
                AdminReply::Done
            }
            AdminRequest::ScrubStop { of } => {
                self.scrub(*of)?.pause();
                AdminReply::Done
            }
            AdminRequest::ScrubStatus { of } => AdminReply::Scrub {
                report: self.scrub(*of)?.report(),
            },
            AdminRequest::ListObjects {
                target,
                after,
                limit,
                digests,
            } => {
                let after = after.map(|(data_id, column)| ObjectId { data_id, column });
                self.objects(*target, (after, *limit), *digests)?
            }
            AdminRequest::SnapshotBegin { shard } => self.begin_snapshot(*shard)?,
            AdminRequest::SnapshotRead { snapshot, after } => {
                let view = self.view(*snapshot)?;
                let (mut entries, end) = read(&view, &after.0)?;
                // The progress of this replica is none of the shard's contents.
                entries.retain(|(key, _)| key.0 != APPLIED_KEY);
                AdminReply::Entries { entries, end }
            }
            AdminRequest::ListSessions {
                shard,
                after,
                limit,
            } => {
                let role = self.shard(*shard)?;
                let (sessions, end) = role.sessions(*after, *limit);
                AdminReply::Sessions { sessions, end }
            }
            AdminRequest::Activity => AdminReply::Activity {
                activity: self.activity(),
            },
            AdminRequest::NumberClaimed { node, claimed_by } => {
                self.tell_claimed(*node, claimed_by);
                AdminReply::Done
            }
            AdminRequest::Heartbeat | AdminRequest::Sightings { .. } => return Err(unwatched()),
            AdminRequest::SnapshotEnd { snapshot } => {
                let mut held = self.held();
                held.0.take_if(|held| held.id == *snapshot);
                drop(held);
                self.change.notify_all();
                AdminReply::Done
            }
        })
    }

    fn objects(
        &self,
        target: TargetId,
        (after, limit): (Option<ObjectId>, u32),
        digests: bool,
    ) -> Result<AdminReply, Refused> {
        let storage = self.target(target)?.0;
        let limit = (limit as usize).min(OBJECTS_LISTED_MAX);
        let (found, mut end) = index_walk::objects(&*storage.engine, after, limit)?;
        let (mut objects, mut chunks) = (Vec::new(), 0);
        for listed in found {
            if chunks >= DIGEST_CHUNKS_AT_ONCE {
                end = false;
                break;
            }
            let mut digest = None;
            if digests {
                let pending = storage.lock().pending_contents(listed.object);
                let read = content_digest(&*storage.engine, listed.object, &pending)?;
                digest = read.0;
                chunks += read.1;
            }
            objects.push(ObjectEntry {
                data_id: listed.object.data_id,
                column: listed.object.column,
                object_bytes: listed.stat.object_bytes,
                allocated: listed.stat.allocated,
                truncate_seq: listed.stat.truncate_seq,
                order: listed.order,
                digest,
            });
        }
        Ok(AdminReply::Objects { objects, end })
    }

    /// Counts of the node's target and shard. The node adds the times of its operations, and its
    /// CPU use.
    fn activity(&self) -> NodeActivity {
        let storage = self.storage.as_ref();
        let clients = storage.map(|(storage, _)| storage.traffic.by_zone(storage.id()));
        let shard = self.shard.as_ref();
        let serving = shard.and_then(|(shard, _)| shard.serving());
        let directories = serving.map(|shard| shard.directory_traffic());
        NodeActivity {
            clients: clients.unwrap_or_default(),
            directories: directories.unwrap_or_default(),
            ..NodeActivity::default()
        }
    }

    /// Logs that another server claims to be this node. This answer alone keeps the number for this
    /// node.
    fn tell_claimed(&self, node: NodeId, claimed_by: &str) {
        let (me, here) = self.me;
        // The text comes from outside: log it only as a parsed address.
        if let Ok(claimed_by) = claimed_by.parse::<SocketAddr>()
            && node == me
            && self.claimed.is_due()
        {
            tracing::warn!(node = me.0, %here, %claimed_by, "another server claims the number of this node");
        }
    }

    fn target(&self, wanted: TargetId) -> Result<(&Arc<StorageRole>, &Arc<ScrubTask>), Refused> {
        match &self.storage {
            Some((storage, scrub)) if storage.id() == wanted => Ok((storage, scrub)),
            _ => Err(Refused {
                code: ErrorCode::WrongTarget,
                detail: format!("target {wanted} is not here"),
            }),
        }
    }

    fn shard(&self, wanted: ShardId) -> Result<Arc<MetaRole>, Refused> {
        let not_here = |detail| Refused {
            code: ErrorCode::NotOwner,
            detail,
        };
        match &self.shard {
            Some((shard, _)) if shard.id() == wanted => shard
                .serving()
                .ok_or_else(|| not_here(format!("another replica of shard {wanted} leads"))),
            _ => Err(not_here(format!("shard {wanted} is not here"))),
        }
    }

    fn shard_scrub(&self, wanted: ShardId) -> Result<&Arc<ScrubTask>, Refused> {
        let here = self
            .shard
            .as_ref()
            .filter(|(shard, _)| shard.id() == wanted);
        let scrub = here.and_then(|(_, scrub)| scrub.as_ref());
        scrub.ok_or_else(|| Refused {
            code: ErrorCode::NotSupported,
            detail: format!("shard {wanted} is not here, or has replicas: these are not scrubbed"),
        })
    }

    fn scrub(&self, of: ScrubOf) -> Result<&Arc<ScrubTask>, Refused> {
        Ok(match of {
            ScrubOf::Target { target } => self.target(target)?.1,
            ScrubOf::Shard { shard } => self.shard_scrub(shard)?,
        })
    }

    fn health(&self) -> Vec<RoleHealth> {
        let mut roles = Vec::new();
        let service = self.shard.as_ref().map(|(service, _)| service);
        if let Some(ShardService::Group(replica)) = service
            && replica.serving().is_none()
        {
            let role = format!("replica of shard {}", replica.shard());
            roles.push(of_role(role, replica.is_healthy(), String::new()));
        }
        if let Some(shard) = service.and_then(ShardService::serving) {
            let (id, _) = shard.identity();
            let trouble = match shard.engine().failure() {
                Some(why) => why.to_owned(),
                None if shard.is_full() => [FULL, &shard.medium_health().text()].join("; "),
                None => shard.medium_health().text(),
            };
            let trouble = trouble.trim_end_matches("; ").to_owned();
            roles.push(of_role(format!("shard {id}"), shard.is_healthy(), trouble));
        }
        if let Some((storage, _)) = &self.storage {
            let role = format!("target {}", storage.id());
            let trouble = match storage.failure() {
                Some(why) => why,
                None => storage.medium_health.text(),
            };
            roles.push(of_role(role, storage.is_healthy(), trouble));
        }
        roles
    }

    fn begin_snapshot(self: &Arc<Self>, wanted: ShardId) -> Result<AdminReply, Refused> {
        let shard = self.shard(wanted)?;
        let busy = || Refused {
            code: ErrorCode::Busy,
            detail: "another command reads a snapshot of this shard".into(),
        };
        // Checked before as well: a snapshot takes memory.
        if self.held().0.is_some() {
            return Err(busy());
        }
        // From now on the shard decides by this map or a newer one. The view has all decisions that
        // went by an older one.
        let map_version = shard.adopt_newest_map();
        let view = Arc::new(shard.engine().view().map_err(Refused::by_host)?);
        let position = view.position().0;
        let id = clock::boot_number();
        {
            let mut held = self.held();
            if held.0.is_some() || held.1 {
                return Err(busy());
            }
            held.0 = Some(HeldSnapshot {
                id,
                view,
                used: Instant::now(),
            });
        }
        let watched = Arc::clone(self);
        let thread = std::thread::Builder::new().name("snapshot".into());
        if let Err(error) = thread.spawn(move || watched.watch(id)) {
            self.held().0 = None;
            return Err(Refused {
                code: ErrorCode::NoMemory,
                detail: error.to_string(),
            });
        }
        let (shard, epoch) = shard.identity();
        Ok(AdminReply::Snapshot {
            snapshot: id,
            shard,
            epoch,
            position,
            map_version,
        })
    }

    /// Drops the snapshot once it was not read for a while.
    fn watch(&self, id: u64) {
        let term = Duration::from_millis(SNAPSHOT_TERM_MS);
        let mut held = self.held();
        while let Some(snapshot) = held.0.as_ref().filter(|held| held.id == id) {
            let left = term.saturating_sub(snapshot.used.elapsed());
            if left.is_zero() {
                tracing::warn!("dropping a snapshot that was not read");
                held.0 = None;
                return;
            }
            let waited = self.change.wait_timeout(held, left);
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn view(&self, id: u64) -> Result<Arc<View>, Refused> {
        let mut held = self.held();
        let found = held.0.as_mut().filter(|held| held.id == id);
        let found = found.ok_or_else(|| Refused {
            code: ErrorCode::NotFound,
            detail: "the snapshot is gone".into(),
        })?;
        found.used = Instant::now();
        Ok(Arc::clone(&found.view))
    }
}

/// The refusal of requests of watches, which the node answers once it has a watch.
fn unwatched() -> Refused {
    Refused {
        code: ErrorCode::NotReady,
        detail: "this node does not watch".into(),
    }
}

/// Status of a shard that refuses new names.
const FULL: &str = "its disk is full: new names are refused until some are removed";

fn of_role(role: String, serves: bool, trouble: String) -> RoleHealth {
    let trouble = if trouble.is_empty() && !serves {
        "its log failed; its server must be started again".to_owned()
    } else {
        trouble
    };
    RoleHealth {
        role,
        serves,
        trouble,
    }
}

type Entries = Vec<(Blob, Blob)>;

pub(crate) fn read(view: &View, after: &[u8]) -> Result<(Entries, bool), ErrorCode> {
    let mut start = after.to_vec();
    if !start.is_empty() {
        start.push(0);
    }
    let (mut entries, mut bytes, mut end) = (Vec::new(), 0, true);
    view.scan(&start, &END_KEY, &mut |key, value| {
        if bytes >= ENTRIES_BYTES {
            end = false;
            return false;
        }
        bytes += key.len() + value.len();
        entries.push((Blob(key.to_vec()), Blob(value.to_vec())));
        true
    })?;
    Ok((entries, end))
}
