//! Messages between a client and a metadata shard (and between the root shard and zone shards).
//!
//! Requests that change something ([`MetaRequest::is_mutation`]) carry a slot and a sequence in the
//! header: the shard keeps the last reply of each slot, so a repeated request gets the same reply,
//! once done. `Credentials` say who asks; the shard enforces permissions. Flags are Linux's (x86-64
//! generic values), see [`flags`].

#![expect(missing_docs, reason = "fields are described with their variant")]

mod kinds;

use crate::lease::{LeaseGrant, LeaseKind};
use crate::storage::ErrorNumber;
use zonal_types::{
    Attr, Blob, ClientId, Component, Credentials, DataId, Epoch, Fence, FileData, FileKind,
    HolderNumber, Ino, MapVersion, Name, NodeId, SessionId, ShardId, StripePolicy, StripeSetId,
    TargetId, Timestamp, ZoneId, codec_enum, codec_struct, truncation,
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
    /// What `utimensat` sets a time to.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SetTime {
        /// The server's time (write permission is enough).
        Now = 1,
        /// This time (needs ownership).
        At = 2 { time: Timestamp },
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
    /// What a new inode is.
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
    /// Where bytes of a file are, and the number of its last cut.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BytesPlace {
        component: Component,
        truncate_seq: u64,
    }
}

codec_enum! {
    /// What the bytes of a file are asked for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum FileUse {
        /// Where some are, and how many: open in any way.
        Look = 1,
        /// Open for reading.
        Read = 2,
        /// Open for writing.
        Write = 3,
    }
}

codec_struct! {
    /// A range lock. For flock: `whole_file` true, start 0, end `u64::MAX`. `end` is the last byte
    /// (inclusive). flock and fcntl/OFD locks do not see one another. `owner` is unique within the
    /// session, but a later process or open file may get the same one. `handle` (the open file) and
    /// `number` (the request) are never used again in the session: they say which request took the
    /// range last, and through which open file.
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
    /// Where the bytes of an append are being written: `length` bytes behind the end of a file,
    /// given when `truncate_seq` was its last shrink.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AppendPlace {
        offset: u64,
        length: u32,
        truncate_seq: u64,
    }
}

impl AppendPlace {
    /// How much of it there still is, where the file's last shrink is `truncate_seq`, to
    /// `truncate_size`: after one shrink to behind its beginning what lies within the file
    /// (appended, then cut), after others nothing.
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
    /// What a client asks of a shard.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum MetaRequest {
        /// Opens a session for the client of the header: the same one gets its session back, which
        /// from now on is of the header's incarnation.
        OpenSession = 1 { zone: ZoneId, name: String },
        /// Acknowledges all events to `acked`, then waits up to `wait_ms` for the next. A shard
        /// whose boot is not `boot`, the one that the last poll heard of (0: none), answers at once
        /// and takes nothing as acknowledged.
        PollEvents = 2 { boot: u64, acked: u64, wait_ms: u32 },
        /// Ends the session: its locks, opens and leases are gone.
        CloseSession = 3,
        /// After the shard's restart (`boot` changed): what this session holds.
        Reclaim = 4 { opens: Vec<Ino>, locks: Vec<(Ino, LockRange)> },
        /// After the shard's restart: this session uses nothing that it was allowed to cache
        /// before.
        DropLeases = 5,
        /// Places behind the ends of files that this session's appends are being written to: before
        /// `Reclaim`, and where a write takes long. One of no bytes is an end that is lent
        /// (`LendEnd`). Reply `Failed(UnknownLease)` where one of them is not the session's any
        /// more, or is from before a shrink that left nothing of it (`AppendPlace::left`).
        ReclaimAppends = 6 { appends: Vec<(Ino, AppendPlace)> },
        /// Ends the session for its client, which may still be there: its locks and opens are gone,
        /// its leases run to their end.
        EvictSession = 7,

