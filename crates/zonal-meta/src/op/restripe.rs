//! Restripe: gives a file the layout that a new file of its directory gets now
//! (docs/rfcs/2026-11-27-restripe.md). A client copies the bytes into a file without a name, and
//! one request swaps the bytes of both. Inode number, names, attributes, times and locks stay.
//!
//! *Invariants*: the bytes are swapped only where
//!
//! * the session that copied them has both files open once, and no other one may have them open;
//! * the file did not change since;
//! * no target has anything to do for one of them.
//!
//! No truncation number of the file cuts the new bytes.

use super::{Result, inline_data, new_inode, open, relocations, remove, truncate_number};
use crate::inode::{
    FLAG_ORPHAN, FLAG_RESERVED, FLAG_UNCONFIRMED, FLAG_UNLINKABLE, FLAG_UNPUSHED, FLAG_WRITTEN,
    Inode,
};
use crate::permission::{S_ISGID, S_ISUID, is_owner, is_root};
use crate::tx::{MemoryChange, Tx};
use std::collections::BTreeSet;
use zonal_types::limits::xattr_flags;
use zonal_types::{
    Component, Credentials, ErrorCode, FileKind, Ino, Layout, LayoutGen, NodeId, Placement,
    Redundancy, RelocationState, StripePolicy, StripeSetId, ZoneId,
};
use zonal_wire::MetaReply;
use zonal_wire::meta::Entry;
use zonal_zonemap::ZoneMap;

/// The flags that belong to the bytes of a file.
const FLAGS_OF_BYTES: u32 = FLAG_UNPUSHED | FLAG_WRITTEN | FLAG_RESERVED;

/// Makes the file without a name that takes the bytes of `ino`.
pub(crate) fn begin(tx: &mut Tx<'_>, who: &Credentials, ino: Ino, dir: Ino) -> Result {
    let inode = tx.inode(ino)?;
    may_restripe(who, &inode)?;
    let dir = tx.directory(dir)?;
    let home = match dir.ino {
        Ino::ROOT => inode.home,
        _ => dir.home,
    };
    let policy = dir.policy.unwrap_or_default();
    let zone = zone_of_new(&policy, home).ok_or(ErrorCode::NotSupported)?;
    if is_current(tx.env.map, &inode.layout, &policy, zone) {
        return Err(ErrorCode::Exists);
    }
    if truncate_number::others_hold(tx, ino) {
        return Err(ErrorCode::Busy);
    }
    check_settled(tx.env.map, &inode)?;
    open::check_room(tx)?;
    let mut copy = new_copy(tx, &inode, home)?;
    copy.layout = layout_of_copy(tx, &inode, (&policy, zone), (home, &copy))?;
    let (number, data) = (copy.ino, copy.data(tx.map_version()));
    remove::make_orphan(tx, copy, BTreeSet::from([tx.session]));
    tx.volatile.push(MemoryChange::Open(number));
    tx.volatile.push(MemoryChange::Owned(number));
    let entry = Entry {
        ino: number,
        kind: FileKind::File,
        attr: Some(tx.target(number)?.attr()),
        entry_ms: 0,
        attr_ms: 0,
    };
    let push = false;
    Ok(MetaReply::Opened { entry, data, push })
}

/// Only the owner moves the bytes of a file. A user who may not keep its set-id bits or its
/// capabilities at a write may not give it other bytes either.
fn may_restripe(who: &Credentials, inode: &Inode) -> Result<()> {
    if !inode.is_file() {
        return Err(ErrorCode::Invalid);
    }
    let has_rights =
        inode.mode & (S_ISUID | S_ISGID) != 0 || inode.xattrs & xattr_flags::CAPABILITY != 0;
    match is_owner(who, inode) && (is_root(who) || !has_rights) {
        true => Ok(()),
        false => Err(ErrorCode::NotPermitted),
    }
}

/// The zone whose stripe sets new files take; `None` where each lies on the node that makes it.
fn zone_of_new(policy: &StripePolicy, home: ZoneId) -> Option<ZoneId> {
    match policy.placement {
        Placement::Zone => Some(home),
        Placement::Cell => Some(ZoneId::CELL),
        Placement::Node => None,
    }
}

