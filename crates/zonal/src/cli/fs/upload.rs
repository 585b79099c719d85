//! Copying of `put`: one thread walks the tree and makes directories and links, others copy files.
//!
//! A hard link is made after the first name of its file was copied. Modes and times of directories
//! are set last.

use super::connection::{CellConnection, about_local};
use super::copy_work::{CopyWork, STEP, temporary_path};
use super::listing::join;
use super::local;
use crate::console;
use crate::exit::{FAILED, Failure};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File as LocalFile, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zonal_native::{ErrorCode, FileKind, NewTime, OpenFile, OpenOptions};

/// A file to copy.
pub struct UploadJob {
    pub from: PathBuf,
    pub metadata: Metadata,
    pub to: PathBuf,
}

/// Source of a new file's content.
pub enum Content<'a> {
    Stdin,
    Of(&'a Path, &'a Metadata),
}

/// Device and inode number of a local file.
type Key = (u64, u64);

/// Work left until all files are copied.
#[derive(Default)]
struct Tree {
    /// Destination of the first name of each file with several names.
    first_names: BTreeMap<Key, PathBuf>,
    links: Vec<UploadJob>,
    directories: Vec<UploadJob>,
}

/// A running `put`: the walk of the tree.
pub struct Upload<'a> {
    pub sender: FileUpload<'a>,
    recursive: bool,
    tree: RefCell<Tree>,
}

/// State shared by the threads that copy files.
pub struct FileUpload<'a> {
    cell: &'a CellConnection,
    work: &'a CopyWork,
    /// Files with several names that have been copied.
    arrived: Mutex<BTreeSet<Key>>,
}

fn key(metadata: &Metadata) -> Key {
    (metadata.dev(), metadata.ino())
}