        Lookup = 10 { who: Credentials, parent: Ino, name: Name },
        /// `data`: with the layout.
        GetAttr = 11 { ino: Ino, data: bool },
        /// `mask`: R_OK, W_OK, X_OK.
        Access = 12 { who: Credentials, ino: Ino, mask: u32 },
        Readlink = 13 { ino: Ino },
        /// Entries behind `cookie` (0: from the start; `.` and `..` are the client's). `plus`: with
        /// attributes.
        ReadDir = 14 { who: Credentials, dir: Ino, cookie: u64, entries: u32, plus: bool },
        GetXattr = 15 { who: Credentials, ino: Ino, name: Blob },
        ListXattr = 16 { who: Credentials, ino: Ino },
        GetLock = 17 { ino: Ino, range: LockRange },
        StatFs = 18,
        /// Makes everything durable that this shard acknowledged before.
        Sync = 19,
        /// Parent of a directory (`..`), and for a file the directory that its back-link names.
        Parent = 20 { ino: Ino },
        /// The first bytes of a file, those that the shard keeps. Reply `Inline`.
        ReadInline = 21 { ino: Ino },
        /// The first entries of several directories, with attributes. Reply `Dirs`: the first,
        /// which may fail, and of the others those that can be listed, while there is room.
        ReadDirs = 22 { who: Credentials, dirs: Vec<Ino>, entries: u32 },
        /// The file that has the bytes of a data id. Reply `File`; `Failed(Stale)` where none has
        /// them.
        FileOf = 23 { data_id: DataId },

        /// New inode, not a directory. `open`: also opens it (files). `exclusive`: fails where the
        /// name exists; else an existing file is opened with `open_flags` (O_TRUNC honoured).
        /// `zone`: home where the parent is the root.
        Create = 30 { who: Credentials, parent: Ino, name: Name, kind: NewKind, mode: u32, umask: u32, zone: ZoneId,
                      open: bool, open_flags: u32, exclusive: bool },
        Mkdir = 31 { who: Credentials, parent: Ino, name: Name, mode: u32, umask: u32, zone: ZoneId },
        /// A file without a name, open. May be linked later unless `exclusive`.
        Tmpfile = 32 { who: Credentials, parent: Ino, mode: u32, umask: u32, zone: ZoneId, exclusive: bool },
        Unlink = 33 { who: Credentials, parent: Ino, name: Name },
        Rmdir = 34 { who: Credentials, parent: Ino, name: Name },
        Rename = 35 { who: Credentials, parent: Ino, name: Name, new_parent: Ino, new_name: Name, flags: u32 },
        Link = 36 { who: Credentials, ino: Ino, parent: Ino, name: Name },
        /// `data`: always in the reply. O_TRUNC truncates to 0. Counts one open of the session.
        Open = 37 { who: Credentials, ino: Ino, open_flags: u32 },
        /// One open less for each.
        Close = 38 { inos: Vec<Ino> },
        SetAttr = 39 { who: Credentials, ino: Ino, change: AttrChange },
        /// Sets the size. `by_handle`: the caller has it open for writing (ftruncate).
        /// `confirmed_seq`: all columns have seen this shrink. `kill_suid`: clear set-id bits (see
        /// `ReportWrite`).
        Truncate = 40 { who: Credentials, ino: Ino, size: u64, by_handle: bool, confirmed_seq: u64, kill_suid: bool },
        /// All columns have seen this shrink (0: only some, so none is confirmed);
        /// `allocated_delta` is what it freed (negative).
        ConfirmTruncate = 41 { ino: Ino, truncate_seq: u64, allocated_delta: i64 },
        /// Data was written up to `size` (0: nothing new) at `mtime`. `kill_suid`: the writer is
        /// not privileged, so set-id bits and `security.capability` go. `mtime` None: keeps times
        /// (fallocate with keep-size). `inline`: bytes (offset, bytes) of those that the shard
        /// keeps itself; without bytes those before the offset that are not there become zeros.
        /// `sync`: as if `Sync` followed, in one message.
        ReportWrite = 42 { ino: Ino, size: u64, truncate_seq: u64, mtime: Option<Timestamp>, allocated_delta: i64, kill_suid: bool,
                           inline: Option<(u32, Blob)>, sync: bool },
        /// Reserves `length` bytes at the end for an append.
        AppendBegin = 43 { ino: Ino, length: u32, limit: u64 },
        /// The append at `offset` is written (`length` of it; 0: given up). `inline`: as in
        /// `ReportWrite`.
        AppendEnd = 44 { ino: Ino, offset: u64, reserved: u32, length: u32, mtime: Timestamp, allocated_delta: i64, kill_suid: bool,
                         inline: Option<(u32, Blob)> },
        SetXattr = 45 { who: Credentials, ino: Ino, name: Blob, value: Blob, flags: u32 },
        RemoveXattr = 46 { who: Credentials, ino: Ino, name: Blob },
        /// These were read at these times: relatime updates (the shard decides). What is gone, or
        /// was changed since, is left out.
        Touch = 47 { reads: Vec<(Ino, Timestamp)> },
        /// How new files of the directory are laid out; `None` goes back to inheriting.
        SetPolicy = 48 { who: Credentials, dir: Ino, policy: Option<StripePolicy> },
        /// Before the session, which has told all that it wrote, writes behind the end of the file,
        /// or reserves space there: what clients that are gone wrote there and never told becomes
        /// nobody's. Reply `Attr`, with `data` where it is; without, others may be writing there.
        /// `reserves`: the space stays when the file grows.
        DisownBehind = 49 { ino: Ino, reserves: bool },
        /// Before a write by `who`, who is not privileged, through an open file, which has the
        /// right to write: set-id bits go as they go at a write, and `security.capability`. Reply
        /// `Attr`.
        TakePrivileges = 50 { who: Credentials, ino: Ino },

