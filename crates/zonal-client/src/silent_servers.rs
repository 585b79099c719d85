//! Servers that let a whole operation end without an answer: for a while no other call of a process
//! waits long for them.
//!
//! The kernel lets calls that change one file, or one directory, through one by one. Where each
//! waited its whole deadline for a server that stands still, the last of ten would wait for two
//! minutes. The mount's own threads begin no silence, as they may wait for what takes long, and
//! keep asking with all their patience. An answer to anybody ends a silence; so does time, as the
//! server may be slow.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::Instant;

/// Of an operation's patience, what a call has for a silent server.
const BRIEF_SHARE: u64 = 16;
/// In ms, at least.
const BRIEF_MIN: u64 = 100;
/// So many operations' patience long a silence is remembered.
const REMEMBERED: u64 = 2;

/// Silent servers, with the end of what is remembered.
#[derive(Debug, Default)]
pub(crate) struct SilentServers {
    until: Mutex<BTreeMap<String, Instant>>,
    /// There are some: all that a request and its reply look at in good times.
    is_any: AtomicBool,
}

/// How long a call waits for a silent server, in ms.
pub(crate) fn brief_ms(patience_ms: u64) -> u64 {
    (patience_ms / BRIEF_SHARE).max(BRIEF_MIN)
}

impl SilentServers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server has let an operation end that had so much patience.
    pub(crate) fn begin(&self, server: &str, now: Instant, patience_ms: u64) {
        let until = now.plus_ms(patience_ms * REMEMBERED);
        self.lock().insert(server.to_owned(), until);
        self.is_any.store(true, Ordering::SeqCst);
    }

    /// A server has answered.
    pub(crate) fn end(&self, server: &str) {
        if self.is_any.load(Ordering::Relaxed) {
            let mut until = self.lock();
            until.remove(server);
            self.is_any.store(!until.is_empty(), Ordering::SeqCst);
        }
    }

    /// Whether a call is not to wait long for this server.
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
