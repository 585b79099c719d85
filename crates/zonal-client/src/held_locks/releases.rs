//! Releases that a shard did not take in time.

use super::lock_table::{Owner, owner_of};
use zonal_types::Ino;
use zonal_wire::{LockRange, MetaRequest};

/// Most pending messages; beyond it the newest are dropped, and their locks stay until the session
/// ends.
pub(crate) const LATE_RELEASES_MAX: usize = 65_536;

/// A closed owner: its locks from before the close are released, even if another owner has its
/// name now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClosedOwner {
    pub(crate) ino: Ino,
    pub(crate) owner: Owner,
    /// Only locks got through this open file.
    pub(crate) handle: Option<u64>,
    /// Only requests with a lower number.
    pub(crate) number: u64,
}

impl ClosedOwner {
    pub(crate) fn means(&self, held: &LockRange) -> bool {
        held.number < self.number && self.handle.is_none_or(|handle| held.handle == handle)
    }

    pub(crate) fn request(&self) -> MetaRequest {
        let (owner, whole_file) = self.owner;
        MetaRequest::ReleaseLocks {
            ino: self.ino,
            owner,
            whole_file,
            handle: self.handle,
            number: self.number,
        }
    }
}

/// A message that a shard must still get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingRelease {
    /// An owner has closed.
    Owner(ClosedOwner),
    /// A failed request that the shard may have granted, or queued under `waiter`.
    Request {
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
    },
}

impl PendingRelease {
    pub(crate) fn ino(&self) -> Ino {
        self.owner().0
    }

    /// Inode, owner, and whether its locks are flocks.
    pub(crate) fn owner(&self) -> (Ino, Owner) {
        match self {
            Self::Owner(gone) => (gone.ino, gone.owner),
            Self::Request { ino, range, .. } => (*ino, owner_of(range)),
        }
    }
}
