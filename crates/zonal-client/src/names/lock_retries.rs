//! Retries of lock releases: messages that a shard did not answer in time are sent again until it
//! does.
//!
//! The original caller got an error or is gone, so nobody else would tell the shard. A restarted
//! shard forgets all locks and is not told of these, so a late message changes nothing there. Locks
//! over writes that have not arrived stay until the writes have arrived.

use crate::client::{Client, ClientCall};
use crate::held_locks::{ClosedOwner, LATE_RELEASES_MAX, Owner, PendingRelease, owner_of};
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::retry::leaves_gathered;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{LockRange, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Withdraws a request that may be queued or granted.
    pub async fn take_back(&self, ino: Ino, range: LockRange, waiter: u64) {
        self.take_back_later(ino, range, Some(waiter));
        self.send_taken_back(ino, range).await;
    }
}

impl<N: Net> Client<N> {
    /// As `take_back`, sent with the next housekeeping or `send_taken_back`. From
    /// here on the lock counts as not held. The caller of the request gets its result after this
    /// call: a repeated request goes behind the withdrawal.
    pub fn take_back_later(&self, ino: Ino, range: LockRange, waiter: Option<u64>) {
        let mut locks = lock(&self.locks);
        locks.withdraw(ino, &range, waiter);
        let late = PendingRelease::Request { ino, range, waiter };
        if locks.late.len() < LATE_RELEASES_MAX && !locks.late.contains(&late) {
            locks.late.push(late);
        }
        assert!(
            locks.late.len() <= LATE_RELEASES_MAX,
            "{} releases are pending",
            locks.late.len()
        );
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Sends the pending messages of the range's owner to the shard.
    pub async fn send_taken_back(&self, ino: Ino, range: LockRange) {
        self.send_late_of(ino, owner_of(&range)).await.ok();
    }

    /// Remembers a closed owner for later.
    pub(super) fn release_later(&self, gone: ClosedOwner) {
        let mut locks = lock(&self.locks);
        let late = PendingRelease::Owner(gone);
        if locks.late.len() < LATE_RELEASES_MAX && !locks.late.contains(&late) {
            locks.late.push(late);
        }
        assert!(
            locks.late.len() <= LATE_RELEASES_MAX,
            "{} releases are pending",
            locks.late.len()
        );
    }

    /// Sends the pending messages of one owner, before its next request.
    pub(super) async fn send_late_of(&self, ino: Ino, owner: Owner) -> Result<(), ErrorCode> {
        let of_owner = |late: &PendingRelease| late.owner() == (ino, owner);
        let late: Vec<PendingRelease> = {
            let locks = lock(&self.locks);
            locks.late.iter().copied().filter(of_owner).collect()
        };
        for late in late {
            self.send_late(late).await?;
        }
        Ok(())
    }

    /// Sends all pending messages; true where some remain.
    pub(crate) async fn send_late_releases(&self) -> bool {
        let late = lock(&self.locks).late.clone();
        for late in late {
            if self.another().send_late(late).await.is_err() {
                break;
            }
        }
        !lock(&self.locks).late.is_empty()
    }

    async fn send_late(&self, late: PendingRelease) -> Result<(), ErrorCode> {
        let (ino, request) = match late {
            PendingRelease::Owner(gone) => {
                self.flush_if_dirty(gone.ino).await?;
                let (all, is_meant) = ((0, u64::MAX), |held: &LockRange| gone.means(held));
                let mut locks = lock(&self.locks);
                locks.held.give_up(gone.ino, gone.owner, all, is_meant);
                (gone.ino, gone.request())
            }
            PendingRelease::Request { ino, range, waiter } => {
                let request = MetaRequest::CancelLock {
                    ino,
                    range,
                    waiter: waiter.unwrap_or(0),
                    // The owner's earlier locks there.
                    before: lock(&self.locks).held.within(ino, &range),
                };
                (ino, request)
            }
        };
        match self.tell_shard(ino, &request).await {
            Err(code) if leaves_gathered(code) => Err(code),
            _over => {
                let mut locks = lock(&self.locks);
                locks.late.retain(|known| *known != late);
                if let PendingRelease::Request { ino, range, .. } = late {
                    locks.settle(ino, &range);
                }
                Ok(())
            }
        }
    }

    async fn tell_shard(&self, ino: Ino, request: &MetaRequest) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        self.meta(&link, request).await.map(drop)
    }
}
