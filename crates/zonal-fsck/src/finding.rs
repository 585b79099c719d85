//! Findings: the place, the kind, the consequence and the repair.

mod differing_copies;
mod texts;

pub use differing_copies::{ColumnCopy, CopyChoice};

use crate::junctions::Mismatch;
use crate::ranges::Ranges;
use differing_copies::targets_of;
use zonal_object::ObjectId;
use zonal_types::{Column, DataId, Ino, ShardId, TargetId};

/// The part of the cell that a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingPlace {
    /// The store of the manager and the root's shard.
    Manager,
    /// The store of a zone's shard.
    Shard(ShardId),
    /// The store of a target.
    Target(TargetId),
    /// Several stores, compared with one another.
    Cell,
}

impl std::fmt::Display for FindingPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Manager => f.write_str("manager"),
            Self::Shard(id) => write!(f, "shard {id}"),
            Self::Target(id) => write!(f, "target {id}"),
            Self::Cell => f.write_str("cell"),
        }
    }
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Left by a crash, or known already and reported once more: the cell counts as clean.
    Note,
    /// Something is wrong, but no bytes of files are.
    Wrong,
    /// Bytes or names of files are lost.
    Lost,
}

/// Damage to the files of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreFault {
    /// The folder or its store is not there.
    #[error("the store is missing: {0}")]
    Missing(String),
    /// The store belongs to another node or cell.
    #[error("this is not the store that belongs here: {0}")]
    Stranger(String),
    /// The store's identity is unusable.
    #[error("the identity is unusable: {0}")]
    Identity(String),
    /// The record of the store's starts is lost: nobody can tell which start was the last.
    #[error("the record of its starts is lost")]
    Starts,
    /// The log's file is unusable.
    #[error("the log is lost: {0}")]
    LogLost(String),
    /// The log is torn: records before its end cannot be read.
    #[error("the log is torn: {0}")]
    LogTorn(String),
    /// A flipped bit of the log, corrected by a checksum. The byte's position.
    #[error("a flipped bit in the byte at {0} of the log")]
    LogFlipped(u64),
    /// The index's file is unusable.
    #[error("the index is lost: {0}")]
    IndexLost(String),
    /// The index can be read, but not opened for use.
    #[error("the index cannot be opened for use: {0}")]
    IndexShut(String),
    /// A flipped bit of the index, corrected by a checksum. The page's position.
    #[error("a flipped bit in the page at {0} of the index")]
    Flipped(u64),
    /// A page of the index is lost. Its position.
    #[error("the page at {0} of the index is lost")]
    BadPage(u64),
    /// An entry of the index is lost.
    #[error("the entry {0} of the index fails its checksum")]
    BadEntry(String),
    /// The index is damaged, and its copy is whole.
    #[error("the index is damaged, its copy is whole: {0}")]
    FromCopy(String),
    /// The copy of the index is damaged.
    #[error("the copy of the index is damaged: {0}")]
    Copy(String),
    /// A file that belongs to no store.
    #[error("{0} does not belong to the store")]
    Foreign(String),
    /// A segment file is missing or shorter than it has to be.
    #[error("segment {0} is missing or cut")]
    Segment(u32),
}

