//! A disk in memory whose writes are pending until synced, and small helpers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    reason = "test support, shared by several test programs"
)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use zonal_disk::index::Index;
use zonal_disk::index_checksums::SumsStore;
use zonal_disk::replay::{open_parts, open_parts_after};
use zonal_disk::{DiskError, Engine, EngineConfig, LogFile, Lsn, Record, StoreIdentity, StoreKind};
use zonal_testkit::Rng;
use zonal_testkit::power_cut::{self, FileChange, Image, SparseBytes};
use zonal_types::{KvChange, KvRead};

pub const SECTOR: usize = 512;
pub const LOG_BYTES: u64 = 1 << 20;
pub const TAG: u64 = 0x7a6f_6e61;

/// Contents as readers see them, and the image that would survive a power loss.
#[derive(Default)]
struct Live {
    live: Vec<u8>,
    image: Image,
}

impl Live {
    fn change(&mut self, change: FileChange) {
        match &change {
            FileChange::Write { at, bytes } => {
                let at = usize::try_from(*at).unwrap();
                let end = at + bytes.len();
                self.live.resize(self.live.len().max(end), 0);
                self.live[at..end].copy_from_slice(bytes);
            }
            FileChange::Resize(len) | FileChange::AtLeast(len) => {
                self.live.resize(usize::try_from(*len).unwrap(), 0);
            }
        }
        self.image.change(change);
    }
}

/// One file in memory: live contents, and the image that would survive a power loss.
#[derive(Default)]
pub struct MemFile {
    image: Mutex<Live>,
    pub fail_sync: AtomicBool,
    pub syncs: AtomicU64,
    pub writes: AtomicU64,
    /// Each sync waits for this lock: a test that holds it makes syncs slow.
    pub gate: Mutex<()>,
    /// Called before and after each sync.
    pub observer: Mutex<Option<Observer>>,
}

pub type Observer = Box<dyn FnMut() + Send>;

impl std::fmt::Debug for MemFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemFile")
    }
}

impl MemFile {
    pub fn holding(bytes: Vec<u8>) -> Arc<Self> {
        let file = Self::default();
        {
            let mut image = file.image.lock().unwrap();
            image.image = Image::holding(SparseBytes::of(&bytes));
            image.live = bytes;
        }
        Arc::new(file)
    }

    pub fn live(&self) -> Vec<u8> {
        self.image.lock().unwrap().live.clone()
    }

    /// A state that a power loss may leave: of each pending sector any one of the writes to it, or
    /// none.
    pub fn survivor(&self, rng: &mut Rng) -> Vec<u8> {
        let image = self.image.lock().unwrap();
        image.image.survivor(SECTOR as u64, rng).to_vec()
    }

    fn do_read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let image = self.image.lock().unwrap();
        let at = usize::try_from(offset).unwrap();
        let found = image.live.get(at..at + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn do_write(&self, offset: u64, bytes: &[u8]) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.image.lock().unwrap().change(FileChange::Write {
            at: offset,
            bytes: bytes.to_vec(),
        });
    }

    fn do_sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        // As a medium may behave: a write during the sync is not part of it.
        let covered = self.image.lock().unwrap().image.flush();
        drop(self.gate.lock().unwrap());
        self.observe();
        if self.fail_sync.load(Ordering::Relaxed) {
            return Err(io::Error::other("planted"));
        }
        self.image.lock().unwrap().image.flushed(&covered);
        self.observe();
        Ok(())
    }

    fn observe(&self) {
        if let Some(observer) = self.observer.lock().unwrap().as_mut() {
            observer();
        }
    }
}

/// The log's side of a memory file.
pub struct MemLog(pub Arc<MemFile>);

impl LogFile for MemLog {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.image.lock().unwrap().live.len() as u64)
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.do_read(offset, buffer)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.do_write(offset, bytes);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.0.do_sync()
    }
}

/// The index's side of a memory file.
#[derive(Debug)]
pub struct MemIndex(pub Arc<MemFile>);

impl redb::StorageBackend for MemIndex {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.image.lock().unwrap().live.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.do_read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.image.lock().unwrap().change(FileChange::Resize(len));
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.do_sync()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.do_write(offset, data);
        Ok(())
    }
}

