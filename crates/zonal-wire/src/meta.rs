//! Messages between a client and a metadata shard (and between the root shard and zone shards).
//!
//! Requests that change something ([`MetaRequest::is_mutation`]) carry a slot and a sequence in the
//! header. The shard keeps the last reply of each slot, so a repeated request is executed once and
//! gets the same reply. `Credentials` name the user; the shard enforces permissions. Flags are
//! Linux's (x86-64 generic values), see [`flags`].

#![expect(missing_docs, reason = "fields are described with their variant")]

mod request_kinds;

use crate::activity::ClientTraffic;
use crate::lease::{LeaseGrant, LeaseKind};
use crate::moves::{MoveStatus, MovedEntry};
use crate::storage::ErrorNumber;
use zonal_types::{
    Attr, Blob, ClientId, Column, Component, Credentials, DataId, Epoch, Fence, FileData, FileKind,
    HolderNumber, Ino, MapVersion, Name, NodeId, PartitionId, SessionId, ShardId, StripePolicy,
    StripeSetId, TargetId, Timestamp, ZoneId, codec_enum, codec_struct, truncation,
};

/// Linux flag values that cross the wire.
pub mod flags {
    pub const O_ACCMODE: u32 = 3;
    pub const O_RDONLY: u32 = 0;
    pub const O_WRONLY: u32 = 1;
    pub const O_RDWR: u32 = 2;
    pub const O_EXCL: u32 = 0o200;
    pub const O_TRUNC: u32 = 0o1000;
    pub const O_APPEND: u32 = 0o2000;
    /// `FMODE_EXEC`: opened to be executed.
    pub const O_EXEC: u32 = 0x20;
    pub const RENAME_NOREPLACE: u32 = 1;
    pub const RENAME_EXCHANGE: u32 = 2;
    pub const RENAME_WHITEOUT: u32 = 4;
    pub const XATTR_CREATE: u32 = 1;
    pub const XATTR_REPLACE: u32 = 2;
    /// `access` mask bits.
    pub const X_OK: u32 = 1;
    pub const W_OK: u32 = 2;
    pub const R_OK: u32 = 4;
}

codec_enum! {
    /// The new value of a time, for `utimensat`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SetTime {
        /// The server's time (write permission is enough).
        Now = 1,
        /// This time (needs ownership).
        At = 2 { time: Timestamp },
    }
}

codec_struct! {
    /// Room of a target, or bytes that it gets.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TargetRoom {
        /// The target.
        target: TargetId,
        /// Bytes.
        bytes: u64,
    }
}

codec_struct! {
    /// Which objects a target gives away, and to which targets.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct RelocationPlan {
        /// Of 10,000 objects of a target that is evened out, those that go. 0: none goes, and those
        /// on their way stay. Of no use for a target that leaves: all go.
        share: u16,
        /// Targets that may get objects, with the bytes that each may get.
        room: Vec<TargetRoom>,
    }
}

codec_struct! {
    /// Attributes to change; `None` leaves one alone. Sizes go by `Truncate`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AttrChange {
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
        ctime: Option<Timestamp>,
    }
}

codec_enum! {
    /// Type of a new inode.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum NewKind {
        File = 1,
        Symlink = 2 { text: Blob },
        Fifo = 3,
        Socket = 4,
        CharDevice = 5 { rdev: u32 },
        BlockDevice = 6 { rdev: u32 },
    }
}

codec_enum! {
    /// Kind of lock.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum LockKind {
        Shared = 1,
        Exclusive = 2,
    }
}

codec_struct! {
    /// Place of a file's bytes, and the number of its last truncation.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BytesPlace {
        component: Component,
        truncate_seq: u64,
    }
}

codec_enum! {
    /// The use of a file's bytes for which a target checks a client.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum FileUse {
        /// Learn where bytes are, and how many: open in any way.
        Look = 1,
        /// Open for reading.
        Read = 2,
        /// Open for writing.
        Write = 3,
    }
}