/// True where a file is striped as a new one would be: over a default set of its zone, with the
/// policy's unit and count. Numbers of copies do not count: `add_copies` raises them.
fn is_current(map: &ZoneMap, layout: &Layout, policy: &StripePolicy, zone: ZoneId) -> bool {
    let [component] = layout.components.as_slice() else {
        return false;
    };
    let mut sets = map.default_sets(zone);
    let set = sets.find(|set| set.id == component.set);
    set.is_some_and(|set| {
        let count = match policy.count {
            0 => set.width(),
            count => count.min(set.width()),
        };
        component.unit == policy.unit && component.count == count
    })
}

/// Refuses a file with a truncation under way, or with objects that a target has yet to fill, move
/// or delete. The target's messages about them name the inode.
fn check_settled(map: &ZoneMap, inode: &Inode) -> Result<()> {
    if inode.has(FLAG_UNCONFIRMED) {
        return Err(ErrorCode::TruncateUnconfirmed);
    }
    let mut layout = inode.layout.clone();
    relocations::settle_all(&mut layout, map);
    let mut relocations = layout.relocations();
    let is_still = relocations.all(|of| of.state == RelocationState::Settled);
    match layout.stale.is_empty() && is_still {
        true => Ok(()),
        false => Err(ErrorCode::WouldBlock),
    }
}

/// An inode without a name, of the same partition: its data id will be the file's.
fn new_copy(tx: &mut Tx<'_>, of: &Inode, home: ZoneId) -> Result<Inode> {
    let ino = tx.new_ino(of.ino.partition())?;
    let mut copy = Inode::new(ino, FileKind::File, Ino(0), home, tx.now.wall);
    (copy.uid, copy.gid, copy.nlink) = (of.uid, of.gid, 0);
    copy.set(FLAG_UNLINKABLE, true);
    Ok(copy)
}

/// The layout of a new file, but with no fewer copies than the file has. It has the file's inline
/// part, too: the shard's bytes of the file stay where they are.
fn layout_of_copy(
    tx: &mut Tx<'_>,
    inode: &Inode,
    (policy, zone): (&StripePolicy, ZoneId),
    (home, copy): (ZoneId, &Inode),
) -> Result<Layout> {
    let first = inode.layout.components.first();
    let first = first.ok_or(ErrorCode::NotSupported)?;
    let policy = with_copies_of(policy, &inode.layout);
    let data_id = tx.new_data_id(copy.ino.partition())?;
    let mut layout = new_inode::layout(tx, home, NodeId(0), Some(policy), data_id)?;
    if let Some(own) = layout.components.first_mut() {
        own.kind = first.kind;
    }
    // Where the manager does not open the newest sets, files get older ones.
    let is_known = |of: &Component| tx.env.map.set(of.set).is_some();
    let is_older =
        layout.components.iter().all(is_known) && !is_current(tx.env.map, &layout, &policy, zone);
    match is_older {
        true => Err(ErrorCode::WouldBlock),
        false => Ok(layout),
    }
}

/// The policy with as many copies as the file has, at least.
fn with_copies_of(policy: &StripePolicy, layout: &Layout) -> StripePolicy {
    let of_file = layout.components.iter().map(|of| of.redundancy);
    let all = of_file.clone().chain([policy.redundancy]);
    let copies = all.map(Redundancy::zone_copies).max().unwrap_or(1);
    let mut zones = of_file.filter_map(Redundancy::also_zone);
    let also = zones.next().or(policy.redundancy.also_zone());
    let mut redundancy = Redundancy::of_copies(copies).unwrap_or(policy.redundancy);
    if let Some((zone, _)) = also {
        redundancy = redundancy.with_also_zone(zone, StripeSetId(0));
    }
    StripePolicy {
        redundancy,
        ..*policy
    }
}

/// The state of a file before its client copied it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    /// The file's change counter before the first byte was read.
    pub change: u64,
    /// The life of the shard in which it had that.
    pub boot: u64,
}

