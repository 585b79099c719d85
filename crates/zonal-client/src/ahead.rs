//! Directories that are listed ahead: a walk through a tree (`ls -lR`, `find`, `du`, `tar`) lists a directory, and then those in it.
//!
//! So the first of them is asked for together with some that lie beside it, and those are answered from here: a walk takes one round trip for up to
//! [`READDIR_TOGETHER_MAX`] directories. A directory counts as walked where one in it is listed within [`SOON_MS`], or a second one ever.
//!
//! *Invariant*: what is kept here is told only as it would be if its reply came at that moment: no event has been counted at its link since it was asked
//! for, its lease has some time left, and no change of this client's own was on its way meanwhile (a shard tells nobody of their own changes).
//! So who changes something lists nothing ahead for [`QUIET_MS`]; nor does who had something here that could not be used any more.
//! Bounds: [`KEPT_MAX`] listings, of [`BESIDE_MAX`] directories it is known what lies beside them; a full table is emptied. Per listing: one lock.

use crate::client::Client;
use crate::net::Net;
use crate::session::{Asked, Link, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zonal_types::limits::READDIR_TOGETHER_MAX;
use zonal_types::{FileKind, Ino, Instant, ShardId};
use zonal_wire::meta::{Listing, flags};
use zonal_wire::{DirEntry, MetaRequest};

/// Listings kept.
pub(crate) const KEPT_MAX: usize = 128;
/// Directories of which it is known what lies beside them.
pub(crate) const BESIDE_MAX: usize = 4_096;
/// A lease that ends sooner is asked for again, ms: what is told under it would be asked for one by one.
const LEFT_MIN_MS: u32 = 1_000;
/// Who lists a directory this soon after the one above it walks through a tree, ms.
const SOON_MS: u64 = 1_000;
/// How long nothing is listed ahead after a change, ms.
const QUIET_MS: u64 = 500;

/// Directories that were told in one part of a listing.
#[derive(Debug)]
struct Family {
    members: Vec<Ino>,
    told_at: Instant,
    is_walked: AtomicBool,
}

/// When a listing was asked for: of which shard, and behind how many changes of our own.
#[derive(Clone, Copy)]
struct Point {
    asked: Asked,
    shard: ShardId,
    changes: u64,
}

#[derive(Default)]
struct State {
    /// Those that were not listed since.
    beside: BTreeMap<Ino, Arc<Family>>,
    kept: BTreeMap<Ino, (Point, Listing)>,
}

/// What one client lists ahead.
#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    /// Changes that were sent, and that were answered.
    changes: AtomicU64,
    /// When the last one was.
    changed_at: AtomicU64,
}

impl Ahead {
    fn disturb(&self, now: Instant) {
        self.changed_at.store(now.0, Ordering::Relaxed);
    }

    fn note_change(&self, now: Instant) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.disturb(now);
    }

    fn is_quiet(&self, now: Instant) -> bool {
        let at = Instant(self.changed_at.load(Ordering::Relaxed));
        at == Instant(0) || now.ms_since(at) >= QUIET_MS
    }

    /// Directories were told, in one part of a listing.
    fn note_told(&self, members: Vec<Ino>, now: Instant) {
        if members.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        if state.beside.len() + members.len() > BESIDE_MAX {
            state.beside.clear();
        }
        let family = Arc::new(Family {
            members,
            told_at: now,
            is_walked: AtomicBool::new(false),
        });
        let members = family.members.iter().take(BESIDE_MAX);
        state
            .beside
            .extend(members.map(|ino| (*ino, Arc::clone(&family))));
    }

    /// `dir` is listed from the start: what was listed of it ahead, and where that is nothing, what to list with it.
    fn begin(&self, dir: Ino, now: Instant) -> (Option<(Point, Listing)>, Vec<Ino>) {
        let mut state = lock(&self.state);
        let family = state.beside.remove(&dir);
        if let Some(kept) = state.kept.remove(&dir) {
            if let Some(family) = family {
                family.is_walked.store(true, Ordering::Relaxed);
            }
            return (Some(kept), Vec::new());
        }
        let Some(family) = family else {
            return (None, Vec::new());
        };
        let is_second = family.is_walked.swap(true, Ordering::Relaxed);
        let is_walk = is_second || now.ms_since(family.told_at) < SOON_MS;
        if !is_walk || !self.is_quiet(now) {
            return (None, Vec::new());
        }
        let is_wanted =
            |ino: &&Ino| state.beside.contains_key(*ino) && !state.kept.contains_key(*ino);
        let members = family.members.iter().filter(is_wanted).copied();
        (None, members.take(READDIR_TOGETHER_MAX - 1).collect())
    }

    fn keep(&self, point: Point, listings: impl Iterator<Item = Listing>) {
        let mut state = lock(&self.state);
        for listing in listings {
            // Without an entry, or a lease, nobody would tell of a change.
            if granted(&listing.entries) == 0 {
                continue;
            }
            if state.kept.len() >= KEPT_MAX {
                state.kept.clear();
            }
            state.kept.insert(listing.dir, (point, listing));
        }
    }

    /// Nothing of it can be used any more.
    pub(crate) fn forget_all(&self) {
        lock(&self.state).kept.clear();
    }

    /// Listings kept, and directories of which it is known what lies beside them.
    pub(crate) fn len(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.kept.len(), state.beside.len())
    }
}

