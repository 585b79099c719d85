//! Trusted folders and secret files: the one place that decides on trust, for every command and
//! every server.
//!
//! 1. A folder is trusted where root or this user owns it, every folder above it and every link on
//!    the path. Nobody else can write there. A sticky folder above it, such as /tmp, is good
//!    enough: nobody can rename the files of others there.
//! 2. From then on its path means the same until root or this user changes it. So a path is checked
//!    first and used afterwards.
//! 3. A file in a trusted folder is opened without following a link, and is a regular file of root
//!    or this user.
//! 4. Removal starts from an open folder, step by step, follows no link and enters no other mount.
//! 5. A secret belongs to root or this user, and others cannot read it; a group may read root's.

mod folder_removal;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Most links on the path to a folder, as in the kernel.
const LINKS_MAX: u32 = 40;

/// Why a folder or a file is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum PathRefusal {
    /// Another user could have written there.
    #[error("{} belongs to user {owner}, neither to root nor to user {me}", path.display())]
    Foreign {
        /// The folder, a link on the path to it, or the file.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// User id of this process.
        me: u32,
    },
    /// Others can write there.
    #[error("{} can be written by others (mode {mode:04o})", path.display())]
    Writable {
        /// The folder or the file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Others can read a secret.
    #[error("{} can be read by others (mode {mode:04o})", path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is of another kind than required.
    #[error("{} is not a {wanted}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// `folder`, or `regular file`.
        wanted: &'static str,
    },
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Its error.
        source: io::Error,
    },
}

impl PathRefusal {
    /// Advice on how to correct it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Foreign { path, owner, me } => format!(
                "run the command as user {owner} (sudo -u '#{owner}' ...), or name another folder; only where all that is in there may be trusted: chown {me} {}",
                path.display()
            ),
            Self::Writable { path, .. } => format!("chmod go-w {}", path.display()),
            Self::Readable { path, .. } => format!("chmod go-rwx {}", path.display()),
            Self::Kind { path, .. } => format!(
                "restore the original, or inspect it with `ls -ld {}`; nothing was changed",
                path.display()
            ),
            Self::Io { .. } => return None,
        })
    }

    /// Whether the file was read and is not text, or is too long.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::InvalidData)
    }

    /// Whether the file or folder does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    }
}

fn io_at(path: &Path) -> impl Fn(Errno) -> PathRefusal + '_ {
    move |errno| PathRefusal::Io {
        path: path.to_owned(),
        source: errno.into(),
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Checks that root or this user owns it.
fn check_owner(found: &Stat, path: &Path) -> Result<(), PathRefusal> {
    let me = me();
    if found.st_uid == 0 || found.st_uid == me {
        return Ok(());
    }
    Err(PathRefusal::Foreign {
        path: path.to_owned(),
        owner: found.st_uid,
        me,
    })
}

fn mode(found: &Stat) -> u32 {
    Mode::from_raw_mode(found.st_mode).bits()
}

/// Checks that nobody else can write there; `sticky`: or that nobody else can rename files of
/// others.
fn check_writers(found: &Stat, path: &Path, sticky: bool) -> Result<(), PathRefusal> {
    let mode = mode(found);
    let others = mode & 0o022 != 0;
    if !others || sticky && mode & 0o1000 != 0 {
        return Ok(());
    }
    Err(PathRefusal::Writable {
        path: path.to_owned(),
        mode,
    })
}

/// A folder that only root and this user can change, together with the path to it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    dir: OwnedFd,
}

/// Opens a folder.
///
/// # Errors
/// See [`PathRefusal`].
pub fn open(dir: &Path) -> Result<Folder, PathRefusal> {
    of_nobody_else(walk(dir, false)?)
}

/// Opens a folder in which this user can have trusted folders: it may be sticky itself.
///
/// # Errors
/// See [`PathRefusal`].
pub fn open_above(dir: &Path) -> Result<Folder, PathRefusal> {
    let (path, dir) = walk(dir, false)?;
    Ok(Folder { path, dir })
}

/// As [`open_above`]; creates missing folders, for this user alone.
///
/// # Errors
/// See [`PathRefusal`].
pub fn make(dir: &Path) -> Result<Folder, PathRefusal> {
    of_nobody_else(walk(dir, true)?)
}

