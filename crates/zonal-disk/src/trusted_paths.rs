//! Folders that are trusted, and secrets that are secret: the one place that says so, for every
//! command and every server.
//!
//! 1. A folder is trusted where it, every folder above it and every link on the way belong to root
//!    or to this user, and nobody else can write there. Above it a sticky folder such as /tmp is
//!    good enough: in it nobody moves away what is another's.
//! 2. From then on its path means the same until root or this user changes that. So a path is
//!    checked first, and used then.
//! 3. A file in a trusted folder is opened without following a link, and is a regular one of root
//!    or this user.
//! 4. What is removed is removed from an open folder, step by step, through no link and out of no
//!    other mount.
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

/// Links on the way to a folder, as the kernel has it.
const LINKS_MAX: u32 = 40;

/// Why a folder or a file is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// Another user could have put anything there.
    #[error("{} belongs to user {owner}, neither to root nor to user {me}", path.display())]
    Foreign {
        /// The folder, the link on the way to it, or the file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who asks.
        me: u32,
    },
    /// Others can put anything there.
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
    /// It is of another kind than it has to be.
    #[error("{} is no {wanted}", path.display())]
    Kind {
        /// What is there.
        path: PathBuf,
        /// `folder`, or `regular file`.
        wanted: &'static str,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was asked for.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl Distrust {
    /// What to do about it.
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
                "put back what was there, or look at it with `ls -ld {}`; nothing was changed",
                path.display()
            ),
            Self::Io { .. } => return None,
        })
    }

    /// Whether it was read, and is no text, or too long for what it is to be.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::InvalidData)
    }

    /// Whether nothing is there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    }
}

fn io_at(path: &Path) -> impl Fn(Errno) -> Distrust + '_ {
    move |errno| Distrust::Io {
        path: path.to_owned(),
        source: errno.into(),
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether it is of root or of this user.
fn check_owner(found: &Stat, path: &Path) -> Result<(), Distrust> {
    let me = me();
    if found.st_uid == 0 || found.st_uid == me {
        return Ok(());
    }
    Err(Distrust::Foreign {
        path: path.to_owned(),
        owner: found.st_uid,
        me,
    })
}

fn mode(found: &Stat) -> u32 {
    Mode::from_raw_mode(found.st_mode).bits()
}

/// Whether nobody else can write there; `sticky`: or nobody else can move what they have not made.
fn check_writers(found: &Stat, path: &Path, sticky: bool) -> Result<(), Distrust> {
    let mode = mode(found);
    let others = mode & 0o022 != 0;
    if !others || sticky && mode & 0o1000 != 0 {
        return Ok(());
    }
    Err(Distrust::Writable {
        path: path.to_owned(),
        mode,
    })
}

/// A folder that nobody but root and this user can change, nor what leads to it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    dir: OwnedFd,
}

/// Opens a folder.
///
/// # Errors
/// See [`Distrust`].
pub fn open(dir: &Path) -> Result<Folder, Distrust> {
    of_nobody_else(walk(dir, false)?)
}

/// Opens a folder in which this user can have folders that are trusted: it may be sticky itself.
///
/// # Errors
/// See [`Distrust`].
pub fn open_above(dir: &Path) -> Result<Folder, Distrust> {
    let (path, dir) = walk(dir, false)?;
    Ok(Folder { path, dir })
}

/// The same; what is missing of it is made, for this user alone.
///
/// # Errors
/// See [`Distrust`].
pub fn make(dir: &Path) -> Result<Folder, Distrust> {
    of_nobody_else(walk(dir, true)?)
}

fn of_nobody_else((path, dir): (PathBuf, OwnedFd)) -> Result<Folder, Distrust> {
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

fn walk(dir: &Path, is_made: bool) -> Result<(PathBuf, OwnedFd), Distrust> {
    let absolute = std::path::absolute(dir).map_err(|source| Distrust::Io {
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
            // It was checked on the way down.
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
                return Err(Distrust::Kind {
                    path: next,
                    wanted: "folder",
                });
            }
        }
    }
    Ok((path, at))
}

