//! Every bound in one place. docs/limits.md has the same table; a test compares them.

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident : $ty:ty = $value:expr, $unit:literal;)*) => {
        $($(#[$doc])* pub const $name: $ty = $value;)*
        /// Name, value and unit of every bound, for docs/limits.md.
        pub const TABLE: &[(&str, u64, &str)] = &[$((stringify!($name), $value as u64, $unit),)*];
    };
}

limits! {
    /// Bytes of a name.
    NAME_BYTES_MAX: usize = 255, "bytes";
    /// Bytes of a symbolic link's text.
    SYMLINK_BYTES_MAX: usize = 4095, "bytes";
    /// Bytes of a path that a program names without a mount.
    PATH_BYTES_MAX: usize = 4095, "bytes";
    /// Symbolic links that one path leads through without a mount, as in Linux.
    SYMLINKS_MAX: usize = 40, "links";
    /// Bytes of an extended attribute's name.
    XATTR_NAME_BYTES_MAX: usize = 255, "bytes";
    /// Bytes of an extended attribute's value.
    XATTR_VALUE_BYTES_MAX: usize = 65536, "bytes";
    /// Extended attributes of one inode, names and values together.
    XATTR_INODE_BYTES_MAX: usize = 262_144, "bytes";
    /// Hard links of one inode.
    LINKS_MAX: u32 = 65_000, "links";
    /// Largest offset behind the last byte of a file.
    FILE_BYTES_MAX: u64 = i64::MAX as u64, "bytes";
    /// The last number of a file's cuts: a million cuts a second reach it in four years. Targets
    /// take none behind it, so that no message uses up the numbers of a file.
    CUT_NUMBER_MAX: u64 = 281_474_976_710_656, "numbers";
    /// Smallest stripe unit.
    STRIPE_UNIT_MIN: u32 = 65_536, "bytes";
    /// Largest stripe unit.
    STRIPE_UNIT_MAX: u32 = 67_108_864, "bytes";
    /// Stripe unit where nothing else is set.
    STRIPE_UNIT_DEFAULT: u32 = 1_048_576, "bytes";
    /// First bytes of a file that its shard may keep.
    INLINE_BYTES_MAX: usize = 65_536, "bytes";
    /// First bytes of a file that its shard keeps where nothing else is set.
    INLINE_BYTES_DEFAULT: u32 = 4_096, "bytes";
    /// Slots of a stripe set.
    SLOTS_MAX: usize = 256, "slots";
    /// Slots of a new stripe set where nothing else is set.
    SET_WIDTH_DEFAULT: u16 = 64, "slots";
    /// Components of a layout.
    COMPONENTS_MAX: usize = 64, "components";
    /// Unit of checksums.
    BLOCK_BYTES: usize = 4096, "bytes";
    /// Unit of the target's index.
    CHUNK_BYTES: usize = 262_144, "bytes";
    /// Payload of one frame.
    PAYLOAD_BYTES_MAX: usize = 4_194_304, "bytes";
    /// Body (encoded message) of one frame.
    BODY_BYTES_MAX: usize = 1_048_576, "bytes";
    /// TLV area of one frame.
    TLV_BYTES_MAX: usize = 4096, "bytes";
    /// Payloads from here on may lie in memory that a client shares with a server on its machine.
    REGION_PAYLOAD_MIN: usize = 65_536, "bytes";
    /// Memory that a client may share with a server.
    REGION_BYTES_MAX: u64 = 268_435_456, "bytes";
    /// A buffer of such memory: a write of the kernel with its head, and what a page's alignment
    /// takes.
    REGION_BUFFER_BYTES: usize = 1_114_112, "bytes";
    /// Buffers of a mount's.
    REGION_BUFFERS: u32 = 64, "buffers";
    /// Bytes that one storage read or write moves.
    STORAGE_IO_BYTES_MAX: usize = 4_194_304, "bytes";
    /// Ranges of one storage write.
    WRITE_RANGES_MAX: usize = 1_024, "ranges";
    /// Of so much of an object, whole chunks, a target changes all or nothing at once; of a longer
    /// range perhaps a part.
    STORAGE_STEP_BYTES: u64 = 67_108_864, "bytes";
    /// Supplementary groups of a caller.
    GROUPS_MAX: usize = 65_536, "groups";
    /// Slots of one session: mutations in flight of one client at one shard.
    SESSION_SLOTS_MAX: u32 = 64, "slots";
    /// Sessions of one shard.
    SESSIONS_MAX: usize = 65_536, "sessions";
    /// Directories that a shard knows to be inside of a client's path, and, apart from them, files
    /// with several names that a client has reached there.
    SCOPE_INSIDE_MAX: usize = 16_384, "inodes";
    /// Files that clients with a scope have cut by name and may go on cutting at targets.
    SCOPE_CUTS_MAX: usize = 4_096, "files";
    /// How long.
    SCOPE_CUT_MS: u64 = 60_000, "ms";
    /// Answers of shards that a server keeps about what clients with a scope have open.
    GRANTS_KEPT_MAX: usize = 65_536, "answers";
    /// How long one is kept.
    GRANT_MS: u64 = 5_000, "ms";
    /// Certificates whose subject a server keeps in the form that its shard knows.
    SUBJECTS_KNOWN_MAX: usize = 4_096, "certificates";
    /// Events waiting for one session.
    SESSION_EVENTS_MAX: usize = 65_536, "events";
    /// How long a session lives without a sign of its client.
    SESSION_TERM_MS: u64 = 60_000, "ms";
    /// How long a client may use what a reply said it may cache.
    CACHE_TERM_MS: u64 = 5_000, "ms";
    /// How much longer than that the shard remembers it (drift of clocks).
    CACHE_GRACE_MS: u64 = 500, "ms";
    /// Files open at one shard, counted once a session.
    OPENS_MAX: usize = 4_194_304, "files";
    /// Directories with recorded caching at one shard.
    CACHE_LEASES_MAX: usize = 262_144, "directories";
    /// Files whose reads one message tells of.
    TOUCHES_MAX: usize = 1_024, "files";
    /// Lock ranges held at one shard.
    LOCKS_MAX: usize = 1_048_576, "ranges";
    /// Lock requests waiting at one shard.
    LOCK_WAITERS_MAX: usize = 65_536, "requests";
    /// How long after its start a shard waits for clients with locks to tell of them, before others
    /// get any: less than a request is tried.
    LOCKS_TOLD_MS: u64 = 8_000, "ms";
    /// Appends under way at one shard.
    APPEND_TICKETS_MAX: usize = 65_536, "tickets";
    /// Bytes of one append.
    APPEND_BYTES_MAX: usize = 16_777_216, "bytes";
    /// How long an append that is not ended holds up those behind it, and a place at a lent end
    /// that is not asked for again those who want the end: longer than any client tries (`zonal
    /// mount --deadline` is a minute at most).
    TICKET_MS: u64 = 65_000, "ms";
    /// How long a place at a lent end stays its holder's, whatever it asks, once others want the
    /// end.
    TICKET_KEPT_MS: u64 = 300_000, "ms";
    /// Deleted objects that one target remembers, to refuse late writes to them.
    DELETED_OBJECTS_MAX: usize = 65_536, "objects";
    /// Objects for which one target remembers that a change was sent again, to refuse the late one.
    ATTEMPTS_MAX: usize = 65_536, "objects";
    /// Fences of clients that one target keeps.
    FENCES_MAX: usize = 65_536, "fences";
    /// How long an ending session waits for targets that do not acknowledge its fence.
    FENCE_WAIT_MS: u64 = 10_000, "ms";
    /// Fences in one request to a target.
    FENCES_AT_ONCE_MAX: usize = 1_024, "fences";
    /// Objects of one target of which it cut something and nobody was told yet how much that freed.
    UNTOLD_CUTS_MAX: usize = 65_536, "objects";
    /// Entries in one readdir reply.
    READDIR_ENTRIES_MAX: usize = 4096, "entries";
    /// Directories that one request lists.
    READDIR_TOGETHER_MAX: usize = 16, "directories";
    /// Connections that one server accepts.
    CONNECTIONS_MAX: usize = 1024, "connections";
    /// Zones of a cell.
    ZONES_MAX: usize = 4096, "zones";
    /// Nodes of a cell.
    NODES_MAX: usize = 65_536, "nodes";
    /// Bytes of a zone map.
    MAP_BYTES_MAX: usize = 67_108_864, "bytes";
    /// Bytes of one change of the zone map.
    MAP_CHANGE_BYTES_MAX: usize = 196_608, "bytes";
    /// Bytes of changes, or of a part of the zone map, in one reply.
    MAP_PAGE_BYTES_MAX: usize = 262_144, "bytes";
    /// Bytes of changes of the zone map that a manager keeps.
    MAP_TAIL_BYTES_MAX: usize = 4_194_304, "bytes";
    /// Changes of the zone map that a manager keeps.
    MAP_TAIL_CHANGES_MAX: usize = 4_096, "changes";
    /// Replies that bring one newer zone map.
    MAP_REPLIES_MAX: u32 = 4_096, "replies";
    /// Junctions in one reply.
    JUNCTIONS_LISTED_MAX: usize = 512, "junctions";
    /// Revoked credentials that a cell remembers.
    REVOKED_MAX: usize = 65_536, "certificates";
    /// Partitions of a new cell.
    PARTITIONS_DEFAULT: u32 = 64, "partitions";
    /// Age at which gathered writes are flushed.
    WRITE_BEHIND_AGE_MS: u64 = 5_000, "ms";
    /// Gathered writes of one mount, by default.
    WRITE_BEHIND_BYTES_DEFAULT: usize = 67_108_864, "bytes";
    /// Gathered writes of one file.
    WRITE_BEHIND_FILE_BYTES_MAX: usize = 8_388_608, "bytes";
    /// Deadline of one request, by default.
    REQUEST_DEADLINE_MS: u64 = 10_000, "ms";
    /// Requests of one shard that call one other shard at a time; more wait without a thread.
    SHARD_CALLS_MAX: usize = 4, "requests";
    /// Requests of one shard that flush its log at a time; more wait without a thread.
    SHARD_FLUSHES_MAX: usize = 32, "requests";
    /// Bytes a second that a scrub reads, by default.
    SCRUB_RATE_DEFAULT: u64 = 67_108_864, "bytes";
    /// Time from the end of a scrub to the next, by default.
    SCRUB_PERIOD_MS_DEFAULT: u64 = 604_800_000, "ms";
    /// Damaged blocks that a scrub keeps by name.
    SCRUB_DAMAGED_MAX: usize = 1024, "blocks";
    /// Objects in one reply of a list.
    OBJECTS_LISTED_MAX: usize = 4096, "objects";
    /// How far a restored backup moves on every number that must not be given twice.
    RESTORE_STEP: u64 = 4_294_967_296, "numbers";
    /// How long a server keeps a snapshot that nobody reads.
    SNAPSHOT_TERM_MS: u64 = 60_000, "ms";
    /// How long a manager asks the address that it knows of a node, before another address is
    /// taken.
    HOLDER_ASKED_MS: u64 = 2_000, "ms";
    /// Bytes of a recording of what is done to a store (`zonal server --record`).
    RECORDING_BYTES_MAX: u64 = 1_073_741_824, "bytes";
}

/// Bits of [`crate::attr::Attr::xattrs`].
pub mod xattr_flags {
    /// `user.*`
    pub const USER: u8 = 1;
    /// `trusted.*`
    pub const TRUSTED: u8 = 2;
    /// `security.*`
    pub const SECURITY: u8 = 4;
    /// `system.posix_acl_access`
    pub const ACL_ACCESS: u8 = 8;
    /// `system.posix_acl_default`
    pub const ACL_DEFAULT: u8 = 16;
    /// [`CAPABILITY_NAME`]
    pub const CAPABILITY: u8 = 32;
    /// A layout set on the directory (`zonal.layout`).
    pub const LAYOUT: u8 = 64;
    /// File capabilities, which go with the next write.
    pub const CAPABILITY_NAME: &[u8] = b"security.capability";
}
