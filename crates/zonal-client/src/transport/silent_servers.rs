//! Silent servers: after a server let a whole operation end without an answer, other calls of the
//! process wait for it only briefly.
//!
//! The kernel admits calls that change one file or one directory one by one. If each waited its
//! full deadline for a stopped server, the tenth call would wait two minutes. Only calls with a
//! waiting caller start a silence. The mount's own threads may wait for long operations, and always
//! use their full deadline. A silence ends with any answer of the server, and after some time,
//! because the server may be slow.
//!
//! A server is named by its address. The replicas of a shard are one server, named by the shard:
//! only the leader's answer ends its silence.

use crate::transport::listing_silences::ListingSilences;
use crate::transport::root_silence::RootSilence;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::Instant;

/// A call waits this part of its deadline for a silent server.
const BRIEF_SHARE: u64 = 16;
/// Least wait, ms.
const BRIEF_MIN: u64 = 100;
/// A silence lasts this many deadlines.
const REMEMBERED: u64 = 2;

/// Silent servers, with the end of each silence.
#[derive(Debug, Default)]
pub(crate) struct SilentServers {
    until: Mutex<BTreeMap<String, Instant>>,
    /// Whether there are any; in good times requests check only this.
    is_any: AtomicBool,
    /// Servers without an answer to a listing of the root.
    pub(crate) listings: ListingSilences,
    /// The root's shard without an answer to a read of a name.
    pub(crate) root: RootSilence,
}

/// How long a call waits for a silent server, ms.
pub(crate) fn brief_ms(patience_ms: u64) -> u64 {
    (patience_ms / BRIEF_SHARE).max(BRIEF_MIN)
}

impl SilentServers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a silence after an operation with this deadline got no answer.
    pub(crate) fn begin(&self, server: &str, now: Instant, patience_ms: u64) {
        let until = now.plus_ms(patience_ms * REMEMBERED);
        self.lock().insert(server.to_owned(), until);
        self.is_any.store(true, Ordering::SeqCst);
    }

    /// Ends a silence: the server has answered.
    pub(crate) fn end(&self, server: &str) {
        self.listings.end(server);
        self.root.end(server);
        if self.is_any.load(Ordering::Relaxed) {
            let mut until = self.lock();
            until.remove(server);
            self.is_any.store(!until.is_empty(), Ordering::SeqCst);
        }
    }

    /// Whether calls must wait only briefly for this server.
    pub(crate) fn is_silent(&self, server: &str, now: Instant) -> bool {
        self.is_any.load(Ordering::Relaxed)
            && self.lock().get(server).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_ends_with_an_answer_and_with_time() {
        let [one, two] = ["127.0.0.1:1", "127.0.0.1:2"];
        let (silences, now) = (SilentServers::default(), Instant(7));
        assert!(!silences.is_silent(one, now));
        silences.begin(one, now, 12_000);
        silences.begin(two, now, 12_000);
        silences.end(two);
        assert!(silences.is_silent(one, now.plus_ms(23_999)));
        assert!(!silences.is_silent(one, now.plus_ms(24_000)));
        assert!(!silences.is_silent(two, now));
        silences.end(one);
        assert!(!silences.is_silent(one, now));
        assert_eq!([brief_ms(12_000), brief_ms(240)], [750, 100]);
    }
}
