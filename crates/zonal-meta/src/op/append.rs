//! Appends: `begin` reserves a place by a ticket, `end` publishes size and time. Tickets are in
//! memory only.

use super::{Result, truncate_number, write_report};
use crate::append::Tickets;
use crate::tx::Tx;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::MetaReply;

/// Reserves a place; `limit` (not 0) is the caller's own file size limit.
pub(crate) fn begin(
    tx: &mut Tx<'_>,
    tickets: &mut Tickets,
    ino: Ino,
    length: u32,
    limit: u64,
) -> Result {
    let inode = tx.inode(ino)?;
    if !inode.is_file() {
        return Err(ErrorCode::Invalid);
    }
    if limit != 0 && inode.size >= limit {
        return Err(ErrorCode::FileTooBig);
    }
    let now = tx.now.instant;
    let offset = tickets.begin(ino, tx.session, u64::from(length), inode.size, now)?;
    let data = inode.data(tx.map_version());
    Ok(MetaReply::Appending { offset, data })
}

/// Publishes an append. `report.size` is the size that the finished tickets cover now (0: nothing
/// new). A given-up append may have left bytes behind the end, and a target may write some later. A
/// new truncation number disowns them, and the reply carries it.
pub(crate) fn end(
    tx: &mut Tx<'_>,
    ino: Ino,
    report: &write_report::Report<'_>,
    is_given_up: bool,
) -> Result {
    let mut reply = write_report::report_write(tx, ino, report)?;
    if is_given_up && let MetaReply::Attr { data, .. } = &mut reply {
        // Disowned bytes take space until their target sees the new number, with the first write
        // that carries it.
        let mut inode = tx.inode(ino)?;
        *data =
            truncate_number::disown_given_up(tx, &mut inode).then(|| inode.data(tx.map_version()));
        tx.save(inode);
    }
    Ok(reply)
}
