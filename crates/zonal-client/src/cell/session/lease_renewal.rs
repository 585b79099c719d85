//! Lease renewal: how long everything that a shard granted stays valid beyond its own term.
//!
//! Each poll for events renews all leases of a session, from its sending. A client that caches
//! anything polls every [`RENEW_WAIT_MS`], so a lease lives as long as the session is used.
//!
//! *Invariant*: a renewal extends only what is still valid when its reply arrives. After a gap
//! everything that the shard granted is forgotten before the renewal counts.

use crate::cell::session::Link;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_types::limits::CACHE_TERM_MS;
use zonal_types::{Instant, ShardId};

/// How long a shard holds the poll of a client in use, ms. A quarter of the term, so that two late
/// polls in turn lose nothing.
pub const RENEW_WAIT_MS: u32 = 1_250;

/// End of the last renewal of one session.
#[derive(Debug, Default)]
pub(crate) struct LeaseRenewal(AtomicU64);

impl LeaseRenewal {
    fn until(&self) -> Instant {
        Instant(self.0.load(Ordering::SeqCst))
    }

    /// True where the last renewal has ended at `now`: what it renewed may be void.
    pub(crate) fn has_gap(&self, now: Instant) -> bool {
        self.until() <= now
    }

    /// Notes a renewal for `ms` of a poll that was sent at `sent`.
    pub(crate) fn renew(&self, sent: Instant, ms: u32) {
        let ms = u64::from(ms).min(CACHE_TERM_MS);
        self.0.fetch_max(sent.plus_ms(ms).0, Ordering::SeqCst);
    }

    /// The session is over, and its leases with it.
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// The validity of something that a shard granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTerm {
    shard: ShardId,
    /// End of the grant itself.
    until: Instant,
}

impl LeaseTerm {
    pub(crate) fn new(link: &Link, until: Instant) -> Self {
        let shard = link.shard;
        Self { shard, until }
    }

    /// Remaining time, ms, at most one term.
    pub(crate) fn left_ms(&self, link: &Link, now: Instant) -> u32 {
        if link.shard != self.shard {
            return 0;
        }
        let until = self.until.max(link.renewal.until());
        let left = until.ms_since(now).min(CACHE_TERM_MS);
        u32::try_from(left).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(0).plus_ms(ms)
    }

    #[test]
    fn a_renewal_extends_what_was_granted() {
        let link = Link::new(ShardId(1));
        let term = LeaseTerm::new(&link, at(5_000));
        assert_eq!(term.left_ms(&link, at(4_000)), 1_000);
        assert_eq!(term.left_ms(&link, at(5_000)), 0);
        link.renewal.renew(at(4_000), 5_000);
        assert_eq!(term.left_ms(&link, at(5_000)), 4_000);
        assert!(!link.renewal.has_gap(at(8_999)) && link.renewal.has_gap(at(9_000)));
        link.renewal.renew(at(3_000), 5_000);
        assert_eq!(term.left_ms(&link, at(8_000)), 1_000, "an older renewal");
        link.renewal.end();
        assert_eq!(term.left_ms(&link, at(5_000)), 0);
    }

    #[test]
    fn the_term_is_of_one_shard_and_bounded() {
        let (link, other) = (Link::new(ShardId(1)), Link::new(ShardId(2)));
        let term = LeaseTerm::new(&link, at(900_000));
        assert_eq!(term.left_ms(&link, at(0)), 5_000);
        assert_eq!(term.left_ms(&other, at(0)), 0);
        link.renewal.renew(at(0), u32::MAX);
        assert!(link.renewal.has_gap(at(5_000)));
    }
}
