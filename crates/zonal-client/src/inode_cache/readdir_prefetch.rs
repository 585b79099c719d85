//! Readdir prefetch for walks through a tree (`ls -lR`, `find`, `du`, `tar`): a walk lists a
//! directory, and then its subdirectories.
//!
//! When a walk lists the first subdirectory, the client requests listings of some siblings with it
//! and answers the next requests from here. So a walk takes one round trip for up to
//! [`READDIR_TOGETHER_MAX`] directories.
//!
//! *Invariant*: a prefetched listing is used only while it equals a reply of that moment.
//! - Since its request no event has been counted at its link, and its lease continues. A listing
//!   with an entry without a lease is not kept.
//! - During its request no own change was in flight, and none began since, because a shard sends a
//!   client no events for its own changes. An unanswered change may be executed within the term of
//!   a lease; no directory is prefetched meanwhile.
//! - Access times reported since belong to files outside of the listing.
//!
//! Prefetch pauses for [`QUIET_MS`] after an own change, and after a prefetched listing that had
//! become unusable. Bound: [`KEPT_MAX`] listings, each with as many entries as its walk requested;
//! expired ones make room. Per listing: one lock; per change: four atomic operations.

mod siblings;

pub(crate) use siblings::BESIDE_MAX;

use crate::cell::Cell;
use crate::cell::session::{Link, RequestStart};
use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::retry::is_unsure;
use siblings::{Siblings, WalkPosition};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_types::limits::{CACHE_TERM_MS, READDIR_TOGETHER_MAX};
use zonal_types::{ErrorCode, FileKind, Ino, Instant, ShardId, Timestamp};
use zonal_wire::meta::{Listing, flags};
use zonal_wire::{DirEntry, MetaReply, MetaRequest};

/// Prefetched listings at once.
pub(crate) const KEPT_MAX: usize = 128;
/// Least lease of a listing to keep, ms. Under a shorter one the kernel would look up each entry
/// again.
const LEFT_MIN_MS: u32 = 1_000;
/// Pause of prefetch after a change, ms.
const QUIET_MS: u64 = 500;

/// A request for a listing, and for its siblings.
pub(crate) struct ListingRequest {
    pub(crate) asked: RequestStart,
    /// Counts of own changes and of reported access times at the request.
    changes: u64,
    touches: u64,
    /// Siblings to list with it.
    pub(crate) beside: Vec<Ino>,
}

impl ListingRequest {
    /// A request for one directory without prefetch.
    pub(crate) fn alone(asked: RequestStart) -> Self {
        Self {
            asked,
            changes: 0,
            touches: 0,
            beside: Vec::new(),
        }
    }
}

struct PrefetchedListing {
    asked: RequestStart,
    shard: ShardId,
    changes: u64,
    /// Expiry.
    until: Instant,
    listing: Listing,
}

#[derive(Default)]
struct State {
    beside: Siblings,
    kept: BTreeMap<Ino, PrefetchedListing>,
}

/// Prefetched listings of one client.
#[derive(Default)]
pub(crate) struct ReaddirPrefetch {
    state: Mutex<State>,
    /// Own changes begun.
    changes: AtomicU64,
    /// Own changes in flight.
    under_way: AtomicU64,
    /// Reports of access times.
    touches: AtomicU64,
    /// End of the pause of prefetch.
    quiet_until: AtomicU64,
}