        /// `wait`: queue it under `waiter` (chosen by the client, unique in the session) and answer
        /// `LockQueued`. `settled`: requests of the owner on this inode with lower numbers are over
        /// for their callers: neither granted late nor taken back.
        Lock = 60 { ino: Ino, range: LockRange, wait: bool, waiter: u64, settled: u64 },
        /// Releases what requests with lower numbers hold of the range.
        Unlock = 61 { ino: Ino, range: LockRange },
        /// Takes the request `range.number` back, and nothing that a later one got. Where it still
        /// waits (under `waiter`, if not 0) it waits no more; where it was granted, its owner holds
        /// `before` again there, in so far as that is not more than what it held until now.
        CancelLock = 62 { ino: Ino, range: LockRange, waiter: u64, before: Vec<LockRange> },
        /// Releases all locks of that sort that the owner got on the inode by requests with lower
        /// numbers; `handle`: through this one only.
        ReleaseLocks = 63 { ino: Ino, owner: u64, whole_file: bool, handle: Option<u64>, number: u64 },

        /// The callers of these appends of the session are gone: those behind them wait no more for
        /// their ends, which come later, without bytes.
        GiveUpAppends = 64 { appends: Vec<(Ino, u64)> },
        /// The session, which alone has the file open, wants to append without asking where: nobody
        /// else gets a place in the file before it has given the end back. Reply `Appending` with
        /// the end; `Failed(Busy)` where others have the file open, append, or may do so.
        LendEnd = 65 { ino: Ino },
        /// A place at `offset`, behind the end that is lent to the session; asked for again, with
        /// what was appended since, it is the same place. Reply `Appending`; `Failed(UnknownLease)`
        /// where the end is not lent to the session.
        AppendAt = 66 { ino: Ino, offset: u64, length: u32 },
        /// What was appended to these files is published, and their ends are the shard's again.
        /// After `EndRecalled`, or before.
        ReturnEnds = 67 { inos: Vec<Ino> },

