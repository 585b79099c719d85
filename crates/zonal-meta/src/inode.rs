//! The stored inode.
//!
//! The record has its own inode number, so a record under a wrong key is detected.

use zonal_types::limits::xattr_flags;
use zonal_types::{
    Attr, Blob, Codec, ErrorCode, FileData, FileKind, Ino, Layout, MapVersion, StripePolicy,
    Timestamp, ZoneId, codec_struct,
};

/// Version of the record.
pub const INODE_FORMAT: u8 = 3;

/// First-level directory whose entry in the root shard is not settled: it was just made, or is
/// being removed.
pub const FLAG_DETACHED: u32 = 1 << 0;
/// No name is left; the inode lives while it is open.
pub const FLAG_ORPHAN: u32 = 1 << 1;
/// Made by `O_TMPFILE | O_EXCL`: never gets a name.
pub const FLAG_UNLINKABLE: u32 = 1 << 2;
/// The last truncation was pushed, but may not have reached all columns. `op/truncate_number.rs`
/// has the states of a truncation.
pub const FLAG_UNCONFIRMED: u32 = 1 << 3;
/// `mtime` was set by utimens; reports of writes made before `times_set` do not change it.
pub const FLAG_MTIME_SET: u32 = 1 << 4;
/// Directory whose layout policy was set on it, not inherited.
pub const FLAG_OWN_POLICY: u32 = 1 << 5;
/// Directory that is being removed and accepts no entries.
pub const FLAG_CLOSING: u32 = 1 << 6;
/// The last truncation number was pushed to no column.
pub const FLAG_UNPUSHED: u32 = 1 << 7;
/// File with space reserved behind its end since the last truncation.
pub const FLAG_RESERVED: u32 = 1 << 8;
/// Not a directory, and lost a name while it had others: `parent` may be a directory that has no
/// name of it.
pub const FLAG_STRAYED: u32 = 1 << 9;
/// Targets may have been written since the last truncation number was given, which was pushed to no
/// column.
pub const FLAG_WRITTEN: u32 = 1 << 10;
/// All flags that have a meaning.
const FLAGS_KNOWN: u32 = (1 << 11) - 1;

codec_struct! {
    /// One inode, as stored.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Inode {
        /// [`INODE_FORMAT`].
        format: u8,
        /// Its number.
        ino: Ino,
        /// Reserved: rises where a number is used again (never, so far).
        generation: u32,
        /// Type.
        kind: FileKind,
        /// Permission, set-id and sticky bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Reserved: project of quotas.
        projid: u32,
        /// Names; for a directory 2 and its subdirectories.
        nlink: u32,
        /// Device number.
        rdev: u32,
        /// Bytes of a file or symbolic link; entries of a directory.
        size: u64,
        /// Reserved: how far a writer may go before it must ask.
        size_limit: u64,
        /// Allocated bytes, as reported.
        allocated: u64,
        /// Number of the last truncation (`zonal_types::truncation`).
        truncate_seq: u64,
        /// Size of the last truncation.
        truncate_size: u64,
        /// Rises with each explicit setting of times.
        time_seq: u64,
        /// When times were last set explicitly.
        times_set: Timestamp,
        /// Last access.
        atime: Timestamp,
        /// Last change of the contents.
        mtime: Timestamp,
        /// Last change of the inode.
        ctime: Timestamp,
        /// Birth.
        btime: Timestamp,
        /// Rises with each change.
        change: u64,
        /// [`xattr_flags`].
        xattrs: u8,
        /// The `FLAG_` bits above.
        flags: u32,
        /// Reserved: consistency of caches; 0 is close-to-open.
        consistency: u8,
        /// Reserved: encryption context.
        crypto: Blob,
        /// Reserved: snapshot epoch of its birth.
        birth_epoch: u64,
        /// The directory of its entry. With several names: a directory that has or had one of them.
        parent: Ino,
        /// Its home zone.
        home: ZoneId,
        /// Layout policy of new files (directories).
        policy: Option<StripePolicy>,
        /// Layout of its bytes (files).
        layout: Layout,
        /// Text of a symbolic link.
        inline: Blob,
    }
}

impl Inode {
    /// A new inode with one name (two for a directory).
    #[must_use]
    pub fn new(ino: Ino, kind: FileKind, parent: Ino, home: ZoneId, wall: Timestamp) -> Self {
        Self {
            format: INODE_FORMAT,
            ino,
            generation: 0,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            projid: 0,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            rdev: 0,
            size: 0,
            size_limit: 0,
            allocated: 0,
            truncate_seq: 0,
            truncate_size: 0,
            time_seq: 0,
            times_set: Timestamp::default(),
            atime: wall,
            mtime: wall,
            ctime: wall,
            btime: wall,
            change: 1,
            xattrs: 0,
            flags: 0,
            consistency: 0,
            crypto: Blob::default(),
            birth_epoch: 0,
            parent,
            home,
            policy: None,
            layout: Layout::default(),
            inline: Blob::default(),
        }
    }

