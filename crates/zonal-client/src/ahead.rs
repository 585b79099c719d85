//! Directories that are listed ahead: a walk through a tree (`ls -lR`, `find`, `du`, `tar`) lists a directory, and then those in it.
//!
//! So the first of them is asked for together with some that lie beside it, and those are answered from here: a walk takes one round trip for up to
//! [`READDIR_TOGETHER_MAX`] directories.
//!
//! *Invariant*: what is kept here is told only as it would be if its reply came at that moment.
//! - No event has been counted at its link since it was asked for, and its lease goes on. A listing of which something lies under no lease is not kept.
//! - No change of this client's own was under way when it was asked for, or began since: a shard tells nobody of their own changes. One that nobody has an
//!   answer to may be carried out within the term of a lease; no directory is listed ahead meanwhile.
//! - Access times that were told since are of files that it does not have.
//!
//! Who changes something lists nothing ahead for [`QUIET_MS`]; nor does who had something here that could not be used any more.
//! Bound: [`KEPT_MAX`] listings, each of what its walk asked for; what is too old makes room. Per listing: one lock; per change: four atomic operations.

mod beside;

pub(crate) use beside::BESIDE_MAX;

use crate::client::Client;
use crate::net::Net;
use crate::session::{Asked, Link, is_unsure, lock};
use beside::{Beside, Turn};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_types::limits::{CACHE_TERM_MS, READDIR_TOGETHER_MAX};
use zonal_types::{ErrorCode, FileKind, Ino, Instant, ShardId, Timestamp};
use zonal_wire::meta::{Listing, flags};
use zonal_wire::{DirEntry, MetaReply, MetaRequest};

/// Listings kept.
pub(crate) const KEPT_MAX: usize = 128;
/// What is told under a lease that ends sooner would be asked for one by one, ms.
const LEFT_MIN_MS: u32 = 1_000;
/// How long nothing is listed ahead after a change, ms.
const QUIET_MS: u64 = 500;

/// When a listing was asked for, of which shard, and behind how many changes of our own.
#[derive(Clone, Copy)]
struct Point {
    asked: Asked,
    shard: ShardId,
    changes: u64,
    touches: u64,
}

struct Kept {
    point: Point,
    /// Until then it may be told.
    until: Instant,
    listing: Listing,
}

#[derive(Default)]
struct State {
    beside: Beside,
    kept: BTreeMap<Ino, Kept>,
}

/// What one client lists ahead.
#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    /// Changes that began.
    changes: AtomicU64,
    /// Those that did not end.
    under_way: AtomicU64,
    /// Times that access times were told.
    touches: AtomicU64,
    /// Until then nothing is listed ahead.
    quiet_until: AtomicU64,
}

/// A listing that is to be asked for, with those of directories beside it.
pub(crate) struct Asking {
    point: Point,
    pub(crate) beside: Vec<Ino>,
}

impl Asking {
    pub(crate) fn asked(&self) -> Asked {
        self.point.asked
    }
}

impl State {
    /// What to list together with a directory.
    fn wanted(&mut self, turn: &Turn, now: Instant) -> Vec<Ino> {
        let most = READDIR_TOGETHER_MAX - 1;
        if self.kept.len() + most > KEPT_MAX {
            self.kept.retain(|_dir, kept| kept.until > now);
        }
        let room = KEPT_MAX - self.kept.len();
        let behind = self.beside.behind(turn);
        behind
            .filter(|dir| !self.kept.contains_key(dir))
            .take(most.min(room))
            .collect()
    }
}

impl Ahead {
    fn disturb(&self, now: Instant, ms: u64) {
        let until = now.plus_ms(ms).0;
        self.quiet_until.fetch_max(until, Ordering::SeqCst);
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.quiet_until.load(Ordering::SeqCst) <= now.0
            && self.under_way.load(Ordering::SeqCst) == 0
    }

    /// Nothing of it can be used any more.
    pub(crate) fn forget_all(&self) {
        lock(&self.state).kept.clear();
    }

    /// These access times were told, of files in their order.
    pub(crate) fn forget_touched(&self, reads: &[(Ino, Timestamp)]) {
        let mut state = lock(&self.state);
        self.touches.fetch_add(1, Ordering::SeqCst);
        let is_read = |item: &DirEntry| {
            let ino = item.entry.ino;
            reads.binary_search_by_key(&ino, |(ino, _)| *ino).is_ok()
        };
        state
            .kept
            .retain(|_dir, kept| !kept.listing.entries.iter().any(is_read));
    }

    /// Listings kept, and directories remembered that lie beside others.
    pub(crate) fn len(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.kept.len(), state.beside.len())
    }
}

