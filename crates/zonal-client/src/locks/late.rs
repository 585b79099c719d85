//! What a shard must still hear of locks, as it did not answer in time: sent again until it does.
//!
//! Whoever asked was told of an error, or is gone, so nobody else would tell the shard. A shard that starts anew forgets all locks and is
//! not told of these, so what reaches it late changes nothing there; but locks under which something was written that has not arrived stay
//! until it has.

use super::held::Owner;
use crate::client::Client;
use crate::net::Net;
use crate::session::{leaves_gathered, lock};
use std::sync::Mutex;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{LockRange, MetaRequest};

/// What is remembered, oldest first.
pub(crate) type LateReleases = Mutex<Vec<Late>>;

/// How much is remembered; past it what is newest is dropped, and its lock stays until its session ends.
const LATE_RELEASES_MAX: usize = 65_536;

/// What a shard must still hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// An owner is gone.
    Owner {
        ino: Ino,
        owner: u64,
        whole_file: bool,
    },
    /// A request failed that the shard may have granted, or queued under `waiter`.
    Request {
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
    },
}

impl Late {
    /// Inode, owner, and whether it is about flock.
    fn owner(&self) -> (Ino, Owner) {
        match self {
            Self::Owner {
                ino,
                owner,
                whole_file,
            } => (*ino, (*owner, *whole_file)),
            Self::Request { ino, range, .. } => (*ino, (range.owner, range.whole_file)),
        }
    }
}

impl<N: Net> Client<N> {
    /// Takes a request back that may be queued or granted.
    pub async fn take_back(&self, ino: Ino, range: LockRange, waiter: u64) {
        self.take_back_later(ino, range, Some(waiter));
        self.send_late_of(ino, (range.owner, range.whole_file))
            .await
            .ok();
    }

    /// As [`Self::take_back`], with the next housekeeping. From here on the lock counts as not held.
    pub fn take_back_later(&self, ino: Ino, range: LockRange, waiter: Option<u64>) {
        if let Some(waiter) = waiter {
            lock(&self.waiting_locks).remove(&waiter);
        }
        lock(&self.held).forget(ino, &range);
        self.remember_late(Late::Request { ino, range, waiter });
    }

    /// The owner is gone.
    pub(super) fn release_later(&self, ino: Ino, owner: u64, whole_file: bool) {
        self.remember_late(Late::Owner {
            ino,
            owner,
            whole_file,
        });
    }

    fn remember_late(&self, late: Late) {
        let mut all = lock(&self.late_releases);
        if all.len() < LATE_RELEASES_MAX && !all.contains(&late) {
            all.push(late);
        }
    }

    /// Sends what is late of one owner, before it asks for anything else.
    pub(super) async fn send_late_of(&self, ino: Ino, owner: Owner) -> Result<(), ErrorCode> {
        let of_owner = |late: &Late| late.owner() == (ino, owner);
        let late: Vec<Late> = {
            let all = lock(&self.late_releases);
            all.iter().copied().filter(of_owner).collect()
        };
        for late in late {
            self.send_late(late).await?;
        }
        Ok(())
    }

    /// Sends everything that is late; true where some stays.
    pub(crate) async fn send_late_releases(&self) -> bool {
        let late = lock(&self.late_releases).clone();
        for late in late {
            self.net.begin();
            if self.send_late(late).await.is_err() {
                break;
            }
        }
        !lock(&self.late_releases).is_empty()
    }

    async fn send_late(&self, late: Late) -> Result<(), ErrorCode> {
        let sent = match late {
            Late::Owner {
                ino,
                owner,
                whole_file,
            } => {
                self.flush_if_dirty(ino).await?;
                lock(&self.held).give_up(ino, (owner, whole_file), (0, u64::MAX));
                let request = MetaRequest::ReleaseLocks {
                    ino,
                    owner,
                    whole_file,
                };
                self.tell_shard(ino, &request).await
            }
            Late::Request { ino, range, waiter } => self.send_taken_back(ino, range, waiter).await,
        };
        match sent {
            Err(code) if leaves_gathered(code) => Err(code),
            _over => {
                lock(&self.late_releases).retain(|known| *known != late);
                Ok(())
            }
        }
    }

    async fn send_taken_back(
        &self,
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
    ) -> Result<(), ErrorCode> {
        if let Some(waiter) = waiter {
            match self
                .tell_shard(ino, &MetaRequest::CancelLock { ino, waiter })
                .await
            {
                // It was granted, or never came.
                Err(ErrorCode::UnknownLease) => {}
                over => return over,
            }
        }
        self.tell_shard(ino, &MetaRequest::Unlock { ino, range })
            .await?;
        // What the owner held there before.
        let before = lock(&self.held).within(ino, &range);
        for range in before {
            let request = MetaRequest::Lock {
                ino,
                range,
                wait: false,
                waiter: 0,
            };
            self.tell_shard(ino, &request).await?;
        }
        Ok(())
    }

    async fn tell_shard(&self, ino: Ino, request: &MetaRequest) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        self.meta(&link, request).await.map(drop)
    }
}
