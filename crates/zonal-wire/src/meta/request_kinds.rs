//! What can be said of a request to a shard without executing it.

use super::MetaRequest;
use zonal_types::{Credentials, Ino};

impl MetaRequest {
    /// True where everything is to be durable before the reply that the shard acknowledged before,
    /// this request included.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        match self {
            Self::ReportWrite { sync, .. } => *sync,
            // Targets hear of the number of a cut that is only given with the next request: it must
            // not be given again.
            Self::Sync
            | Self::DisownBehind { .. }
            | Self::AppendEnd {
                reserved: 1..,
                length: 0,
                ..
            } => true,
            _ => false,
        }
    }

    /// True where it adds to the name space: a shard whose disk is full refuses it, and takes what
    /// frees space.
    #[must_use]
    pub fn adds(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::Mkdir { .. }
                | Self::Tmpfile { .. }
                | Self::Link { .. }
                | Self::SetXattr { .. }
                | Self::MakeDetachedDir { .. }
        )
    }

    /// The directory whose entries it changes, where that is one: the reply may tell what that is
    /// then.
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

    /// True where a file may be made that was not there before.
    #[must_use]
    pub fn makes_file(&self) -> bool {
        matches!(self, Self::Create { .. } | Self::Tmpfile { .. })
    }

    /// True where the request changes durable state and so carries a slot and a sequence.
    #[must_use]
    pub fn is_mutation(&self) -> bool {
        matches!(self.tag(), 30..=50)
    }

    /// The user for whom it asks, where it is subject to a user's rights.
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
            | Self::TakePrivileges { who, .. } => Some(who),
            _ => None,
        }
    }

    /// The same, to be changed.
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
            | Self::TakePrivileges { who, .. } => Some(who),
            _ => None,
        }
    }
}
