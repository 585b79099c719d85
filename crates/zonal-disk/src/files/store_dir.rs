//! Access to the files of a store: its folder and the files in it, with an optional recorder.
//!
//! Every change of an open store's files goes through here. Without a recorder a call is the
//! system's own, after one look at a field.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use zonal_types::limits::RECORDING_BYTES_MAX;

use crate::files::disk::LogFile;
use crate::files::error::DiskError;
use crate::files::identity::{StoreIdentity, sync_dir};
use crate::files::recorder::{Recorder, join};
use crate::files::recording::RecordedEvent;

/// Flag for an opening that does not follow a link.
pub(crate) const NO_LINK: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// The folder of a store. Paths of its files are below it, with `/` between names.
#[derive(Debug, Clone)]
pub struct StoreDir {
    path: PathBuf,
    recorder: Option<Arc<Recorder>>,
}

impl StoreDir {
    /// The folder `path`.
    #[must_use]
    pub fn plain(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            recorder: None,
        }
    }

    /// The folder `path`. From its opening on, every change of the store is recorded in a new file
    /// in the folder `recordings`.
    #[must_use]
    pub fn recorded(path: &Path, recordings: &Path) -> Self {
        Self::recorded_up_to(path, recordings, RECORDING_BYTES_MAX)
    }

    /// As [`Self::recorded`], with another bound of the recording in bytes.
    #[must_use]
    pub fn recorded_up_to(path: &Path, recordings: &Path, bytes_max: u64) -> Self {
        Self {
            path: path.to_path_buf(),
            recorder: Some(Arc::new(Recorder::new(recordings, bytes_max))),
        }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins the recording, where there is to be one; the store is locked and about to be opened.
    pub(crate) fn begin(&self, identity: &StoreIdentity) -> Result<(), DiskError> {
        match &self.recorder {
            Some(recorder) => recorder.begin(&self.path, identity),
            None => Ok(()),
        }
    }

    /// Opens an existing file.
    pub(crate) fn open(&self, path: &str) -> io::Result<StoreFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(NO_LINK);
        let file = options.open(self.path.join(path))?;
        Ok(self.over(file, path))
    }

    /// Opens a file; creates a missing one.
    pub(crate) fn open_or_create(&self, path: &str) -> io::Result<StoreFile> {
        match self.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(path),
            result => result,
        }
    }

    /// Creates a file, or truncates an existing one to zero bytes.
    pub(crate) fn create(&self, path: &str) -> io::Result<StoreFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        options.custom_flags(NO_LINK);
        let make = || options.open(self.path.join(path));
        let Some(recorder) = &self.recorder else {
            return make().map(|file| StoreFile { file, tape: None });
        };
        let (file, number) = recorder.around_create(path, make)?;
        let tape = number.map(|number| (Arc::clone(recorder), number));
        Ok(StoreFile { file, tape })
    }

    /// Creates a folder, unless it exists.
    pub(crate) fn make_folder(&self, path: &str) -> io::Result<()> {
        let folder = self.path.join(path);
        if folder.is_dir() {
            return Ok(());
        }
        self.around(&RecordedEvent::MakeFolder { path }, || {
            fs::create_dir_all(folder)
        })
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.around(&RecordedEvent::Rename { from, to }, || {
            fs::rename(self.path.join(from), self.path.join(to))
        })
    }

    pub(crate) fn remove(&self, path: &str) -> io::Result<()> {
        self.around(&RecordedEvent::Remove { path }, || {
            fs::remove_file(self.path.join(path))
        })
    }

    /// Makes the names in a folder durable; the empty path is the store's own.
    pub(crate) fn sync_names(&self, path: &str) -> io::Result<()> {
        self.around(&RecordedEvent::FlushNames { path }, || {
            sync_dir(&self.path.join(path))
        })
    }

    /// Replaces the file `name` by one of these bytes, durably and atomically, by way of
    /// `temporary`.
    pub(crate) fn replace(&self, name: &str, temporary: &str, bytes: &[u8]) -> io::Result<()> {
        let file = self.create(temporary)?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()?;
        self.rename(temporary, name)?;
        self.sync_names("")
    }

    fn around(
        &self,
        event: &RecordedEvent<'_>,
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        match &self.recorder {
            None => act(),
            Some(recorder) => recorder.around(event, act),
        }
    }

    fn over(&self, file: File, path: &str) -> StoreFile {
        let recorder = self.recorder.as_ref();
        let tape = recorder.and_then(|own| own.file(path).map(|number| (Arc::clone(own), number)));
        StoreFile { file, tape }
    }

    /// The path of a file in a folder of the store.
    pub(crate) fn below(folder: &str, name: &str) -> String {
        join(folder, name)
    }
}

/// An open file of a store.
#[derive(Debug)]
pub(crate) struct StoreFile {
    file: File,
    /// The recorder, and the file's number in the recording.
    tape: Option<(Arc<Recorder>, u32)>,
}

impl StoreFile {
    /// The file, for reading only.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.around(
            |file| RecordedEvent::Write { file, at, bytes },
            || self.file.write_all_at(bytes, at),
        )
    }

    pub(crate) fn set_len(&self, length: u64) -> io::Result<()> {
        self.around(
            |file| RecordedEvent::SetLen { file, length },
            || self.file.set_len(length),
        )
    }

    /// Allocates the space up to `end`; the file's length becomes at least `end`.
    pub(crate) fn allocate(&self, end: u64) -> io::Result<()> {
        self.around(
            |file| RecordedEvent::Allocate { file, end },
            || {
                Ok(rustix::fs::fallocate(
                    &self.file,
                    FallocateFlags::empty(),
                    0,
                    end,
                )?)
            },
        )
    }

    pub(crate) fn sync_data(&self) -> io::Result<()> {
        self.around(
            |file| RecordedEvent::Flush { file },
            || self.file.sync_data(),
        )
    }

    pub(crate) fn sync_all(&self) -> io::Result<()> {
        self.around(
            |file| RecordedEvent::Flush { file },
            || self.file.sync_all(),
        )
    }

    fn around<'a>(
        &self,
        event: impl FnOnce(u32) -> RecordedEvent<'a>,
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        match &self.tape {
            None => act(),
            Some((recorder, number)) => recorder.around(&event(*number), act),
        }
    }
}

impl LogFile for StoreFile {
    fn len(&self) -> io::Result<u64> {
        LogFile::len(&self.file)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn will_write(&self, offset: u64, length: u64) {
        self.file.will_write(offset, length);
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The index's file; no other process opens it, because the store's folder is locked.
impl redb::StorageBackend for StoreFile {
    fn len(&self) -> io::Result<u64> {
        LogFile::len(&self.file)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }
}
