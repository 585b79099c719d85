//! Identity of a shard, time of a request, and its caller: all that comes from outside.

use zonal_types::limits::{INLINE_BYTES_DEFAULT, OPENS_MAX, SESSIONS_MAX};
use zonal_types::{ClientIdentity, Instant, SessionId, ShardId, Timestamp, ZoneId};
use zonal_wire::Header;

/// The time of a request: `instant` for deadlines, `wall` for what inodes store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For deadlines.
    pub instant: Instant,
    /// Calendar time.
    pub wall: Timestamp,
}

/// The sender of a request, from the frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The client; none where a server or a command sends it.
    pub identity: ClientIdentity,
    /// The session; 0 where there is none yet.
    pub session: SessionId,
    /// The slot, or [`zonal_wire::frame::NO_SLOT`].
    pub slot: u32,
    /// The sequence in the slot.
    pub sequence: u32,
}

impl Caller {
    /// The caller that a frame's header names.
    #[must_use]
    pub fn of(header: &Header) -> Self {
        Self {
            identity: header.identity,
            session: header.session,
            slot: header.slot,
            sequence: header.sequence,
        }
    }
}

/// Identity and bounds of a shard.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// Which shard this is.
    pub shard: ShardId,
    /// Its zone. For the root shard: the zone of first-level directories that ask for none.
    pub zone: ZoneId,
    /// Changes with each start of the shard.
    pub boot: u64,
    /// Owner of a new root directory.
    pub root_uid: u32,
    /// Group of a new root directory.
    pub root_gid: u32,
    /// Sessions at once.
    pub sessions_max: usize,
    /// Open files at once, over all sessions.
    pub opens_max: usize,
    /// Number of bits of a name's hash in use, at most 55 (fewer only in tests of collisions). Part
    /// of the format.
    pub hash_bits: u32,
    /// Number of first bytes that new files leave to the shard: [`zonal_layout::is_inline_size`].
    pub inline_bytes: u32,
    /// False: the shard grants no caching, and no change waits.
    pub caching: bool,
}

impl ShardConfig {
    /// Number of hash bits in stores other than those of tests.
    pub const HASH_BITS: u32 = 55;

    /// The usual bounds.
    #[must_use]
    pub fn new(shard: ShardId, zone: ZoneId, boot: u64) -> Self {
        Self {
            shard,
            zone,
            boot,
            root_uid: 0,
            root_gid: 0,
            sessions_max: SESSIONS_MAX,
            opens_max: OPENS_MAX,
            hash_bits: Self::HASH_BITS,
            inline_bytes: INLINE_BYTES_DEFAULT,
            caching: true,
        }
    }

    /// True for the shard that holds the root directory.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.shard == ShardId(0)
    }
}
