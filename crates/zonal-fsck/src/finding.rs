//! What was found: where, what it leads to, what a repair does about it.

mod texts;

use crate::junctions::Mismatch;
use crate::ranges::Ranges;
use zonal_object::ObjectId;
use zonal_types::{DataId, Ino, ShardId, TargetId};

/// Which part of the cell a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The store of the manager and the root's shard.
    Manager,
    /// The store of a zone's shard.
    Shard(ShardId),
    /// The store of a target.
    Target(TargetId),
    /// What lies between stores.
    Cell,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Manager => f.write_str("manager"),
            Self::Shard(id) => write!(f, "shard {id}"),
            Self::Target(id) => write!(f, "target {id}"),
            Self::Cell => f.write_str("cell"),
        }
    }
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// What a crash may leave, or what is known and told once more: counts as clean.
    Note,
    /// Something is wrong, and no byte of a file is.
    Wrong,
    /// Bytes or names of files are lost.
    Lost,
}

/// What is wrong with the files of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreFault {
    /// The folder or its store is not there.
    #[error("the store is missing: {0}")]
    Missing(String),
    /// The store is another's.
    #[error("this is not the store that belongs here: {0}")]
    Stranger(String),
    /// Its identity is unusable.
    #[error("the identity is unusable: {0}")]
    Identity(String),
    /// Nobody can tell which start of it was the last.
    #[error("the record of its starts is lost")]
    Starts,
    /// The log's file cannot be used.
    #[error("the log is lost: {0}")]
    LogLost(String),
    /// The log ends before its end.
    #[error("the log is torn: {0}")]
    LogTorn(String),
    /// A flipped bit of the log that a checksum put right.
    #[error("a flipped bit in the byte at {0} of the log")]
    LogFlipped(u64),
    /// The index's file cannot be used.
    #[error("the index is lost: {0}")]
    IndexLost(String),
    /// The index can be read and not be opened for use.
    #[error("the index cannot be opened for use: {0}")]
    IndexShut(String),
    /// A flipped bit that a checksum put right.
    #[error("a flipped bit in the page at {0} of the index")]
    Flipped(u64),
    /// A page of the index is lost.
    #[error("the page at {0} of the index is lost")]
    BadPage(u64),
    /// An entry of the index is lost.
    #[error("the entry {0} of the index fails its checksum")]
    BadEntry(String),
    /// The index is damaged, and its copy has all of it.
    #[error("the index is damaged, its copy is whole: {0}")]
    FromCopy(String),
    /// The copy of the index is damaged.
    #[error("the copy of the index is damaged: {0}")]
    Copy(String),
    /// A file that no store has.
    #[error("{0} does not belong to the store")]
    Foreign(String),
    /// A segment file is not there or not as long as it has to be.
    #[error("segment {0} is missing or cut")]
    Segment(u32),
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// With the files of a store.
    #[error("{0}")]
    Store(StoreFault),
    /// With what a shard's store says.
    #[error("{0}")]
    Shard(zonal_meta::check::Broken),
    /// With what a target's store says.
    #[error("{0}")]
    Target(zonal_object::TargetDefect),
    /// With a first-level directory.
    #[error("{0}")]
    Junction(Mismatch),
    /// The zone map cannot be read.
    #[error("the zone map is lost: {0}")]
    MapLost(String),
    /// Objects that no inode's layout names.
    #[error("data {data_id} has {objects} objects of {bytes} bytes and no inode")]
    NoInode {
        /// The identity of the bytes.
        data_id: DataId,
        /// How many.
        objects: u32,
        /// Bytes in them.
        bytes: u64,
    },
    /// An object on a target where no layout puts it.
    #[error("object {object} of inode {ino} lies where its layout does not put it")]
    Misplaced {
        /// The object.
        object: ObjectId,
        /// Whose it is.
        ino: Ino,
        /// Whether the target of the layout has one, too.
        is_copy: bool,
    },
    /// Two inodes claim the same bytes.
    #[error("inode {ino} claims data {data_id}, which is inode {other}'s")]
    Shared {
        /// The identity of the bytes.
        data_id: DataId,
        /// The one that claims them.
        ino: Ino,
        /// The other.
        other: Ino,
    },
    /// A layout that means nothing.
    #[error("the layout of inode {ino} cannot be used")]
    Layout {
        /// The inode.
        ino: Ino,
    },
    /// Targets know a later shrink than the inode.
    #[error("inode {ino} knows {known} shrinks, its objects {found}")]
    Shrinks {
        /// The inode.
        ino: Ino,
        /// What the inode says.
        known: u64,
        /// What an object says.
        found: u64,
    },
    /// Data behind the size that the inode tells.
    #[error("inode {ino} has {size} bytes, its objects reach to {end}")]
    BehindSize {
        /// The inode.
        ino: Ino,
        /// Its size.
        size: u64,
        /// Where the data end.
        end: u64,
    },
    /// The allocated bytes are counted wrongly.
    #[error("inode {ino} counts {counted} allocated bytes, has {found}")]
    Allocated {
        /// The inode.
        ino: Ino,
        /// What it says.
        counted: u64,
        /// What there is.
        found: u64,
    },
    /// Bytes of a file are on a target that is gone.
    #[error("{ranges} of inode {ino} are lost with target {target}")]
    LostWithTarget {
        /// The file.
        ino: Ino,
        /// The target.
        target: TargetId,
        /// Which bytes.
        ranges: Ranges,
    },
    /// Bytes of a file fail their checksum.
    #[error("{ranges} of inode {ino} are damaged on target {target}")]
    Damaged {
        /// The file.
        ino: Ino,
        /// The target.
        target: TargetId,
        /// Which bytes.
        ranges: Ranges,
    },
    /// Bytes of a file are known to be lost.
    #[error("{ranges} of inode {ino} are known to be lost")]
    KnownLost {
        /// The file.
        ino: Ino,
        /// The target.
        target: TargetId,
        /// Which bytes.
        ranges: Ranges,
    },
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// What.
    pub what: What,
    /// The path of the file or directory, where it is known.
    pub path: Option<String>,
}

