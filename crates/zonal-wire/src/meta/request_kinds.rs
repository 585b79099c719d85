//! Kinds of requests to a shard: questions that need no execution.

use super::MetaRequest;
use zonal_types::{Credentials, Ino};

impl MetaRequest {
    /// True where all changes acknowledged before, and those of this request, must be durable
    /// before the reply.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        match self {
            Self::ReportWrite { sync, .. } => *sync,
            // Targets see a truncation number that is only given with the next request: it must not
            // be given again.
            // A loss of power must not bring a stale copy back into use.
            Self::Sync
            | Self::MarkStale { .. }
            | Self::GiveUpPlace { .. }
            // The bytes that are given away are deleted.
            | Self::SwapBytes { .. }
            // So would one of a relocation that ended.
            | Self::MendCopy { .. }
            | Self::DisownBehind { .. }
            | Self::AppendEnd {
                reserved: 1..,
                length: 0,
                ..
            } => true,
            _ => false,
        }
    }

    /// True where the request adds to the name space. A shard whose disk is full refuses it, and
    /// accepts requests that free space.
    #[must_use]
    pub fn adds(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::Mkdir { .. }
                | Self::Tmpfile { .. }
                | Self::BeginRestripe { .. }
                | Self::Link { .. }
                | Self::SetXattr { .. }
                | Self::MakeDetachedDir { .. }
                | Self::MoveEntries { .. }
        )
    }

    /// The directory whose entries the request changes, where there is one. The reply may have the
    /// directory's attributes after the change.
    #[must_use]
    pub fn changes_entries_of(&self) -> Option<Ino> {
        match self {
            Self::Create { parent, .. }
            | Self::Mkdir { parent, .. }
            | Self::Unlink { parent, .. }
            | Self::Rmdir { parent, .. }
            | Self::Link { parent, .. } => Some(*parent),
            _ => None,
        }
    }

    /// The inode that decides which shard gets the request. `None` for requests about a session, a
    /// shard, or files of several shards.
    #[must_use]
    pub fn inode(&self) -> Option<Ino> {
        match self {
            Self::Lookup { parent: ino, .. }
            | Self::GetAttr { ino, .. }
            | Self::Access { ino, .. }
            | Self::Readlink { ino }
            | Self::ReadDir { dir: ino, .. }
            | Self::GetXattr { ino, .. }
            | Self::ListXattr { ino, .. }
            | Self::GetLock { ino, .. }
            | Self::Parent { ino }
            | Self::ReadInline { ino }
            | Self::Create { parent: ino, .. }
            | Self::Mkdir { parent: ino, .. }
            | Self::Tmpfile { parent: ino, .. }
            | Self::Unlink { parent: ino, .. }
            | Self::Rmdir { parent: ino, .. }
            | Self::Rename { parent: ino, .. }
            | Self::Link { ino, .. }
            | Self::Open { ino, .. }
            | Self::SetAttr { ino, .. }
            | Self::Truncate { ino, .. }
            | Self::ConfirmTruncate { ino, .. }
            | Self::ReportWrite { ino, .. }
            | Self::AppendBegin { ino, .. }
            | Self::AppendEnd { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::RemoveXattr { ino, .. }
            | Self::SetPolicy { dir: ino, .. }
            | Self::DisownBehind { ino, .. }
            | Self::MarkStale { ino, .. }
            | Self::GiveUpPlace { ino, .. }
            | Self::BeginRestripe { ino, .. }
            | Self::SwapBytes { ino, .. }
            | Self::MendCopy { ino, .. }
            | Self::TakePrivileges { ino, .. }
            | Self::Lock { ino, .. }
            | Self::Unlock { ino, .. }
            | Self::CancelLock { ino, .. }
            | Self::ReleaseLocks { ino, .. }
            | Self::LendEnd { ino }
            | Self::AppendAt { ino, .. } => Some(*ino),
            Self::ReadDirs { dirs, .. } => dirs.first().copied(),
            _ => None,
        }
    }

    /// True where the request may make a new file.
    #[must_use]
    pub fn makes_file(&self) -> bool {
        matches!(
            self,
            Self::Create { .. } | Self::Tmpfile { .. } | Self::BeginRestripe { .. }
        )
    }

    /// True where the request changes durable state and so carries a slot and a sequence.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        matches!(self.tag(), 30..=53)
    }

    /// The user for whom the request is made, where it is subject to a user's rights.
    #[must_use]
    pub fn who(&self) -> Option<&Credentials> {
        match self {
            Self::Lookup { who, .. }
            | Self::Access { who, .. }
            | Self::ReadDir { who, .. }
            | Self::GetXattr { who, .. }
            | Self::ListXattr { who, .. }
            | Self::ReadDirs { who, .. }
            | Self::Create { who, .. }
            | Self::Mkdir { who, .. }
            | Self::Tmpfile { who, .. }
            | Self::BeginRestripe { who, .. }
            | Self::SwapBytes { who, .. }
            | Self::Unlink { who, .. }
            | Self::Rmdir { who, .. }
            | Self::Rename { who, .. }
            | Self::Link { who, .. }
            | Self::Open { who, .. }
            | Self::SetAttr { who, .. }
            | Self::Truncate { who, .. }
            | Self::SetXattr { who, .. }
            | Self::RemoveXattr { who, .. }
            | Self::SetPolicy { who, .. }
            | Self::TakePrivileges { who, .. }
            | Self::MirroredRoot { who, .. }
            | Self::MirroredName { who, .. }
            | Self::MirroredNames { who, .. } => Some(who),
            _ => None,
        }
    }

    /// The same user, to be replaced.
    pub fn who_mut(&mut self) -> Option<&mut Credentials> {
        match self {
            Self::Lookup { who, .. }
            | Self::Access { who, .. }
            | Self::ReadDir { who, .. }
            | Self::GetXattr { who, .. }
            | Self::ListXattr { who, .. }
            | Self::ReadDirs { who, .. }
            | Self::Create { who, .. }
            | Self::Mkdir { who, .. }
            | Self::Tmpfile { who, .. }
            | Self::BeginRestripe { who, .. }
            | Self::SwapBytes { who, .. }
            | Self::Unlink { who, .. }
            | Self::Rmdir { who, .. }
            | Self::Rename { who, .. }
            | Self::Link { who, .. }
            | Self::Open { who, .. }
            | Self::SetAttr { who, .. }
            | Self::Truncate { who, .. }
            | Self::SetXattr { who, .. }
            | Self::RemoveXattr { who, .. }
            | Self::SetPolicy { who, .. }
            | Self::TakePrivileges { who, .. }
            | Self::MirroredRoot { who, .. }
            | Self::MirroredName { who, .. }
            | Self::MirroredNames { who, .. } => Some(who),
            _ => None,
        }
    }
}
