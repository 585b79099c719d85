//! How `get` copies, as `put` does: one thread walks the tree and makes directories and links,
//! others copy files.

use super::connected::{Connected, about_local};
use super::copying::{STEP, Work, beside};
use super::listing::join;
use super::local::{self, Xattr};
use crate::exit::{FAILED, Failure};
use crate::out;
use rustix::fs::{CWD, FileType, Mode};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File as LocalFile};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zonal_native::{Attr, Error, ErrorCode, FileKind, Ino, OpenFile, OpenOptions, Whence};

/// Something that is to be copied.
pub struct Job {
    from: PathBuf,
    attr: Attr,
    to: PathBuf,
}

/// What is left to do at the end.
#[derive(Default)]
struct Tree {
    /// Where the first name of a file with several goes.
    first_names: BTreeMap<Ino, PathBuf>,
    links: Vec<Job>,
    directories: Vec<Job>,
}

/// A get under way.
pub struct Getting<'a> {
    pub receiver: Receiver<'a>,
    recursive: bool,
    tree: RefCell<Tree>,
}

/// What threads share that copy files.
pub struct Receiver<'a> {
    cell: &'a Connected,
    work: &'a Work,
    /// Files with several names that have been copied.
    arrived: Mutex<BTreeSet<Ino>>,
}

