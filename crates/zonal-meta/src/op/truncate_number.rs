//! Truncation numbers (ARCHITECTURE, decision 5): a target that has not seen a file's last number
//! first truncates its column at `truncate_size`.
//!
//! A shrink of a file with data is pushed to the columns. Otherwise a number is only given, and a
//! column sees it with the next request that names it. So bytes behind the end that a dead client
//! wrote and never reported are disowned where the file is extended
//! (docs/rfcs/2026-11-22-files-grow-over-zeros.md).
//!
//! *Invariant*: a number replaces an earlier one only if a column that has not seen the earlier
//! number truncates at least the same bytes. States of the last number:
//!
//! | flags | state |
//! | --- | --- |
//! | none | all columns have seen it |
//! | [`FLAG_UNCONFIRMED`] | pushed, perhaps not to all columns |
//! | [`FLAG_UNPUSHED`] | given; nothing reported lies behind `truncate_size` |
//! | [`FLAG_UNPUSHED`] and [`FLAG_WRITTEN`] | given; something may lie there |

use super::Result;
use crate::inode::{FLAG_RESERVED, FLAG_UNCONFIRMED, FLAG_UNPUSHED, FLAG_WRITTEN, Inode};
use crate::tx::{MemoryChange, Tx};
use zonal_types::{ErrorCode, Ino, truncation};

/// True where another session may have the file open.
pub(crate) fn others_hold(tx: &Tx<'_>, ino: Ino) -> bool {
    let holders = tx.env.opens.holders(ino);
    !tx.env.silent.is_empty() || holders.iter().any(|session| *session != tx.session)
}

/// Notes that all columns have seen the last number.
pub(crate) fn confirmed(inode: &mut Inode) {
    inode.set(FLAG_UNCONFIRMED | FLAG_UNPUSHED | FLAG_WRITTEN, false);
}

/// Gives a number to a shrink to `size`. `is_pushed`: the columns are told, which waits for an
/// earlier push.
///
/// # Errors
/// `TruncateUnconfirmed`: all columns have to see the last number first. `FileTooBig`: no number is
/// left.
pub(crate) fn shrink(tx: &Tx<'_>, inode: &mut Inode, size: u64, is_pushed: bool) -> Result<()> {
    let waits = is_pushed && is_push_open(inode);
    let Some(to) = bound(tx, inode, size).filter(|_to| !waits) else {
        zonal_types::mark!(TruncateUnconfirmed);
        return Err(ErrorCode::TruncateUnconfirmed);
    };
    let next = truncation::next_truncation(inode.truncate_seq).ok_or(ErrorCode::FileTooBig)?;
    set(inode, next, to, is_pushed);
    Ok(())
}

/// Disowns the bytes that a given-up append wrote and counted. False where that is impossible:
/// others may be writing there, or some column has not seen the last number.
pub(crate) fn disown_given_up(tx: &mut Tx<'_>, inode: &mut Inode) -> bool {
    let to = bound(tx, inode, inode.size);
    let is_open = is_push_open(inode) || others_hold(tx, inode.ino);
    let next = truncation::next_truncation(inode.truncate_seq);
    let (Some(to), Some(next)) = (to.filter(|_to| !is_open), next) else {
        // From now on the session does not know all bytes behind the end.
        tx.volatile.push(MemoryChange::Unowned(inode.ino));
        return false;
    };
    set(inode, next, to, false);
    true
}

/// Disowns bytes behind the end that dead clients left, before this session extends the file. False
/// where that is impossible, as in [`disown_given_up`].
///
/// # Errors
/// `TruncateUnconfirmed`: all columns have to see the last number first.
pub(crate) fn disown(tx: &mut Tx<'_>, inode: &mut Inode) -> Result<bool> {
    let (ino, session) = (inode.ino, tx.session);
    if tx.env.opens.owner(ino) == Some(session) {
        return Ok(true);
    }
    if is_push_open(inode) || others_hold(tx, ino) || is_reserved_behind(inode) {
        return Ok(false);
    }
    let Some(to) = bound(tx, inode, inode.size) else {
        zonal_types::mark!(TruncateUnconfirmed);
        return Err(ErrorCode::TruncateUnconfirmed);
    };
    let Some(next) = truncation::next_disowning(inode.truncate_seq) else {
        return Ok(false);
    };
    set(inode, next, to, false);
    tx.volatile.push(MemoryChange::Owned(ino));
    Ok(true)
}

/// Gives the number behind `last` to a file that gets other bytes, all of which lie before its end:
/// it cuts nothing.
///
/// # Errors
/// `FileTooBig`: no number is left.
pub(crate) fn renumber(inode: &mut Inode, last: u64) -> Result<()> {
    let next = truncation::next_truncation(last).ok_or(ErrorCode::FileTooBig)?;
    set(inode, next, inode.size, false);
    Ok(())
}

/// Notes that targets were written, perhaps behind the last number's end.
pub(crate) fn note_write(inode: &mut Inode) {
    if inode.has(FLAG_UNPUSHED) {
        inode.set(FLAG_WRITTEN, true);
    }
}

fn set(inode: &mut Inode, next: u64, to: u64, is_pushed: bool) {
    assert!(
        next > inode.truncate_seq,
        "truncation number {} of {} falls to {next}",
        inode.truncate_seq,
        inode.ino
    );
    inode.truncate_seq = next;
    inode.truncate_size = to;
    inode.set(FLAG_UNCONFIRMED, is_pushed);
    inode.set(FLAG_UNPUSHED, !is_pushed);
    inode.set(FLAG_RESERVED | FLAG_WRITTEN, false);
}

/// True where the last number was pushed, and not all columns have confirmed it.
fn is_push_open(inode: &Inode) -> bool {
    inode.has(FLAG_UNCONFIRMED)
}

/// Where the next number truncates a file that will have `size` bytes. `None`: columns that have
/// not seen the last number would keep bytes that it frees.
fn bound(tx: &Tx<'_>, inode: &Inode, size: u64) -> Option<u64> {
    // Objects begin behind the shard's bytes.
    let inline = u64::from(inode.layout.inline_bytes());
    let is_seen = !inode.has(FLAG_UNCONFIRMED | FLAG_UNPUSHED);
    if is_seen || size <= inode.truncate_size.max(inline) {
        return Some(size);
    }
    // Unreported writes of other sessions may lie there.
    let is_hole = !inode.has(FLAG_UNCONFIRMED | FLAG_WRITTEN) && !others_hold(tx, inode.ino);
    is_hole.then_some(inode.truncate_size)
}

/// True where the counts show reserved space behind the end that the file has not grown into: it
/// stays.
fn is_reserved_behind(inode: &Inode) -> bool {
    let columns = inode.layout.components.iter();
    let columns: u64 = columns.map(|component| u64::from(component.count)).sum();
    // One partial block a column, and the inline bytes.
    let most = inode.size.saturating_add((columns + 1) * BLOCK);
    inode.has(FLAG_RESERVED) && inode.allocated_bytes() > most
}

/// Bytes of a target's block.
const BLOCK: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{FileKind, Timestamp, ZoneId};

    #[test]
    #[should_panic(expected = "falls to")]
    fn the_truncation_number_of_a_file_never_falls() {
        let time = Timestamp::default();
        let mut inode = Inode::new(Ino(5), FileKind::File, Ino(1), ZoneId(1), time);
        set(&mut inode, 2, 100, true);
        set(&mut inode, 2, 50, true);
    }
}
