//! rename(2) with NOREPLACE, EXCHANGE and WHITEOUT. Checks are in the order of Linux's
//! `vfs_rename`.
//!
//! WHITEOUT leaves a character device 0:0 at the old name in the same effect, for overlays whose
//! upper layer is here. So nobody sees the old name missing. Its entry takes the old entry's
//! cookie. As in Linux it needs no privilege, because no device has that number.
//!
//! Writes: both entries, both directories' inodes, the moved inode, the replaced inode, the
//! whiteout, slot.

use super::new_inode::CreationSite;
use super::{Result, first_level, new_inode, remove};
use crate::dentry::Dentry;
use crate::inode::{FLAG_STRAYED, Inode};
use crate::permission::{EXEC, Victim, WRITE, check, may_create, may_delete};
use crate::tx::Tx;
use std::collections::BTreeSet;
use zonal_types::limits::LINKS_MAX;
use zonal_types::{Credentials, ErrorCode, FileKind, Ino, Name};
use zonal_wire::MetaReply;
use zonal_wire::meta::flags::{RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};

/// One end of a rename.
pub(crate) struct Place {
    pub dir: Ino,
    pub name: Name,
    /// The entry there, with its cookie.
    pub found: Option<(u64, Dentry)>,
}

pub(crate) fn rename(
    tx: &mut Tx<'_>,
    who: &Credentials,
    (parent, name): (Ino, &Name),
    (new_parent, new_name): (Ino, &Name),
    flags: u32,
) -> Result {
    let exchange = flags & RENAME_EXCHANGE != 0;
    let no_replace = flags & RENAME_NOREPLACE != 0;
    let whiteout = flags & RENAME_WHITEOUT != 0;
    let unknown = flags & !(RENAME_EXCHANGE | RENAME_NOREPLACE | RENAME_WHITEOUT);
    if unknown != 0 || (exchange && (no_replace || whiteout)) {
        return Err(ErrorCode::Invalid);
    }
    let old_dir = tx.directory(parent)?;
    let new_dir = match tx.directory(new_parent) {
        Err(ErrorCode::NotOwner) => return Err(ErrorCode::CrossShard),
        other => other?,
    };
    check(tx, who, &old_dir, EXEC)?;
    check(tx, who, &new_dir, EXEC)?;
    let from = find(tx, parent, name)?;
    let to = find(tx, new_parent, new_name)?;
    let Some((_, source)) = &from.found else {
        return Err(ErrorCode::NotFound);
    };
    match &to.found {
        Some(_) if no_replace => return Err(ErrorCode::Exists),
        None if exchange => return Err(ErrorCode::NotFound),
        _ => {}
    }
    if source.kind == FileKind::Directory && is_inside(tx, &new_dir, source.ino)? {
        return Err(ErrorCode::Invalid);
    }
    if let Some((_, target)) = &to.found {
        if target.kind == FileKind::Directory && is_inside(tx, &old_dir, target.ino)? {
            let code = if exchange {
                ErrorCode::Invalid
            } else {
                ErrorCode::NotEmpty
            };
            return Err(code);
        }
        if target.ino == source.ino {
            return Ok(MetaReply::Done);
        }
    }
    let is_remote = |place: &Place| {
        place
            .found
            .as_ref()
            .is_some_and(|(_, found)| !tx.is_ours(found.ino))
    };
    if is_remote(&from) || is_remote(&to) {
        if parent != new_parent {
            return Err(ErrorCode::CrossShard);
        }
        if whiteout {
            return Err(ErrorCode::Invalid);
        }
        return first_level::rename(tx, who, old_dir, &from, &to, exchange);
    }
    let moving = Move {
        from,
        to,
        exchange,
        whiteout,
    };
    moving.run(tx, who, &old_dir, &new_dir)
}

fn find(tx: &Tx<'_>, dir: Ino, name: &Name) -> Result<Place> {
    Ok(Place {
        dir,
        name: name.clone(),
        found: tx.lookup(dir, name)?,
    })
}

/// True where `ancestor` is `dir` or above it. Stops at the root or at another shard's directory.
fn is_inside(tx: &mut Tx<'_>, dir: &Inode, ancestor: Ino) -> Result<bool> {
    let mut seen = BTreeSet::new();
    let mut at = dir.clone();
    loop {
        if at.ino == ancestor {
            return Ok(true);
        }
        if !seen.insert(at.ino) {
            return Err(ErrorCode::Corrupt);
        }
        if at.ino == Ino::ROOT || !tx.is_ours(at.parent) {
            return Ok(false);
        }
        at = tx.target(at.parent)?;
    }
}

struct Move {
    from: Place,
    to: Place,
    exchange: bool,
    whiteout: bool,
}

