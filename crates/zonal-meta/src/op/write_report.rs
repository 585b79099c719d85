//! Write reports of clients: size, time, allocated bytes. Sizes and times only rise; a time set by
//! utimens stays where the write was made before it.

use super::{Result, changed, inline_data, setattr, truncate_number};
use crate::inode::{FLAG_MTIME_SET, Inode};
use crate::tx::Tx;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{ErrorCode, Ino, Timestamp};
use zonal_wire::MetaReply;

/// The fields of a report.
pub(crate) struct Report<'a> {
    pub size: u64,
    /// The last truncation that the writer knew.
    pub truncate_seq: u64,
    pub mtime: Option<Timestamp>,
    pub allocated_delta: i64,
    pub kill_suid: bool,
    /// Inline bytes, with their offset.
    pub inline: Option<(u32, &'a [u8])>,
}

impl Report<'_> {
    /// The part of the size that is left. Targets have freed, or will free, bytes written before a
    /// truncation that the writer did not know. Inline bytes arrive only now.
    fn size_left(&self, truncate_seq: u64) -> u64 {
        if self.truncate_seq >= truncate_seq {
            return self.size;
        }
        let own = match self.inline {
            Some((end, [])) => u64::from(end),
            Some((offset, bytes)) => u64::from(offset) + bytes.len() as u64,
            None => 0,
        };
        zonal_types::mark!(ReportAfterTruncation);
        own.min(self.size)
    }
}

pub(crate) fn report_write(tx: &mut Tx<'_>, ino: Ino, report: &Report<'_>) -> Result {
    let mut inode = tx.inode(ino)?;
    if !inode.is_file() {
        return Err(ErrorCode::Invalid);
    }
    apply(tx, &mut inode, report)?;
    // A writer that was away does not know of truncations meanwhile.
    let news = (report.truncate_seq < inode.truncate_seq).then(|| inode.data(tx.map_version()));
    let mut reply = changed(tx, inode);
    if let MetaReply::Attr { data, .. } = &mut reply {
        *data = news;
    }
    Ok(reply)
}

/// Applies a report to the inode.
pub(crate) fn apply(tx: &mut Tx<'_>, inode: &mut Inode, report: &Report<'_>) -> Result<()> {
    if report.size > FILE_BYTES_MAX {
        return Err(ErrorCode::FileTooBig);
    }
    let before = inode.size;
    inode.size = inode.size.max(report.size_left(inode.truncate_seq));
    if report.size > inode.layout.inline_bytes().into() || report.allocated_delta != 0 {
        truncate_number::note_write(inode);
    }
    match report.inline {
        // Another client may have truncated the file meanwhile.
        Some((end, [])) => inline_data::allocate(tx, inode, end)?,
        Some((offset, bytes)) => inline_data::write(tx, inode, offset, bytes)?,
        None => {}
    }
    assert!(
        inode.size >= before,
        "a report shortens {} from {before} to {} bytes",
        inode.ino,
        inode.size
    );
    inode.count_allocated(report.allocated_delta);
    if let Some(mtime) = report.mtime {
        if mtime.nanos >= 1_000_000_000 {
            return Err(ErrorCode::Invalid);
        }
        if !inode.has(FLAG_MTIME_SET) {
            inode.mtime = inode.mtime.max(mtime);
        } else if mtime > inode.times_set {
            inode.mtime = mtime;
            inode.set(FLAG_MTIME_SET, false);
        }
        inode.ctime = inode.ctime.max(mtime);
        setattr::drop_capability(tx, inode);
    }
    if report.kill_suid {
        setattr::kill_set_id(tx, inode, false);
    }
    inode.change = inode.change.wrapping_add(1);
    Ok(())
}