/// The side of the index's checksums.
pub struct MemSums(pub Arc<MemFile>);

impl SumsStore for MemSums {
    fn load(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.0.live();
        bytes.truncate(bytes_max);
        Ok(bytes)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.do_write(offset, bytes);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.0.do_sync()
    }
}

/// A whole store in memory.
#[derive(Clone)]
pub struct MemDisk {
    pub log: Arc<MemFile>,
    pub index: Arc<MemFile>,
    pub sums: Arc<MemFile>,
    /// Whether an opening assumes that the kernel kept all writes.
    pub kept: bool,
}

impl MemDisk {
    pub fn new() -> Self {
        Self {
            log: MemFile::holding(vec![0; usize::try_from(LOG_BYTES).unwrap()]),
            index: MemFile::holding(Vec::new()),
            sums: MemFile::holding(Vec::new()),
            kept: false,
        }
    }

    /// The disk after a power loss.
    pub fn after_power_loss(&self, rng: &mut Rng) -> Self {
        Self {
            log: MemFile::holding(self.log.survivor(rng)),
            index: MemFile::holding(self.index.survivor(rng)),
            sums: MemFile::holding(self.sums.survivor(rng)),
            kept: false,
        }
    }

    /// At most `limit` of the states that a power loss may leave.
    pub fn states(&self, unit: u64, limit: usize, rng: &mut Rng) -> Vec<Self> {
        let files = [&self.log, &self.index, &self.sums];
        let locked = files.map(|file| file.image.lock().unwrap());
        let images: Vec<&Image> = locked.iter().map(|locked| &locked.image).collect();
        let states = power_cut::states(&images, unit, limit, rng);
        let state = |files: &Vec<SparseBytes>| Self {
            log: MemFile::holding(files[0].to_vec()),
            index: MemFile::holding(files[1].to_vec()),
            sums: MemFile::holding(files[2].to_vec()),
            kept: false,
        };
        states.iter().map(state).collect()
    }

    /// The disk after a kill of the process.
    pub fn after_kill(&self) -> Self {
        Self {
            log: MemFile::holding(self.log.live()),
            index: MemFile::holding(self.index.live()),
            sums: MemFile::holding(self.sums.live()),
            kept: false,
        }
    }

    pub fn open(&self) -> Result<Engine, DiskError> {
        self.open_with(EngineConfig::default(), &mut |_, _, _| true)
    }

    pub fn open_with(
        &self,
        config: EngineConfig,
        replay: &mut dyn FnMut(&Record, Lsn, bool) -> bool,
    ) -> Result<Engine, DiskError> {
        let sums = Box::new(MemSums(Arc::clone(&self.sums)));
        let index = Index::open_summed(MemIndex(Arc::clone(&self.index)), sums, 1 << 20)?;
        let log = Box::new(MemLog(Arc::clone(&self.log)));
        open_parts_after(self.kept, log, index, TAG, config, replay)
    }

    pub fn open_with_log(&self, log: Box<dyn LogFile>) -> Result<Engine, DiskError> {
        let index = Index::open_backend(MemIndex(Arc::clone(&self.index)), 1 << 20)?;
        open_parts(log, index, TAG, EngineConfig::default(), &mut |_, _, _| {
            true
        })
    }
}

pub fn small() -> EngineConfig {
    EngineConfig {
        log_bytes: LOG_BYTES,
        ..EngineConfig::default()
    }
}

pub fn identity() -> StoreIdentity {
    StoreIdentity {
        cell: [7; 16],
        kind: StoreKind::Shard,
        id: 3,
    }
}

pub fn put_record(key: &str, value: &str) -> Record {
    Record {
        changes: vec![KvChange::put(key.into(), value.into())],
        note: Vec::new(),
    }
}

pub fn text(engine: &Engine, key: &str) -> Option<String> {
    let value = engine.get(key.as_bytes()).unwrap();
    value.map(|value| String::from_utf8(value).unwrap())
}

pub fn dump(engine: &Engine) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut out = Vec::new();
    engine
        .scan(&[], &[0xff; 8], &mut |key, value| {
            out.push((key.to_vec(), value.to_vec()));
            true
        })
        .unwrap();
    out
}