fn of_nobody_else((path, dir): (PathBuf, OwnedFd)) -> Result<Folder, PathRefusal> {
    let found = rustix::fs::fstat(&dir).map_err(io_at(&path))?;
    check_writers(&found, &path, false)?;
    Ok(Folder { path, dir })
}

/// The names of a path, the last one first.
fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn walk(dir: &Path, is_made: bool) -> Result<(PathBuf, OwnedFd), PathRefusal> {
    let absolute = std::path::absolute(dir).map_err(|source| PathRefusal::Io {
        path: dir.to_owned(),
        source,
    })?;
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = || rustix::fs::openat(CWD, "/", how, Mode::empty()).map_err(io_at(Path::new("/")));
    let mut path = PathBuf::from("/");
    let mut at = top()?;
    let mut rest: Vec<OsString> = names(&absolute).collect();
    let mut links = 0;
    check_step(&at, &path)?;
    while let Some(name) = rest.pop() {
        if name == ".." {
            // The parent was checked on the way down.
            at = rustix::fs::openat(&at, "..", how, Mode::empty()).map_err(io_at(&path))?;
            path.pop();
            continue;
        }
        let next = path.join(&name);
        let found = match rustix::fs::openat(&at, &name, how, Mode::empty()) {
            Err(Errno::NOENT) if is_made => {
                match rustix::fs::mkdirat(&at, &name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(io_at(&next)(errno)),
                }
                rustix::fs::openat(&at, &name, how, Mode::empty())
            }
            result => result,
        };
        let found = found.map_err(io_at(&next))?;
        let stat = rustix::fs::fstat(&found).map_err(io_at(&next))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                check_owner(&stat, &next)?;
                links += 1;
                if links > LINKS_MAX {
                    return Err(io_at(&next)(Errno::LOOP));
                }
                let target = rustix::fs::readlinkat(&found, "", Vec::new());
                let target = OsString::from_vec(target.map_err(io_at(&next))?.into_bytes());
                let target = Path::new(&target);
                if target.is_absolute() {
                    (at, path) = (top()?, PathBuf::from("/"));
                }
                rest.extend(names(target));
            }
            FileType::Directory => {
                check_step(&found, &next)?;
                (at, path) = (found, next);
            }
            _ => {
                return Err(PathRefusal::Kind {
                    path: next,
                    wanted: "folder",
                });
            }
        }
    }
    Ok((path, at))
}

/// Checks one folder on the path.
fn check_step(dir: &OwnedFd, path: &Path) -> Result<(), PathRefusal> {
    let found = rustix::fs::fstat(dir).map_err(io_at(path))?;
    check_owner(&found, path)?;
    check_writers(&found, path, true)
}

