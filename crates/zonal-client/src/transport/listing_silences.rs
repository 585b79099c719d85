//! Servers that gave no answer to a listing of the root. For some time listings do not ask them,
//! and stats that belong to a listing fail at once.
//!
//! They are apart from [`super::silent_servers`]: half a second without an answer says too little
//! for the operations of users, which keep their deadlines.
//!
//! A silence begins as a suspicion. A second request in vain confirms it. Any answer of the server
//! ends it. After [`ROOT_SILENCE_MS`] the server is asked again.
//!
//! *Bound*: the servers and shards of the map.

use super::mutex::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use zonal_types::limits::ROOT_SILENCE_MS;
use zonal_types::{ErrorCode, Ino, Instant};

/// A server without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListingSilence {
    until: Instant,
    /// An inode by which the server can be asked again; 0: none is known.
    pub(crate) ino: Ino,
    /// How the last request failed.
    pub(crate) code: ErrorCode,
    pub(crate) is_confirmed: bool,
}

/// Servers without an answer to a listing, by name: see [`super::silent_servers`].
#[derive(Debug, Default)]
pub(crate) struct ListingSilences {
    servers: Mutex<BTreeMap<String, ListingSilence>>,
    /// Whether there are any; in good times requests check only this.
    is_any: AtomicBool,
}

impl ListingSilences {
    /// Notes a request in vain. The second without an answer in between confirms the silence.
    pub(crate) fn begin(&self, server: &str, now: Instant, ino: Ino, code: ErrorCode) {
        let mut servers = lock(&self.servers);
        let known = servers.get(server);
        let silence = ListingSilence {
            until: now.plus_ms(ROOT_SILENCE_MS),
            ino: known.map_or(ino, |known| if ino == Ino(0) { known.ino } else { ino }),
            code,
            is_confirmed: known.is_some(),
        };
        servers.insert(server.to_owned(), silence);
        self.is_any.store(true, Ordering::SeqCst);
    }

    /// Ends a silence: the server has answered.
    pub(crate) fn end(&self, server: &str) {
        if self.is_any.load(Ordering::Relaxed) {
            let mut servers = lock(&self.servers);
            servers.remove(server);
            self.is_any.store(!servers.is_empty(), Ordering::SeqCst);
        }
    }

    /// The silence of a server that is not to be asked now.
    pub(crate) fn of(&self, server: &str, now: Instant) -> Option<ListingSilence> {
        if !self.is_any.load(Ordering::Relaxed) {
            return None;
        }
        let silence = lock(&self.servers).get(server).copied();
        silence.filter(|silence| now < silence.until)
    }

    /// Whether the server gave no answer when it was asked last, however long ago.
    pub(crate) fn remembers(&self, server: &str) -> bool {
        self.is_any.load(Ordering::Relaxed) && lock(&self.servers).contains_key(server)
    }

    /// Inodes of all suspected servers.
    pub(crate) fn suspects(&self, now: Instant) -> Vec<Ino> {
        let servers = lock(&self.servers);
        let suspects = servers.values();
        suspects
            .filter(|silence| now < silence.until && !silence.is_confirmed && silence.ino != Ino(0))
            .map(|silence| silence.ino)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_confirmed_by_a_second_request_and_ends_with_an_answer_or_time() {
        let (silences, now) = (ListingSilences::default(), Instant(7));
        let [one, two] = ["127.0.0.1:1", "127.0.0.1:2"];
        assert!(silences.of(one, now).is_none() && !silences.remembers(one));
        silences.begin(one, now, Ino(5), ErrorCode::TimedOut);
        silences.begin(two, now, Ino(0), ErrorCode::Unreachable);
        assert!(!silences.of(one, now).unwrap().is_confirmed);
        assert_eq!(silences.suspects(now), [Ino(5)]);
        let later = now.plus_ms(ROOT_SILENCE_MS);
        assert!(silences.of(one, later).is_none() && silences.remembers(one));
        assert!(silences.suspects(later).is_empty());
        silences.begin(one, later, Ino(0), ErrorCode::TimedOut);
        let confirmed = silences.of(one, later).unwrap();
        assert!(confirmed.is_confirmed && confirmed.ino == Ino(5));
        assert!(silences.suspects(later).is_empty());
        silences.end(one);
        assert!(silences.of(one, later).is_none() && !silences.remembers(one));
        assert_eq!(
            silences.of(two, now).map(|silence| silence.code),
            Some(ErrorCode::Unreachable)
        );
    }
}
