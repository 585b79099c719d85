//! The root's names on a node with a zone's shard: a thread keeps the [mirror](RootMirror) up to
//! date, also on replicas that do not lead.
//!
//! A round has two small requests while nothing changes. The manager gives the head of the list of
//! junctions, the root's shard the root's attributes. A node without an answer keeps the mirror as
//! it is. It is not stored: a server that starts waits for a manager anyway.

use crate::clock;
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::periodic_thread::PeriodicThread;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zonal_meta::{RootFetch, RootMirror, RootReply, RootRequest};
use zonal_types::limits::ROOT_NAME_MS;
use zonal_types::{Holder, Ino, Name, ShardId};
use zonal_wire::{MetaReply, MetaRequest};

/// Pause between two rounds.
const PERIOD: Duration = Duration::from_secs(1);
/// How long one question waits for its answer, ms.
const QUESTION_MS: u64 = 2_000;
/// A mirror that was not confirmed for so long, ms, is asked before the root's shard.
const SILENCE_MS: u64 = 2 * QUESTION_MS + ROOT_NAME_MS;

/// The mirror of a node.
#[derive(Default)]
pub(crate) struct RootNames(Mutex<RootMirror>);

impl RootNames {
    fn lock(&self) -> MutexGuard<'_, RootMirror> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request for the mirror; `None`: it is another request.
    pub(crate) fn answer(&self, from: Option<&Holder>, request: &MetaRequest) -> Option<MetaReply> {
        let is_of_mirror = matches!(
            request,
            MetaRequest::MirroredRoot { .. }
                | MetaRequest::MirroredName { .. }
                | MetaRequest::MirroredNames { .. }
        );
        if !is_of_mirror {
            return None;
        }
        self.lock().answer(from, request, clock::instant())
    }

    /// A first-level directory, where the root's shard seems to give no answer now.
    pub(crate) fn first_level_in_silence(&self, name: &Name) -> Option<Ino> {
        let mirror = self.lock();
        let is_silent = mirror.age_ms(clock::instant())? > SILENCE_MS;
        mirror.first_level(name).filter(|_ino| is_silent)
    }

    /// Number of names, and the time since they were confirmed, ms.
    pub(crate) fn figures(&self) -> (u64, u64) {
        let mirror = self.lock();
        let age_ms = mirror.age_ms(clock::instant());
        (mirror.names() as u64, age_ms.unwrap_or(0))
    }

    /// One round; the mirror stays as it is where a question has no answer.
    fn refresh(&self, peers: &Peers, map: &MapCache) {
        let mut fetch = RootFetch::new(&self.lock(), clock::instant());
        loop {
            let answer = match fetch.question() {
                RootRequest::Manager(request) => peers
                    .manager_within(&map.current(), &request, QUESTION_MS)
                    .map(RootReply::Manager),
                RootRequest::Shard(request) => peers
                    .shard_within(map, ShardId(0), &request, QUESTION_MS)
                    .map(RootReply::Shard),
            };
            let Ok(answer) = answer else {
                return;
            };
            match fetch.take(answer) {
                Ok(None) => {}
                Ok(Some(mirror)) => {
                    *self.lock() = mirror;
                    return;
                }
                Err(code) => {
                    tracing::debug!(%code, "the names of the root are not learnt");
                    return;
                }
            }
        }
    }
}

/// Starts the thread, which asks at once.
pub(crate) fn start(peers: Arc<Peers>, map: Arc<MapCache>) -> io::Result<PeriodicThread> {
    PeriodicThread::start("root-names", move |pauses| {
        loop {
            peers.root.refresh(&peers, &map);
            if !pauses.pause(PERIOD) {
                return;
            }
        }
    })
}
