//! The meta role: a [`ShardDriver`] on a store, with the threads of the shard's own work.
//!
//! A request runs on the thread that received it. One that waits is a future without a thread,
//! which the connection keeps ([`crate::pending_reply`]). Threads: housekeeping, deletions, fences,
//! load reports, deferred calls, timers. All but the reports sleep until there is work.

mod host;
mod lost_clients;
mod store_failures;
#[cfg(test)]
mod tests;

use crate::clock;
use crate::manager_role::ManagerRole;
use crate::map_cache::MapCache;
use crate::medium_health::MediumHealth;
use crate::peers::Peers;
use crate::shard_log::ShardLog;
use crate::timers::block_on;
pub use host::MetaHost;
use lost_clients::LostClients;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use store_failures::StoreFailures;
use zonal_disk::Engine;
use zonal_driver::{ShardDriver, ShardPace, ShardParts};
use zonal_meta::{LostClient, ShardConfig};
use zonal_net::Subject;
use zonal_types::{Epoch, ErrorCode, Holder, Ino, MapVersion, SessionId, ShardId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{ClientTraffic, DirectoryTraffic, Header, MetaReply, MetaRequest, SessionEntry};

/// The future of a reply.
pub(crate) type ReplyFuture = Pin<Box<dyn Future<Output = MetaReply> + Send>>;

/// The shard of a node.
pub struct MetaRole {
    driver: ShardDriver<MetaHost>,
}

/// Parts of the role, for [`MetaRole::open`].
pub struct MetaRoleParts {
    /// The shard's config.
    pub config: ShardConfig,
    /// Its log, with its store.
    pub log: ShardLog,
    /// The manager beside it (the root shard's only).
    pub manager: Option<Arc<ManagerRole>>,
    /// The map cache.
    pub map: Arc<MapCache>,
    /// Calls to other servers.
    pub peers: Arc<Peers>,
}

impl MetaRole {
    /// Loads the shard; an empty store becomes this shard's.
    ///
    /// # Errors
    /// Where the store cannot be read, is damaged, or is another shard's. `NotReady` where the
    /// newest map cannot be fetched, and the known one is from before a move from or to the shard.
    pub fn open(parts: MetaRoleParts, is_new: bool) -> Result<Self, ErrorCode> {
        Self::open_at(parts, is_new, ShardPace::SERVER)
    }

    fn open_at(parts: MetaRoleParts, is_new: bool, pace: ShardPace) -> Result<Self, ErrorCode> {
        let since = zonal_meta::ownership_version(&**parts.log.engine())?;
        parts.map.at_least(since);
        let host = MetaHost {
            id: parts.config.shard,
            hash_bits: parts.config.hash_bits,
            log: parts.log,
            manager: parts.manager,
            map: parts.map,
            peers: parts.peers,
            timers: Arc::default(),
            later: Default::default(),
            permits: Default::default(),
            failed: AtomicBool::new(false),
            medium_health: MediumHealth::default(),
            store_failed: StoreFailures::default(),
            lost: LostClients::default(),
        };
        let driver = ShardDriver::open(ShardParts {
            config: parts.config,
            host,
            is_new,
            pace,
        })?;
        Ok(Self { driver })
    }

    /// Starts the threads of the shard's own work. Where one panics, the shard serves no longer: a
    /// group goes on with another replica.
    ///
    /// # Errors
    /// Where the system refuses a thread.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<Vec<JoinHandle<()>>> {
        let spawn = |name: &str, run: fn(&Self)| {
            let role = Arc::clone(self);
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(move || {
                let _guard = PanicGuard(role.host());
                run(&role);
            })
        };
        Ok(vec![
            spawn("housekeeping", |role| {
                block_on(role.driver.run_housekeeping());
            })?,
            spawn("deletions", |role| block_on(role.driver.push_deletions()))?,
            spawn("fences", |role| block_on(role.driver.push_fences()))?,
            spawn("load-reports", |role| {
                // The root's shard has no first-level directory.
                if role.identity().0 != ShardId(0) {
                    block_on(role.driver.report_loads());
                }
            })?,
            spawn("departures", |role| {
                // The root's partition never moves.
                if role.identity().0 != ShardId(0) {
                    block_on(role.driver.run_moves());
                }
            })?,
            spawn("later-calls", |role| {
                let host = role.host();
                host.later.run(&host.peers, &host.map);
            })?,
            self.host().timers.start()?,
        ])
    }

    fn host(&self) -> &MetaHost {
        self.driver.host()
    }

    /// Its store.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.host().log.engine()
    }

    /// Health of its store's medium.
    pub(crate) fn medium_health(&self) -> &MediumHealth {
        &self.host().medium_health
    }

    /// Begins to answer a request.
    pub(crate) fn answer(
        self: &Arc<Self>,
        header: &Header,
        from: Option<Arc<Holder>>,
        request: MetaRequest,
    ) -> ReplyFuture {
        let (role, header) = (Arc::clone(self), *header);
        Box::pin(async move { role.serve(&header, from.as_ref(), &request).await })
    }

    async fn serve(
        &self,
        header: &Header,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
    ) -> MetaReply {
        let root = &self.host().peers.root;
        if let Some(reply) = root.answer(from.map(Arc::as_ref), request) {
            return reply;
        }
        let mut reply = match request {
            MetaRequest::HasOpen {
                subject,
                data_id,
                for_use,
            } => {
                let place = match holder_of(subject) {
                    Ok(of) => self.driver.may_use(&of, *data_id, *for_use).await,
                    Err(code) => Err(code),
                };
                place.map_or_else(failure, |place| MetaReply::MayUse { place })
            }
            _ => self.driver.serve(header, from, request).await,
        };
        match &mut reply {
            MetaReply::StatFs { names_left, .. } => *names_left = self.host().names_left(),
            MetaReply::Failed { code } => self.note_failure(request, code.0),
            _ => {}
        }
        reply
    }

    /// Up to `limit` sessions after `after`; the flag is true where none follows.
    pub(crate) fn sessions(&self, after: SessionId, limit: u32) -> (Vec<SessionEntry>, bool) {
        let now = clock::instant();
        self.driver
            .with_shard(|shard| shard.sessions(after, limit, now))
    }

    /// Takes the clients whose sessions have expired since the last call.
    pub(crate) fn take_lost_clients(&self) -> Vec<LostClient> {
        self.host().lost.take()
    }

    /// Bytes that clients reported, by first-level directory.
    pub(crate) fn directory_traffic(&self) -> Vec<DirectoryTraffic> {
        self.driver.with_shard(|shard| shard.directory_traffic())
    }

    /// The shard's id and epoch.
    pub(crate) fn identity(&self) -> (ShardId, Epoch) {
        self.driver.identity()
    }

    /// True where it serves.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.host().is_healthy()
    }

    /// True where it refuses new names, for want of space.
    pub(crate) fn is_full(&self) -> bool {
        self.host().is_full()
    }

    /// Fetches the manager's map, which the shard uses from now on; returns its version.
    pub(crate) fn adopt_newest_map(&self) -> MapVersion {
        block_on(self.driver.adopt_newest_map())
    }

    /// Gauges for `zonal status` and `/metrics`.
    #[must_use]
    pub fn gauges(&self) -> Vec<(String, u64)> {
        let host = self.host();
        let own = self.driver.with_shard(|shard| shard.gauges());
        let stats = host.engine().stats();
        let overlay = host.engine().overlay_memory();
        let named = |name: &str| format!("shard_{name}{{shard=\"{}\"}}", host.id);
        let mut gauges: Vec<(String, u64)> = own
            .into_iter()
            .map(|(name, value)| (named(name), value))
            .collect();
        gauges.extend([
            (named("log_used_bytes"), stats.log_used),
            (named("log_used_bytes_max"), stats.log_capacity),
            (named("overlay_bytes"), overlay.0),
            (named("overlay_bytes_max"), overlay.1),
            (
                named("index_cache_bytes_max"),
                host.engine().index_cache_bytes(),
            ),
            (named("checkpoints_total"), stats.checkpoints),
            (named("flushes_total"), stats.flushes),
            (named("index_damaged_blocks_total"), stats.damaged_blocks),
            (named("full"), u64::from(self.is_full())),
            (named("healthy"), u64::from(self.is_healthy())),
        ]);
        if host.id != ShardId(0) {
            let (names, age_ms) = host.peers.root.figures();
            gauges.push((named("root_mirror_names"), names));
            gauges.push((named("root_mirror_age_ms"), age_ms));
        }
        gauges.extend(directory_gauges(host.id, self.directory_traffic()));
        let failed = host.store_failed.gauges();
        gauges.extend(failed.map(|(name, value)| (named(name), value)));
        gauges
    }

    /// Ends waits and background threads.
    pub fn stop(&self) {
        self.driver.stop();
        self.host().later.stop();
        self.host().timers.stop();
    }
}