codec_struct! {
    /// A lock range. `end` is the last byte (inclusive). For flock: `whole_file` true, start 0, end
    /// `u64::MAX`. flock does not conflict with fcntl/OFD locks. `owner` is unique within the
    /// session, but a later process or open file may get the same number. `handle` (the open file)
    /// and `number` (the request) are never reused in the session. They name the request that took
    /// the range last, and its open file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LockRange {
        whole_file: bool,
        owner: u64,
        handle: u64,
        number: u64,
        pid: u32,
        kind: LockKind,
        start: u64,
        end: u64,
    }
}

codec_struct! {
    /// Load of a shard, as the root's shard knows it. `directories`: its first-level directories.
    /// The rest is `None` where it has not reported for a while, or, of the rate, reported once.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ShardLoad {
        shard: ShardId,
        directories: u64,
        inodes: Option<u64>,
        requests_per_second: Option<u64>,
    }
}

codec_struct! {
    /// Place of an append in flight: `length` bytes behind the end of a file, given when
    /// `truncate_seq` was its last truncation.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AppendPlace {
        offset: u64,
        length: u32,
        truncate_seq: u64,
    }
}

impl AppendPlace {
    /// The bytes of the place that are left after the file's last truncation, `truncate_seq` to
    /// `truncate_size`. After one truncation to behind its beginning: the part within the file
    /// (appended, then truncated). After any other: nothing.
    #[must_use]
    pub fn left(&self, truncate_seq: u64, truncate_size: u64) -> Option<u32> {
        match truncation::truncations_since(truncate_seq, self.truncate_seq)? {
            0 => Some(self.length),
            1 => {
                let within = truncate_size.checked_sub(self.offset)?;
                let within = u32::try_from(within).unwrap_or(u32::MAX);
                Some(within.min(self.length)).filter(|left| *left > 0)
            }
            _ => None,
        }
    }
}

codec_struct! {
    /// A directory's attributes after a change of its entries; they may be cached for `attr_ms`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DirAfter {
        attr: Attr,
        attr_ms: u32,
    }
}