        /// Reserved: a lease on bytes `start..end`, or on size and times.
        TakeLease = 70 { ino: Ino, kind: LeaseKind, start: u64, end: u64 },
        /// Reserved.
        RenewLeases = 71 { leases: Vec<(Ino, u64)> },
        /// Reserved: given back, with the size and the time of the last change where the lease was
        /// for them.
        ReturnLease = 72 { ino: Ino, lease: u64, size: Option<u64>, mtime: Option<Timestamp> },

        /// Root shard to zone shard: a directory inode without a name, to be attached.
        MakeDetachedDir = 80 { uid: u32, gid: u32, mode: u32, default_acl: Option<Blob>, token: u64 },
        /// Root shard to zone shard: its entry is durable.
        AttachDir = 81 { ino: Ino },
        /// Root shard to zone shard: must be empty; accepts no entries from now on.
        DetachDir = 82 { ino: Ino },
        /// Root shard to zone shard: the entry is gone; forget the inode.
        DropDir = 83 { ino: Ino },
        /// Zone shard to root shard: is there an entry for this inode? `Failed(NotReady)` while one
        /// is being made or removed.
        HasEntry = 84 { ino: Ino },
        /// A zone shard to itself: what the root shard said of a directory that has been detached
        /// since then. Nothing happens where the root shard has asked for it again meanwhile.
        SettleDir = 85 { ino: Ino, since: Timestamp, has_entry: bool },
        /// Target to shard: whether the client whose certificate has this subject has the file with
        /// these bytes open for this use, within its scope. Reply `MayUse`; `Failed(NotReady)`
        /// where it has not told yet what it holds.
        HasOpen = 86 { subject: String, data_id: DataId, for_use: FileUse },
        /// Target to shard, when it starts: which clients of this shard are fenced there, behind
        /// this client and holder. Reply `Fences`.
        FencesOf = 87 { target: TargetId, after: ClientId, holder: HolderNumber },
        /// A shard to the root shard's process, which keeps the map: the zone's default stripe sets
        /// are to be open. Reply `Sets`.
        OpenSets = 88 { zone: ZoneId },
        /// Zone shard to root shard: the directory that the root's entry of this name leads to.
        /// Reply `Child`.
        FirstLevel = 89 { name: Name },
    }
}

codec_struct! {
    /// What a name leads to.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Entry {
        ino: Ino,
        kind: FileKind,
        /// `None` where another shard has the inode.
        attr: Option<Attr>,
        /// How long the entry may be cached, from the sending of the request.
        entry_ms: u32,
        /// How long the attributes may be cached.
        attr_ms: u32,
    }
}

codec_struct! {
    /// One entry of a directory listing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DirEntry {
        name: Name,
        /// Position behind this entry.
        cookie: u64,
        entry: Entry,
    }
}

