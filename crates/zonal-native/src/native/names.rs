//! Names: creation, rename, links, removal.

use super::walk::{ParentAndName, PathTarget, SpecialName, find, look_up, place};
use super::{Native, ask};
use crate::error::Error;
use crate::user::User;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use zonal_client::names::NewFile;
use zonal_types::{Attr, Blob, ErrorCode, FileKind, ZoneId};
use zonal_wire::NewKind;

/// Returns the parent and name of a path, or an error for `/`, `.` and `..`.
fn named(
    last: PathTarget,
    otherwise: impl Fn(SpecialName) -> ErrorCode,
) -> Result<ParentAndName, Error> {
    match last {
        PathTarget::Place(place) => Ok(place),
        PathTarget::Directory(_, word) => Err(otherwise(word).into()),
    }
}

impl Native {
    /// Makes a directory; `mode` is before the umask.
    ///
    /// ```no_run
    /// # use zonal_native::{Error, Native, User};
    /// # fn example(cell: &Native) -> Result<(), Error> {
    /// let made = cell.mkdir(&User::root(), "/data", 0o755)?;
    /// assert_eq!(made.nlink, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EEXIST, ENOENT (of what lies above it), EACCES, ENOSPC, and as the shard answers.
    pub fn mkdir(&self, user: &User, path: impl AsRef<Path>, mode: u32) -> Result<Attr, Error> {
        self.mkdir_in(user, path.as_ref(), mode, None)
    }

    /// Makes a first-level directory with its home in a zone.
    ///
    /// # Errors
    /// As [`Self::mkdir`]; EXDEV below a directory that has another home; ENXIO where the cell does
    /// not have the zone.
    pub fn mkdir_in_zone(
        &self,
        user: &User,
        path: impl AsRef<Path>,
        mode: u32,
        zone: ZoneId,
    ) -> Result<Attr, Error> {
        self.mkdir_in(user, path.as_ref(), mode, Some(zone))
    }

