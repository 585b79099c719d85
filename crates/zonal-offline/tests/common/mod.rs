//! A stopped cell on real stores, made of known files. A check of it must keep this rule: each read
//! gives the bytes that were written, or an error.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    unused_imports,
    reason = "test support, shared by several test programs"
)]

mod damage_cases;
mod interrupted_checks;
mod known_files;
mod running_cell;
mod shard_workload;
mod store_starts;
mod target;
mod verify;

pub use damage_cases::{Bench, damages, inode, lists};
pub use interrupted_checks::{Ended, interrupt, whole};
pub use running_cell::Open;
pub use target::OpenTarget;

use std::collections::BTreeMap;
use std::fs::{self};
use std::path::{Path, PathBuf};
use zonal_disk::{Engine, EngineConfig};
use zonal_fsck::Finding;
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::{Now, keys};
use zonal_object::TargetConfig;
use zonal_offline::{
    CellStores, CheckOptions, CheckProgress, CheckReporter, CheckSummary, OfflineError, StoreSpec,
};
use zonal_testkit::{Rng, Scratch};
use zonal_types::{
    Codec, FileKind, Ino, Instant, KvChange, KvRead, Layout, Name, PartitionId, ShardId, Timestamp,
};
use zonal_zonemap::ZoneMap;

const CELL: [u8; 16] = [9; 16];
const SEGMENT: u64 = 1 << 20;
pub const GEOMETRY: TargetConfig = TargetConfig {
    segment_units: (SEGMENT / 4096) as u32,
    segments: 64,
    pending_blocks_max: 4096,
};
pub const CONFIG: EngineConfig = EngineConfig {
    log_bytes: 1 << 20,
    overlay_bytes: 1 << 20,
    cache_bytes: 1 << 20,
    room_wait: std::time::Duration::from_secs(1),
};

/// A file of the cell.
#[derive(Debug, Clone)]
pub struct Made {
    pub path: String,
    pub ino: Ino,
    pub size: u64,
    pub layout: Layout,
}

/// Contents of a file.
fn contents(ino: Ino, size: u64) -> Vec<u8> {
    Rng(ino.0).bytes(size as usize)
}

/// Reports of a check.
#[derive(Default)]
pub struct Heard {
    pub findings: Vec<(u32, Finding)>,
    pub repaired: u64,
}

impl CheckReporter for Heard {
    fn finding(&mut self, pass: u32, finding: &Finding) {
        self.findings.push((pass, finding.clone()));
    }
    fn progress(&mut self, _stage: CheckProgress) {}
    fn repaired(&mut self, _pass: u32, changes: u64) {
        self.repaired += changes;
    }
}

impl Heard {
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self
            .findings
            .iter()
            .map(|found| found.1.what.name())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// A cell in a folder of its own.
pub struct TestCell {
    pub dir: Scratch,
    pub cell: CellStores,
    pub map: ZoneMap,
    pub files: Vec<Made>,
}

fn now() -> Now {
    Now {
        instant: Instant(0),
        wall: Timestamp {
            seconds: 1_700_000_000,
            nanos: 0,
        },
    }
}

impl TestCell {
    pub fn spec(&self, at: usize) -> &StoreSpec {
        &self.cell.stores[at]
    }

    pub fn options(&self, repair: bool) -> CheckOptions {
        CheckOptions {
            repair,
            data: true,
            scratch: self.dir.join("scratch"),
            wall: now().wall,
            fresh: false,
            keep_every: zonal_offline::KEEP_EVERY,
        }
    }

    pub fn try_fsck(&self, repair: bool) -> Result<(CheckSummary, Heard), OfflineError> {
        let mut heard = Heard::default();
        let summary = zonal_offline::check(&self.cell, &self.options(repair), &mut heard)?;
        Ok((summary, heard))
    }

    pub fn fsck(&self, repair: bool) -> (CheckSummary, Heard) {
        self.try_fsck(repair).unwrap()
    }

    /// Copies all files of the stores, for tests that damage them again and again.
    pub fn save(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(&self.dir, &mut files);
        files
    }

    pub fn restore(&self, files: &BTreeMap<PathBuf, Vec<u8>>) {
        let mut now = BTreeMap::new();
        collect(&self.dir, &mut now);
        for (path, bytes) in &now {
            match files.get(path) {
                None => fs::remove_file(path).unwrap(),
                Some(wanted) if wanted == bytes => {}
                Some(wanted) => fs::write(path, wanted).unwrap(),
            }
        }
        for (path, bytes) in files.iter().filter(|(path, _)| !now.contains_key(*path)) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
}

fn collect(dir: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
}

pub fn entry(dir: Ino, name: &str, ino: Ino, kind: FileKind) -> KvChange {
    let dentry = Dentry {
        ino,
        kind,
        chained: false,
        name: Name::new(name.as_bytes()).unwrap(),
    };
    let cookie = name_cookie(name.as_bytes(), 55);
    KvChange::put(keys::dentry(dir, cookie), dentry.to_bytes())
}

pub fn open_engine(spec: &StoreSpec) -> Engine {
    Engine::open(&spec.dir, &spec.identity, spec.config, &mut |_, _, _| true)
        .unwrap_or_else(|error| panic!("{}: {error}", spec.dir.display()))
}

pub fn read_map(engine: &Engine) -> ZoneMap {
    ZoneMap::load(engine).unwrap().unwrap()
}

pub fn get_entry(engine: &Engine, dir: Ino, name: &str) -> Option<Dentry> {
    let cookie = name_cookie(name.as_bytes(), 55);
    let bytes = engine.get(&keys::dentry(dir, cookie)).unwrap()?;
    Some(Dentry::decode(&bytes).unwrap()).filter(|dentry| !dentry.is_mark())
}

pub fn lookup(root: &Engine, shard: &Engine, path: &str) -> Option<Ino> {
    let mut at = Ino::ROOT;
    for part in path.split('/').skip(1) {
        let engine = if at == Ino::ROOT { root } else { shard };
        at = get_entry(engine, at, part)?.ino;
    }
    Some(at)
}

/// Partitions of the zone's shard.
pub fn partitions(cell: &TestCell) -> Vec<PartitionId> {
    cell.map.partitions_of(ShardId(1))
}

/// Silences the panics of the database library on damaged bytes. They are caught; their text would
/// drown the report.
pub fn be_quiet_about_the_library() {
    #[expect(clippy::print_stderr, reason = "what a test says")]
    std::panic::set_hook(Box::new(|info| {
        if !zonal_disk::is_guarded() {
            eprintln!("{info}");
        }
    }));
}