impl Move {
    fn run(self, tx: &mut Tx<'_>, who: &Credentials, old_dir: &Inode, new_dir: &Inode) -> Result {
        let (from_cookie, source_entry) = self.from.found.clone().ok_or(ErrorCode::NotFound)?;
        let source = tx.target(source_entry.ino)?;
        let target = match &self.to.found {
            Some((_, found)) => Some(tx.target(found.ino)?),
            None => None,
        };
        self.check(tx, who, (old_dir, new_dir), &source, target.as_ref())?;
        match &target {
            Some(target) if !self.exchange && target.is_dir() && target.size > 0 => {
                return Err(ErrorCode::NotEmpty);
            }
            _ => {}
        }
        self.entries(tx, from_cookie, &source_entry)?;
        if self.whiteout {
            self.leave_whiteout(tx, who, old_dir)?;
        }
        let mut gone = None;
        if let Some(target) = target {
            if self.exchange {
                self.settle(tx, target, self.from.dir)?;
            } else if target.is_dir() {
                self.count(tx, self.to.dir, -1, -1)?;
                remove::delete(tx, &target)?;
                gone = Some(target);
            } else {
                self.count(tx, self.to.dir, -1, 0)?;
                gone = remove::drop_link(tx, target)?;
            }
        }
        self.settle(tx, source, self.to.dir)?;
        let wall = tx.now.wall;
        for ino in BTreeSet::from([self.from.dir, self.to.dir]) {
            let mut dir = tx.target(ino)?;
            dir.modified(wall);
            tx.save(dir);
        }
        Ok(remove::removed(gone.as_ref()))
    }

    fn check(
        &self,
        tx: &Tx<'_>,
        who: &Credentials,
        (old_dir, new_dir): (&Inode, &Inode),
        source: &Inode,
        target: Option<&Inode>,
    ) -> Result<()> {
        may_delete(tx, who, old_dir, Victim::from(source), source.is_dir())?;
        match target {
            None => may_create(tx, who, new_dir)?,
            Some(target) => {
                let want_dir = if self.exchange {
                    target.is_dir()
                } else {
                    source.is_dir()
                };
                may_delete(tx, who, new_dir, Victim::from(target), want_dir)?;
            }
        }
        if old_dir.ino == new_dir.ino {
            return Ok(());
        }
        // A directory that moves has its `..` changed.
        if source.is_dir() {
            check(tx, who, source, WRITE)?;
        }
        let target_is_dir = target.is_some_and(Inode::is_dir);
        if let Some(target) = target
            && self.exchange
            && target_is_dir
        {
            check(tx, who, target, WRITE)?;
        }
        if source.is_dir() && !target_is_dir && new_dir.nlink >= LINKS_MAX {
            return Err(ErrorCode::TooManyLinks);
        }
        if self.exchange && target_is_dir && !source.is_dir() && old_dir.nlink >= LINKS_MAX {
            return Err(ErrorCode::TooManyLinks);
        }
        Ok(())
    }

    fn entries(&self, tx: &mut Tx<'_>, from_cookie: u64, source: &Dentry) -> Result<()> {
        let lead_to = |place: &Dentry, other: &Dentry| Dentry {
            ino: other.ino,
            kind: other.kind,
            ..place.clone()
        };
        match &self.to.found {
            Some((cookie, target)) => {
                tx.set_entry(self.to.dir, *cookie, &lead_to(target, source))?;
                if self.exchange {
                    tx.set_entry(self.from.dir, from_cookie, &lead_to(source, target))?;
                } else if !self.whiteout {
                    tx.remove_entry(self.from.dir, from_cookie)?;
                }
            }
            None => {
                if !self.whiteout {
                    tx.remove_entry(self.from.dir, from_cookie)?;
                }
                tx.add_entry(self.to.dir, &self.to.name, source.ino, source.kind)?;
            }
        }
        Ok(())
    }

    /// Makes the old entry lead to a new whiteout, which nobody may open.
    fn leave_whiteout(&self, tx: &mut Tx<'_>, who: &Credentials, dir: &Inode) -> Result<()> {
        let kind = FileKind::CharDevice;
        let rights = new_inode::rights(tx, who, dir, kind, 0, 0)?;
        let inode = new_inode::inode(tx, who, dir, kind, &rights, CreationSite::default())?;
        // The new name may have joined the old name's hash chain.
        let old = tx.lookup(dir.ino, &self.from.name)?;
        let (cookie, old) = old.ok_or(ErrorCode::Corrupt)?;
        let ino = inode.ino;
        tx.save(inode);
        tx.set_entry(dir.ino, cookie, &Dentry { ino, kind, ..old })?;
        self.count(tx, dir.ino, 1, 0)
    }

    /// Updates the moved inode's parent and change time, and both directories' counts.
    fn settle(&self, tx: &mut Tx<'_>, inode: Inode, to: Ino) -> Result<()> {
        let from = if to == self.to.dir {
            self.from.dir
        } else {
            self.to.dir
        };
        let subdirectory = i64::from(inode.is_dir());
        let mut inode = tx.find(inode.ino)?.unwrap_or(inode);
        inode.parent = to;
        if !inode.is_dir() && inode.nlink == 1 {
            // Its only name is in this directory.
            inode.set(FLAG_STRAYED, false);
        }
        inode.changed(tx.now.wall);
        tx.save(inode);
        self.count(tx, from, -1, -subdirectory)?;
        self.count(tx, to, 1, subdirectory)
    }

    fn count(&self, tx: &mut Tx<'_>, dir: Ino, entries: i64, links: i64) -> Result<()> {
        let mut dir = tx.target(dir)?;
        dir.size = dir.size.saturating_add_signed(entries);
        let links = i32::try_from(links).map_err(|_error| ErrorCode::Corrupt)?;
        dir.nlink = dir.nlink.saturating_add_signed(links);
        tx.save(dir);
        Ok(())
    }
}
