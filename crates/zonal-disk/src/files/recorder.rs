//! Recorder: writes down every change of a store's files, for tests of power loss. Off unless
//! requested.
//!
//! It records each operation when it is issued, before it is done, and again when it has ended,
//! before the caller learns of it. So the recording has the flush of everything that the store
//! reported as durable. A recording ends with a mark where the next event would exceed its bound,
//! and without one where its own disk fails. The store goes on in both cases.
//!
//! Lock order: the recording's lock is the last, and is held for one write.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use crate::files::error::DiskError;
use crate::files::group_commit::lock;
use crate::files::identity::{StoreIdentity, StoreKind, sync_dir};
use crate::files::recording::{END_FRAME, Ending, RecordedEvent, frame, header};

/// The initial contents of a store are read in pieces of this size.
const PIECE: usize = 64 << 10;
/// Blocks of this size are left out where they are all zeros.
const BLOCK: usize = 4096;
/// Most recordings of one store in one folder.
const NUMBERS: u32 = 10_000;

/// Writes the recording of one store.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    bytes_max: u64,
    tape: OnceLock<Mutex<Tape>>,
}

/// A recording in progress.
#[derive(Debug)]
struct Tape {
    /// `None` once the recording has ended.
    out: Option<File>,
    bytes: u64,
    bytes_max: u64,
    /// Number of the next event.
    next: u64,
    next_file: u32,
    /// Numbers of the files, by their current names.
    files: BTreeMap<String, u32>,
}

impl Recorder {
    /// A recorder that writes into the folder `folder` once a store is opened with it.
    pub(crate) fn new(folder: &Path, bytes_max: u64) -> Self {
        Self {
            folder: folder.to_path_buf(),
            bytes_max,
            tape: OnceLock::new(),
        }
    }

    /// Begins the recording of the store in `dir` with its current contents, which it makes
    /// durable. A recording that has begun goes on.
    ///
    /// # Errors
    /// `Io`, `NoSpace`; `Config` where the store alone is larger than a recording may be.
    pub(crate) fn begin(&self, dir: &Path, identity: &StoreIdentity) -> Result<(), DiskError> {
        if self.tape.get().is_some() {
            return Ok(());
        }
        let failed = |error| DiskError::io(format!("record into {}", self.folder.display()), error);
        fs::create_dir_all(&self.folder).map_err(failed)?;
        let mut out = make(&self.folder, identity).map_err(failed)?;
        let head = header(identity);
        out.write_all(&head).map_err(failed)?;
        let mut tape = Tape {
            out: Some(out),
            bytes: head.len() as u64,
            bytes_max: self.bytes_max,
            next: 0,
            next_file: 0,
            files: BTreeMap::new(),
        };
        tape.copy(dir, "").map_err(failed)?;
        tape.note(&RecordedEvent::Begun);
        if tape.out.is_none() {
            let what = format!(
                "the store holds more than a recording of {}",
                self.bytes_max
            );
            return Err(DiskError::Config(what));
        }
        // Only one caller begins it: the store's folder is locked.
        let _ = self.tape.set(Mutex::new(tape));
        Ok(())
    }

    /// Runs `act`; records `event` before it and its end after it.
    pub(crate) fn around<T>(
        &self,
        event: &RecordedEvent<'_>,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let number = self.note(event);
        let result = act();
        if let Some(tape) = self.tape.get() {
            let mut tape = lock(tape);
            let is_well = result.is_ok();
            if is_well {
                tape.name(event);
            }
            if let Some(event) = number {
                tape.note(&RecordedEvent::Ended { event, is_well });
            }
        }
        result
    }

    /// As [`Self::around`] for an `act` that creates a file. Also returns the file's number, where
    /// a recording has begun.
    pub(crate) fn around_create<T>(
        &self,
        path: &str,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(T, Option<u32>)> {
        let Some(tape) = self.tape.get() else {
            return act().map(|made| (made, None));
        };
        let file = lock(tape).number();
        let made = self.around(&RecordedEvent::Create { file, path }, act)?;
        Ok((made, Some(file)))
    }

    /// The number of the file that has this name.
    pub(crate) fn file(&self, path: &str) -> Option<u32> {
        lock(self.tape.get()?).files.get(path).copied()
    }

    /// Records an event; returns its number, unless the recording has ended.
    fn note(&self, event: &RecordedEvent<'_>) -> Option<u64> {
        lock(self.tape.get()?).note(event)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(tape) = self.tape.get() {
            lock(tape).end(Ending::Closed);
        }
    }
}

impl Tape {
    /// A number for a new file.
    fn number(&mut self) -> u32 {
        let file = self.next_file;
        self.next_file += 1;
        file
    }