impl State {
    /// Siblings to list with a directory.
    fn wanted(&mut self, turn: &WalkPosition, now: Instant) -> Vec<Ino> {
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

    /// Keeps received listings for which `kept` returns one, in the order of the request.
    ///
    /// A directory that is missing or not kept is never prefetched again. The walk lists it alone,
    /// and gets the error if there is one.
    fn take_in(
        &mut self,
        beside: &[Ino],
        listings: impl Iterator<Item = Listing>,
        kept: impl Fn(Listing) -> Option<PrefetchedListing>,
    ) {
        let mut asked = beside.iter();
        for listing in listings {
            let dir = listing.dir;
            let is_asked = asked.any(|next| {
                let is_next = *next == dir;
                if !is_next {
                    self.beside.forget(*next);
                }
                is_next
            });
            if !is_asked {
                return;
            }
            match kept(listing) {
                Some(kept) => drop(self.kept.insert(dir, kept)),
                None => self.beside.forget(dir),
            }
        }
    }
}

impl ReaddirPrefetch {
    fn disturb(&self, now: Instant, ms: u64) {
        let until = now.plus_ms(ms).0;
        self.quiet_until.fetch_max(until, Ordering::SeqCst);
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.quiet_until.load(Ordering::SeqCst) <= now.0
            && self.under_way.load(Ordering::SeqCst) == 0
    }

    /// Drops all prefetched listings.
    pub(crate) fn forget_all(&self) {
        lock(&self.state).kept.clear();
    }

    /// Drops listings with entries whose access times were reported. `reads` is sorted by inode.
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

    /// Numbers of prefetched listings and of remembered siblings.
    pub(crate) fn len(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.kept.len(), state.beside.len())
    }
}

/// Whether a request may change the contents of a listing. Open counts do not appear in listings;
/// access times are handled by [`ReaddirPrefetch::forget_touched`].
fn changes(request: &MetaRequest) -> bool {
    match request {
        MetaRequest::Open { open_flags, .. } => open_flags & flags::O_TRUNC != 0,
        MetaRequest::Close { .. } | MetaRequest::Touch { .. } => false,
        other => other.is_mutation(),
    }
}

/// Whether every entry of a listing has a lease.
fn is_leased(listing: &Listing) -> bool {
    let is_free = |item: &DirEntry| item.entry.attr.is_some() && item.entry.attr_ms == 0;
    !listing.entries.iter().any(is_free)
}

/// An own change in flight.
pub(crate) struct OwnChange<'a, N: Net> {
    cell: &'a Cell<N>,
    prefetch: &'a ReaddirPrefetch,
    is_sure: bool,
}

