//! Housekeeping: the shard's work at its deadlines (sessions that expire, leases that end).

use zonal_types::Instant;

use super::host::ShardNote;
use super::waits::Key;
use super::{ShardDriver, ShardHost};
use crate::joined_futures::either;

impl<H: ShardHost> ShardDriver<H> {
    /// Runs housekeeping at each deadline of the shard, until [`Self::stop`] or a failure of the
    /// log.
    pub async fn run_housekeeping(&self) {
        let mut earliest = Instant::default();
        while !self.is_stopping() {
            let (wait, due) = {
                let mut state = self.lock();
                let due = state.shard.poll_deadline().map(|due| due.max(earliest));
                state.sleeps_until = due;
                (self.waits.register(Key::Housekeeping), due)
            };
            match due {
                None => wait.await,
                Some(due) if due > self.host.now().instant => {
                    either(wait, self.host.sleep_until(due)).await;
                }
                Some(_) => {
                    if self.tick().is_err() {
                        return;
                    }
                    earliest = self.host.now().instant.plus_ms(self.pace.tick_ms);
                }
            }
        }
    }

    fn tick(&self) -> Result<(), zonal_types::ErrorCode> {
        let mut state = self.lock();
        self.adopt_map(&mut state);
        let ticked = state.shard.tick(self.host.store(), self.host.now());
        if let Some(code) = ticked.unread {
            self.host.note(ShardNote::UnreadOrphan(code));
        }
        self.log(&mut state, ticked.effect, Vec::new())?;
        for client in ticked.lost {
            self.host.note(ShardNote::ClientLost(client));
        }
        self.wake(&ticked.wake, ticked.recheck);
        Ok(())
    }
}