    fn mkdir_in(
        &self,
        user: &User,
        path: &Path,
        mode: u32,
        zone: Option<ZoneId>,
    ) -> Result<Attr, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let place = named(place(&call, user, path)?, |_word| ErrorCode::Exists)?;
        if let Some(zone) = zone {
            let map = call.map();
            if map.zone(zone).is_none() {
                return Err(ErrorCode::NoDevice.into());
            }
            if place.dir != zonal_types::Ino::ROOT && map.zone_of(place.dir) != Some(zone) {
                return Err(ErrorCode::CrossShard.into());
            }
        }
        let modes = (mode & 0o7777, user.umask());
        let who = user.credentials();
        let made = ask(call.mkdir(who, place.dir, place.name, modes, zone))?;
        Ok(made.attr)
    }

    /// Removes a name, unless it names a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EACCES, EPERM, and those of the shard.
    pub fn unlink(&self, user: &User, path: impl AsRef<Path>) -> Result<(), Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let last = place(&call, user, path.as_ref())?;
        let place = named(last, |_word| ErrorCode::IsDirectory)?;
        if place.is_directory {
            let found = look_up(&call, user, place.dir, &place.name)?;
            return Err(match found.ok_or(ErrorCode::NotFound)?.kind {
                FileKind::Directory => ErrorCode::IsDirectory.into(),
                _ => ErrorCode::NotDirectory.into(),
            });
        }
        let who = user.credentials();
        ask(call.unlink(who, place.dir, place.name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EACCES, EPERM, and those of the shard.
    pub fn rmdir(&self, user: &User, path: impl AsRef<Path>) -> Result<(), Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let place = named(place(&call, user, path.as_ref())?, |word| match word {
            SpecialName::Root => ErrorCode::Busy,
            SpecialName::Dot => ErrorCode::Invalid,
            SpecialName::DotDot => ErrorCode::NotEmpty,
        })?;
        let who = user.credentials();
        ask(call.rmdir(who, place.dir, place.name))
    }

    /// Renames, and replaces an entry with the new name where rename(2) does. Both names must lie
    /// in one shard: below one first-level directory, or both in the root.
    ///
    /// # Errors
    /// ENOENT, EXDEV, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL, EACCES, EPERM, and those of the shard.
    pub fn rename(
        &self,
        user: &User,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<(), Error> {
        self.rename_with(user, from.as_ref(), to.as_ref(), 0)
    }

    /// Renames, unless the new name exists.
    ///
    /// # Errors
    /// As [`Self::rename`]; EEXIST.
    pub fn rename_new(
        &self,
        user: &User,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<(), Error> {
        let flags = zonal_wire::meta::flags::RENAME_NOREPLACE;
        self.rename_with(user, from.as_ref(), to.as_ref(), flags)
    }

    fn rename_with(&self, user: &User, from: &Path, to: &Path, flags: u32) -> Result<(), Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let from = named(place(&call, user, from)?, |_word| ErrorCode::Busy)?;
        let to = named(place(&call, user, to)?, |_word| ErrorCode::Busy)?;
        if from.is_directory || to.is_directory {
            let found = look_up(&call, user, from.dir, &from.name)?;
            if found.ok_or(ErrorCode::NotFound)?.kind != FileKind::Directory {
                return Err(ErrorCode::NotDirectory.into());
            }
        }
        let who = user.credentials();
        let renamed = call.rename(who, (from.dir, from.name), (to.dir, to.name), flags);
        ask(renamed)
    }

    /// Makes a symbolic link with this text at `path`.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENAMETOOLONG, EACCES, and those of the shard.
    pub fn symlink(
        &self,
        user: &User,
        text: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> Result<Attr, Error> {
        let bytes = text.as_ref().as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(ErrorCode::NotFound.into());
        }
        let text = Blob(bytes.to_vec());
        self.make(user, path.as_ref(), NewKind::Symlink { text }, 0o777)
    }

    /// Makes a named pipe, which programs on mounts can use.
    ///
    /// # Errors
    /// EEXIST, ENOENT, EACCES, and those of the shard.
    pub fn mkfifo(&self, user: &User, path: impl AsRef<Path>, mode: u32) -> Result<Attr, Error> {
        self.make(user, path.as_ref(), NewKind::Fifo, mode)
    }

    fn make(&self, user: &User, path: &Path, kind: NewKind, mode: u32) -> Result<Attr, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let place = named(place(&call, user, path)?, |_word| ErrorCode::Exists)?;
        if place.is_directory {
            return Err(ErrorCode::NotFound.into());
        }
        let new = NewFile {
            kind,
            mode: mode & 0o7777,
            umask: user.umask(),
        };
        let who = user.credentials();
        let made = ask(call.make(who, place.dir, place.name, new))?;
        Ok(made.attr)
    }

    /// The text of a symbolic link.
    ///
    /// # Errors
    /// EINVAL where the inode is not a symbolic link, ENOENT, EACCES.
    pub fn read_link(&self, user: &User, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let attr = find(&call, user, path.as_ref(), false)?;
        if attr.kind != FileKind::Symlink {
            return Err(ErrorCode::Invalid.into());
        }
        ask(call.readlink(attr.ino))
    }

    /// Gives the inode at `from` another name. A symbolic link at its end is not followed.
    ///
    /// # Errors
    /// EEXIST, ENOENT, EPERM for a directory, EXDEV, EMLINK, EACCES, and those of the shard.
    pub fn link(
        &self,
        user: &User,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<Attr, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let attr = find(&call, user, from.as_ref(), false)?;
        if attr.kind == FileKind::Directory {
            return Err(ErrorCode::NotPermitted.into());
        }
        let place = named(place(&call, user, to.as_ref())?, |_word| ErrorCode::Exists)?;
        if place.is_directory {
            return Err(ErrorCode::NotFound.into());
        }
        let who = user.credentials();
        let linked = call.hard_link(who, attr.ino, place.dir, place.name);
        Ok(ask(linked)?.attr)
    }
}