    /// Tracks the names of files.
    fn name(&mut self, event: &RecordedEvent<'_>) {
        match *event {
            RecordedEvent::Create { file, path } => drop(self.files.insert(path.to_owned(), file)),
            RecordedEvent::Rename { from, to } => {
                if let Some(file) = self.files.remove(from) {
                    self.files.insert(to.to_owned(), file);
                }
            }
            RecordedEvent::Remove { path } => drop(self.files.remove(path)),
            _ => {}
        }
    }

    fn note(&mut self, event: &RecordedEvent<'_>) -> Option<u64> {
        let (head, payload) = frame(event);
        let length = (head.len() + payload.len()) as u64;
        if self.bytes + length + END_FRAME > self.bytes_max {
            self.end(Ending::Full);
        }
        self.put(&head, payload)?;
        let number = self.next;
        self.next += 1;
        Some(number)
    }

    /// Appends a frame, whole or not at all; `None` where the recording has ended.
    fn put(&mut self, head: &[u8], payload: &[u8]) -> Option<()> {
        let out = self.out.as_mut()?;
        let written = out.write_all(head).and_then(|()| out.write_all(payload));
        if written.is_err() {
            // The recording's disk fails, so it ends. A partial frame must not count as a damaged
            // one.
            let _ = out.set_len(self.bytes);
            self.out = None;
            return None;
        }
        self.bytes += (head.len() + payload.len()) as u64;
        Some(())
    }

    fn end(&mut self, why: Ending) {
        let (head, payload) = frame(&RecordedEvent::End(why));
        self.put(&head, payload);
        self.out = None;
    }

    /// Records the files in a folder of the store, and makes them durable.
    fn copy(&mut self, dir: &Path, below: &str) -> io::Result<()> {
        let mut entries: Vec<(String, fs::FileType)> = Vec::new();
        for entry in fs::read_dir(dir.join(below))? {
            let entry = entry?;
            // A store's names are all text; others are skipped.
            if let Ok(name) = entry.file_name().into_string() {
                entries.push((name, entry.file_type()?));
            }
        }
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        for (name, kind) in entries {
            let path = join(below, &name);
            if kind.is_dir() && below.is_empty() && name != "lost+found" {
                self.note(&RecordedEvent::MakeFolder { path: &path });
                self.copy(dir, &path)?;
            } else if kind.is_file() {
                self.copy_file(dir, &path)?;
            }
            if self.out.is_none() {
                return Ok(());
            }
        }
        sync_dir(&dir.join(below))
    }

    fn copy_file(&mut self, dir: &Path, path: &str) -> io::Result<()> {
        let from = File::open(dir.join(path))?;
        from.sync_all()?;
        let length = from.metadata()?.len();
        let file = self.number();
        let made = RecordedEvent::Create { file, path };
        self.note(&made);
        self.name(&made);
        self.note(&RecordedEvent::SetLen { file, length });
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < length && self.out.is_some() {
            let step = usize::try_from(length - at).map_or(PIECE, |left| left.min(PIECE));
            let piece = &mut piece[..step];
            from.read_exact_at(piece, at)?;
            // Runs of blocks that are not zeros.
            let is_empty = |block: &[u8]| block.iter().all(|byte| *byte == 0);
            let blocks = piece.chunks(BLOCK).map(is_empty).collect::<Vec<bool>>();
            let mut begin = 0;
            for run in blocks.chunk_by(|one, other| one == other) {
                let end = (begin + run.len() * BLOCK).min(step);
                if run.first() == Some(&false) {
                    let at = at + begin as u64;
                    let bytes = &piece[begin..end];
                    self.note(&RecordedEvent::Write { file, at, bytes });
                }
                begin = end;
            }
            at += step as u64;
        }
        Ok(())
    }
}

/// A path of a store's file.
pub(crate) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

/// Creates a file for the recording of a store: `shard-2.0`, `shard-2.1`, and so on. Only its owner
/// may read it, because it holds all writes of the store.
fn make(folder: &Path, identity: &StoreIdentity) -> io::Result<File> {
    let kind = match identity.kind {
        StoreKind::Shard => "shard",
        StoreKind::Target => "target",
        StoreKind::Manager => "manager",
    };
    for number in 0..NUMBERS {
        let path = folder.join(format!("{kind}-{}.{number}", identity.id));
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result,
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