codec_enum! {
    /// A request of a client to a shard.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum MetaRequest {
        /// Opens a session for the header's client. A client that has one gets it back; from now on
        /// it is of the header's incarnation.
        OpenSession = 1 { zone: ZoneId, name: String },
        /// Acknowledges all events up to `acked`, then waits up to `wait_ms` for the next. `boot`
        /// is the shard's boot in the last poll's reply (0: none). A shard with another boot
        /// replies at once and acknowledges nothing.
        PollEvents = 2 { boot: u64, acked: u64, wait_ms: u32 },
        /// Closes the session: its locks, opens and leases are gone.
        CloseSession = 3,
        /// After the shard's restart (`boot` changed): the session's opens and locks.
        Reclaim = 4 { opens: Vec<Ino>, locks: Vec<(Ino, LockRange)> },
        /// After the shard's restart: the session has dropped everything that it was allowed to
        /// cache before.
        DropLeases = 5,
        /// Places to which appends of this session are being written. Sent before `Reclaim`, and
        /// again where a write takes long. A place without bytes is a lent end (`LendEnd`). Reply
        /// `Failed(UnknownLease)` where a place is no longer the session's, or a truncation left
        /// nothing of it (`AppendPlace::left`).
        ReclaimAppends = 6 { appends: Vec<(Ino, AppendPlace)> },
        /// Ends the session of a client that may still be there: its locks and opens are gone, its
        /// leases run to their end.
        EvictSession = 7,

        Lookup = 10 { who: Credentials, parent: Ino, name: Name },
        /// `data`: with the layout.
        GetAttr = 11 { ino: Ino, data: bool },
        /// `mask`: R_OK, W_OK, X_OK.
        Access = 12 { who: Credentials, ino: Ino, mask: u32 },
        Readlink = 13 { ino: Ino },
        /// Entries behind `cookie` (0: from the start; the client makes `.` and `..`). `plus`: with
        /// attributes.
        ReadDir = 14 { who: Credentials, dir: Ino, cookie: u64, entries: u32, plus: bool },
        GetXattr = 15 { who: Credentials, ino: Ino, name: Blob },
        ListXattr = 16 { who: Credentials, ino: Ino },
        GetLock = 17 { ino: Ino, range: LockRange },
        StatFs = 18,
        /// Makes all changes durable that this shard acknowledged before.
        Sync = 19,
        /// Parent of a directory (`..`); for a file, the directory of its back-link.
        Parent = 20 { ino: Ino },
        /// The first bytes of a file, which the shard keeps. Reply `Inline`.
        ReadInline = 21 { ino: Ino },
        /// The first entries of several directories, with attributes. Reply `Dirs`: the first
        /// directory, which may fail, then others that can be listed, while there is room.
        ReadDirs = 22 { who: Credentials, dirs: Vec<Ino>, entries: u32 },
        /// The file that has the bytes of a data id. Reply `File`; `Failed(Stale)` where there is
        /// none.
        FileOf = 23 { data_id: DataId },

        /// New inode, not a directory. `open`: also opens it (files). `exclusive`: fails where the
        /// name exists. Else an existing file is opened with `open_flags` (O_TRUNC honoured).
        /// `zone`: home where the parent is the root. `node`: the client's node, 0 where it has
        /// none; files of directories with the placement `node` lie there.
        Create = 30 { who: Credentials, parent: Ino, name: Name, kind: NewKind, mode: u32, umask: u32, zone: ZoneId,
                      node: NodeId, open: bool, open_flags: u32, exclusive: bool },
        Mkdir = 31 { who: Credentials, parent: Ino, name: Name, mode: u32, umask: u32, zone: ZoneId },
        /// A file without a name, open. May be linked later unless `exclusive`.
        Tmpfile = 32 { who: Credentials, parent: Ino, mode: u32, umask: u32, zone: ZoneId, node: NodeId, exclusive: bool },
        Unlink = 33 { who: Credentials, parent: Ino, name: Name },
        Rmdir = 34 { who: Credentials, parent: Ino, name: Name },
        Rename = 35 { who: Credentials, parent: Ino, name: Name, new_parent: Ino, new_name: Name, flags: u32 },
        Link = 36 { who: Credentials, ino: Ino, parent: Ino, name: Name },
        /// The reply always has `data`. O_TRUNC truncates to 0. Counts one open of the session.
        Open = 37 { who: Credentials, ino: Ino, open_flags: u32 },
        /// Counts one open less for each inode.
        Close = 38 { inos: Vec<Ino> },
        SetAttr = 39 { who: Credentials, ino: Ino, change: AttrChange },
        /// Sets the size. `by_handle`: the caller has it open for writing (ftruncate).
        /// `confirmed_seq`: all columns have seen this truncation. `kill_suid`: clear set-id bits
        /// (see `ReportWrite`).
        Truncate = 40 { who: Credentials, ino: Ino, size: u64, by_handle: bool, confirmed_seq: u64, kill_suid: bool },
        /// All columns have seen this truncation (0: only some, so none is confirmed).
        /// `allocated_delta`: bytes that it freed (negative).
        ConfirmTruncate = 41 { ino: Ino, truncate_seq: u64, allocated_delta: i64 },
        /// Reports written data up to `size` (0: nothing new) at `mtime`.
        ///
        /// * `kill_suid`: the writer is not privileged, so set-id bits and `security.capability`
        ///   are cleared
        /// * `mtime` `None`: times stay (fallocate with keep-size)
        /// * `inline`: offset and bytes of the shard's first bytes. Without bytes: missing ones
        ///   before the offset become zeros
        /// * `sync`: as if `Sync` followed, in one message
        ReportWrite = 42 { ino: Ino, size: u64, truncate_seq: u64, mtime: Option<Timestamp>, allocated_delta: i64, kill_suid: bool,
                           inline: Option<(u32, Blob)>, sync: bool },
        /// Reserves `length` bytes at the end for an append.
        AppendBegin = 43 { ino: Ino, length: u32, limit: u64 },
        /// Ends the append at `offset`, of which `length` bytes are written (0: given up).
        /// `inline`: as in `ReportWrite`.
        AppendEnd = 44 { ino: Ino, offset: u64, reserved: u32, length: u32, mtime: Timestamp, allocated_delta: i64, kill_suid: bool,
                         inline: Option<(u32, Blob)> },
        SetXattr = 45 { who: Credentials, ino: Ino, name: Blob, value: Blob, flags: u32 },
        RemoveXattr = 46 { who: Credentials, ino: Ino, name: Blob },
        /// Files read at these times, for relatime (the shard decides). Inodes that are gone or
        /// changed since are skipped.
        Touch = 47 { reads: Vec<(Ino, Timestamp)> },
        /// Sets the layout policy of a directory's new files; `None` returns to inheriting.
        SetPolicy = 48 { who: Credentials, dir: Ino, policy: Option<StripePolicy> },
        /// Disowns bytes behind the end that dead clients wrote and never reported. A session that
        /// has reported all its writes sends it before it writes behind the end or reserves space
        /// there. Reply `Attr`, with `data` where the bytes are disowned; without, others may be
        /// writing there. `reserves`: the space stays when the file grows.
        DisownBehind = 49 { ino: Ino, reserves: bool },
        /// Clears set-id bits and `security.capability`, as a write does. Sent before a write by
        /// `who`, who is not privileged, through a file that is open for writing. Reply `Attr`.
        TakePrivileges = 50 { who: Credentials, ino: Ino },
        /// Marks the copies of a file on these targets as stale, before a change that leaves them
        /// out. Each must be out of service in the map. Reply `Attr` with `data`, once the mark is
        /// durable. Targets without a copy are skipped. `WrongTarget`: the shard's map does not
        /// have one as out. `Io`: a column would have no copy without a mark.
        MarkStale = 51 { ino: Ino, targets: Vec<TargetId> },
        /// A file without a name for the bytes of `ino`, laid out as a new file of `dir` is now. It
        /// has no fewer copies than `ino`, and is open, as that of `Tmpfile`. Reply `Opened`.
        ///
        /// `Exists`: the file is striped so already. `Busy`: others may have it open. `WouldBlock`:
        /// targets have yet to fill, move or delete some of it, or no newer stripe set is there.
        /// `NotSupported`: new files of `dir` lie on the node that makes them.
        BeginRestripe = 52 { who: Credentials, ino: Ino, dir: Ino },
        /// Gives `ino` the bytes of `copy`, which `BeginRestripe` made, and the reverse. Of `ino`
        /// only the `ctime` changes besides. Reply `Attr` with `data`, once that is durable.
        ///
        /// `Busy`: others may have one of them open, or `ino` was changed since. Then its change
        /// counter is not `change`, or the shard was started since it had this `boot`.
        /// `WouldBlock`: as above, or a target of the new layout leaves.
        SwapBytes = 53 { who: Credentials, ino: Ino, copy: Ino, change: u64, boot: u64 },
        /// A target has no room for a change of an object that moves to it. The relocations of the
        /// file's objects to it are dropped, before a change that leaves them out. Reply `Attr`
        /// with `data`, once that is durable. `NoSpace`: a new object has no other place.
        GiveUpPlace = 114 { ino: Ino, target: TargetId },

        /// `wait`: queues the request under `waiter` (chosen by the client, unique in the session)
        /// and replies `LockQueued`. `settled`: requests of the owner on this inode with lower
        /// numbers are over for their callers. They are neither granted late nor cancelled.
        Lock = 60 { ino: Ino, range: LockRange, wait: bool, waiter: u64, settled: u64 },
        /// Releases the parts of the range that requests with lower numbers took.
        Unlock = 61 { ino: Ino, range: LockRange },
        /// Cancels the request `range.number`, and nothing that a later request took. A waiting
        /// request (under `waiter`, if not 0) waits no more. For a granted request the owner's
        /// range becomes `before` again, but never more than it is now.
        CancelLock = 62 { ino: Ino, range: LockRange, waiter: u64, before: Vec<LockRange> },
        /// Releases all locks of this space that the owner took on the inode by requests with lower
        /// numbers. `handle`: only through this open file.
        ReleaseLocks = 63 { ino: Ino, owner: u64, whole_file: bool, handle: Option<u64>, number: u64 },

        /// The callers of these appends of the session are gone. Appends behind them wait no more
        /// for their ends, which come later, without bytes.
        GiveUpAppends = 64 { appends: Vec<(Ino, u64)> },
        /// Lends the end of a file to a session that alone has it open, to append without asking
        /// where. Nobody else gets a place before the end is given back. Reply `Appending` with the
        /// end; `Failed(Busy)` where others have the file open, append, or may do so.
        LendEnd = 65 { ino: Ino },
        /// Asks for a place at `offset`, behind the end that is lent to the session. A repeat with
        /// more bytes extends the same place. Reply `Appending`; `Failed(UnknownLease)` where the
        /// end is not lent to the session.
        AppendAt = 66 { ino: Ino, offset: u64, length: u32 },
        /// Gives back lent ends of these files; all appends are published. Sent after
        /// `EndRecalled`, or before.
        ReturnEnds = 67 { inos: Vec<Ino> },
        /// Payload bytes that the client exchanged with targets since its last report, by data id.
        /// `number` rises; a repeat counts once in a life of the shard. Reply `TrafficDirs`.
        ReportTraffic = 68 { number: u64, traffic: Vec<(DataId, ClientTraffic)> },

        /// Reserved: a lease on bytes `start..end`, or on size and times.
        TakeLease = 70 { ino: Ino, kind: LeaseKind, start: u64, end: u64 },
        /// Reserved.
        RenewLeases = 71 { leases: Vec<(Ino, u64)> },
        /// Reserved: gives a lease back. It has the size and the time of the last change where the
        /// lease was for them.
        ReturnLease = 72 { ino: Ino, lease: u64, size: Option<u64>, mtime: Option<Timestamp> },

        /// Root shard to zone shard: makes a directory inode without a name, to be attached.
        MakeDetachedDir = 80 { uid: u32, gid: u32, mode: u32, default_acl: Option<Blob>, token: u64 },
        /// Root shard to zone shard: the directory's entry is durable.
        AttachDir = 81 { ino: Ino },
        /// Root shard to zone shard: the directory must be empty and accepts no entries from now
        /// on.
        DetachDir = 82 { ino: Ino },
        /// Root shard to zone shard: the entry is gone; delete the inode.
        DropDir = 83 { ino: Ino },
        /// Zone shard to root shard: is there an entry for this inode? `Failed(NotReady)` while an
        /// entry is being made or removed.
        HasEntry = 84 { ino: Ino },
        /// A zone shard to itself: the root shard's answer about a directory that has been detached
        /// since `since`. Does nothing where the root shard has asked for the directory again
        /// meanwhile.
        SettleDir = 85 { ino: Ino, since: Timestamp, has_entry: bool },
        /// Target to shard: does the client with this certificate subject have the file with these
        /// bytes open for this use, within its scope? Reply `MayUse`; `Failed(NotReady)` where the
        /// client has not reclaimed its state yet.
        HasOpen = 86 { subject: String, data_id: DataId, for_use: FileUse },
        /// Starting target to shard: clients of this shard that are fenced, behind this client and
        /// holder. Reply `Fences`.
        FencesOf = 87 { target: TargetId, after: ClientId, holder: HolderNumber },
        /// A shard to the root shard's process, which keeps the map: opens the zone's default
        /// stripe sets. Reply `Sets`.
        OpenSets = 88 { zone: ZoneId },
        /// Zone shard to root shard: the directory of the root's entry with this name. Reply
        /// `Child`.
        FirstLevel = 89 { name: Name },
        /// Zone shard to root shard, every few seconds: number of its inodes, and of the requests
        /// that it has answered since its start. Reply `Done`.
        ReportShardLoad = 94 { shard: ShardId, inodes: u64, requests: u64 },
        /// A shard to the root shard's process, which keeps the map: gives the shard more
        /// partitions, where it may have more. Reply `Done`; the newer map has them.
        MorePartitions = 96 { shard: ShardId },
        /// Command to the shard that has the partition: begins to move it to another shard of the
        /// zone, as it is used. Reply `Done`: the shard goes on by itself. `Joined` where inodes of
        /// other partitions have names in it, or the reverse.
        MovePartition = 97 { partition: PartitionId, to: ShardId },
        /// Command to a shard: partitions that are leaving it. Reply `Moves`.
        GetMoves = 98,
        /// Command to the shard that has the partition: ends the move. Reply `Done`; `Failed(Busy)`
        /// where it cannot be ended any more.
        CancelMove = 99 { partition: PartitionId },
        /// A shard to another: its partition will come, as attempt `number`. Reply `Done`; `Failed`
        /// with `NotReady` while what an earlier attempt left is removed.
        MoveBegin = 105 { partition: PartitionId, from: ShardId, number: u64 },
        /// A shard to another: the next page of a partition. Pages count from 1. Reply `Done`.
        MoveEntries = 106 {
            partition: PartitionId,
            number: u64,
            page: u64,
            entries: Vec<MovedEntry>,
        },
        /// A shard to another: all pages of the partition were sent. `has_remote_data`: its files
        /// may lie on targets of other zones. Reply `Done`, once they are durable.
        MoveEnd = 107 {
            partition: PartitionId,
            number: u64,
            pages: u64,
            has_remote_data: bool,
        },
        /// A shard to another: the move was ended. Reply `Done`.
        MoveDropped = 108 { partition: PartitionId, number: u64 },
        /// A shard to the root shard's process, which keeps the map: gives its partition to the
        /// other shard. Reply `Done`.
        GivePartition = 109 { partition: PartitionId, from: ShardId, to: ShardId },
        /// Target to shard: files of this shard behind `after` whose copies on the target are
        /// stale. Target 0, of a command: on any target. Reply `Files`.
        StaleFiles = 110 { target: TargetId, after: Ino },
        /// Target to shard: its copies of the file have all changes, durably; the mark can go.
        /// `as_of`: the map by which the target began to fill them. `WrongTarget`: the target went
        /// out since, or the shard does not know that it is back. Reply `Done`.
        /// `relocated`: the objects among them that the target got by a relocation, and those that
        /// it deleted. `full`: the target has no room for the objects of the file that move to it.
        /// Their relocations are dropped, and nothing else changes.
        MendCopy = 111 {
            ino: Ino,
            target: TargetId,
            as_of: MapVersion,
            allocated_delta: i64,
            relocated: Vec<(DataId, Column)>,
            full: bool,
        },
        /// Target to shard: the file with these bytes, where it has one. Reply `Files`.
        CopiesOf = 112 { data_id: DataId },
        /// Manager to shard: gives each object on a draining target a relocation, for files behind
        /// `after`. `unfinished`: looks only at files that a target has yet to fill. Of a target
        /// that is back it ends them: `settled` is the version of the last fence that all targets
        /// know. Of a target that is evened out it does both. Reply `Relocations`. `WrongTarget`:
        /// the shard does not know the target's state. `NotReady`: a partition is on its way to
        /// another shard.
        RelocateObjects = 113 {
            target: TargetId,
            after: Ino,
            unfinished: bool,
            settled: MapVersion,
            plan: RelocationPlan,
        },
        /// Command to root shard: loads of all zones' shards. Reply `ShardLoads`.
        GetShardLoads = 95,

        /// The root's attributes, from the mirror of a zone's shard, where `who` may do this in the
        /// root (`mask`: as of `Access`; 0: anything). Reply `MirroredRoot`. This and the next two:
        /// `Failed(NotFound)` says only that the mirror does not know.
        MirroredRoot = 102 { who: Credentials, mask: u32 },
        /// The first-level directory of this name, from the mirror. Reply `MirroredNames`.
        MirroredName = 103 { who: Credentials, name: Name },
        /// First-level directories behind `cookie`, from the mirror. The cookies are those of the
        /// root's shard, but for names with the same hash. Reply `MirroredNames`.
        MirroredNames = 104 { who: Credentials, cookie: u64, entries: u32 },
    }
}

