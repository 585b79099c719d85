//! The silence of the root's shard: it gave no answer to a read of a name of the root. Other reads
//! then ask the mirror of their zone at once. One read in [`PROBE_EVERY_MS`] asks the root's shard
//! first, and waits [`ROOT_PROBE_MS`] for it. Any answer of the root's shard ends the silence.

use super::mutex::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use zonal_types::Instant;
use zonal_types::limits::{ROOT_NAME_MS, ROOT_PROBE_MS};

/// Time between two reads that ask the silent shard.
const PROBE_EVERY_MS: u64 = 1_000;

/// Whether the root's shard is silent.
#[derive(Debug, Default)]
pub(crate) struct RootSilence {
    silence: Mutex<Option<Silence>>,
    /// Whether it is; in good times requests check only this.
    is_silent: AtomicBool,
}

#[derive(Debug)]
struct Silence {
    /// The server, by its name in [`super::silent_servers`].
    server: String,
    next_probe: Instant,
}

impl RootSilence {
    /// How long a read waits for the root's shard, ms; 0: it asks the mirror at once.
    pub(crate) fn patience_ms(&self, now: Instant) -> u64 {
        if !self.is_silent.load(Ordering::Relaxed) {
            return ROOT_NAME_MS;
        }
        match &mut *lock(&self.silence) {
            None => ROOT_NAME_MS,
            Some(silence) if silence.next_probe <= now => {
                silence.next_probe = now.plus_ms(PROBE_EVERY_MS);
                ROOT_PROBE_MS
            }
            Some(_) => 0,
        }
    }

    /// Notes a read without an answer.
    pub(crate) fn begin(&self, server: String, now: Instant) {
        let next_probe = now.plus_ms(PROBE_EVERY_MS);
        *lock(&self.silence) = Some(Silence { server, next_probe });
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// A server has answered.
    pub(crate) fn end(&self, server: &str) {
        if self.is_silent.load(Ordering::Relaxed) {
            let mut silence = lock(&self.silence);
            silence.take_if(|silence| silence.server == server);
            self.is_silent.store(silence.is_some(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_read_at_a_time_asks_a_silent_shard_until_it_answers() {
        let (silence, now) = (RootSilence::default(), Instant(7));
        assert_eq!(silence.patience_ms(now), ROOT_NAME_MS);
        silence.begin("shard 0".into(), now);
        assert_eq!(silence.patience_ms(now.plus_ms(PROBE_EVERY_MS - 1)), 0);
        let later = now.plus_ms(PROBE_EVERY_MS);
        assert_eq!(silence.patience_ms(later), ROOT_PROBE_MS);
        assert_eq!(silence.patience_ms(later), 0, "another read asks already");
        silence.end("shard 1");
        assert_eq!(silence.patience_ms(later), 0);
        silence.end("shard 0");
        assert_eq!(silence.patience_ms(later), ROOT_NAME_MS);
    }
}
