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
    /// Symbolic links followed in one path without a mount, as in Linux.
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
    /// Last number of a file's truncations: a million a second reach it in four years. Targets
    /// refuse numbers behind it, so that no message can use up the numbers of a file.
    TRUNCATION_NUMBER_MAX: u64 = 281_474_976_710_656, "numbers";
    /// Smallest stripe unit.
    STRIPE_UNIT_MIN: u32 = 65_536, "bytes";
    /// Largest stripe unit.
    STRIPE_UNIT_MAX: u32 = 67_108_864, "bytes";
    /// Stripe unit by default.
    STRIPE_UNIT_DEFAULT: u32 = 1_048_576, "bytes";
    /// First bytes of a file that its shard may keep.
    INLINE_BYTES_MAX: usize = 65_536, "bytes";
    /// First bytes of a file that its shard keeps by default.
    INLINE_BYTES_DEFAULT: u32 = 4_096, "bytes";
    /// Slots of a stripe set.
    SLOTS_MAX: usize = 256, "slots";
    /// Slots of a new stripe set by default.
    SET_WIDTH_DEFAULT: u16 = 64, "slots";
    /// Copies of a file's columns.
    COPIES_MAX: u16 = 3, "copies";
    /// Targets on which the copies of one file are stale.
    STALE_TARGETS_MAX: usize = 64, "targets";
    /// Records of relocated objects of one component.
    RELOCATIONS_MAX: usize = 256, "records";
    /// Damaged blocks that a target remembers until they are repaired.
    DAMAGED_BLOCKS_MAX: usize = 4_096, "blocks";
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
    /// Smallest payload that may lie in memory shared between a client and a server on its machine.
    REGION_PAYLOAD_MIN: usize = 65_536, "bytes";
    /// Memory that a client may share with a server.
    REGION_BYTES_MAX: u64 = 268_435_456, "bytes";
    /// One buffer of shared memory: the kernel's largest write with its header, and padding to a
    /// page.
    REGION_BUFFER_BYTES: usize = 1_114_112, "bytes";
    /// Shared buffers of one mount.
    REGION_BUFFERS: u32 = 64, "buffers";
    /// Bytes moved by one storage read or write.
    STORAGE_IO_BYTES_MAX: usize = 4_194_304, "bytes";
    /// Ranges of one storage write.
    WRITE_RANGES_MAX: usize = 1_024, "ranges";
    /// Bytes of an object, in whole chunks, that a target changes atomically; a longer range may be
    /// changed in part.
    STORAGE_STEP_BYTES: u64 = 67_108_864, "bytes";
    /// Bytes of a command that an agent runs: arguments, environment and folder.
    AGENT_COMMAND_BYTES_MAX: usize = 262_144, "bytes";
    /// Ranks of one agent, as its config may have them.
    AGENT_RANKS_MAX: usize = 1_024, "ranks";
    /// Ranks of one agent by default.
    AGENT_RANKS_DEFAULT: usize = 256, "ranks";
    /// First user id, and group id, that an agent runs commands with by default.
    AGENT_USER_MIN_DEFAULT: u32 = 1_000, "ids";
    /// Jobs of one agent.
    AGENT_JOBS_MAX: usize = 1_024, "jobs";
    /// Output of one rank that waits for its asker.
    AGENT_OUTPUT_BYTES_MAX: usize = 262_144, "bytes";
    /// Output in one reply of an agent.
    AGENT_EVENTS_BYTES_MAX: usize = 524_288, "bytes";
    /// Standard input of one rank that waits for its process.
    AGENT_STDIN_BYTES_MAX: usize = 65_536, "bytes";
    /// How long an agent parks a poll.
    AGENT_POLL_MS_MAX: u64 = 2_000, "ms";
    /// How long a job lives without a poll of its asker.
    AGENT_TERM_MS: u64 = 10_000, "ms";
    /// How long the guard of a rank keeps it without word from its agent that the asker polls.
    AGENT_GUARD_TERM_MS: u64 = 11_000, "ms";
    /// Supplementary groups of a caller.
    GROUPS_MAX: usize = 65_536, "groups";
    /// Slots of one session: mutations in flight of one client at one shard.
    SESSION_SLOTS_MAX: u32 = 64, "slots";
    /// Sessions of one shard.
    SESSIONS_MAX: usize = 65_536, "sessions";
    /// Directories that a shard knows to lie inside a client's scope. The same bound holds
    /// separately for files with several names that a client has reached there.
    SCOPE_INSIDE_MAX: usize = 16_384, "inodes";
    /// Files that clients with a scope have truncated by name and may go on truncating at targets.
    SCOPE_TRUNCATIONS_MAX: usize = 4_096, "files";
    /// How long a client with a scope may go on truncating a file at targets.
    SCOPE_TRUNCATION_MS: u64 = 60_000, "ms";
    /// Cached answers of shards, on one server, about the files that clients with a scope have
    /// open.
    GRANTS_KEPT_MAX: usize = 65_536, "answers";
    /// How long a cached answer about an open file is kept.
    GRANT_MS: u64 = 5_000, "ms";
    /// Certificates whose subject a server has cached in its shard's form.
    SUBJECTS_KNOWN_MAX: usize = 4_096, "certificates";
    /// Events waiting for one session.
    SESSION_EVENTS_MAX: usize = 65_536, "events";
    /// Session term without a sign of its client.
    SESSION_TERM_MS: u64 = 60_000, "ms";
    /// Term for which a client may use a reply from its cache.
    CACHE_TERM_MS: u64 = 5_000, "ms";
    /// How much longer than that term the shard remembers the lease (drift of clocks).
    CACHE_GRACE_MS: u64 = 500, "ms";
    /// Files open at one shard, counted once for each session.
    OPENS_MAX: usize = 4_194_304, "files";
    /// Directories with recorded caching at one shard.
    CACHE_LEASES_MAX: usize = 262_144, "directories";
    /// Files whose reads one message reports.
    TOUCHES_MAX: usize = 1_024, "files";
    /// Lock ranges held at one shard.
    LOCKS_MAX: usize = 1_048_576, "ranges";
    /// Lock requests waiting at one shard.
    LOCK_WAITERS_MAX: usize = 65_536, "requests";
    /// How long a restarted shard waits for clients to report their locks before it grants any to
    /// others. Less than the time for which a request is retried.
    LOCKS_TOLD_MS: u64 = 8_000, "ms";
    /// How long a listing of the root, and `df` of it, wait for the other servers, all together.
    ROOT_ANSWER_MS: u64 = 500, "ms";
    /// How long the first stat of a listing waits once more for the servers without an answer.
    ROOT_CONFIRM_MS: u64 = 300, "ms";
    /// How long listings of the root do not ask a server that gave no answer.
    ROOT_SILENCE_MS: u64 = 3_000, "ms";
    /// How long a read of a name of the root waits for the root's shard, before it asks the mirror
    /// of its zone. A change of the leader takes less, so that it shows nobody an older name.
    ROOT_NAME_MS: u64 = 5_000, "ms";
    /// How long a read of a name of the root waits for the silent shard of the root; one read in a
    /// second does.
    ROOT_PROBE_MS: u64 = 250, "ms";
    /// First-level directories in the mirror of a zone.
    ROOT_MIRROR_NAMES_MAX: usize = 100_000, "names";
    /// Appends under way at one shard.
    APPEND_TICKETS_MAX: usize = 65_536, "tickets";
    /// Bytes of one append.
    APPEND_BYTES_MAX: usize = 16_777_216, "bytes";
    /// How long an append that is not ended holds up the appends behind it. Also: how long a place
    /// at a lent end that is not requested again holds up other clients. Longer than any client
    /// retries (`zonal mount --deadline` is at most a minute).
    TICKET_MS: u64 = 65_000, "ms";
    /// Longest time for which a place at a lent end stays its holder's once others want the end.
    TICKET_KEPT_MS: u64 = 300_000, "ms";
    /// Deleted objects remembered by one target, to refuse late writes to them.
    DELETED_OBJECTS_MAX: usize = 65_536, "objects";
    /// Objects for which one target remembers a change that was sent again, to refuse the late
    /// copy.
    ATTEMPTS_MAX: usize = 65_536, "objects";
    /// Ranges of objects with copies of which one target remembers the order of the last change.
    ORDER_RANGES_MAX: usize = 65_536, "ranges";
    /// How far ahead of a target's calendar the order of a change may be, us: a year.
    ORDER_AHEAD_US_MAX: u64 = 31_536_000_000_000, "us";
    /// Fences of clients kept by one target.
    FENCES_MAX: usize = 65_536, "fences";
    /// How long an ending session waits for targets that do not acknowledge its fence.
    FENCE_WAIT_MS: u64 = 10_000, "ms";
    /// Fences in one request to a target.
    FENCES_AT_ONCE_MAX: usize = 1_024, "fences";
    /// Objects of one target with a truncation whose freed bytes are not reported yet.
    UNREPORTED_TRUNCATIONS_MAX: usize = 65_536, "objects";
    /// Entries in one readdir reply.
    READDIR_ENTRIES_MAX: usize = 4096, "entries";
    /// Directories listed by one request.
    READDIR_TOGETHER_MAX: usize = 16, "directories";
    /// Connections accepted by one server.
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
    /// Subnets in the manager's table.
    SUBNETS_MAX: usize = 1_024, "subnets";
    /// Revoked credentials that a cell remembers.
    REVOKED_MAX: usize = 65_536, "certificates";
    /// Difference between the clocks of a joining node and of the manager.
    CLOCK_SKEW_MAX_MS: u64 = 120_000, "ms";
    /// Join tokens that a manager keeps, used and expired ones among them.
    JOIN_TOKENS_MAX: usize = 256, "tokens";
    /// Sealed credential of a join token.
    SEALED_BYTES_MAX: usize = 16 << 10, "bytes";
    /// Partitions of a new cell.
    PARTITIONS_DEFAULT: u32 = 64, "partitions";
    /// Partitions of one shard; as many first-level directories have one of their own.
    PARTITIONS_PER_SHARD_MAX: u32 = 1_024, "partitions";
    /// Age at which gathered writes are flushed.
    WRITE_BEHIND_AGE_MS: u64 = 5_000, "ms";
    /// Gathered writes of one mount, by default.
    WRITE_BEHIND_BYTES_DEFAULT: usize = 67_108_864, "bytes";
    /// Gathered writes of one file.
    WRITE_BEHIND_FILE_BYTES_MAX: usize = 8_388_608, "bytes";
    /// Deadline of one request, by default.
    REQUEST_DEADLINE_MS: u64 = 10_000, "ms";
    /// How long a read waits for one copy before it asks another one, too, by default.
    SECOND_COPY_MS: u64 = 50, "ms";
    /// The longest that this may be set to: so long the first copy is waited for at all.
    SECOND_COPY_MS_MAX: u64 = 500, "ms";
    /// Nodes that keep the log of one shard.
    SHARD_REPLICAS_MAX: usize = 5, "nodes";
    /// Shards of one zone.
    SHARDS_PER_ZONE_MAX: usize = 64, "shards";
    /// How long one attempt waits for a replica of a shard that has several; a long poll waits its
    /// own time more. Longer than an election, so that the next attempt finds a new leader; far
    /// below a request's deadline, so that there is a next one.
    REPLICA_ATTEMPT_MS: u64 = 1_500, "ms";
    /// Requests of one shard that call one other shard at a time; more wait without a thread.
    SHARD_CALLS_MAX: usize = 4, "requests";
    /// Requests of one shard that flush its log at a time; more wait without a thread.
    SHARD_FLUSHES_MAX: usize = 32, "requests";
    /// Bytes a second that a scrub reads, by default.
    SCRUB_RATE_DEFAULT: u64 = 67_108_864, "bytes";
    /// Time after which a target that is out is rebuilt on others, by default.
    REBUILD_AFTER_MS_DEFAULT: u64 = 600_000, "ms";
    /// Time from the end of a scrub to the next, by default.
    SCRUB_PERIOD_MS_DEFAULT: u64 = 604_800_000, "ms";
    /// Damaged blocks that a scrub keeps by name.
    SCRUB_DAMAGED_MAX: usize = 1024, "blocks";
    /// Objects in one reply of a list.
    OBJECTS_LISTED_MAX: usize = 4096, "objects";
    /// How far a restored backup advances every counter whose numbers must not be issued twice.
    RESTORE_STEP: u64 = 4_294_967_296, "numbers";
    /// How long a server keeps a snapshot that nobody reads.
    SNAPSHOT_TERM_MS: u64 = 60_000, "ms";
    /// How long a manager probes the known address of a node before it accepts another address.
    HOLDER_ASKED_MS: u64 = 2_000, "ms";
    /// Period of a node's heartbeats to each neighbour that it watches.
    HEARTBEAT_MS: u64 = 1_000, "ms";
    /// Age of an unanswered heartbeat at which its node is suspect.
    HEARTBEAT_SUSPECT_MS: u64 = 2_000, "ms";
    /// Age of an unanswered heartbeat at which its node counts as silent; also its deadline.
    HEARTBEAT_SILENT_MS: u64 = 3_000, "ms";
    /// How long a target may carry out guarded requests, from its question for the lease on.
    TARGET_LEASE_MS: u64 = 3_000, "ms";
    /// How long a manager waits from its last answer for the lease until it takes a target out.
    TARGET_LEASE_WAIT_MS: u64 = 3_500, "ms";
    /// Heartbeats of one node that wait for an answer at a time.
    HEARTBEATS_IN_FLIGHT_MAX: usize = 32, "heartbeats";
    /// Period of a node's sightings for the reporter of its zone, where nothing changes.
    SIGHTINGS_MS: u64 = 2_000, "ms";
    /// Sightings in one message.
    SIGHTINGS_MAX: usize = 1_024, "sightings";
    /// Least period of a zone's digests, where nothing changes.
    DIGEST_MS: u64 = 1_000, "ms";
    /// Bytes a second of all zones' digests and their replies at a manager: more zones send less
    /// often.
    DIGEST_BYTES_PER_SECOND: u64 = 45_000, "bytes";
    /// Reporters of one zone whose digests a manager keeps.
    ZONE_REPORTERS_MAX: usize = 4, "reporters";
    /// Nodes of a silent zone to which the manager sends heartbeats itself, at a time.
    SILENT_ZONE_HEARTBEATS_MAX: usize = 8, "nodes";
    /// States of nodes in one reply.
    NODE_STATES_LISTED_MAX: usize = 4_096, "nodes";
    /// Events that a cell keeps.
    EVENTS_MAX: u64 = 10_000, "events";
    /// Events in one reply.
    EVENTS_LISTED_MAX: usize = 512, "events";
    /// Bytes of a client's name in an event.
    EVENT_NAME_BYTES_MAX: usize = 128, "bytes";
    /// Bytes of a recording of a store's changes (`zonal server --record`).
    RECORDING_BYTES_MAX: u64 = 1_073_741_824, "bytes";
    /// First-level directories whose bytes a shard or a client counts by themselves.
    DIRECTORIES_COUNTED_MAX: usize = 64, "directories";
    /// Zones of clients whose bytes a target counts by themselves.
    ZONES_COUNTED_MAX: usize = 64, "zones";
    /// Files whose bytes a client has not yet reported to their shards.
    TRAFFIC_FILES_MAX: usize = 4_096, "files";
    /// Files in one report of their bytes.
    TRAFFIC_REPORT_FILES_MAX: usize = 256, "files";
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
    /// File capabilities; the next write to the file removes them.
    pub const CAPABILITY_NAME: &[u8] = b"security.capability";
}
