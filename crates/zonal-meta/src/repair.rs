//! Repair: fixes a shard's store where [`crate::check`] found it broken.
//!
//! Each repair is one small effect for the store's own log. It reads the store again first, so a
//! second repair of the same fault changes nothing. A repair that moves entries leaves directories
//! with wrong counts, which the next pass corrects. Nothing that can be reached or read is removed;
//! an inode without a name gets one in `lost+found`.

mod cross_store;
mod damaged_key;

pub use cross_store::AdoptedFile;
pub use damaged_key::repair_key;

use crate::check::Broken;
use crate::config::Now;
use crate::dentry::{Dentry, name_cookie};
use crate::id_ranges::Counter;
use crate::inode::{
    FLAG_CLOSING, FLAG_DETACHED, FLAG_ORPHAN, FLAG_STRAYED, FLAG_UNLINKABLE, Inode,
};
use crate::keys;
use crate::op::detached_directories::DetachedRecord;
use crate::op::{inline_data, new_inode, remove};
use crate::shard::MetaShard;
use crate::tx::Tx;
use zonal_types::{Codec, DataId, ErrorCode, FileKind, Ino, KvChange, KvRead, Name, SessionId};

/// Entries removed in one effect from an inode that is no directory.
const ENTRIES_AT_ONCE: usize = 256;

type Result<T = ()> = std::result::Result<T, ErrorCode>;

/// The name of the entry at `cookie` of `dir`.
///
/// # Errors
/// `Corrupt`, or the error of `kv`.
pub fn entry_name(kv: &dyn KvRead, dir: Ino, cookie: u64) -> Result<Option<Name>> {
    let found = kv.get(&keys::dentry(dir, cookie))?;
    let dentry = found.map(|bytes| Dentry::decode(&bytes)).transpose()?;
    Ok(dentry
        .filter(|dentry| !dentry.is_mark())
        .map(|dentry| dentry.name))
}