codec_struct! {
    /// The inode that a name leads to.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Entry {
        ino: Ino,
        kind: FileKind,
        /// `None` where another shard has the inode.
        attr: Option<Attr>,
        /// Term for which the entry may be cached, from the sending of the request.
        entry_ms: u32,
        /// Term for which the attributes may be cached.
        attr_ms: u32,
    }
}

codec_struct! {
    /// One entry of a directory listing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DirEntry {
        name: Name,
        /// Position behind this entry, to continue the listing.
        cookie: u64,
        entry: Entry,
    }
}

codec_struct! {
    /// The first entries of a directory; `end`: the listing ends here. Its names may be cached for
    /// `term_ms`, from the sending of the request.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Listing {
        dir: Ino,
        entries: Vec<DirEntry>,
        end: bool,
        term_ms: u32,
    }
}

codec_enum! {
    /// A shard's reply.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum MetaReply {
        Failed = 0 { code: ErrorNumber },
        Done = 1,
        /// `boot` changes with each start of the shard. `now`: the shard's calendar time.
        Session = 2 { session: SessionId, boot: u64, epoch: Epoch, term_ms: u64, now: Timestamp, resumed: bool },
        /// `lease_ms`: term of everything that the session may cache, from the sending of the poll;
        /// 0: not renewed.
        Events = 3 { boot: u64, lease_ms: u32, events: Vec<(u64, Event)> },
        /// Refused (`StaleEpoch`): the sender's epoch is below the shard's. Holds the shard's entry
        /// in the map of this version.
        StaleShard = 4 { shard: ShardId, node: NodeId, epoch: Epoch, map_version: MapVersion },
        /// All changes are durable that the shard acknowledged since the start with this `boot`.
        Synced = 5 { boot: u64 },
        /// To `Reclaim`: files on which others have taken locks. None of the sender's locks on them
        /// was reclaimed.
        Reclaimed = 6 { lost: Vec<Ino> },
        /// Refused: the replica does not lead the shard's group. `leader`: node of the leading
        /// replica; 0: not known.
        NotLeader = 7 { leader: NodeId },
        Entry = 10 { entry: Entry },
        /// The name does not exist; its absence may be cached for `entry_ms`.
        NoEntry = 11 { entry_ms: u32 },
        Attr = 12 { attr: Attr, data: Option<FileData>, attr_ms: u32 },
        Text = 13 { text: Blob },
        /// `end`: nothing follows.
        Dir = 14 { entries: Vec<DirEntry>, end: bool },
        Names = 15 { names: Vec<Blob> },
        Locked = 16 { holder: Option<LockRange> },
        /// `names_left`: approximate number of new names that fit; 0 where they are refused.
        StatFs = 17 { inodes: u64, names_left: u64 },
        /// May end before the layout's inline bytes do: zeros follow, up to the file's size.
        Inline = 19 { bytes: Blob },
        Dirs = 20 { listings: Vec<Listing> },
        File = 21 { ino: Ino },
        /// Parent directory and, where it is known, the zone of the inode.
        Parent = 18 { parent: Ino },
        /// A file was made or opened. `push`: the columns must see `data.truncate_seq` before
        /// anything else (O_TRUNC of a file with data). Then the client sends `ConfirmTruncate`.
        Opened = 30 { entry: Entry, data: FileData, push: bool },
        /// A file was opened for reading that the shard has whole: with its bytes at that time.
        OpenedSmall = 33 { entry: Entry, data: FileData, bytes: Blob },
        /// `push`: as above.
        Truncated = 31 { attr: Attr, data: FileData, push: bool },
        Appending = 32 { offset: u64, data: FileData },
        /// As `Entry`, where the directory's entries changed.
        Made = 34 { entry: Entry, dir: DirAfter },
        /// As `Opened` without `push`, where the directory's entries changed.
        MadeOpen = 35 { entry: Entry, data: FileData, dir: DirAfter },
        /// A name was removed. `attr` is there where an inode other than a file lost its last name.
        Removed = 36 { attr: Option<Attr>, dir: DirAfter },
        /// Reserved.
        Leased = 37 { grant: LeaseGrant },
        Detached = 40 { ino: Ino },
        Yes = 41 { yes: bool },
        /// Place of the bytes that the client may use; `None`: it may use none.
        MayUse = 42 { place: Option<BytesPlace> },
        /// Fences that a target has not acknowledged, in order; `end`: the list ends here.
        Fences = 43 { fences: Vec<Fence>, end: bool },
        /// Open default stripe sets, each with its width, by a version of the map.
        Sets = 44 { map_version: MapVersion, sets: Vec<(StripeSetId, u16)> },
        /// The directory, where there is one.
        Child = 45 { ino: Option<Ino> },
        /// The first-level directories of reported files, or the root for files in it. Files that
        /// are gone are missing.
        TrafficDirs = 46 { dirs: Vec<(DataId, Ino)> },
        /// Loads of the zones' shards, in the order of their ids.
        ShardLoads = 51 { loads: Vec<ShardLoad> },
        /// Partitions that are leaving a shard.
        Moves = 61 { moves: Vec<MoveStatus> },
        /// Partitions that are joined with the one to be moved.
        Joined = 62 { partitions: Vec<PartitionId> },
        /// `next`: where to go on; none where these are the last.
        Files = 63 { files: Vec<(Ino, FileData)>, next: Option<Ino> },
        /// Objects of a draining target in the files looked at. `begun`: relocations made, changed
        /// or dropped now. `filling`: under way. `unfenced`: those of them that clients with older
        /// layouts may not know. `stuck`: objects without another copy in service, or without a
        /// place. `no_room`: those of them for which no target has room. `placed`: bytes that
        /// targets are to get. `next`: where to go on; none where these are the last.
        Relocations = 64 {
            begun: u64,
            filling: u64,
            unfenced: u64,
            stuck: u64,
            no_room: u64,
            placed: Vec<TargetRoom>,
            next: Option<Ino>,
        },
        /// The root's attributes and the value of its access ACL, as they were `age_ms` ago at
        /// most; all later changes may be missing.
        MirroredRoot = 59 { attr: Attr, acl: Option<Blob>, age_ms: u64 },
        /// First-level directories, without attributes, as they were `age_ms` ago at most; `end`:
        /// nothing follows.
        MirroredNames = 60 { entries: Vec<DirEntry>, end: bool, age_ms: u64 },
    }
}

