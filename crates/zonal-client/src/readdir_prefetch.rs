//! Directories that are listed ahead: a walk through a tree (`ls -lR`, `find`, `du`, `tar`) lists a
//! directory, and then those in it.
//!
//! So the first of them is asked for together with some that lie beside it, and those are answered
//! from here: a walk takes one round trip for up to [`READDIR_TOGETHER_MAX`] directories.
//!
//! *Invariant*: what is kept here is told only as it would be if its reply came at that moment.
//! - No event has been counted at its link since it was asked for, and its lease goes on. A listing
//!   of which something lies under no lease is not kept.
//! - No change of this client's own was under way when it was asked for, or began since: a shard
//!   tells nobody of their own changes. One that nobody has an answer to may be carried out within
//!   the term of a lease; no directory is listed ahead meanwhile.
//! - Access times that were told since are of files that it does not have.
//!
//! Who changes something lists nothing ahead for [`QUIET_MS`]; nor does who had something here that
//! could not be used any more. Bound: [`KEPT_MAX`] listings, each of what its walk asked for; what
//! is too old makes room. Per listing: one lock; per change: four atomic operations.

mod siblings;

pub(crate) use siblings::BESIDE_MAX;

use crate::client::Client;
use crate::net::Net;
use crate::session::{Link, RequestStart, is_unsure, lock};
use siblings::{Siblings, WalkPosition};
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

/// A listing that is to be asked for, and those that come with it.
pub(crate) struct ListingRequest {
    pub(crate) asked: RequestStart,
    /// Changes that had begun, and times that access times had been told.
    changes: u64,
    touches: u64,
    /// Directories that are asked for with it.
    pub(crate) beside: Vec<Ino>,
}

impl ListingRequest {
    /// Of one directory, of which nothing else is kept.
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
    /// Until then it may be told.
    until: Instant,
    listing: Listing,
}

#[derive(Default)]
struct State {
    beside: Siblings,
    kept: BTreeMap<Ino, PrefetchedListing>,
}

/// What one client lists ahead.
#[derive(Default)]
pub(crate) struct ReaddirPrefetch {
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

impl State {
    /// What to list together with a directory.
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

    /// Of what came, in the order in which it was asked for, keeps what `kept` makes something of.
    /// Nothing else is asked for together with others again: it could not be listed, and who asks
    /// for it alone hears why, or it may not be kept.
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

/// Whether a request may change what a listing tells. Opens and closes are counted where nobody
/// lists them; access times have a way of their own.
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
        let ahead = &self.client.readdir_prefetch;
        ahead.disturb(self.client.net.now(), ms);
        ahead.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<N: Net> Client<N> {
    /// To be held while a request is under way.
    pub(crate) fn own_change(&self, request: &MetaRequest) -> Option<OwnChange<'_, N>> {
        changes(request).then(|| {
            self.readdir_prefetch
                .under_way
                .fetch_add(1, Ordering::SeqCst);
            self.readdir_prefetch.changes.fetch_add(1, Ordering::SeqCst);
            OwnChange {
                client: self,
                is_sure: false,
            }
        })
    }

    /// A part of a listing came: the directories in it may be listed next. Another shard's are not
    /// listed together with ours.
    pub(crate) fn note_beside(&self, entries: &[DirEntry]) {
        let dirs = entries
            .iter()
            .filter(|item| item.entry.kind == FileKind::Directory && item.entry.attr.is_some());
        let dirs = dirs.map(|item| (item.entry.ino, &item.name));
        lock(&self.readdir_prefetch.state)
            .beside
            .add(dirs, self.net.now());
    }

    /// A directory is listed from the start: its listing, where it may be told now, and otherwise
    /// what to ask for.
    pub(crate) fn begin_listing(
        &self,
        link: &Link,
        asked: RequestStart,
        dir: Ino,
    ) -> Result<(RequestStart, Listing), ListingRequest> {
        let (ahead, now) = (&self.readdir_prefetch, self.net.now());
        let changes = ahead.changes.load(Ordering::SeqCst);
        let touches = ahead.touches.load(Ordering::SeqCst);
        let mut state = lock(&ahead.state);
        let turn = state.beside.listed(dir, now);
        let kept = state.kept.remove(&dir).filter(|kept| kept.until > now);
        if let Some(kept) = kept {
            let is_same = kept.changes == changes && kept.shard == link.shard;
            if is_same && self.cache_ms(link, kept.asked, kept.listing.term_ms) > 0 {
                return Ok((kept.asked, kept.listing));
            }
            // Nor can the others be told: they are from before the same event or change.
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

    /// What was asked for beside a directory came: `entries` of each at most.
    pub(crate) fn keep_listings(
        &self,
        link: &Link,
        asking: &ListingRequest,
        listings: impl Iterator<Item = Listing>,
        entries: u32,
    ) {
        let now = self.net.now();
        let mut state = lock(&self.readdir_prefetch.state);
        let is_touched = asking.touches != self.readdir_prefetch.touches.load(Ordering::SeqCst);
        state.take_in(&asking.beside, listings, |listing| {
            let left = self.cache_ms(link, asking.asked, listing.term_ms);
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

    /// Directories 1 to 9 lie beside one another.
    fn state() -> State {
        let names: Vec<(Ino, Name)> = (1..10)
            .map(|ino| (Ino(ino), Name::new(ino.to_string().as_bytes()).unwrap()))
            .collect();
        let mut state = State::default();
        let dirs = names.iter().map(|(ino, name)| (*ino, name));
        state.beside.add(dirs, Instant(1));
        state
    }

    /// Of a reply with these directories, of which those from 5 on may not be kept: what is kept,
    /// and what is asked for together next.
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
    fn what_came_is_kept_and_what_could_not_be_is_asked_for_alone() {
        assert_eq!(took_in(&[2, 3], &[2, 3]).1, [4, 5, 6, 7, 8, 9]);
        let left_out = took_in(&[2, 3, 4, 5, 6, 7], &[2, 4, 5]);
        assert_eq!(left_out, (vec![2, 4], vec![6, 7, 8, 9]));
    }

    #[test]
    fn what_was_not_asked_for_is_not_kept() {
        for came in [&[2, 2, 2][..], &[2, 77, 3], &[2, 1, 3], &[2]] {
            assert_eq!(took_in(&[2, 3], came).0, [2], "{came:?}");
        }
        assert_eq!(took_in(&[], &[2, 3]).0, [] as [u64; 0]);
    }
}