impl MetaShard {
    /// The changes that repair `broken`; none where that is done already. `lost_found`: the
    /// directory for inodes without a name (the root, in the root shard). `is_first_level`: whether
    /// an entry of the root leads to a directory.
    ///
    /// # Errors
    /// `NotFound` where `lost_found` is needed and missing; `Corrupt` where a damaged key is in the
    /// way; else the error of `kv`.
    pub fn repair(
        &self,
        kv: &dyn KvRead,
        now: Now,
        lost_found: Option<Ino>,
        is_first_level: &dyn Fn(Ino) -> bool,
        broken: &Broken,
    ) -> Result<Vec<KvChange>> {
        if let Broken::Key { key } = broken {
            return repair_key(kv, key);
        }
        match broken {
            Broken::Ids { partition, .. } => {
                return damaged_key::reserve_again(kv, Counter::Inodes, *partition);
            }
            Broken::DataIds { partition, .. } => {
                return damaged_key::reserve_again(kv, Counter::Data, *partition);
            }
            _ => {}
        }
        let mut tx = self.tx(kv, now, SessionId(0));
        match *broken {
            Broken::WrongPlace { dir, cookie } => move_entry(&mut tx, dir, cookie)?,
            Broken::NoFirstPlace { dir, cookie } => take_first(&mut tx, dir, cookie)?,
            Broken::NotInDirectory { dir, .. } => {
                let parent = is_first_level(dir).then_some(Ino::ROOT).or(lost_found);
                not_in_directory(&mut tx, dir, parent)?;
            }
            Broken::LeadsNowhere { dir, cookie, ino } => {
                leads_nowhere(&mut tx, dir, cookie, ino)?;
            }
            Broken::WrongType { dir, cookie, ino } => wrong_type(&mut tx, dir, cookie, ino)?,
            Broken::WrongParent { ino, dir, .. } => {
                change(&mut tx, ino, |inode| inode.parent = dir)?;
            }
            Broken::NoName { ino } => name_it(&mut tx, ino, lost_found)?,
            Broken::SecondName { dir, cookie, ino } | Broken::Cycle { dir, cookie, ino } => {
                if entry(&tx, dir, cookie)?.is_some_and(|dentry| dentry.ino == ino) {
                    tx.remove_entry(dir, cookie)?;
                }
            }
            Broken::Counts { ino, found, .. } => change(&mut tx, ino, |inode| {
                inode.size = found.0;
                inode.nlink = found.1.saturating_add(2);
            })?,
            Broken::Links { ino, names, .. } => change(&mut tx, ino, |inode| inode.nlink = names)?,
            Broken::OrphanMark { ino, .. } => orphan_mark(&mut tx, ino)?,
            Broken::DetachedMark { ino, has_record } => detached_mark(&mut tx, ino, has_record)?,
            Broken::AliveDeletion { ino } => {
                if tx.find(ino)?.is_some() {
                    tx.remove(keys::deletion(ino));
                }
            }
            Broken::Xattrs { ino, missing } => {
                change(&mut tx, ino, |inode| inode.xattrs |= missing)?;
            }
            Broken::Inline { ino, .. } => {
                if let Some(mut inode) = tx.find(ino)? {
                    inline_data::truncate_to_fit(&mut tx, &mut inode)?;
                    tx.save(inode);
                }
            }
            Broken::Unindexed { ino, data_id } => {
                if has_data(&mut tx, ino, data_id)? && owner(&mut tx, data_id)?.is_none() {
                    tx.put(keys::data(data_id), ino.to_bytes());
                }
            }
            Broken::StrayData { ino, data_id } => {
                if tx.file_of(data_id)? == Some(ino) && !has_data(&mut tx, ino, data_id)? {
                    tx.remove(keys::data(data_id));
                }
            }
            Broken::Homeless { ino, data_id } => homeless(&mut tx, ino, data_id)?,
            Broken::Key { .. } | Broken::Ids { .. } | Broken::DataIds { .. } => {}
        }
        Ok(tx.finish()?.effect)
    }
}

fn entry(tx: &Tx<'_>, dir: Ino, cookie: u64) -> Result<Option<Dentry>> {
    let found = tx.get(&keys::dentry(dir, cookie))?;
    let dentry = found.map(|bytes| Dentry::decode(&bytes)).transpose()?;
    Ok(dentry.filter(|dentry| !dentry.is_mark()))
}

/// Gives an entry the type of its inode.
fn wrong_type(tx: &mut Tx<'_>, dir: Ino, cookie: u64, ino: Ino) -> Result {
    if let (Some(mut dentry), Some(inode)) = (entry(tx, dir, cookie)?, tx.find(ino)?)
        && dentry.ino == ino
    {
        dentry.kind = inode.kind;
        tx.set_entry(dir, cookie, &dentry)?;
    }
    Ok(())
}

/// Removes the records of an inode that does not exist; its first bytes get a new file.
fn homeless(tx: &mut Tx<'_>, ino: Ino, mut data_id: Option<DataId>) -> Result {
    if tx.find(ino)?.is_some() {
        return Ok(());
    }
    if let Some(id) = data_id
        && tx.file_of(id)? == Some(ino)
    {
        tx.remove(keys::data(id));
    } else {
        data_id = None;
    }
    bytes_anew(tx, ino, data_id)?;
    let (start, end) = keys::xattrs(ino);
    for key in tx.range(&start, &end)?.into_keys() {
        tx.remove(key);
    }
    tx.remove(keys::orphan(ino));
    tx.remove(keys::detached(ino));
    Ok(())
}

fn change(tx: &mut Tx<'_>, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result {
    if let Some(mut inode) = tx.find(ino)? {
        change(&mut inode);
        tx.save(inode);
    }
    Ok(())
}