impl<N: Net> OwnChange<'_, N> {
    /// Ends the change, which was answered or abandoned.
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
        let ahead = self.prefetch;
        ahead.disturb(self.cell.net.now(), ms);
        ahead.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl InodeCache {
    /// Hold the guard while the request is in flight.
    pub(crate) fn own_change<'a, N: Net>(
        &'a self,
        cell: &'a Cell<N>,
        request: &MetaRequest,
    ) -> Option<OwnChange<'a, N>> {
        changes(request).then(|| {
            self.readdir_prefetch
                .under_way
                .fetch_add(1, Ordering::SeqCst);
            self.readdir_prefetch.changes.fetch_add(1, Ordering::SeqCst);
            OwnChange {
                cell,
                prefetch: &self.readdir_prefetch,
                is_sure: false,
            }
        })
    }

    /// Remembers the subdirectories of a listing page as siblings. Those of another shard are left
    /// out.
    pub(crate) fn note_beside<N: Net>(&self, cell: &Cell<N>, entries: &[DirEntry]) {
        let dirs = entries
            .iter()
            .filter(|item| item.entry.kind == FileKind::Directory && item.entry.attr.is_some());
        let dirs = dirs.map(|item| (item.entry.ino, &item.name));
        lock(&self.readdir_prefetch.state)
            .beside
            .add(dirs, cell.net.now());
    }

    /// Begins a listing from its start. Returns the prefetched listing if it is valid, otherwise
    /// the request to send.
    pub(crate) fn begin_listing<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        asked: RequestStart,
        dir: Ino,
    ) -> Result<(RequestStart, Listing), ListingRequest> {
        let (ahead, now) = (&self.readdir_prefetch, cell.net.now());
        let changes = ahead.changes.load(Ordering::SeqCst);
        let touches = ahead.touches.load(Ordering::SeqCst);
        let mut state = lock(&ahead.state);
        let turn = state.beside.listed(dir, now);
        let kept = state.kept.remove(&dir).filter(|kept| kept.until > now);
        if let Some(kept) = kept {
            let is_same = kept.changes == changes && kept.shard == link.shard;
            if is_same && cell.cache_ms(link, kept.asked, kept.listing.term_ms) > 0 {
                return Ok((kept.asked, kept.listing));
            }
            // The others are from before the same event or change.
            state.kept.clear();
            ahead.disturb(now, QUIET_MS);
        }
        let turn = turn.filter(|_| ahead.is_quiet(now));
        let beside = turn.map(|turn| state.wanted(&turn, now));
        Err(ListingRequest {
            asked,
            changes,
            touches,
            beside: beside.unwrap_or_default(),
        })
    }

    /// Keeps the siblings' listings of a reply, each with at most `entries` entries.
    pub(crate) fn keep_listings<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        asking: &ListingRequest,
        listings: impl Iterator<Item = Listing>,
        entries: u32,
    ) {
        let now = cell.net.now();
        let mut state = lock(&self.readdir_prefetch.state);
        let is_touched = asking.touches != self.readdir_prefetch.touches.load(Ordering::SeqCst);
        state.take_in(&asking.beside, listings, |listing| {
            let left = cell.cache_ms(link, asking.asked, listing.term_ms);
            let is_small = listing.entries.len() <= entries as usize;
            let may_stay = left > LEFT_MIN_MS && is_small && is_leased(&listing) && !is_touched;
            may_stay.then(|| PrefetchedListing {
                asked: asking.asked,
                shard: link.shard,
                changes: asking.changes,
                until: now.plus_ms((left - LEFT_MIN_MS).into()),
                listing,
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::Name;

    /// Directories 1 to 9 are siblings.
    fn state() -> State {
        let names: Vec<(Ino, Name)> = (1..10)
            .map(|ino| (Ino(ino), Name::new(ino.to_string().as_bytes()).unwrap()))
            .collect();
        let mut state = State::default();
        let dirs = names.iter().map(|(ino, name)| (*ino, name));
        state.beside.add(dirs, Instant(1));
        state
    }

    /// Takes in a reply with the listings `came`, of which only the first four may be kept. Returns
    /// the kept directories and those to prefetch next.
    fn took_in(asked: &[u64], came: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let mut state = state();
        let turn = state.beside.listed(Ino(1), Instant(1)).unwrap();
        let beside: Vec<Ino> = asked.iter().copied().map(Ino).collect();
        let listings = came.iter().map(|dir| Listing {
            dir: Ino(*dir),
            entries: Vec::new(),
            end: true,
            term_ms: 0,
        });
        state.take_in(&beside, listings, |listing| {
            (listing.dir < Ino(5)).then(|| PrefetchedListing {
                asked: RequestStart::default(),
                shard: ShardId(1),
                changes: 0,
                until: Instant(2),
                listing,
            })
        });
        let kept = state.kept.keys().map(|dir| dir.0).collect();
        let wanted = state.wanted(&turn, Instant(1));
        (kept, wanted.iter().map(|dir| dir.0).collect())
    }

    #[test]
    fn received_listings_are_kept_and_missing_ones_are_not_prefetched_again() {
        assert_eq!(took_in(&[2, 3], &[2, 3]).1, [4, 5, 6, 7, 8, 9]);
        let left_out = took_in(&[2, 3, 4, 5, 6, 7], &[2, 4, 5]);
        assert_eq!(left_out, (vec![2, 4], vec![6, 7, 8, 9]));
    }

    #[test]
    fn a_listing_that_was_not_requested_is_not_kept() {
        for came in [&[2, 2, 2][..], &[2, 77, 3], &[2, 1, 3], &[2]] {
            assert_eq!(took_in(&[2, 3], came).0, [2], "{came:?}");
        }
        assert_eq!(took_in(&[], &[2, 3]).0, [] as [u64; 0]);
    }
}
