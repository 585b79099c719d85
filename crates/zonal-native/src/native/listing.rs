//! Directory listings as streams of entries, page by page, so that a directory of any size takes
//! the same memory.

use super::walk::find;
use super::{Inner, Native, ask};
use crate::error::Error;
use crate::user::User;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use zonal_client::names::ListingPage;
use zonal_types::limits::READDIR_ENTRIES_MAX;
use zonal_types::{Attr, ErrorCode, FileKind, Ino, Name};
use zonal_wire::meta::flags::{R_OK, X_OK};

/// Entries of a page with attributes: one reply.
const PLUS_ENTRIES: u32 = 1024;

/// One entry of a directory, except `.` and `..`.
#[derive(Debug, Clone)]
pub struct ReadDirEntry {
    name: Name,
    ino: Ino,
    kind: FileKind,
    attr: Option<Attr>,
}

impl ReadDirEntry {
    /// The name: any bytes but `/` and NUL.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.name.as_bytes())
    }

    /// The inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The kind of the inode.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// The attributes, if they were requested, the inode's shard answers, and the user may search
    /// the directory.
    #[must_use]
    pub fn attr(&self) -> Option<&Attr> {
        self.attr.as_ref()
    }
}

/// A directory's entries, see [`Native::read_dir`]. An entry that exists throughout comes once; an
/// entry made or removed meanwhile comes once or not at all.
pub struct ReadDir {
    inner: Arc<Inner>,
    user: User,
    dir: Ino,
    plus: bool,
    cookie: u64,
    ready: VecDeque<ReadDirEntry>,
    is_over: bool,
}

impl ReadDir {
    fn fetch(&mut self) -> Result<(), Error> {
        let call = self.inner.begin()?;
        let entries = match self.plus {
            true => PLUS_ENTRIES,
            false => u32::try_from(READDIR_ENTRIES_MAX).unwrap_or(PLUS_ENTRIES),
        };
        let part = ListingPage::new(self.cookie, entries, self.plus);
        let listed = call.readdir(self.user.credentials(), self.dir, part);
        let (entries, end) = ask(listed)?;
        match entries.last() {
            Some(last) => self.cookie = last.cookie,
            None => self.is_over = true,
        }
        self.is_over |= end;
        self.ready = entries
            .into_iter()
            .map(|item| ReadDirEntry {
                name: item.name,
                ino: item.entry.ino,
                kind: item.entry.kind,
                attr: item.entry.attr,
            })
            .collect();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<ReadDirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.is_over {
            if let Err(error) = self.fetch() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

impl Native {
    /// Lists a directory: names, inode numbers and kinds.
    ///
    /// ```no_run
    /// # use zonal_native::{Error, Native, User};
    /// # fn example(cell: &Native) -> Result<(), Error> {
    /// for entry in cell.read_dir(&User::root(), "/data")? {
    ///     println!("{}", entry?.name().display());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENOTDIR, EACCES, and as [`Self::stat`].
    pub fn read_dir(&self, user: &User, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        self.list(user, path.as_ref(), false)
    }

    /// As [`Self::read_dir`], with attributes, about a thousand entries per round trip.
    ///
    /// # Errors
    /// As [`Self::read_dir`].
    pub fn read_dir_plus(&self, user: &User, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        self.list(user, path.as_ref(), true)
    }

    fn list(&self, user: &User, path: &Path, plus: bool) -> Result<ReadDir, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let attr = find(&call, user, path, true)?;
        if attr.kind != FileKind::Directory {
            return Err(ErrorCode::NotDirectory.into());
        }
        let mut plus = plus;
        if !user.is_root() {
            let who = user.credentials();
            ask(call.access(who, attr.ino, R_OK))?;
            // Without the right to search, a user has no right to attributes.
            plus = plus && ask(call.access(who, attr.ino, X_OK)).is_ok();
        }
        Ok(ReadDir {
            inner: inner.clone(),
            user: user.clone(),
            dir: attr.ino,
            plus,
            cookie: 0,
            ready: VecDeque::new(),
            is_over: false,
        })
    }
}