/// Of one folder on the way.
fn check_step(dir: &OwnedFd, path: &Path) -> Result<(), Distrust> {
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

    /// A file in it as it is there: no link, and nothing but a regular file. `None` where there is
    /// none.
    fn open_with(&self, name: &str, how: OFlags) -> Result<Option<File>, Distrust> {
        let path = self.path.join(name);
        // The opening of a pipe would wait.
        let how = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.dir, name, how, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                return Err(Distrust::Kind {
                    path,
                    wanted: "regular file",
                });
            }
            Err(errno) => return Err(io_at(&path)(errno)),
        };
        let found = rustix::fs::fstat(&file).map_err(io_at(&path))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(Distrust::Kind {
                path,
                wanted: "regular file",
            });
        }
        check_owner(&found, &path)?;
        check_writers(&found, &path, false)?;
        Ok(Some(file))
    }

    /// A file to be read.
    ///
    /// # Errors
    /// See [`Distrust`].
    pub fn file(&self, name: &str) -> Result<Option<File>, Distrust> {
        self.open_with(name, OFlags::RDONLY)
    }

    /// Fails where one of its names is a link.
    ///
    /// # Errors
    /// See [`Distrust`].
    pub fn refuse_links(&self) -> Result<(), Distrust> {
        let failed = |source| Distrust::Io {
            path: self.path.clone(),
            source,
        };
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_symlink() {
                return Err(Distrust::Kind {
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
    /// See [`Distrust`].
    pub fn text(&self, name: &str, max: u64) -> Result<Option<String>, Distrust> {
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
        read.map_err(|source| Distrust::Io {
            path: self.path.join(name),
            source,
        })?;
        Ok(Some(text))
    }

    /// A file to be written behind its end; one that is missing is made.
    ///
    /// # Errors
    /// See [`Distrust`].
    pub fn append(&self, name: &str) -> Result<File, Distrust> {
        let how = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let opened = self.open_with(name, how)?;
        opened.ok_or_else(|| io_at(&self.path.join(name))(Errno::NOENT))
    }

    /// Makes a file that is not there yet, with this mode.
    ///
    /// # Errors
    /// Where there is anything of that name; what the system says.
    pub fn create(&self, name: &str, mode: u32) -> io::Result<File> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.dir, name, how, Mode::from_raw_mode(mode))?;
        Ok(made.into())
    }

    /// Writes a file whole or not at all, under a name of chance first.
    ///
    /// # Errors
    /// What the system says.
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

    /// Writes another text of the same length over that of a file, which needs no more room on the
    /// disk.
    ///
    /// # Errors
    /// See [`Distrust`]; where there is no such file.
    pub fn overwrite(&self, name: &str, text: &[u8]) -> Result<(), Distrust> {
        use std::os::unix::fs::FileExt;
        let path = self.path.join(name);
        let file = self.open_with(name, OFlags::WRONLY)?;
        let file = file.ok_or_else(|| io_at(&path)(Errno::NOENT))?;
        let written = file.write_all_at(text, 0);
        let cut = written.and_then(|()| file.set_len(text.len() as u64));
        cut.map_err(|source| Distrust::Io { path, source })
    }

    /// Gives a file of the folder another name; what has that name is gone.
    ///
    /// # Errors
    /// What the system says.
    pub fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, name, &self.dir, to)?)
    }

    /// Takes a file, or a link as such, away.
    ///
    /// # Errors
    /// What the system says.
    pub fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
    }

    /// Takes away what is there under a name, a folder with all that is in it: through no link, and
    /// out of no other mount. It is no error where nothing is there.
    ///
    /// # Errors
    /// What the system says; what is left stays.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        folder_removal::remove(&self.dir, OsStr::new(name))
    }
}

/// The bytes of a secret, of at most `max`. The file may be named by a link.
///
/// # Errors
/// See [`Distrust`].
pub fn secret(path: &Path, max: u64) -> Result<Vec<u8>, Distrust> {
    // The opening of a pipe would wait.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, how, Mode::empty()).map_err(io_at(path))?;
    let found = rustix::fs::fstat(&file).map_err(io_at(path))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Distrust::Kind {
            path: path.to_owned(),
            wanted: "regular file",
        });
    }
    check_owner(&found, path)?;
    check_writers(&found, path, false)?;
    let mode = mode(&found);
    // A group that root made for it, such as that of the servers.
    let others = if found.st_uid == 0 { 0o007 } else { 0o077 };
    if mode & others != 0 {
        return Err(Distrust::Readable {
            path: path.to_owned(),
            mode,
        });
    }
    let mut bytes = Vec::new();
    let read = File::from(file).take(max).read_to_end(&mut bytes);
    read.map_err(|source| Distrust::Io {
        path: path.to_owned(),
        source,
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