/// The kind of a finding, with its details.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindingKind {
    /// Damage to the files of a store.
    #[error("{0}")]
    Store(StoreFault),
    /// An inconsistency within a shard's store.
    #[error("{0}")]
    Shard(zonal_meta::check::Broken),
    /// An inconsistency within a target's store.
    #[error("{0}")]
    Target(zonal_object::TargetDefect),
    /// The records of a first-level directory disagree.
    #[error("{0}")]
    Junction(Mismatch),
    /// The zone map cannot be read.
    #[error("the zone map is lost: {0}")]
    MapLost(String),
    /// Objects whose data id no inode's layout names.
    #[error("data {data_id} has {objects} objects of {bytes} bytes and no inode")]
    NoInode {
        /// The data id.
        data_id: DataId,
        /// Number of objects.
        objects: u32,
        /// Bytes in these objects.
        bytes: u64,
    },
    /// An object on a target where no layout puts it.
    #[error("object {object} of inode {ino} lies where its layout does not put it")]
    Misplaced {
        /// The object.
        object: ObjectId,
        /// The inode that the object belongs to.
        ino: Ino,
        /// Whether the target that the layout names has the object, too.
        is_copy: bool,
    },
    /// Two inodes have layouts with the same data id.
    #[error("inode {ino} claims data {data_id}, which is inode {other}'s")]
    Shared {
        /// The data id.
        data_id: DataId,
        /// The inode that the finding is about.
        ino: Ino,
        /// The inode that was read first.
        other: Ino,
    },
    /// An invalid layout.
    #[error("the layout of inode {ino} cannot be used")]
    Layout {
        /// The inode.
        ino: Ino,
    },
    /// Objects have a higher truncate_seq than their inode.
    #[error("inode {ino} knows {known} shrinks, its objects {found}")]
    Shrinks {
        /// The inode.
        ino: Ino,
        /// truncate_seq of the inode.
        known: u64,
        /// truncate_seq of the object.
        found: u64,
    },
    /// Objects reach behind the file's size.
    #[error("inode {ino} has {size} bytes, its objects reach to {end}")]
    BehindSize {
        /// The inode.
        ino: Ino,
        /// Its size.
        size: u64,
        /// End of the data in the objects.
        end: u64,
    },
    /// The inode's count of allocated bytes is wrong.
    #[error("inode {ino} counts {counted} allocated bytes, has {found}")]
    Allocated {
        /// The inode.
        ino: Ino,
        /// Allocated bytes by the inode's count.
        counted: u64,
        /// Allocated bytes in its objects and the shard.
        found: u64,
    },
    /// Bytes of a file were on a target that is gone.
    #[error("{ranges} of inode {ino} are lost with target {target}")]
    LostWithTarget {
        /// The file.
        ino: Ino,
        /// The target.
        target: TargetId,
        /// The lost ranges.
        ranges: Ranges,
    },
    /// The copies of a column differ, and none of them is known to be stale.
    #[error("copies of column {column} of inode {ino} differ: {} from {} ({chosen})", targets_of(.wrong), targets_of(.right))]
    CopiesDiffer {
        /// The file.
        ino: Ino,
        /// The data id.
        data_id: DataId,
        /// The column.
        column: Column,
        /// Copies with the contents that a repair keeps.
        right: Vec<ColumnCopy>,
        /// Copies with other contents.
        wrong: Vec<ColumnCopy>,
        /// Why these contents are kept.
        chosen: CopyChoice,
    },
    /// Bytes of a file fail their checksum.
    #[error("{ranges} of inode {ino} are damaged on target {target}")]
    Damaged {
        /// The file.
        ino: Ino,
        /// The target.
        target: TargetId,
        /// The damaged ranges.
        ranges: Ranges,
    },
    /// Bytes of a file were marked as lost by an earlier repair.
    #[error("{ranges} of inode {ino} are known to be lost")]
    KnownLost {
        /// The file.
        ino: Ino,
        /// The target.
        target: TargetId,
        /// The lost ranges.
        ranges: Ranges,
    },
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The part of the cell.
    pub place: FindingPlace,
    /// The kind, with its details.
    pub what: FindingKind,
    /// The path of the file or directory, where it is known.
    pub path: Option<String>,
}

impl FindingKind {
    /// The severity.
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

    /// A short name for scripts. These names never change.
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
            Self::CopiesDiffer { .. } => "copies-differ",
            Self::Damaged { .. } => "damaged",
            Self::KnownLost { .. } => "known-lost",
        }
    }

    /// The consequence for users as long as nothing is repaired.
    #[must_use]
    pub fn consequence(&self) -> &'static str {
        texts::consequence(self.name())
    }

    /// The action of `--repair`.
    #[must_use]
    pub fn repair(&self) -> &'static str {
        texts::repair(self.name())
    }
}

impl Finding {
    /// A finding without a path.
    #[must_use]
    pub fn new(place: FindingPlace, what: FindingKind) -> Self {
        Self {
            place,
            what,
            path: None,
        }
    }

    /// Whether the finding makes the cell count as damaged; notes do not.
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
