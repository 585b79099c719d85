//! What inodes, deletions and targets say of a file's bytes, as facts that can be sorted by data
//! id.

use zonal_meta::check::Data;
use zonal_meta::check::sorted::{self, FACT_BYTES};
use zonal_object::KnownObject;
use zonal_types::{DataId, Ino, StripeSetId, TargetId, codec_enum};

/// Unit of the bytes that a shard keeps.
const BLOCK: u32 = zonal_types::limits::BLOCK_BYTES as u32;
codec_enum! {
    /// What is said of a data id.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DataClaim {
        /// An inode's layout names it.
        Expected = 1 {
            /// The inode.
            ino: Ino,
            /// The directory of its entry (0: none).
            dir: Ino,
            /// The entry's cookie.
            cookie: u64,
            /// The stripe set.
            set: StripeSetId,
            /// Slot of column 0.
            start_column: u16,
            /// Columns.
            count: u16,
            /// Bytes per object in a row.
            unit: u32,
            /// The file's size.
            size: u64,
            /// Allocated bytes, as the inode says.
            allocated: u64,
            /// The last shrink.
            truncate_seq: u64,
            /// First bytes that are in the shard's store, in blocks.
            inline: u8,
        },
        /// A deletion covers it.
        Deleted = 2,
        /// A target has an object of it.
        Found = 3 {
            /// The column.
            column: u16,
            /// The target.
            target: TargetId,
            /// Length of the object.
            bytes: u64,
            /// Its blocks.
            blocks: u64,
            /// The last shrink that was applied.
            truncate_seq: u64,
            /// Its deletion has begun.
            deleting: bool,
        },
    }
}

/// One fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFact {
    /// Of which bytes.
    pub data_id: DataId,
    /// What.
    pub about: DataClaim,
}

impl DataFact {
    /// The fact as bytes that sort by data id. `scratch` saves an allocation.
    #[must_use]
    pub fn encode(&self, scratch: &mut Vec<u8>) -> [u8; FACT_BYTES] {
        sorted::encode(self.data_id.0, &self.about, scratch)
    }

    /// The fact in bytes that [`Self::encode`] gave.
    #[must_use]
    pub fn decode(bytes: &[u8; FACT_BYTES]) -> Option<Self> {
        let (data_id, about) = sorted::decode(bytes)?;
        let data_id = DataId(data_id);
        Some(Self { data_id, about })
    }

    /// What an inode says.
    #[must_use]
    pub fn expected(ino: Ino, name: Option<(Ino, u64)>, data: &Data) -> Self {
        let (dir, cookie) = name.unwrap_or_default();
        Self {
            data_id: data.data_id,
            about: DataClaim::Expected {
                ino,
                dir,
                cookie,
                set: data.set,
                start_column: data.start_column,
                count: data.count,
                unit: data.unit,
                size: data.size,
                allocated: data.allocated,
                truncate_seq: data.truncate_seq,
                inline: u8::try_from(data.inline / BLOCK).unwrap_or(u8::MAX),
            },
        }
    }

    /// The file that a fact of an inode is about.
    #[must_use]
    pub fn owner(&self) -> Option<DataOwner> {
        let DataClaim::Expected {
            ino,
            dir,
            cookie,
            set,
            start_column,
            count,
            unit,
            size,
            inline,
            ..
        } = self.about
        else {
            return None;
        };
        Some(DataOwner {
            ino,
            name: (dir != Ino(0)).then_some((dir, cookie)),
            component: (set, start_column, count, unit),
            size,
            inline: u64::from(inline) * u64::from(BLOCK),
        })
    }

    /// What a target has.
    #[must_use]
    pub fn found(target: TargetId, known: &KnownObject) -> Self {
        Self {
            data_id: known.object.data_id,
            about: DataClaim::Found {
                column: known.object.column.0,
                target,
                bytes: known.bytes,
                blocks: known.blocks,
                truncate_seq: known.truncate_seq,
                deleting: known.deleting,
            },
        }
    }
}

/// The file that bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOwner {
    /// Its inode.
    pub ino: Ino,
    /// Its entry: directory and cookie; no directory where it has none.
    pub name: Option<(Ino, u64)>,
    /// Its layout, as far as it matters here.
    pub component: (StripeSetId, u16, u16, u32),
    /// Its size.
    pub size: u64,
    /// First bytes that are in the shard's store.
    pub inline: u64,
}
