//! Numbers of cuts (ARCHITECTURE, decision 5): a target that has not seen a file's last one cuts
//! its column at `truncate_size` first.
//!
//! A shrink of what has data is pushed to the columns. Else a number is only given: a column sees
//! it with the next request that names it. So what a client wrote behind the end and never told,
//! because it is gone, becomes nobody's where the file is made longer
//! (docs/rfcs/2026-11-22-files-grow-over-zeros.md).
//!
//! *Invariant*: a number replaces another one only where a column that has not seen the first cuts,
//! at the second, all that it would have cut. States of the last number, by flag: none: all columns
//! have seen it; [`FLAG_UNCONFIRMED`]: it was pushed, perhaps not to all; [`FLAG_UNPUSHED`]: it was
//! given, and nothing is at the targets behind `truncate_size`, as far as was told; with
//! [`FLAG_WRITTEN`] something is, perhaps.

use super::Result;
use crate::inode::{FLAG_RESERVED, FLAG_UNCONFIRMED, FLAG_UNPUSHED, FLAG_WRITTEN, Inode};
use crate::tx::{Tx, Volatile};
use zonal_types::{ErrorCode, Ino, truncation};

/// Whether another session may have the file open.
pub(crate) fn others_hold(tx: &Tx<'_>, ino: Ino) -> bool {
    let holders = tx.env.opens.holders(ino);
    !tx.env.silent.is_empty() || holders.iter().any(|session| *session != tx.session)
}

/// All columns have seen the last number.
pub(crate) fn confirmed(inode: &mut Inode) {
    inode.set(FLAG_UNCONFIRMED | FLAG_UNPUSHED | FLAG_WRITTEN, false);
}

/// Numbers a shrink to `size`. `is_pushed`: the columns are told; that waits for an earlier push.
///
/// # Errors
/// `TruncateUnconfirmed`: all columns have to see the last number before. `FileTooBig`: no number
/// is left.
pub(crate) fn shrink(tx: &Tx<'_>, inode: &mut Inode, size: u64, is_pushed: bool) -> Result<()> {
    let waits = is_pushed && is_push_open(inode);
    let Some(to) = bound(tx, inode, size).filter(|_to| !waits) else {
        zonal_types::mark!(TruncateUnconfirmed);
        return Err(ErrorCode::TruncateUnconfirmed);
    };
    inode.truncate_seq =
        truncation::next_truncation(inode.truncate_seq).ok_or(ErrorCode::FileTooBig)?;
    set(inode, to, is_pushed);
    Ok(())
}

/// The end of an append that was given up: what it wrote, and counted, is nobody's. False where
/// that cannot be: others may be writing there, or not all have seen the last number.
pub(crate) fn disown_given_up(tx: &mut Tx<'_>, inode: &mut Inode) -> bool {
    let to = bound(tx, inode, inode.size);
    let is_open = is_push_open(inode) || others_hold(tx, inode.ino);
    let next = truncation::next_truncation(inode.truncate_seq);
    let (Some(to), Some(next)) = (to.filter(|_to| !is_open), next) else {
        // What is behind the end now is not only what the session knows of.
        tx.volatile.push(Volatile::Unowned(inode.ino));
        return false;
    };
    inode.truncate_seq = next;
    set(inode, to, false);
    true
}

/// The file is about to be made longer by this session: what clients that are gone left behind its
/// end is nobody's. False where that cannot be, as above.
///
/// # Errors
/// `TruncateUnconfirmed`: all columns have to see the last number before.
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
    inode.truncate_seq = next;
    set(inode, to, false);
    tx.volatile.push(Volatile::Owned(ino));
    Ok(true)
}

/// Something was written at targets, perhaps behind what the last number left.
pub(crate) fn wrote(inode: &mut Inode) {
    if inode.has(FLAG_UNPUSHED) {
        inode.set(FLAG_WRITTEN, true);
    }
}

fn set(inode: &mut Inode, to: u64, is_pushed: bool) {
    inode.truncate_size = to;
    inode.set(FLAG_UNCONFIRMED, is_pushed);
    inode.set(FLAG_UNPUSHED, !is_pushed);
    inode.set(FLAG_RESERVED | FLAG_WRITTEN, false);
}

/// The last number was pushed, and not all have told that they have seen it.
fn is_push_open(inode: &Inode) -> bool {
    inode.has(FLAG_UNCONFIRMED)
}

/// Where the next number cuts, of a file that has `size` bytes then. `None`: columns that have not
/// seen the last one would keep what it cuts.
fn bound(tx: &Tx<'_>, inode: &Inode, size: u64) -> Option<u64> {
    // Objects begin behind the shard's bytes.
    let inline = u64::from(inode.layout.inline_bytes());
    let is_seen = !inode.has(FLAG_UNCONFIRMED | FLAG_UNPUSHED);
    if is_seen || size <= inode.truncate_size.max(inline) {
        return Some(size);
    }
    // What others wrote and have not told lies there, perhaps.
    let is_hole = !inode.has(FLAG_UNCONFIRMED | FLAG_WRITTEN) && !others_hold(tx, inode.ino);
    is_hole.then_some(inode.truncate_size)
}

/// Whether space was reserved behind the end that the file has not grown into, as far as is
/// counted: it stays.
fn is_reserved_behind(inode: &Inode) -> bool {
    let columns = inode.layout.components.iter();
    let columns: u64 = columns.map(|component| u64::from(component.count)).sum();
    // A block that each column has in part, and the shard's bytes.
    let most = inode.size.saturating_add((columns + 1) * BLOCK);
    inode.has(FLAG_RESERVED) && inode.allocated_bytes() > most
}

/// Bytes of a target's block.
const BLOCK: u64 = 4096;