fn has_data(tx: &mut Tx<'_>, ino: Ino, data_id: DataId) -> Result<bool> {
    let inode = tx.find(ino)?;
    Ok(inode.is_some_and(|inode| inode.layout.data_ids().any(|id| id == data_id)))
}

/// The inode that a data id leads to, if it has these bytes.
fn owner(tx: &mut Tx<'_>, data_id: DataId) -> Result<Option<Ino>> {
    match tx.file_of(data_id)? {
        Some(ino) if has_data(tx, ino, data_id)? => Ok(Some(ino)),
        _ => Ok(None),
    }
}

/// Adds an entry and counts it.
fn link(tx: &mut Tx<'_>, mut dir: Inode, name: &Name, ino: Ino, kind: FileKind) -> Result {
    tx.add_entry(dir.ino, name, ino, kind)?;
    dir.size = dir.size.saturating_add(1);
    dir.nlink = dir
        .nlink
        .saturating_add(u32::from(kind == FileKind::Directory));
    dir.modified(tx.now.wall);
    tx.save(dir);
    Ok(())
}

/// Moves an entry to where a look-up finds it, unless another entry has the name.
fn move_entry(tx: &mut Tx<'_>, dir: Ino, cookie: u64) -> Result {
    let Some(dentry) = entry(tx, dir, cookie)? else {
        return Ok(());
    };
    if name_cookie(dentry.name.as_bytes(), tx.env.config.hash_bits) == cookie & !0xff {
        return Ok(());
    }
    tx.remove(keys::dentry(dir, cookie));
    if tx.lookup(dir, &dentry.name)?.is_none() {
        tx.add_entry(dir, &dentry.name, dentry.ino, dentry.kind)?;
    }
    Ok(())
}

/// Moves an entry to the empty first place of its chain.
fn take_first(tx: &mut Tx<'_>, dir: Ino, cookie: u64) -> Result {
    let first = keys::dentry(dir, cookie & !0xff);
    if tx.get(&first)?.is_none()
        && let Some(mut dentry) = entry(tx, dir, cookie)?
    {
        // Other entries may follow in the chain.
        dentry.chained = true;
        tx.remove(keys::dentry(dir, cookie));
        tx.put(first, dentry.to_bytes());
    }
    Ok(())
}

/// Makes a lost directory inode anew in `parent`; its entries are still there.
fn directory_anew(tx: &mut Tx<'_>, ino: Ino, parent: Ino) -> Result {
    let home = tx.env.config.zone;
    let mut dir = Inode::new(ino, FileKind::Directory, parent, home, tx.now.wall);
    dir.mode = 0o700;
    tx.save(dir);
    Ok(())
}

/// Makes a file for inline bytes whose inode is lost. It has no name until the next pass brings it
/// to lost+found. Its layout is that of a new file, a guess about its objects; `data_id`: bytes
/// that led to it.
fn bytes_anew(tx: &mut Tx<'_>, ino: Ino, data_id: Option<DataId>) -> Result {
    let Some(bytes) = tx.get(&keys::inline(ino))? else {
        return Ok(());
    };
    let home = tx.env.config.zone;
    let mut inode = Inode::new(ino, FileKind::File, Ino(0), home, tx.now.wall);
    (inode.mode, inode.nlink) = (0o600, 0);
    let data_id = match data_id {
        Some(id) => id,
        None => tx.new_data_id(ino.partition())?,
    };
    inode.layout = new_inode::layout_by_repair(tx, home, data_id)?;
    inode.size = bytes.len() as u64;
    inode.allocated = inline_data::allocated(bytes.len());
    inline_data::truncate_to_fit(tx, &mut inode)?;
    tx.save(inode);
    Ok(())
}

fn has_entries(tx: &Tx<'_>, dir: Ino) -> Result<bool> {
    let (start, end) = keys::dentries(dir);
    let mut some = false;
    tx.kv().scan(&start, &end, &mut |_key, value| {
        some = Dentry::decode(value).is_ok_and(|dentry| !dentry.is_mark());
        !some
    })?;
    Ok(some)
}