impl MetaReply {
    /// Adds the directory's attributes after the change, where a reply exists for both.
    #[must_use]
    pub fn with_directory(self, dir: DirAfter) -> Self {
        match self {
            Self::Entry { entry } => Self::Made { entry, dir },
            Self::Opened {
                entry,
                data,
                push: false,
            } => Self::MadeOpen { entry, data, dir },
            Self::Done => Self::Removed { attr: None, dir },
            Self::Attr {
                attr, data: None, ..
            } => Self::Removed {
                attr: Some(attr),
                dir,
            },
            other => other,
        }
    }

    /// Splits the directory's attributes from the reply.
    #[must_use]
    pub fn split_directory(self) -> (Self, Option<DirAfter>) {
        match self {
            Self::Made { entry, dir } => (Self::Entry { entry }, Some(dir)),
            Self::MadeOpen { entry, data, dir } => {
                let push = false;
                (Self::Opened { entry, data, push }, Some(dir))
            }
            Self::Removed { attr: None, dir } => (Self::Done, Some(dir)),
            Self::Removed {
                attr: Some(attr),
                dir,
            } => {
                let (data, attr_ms) = (None, 0);
                let attr = Self::Attr {
                    attr,
                    data,
                    attr_ms,
                };
                (attr, Some(dir))
            }
            other => (other, None),
        }
    }

