//! Opening files by path.

use crate::error::Error;
use crate::file::OpenFile;
use crate::native::{Call, Inner, Native, PathTarget, ask, find_or_place};
use crate::user::User;
use std::path::Path;
use zonal_client::Net as _;
use zonal_client::names::{NewFile, OpenedFile};
use zonal_types::{Attr, ErrorCode, FileKind};
use zonal_wire::NewKind;
use zonal_wire::meta::flags::{O_APPEND, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};

/// How often a name is looked up again that changes between two look-ups.
const TRIES: usize = 8;
/// The next read renews an access time older than this (relatime), seconds.
const RELATIME_SECONDS: i64 = 86_400;

use crate::transport::RealNet;

/// Options of an open.
///
/// ```
/// use zonal_native::OpenOptions;
/// let log = OpenOptions::new().append(true).create(0o640);
/// let new = OpenOptions::new().read(true).write(true).create_new(0o600);
/// # drop((log, new));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of open(2)")]
pub struct OpenOptions {
    reads: bool,
    writes: bool,
    appends: bool,
    truncates: bool,
    creates: Option<u32>,
    is_new: bool,
    is_synced: bool,
    no_follow: bool,
    no_atime: bool,
}

impl OpenOptions {
    /// Without further options the file is opened for reading.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For reading.
    #[must_use]
    pub fn read(self, reads: bool) -> Self {
        Self { reads, ..self }
    }

    /// For writing.
    #[must_use]
    pub fn write(self, writes: bool) -> Self {
        Self { writes, ..self }
    }

    /// For writing at the end, wherever that is when the write is executed (O_APPEND).
    #[must_use]
    pub fn append(self, appends: bool) -> Self {
        Self { appends, ..self }
    }

    /// Truncates the file to nothing (O_TRUNC). Needs the right to write.
    #[must_use]
    pub fn truncate(self, truncates: bool) -> Self {
        Self { truncates, ..self }
    }

    /// Makes the file where it does not exist (O_CREAT); `mode` is before the umask.
    #[must_use]
    pub fn create(self, mode: u32) -> Self {
        Self {
            creates: Some(mode & 0o7777),
            ..self
        }
    }

    /// Makes the file; EEXIST where the name exists, even as a symbolic link (O_CREAT and O_EXCL).
    #[must_use]
    pub fn create_new(self, mode: u32) -> Self {
        Self {
            creates: Some(mode & 0o7777),
            is_new: true,
            ..self
        }
    }

    /// Each write is durable when it returns (O_SYNC).
    #[must_use]
    pub fn sync(self, is_synced: bool) -> Self {
        Self { is_synced, ..self }
    }

    /// ELOOP where the last name is a symbolic link (O_NOFOLLOW).
    #[must_use]
    pub fn no_follow(self, no_follow: bool) -> Self {
        Self { no_follow, ..self }
    }

    /// Reads do not change the access time (O_NOATIME).
    #[must_use]
    pub fn no_atime(self, no_atime: bool) -> Self {
        Self { no_atime, ..self }
    }

    pub(crate) fn may_write(self) -> bool {
        self.writes || self.appends
    }

    pub(crate) fn may_read(self) -> bool {
        self.reads || !self.may_write()
    }

    pub(crate) fn appends(self) -> bool {
        self.appends
    }

    pub(crate) fn is_synced(self) -> bool {
        self.is_synced
    }

    fn flags(self) -> u32 {
        let access = match (self.may_read(), self.may_write()) {
            (true, true) => O_RDWR,
            (false, true) => O_WRONLY,
            (_, false) => O_RDONLY,
        };
        let with = |is_set, flag| if is_set { flag } else { 0 };
        access
            | with(self.appends, O_APPEND)
            | with(self.truncates, O_TRUNC)
            | with(self.is_new, O_EXCL)
    }
}

/// Whether the next read changes the access time.
fn is_touch_due(inner: &Inner, attr: &Attr) -> bool {
    let now = inner.client.net().wall();
    attr.atime <= attr.mtime
        || attr.atime <= attr.ctime
        || attr.atime.seconds < now.seconds - RELATIME_SECONDS
}

impl Native {
    /// Opens a file, or makes one.
    ///
    /// ```no_run
    /// # use zonal_native::{Error, Native, OpenOptions, User};
    /// # fn example(cell: &Native) -> Result<(), Error> {
    /// let options = OpenOptions::new().append(true).create(0o644);
    /// let file = cell.open(&User::root(), "/data/log", options)?;
    /// file.write(b"one line\n")?;
    /// file.fsync()?;
    /// file.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENOENT, EEXIST, EISDIR, EACCES, ELOOP, ENXIO of pipes, sockets and devices (which are a
    /// kernel's), and as the shard answers.
    pub fn open(
        &self,
        user: &User,
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> Result<OpenFile, Error> {
        let inner = &self.inner;
        let call = inner.begin()?;
        let mut last = ErrorCode::Stale;
        for _ in 0..TRIES {
            match open_once(&call, user, path.as_ref(), options) {
                // The inode of the look-up was removed, or the name was given to another one.
                Err(Error::Cell(code @ (ErrorCode::Stale | ErrorCode::NotFound)))
                    if options.creates.is_some() || code == ErrorCode::Stale =>
                {
                    last = code;
                }
                Err(error) => return Err(error),
                Ok(opened) => return Ok(self.handle(user, options, opened)),
            }
        }
        Err(last.into())
    }

    fn handle(&self, user: &User, options: OpenOptions, opened: OpenedFile<RealNet>) -> OpenFile {
        let attr = &opened.found.attr;
        let is_touch_due =
            options.may_read() && !options.no_atime && is_touch_due(&self.inner, attr);
        OpenFile::new(&self.inner, user, options, opened.file, is_touch_due)
    }
}

fn open_once(
    call: &Call<'_>,
    user: &User,
    path: &Path,
    options: OpenOptions,
) -> Result<OpenedFile<RealNet>, Error> {
    let follows = !options.no_follow && !options.is_new;
    let (last, found) = find_or_place(call, user, path, follows)?;
    let who = user.credentials();
    let Some(attr) = found else {
        let mode = options.creates.ok_or(ErrorCode::NotFound)?;
        let PathTarget::Place(place) = last else {
            return Err(ErrorCode::NotFound.into());
        };
        if place.is_directory {
            return Err(ErrorCode::IsDirectory.into());
        }
        let new = NewFile {
            kind: NewKind::File,
            mode,
            umask: user.umask(),
        };
        let made = call.create(who, place.dir, place.name, new, options.flags());
        return ask(made);
    };
    if options.is_new {
        return Err(ErrorCode::Exists.into());
    }
    match attr.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(ErrorCode::IsDirectory.into()),
        FileKind::Symlink => return Err(ErrorCode::Loop.into()),
        _ => return Err(ErrorCode::NoDevice.into()),
    }
    ask(call.open(who, attr.ino, options.flags()))
}