impl What {
    /// How much it matters.
    #[must_use]
    pub fn class(&self) -> Class {
        use zonal_meta::check::Broken as Meta;
        match self {
            Self::Allocated { .. } | Self::BehindSize { .. } | Self::KnownLost { .. } => {
                Class::Note
            }
            Self::LostWithTarget { .. } | Self::Damaged { .. } | Self::MapLost(_) => Class::Lost,
            Self::Shard(Meta::Key { .. } | Meta::LeadsNowhere { .. }) => Class::Lost,
            Self::Target(zonal_object::TargetDefect::Key { .. }) => Class::Lost,
            Self::Store(fault) => match fault {
                StoreFault::Foreign(_) => Class::Note,
                StoreFault::Flipped(_)
                | StoreFault::LogFlipped(_)
                | StoreFault::Identity(_)
                | StoreFault::Starts
                | StoreFault::FromCopy(_)
                | StoreFault::Copy(_)
                | StoreFault::IndexShut(_) => Class::Wrong,
                _ => Class::Lost,
            },
            _ => Class::Wrong,
        }
    }

    /// A short name for scripts; never changes.
    #[must_use]
    pub fn name(&self) -> &'static str {
        use zonal_meta::check::Broken as Meta;
        use zonal_object::TargetDefect as Object;
        match self {
            Self::Store(fault) => match fault {
                StoreFault::Missing(_) => "store-missing",
                StoreFault::Stranger(_) => "store-stranger",
                StoreFault::Identity(_) => "identity",
                StoreFault::Starts => "starts",
                StoreFault::LogLost(_) => "log-lost",
                StoreFault::LogTorn(_) => "log-torn",
                StoreFault::LogFlipped(_) => "log-bit",
                StoreFault::IndexLost(_) => "index-lost",
                StoreFault::IndexShut(_) => "index-shut",
                StoreFault::Flipped(_) => "index-bit",
                StoreFault::BadPage(_) => "index-page",
                StoreFault::BadEntry(_) => "index-entry",
                StoreFault::FromCopy(_) => "index-from-copy",
                StoreFault::Copy(_) => "index-copy",
                StoreFault::Foreign(_) => "foreign-file",
                StoreFault::Segment(_) => "segment",
            },
            Self::Shard(broken) => match broken {
                Meta::Key { .. } => "shard-key",
                Meta::WrongPlace { .. } | Meta::NoFirstPlace { .. } => "entry-place",
                Meta::NotInDirectory { .. } => "entry-no-directory",
                Meta::LeadsNowhere { .. } => "entry-nowhere",
                Meta::WrongType { .. } => "entry-type",
                Meta::WrongParent { .. } => "directory-parent",
                Meta::NoName { .. } => "inode-no-name",
                Meta::SecondName { .. } => "directory-names",
                Meta::Cycle { .. } => "directory-cycle",
                Meta::Counts { .. } => "directory-counts",
                Meta::Links { .. } => "inode-links",
                Meta::OrphanMark { .. } => "orphan",
                Meta::DetachedMark { .. } => "detached",
                Meta::AliveDeletion { .. } => "deletion",
                Meta::Xattrs { .. } => "inode-xattrs",
                Meta::Inline { .. } => "inode-bytes",
                Meta::Homeless { .. } => "inode-remains",
                Meta::Ids { .. } => "inode-numbers",
                Meta::DataIds { .. } => "data-numbers",
                Meta::Unindexed { .. } | Meta::StrayData { .. } => "data-inode",
            },
            Self::Target(broken) => match broken {
                Object::Unreadable(_) | Object::Key { .. } => "target-key",
                Object::Note => "target-note",
                Object::Geometry { .. } => "target-geometry",
                Object::Twice { .. } => "unit-twice",
                Object::Outside { .. } => "unit-outside",
                Object::NotMarked(_) | Object::Leaked(_) => "allocation",
                Object::NoHeader(_) => "object-header",
                Object::Blocks { .. } => "object-blocks",
                Object::Objects { .. } => "object-count",
                Object::Tombstone(_) | Object::HalfDeleted(_) => "object-deletion",
            },
            Self::Junction(_) => "junction",
            Self::MapLost(_) => "map-lost",
            Self::NoInode { .. } => "object-no-inode",
            Self::Misplaced { .. } => "object-misplaced",
            Self::Shared { .. } => "data-shared",
            Self::Layout { .. } => "layout",
            Self::Shrinks { .. } => "shrinks",
            Self::BehindSize { .. } => "data-behind-size",
            Self::Allocated { .. } => "allocated",
            Self::LostWithTarget { .. } => "lost-with-target",
            Self::Damaged { .. } => "damaged",
            Self::KnownLost { .. } => "known-lost",
        }
    }

    /// What it leads to as long as it stays.
    #[must_use]
    pub fn consequence(&self) -> &'static str {
        texts::consequence(self.name())
    }

    /// What `--repair` does about it.
    #[must_use]
    pub fn repair(&self) -> &'static str {
        texts::repair(self.name())
    }
}

impl Finding {
    /// A finding without a path.
    #[must_use]
    pub fn new(place: Place, what: What) -> Self {
        Self {
            place,
            what,
            path: None,
        }
    }

    /// Whether it counts: the rest is told and leaves the cell clean.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.what.class() != Class::Note
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)?;
        match &self.path {
            Some(path) => write!(f, " ({path})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
