//! Attributes, extended attributes, space, and the location of bytes.

use super::walk::find;
use super::{Native, ask};
use crate::error::Error;
use crate::user::User;
use std::path::Path;
use zonal_client::data::Capacity;
use zonal_client::names::Located;
use zonal_types::{Attr, ErrorCode, FileKind, Timestamp};
use zonal_wire::{AttrChange, SetTime};

/// A new value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewTime {
    /// Keep the time.
    Keep,
    /// The shard's clock.
    Now,
    /// This time.
    At(Timestamp),
}

impl NewTime {
    fn change(self) -> Option<SetTime> {
        match self {
            Self::Keep => None,
            Self::Now => Some(SetTime::Now),
            Self::At(time) => Some(SetTime::At { time }),
        }
    }
}

fn owners(uid: Option<u32>, gid: Option<u32>) -> AttrChange {
    AttrChange {
        uid,
        gid,
        ..AttrChange::default()
    }
}

pub(crate) fn times(atime: NewTime, mtime: NewTime) -> AttrChange {
    AttrChange {
        atime: atime.change(),
        mtime: mtime.change(),
        ..AttrChange::default()
    }
}

impl Native {
    /// Attributes of the inode at a path, through symbolic links.
    ///
    /// ```no_run
    /// # use zonal_native::{Error, FileKind, Native, User};
    /// # fn example(cell: &Native) -> Result<(), Error> {
    /// let attr = cell.stat(&User::root(), "/data/file")?;
    /// println!("{} bytes, a file: {}", attr.size, attr.kind == FileKind::File);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG; a server that does not answer.
    pub fn stat(&self, user: &User, path: impl AsRef<Path>) -> Result<Attr, Error> {
        let call = self.inner.begin()?;
        find(&call, user, path.as_ref(), true)
    }

    /// As [`Self::stat`], without following a symbolic link at the end.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub fn lstat(&self, user: &User, path: impl AsRef<Path>) -> Result<Attr, Error> {
        let call = self.inner.begin()?;
        find(&call, user, path.as_ref(), false)
    }

    fn change(
        &self,
        user: &User,
        path: &Path,
        follows: bool,
        change: AttrChange,
    ) -> Result<Attr, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let ino = find(&call, user, path, follows)?.ino;
        let changed = call.setattr(user.credentials(), ino, change);
        Ok(ask(changed)?.0)
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// EPERM, and as [`Self::stat`].
    pub fn chmod(&self, user: &User, path: impl AsRef<Path>, mode: u32) -> Result<Attr, Error> {
        let change = AttrChange {
            mode: Some(mode & 0o7777),
            ..AttrChange::default()
        };
        self.change(user, path.as_ref(), true, change)
    }

    /// Sets owner and group; `None` keeps one. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// EPERM, and as [`Self::stat`].
    pub fn lchown(
        &self,
        user: &User,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attr, Error> {
        self.change(user, path.as_ref(), false, owners(uid, gid))
    }

    /// Sets owner and group, through symbolic links.
    ///
    /// # Errors
    /// EPERM, and as [`Self::stat`].
    pub fn chown(
        &self,
        user: &User,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attr, Error> {
        self.change(user, path.as_ref(), true, owners(uid, gid))
    }

    /// Sets times. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// EPERM, EACCES, and as [`Self::stat`].
    pub fn utimens(
        &self,
        user: &User,
        path: impl AsRef<Path>,
        atime: NewTime,
        mtime: NewTime,
    ) -> Result<Attr, Error> {
        self.change(user, path.as_ref(), false, times(atime, mtime))
    }

    /// Truncates a file, or extends it by a hole.
    ///
    /// # Errors
    /// EISDIR, EINVAL for an inode that is not a file, EFBIG, EACCES, and as [`Self::stat`].
    pub fn truncate(&self, user: &User, path: impl AsRef<Path>, size: u64) -> Result<Attr, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let attr = find(&call, user, path.as_ref(), true)?;
        match attr.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(ErrorCode::IsDirectory.into()),
            _ => return Err(ErrorCode::Invalid.into()),
        }
        let kills = !user.is_root();
        let truncated = call.truncate(user.credentials(), attr.ino, size, false, kills);
        let truncated = ask(truncated);
        inner.signal.wake();
        truncated
    }

    /// Checks a user's permissions: `mask` of R_OK 4, W_OK 2, X_OK 1; 0: only existence.
    ///
    /// # Errors
    /// EACCES where one is missing, and as [`Self::stat`].
    pub fn access(&self, user: &User, path: impl AsRef<Path>, mask: u32) -> Result<(), Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let ino = find(&call, user, path.as_ref(), true)?.ino;
        ask(call.access(user.credentials(), ino, mask))
    }

    /// The value of an extended attribute. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// ENODATA where the inode has none of this name, and as [`Self::lstat`].
    pub fn get_xattr(
        &self,
        user: &User,
        path: impl AsRef<Path>,
        name: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let ino = find(&call, user, path.as_ref(), false)?.ino;
        ask(call.getxattr(user.credentials(), ino, name))
    }

    /// Names of the extended attributes. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// As [`Self::lstat`].
    pub fn list_xattrs(&self, user: &User, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let ino = find(&call, user, path.as_ref(), false)?.ino;
        ask(call.listxattr(user.credentials(), ino))
    }

    /// Sets an extended attribute. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// ENOTSUP for a name that the cell does not store, E2BIG, ERANGE, ENOSPC, EPERM, and as
    /// [`Self::lstat`].
    pub fn set_xattr(
        &self,
        user: &User,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let ino = find(&call, user, path.as_ref(), false)?.ino;
        let set = call.setxattr(user.credentials(), ino, name, value, 0);
        ask(set)
    }

    /// Removes an extended attribute. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// ENODATA where the inode has none of this name, EPERM, and as [`Self::lstat`].
    pub fn remove_xattr(
        &self,
        user: &User,
        path: impl AsRef<Path>,
        name: &[u8],
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let ino = find(&call, user, path.as_ref(), false)?.ino;
        ask(call.removexattr(user.credentials(), ino, name))
    }

    /// Space and names of the path's home zone; of the cell for entries of the root.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub fn statfs(&self, user: &User, path: impl AsRef<Path>) -> Result<Capacity, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let ino = find(&call, user, path.as_ref(), true)?.ino;
        ask(call.statfs(ino))
    }

    /// Zones and targets of a file's bytes, and the home zone, for schedulers.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub fn locate(&self, user: &User, path: impl AsRef<Path>) -> Result<Located, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let ino = find(&call, user, path.as_ref(), true)?.ino;
        ask(call.locate(ino))
    }
}