impl Receiver<'_> {
    /// Makes something beside a name, and gives it the name. A failure leaves nothing.
    fn place(
        &self,
        to: &Path,
        make: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let new = beside(to, "get")?;
        let placed = make(&new).and_then(|()| {
            let renamed = std::fs::rename(&new, to);
            renamed.map_err(|error| about_local(&error, "write", to))
        });
        // Two names of one file are not renamed to one another.
        let _ = std::fs::remove_file(&new);
        placed
    }

    /// Copies a file.
    pub fn file(&self, job: &Job) -> anyhow::Result<()> {
        self.place(&job.to, |new| self.fill(job, new))?;
        if job.attr.nlink > 1 {
            let arrived = self.arrived.lock();
            let mut arrived = arrived.unwrap_or_else(PoisonError::into_inner);
            arrived.insert(job.attr.ino);
        }
        Ok(())
    }

    fn fill(&self, job: &Job, new: &Path) -> anyhow::Result<()> {
        let failed = |error: std::io::Error| about_local(&error, "write", &job.to);
        let (native, user) = (&self.cell.native, &self.cell.user);
        let options = OpenOptions::new().no_follow(true);
        let source = native.open(user, &job.from, options);
        let source = source.map_err(|error| self.work.said(error, "read", &job.from))?;
        let file = LocalFile::options()
            .write(true)
            .create_new(true)
            // Nobody else reads what is not complete.
            .mode(0o600)
            .open(new)
            .map_err(failed)?;
        self.copy_bytes(job, &source, &file)?;
        file.sync_all().map_err(failed)?;
        self.set_attributes(job, new)
    }

    /// Holes stay holes. What is added meanwhile is not copied.
    fn copy_bytes(&self, job: &Job, source: &OpenFile, file: &LocalFile) -> anyhow::Result<()> {
        let failed = |error: std::io::Error| about_local(&error, "write", &job.to);
        let said = |error| self.work.said(error, "read", &job.from);
        let size = source.stat().map_err(said)?.size;
        let next = |from, what| match source.find(from, what) {
            Err(error) if error.code() == Some(ErrorCode::NoDevice) => Ok(size),
            found => found.map(|at| at.min(size)).map_err(said),
        };
        file.set_len(size).map_err(failed)?;
        let mut buffer = vec![0; STEP.min(usize::try_from(size).unwrap_or(STEP)).max(1)];
        let mut at = 0;
        while at < size {
            at = next(at, Whence::Data)?;
            let end = match at < size {
                true => next(at, Whence::Hole)?,
                false => size,
            };
            while at < end {
                self.work.check()?;
                let step = usize::try_from(end - at).unwrap_or(STEP).min(buffer.len());
                let part = buffer.get_mut(..step).unwrap_or_default();
                let bytes = source.pread(at, part).map_err(said)?;
                if bytes == 0 {
                    // It was cut meanwhile.
                    file.set_len(at).map_err(failed)?;
                    return Ok(());
                }
                let part = part.get(..bytes).unwrap_or_default();
                file.write_all_at(part, at).map_err(failed)?;
                self.work.moved(bytes);
                at += bytes as u64;
            }
        }
        Ok(())
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>, Error> {
        let (native, user) = (&self.cell.native, &self.cell.user);
        let mut found = Vec::new();
        for name in native.list_xattrs(user, path)? {
            match native.get_xattr(user, path, &name) {
                Ok(value) if local::is_copied(&name) => found.push((name, value)),
                Err(error)
                    if local::must_be_kept(&name) && error.code() != Some(ErrorCode::NoData) =>
                {
                    return Err(error);
                }
                // Removed since; the machine's own; not for this user.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(found)
    }

    fn set_attributes(&self, job: &Job, new: &Path) -> anyhow::Result<()> {
        let xattrs = match job.attr.kind {
            FileKind::Symlink => Vec::new(),
            _ => {
                let xattrs = self.xattrs(&job.from);
                xattrs.map_err(|error| self.work.said(error, "read attributes of", &job.from))?
            }
        };
        let set = local::set_attributes(new, &job.attr, &xattrs);
        set.map_err(|error| about_local(&error, "set attributes of", &job.to))
    }

    /// Another name of a file that was copied; where that cannot be, a copy.
    fn link(&self, first: &Path, job: &Job) -> anyhow::Result<()> {
        let has_arrived = {
            let arrived = self.arrived.lock();
            let arrived = arrived.unwrap_or_else(PoisonError::into_inner);
            arrived.contains(&job.attr.ino)
        };
        if has_arrived && first != job.to {
            let linked = self.place(&job.to, |new| {
                let linked = std::fs::hard_link(first, new);
                linked.map_err(|error| about_local(&error, "link", &job.to))
            });
            if linked.is_ok() {
                return linked;
            }
        }
        self.file(job)
    }
}

impl<'a> Getting<'a> {
    pub fn new(cell: &'a Connected, work: &'a Work, recursive: bool) -> Self {
        Self {
            receiver: Receiver {
                cell,
                work,
                arrived: Mutex::default(),
            },
            recursive,
            tree: RefCell::default(),
        }
    }

    /// Copies what a path names, or has it copied. What fails is noted.
    pub fn walk(&self, from: &Path, to: &Path, feed: &dyn Fn(Job)) {
        let receiver = &self.receiver;
        let attr = receiver.cell.native.lstat(&receiver.cell.user, from);
        let attr = attr.map_err(|error| receiver.work.said(error, "read", from));
        if let Some(attr) = receiver.work.note(attr) {
            self.go(from, attr, to, feed);
        }
    }

    fn go(&self, from: &Path, attr: Attr, to: &Path, feed: &dyn Fn(Job)) {
        if self.receiver.work.check().is_err() {
            return;
        }
        let job = Job {
            from: from.to_owned(),
            attr,
            to: to.to_owned(),
        };
        self.receiver.work.note(self.one(job, feed));
    }

    fn one(&self, job: Job, feed: &dyn Fn(Job)) -> anyhow::Result<()> {
        let receiver = &self.receiver;
        let failed = |error: std::io::Error| about_local(&error, "write", &job.to);
        match job.attr.kind {
            FileKind::Directory => return self.directory(job, feed),
            FileKind::File => {
                let mut tree = self.tree.borrow_mut();
                if tree.first_names.contains_key(&job.attr.ino) {
                    tree.links.push(job);
                    return Ok(());
                }
                if job.attr.nlink > 1 {
                    tree.first_names.insert(job.attr.ino, job.to.clone());
                }
                drop(tree);
                feed(job);
                return Ok(());
            }
            FileKind::Symlink => {
                let text = receiver
                    .cell
                    .native
                    .read_link(&receiver.cell.user, &job.from);
                let text = text.map_err(|error| receiver.work.said(error, "read", &job.from))?;
                receiver.place(&job.to, |new| {
                    std::os::unix::fs::symlink(OsStr::from_bytes(&text), new).map_err(failed)?;
                    receiver.set_attributes(&job, new)
                })?;
            }
            FileKind::Fifo => receiver.place(&job.to, |new| {
                rustix::fs::mknodat(CWD, new, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                    .map_err(|error| failed(error.into()))?;
                receiver.set_attributes(&job, new)
            })?,
            FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                let text = format!("{} is a socket or a device", out::path(&job.from));
                return Err(Failure::new(FAILED, text)
                    .hint("such are not copied")
                    .into());
            }
        }
        receiver.work.other_done();
        Ok(())
    }

    fn directory(&self, job: Job, feed: &dyn Fn(Job)) -> anyhow::Result<()> {
        let receiver = &self.receiver;
        if !self.recursive {
            let text = format!("{} is a directory", out::path(&job.from));
            let hint = "-r copies it with all that is below";
            return Err(Failure::new(FAILED, text).hint(hint).into());
        }
        let failed = |error: std::io::Error| about_local(&error, "make directory", &job.to);
        // What is in it is written, whatever its mode will be.
        match DirBuilder::new().mode(0o700).create(&job.to) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // A link of this machine leads nothing elsewhere.
                if !std::fs::symlink_metadata(&job.to).map_err(failed)?.is_dir() {
                    return Err(failed(error));
                }
            }
            made => made.map_err(failed)?,
        }
        let (native, user) = (&receiver.cell.native, &receiver.cell.user);
        let said = |error| receiver.work.said(error, "list", &job.from);
        for entry in native.read_dir_plus(user, &job.from).map_err(said)? {
            let entry = entry.map_err(said)?;
            let (from, to) = (join(&job.from, entry.name()), join(&job.to, entry.name()));
            match entry.attr() {
                Some(attr) => self.go(&from, *attr, &to, feed),
                None => self.walk(&from, &to, feed),
            }
        }
        self.tree.borrow_mut().directories.push(job);
        Ok(())
    }

    /// What can be done when all files have been copied.
    pub fn finish(self) {
        let (receiver, tree) = (self.receiver, self.tree.into_inner());
        for job in &tree.links {
            if receiver.work.check().is_err() {
                return;
            }
            if let Some(first) = tree.first_names.get(&job.attr.ino)
                && receiver.work.note(receiver.link(first, job)).is_some()
            {
                receiver.work.file_done();
            }
        }
        // Those below come first.
        for job in &tree.directories {
            if receiver.work.check().is_err() {
                return;
            }
            let set = receiver.set_attributes(job, &job.to);
            if receiver.work.note(set).is_some() {
                receiver.work.directory_done();
            }
        }
    }
}
