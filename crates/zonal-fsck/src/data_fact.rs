//! Facts about a file's bytes from inodes, deletions and targets, encoded so that they sort by data
//! id.

use zonal_meta::check::FileDataFact;
use zonal_meta::check::fact_bytes::{self, FACT_BYTES};
use zonal_object::KnownObject;
use zonal_types::{DataId, Ino, Redundancy, Relocation, StripeSetId, TargetId, ZoneId, codec_enum};

/// Unit of `inline`, in bytes.
const BLOCK: u32 = zonal_basics::const_u32(zonal_types::limits::BLOCK_BYTES as u64);
/// No stripe set has this number.
const NO_SET: StripeSetId = StripeSetId(0);

codec_enum! {
    /// One statement about a data id.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DataClaim {
        /// An inode's layout names the data id.
        Expected = 1 {
            /// The inode.
            ino: Ino,
            /// The directory of the inode's entry (0: none).
            dir: Ino,
            /// The entry's cookie.
            cookie: u64,
            /// The stripe set.
            set: StripeSetId,
            /// Slot of column 0.
            start_column: u16,
            /// Columns.
            count: u16,
            /// Stripe unit: bytes per object in a row.
            unit: u32,
            /// Copies of a column in the file's zone, and slots from one to the next; one copy: 1
            /// and 0.
            copies: (u8, u8),
            /// The stripe set of the copy in another zone, and its number among the copies (set 0:
            /// none).
            also: (StripeSetId, u8),
            /// The file's size.
            size: u64,
            /// Allocated bytes, as the inode counts them.
            allocated: u64,
            /// The inode's truncate_seq: its last truncation.
            truncate_seq: u64,
            /// Length of the file's beginning that is in the shard's store, in blocks.
            inline: u8,
        },
        /// A deletion record covers the data id.
        Deleted = 2,
        /// A target stores an object of the data id.
        Found = 3 {
            /// The object's column.
            column: u16,
            /// The target that stores the object.
            target: TargetId,
            /// Length of the object.
            bytes: u64,
            /// Blocks that the object has.
            blocks: u64,
            /// The last truncation that the target applied.
            truncate_seq: u64,
            /// The object's deletion has begun.
            deleting: bool,
            /// The highest order of its changes; 0 where it has none.
            order: u64,
            /// Digest of its contents, where it is known.
            digest: Option<u64>,
        },
        /// An inode's layout has an object of the data id in another slot than the computed one.
        Relocated = 4 {
            /// The inode.
            ino: Ino,
            /// The record.
            relocation: Relocation,
        },
        /// An inode's layout marks the copies of the data id on a target as stale.
        Stale = 5 {
            /// The inode.
            ino: Ino,
            /// The target.
            target: TargetId,
        },
    }
}

/// One fact: a statement and the data id that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFact {
    /// The data id.
    pub data_id: DataId,
    /// The statement.
    pub about: DataClaim,
}

impl DataFact {
    /// Encodes the fact so that the bytes sort by data id. `scratch` saves an allocation.
    #[must_use]
    pub fn encode(&self, scratch: &mut Vec<u8>) -> [u8; FACT_BYTES] {
        fact_bytes::encode(self.data_id.0, &self.about, scratch)
    }

    /// Decodes bytes of [`Self::encode`]; `None` where they are no fact.
    #[must_use]
    pub fn decode(bytes: &[u8; FACT_BYTES]) -> Option<Self> {
        let (data_id, about) = fact_bytes::decode(bytes)?;
        let data_id = DataId(data_id);
        Some(Self { data_id, about })
    }

    /// The fact that an inode with these `data` states. `name` is its entry: directory and cookie.
    #[must_use]
    pub fn expected(ino: Ino, name: Option<(Ino, u64)>, data: &FileDataFact) -> Self {
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
                copies: packed(data.redundancy),
                also: packed_also(data.redundancy),
                size: data.size,
                allocated: data.allocated,
                truncate_seq: data.truncate_seq,
                inline: u8::try_from(data.inline / BLOCK).unwrap_or(u8::MAX),
            },
        }
    }

    /// The file that the fact is about; `None` unless an inode states it.
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
            copies,
            also,
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
            component: (set, start_column, count, unit, unpacked(copies, also)),
            size,
            inline: u64::from(inline) * u64::from(BLOCK),
        })
    }

    /// The fact that `target` states of an object that it stores.
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
                order: known.order,
                digest: known.digest,
            },
        }
    }
}

/// Copies and step in two bytes; a step is less than the slots of a set.
fn packed(redundancy: Redundancy) -> (u8, u8) {
    let byte = |number| u8::try_from(number).unwrap_or(u8::MAX);
    (byte(redundancy.zone_copies()), byte(redundancy.step()))
}

fn packed_also(redundancy: Redundancy) -> (StripeSetId, u8) {
    match redundancy {
        Redundancy::AlsoZone { set, at, .. } => (set, u8::try_from(at).unwrap_or(u8::MAX)),
        Redundancy::None | Redundancy::Copies { .. } => (NO_SET, 0),
    }
}

/// The other zone is that of the set; it does not matter here.
fn unpacked((copies, step): (u8, u8), also: (StripeSetId, u8)) -> Redundancy {
    let of_zone = match copies {
        0 | 1 => Redundancy::None,
        copies => Redundancy::Copies {
            copies: copies.into(),
            step: step.into(),
        },
    };
    match also {
        (NO_SET, _) => of_zone,
        (set, at) => Redundancy::AlsoZone {
            copies: of_zone.copies(),
            step: of_zone.step(),
            zone: ZoneId::CELL,
            set,
            at: at.into(),
        },
    }
}

/// The file that owns a data id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOwner {
    /// The inode.
    pub ino: Ino,
    /// The file's entry: directory and cookie; `None` where no entry is known.
    pub name: Option<(Ino, u64)>,
    /// The layout's component: stripe set, start column, stripe count, stripe unit, redundancy.
    pub component: (StripeSetId, u16, u16, u32, Redundancy),
    /// The file's size.
    pub size: u64,
    /// Length of the file's beginning that is in the shard's store, in bytes.
    pub inline: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inodes_fact_fits_its_bytes_with_and_without_copies() {
        let copies = Redundancy::Copies {
            copies: 3,
            step: 255,
        };
        let also = copies.with_also_zone(ZoneId::CELL, StripeSetId(u32::MAX));
        for redundancy in [Redundancy::None, copies, also] {
            let data = FileDataFact {
                data_id: DataId(u64::MAX),
                set: StripeSetId(u32::MAX),
                start_column: u16::MAX,
                count: u16::MAX,
                unit: u32::MAX,
                redundancy,
                size: u64::MAX,
                allocated: u64::MAX,
                truncate_seq: u64::MAX,
                inline: u32::MAX,
            };
            let fact = DataFact::expected(Ino(u64::MAX), Some((Ino(7), u64::MAX)), &data);
            let bytes = fact.encode(&mut Vec::new());
            let owner = DataFact::decode(&bytes).and_then(|fact| fact.owner());
            assert_eq!(owner.map(|owner| owner.component.4), Some(redundancy));
        }
    }
}