fn not_in_directory(tx: &mut Tx<'_>, dir: Ino, parent: Option<Ino>) -> Result {
    match tx.find(dir)? {
        Some(inode) if inode.is_dir() => Ok(()),
        // A directory that is not of the first level has no name until the next pass brings it to
        // lost+found.
        None => directory_anew(tx, dir, parent.ok_or(ErrorCode::NotFound)?),
        Some(_) => {
            let (start, end) = keys::dentries(dir);
            let mut doomed = Vec::new();
            tx.kv().scan(&start, &end, &mut |key, _value| {
                doomed.push(key.to_vec());
                doomed.len() < ENTRIES_AT_ONCE
            })?;
            doomed.into_iter().for_each(|key| tx.remove(key));
            Ok(())
        }
    }
}

fn leads_nowhere(tx: &mut Tx<'_>, dir: Ino, cookie: u64, ino: Ino) -> Result {
    let found = entry(tx, dir, cookie)?;
    let Some(dentry) = found.filter(|dentry| dentry.ino == ino) else {
        return Ok(());
    };
    if tx.find(ino)?.is_some() {
        return Ok(());
    }
    if dentry.kind == FileKind::Directory && ino.is_valid() && has_entries(tx, ino)? {
        return directory_anew(tx, ino, dir);
    }
    tx.remove_entry(dir, cookie)
}

fn name_it(tx: &mut Tx<'_>, ino: Ino, lost_found: Option<Ino>) -> Result {
    let Some(mut inode) = tx.find(ino)? else {
        return Ok(());
    };
    if !inode.is_dir() && inode.has(FLAG_ORPHAN) {
        // It was removed while it was open; only its record is missing.
        return remove::delete(tx, &inode);
    }
    let lost_found = lost_found
        .filter(|dir| *dir != ino)
        .ok_or(ErrorCode::NotFound)?;
    let dir = tx.directory(lost_found)?;
    let what = if inode.is_dir() { "directory" } else { "file" };
    let text = format!("{what}-{}-{}", ino.partition(), ino.sequence());
    let name = Name::new(text.as_bytes())?;
    if tx.lookup(lost_found, &name)?.is_some() {
        return Err(ErrorCode::Exists);
    }
    let kind = inode.kind;
    inode.parent = lost_found;
    inode.set(
        FLAG_ORPHAN | FLAG_UNLINKABLE | FLAG_DETACHED | FLAG_CLOSING | FLAG_STRAYED,
        false,
    );
    if !inode.is_dir() {
        inode.nlink = 1;
    }
    inode.changed(tx.now.wall);
    tx.save(inode);
    link(tx, dir, &name, ino, kind)
}

fn orphan_mark(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let Some(mut inode) = tx.find(ino)? else {
        return Ok(());
    };
    let has_record = tx.get(&keys::orphan(ino))?.is_some();
    if inode.nlink > 0 {
        inode.set(FLAG_ORPHAN, false);
        tx.remove(keys::orphan(ino));
    } else if has_record {
        inode.set(FLAG_ORPHAN, true);
    }
    tx.save(inode);
    Ok(())
}

fn detached_mark(tx: &mut Tx<'_>, ino: Ino, has_record: bool) -> Result {
    let Some(mut inode) = tx.find(ino)? else {
        return Ok(());
    };
    if has_record {
        tx.remove(keys::detached(ino));
    } else if inode.is_dir() && inode.parent == Ino::ROOT && ino != Ino::ROOT {
        // The running shard asks the root shard for its entry.
        let record = DetachedRecord {
            token: 0,
            since: tx.now.wall,
        };
        tx.put(keys::detached(ino), record.to_bytes());
    } else {
        inode.set(FLAG_DETACHED | FLAG_CLOSING, false);
        tx.save(inode);
    }
    Ok(())
}
