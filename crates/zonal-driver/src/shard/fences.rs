//! Fences: tells targets which clients are fenced, until each target has acknowledged it.

use std::collections::BTreeMap;

use zonal_basics::BackOff;
use zonal_types::{Fence, TargetId};
use zonal_wire::{StorageReply, StorageRequest};

use super::waits::Key;
use super::{ShardDriver, ShardHost};
use crate::joined_futures::either;

/// Targets called at a time.
const AT_ONCE: usize = 32;

type Fences = BTreeMap<TargetId, Vec<Fence>>;

impl<H: ShardHost> ShardDriver<H> {
    /// Pushes fences to targets as long as there are any, until [`Self::stop`].
    pub async fn push_fences(&self) {
        let mut backoff = BackOff::new(self.pace.fences_ms);
        let mut pause = 0;
        while let Some(fences) = self.next_fences(pause).await {
            if self.tell_all(fences).await {
                backoff.reset();
                pause = 0;
            } else {
                pause = backoff.next_ms();
                self.host.seek_map(self.host.map().version).await;
            }
        }
    }

    /// Waits for fences, for at least `pause` ms; `None` once the driver stops.
    async fn next_fences(&self, pause: u64) -> Option<Fences> {
        let not_before = self.host.now().instant.plus_ms(pause);
        while !self.is_stopping() {
            let (wait, fences) = {
                let state = self.lock();
                (self.waits.register(Key::Fences), state.shard.fences())
            };
            if fences.is_empty() {
                wait.await;
            } else if self.host.now().instant >= not_before {
                return Some(fences);
            } else {
                either(wait, self.host.sleep_until(not_before)).await;
            }
        }
        None
    }

    /// Sends all targets their fences in parallel; true where each has acknowledged them. A target
    /// that does not answer delays no other.
    async fn tell_all(&self, fences: Fences) -> bool {
        let position = self.host.position();
        if self.host.settled(position).await.is_err() {
            return false;
        }
        let fences: Vec<(TargetId, Vec<Fence>)> = fences.into_iter().collect();
        let mut is_told = true;
        for some in fences.chunks(AT_ONCE) {
            let map = self.host.map();
            // A target that was taken out of the cell serves nobody.
            let (there, gone): (Vec<_>, Vec<_>) = some
                .iter()
                .partition(|(target, _)| map.target(*target).is_some());
            let requests = there.iter().map(|(target, fences)| {
                let (target, fences) = (*target, fences.clone());
                (target, StorageRequest::Fence { target, fences })
            });
            let replies = self.host.call_targets(requests.collect()).await;
            let told = there.into_iter().zip(replies);
            let told = told.filter(|(_, reply)| *reply == Some(StorageReply::Done));
            let told: Vec<_> = told.map(|(of, _)| of).chain(gone).collect();
            is_told &= told.len() == some.len();
            for (target, fences) in told {
                is_told &= self.note_told(*target, fences);
            }
        }
        is_told
    }

    /// Logs that a target has acknowledged fences: sessions that waited for it may end.
    fn note_told(&self, target: TargetId, fences: &[Fence]) -> bool {
        if !self.host.has_reserve() {
            return false;
        }
        let mut state = self.lock();
        let changes = state.shard.fenced(target, fences);
        let is_logged = self.log(&mut state, changes, Vec::new()).is_ok();
        self.wake_for_deadline(&state);
        is_logged
    }
}