/// Ends a shard's service where its thread panics.
struct PanicGuard<'a>(&'a MetaHost);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail_after_panic();
        }
    }
}

/// Bytes by first-level directory as metrics; 0 stands for other directories.
fn directory_gauges(shard: ShardId, mut list: Vec<DirectoryTraffic>) -> Vec<(String, u64)> {
    if list.iter().all(|entry| entry.dir != Ino(0)) {
        list.push(DirectoryTraffic {
            dir: Ino(0),
            traffic: ClientTraffic::default(),
        });
    }
    let mut gauges = Vec::new();
    for DirectoryTraffic { dir, traffic } in list {
        for (direction, path, bytes) in [
            ("read", "in_zone", traffic.read_in_zone),
            ("read", "cross_zone", traffic.read_cross_zone),
            ("write", "in_zone", traffic.written_in_zone),
            ("write", "cross_zone", traffic.written_cross_zone),
        ] {
            let labels = format!(
                "shard=\"{shard}\",directory=\"{}\",direction=\"{direction}\",path=\"{path}\"",
                dir.0
            );
            gauges.push((format!("shard_directory_bytes_total{{{labels}}}"), bytes));
        }
    }
    gauges
}

/// The client that a target asks about.
fn holder_of(subject: &str) -> Result<Holder, ErrorCode> {
    let parsed = Subject::parse(subject).map_err(|_error| ErrorCode::Invalid)?;
    Ok(Holder {
        subject: subject.to_owned(),
        scope: parsed.scope().cloned(),
    })
}

fn failure(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}