    /// Decodes the record stored for `ino`.
    ///
    /// # Errors
    /// `Corrupt` where it is damaged or belongs to another inode.
    pub fn decode(ino: Ino, bytes: &[u8]) -> Result<Self, ErrorCode> {
        match Self::from_bytes(bytes) {
            Ok(inode) if inode.is_of(ino) => Ok(inode),
            _ => Err(ErrorCode::Corrupt),
        }
    }

    fn is_of(&self, ino: Ino) -> bool {
        self.format == INODE_FORMAT && self.ino == ino && self.flags & !FLAGS_KNOWN == 0
    }

    /// True for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// True for a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }

    /// True where the flag, or one of several flags, is set.
    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Sets or clears flags.
    pub fn set(&mut self, flag: u32, on: bool) {
        self.flags = if on {
            self.flags | flag
        } else {
            self.flags & !flag
        };
    }

    /// True where it has an access ACL.
    #[must_use]
    pub fn has_acl(&self) -> bool {
        self.xattrs & xattr_flags::ACL_ACCESS != 0
    }

    /// Marks a change of the inode (`ctime`, change counter).
    pub fn changed(&mut self, wall: Timestamp) {
        self.ctime = wall;
        self.change = self.change.wrapping_add(1);
    }

    /// Marks a change of the contents (`mtime`, `ctime`, change counter).
    pub fn modified(&mut self, wall: Timestamp) {
        self.mtime = wall;
        self.set(FLAG_MTIME_SET, false);
        self.changed(wall);
    }

    /// The attributes that clients see.
    #[must_use]
    pub fn attr(&self) -> Attr {
        Attr {
            ino: self.ino,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: if self.is_dir() {
                self.size.saturating_mul(32).saturating_add(4096)
            } else {
                self.size
            },
            allocated: self.allocated_bytes(),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            change: self.change,
            xattrs: self.xattrs,
        }
    }

    /// Adds to the allocated bytes. Clients report in any order, a truncation perhaps before the
    /// writes that it truncated. So the sum may be negative for a while, and is not clamped.
    pub(crate) fn count_allocated(&mut self, delta: i64) {
        self.allocated = self.allocated.wrapping_add_signed(delta);
    }

    /// Allocated bytes as reported to clients.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        u64::try_from(self.allocated.cast_signed()).unwrap_or(0)
    }

    /// Layout and last truncation. `as_of`: the shard's map, where the layout has copies.
    #[must_use]
    pub fn data(&self, as_of: MapVersion) -> FileData {
        let as_of = match self.layout.has_copies() {
            true => as_of,
            false => MapVersion(0),
        };
        FileData {
            layout: self.layout.clone(),
            as_of,
            truncate_seq: self.truncate_seq,
            truncate_size: self.truncate_size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 11] = [
        FLAG_DETACHED,
        FLAG_ORPHAN,
        FLAG_UNLINKABLE,
        FLAG_UNCONFIRMED,
        FLAG_MTIME_SET,
        FLAG_OWN_POLICY,
        FLAG_CLOSING,
        FLAG_UNPUSHED,
        FLAG_RESERVED,
        FLAG_STRAYED,
        FLAG_WRITTEN,
    ];

    #[test]
    fn each_flag_has_a_bit_of_its_own() {
        let sum: u64 = ALL.iter().map(|flag| u64::from(*flag)).sum();
        assert!(ALL.iter().all(|flag| flag.is_power_of_two()));
        assert_eq!(sum, u64::from(FLAGS_KNOWN));
    }

    #[test]
    fn flags_come_back_and_those_without_a_meaning_are_damage() {
        let (ino, wall) = (Ino(77), Timestamp::default());
        let mut inode = Inode::new(ino, FileKind::File, Ino::ROOT, ZoneId(1), wall);
        inode.set(FLAG_WRITTEN | FLAG_STRAYED, true);
        assert_eq!(Inode::decode(ino, &inode.to_bytes()), Ok(inode.clone()));
        for unknown in [FLAGS_KNOWN + 1, 1 << 31] {
            inode.flags = unknown;
            let decoded = Inode::decode(ino, &inode.to_bytes());
            assert_eq!(decoded, Err(ErrorCode::Corrupt));
        }
    }
}