impl Folder {
    /// Its path, absolute and without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file in it: no link, and only a regular file. `None` where there is none.
    fn open_with(&self, name: &str, how: OFlags) -> Result<Option<File>, PathRefusal> {
        let path = self.path.join(name);
        // Opening a pipe would wait.
        let how = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.dir, name, how, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                return Err(PathRefusal::Kind {
                    path,
                    wanted: "regular file",
                });
            }
            Err(errno) => return Err(io_at(&path)(errno)),
        };
        let found = rustix::fs::fstat(&file).map_err(io_at(&path))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(PathRefusal::Kind {
                path,
                wanted: "regular file",
            });
        }
        check_owner(&found, &path)?;
        check_writers(&found, &path, false)?;
        Ok(Some(file))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// See [`PathRefusal`].
    pub fn file(&self, name: &str) -> Result<Option<File>, PathRefusal> {
        self.open_with(name, OFlags::RDONLY)
    }

    /// Fails where one of its names is a link.
    ///
    /// # Errors
    /// See [`PathRefusal`].
    pub fn refuse_links(&self) -> Result<(), PathRefusal> {
        let failed = |source| PathRefusal::Io {
            path: self.path.clone(),
            source,
        };
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_symlink() {
                return Err(PathRefusal::Kind {
                    path: entry.path(),
                    wanted: "regular file or folder of its own",
                });
            }
        }
        Ok(())
    }

    /// The text of a file, of at most `max` bytes.
    ///
    /// # Errors
    /// See [`PathRefusal`].
    pub fn text(&self, name: &str, max: u64) -> Result<Option<String>, PathRefusal> {
        let Some(file) = self.file(name)? else {
            return Ok(None);
        };
        let mut text = String::new();
        let read = file.take(max.saturating_add(1)).read_to_string(&mut text);
        let read = match read {
            Ok(bytes) if bytes as u64 > max => {
                let text = format!("longer than {max} bytes");
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
            read => read,
        };
        read.map_err(|source| PathRefusal::Io {
            path: self.path.join(name),
            source,
        })?;
        Ok(Some(text))
    }

    /// Opens a file for appending; creates a missing one.
    ///
    /// # Errors
    /// See [`PathRefusal`].
    pub fn append(&self, name: &str) -> Result<File, PathRefusal> {
        let how = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let opened = self.open_with(name, how)?;
        opened.ok_or_else(|| io_at(&self.path.join(name))(Errno::NOENT))
    }

    /// Creates a file with this mode.
    ///
    /// # Errors
    /// Where the name exists; errors of the system.
    pub fn create(&self, name: &str, mode: u32) -> io::Result<File> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.dir, name, how, Mode::from_raw_mode(mode))?;
        Ok(made.into())
    }

    /// Writes a file completely or not at all, by way of a random name.
    ///
    /// # Errors
    /// Those of the system.
    pub fn replace(&self, name: &str, text: &[u8], mode: u32) -> io::Result<()> {
        use io::Write;
        let chance = getrandom::u64().map_err(io::Error::other)?;
        let new = format!("{name}.{chance:016x}.new");
        let written = self.create(&new, mode).and_then(|mut file| {
            file.write_all(text)?;
            rustix::fs::renameat(&self.dir, &new, &self.dir, name).map_err(io::Error::from)
        });
        written.inspect_err(|_error| drop(self.unlink(&new)))
    }

    /// Overwrites a file by another text of the same length, which needs no more space on the disk.
    ///
    /// # Errors
    /// See [`PathRefusal`]; where the file is missing.
    pub fn overwrite(&self, name: &str, text: &[u8]) -> Result<(), PathRefusal> {
        use std::os::unix::fs::FileExt;
        let path = self.path.join(name);
        let file = self.open_with(name, OFlags::WRONLY)?;
        let file = file.ok_or_else(|| io_at(&path)(Errno::NOENT))?;
        let written = file.write_all_at(text, 0);
        let cut = written.and_then(|()| file.set_len(text.len() as u64));
        cut.map_err(|source| PathRefusal::Io { path, source })
    }

    /// Renames a file of the folder; a file that has the new name goes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, name, &self.dir, to)?)
    }

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    /// Those of the system.
    pub fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
    }

    /// Removes a file, or a folder with all of its contents; follows no link and enters no other
    /// mount. A missing name is no error.
    ///
    /// # Errors
    /// Those of the system; the rest stays.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        folder_removal::remove(&self.dir, OsStr::new(name))
    }
}

/// Reads a secret of at most `max` bytes. A link may name the file.
///
/// # Errors
/// See [`PathRefusal`].
pub fn secret(path: &Path, max: u64) -> Result<Vec<u8>, PathRefusal> {
    // Opening a pipe would wait.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, how, Mode::empty()).map_err(io_at(path))?;
    let found = rustix::fs::fstat(&file).map_err(io_at(path))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(PathRefusal::Kind {
            path: path.to_owned(),
            wanted: "regular file",
        });
    }
    check_owner(&found, path)?;
    check_writers(&found, path, false)?;
    let mode = mode(&found);
    // Root may have given the file a group, such as that of the servers.
    let others = if found.st_uid == 0 { 0o007 } else { 0o077 };
    if mode & others != 0 {
        return Err(PathRefusal::Readable {
            path: path.to_owned(),
            mode,
        });
    }
    let mut bytes = Vec::new();
    let read = File::from(file).take(max).read_to_end(&mut bytes);
    read.map_err(|source| PathRefusal::Io {
        path: path.to_owned(),
        source,
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
