//! A store's directory: `identity`, `lock`, `log` and `index.redb`. Formats and opens it for use.
//!
//! A stopped store is inspected by [`read_only`] and repaired by [`repair`].

pub mod read_only;
pub mod repair;
pub mod replay;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use crate::engine::{Engine, EngineConfig};
use crate::files::error::DiskError;
use crate::files::identity::{self, StoreIdentity, Stored};
use crate::files::power_loss::{self, BootId, UnflushedWrites};
use crate::files::start_marks;
use crate::files::trusted_paths;
use crate::files::{COPIES, INDEX, LOCK, LOG, NO_LINK, SUMS, StoreDir, VOTE};
use crate::index::index_copy::IndexCopy;
use crate::index::overlay::Overlay;
use crate::index::{Index, IndexProgress};
use crate::log;
use crate::store::replay::{Replay, open_parts_after};

/// Files that an unfinished format may leave behind.
const OURS: [&str; 12] = [
    LOCK,
    LOG,
    INDEX,
    SUMS,
    COPIES[0],
    COPIES[1],
    power_loss::FILE_NAME,
    power_loss::TEMP_NAME,
    start_marks::FILE_NAME,
    start_marks::TEMP_NAME,
    VOTE[0],
    VOTE[1],
];
const ZEROES: usize = 1 << 20;

impl Engine {
    /// Formats an empty store in `dir`, which is created if necessary.
    ///
    /// # Errors
    /// `AlreadyFormatted`, `NotOurs` where the directory holds other files, `Config`, `NoSpace`,
    /// `Io`.
    pub fn format(
        dir: &Path,
        identity: StoreIdentity,
        config: &EngineConfig,
    ) -> Result<Stored, DiskError> {
        if !log::valid_capacity(config.log_bytes) {
            let what = format!(
                "a log of {} bytes: take a multiple of 4096 from {} to {}",
                config.log_bytes,
                log::MIN_BYTES,
                log::MAX_BYTES
            );
            return Err(DiskError::Config(what));
        }
        trusted_paths::make(dir)?;
        if dir.join(identity::FILE_NAME).exists() {
            return Err(DiskError::AlreadyFormatted(dir.into()));
        }
        if !identity::may_format(dir, &OURS)? {
            return Err(DiskError::NotOurs(dir.into()));
        }
        let _lock = lock_dir(dir)?;
        // Checked again, now that no other process can be formatting.
        if dir.join(identity::FILE_NAME).exists() {
            return Err(DiskError::AlreadyFormatted(dir.into()));
        }
        let mut uuid = [0; 16];
        getrandom::fill(&mut uuid)
            .map_err(|error| DiskError::io("random bytes", io::Error::other(error)))?;
        let stored = Stored {
            identity,
            uuid,
            log_bytes: config.log_bytes,
        };
        write_log(&dir.join(LOG), config.log_bytes)
            .map_err(|error| DiskError::io("write the empty log", error))?;
        let index = Index::create_file(&dir.join(INDEX), config.cache_bytes)?;
        begin_copy(&StoreDir::plain(dir), stored.tag(), &index)?;
        drop(index);
        // Last: a directory with an identity is complete.
        identity::save(dir, &stored)?;
        Ok(stored)
    }

    /// Opens the store in `dir`, if it is `expected`; `replay` gets the records that the index does
    /// not hold. The log has the length with which it was formatted.
    ///
    /// # Errors
    /// `NotFormatted`, `NotOurs`, `Locked`, the differences of [`Stored::check`], `Corrupt`, `Io`.
    pub fn open(
        dir: &Path,
        expected: &StoreIdentity,
        config: EngineConfig,
        replay: &mut Replay<'_>,
    ) -> Result<Self, DiskError> {
        Self::open_in(&StoreDir::plain(dir), expected, config, replay)
    }

