//! Parts of a finding about copies that differ.

use zonal_types::{Column, TargetId, codec_enum, codec_struct};

codec_struct! {
    /// A copy of a column.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ColumnCopy {
        /// The object that is the copy.
        object: Column,
        /// The target that stores it.
        target: TargetId,
        /// Blocks that the object has.
        blocks: u64,
    }
}

codec_enum! {
    /// Why the contents of a copy are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CopyChoice {
        /// It has a later change than the others.
        Newest = 1,
        /// Most of the newest copies have these contents.
        Majority = 2,
        /// It is the first of the newest copies; nobody knows more.
        First = 3,
    }
}

impl std::fmt::Display for CopyChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Newest => "which has the latest change",
            Self::Majority => "which are the majority",
            Self::First => "which is the first copy",
        })
    }
}

/// The targets of copies, for people.
pub(super) fn targets_of(copies: &[ColumnCopy]) -> String {
    let noun = match copies {
        [_] => "target",
        _ => "targets",
    };
    let numbers: Vec<String> = copies.iter().map(|copy| copy.target.to_string()).collect();
    format!("{noun} {}", numbers.join(", "))
}