/// The next data or hole of a local file; `None` if only a hole follows.
fn seek(file: &LocalFile, to: SeekFrom) -> std::io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl FileUpload<'_> {
    /// Makes a file under a temporary name, then renames it to `to`. Removes it on failure.
    fn place(
        &self,
        to: &Path,
        make: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (native, user) = (&self.cell.native, &self.cell.user);
        let new = temporary_path(to, "put")?;
        let placed = make(&new).and_then(|()| {
            let renamed = native.rename(user, &new, to);
            renamed.map_err(|error| self.work.cell_error(error, "write", to))
        });
        if placed.is_err() {
            let _ = native.unlink(user, &new);
        }
        placed
    }

    /// Copies a file.
    pub fn file(&self, content: &Content, to: &Path) -> anyhow::Result<()> {
        self.place(to, |new| self.fill(content, new, to))?;
        if let Content::Of(_, metadata) = content
            && metadata.nlink() > 1
        {
            let arrived = self.arrived.lock();
            let mut arrived = arrived.unwrap_or_else(PoisonError::into_inner);
            arrived.insert(key(metadata));
        }
        Ok(())
    }

    fn fill(&self, content: &Content, new: &Path, to: &Path) -> anyhow::Result<()> {
        let said = |error| self.work.cell_error(error, "write", to);
        // No other user may read an incomplete file.
        let mode = match content {
            Content::Stdin => 0o666,
            Content::Of(..) => 0o600,
        };
        let options = OpenOptions::new().write(true).create_new(mode);
        let (native, user) = (&self.cell.native, &self.cell.user);
        let file = native.open(user, new, options).map_err(said)?;
        match content {
            Content::Stdin => self.copy_stdin(&file, to)?,
            Content::Of(from, _) => self.copy_bytes(from, &file, to)?,
        }
        file.fsync().map_err(said)?;
        file.close().map_err(said)?;
        match content {
            Content::Stdin => Ok(()),
            Content::Of(from, metadata) => self.set_attributes(from, metadata, new, to),
        }
    }

    fn copy_stdin(&self, file: &OpenFile, to: &Path) -> anyhow::Result<()> {
        let mut input = std::io::stdin().lock();
        let mut buffer = vec![0; STEP];
        loop {
            self.work.check()?;
            let bytes = match input.read(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.map_err(|error| about_local(&error, "read", Path::new("-")))?,
            };
            if bytes == 0 {
                return Ok(());
            }
            let written = file.write(buffer.get(..bytes).unwrap_or_default());
            written.map_err(|error| self.work.cell_error(error, "write", to))?;
            self.work.moved(bytes);
        }
    }

    /// Copies data and keeps holes. Bytes appended during the copy are left out.
    fn copy_bytes(&self, from: &Path, file: &OpenFile, to: &Path) -> anyhow::Result<()> {
        let failed = |error: std::io::Error| about_local(&error, "read", from);
        let said = |error| self.work.cell_error(error, "write", to);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let source = LocalFile::options()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(from)
            .map_err(failed)?;
        let metadata = source.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let text = format!("{} is no file any more", console::path(from));
            return Err(Failure::new(FAILED, text).into());
        }
        let size = metadata.len();
        let mut buffer = vec![0; STEP.min(usize::try_from(size).unwrap_or(STEP)).max(1)];
        let mut at = 0;
        'data: while at < size {
            let Some(data) = seek(&source, SeekFrom::Data(at)).map_err(failed)? else {
                break;
            };
            at = data;
            let hole = seek(&source, SeekFrom::Hole(at)).map_err(failed)?;
            let end = hole.unwrap_or(size).min(size);
            while at < end {
                self.work.check()?;
                let step = usize::try_from(end - at).unwrap_or(STEP).min(buffer.len());
                let part = buffer.get_mut(..step).unwrap_or_default();
                let bytes = source.read_at(part, at).map_err(failed)?;
                if bytes == 0 {
                    // The file was truncated during the copy.
                    break 'data;
                }
                let part = part.get(..bytes).unwrap_or_default();
                file.pwrite(at, part).map_err(said)?;
                self.work.moved(bytes);
                at += bytes as u64;
            }
        }
        if file.stat().map_err(said)?.size < size {
            file.truncate(size).map_err(said)?;
        }
        Ok(())
    }

    /// Sets owner, extended attributes, mode and times, in this order: a new owner drops
    /// capabilities, and a mode may drop the right to set attributes.
    fn set_attributes(
        &self,
        from: &Path,
        metadata: &Metadata,
        new: &Path,
        to: &Path,
    ) -> anyhow::Result<()> {
        let (native, user) = (&self.cell.native, &self.cell.user);
        let said = |error| self.work.cell_error(error, "set attributes of", to);
        if local::gives_owners() {
            let (uid, gid) = (Some(metadata.uid()), Some(metadata.gid()));
            native.lchown(user, new, uid, gid).map_err(said)?;
        }
        if !metadata.is_symlink() {
            let xattrs = local::xattrs(from);
            let xattrs = xattrs.map_err(|error| about_local(&error, "read attributes of", from))?;
            for (name, value) in &xattrs {
                match native.set_xattr(user, new, name, value) {
                    Err(error) if local::must_be_kept(name) => return Err(said(error)),
                    Ok(()) | Err(_) => {}
                }
            }
            let mode = local::kept_mode(metadata.mode() & 0o7777, metadata.uid());
            native.chmod(user, new, mode).map_err(said)?;
        }
        let [atime, mtime] = local::times(metadata).map(NewTime::At);
        native.utimens(user, new, atime, mtime).map_err(said)?;
        Ok(())
    }

    /// Links a further name to the copied file; copies the file if it cannot be linked.
    fn link(&self, first: &Path, job: &UploadJob) -> anyhow::Result<()> {
        let has_arrived = {
            let arrived = self.arrived.lock();
            let arrived = arrived.unwrap_or_else(PoisonError::into_inner);
            arrived.contains(&key(&job.metadata))
        };
        let (native, user) = (&self.cell.native, &self.cell.user);
        if has_arrived && first != job.to {
            let mut is_far = false;
            let linked = self.place(&job.to, |new| {
                let linked = native.link(user, first, new);
                is_far = linked.as_ref().err().and_then(|error| error.code())
                    == Some(ErrorCode::CrossShard);
                let linked = linked.map_err(|error| self.work.cell_error(error, "link", &job.to));
                linked.map(drop)
            });
            if !is_far {
                return linked;
            }
        }
        self.file(&Content::Of(&job.from, &job.metadata), &job.to)
    }
}