    /// As [`Self::open`]; records the changes of the store, where `store` has a recorder.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in(
        store: &StoreDir,
        expected: &StoreIdentity,
        config: EngineConfig,
        replay: &mut Replay<'_>,
    ) -> Result<Self, DiskError> {
        Self::open_at(store, expected, config, power_loss::kernel_boot(), replay)
    }

    /// As [`Self::open`], under a given start of the kernel.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_at_boot(
        dir: &Path,
        expected: &StoreIdentity,
        config: EngineConfig,
        boot: Option<BootId>,
        replay: &mut Replay<'_>,
    ) -> Result<Self, DiskError> {
        Self::open_at(&StoreDir::plain(dir), expected, config, boot, replay)
    }

    fn open_at(
        store: &StoreDir,
        expected: &StoreIdentity,
        config: EngineConfig,
        boot: Option<BootId>,
        replay: &mut Replay<'_>,
    ) -> Result<Self, DiskError> {
        let dir = store.path();
        check_trust(dir)?;
        let Some(stored) = load_identity(dir)? else {
            return Err(DiskError::NotFormatted(dir.into()));
        };
        stored.check(expected)?;
        let directory_lock = lock_dir(dir)?;
        store.begin(expected)?;
        let power = power_loss::look(dir, boot)?;
        if power.past == UnflushedWrites::Doubted {
            power_loss::drop_cached(dir)?;
        }
        let log = store.open(LOG).map_err(|error| missing("log", error))?;
        let length = log
            .file()
            .metadata()
            .map_err(|error| DiskError::io("log", error))?
            .len();
        if length != stored.log_bytes {
            let what = format!("log: {length} bytes long, not {}", stored.log_bytes);
            return Err(DiskError::Corrupt(what));
        }
        if let Err(error) = fs::metadata(dir.join(INDEX)) {
            return Err(missing("index", error));
        }
        repair::finish(store).map_err(|error| DiskError::io("checksums of the index", error))?;
        let index = Index::open_in(store, INDEX, config.cache_bytes)?;
        let progress = index.progress()?;
        if !progress.may_be_of(stored.tag()) {
            return Err(DiskError::Corrupt("index: it is of another store".into()));
        }
        let copy = IndexCopy::open(store, stored.tag(), &progress);
        let kept = power.past == UnflushedWrites::Kept;
        let log = Box::new(log);
        let mut engine = open_parts_after(kept, log, index, stored.tag(), config, replay)?;
        // Everything has been verified: from here on a kill of the process loses nothing.
        power_loss::save(store, &power.note)?;
        engine.checkpoint_turn = Mutex::new(Some(copy));
        engine.past = power.past;
        engine.verifier = power.note.verifier;
        let noted = store.clone();
        engine.group.on_doubt(Box::new(move || {
            power_loss::save_doubt(&noted, &power.note)
        }));
        let watched = directory_lock.try_clone();
        let watched = watched.map_err(|error| DiskError::io("lock file", error))?;
        engine.free_space = Some(Box::new(move || {
            let space = rustix::fs::fstatvfs(&watched)?;
            Ok(space.f_bavail.saturating_mul(space.f_frsize))
        }));
        engine._directory_lock = Some(directory_lock);
        Ok(engine)
    }
}

/// Fails where other users could have created or could change files in `dir`. Also fails where a
/// name in it is a link, because a write would go to its target. A missing directory passes.
pub(crate) fn check_trust(dir: &Path) -> Result<(), DiskError> {
    match trusted_paths::open(dir) {
        Err(error) if error.is_missing() => Ok(()),
        found => Ok(found?.refuse_links()?),
    }
}

/// Begins the copy of an empty index: with it, all later entries can be restored.
fn begin_copy(store: &StoreDir, tag: u64, index: &Index) -> Result<(), DiskError> {
    let progress = IndexProgress {
        store: tag,
        ..IndexProgress::default()
    };
    let copy = IndexCopy::open(store, tag, &progress);
    let written = copy.write(&index.snapshot()?, &Overlay::default(), &progress)?;
    let copy = written.sequence();
    index.commit(std::iter::empty(), &IndexProgress { copy, ..progress })
}

/// The identity of the store in `dir`; `None` where it may be formatted.
///
/// # Errors
/// `NotOurs` where the directory holds other files; as [`identity::load`].
pub fn load_identity(dir: &Path) -> Result<Option<Stored>, DiskError> {
    let stored = identity::load(dir)?;
    if stored.is_none() && dir.exists() && !identity::may_format(dir, &OURS)? {
        return Err(DiskError::NotOurs(dir.into()));
    }
    Ok(stored)
}

/// How often, and at which interval, a lock held by another process is tried again: two seconds in
/// all.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

fn lock_dir(dir: &Path) -> Result<File, DiskError> {
    let open = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .custom_flags(NO_LINK)
        .open(dir.join(LOCK));
    let file = open.map_err(|error| DiskError::io("lock file", error))?;
    take_lock(file, dir)
}

/// Whether another process currently has the store of `dir` open.
#[must_use]
pub fn is_in_use(dir: &Path) -> bool {
    let lock = OpenOptions::new().write(true).open(dir.join(LOCK));
    lock.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Takes the lock on the open lock file of `dir`.
pub(crate) fn take_lock(file: File, dir: &Path) -> Result<File, DiskError> {
    // A killed process holds its locks until the kernel has torn all of it down, which is after
    // kill(2) returns.
    let mut tries = LOCK_TRIES;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if tries > 0 => {
                tries -= 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => return Err(DiskError::Locked(dir.into())),
            Err(TryLockError::Error(error)) => return Err(DiskError::io("lock file", error)),
        }
    }
}

/// Writes the log's zeroes physically, so that later flushes include no allocation.
pub(crate) fn write_log(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let zeroes = vec![0; ZEROES];
    let mut left = bytes;
    while left > 0 {
        let step = left.min(ZEROES as u64);
        file.write_all(&zeroes[..usize::try_from(step).unwrap_or(ZEROES)])?;
        left -= step;
    }
    file.sync_all()
}

/// A missing file of an identified store is damage, not a failure of the medium.
fn missing(what: &str, error: io::Error) -> DiskError {
    if error.kind() == io::ErrorKind::NotFound {
        return DiskError::Corrupt(format!("{what}: the file is missing"));
    }
    DiskError::io(what, error)
}