    /// True where another store changes because of the reply, so that a loss of power must not undo
    /// it here. Either targets truncate objects that the old size still has, or an entry leads to a
    /// directory that does not exist.
    #[must_use]
    pub fn must_be_durable(&self) -> bool {
        match self {
            Self::Opened { push: true, .. }
            | Self::Truncated { push: true, .. }
            | Self::Detached { .. } => true,
            // Extended, perhaps with a number that targets see with the next request.
            Self::Truncated { attr, data, .. } => {
                truncation::is_disowning(data.truncate_seq) && attr.size > data.truncate_size
            }
            _ => false,
        }
    }
}

codec_enum! {
    /// An event that a shard sends to a session.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Event {
        /// Recall: drop cached entries of the directory `entries` (0: none) and attributes of
        /// `inodes`; `data`: their pages, too.
        Invalidate = 1 { entries: Ino, inodes: Vec<Ino>, data: bool },
        /// The queued lock request is granted.
        LockGranted = 2 { ino: Ino, waiter: u64 },
        /// Reserved: the lease ends, or is reduced to the kind `keep`.
        RecallLease = 3 { ino: Ino, lease: u64, keep: Option<LeaseKind> },
        /// Another session has truncated the file: ask for its attributes before the next read or
        /// write.
        FileTruncated = 4 { ino: Ino },
        /// Recall of a lent end, which another session wants to use: publish the appends and give
        /// it back (`ReturnEnds`).
        EndRecalled = 5 { ino: Ino },
    }
}