codec_struct! {
    /// The first entries of a directory; `end`: nothing follows. Its names may be cached for
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
    /// A shard's answer.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum MetaReply {
        Failed = 0 { code: ErrorNumber },
        Done = 1,
        /// `boot` changes with each start of the shard. `now`: the shard's calendar time.
        Session = 2 { session: SessionId, boot: u64, epoch: Epoch, term_ms: u64, now: Timestamp, resumed: bool },
        Events = 3 { boot: u64, events: Vec<(u64, Event)> },
        /// Refused (`StaleEpoch`): the sender's epoch is below the shard's. What the shard knows of
        /// itself, out of the map of this version.
        StaleShard = 4 { shard: ShardId, node: NodeId, epoch: Epoch, map_version: MapVersion },
        /// Everything is durable that the shard acknowledged since the start with this `boot`.
        Synced = 5 { boot: u64 },
        /// To `Reclaim`: files whose locks others have got. None of the sender's locks at them was
        /// taken over.
        Reclaimed = 6 { lost: Vec<Ino> },
        Entry = 10 { entry: Entry },
        /// No such name; the absence may be cached for `entry_ms`.
        NoEntry = 11 { entry_ms: u32 },
        Attr = 12 { attr: Attr, data: Option<FileData>, attr_ms: u32 },
        Text = 13 { text: Blob },
        /// `end`: nothing follows.
        Dir = 14 { entries: Vec<DirEntry>, end: bool },
        Names = 15 { names: Vec<Blob> },
        Locked = 16 { holder: Option<LockRange> },
        /// `names_left`: new names that fit, about; 0 where they are refused.
        StatFs = 17 { inodes: u64, names_left: u64 },
        /// May end before the bytes that the layout leaves to the shard: zeros follow, to the
        /// file's size.
        Inline = 19 { bytes: Blob },
        Dirs = 20 { listings: Vec<Listing> },
        File = 21 { ino: Ino },
        /// Parent directory and, where it is known, the zone of the inode.
        Parent = 18 { parent: Ino },
        /// A file was made or opened. `push`: the layout's columns must see `data.truncate_seq`
        /// before anything else (O_TRUNC of a file with data); then `ConfirmTruncate`.
        Opened = 30 { entry: Entry, data: FileData, push: bool },
        /// A file was opened for reading that the shard has whole: with its bytes, as they were
        /// then.
        OpenedSmall = 33 { entry: Entry, data: FileData, bytes: Blob },
        /// `push`: as above.
        Truncated = 31 { attr: Attr, data: FileData, push: bool },
        Appending = 32 { offset: u64, data: FileData },
        /// As `Entry`, where the directory's entries changed.
        Made = 34 { entry: Entry, dir: DirAfter },
        /// As `Opened` without `push`, where the directory's entries changed.
        MadeOpen = 35 { entry: Entry, data: FileData, dir: DirAfter },
        /// A name was removed; as `Attr` where that was the last one of what is not a file, else as
        /// `Done`.
        Removed = 36 { attr: Option<Attr>, dir: DirAfter },
        /// Reserved.
        Leased = 37 { grant: LeaseGrant },
        Detached = 40 { ino: Ino },
        Yes = 41 { yes: bool },
        /// Where the bytes are that the client may use; `None`: none of them.
        MayUse = 42 { place: Option<BytesPlace> },
        /// Fences that a target has not acknowledged, in order; `end`: there are no more.
        Fences = 43 { fences: Vec<Fence>, end: bool },
        /// Default stripe sets that are open, each with its width, by a version of the map.
        Sets = 44 { map_version: MapVersion, sets: Vec<(StripeSetId, u16)> },
        /// A directory, where there is one.
        Child = 45 { ino: Option<Ino> },
    }
}

impl MetaReply {
    /// With what the directory is after the change, where there is a reply for both.
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

    /// The same, apart.
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

    /// True where another store is changed because of it, which a loss of power would leave alone:
    /// objects are cut that the old size still has, an entry leads to a directory that is not
    /// there.
    #[must_use]
    pub fn must_be_durable(&self) -> bool {
        match self {
            Self::Opened { push: true, .. }
            | Self::Truncated { push: true, .. }
            | Self::Detached { .. } => true,
            // Made longer, perhaps with a number that targets hear of with the next request.
            Self::Truncated { attr, data, .. } => {
                truncation::is_disowning(data.truncate_seq) && attr.size > data.truncate_size
            }
            _ => false,
        }
    }
}

codec_enum! {
    /// What a shard tells a session by itself.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Event {
        /// Drop what is cached: `entries` of the directory (0: none), attributes of `inodes`;
        /// `data`: their pages, too.
        Invalidate = 1 { entries: Ino, inodes: Vec<Ino>, data: bool },
        /// The queued lock request is granted.
        LockGranted = 2 { ino: Ino, waiter: u64 },
        /// Reserved: the lease ends, or becomes one of that kind (`keep`).
        RecallLease = 3 { ino: Ino, lease: u64, keep: Option<LeaseKind> },
        /// Another session has made the file shorter: ask for it before it is written or read
        /// again.
        FileCut = 4 { ino: Ino },
        /// Another session wants to use the end of the file, which is lent to this one: what was
        /// appended is to be published, and the end given back (`ReturnEnds`).
        EndRecalled = 5 { ino: Ino },
    }
}