impl<'a> Upload<'a> {
    pub fn new(cell: &'a CellConnection, work: &'a CopyWork, recursive: bool) -> Self {
        Self {
            sender: FileUpload {
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
    pub fn walk(&self, from: &Path, to: &Path, feed: &dyn Fn(UploadJob)) {
        if self.sender.work.check().is_err() {
            return;
        }
        self.sender.work.note(self.one(from, to, feed));
    }

    fn one(&self, from: &Path, to: &Path, feed: &dyn Fn(UploadJob)) -> anyhow::Result<()> {
        let (sender, work) = (&self.sender, self.sender.work);
        let (native, user) = (&sender.cell.native, &sender.cell.user);
        let metadata = std::fs::symlink_metadata(from);
        let metadata = metadata.map_err(|error| about_local(&error, "read", from))?;
        let kind = metadata.file_type();
        let job = UploadJob {
            from: from.to_owned(),
            metadata,
            to: to.to_owned(),
        };
        if kind.is_dir() {
            return self.directory(job, feed);
        }
        if kind.is_file() {
            let mut tree = self.tree.borrow_mut();
            let known = tree.first_names.contains_key(&key(&job.metadata));
            if known {
                tree.links.push(job);
                return Ok(());
            }
            if job.metadata.nlink() > 1 {
                let first = (key(&job.metadata), job.to.clone());
                tree.first_names.extend([first]);
            }
            drop(tree);
            feed(job);
            return Ok(());
        }
        if kind.is_symlink() {
            let text = std::fs::read_link(from);
            let text = text.map_err(|error| about_local(&error, "read", from))?;
            sender.place(to, |new| {
                let made = native.symlink(user, &text, new);
                made.map_err(|error| sender.work.cell_error(error, "write", to))?;
                sender.set_attributes(from, &job.metadata, new, to)
            })?;
        } else if kind.is_fifo() {
            sender.place(to, |new| {
                let made = native.mkfifo(user, new, 0o600);
                made.map_err(|error| sender.work.cell_error(error, "write", to))?;
                sender.set_attributes(from, &job.metadata, new, to)
            })?;
        } else {
            let text = format!("{} is a socket or a device", console::path(from));
            return Err(Failure::new(FAILED, text)
                .hint("sockets and devices are not copied")
                .into());
        }
        work.other_done();
        Ok(())
    }

    fn directory(&self, job: UploadJob, feed: &dyn Fn(UploadJob)) -> anyhow::Result<()> {
        let (sender, from, to) = (&self.sender, &job.from, &job.to);
        if !self.recursive {
            let text = format!("{} is a directory", console::path(from));
            let hint = "-r copies it with everything below";
            return Err(Failure::new(FAILED, text).hint(hint).into());
        }
        let (native, user) = (&sender.cell.native, &sender.cell.user);
        let said = |error| sender.work.cell_error(error, "make directory", to);
        // Mode 0700 while entries are written; the final mode is set last.
        match native.mkdir(user, to, 0o700) {
            Err(error) if error.code() == Some(ErrorCode::Exists) => {
                if native.stat(user, to).map_err(said)?.kind != FileKind::Directory {
                    return Err(said(ErrorCode::NotDirectory.into()));
                }
            }
            made => drop(made.map_err(said)?),
        }
        let failed = |error: std::io::Error| about_local(&error, "list", from);
        for entry in std::fs::read_dir(from).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            self.walk(&from.join(&name), &join(to, &name), feed);
        }
        self.tree.borrow_mut().directories.push(job);
        Ok(())
    }

    /// Makes hard links and sets attributes of directories, after all files were copied.
    pub fn finish(self) {
        let (sender, tree) = (self.sender, self.tree.into_inner());
        for job in &tree.links {
            if sender.work.check().is_err() {
                return;
            }
            if let Some(first) = tree.first_names.get(&key(&job.metadata))
                && sender.work.note(sender.link(first, job)).is_some()
            {
                sender.work.file_done();
            }
        }
        // Deepest directories first.
        for job in &tree.directories {
            if sender.work.check().is_err() {
                return;
            }
            let set = sender.set_attributes(&job.from, &job.metadata, &job.to, &job.to);
            if sender.work.note(set).is_some() {
                sender.work.directory_done();
            }
        }
    }
}