/// Whether a request may change what a listing tells. Opens and closes are counted where nobody lists them; access times have a way of their own.
fn changes(request: &MetaRequest) -> bool {
    match request {
        MetaRequest::Open { open_flags, .. } => open_flags & flags::O_TRUNC != 0,
        MetaRequest::Close { .. } | MetaRequest::Touch { .. } => false,
        other => other.is_mutation(),
    }
}

/// Whether all that a listing tells lies under leases.
fn is_leased(listing: &Listing) -> bool {
    let is_free = |item: &DirEntry| item.entry.attr.is_some() && item.entry.attr_ms == 0;
    !listing.entries.iter().any(is_free)
}

/// A change of our own that is under way.
pub(crate) struct OwnChange<'a, N: Net> {
    client: &'a Client<N>,
    is_sure: bool,
}

impl<N: Net> OwnChange<'_, N> {
    /// It was answered, or given up.
    pub(crate) fn end(mut self, reply: &Result<MetaReply, ErrorCode>) {
        self.is_sure = !reply.as_ref().is_err_and(|code| is_unsure(*code));
    }
}

impl<N: Net> Drop for OwnChange<'_, N> {
    fn drop(&mut self) {
        let ms = if self.is_sure {
            QUIET_MS
        } else {
            CACHE_TERM_MS
        };
        let ahead = &self.client.ahead;
        ahead.disturb(self.client.net.now(), ms);
        ahead.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<N: Net> Client<N> {
    /// To be held while a request is under way.
    pub(crate) fn own_change(&self, request: &MetaRequest) -> Option<OwnChange<'_, N>> {
        changes(request).then(|| {
            self.ahead.under_way.fetch_add(1, Ordering::SeqCst);
            self.ahead.changes.fetch_add(1, Ordering::SeqCst);
            OwnChange {
                client: self,
                is_sure: false,
            }
        })
    }

    /// A part of a listing came: the directories in it may be listed next. Another shard's are not listed together with ours.
    pub(crate) fn note_beside(&self, entries: &[DirEntry]) {
        let dirs = entries
            .iter()
            .filter(|item| item.entry.kind == FileKind::Directory && item.entry.attr.is_some());
        let dirs = dirs.map(|item| (item.entry.ino, &item.name));
        lock(&self.ahead.state).beside.add(dirs, self.net.now());
    }

    /// A directory is listed from the start: its listing, where it may be told now, and otherwise what to ask for.
    pub(crate) fn begin_listing(&self, link: &Link, dir: Ino) -> Result<(Asked, Listing), Asking> {
        let (ahead, now) = (&self.ahead, self.net.now());
        let point = Point {
            changes: ahead.changes.load(Ordering::SeqCst),
            touches: ahead.touches.load(Ordering::SeqCst),
            asked: self.asking(link),
            shard: link.shard,
        };
        let mut state = lock(&ahead.state);
        let turn = state.beside.listed(dir, now);
        let kept = state.kept.remove(&dir).filter(|kept| kept.until > now);
        if let Some(kept) = kept {
            let is_same = kept.point.changes == point.changes && kept.point.shard == point.shard;
            let left = self.cache_ms(link, kept.point.asked, kept.listing.term_ms);
            if is_same && left > 0 {
                return Ok((kept.point.asked, kept.listing));
            }
            // Nor can the others be told: they are from before the same event or change.
            state.kept.clear();
            ahead.disturb(now, QUIET_MS);
        }
        let turn = turn.filter(|_| ahead.is_quiet(now));
        let beside = turn.map(|turn| state.wanted(&turn, now));
        let beside = beside.unwrap_or_default();
        Err(Asking { point, beside })
    }

    /// What was asked for beside a directory came: `entries` of each at most, in the order in which they were asked for.
    pub(crate) fn keep_listings(
        &self,
        link: &Link,
        asking: &Asking,
        listings: impl Iterator<Item = Listing>,
        entries: u32,
    ) {
        let (ahead, point) = (&self.ahead, asking.point);
        let mut state = lock(&ahead.state);
        let is_touched = point.touches != ahead.touches.load(Ordering::SeqCst);
        let mut wanted = asking.beside.iter();
        for listing in listings {
            // What was left out before it cannot be listed, and who asks for it alone hears why.
            let left_out = wanted.by_ref().take_while(|dir| **dir != listing.dir);
            left_out.for_each(|dir| state.beside.forget(*dir));
            let left = self.cache_ms(link, point.asked, listing.term_ms);
            let is_asked = asking.beside.contains(&listing.dir);
            let is_small = listing.entries.len() <= entries as usize;
            if left > LEFT_MIN_MS && is_asked && is_small && is_leased(&listing) && !is_touched {
                let until = self.net.now().plus_ms((left - LEFT_MIN_MS).into());
                let kept = Kept {
                    point,
                    until,
                    listing,
                };
                state.kept.insert(kept.listing.dir, kept);
            } else {
                state.beside.forget(listing.dir);
            }
        }
    }
}
