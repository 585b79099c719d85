//! Keeps snapshots alive while the check reads them one after the other: a server drops a snapshot
//! that nobody reads.

use super::{ShardSnapshot, SnapshotPage};
use crate::error::OfflineError;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};
use zonal_types::{ErrorCode, KvRead, ShardId};

/// Interval of the keep-alive. A server drops a snapshot that nobody reads for a minute.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Calls of [`SnapshotKeepalive::tick`] between two looks at the clock.
const LOOK_EVERY: u32 = 4096;

/// The snapshots of all shards.
pub(super) struct SnapshotKeepalive<'a> {
    all: Vec<SnapshotStore<'a>>,
    kept_alive: Cell<Instant>,
    calls: Cell<u32>,
}

impl<'a> SnapshotKeepalive<'a> {
    pub fn new(snapshots: Vec<Box<dyn ShardSnapshot + 'a>>) -> Self {
        let of_shard = |snapshot| SnapshotStore {
            snapshot,
            last: RefCell::default(),
        };
        Self {
            all: snapshots.into_iter().map(of_shard).collect(),
            kept_alive: Cell::new(Instant::now()),
            calls: Cell::new(0),
        }
    }

    /// Keeps all snapshots alive now and then. A snapshot that is gone shows as an error of its
    /// next read.
    pub fn tick(&self) {
        self.calls.set(self.calls.get().wrapping_add(1));
        if self.calls.get().is_multiple_of(LOOK_EVERY) {
            self.tick_now();
        }
    }

    /// Like [`Self::tick`], for callers that call seldom: looks at the clock each time.
    pub fn tick_now(&self) {
        if self.kept_alive.get().elapsed() >= KEEPALIVE {
            for snapshot in &self.all {
                let _ = snapshot.snapshot.page(&[0xff; 8]);
            }
            self.kept_alive.set(Instant::now());
        }
    }

    pub fn shards(&self) -> impl Iterator<Item = &SnapshotStore<'a>> {
        self.all.iter()
    }

    pub fn of(&self, shard: ShardId) -> Option<&SnapshotStore<'a>> {
        self.all
            .iter()
            .find(|snapshot| snapshot.snapshot.shard() == shard)
    }
}

/// One snapshot as a store. Caches the last page, so that look-ups in the order of keys read each
/// page once.
pub(super) struct SnapshotStore<'a> {
    snapshot: Box<dyn ShardSnapshot + 'a>,
    last: RefCell<Option<(Vec<u8>, SnapshotPage)>>,
}

impl SnapshotStore<'_> {
    pub fn shard(&self) -> ShardId {
        self.snapshot.shard()
    }

    pub fn page(&self, after: &[u8]) -> Result<SnapshotPage, OfflineError> {
        self.snapshot.page(after)
    }

    /// Looks up a key in the last page; `None` where the page does not cover the key.
    fn in_last(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let last = self.last.borrow();
        let (after, (entries, end)) = last.as_ref()?;
        let upto = entries.last().map(|(last, _)| last.0.as_slice());
        if key <= after.as_slice() || (!end && upto.is_none_or(|upto| key > upto)) {
            return None;
        }
        let at = entries.binary_search_by(|(found, _)| found.0.as_slice().cmp(key));
        Some(at.ok().map(|at| entries[at].1.0.clone()))
    }
}

/// Returns a key before `key` with next to no other keys between the two.
fn before(key: &[u8]) -> Vec<u8> {
    let mut before = key.to_vec();
    if let Some(last) = before.pop()
        && last > 0
    {
        before.push(last - 1);
        before.extend_from_slice(&[0xff; 8]);
    }
    before
}

impl KvRead for SnapshotStore<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        if let Some(value) = self.in_last(key) {
            return Ok(value);
        }
        let after = before(key);
        let page = self.page(&after).map_err(|_error| ErrorCode::Io)?;
        *self.last.borrow_mut() = Some((after, page));
        Ok(self.in_last(key).flatten())
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        let mut after = before(start);
        loop {
            let (entries, is_last) = self.page(&after).map_err(|_error| ErrorCode::Io)?;
            for (key, value) in &entries {
                let key = key.0.as_slice();
                if key >= end || (key >= start && !visit(key, &value.0)) {
                    return Ok(());
                }
            }
            match entries.last() {
                Some((key, _)) if !is_last => after.clone_from(&key.0),
                _ => return Ok(()),
            }
        }
    }
}