/// Gives `ino` the bytes of `copy`, and the reverse.
pub(crate) fn swap(
    tx: &mut Tx<'_>,
    who: &Credentials,
    (ino, copy): (Ino, Ino),
    copied: Copied,
) -> Result {
    let mut inode = tx.inode(ino)?;
    let mut other = tx.inode(copy)?;
    may_restripe(who, &inode)?;
    check_copy(&inode, &other)?;
    // A loss of power may take changes of an earlier life, and others get their numbers.
    let is_same = copied.boot == tx.env.config.boot && copied.change == inode.change;
    let is_own = |holders: &BTreeSet<_>| holders.iter().eq([&tx.session]);
    let is_held = tx.env.opens.orphans.get(&copy).is_some_and(is_own);
    let is_used = [ino, copy].iter().any(|of| {
        truncate_number::others_hold(tx, *of) || tx.env.opens.count(*of, tx.session) != 1
    });
    if !is_same || !is_held || is_used {
        zonal_types::mark!(SwapRefused);
        return Err(ErrorCode::Busy);
    }
    for of in [&inode, &other] {
        check_settled(tx.env.map, of).map_err(|_code| ErrorCode::WouldBlock)?;
    }
    if other.size > inode.size || !inline_data::stored(tx, &other)?.is_empty() {
        return Err(ErrorCode::Invalid);
    }
    // The manager looks through all files once for each target that leaves, by their numbers.
    if has_leaving(tx.env.map, &other.layout) {
        return Err(ErrorCode::WouldBlock);
    }
    exchange(tx, &mut inode, &mut other)?;
    tx.volatile.push(MemoryChange::Unowned(ino));
    zonal_types::mark!(BytesSwapped);
    tx.lease = Some(inode.parent);
    let attr = inode.attr();
    let data = Some(inode.data(tx.map_version()));
    tx.save(inode);
    tx.save(other);
    let attr_ms = 0;
    Ok(MetaReply::Attr {
        attr,
        data,
        attr_ms,
    })
}

/// Refuses a file that cannot be a copy made by [`begin`].
fn check_copy(inode: &Inode, copy: &Inode) -> Result<()> {
    let fits = copy.ino != inode.ino
        && copy.is_file()
        && copy.has(FLAG_ORPHAN)
        && copy.has(FLAG_UNLINKABLE)
        && copy.ino.partition() == inode.ino.partition()
        && copy.layout.inline_bytes() == inode.layout.inline_bytes();
    match fits {
        true => Ok(()),
        false => Err(ErrorCode::Invalid),
    }
}

/// True where an object lies on a target that leaves.
fn has_leaving(map: &ZoneMap, layout: &Layout) -> bool {
    layout.components.iter().any(|component| {
        let mut places = zonal_layout::places(component);
        places.any(|place| {
            let slot = map.slot_of_place(component, place).map(|of| of.slot);
            let state = slot.and_then(|slot| map.target_state(slot.target));
            state.is_none_or(|state| state.is_leaving())
        })
    })
}

/// Swaps layouts and what belongs to them. The file gets a truncation number that no object of the
/// copy has seen, and that cuts nothing: all its bytes lie before the end.
fn exchange(tx: &Tx<'_>, inode: &mut Inode, copy: &mut Inode) -> Result<()> {
    let last = inode.truncate_seq.max(copy.truncate_seq);
    let (before, now) = (inode.clone(), copy.clone());
    let inline = inline_data::allocated(inline_data::stored(tx, inode)?.len());
    let of_both = [&before, &now].map(|of| of.layout.layout_gen.0);
    let layout_gen = of_both.into_iter().max().unwrap_or(0).saturating_add(1);
    inode.layout = Layout {
        layout_gen: LayoutGen(layout_gen),
        ..now.layout
    };
    inode.allocated = now.allocated.wrapping_add(inline);
    truncate_number::renumber(inode, last)?;
    inode.changed(tx.now.wall);
    copy.layout = Layout {
        layout_gen: LayoutGen(layout_gen),
        ..before.layout
    };
    copy.size = before.size;
    copy.allocated = before.allocated.wrapping_sub(inline);
    (copy.truncate_seq, copy.truncate_size) = (before.truncate_seq, before.truncate_size);
    copy.set(FLAGS_OF_BYTES, false);
    copy.set(before.flags & FLAGS_OF_BYTES, true);
    copy.changed(tx.now.wall);
    Ok(())
}
