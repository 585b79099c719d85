//! Identifiers. Each is a type of its own, so that the compiler rejects one in place of another.

use crate::codec::{Codec, CodecError, Reader};
use zonal_basics::{Hex, from_hex};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($int:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl Codec for $name {
            fn put(&self, out: &mut Vec<u8>) { self.0.put(out); }
            fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> { Ok(Self(<$int>::get(from)?)) }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { self.0.fmt(f) }
        }
    )*};
}

ids! {
    /// A zone: a leaf switch and the nodes on it. 1 and up; 0 is "none".
    ZoneId(u16);
    /// A node: one server process with an address.
    NodeId(u32);
    /// A target: one unit of storage that fails as one.
    TargetId(u32);
    /// A metadata server's part of the name space. 0 is the root shard.
    ShardId(u32);
    /// A unit of the name space that moves between shards; 20 bits. 0 is the root's.
    PartitionId(u32);
    /// An ordered list of slots in the zone map.
    StripeSetId(u32);
    /// Identity of a file's stored bytes, apart from its inode number; never reused. Like an inode
    /// number it names the partition that issued it.
    DataId(u64);
    /// A client's session at one shard.
    SessionId(u64);
    /// A client in the whole cell: a random number drawn when it starts. 0: none.
    ClientId(u64);
    /// Rises when a shard has forgotten a session of the client. 1 and up; 0 is "none".
    Incarnation(u32);
    /// Follows one operation through all servers.
    TraceId(u64);
    /// The zone map's version; 1 is the first.
    MapVersion(u64);
    /// A number that rises each time the thing it belongs to changes hands.
    Epoch(u64);
    /// Rises with each change of a file's layout.
    LayoutGen(u32);
    /// The place of an object in a stripe; also the index of a slot in a stripe set.
    Column(u16);
}

impl PartitionId {
    /// All inode numbers of the partition.
    #[must_use]
    pub fn inos(self) -> std::ops::RangeInclusive<Ino> {
        Ino::new(self, 0)..=Ino::new(self, u64::MAX)
    }
}

impl ZoneId {
    /// In a stripe set or a component: all zones of the cell. Elsewhere no zone.
    pub const CELL: Self = Self(0);
}

impl Incarnation {
    /// The first version.
    pub const FIRST: Self = Self(1);

    /// The next number; the last number stays.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

crate::codec_struct! {
    /// Identity of a request's sender. Servers and commands have none: both fields are 0.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub struct ClientIdentity {
        /// The client.
        client: ClientId,
        /// How often the client has begun anew.
        incarnation: Incarnation,
    }
}

impl ClientIdentity {
    /// A client in its first incarnation.
    #[must_use]
    pub fn first(client: ClientId) -> Self {
        Self {
            client,
            incarnation: Incarnation::FIRST,
        }
    }

    /// True where both fields are set or both are 0.
    #[must_use]
    pub fn is_valid(self) -> bool {
        (self.client == ClientId(0)) == (self.incarnation == Incarnation(0))
    }
}

/// The identity of a cell: random bytes, made when the cell is formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CellId(pub [u8; 16]);

impl Codec for CellId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        Ok(Self(<[u8; 16]>::get(from)?))
    }
}

impl std::fmt::Display for CellId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl std::str::FromStr for CellId {
    type Err = CodecError;
    fn from_str(text: &str) -> Result<Self, CodecError> {
        let bytes = from_hex(text).map_err(|_error| CodecError::BadValue)?;
        let bytes = bytes.try_into().map_err(|_bytes| CodecError::BadValue)?;
        Ok(Self(bytes))
    }
}

/// An inode number: 20 bits of partition above 43 bits of sequence. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ino(pub u64);

/// Bits of an inode number below the partition.
pub const INO_SEQUENCE_BITS: u32 = 43;
/// Number of partitions that fit an inode number.
pub const PARTITIONS_MAX: u32 = 1 << 20;

impl Ino {
    /// The root directory: partition 0, sequence 1 (also FUSE's root node id).
    pub const ROOT: Self = Self(1);

    /// The inode with this sequence in this partition.
    #[must_use]
    pub fn new(partition: PartitionId, sequence: u64) -> Self {
        let sequence = sequence & ((1 << INO_SEQUENCE_BITS) - 1);
        Self(u64::from(partition.0 & (PARTITIONS_MAX - 1)) << INO_SEQUENCE_BITS | sequence)
    }

    /// The partition that the number names. Bits above the partition are ignored here;
    /// [`Self::is_valid`] refuses them.
    #[must_use]
    pub fn partition(self) -> PartitionId {
        PartitionId(((self.0 >> INO_SEQUENCE_BITS) & u64::from(PARTITIONS_MAX - 1)) as u32)
    }

    /// The sequence inside the partition.
    #[must_use]
    pub fn sequence(self) -> u64 {
        self.0 & ((1 << INO_SEQUENCE_BITS) - 1)
    }

    /// True where the top bit is clear and the sequence is not 0.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 >> 63 == 0 && self.sequence() != 0
    }
}

impl DataId {
    /// The data id with this sequence in this partition.
    #[must_use]
    pub fn new(partition: PartitionId, sequence: u64) -> Self {
        Self(Ino::new(partition, sequence).0)
    }

    /// The partition that issued it; its shard knows the inode that owns the bytes.
    #[must_use]
    pub fn partition(self) -> PartitionId {
        Ino(self.0).partition()
    }

    /// The sequence inside the partition.
    #[must_use]
    pub fn sequence(self) -> u64 {
        Ino(self.0).sequence()
    }

    /// True where the top bit is clear and the sequence is not 0.
    #[must_use]
    pub fn is_valid(self) -> bool {
        Ino(self.0).is_valid()
    }
}

impl Codec for Ino {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        Ok(Self(u64::get(from)?))
    }
}

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.partition(), self.sequence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cells_id_is_32_digits() {
        let cell = CellId([0xa5; 16]);
        assert_eq!(cell.to_string().parse(), Ok(cell));
        for bad in [
            "a5".repeat(15),
            "a5".repeat(17),
            "+5".repeat(16),
            "\u{e5}".repeat(16),
        ] {
            assert_eq!(bad.parse::<CellId>(), Err(CodecError::BadValue), "{bad}");
        }
    }

    #[test]
    fn inode_numbers_hold_partition_and_sequence() {
        let ino = Ino::new(
            PartitionId(PARTITIONS_MAX - 1),
            (1 << INO_SEQUENCE_BITS) - 1,
        );
        assert_eq!(
            (ino.partition().0, ino.sequence()),
            (PARTITIONS_MAX - 1, (1 << 43) - 1)
        );
        assert!(ino.is_valid());
        assert!(!Ino(1 << 63 | 1).is_valid());
        assert_eq!(Ino::ROOT.partition(), PartitionId(0));
    }

    #[test]
    fn data_ids_name_their_partition() {
        let id = DataId::new(PartitionId(7), 9);
        assert_eq!((id.partition(), id.sequence()), (PartitionId(7), 9));
        assert!(id.is_valid());
        assert!(!DataId(1 << 63 | 1).is_valid());
        assert!(!DataId::new(PartitionId(7), 0).is_valid());
    }

    #[test]
    fn cell_ids_print_and_parse() {
        let id = CellId([0xab; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("xyz".parse::<CellId>().is_err());
    }
}