/// The directory's term: each entry has it.
fn granted(entries: &[DirEntry]) -> u32 {
    entries.first().map_or(0, |item| item.entry.entry_ms)
}

/// Whether a request may change what a listing tells. Opens and closes are counted where nobody lists them.
fn changes(request: &MetaRequest) -> bool {
    match request {
        MetaRequest::Open { open_flags, .. } => open_flags & flags::O_TRUNC != 0,
        MetaRequest::Close { .. } => false,
        other => other.is_mutation(),
    }
}

/// A change of our own is under way as long as this lives, also where nobody waits for it any more.
pub(crate) struct OwnChange<'a, N: Net>(&'a Client<N>);

impl<N: Net> Drop for OwnChange<'_, N> {
    fn drop(&mut self) {
        self.0.ahead.note_change(self.0.net.now());
    }
}

impl<N: Net> Client<N> {
    /// To be held while a request is under way.
    pub(crate) fn own_change(&self, request: &MetaRequest) -> Option<OwnChange<'_, N>> {
        changes(request).then(|| {
            self.ahead.note_change(self.net.now());
            OwnChange(self)
        })
    }

    /// A part of a listing came: the directories in it may be listed next. Another shard's are not listed together with ours.
    pub(crate) fn note_beside(&self, entries: &[DirEntry]) {
        let ours =
            |item: &&DirEntry| item.entry.kind == FileKind::Directory && item.entry.attr.is_some();
        let members = entries.iter().filter(ours).map(|item| item.entry.ino);
        self.ahead.note_told(members.collect(), self.net.now());
    }

    /// A directory is listed from the start: its listing, where it may be told now, and otherwise what to list with it.
    pub(crate) fn begin_listing(
        &self,
        link: &Link,
        dir: Ino,
    ) -> Result<(Asked, Listing), Vec<Ino>> {
        let now = self.net.now();
        let (kept, beside) = self.ahead.begin(dir, now);
        let Some((point, listing)) = kept else {
            return Err(beside);
        };
        let left = self.cache_ms(link, point.asked, granted(&listing.entries));
        let is_same = point.changes == self.ahead.changes.load(Ordering::SeqCst);
        if is_same && point.shard == link.shard && left >= LEFT_MIN_MS {
            return Ok((point.asked, listing));
        }
        // Nor can the others be told: they are from before the same event or change, or soon will be too old.
        self.ahead.forget_all();
        self.ahead.disturb(now);
        Err(Vec::new())
    }

    /// What of the reply behind `listings` was listed ahead. `changes` is [`Self::own_changes`] of when it was asked for.
    pub(crate) fn keep_listings(
        &self,
        link: &Link,
        asked: Asked,
        changes: u64,
        listings: impl Iterator<Item = Listing>,
    ) {
        let shard = link.shard;
        let point = Point {
            asked,
            shard,
            changes,
        };
        self.ahead.keep(point, listings);
    }

    /// How many changes were sent and answered.
    pub(crate) fn own_changes(&self) -> u64 {
        self.ahead.changes.load(Ordering::SeqCst)
    }
}
