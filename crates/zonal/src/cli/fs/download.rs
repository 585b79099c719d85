//! Copying of `get`, as in `put`: one thread walks the tree and makes directories and links, others
//! copy files.

use super::connection::{CellConnection, about_local};
use super::copy_work::{CopyWork, STEP, temporary_path};
use super::listing::join;
use super::local::{self, Xattr};
use crate::console;
use crate::exit::{FAILED, Failure};
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

/// A file, directory or link to copy.
pub struct DownloadJob {
    from: PathBuf,
    attr: Attr,
    to: PathBuf,
}

/// Work left until all files are copied.
#[derive(Default)]
struct Tree {
    /// Destination of the first name of each file with several names.
    first_names: BTreeMap<Ino, PathBuf>,
    links: Vec<DownloadJob>,
    directories: Vec<DownloadJob>,
}

/// A running `get`: the walk of the tree.
pub struct Download<'a> {
    pub receiver: FileDownload<'a>,
    recursive: bool,
    tree: RefCell<Tree>,
}

/// State shared by the threads that copy files.
pub struct FileDownload<'a> {
    cell: &'a CellConnection,
    work: &'a CopyWork,
    /// Files with several names that have been copied.
    arrived: Mutex<BTreeSet<Ino>>,
}

impl FileDownload<'_> {
    /// Makes a file under a temporary name, then renames it to `to`. Removes it on failure.
    fn place(
        &self,
        to: &Path,
        make: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let new = temporary_path(to, "get")?;
        let placed = make(&new).and_then(|()| {
            let renamed = std::fs::rename(&new, to);
            renamed.map_err(|error| about_local(&error, "write", to))
        });
        // rename(2) does nothing if both names are of one file, so the temporary name may remain.
        let _ = std::fs::remove_file(&new);
        placed
    }

    /// Copies a file.
    pub fn file(&self, job: &DownloadJob) -> anyhow::Result<()> {
        self.place(&job.to, |new| self.fill(job, new))?;
        if job.attr.nlink > 1 {
            let arrived = self.arrived.lock();
            let mut arrived = arrived.unwrap_or_else(PoisonError::into_inner);
            arrived.insert(job.attr.ino);
        }
        Ok(())
    }

    fn fill(&self, job: &DownloadJob, new: &Path) -> anyhow::Result<()> {
        let failed = |error: std::io::Error| about_local(&error, "write", &job.to);
        let (native, user) = (&self.cell.native, &self.cell.user);
        let options = OpenOptions::new().no_follow(true);
        let source = native.open(user, &job.from, options);
        let source = source.map_err(|error| self.work.cell_error(error, "read", &job.from))?;
        let file = LocalFile::options()
            .write(true)
            .create_new(true)
            // No other user may read an incomplete file.
            .mode(0o600)
            .open(new)
            .map_err(failed)?;
        self.copy_bytes(job, &source, &file)?;
        file.sync_all().map_err(failed)?;
        self.set_attributes(job, new)
    }

    /// Copies data and keeps holes. Bytes appended during the copy are left out.
    fn copy_bytes(
        &self,
        job: &DownloadJob,
        source: &OpenFile,
        file: &LocalFile,
    ) -> anyhow::Result<()> {
        let failed = |error: std::io::Error| about_local(&error, "write", &job.to);
        let said = |error| self.work.cell_error(error, "read", &job.from);
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
                    // The file was truncated during the copy.
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
                // Removed since, specific to a machine, or not permitted for this user.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(found)
    }

    fn set_attributes(&self, job: &DownloadJob, new: &Path) -> anyhow::Result<()> {
        let xattrs = match job.attr.kind {
            FileKind::Symlink => Vec::new(),
            _ => {
                let xattrs = self.xattrs(&job.from);
                xattrs
                    .map_err(|error| self.work.cell_error(error, "read attributes of", &job.from))?
            }
        };
        let set = local::set_attributes(new, &job.attr, &xattrs);
        set.map_err(|error| about_local(&error, "set attributes of", &job.to))
    }

    /// Links a further name to the copied file; copies the file if it cannot be linked.
    fn link(&self, first: &Path, job: &DownloadJob) -> anyhow::Result<()> {
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

impl<'a> Download<'a> {
    pub fn new(cell: &'a CellConnection, work: &'a CopyWork, recursive: bool) -> Self {
        Self {
            receiver: FileDownload {
                cell,
                work,
                arrived: Mutex::default(),
            },
            recursive,
            tree: RefCell::default(),
        }
    }

    /// Walks a path: makes directories and links, and feeds files to the copying threads. Failures
    /// are noted.
    pub fn walk(&self, from: &Path, to: &Path, feed: &dyn Fn(DownloadJob)) {
        let receiver = &self.receiver;
        let attr = receiver.cell.native.lstat(&receiver.cell.user, from);
        let attr = attr.map_err(|error| receiver.work.cell_error(error, "read", from));
        if let Some(attr) = receiver.work.note(attr) {
            self.go(from, attr, to, feed);
        }
    }

    fn go(&self, from: &Path, attr: Attr, to: &Path, feed: &dyn Fn(DownloadJob)) {
        if self.receiver.work.check().is_err() {
            return;
        }
        let job = DownloadJob {
            from: from.to_owned(),
            attr,
            to: to.to_owned(),
        };
        self.receiver.work.note(self.one(job, feed));
    }

    fn one(&self, job: DownloadJob, feed: &dyn Fn(DownloadJob)) -> anyhow::Result<()> {
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
                let text =
                    text.map_err(|error| receiver.work.cell_error(error, "read", &job.from))?;
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
                let text = format!("{} is a socket or a device", console::path(&job.from));
                return Err(Failure::new(FAILED, text)
                    .hint("sockets and devices are not copied")
                    .into());
            }
        }
        receiver.work.other_done();
        Ok(())
    }

    fn directory(&self, job: DownloadJob, feed: &dyn Fn(DownloadJob)) -> anyhow::Result<()> {
        let receiver = &self.receiver;
        if !self.recursive {
            let text = format!("{} is a directory", console::path(&job.from));
            let hint = "-r copies it with everything below";
            return Err(Failure::new(FAILED, text).hint(hint).into());
        }
        let failed = |error: std::io::Error| about_local(&error, "make directory", &job.to);
        // Mode 0700 while entries are written; the final mode is set last.
        match DirBuilder::new().mode(0o700).create(&job.to) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // A symbolic link on this machine must not redirect the copy.
                if !std::fs::symlink_metadata(&job.to).map_err(failed)?.is_dir() {
                    return Err(failed(error));
                }
            }
            made => made.map_err(failed)?,
        }
        let (native, user) = (&receiver.cell.native, &receiver.cell.user);
        let said = |error| receiver.work.cell_error(error, "list", &job.from);
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

    /// Makes hard links and sets attributes of directories, after all files were copied.
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
        // Deepest directories first.
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
