//! Measures the speed of a check: makes the stores of a cell with a number of files, and times
//! `check` on them.
//!
//! `cargo run --release -p zonal-offline --example fsck_rate -- DIR [FILES]`. Files have one block
//! of 4 KiB each, fifty in a directory; segments are holes, since blocks are not read. DIR must not
//! exist; it stays afterwards.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement ends where something is not as it should be"
)]

use std::path::{Path, PathBuf};
use zonal_disk::store::load_identity;
use zonal_disk::{Engine, EngineConfig, StoreIdentity, StoreKind};
use zonal_fsck::Finding;
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::inode::Inode;
use zonal_meta::{MetaShard, ShardConfig, keys};
use zonal_object::chunk::{BlockState, Chunk};
use zonal_object::ids::Place;
use zonal_object::{ObjectId, Survey, SurveyItem, TargetConfig, TargetDefect, key, repair};
use zonal_offline::{
    CellStores, CheckOptions, CheckProgress, CheckReporter, Geometry, KEEP_EVERY, StoreSpec, check,
};
use zonal_types::{
    CellId, Codec, Column, DataId, FileKind, Ino, KvChange, KvRead, Name, NodeId, ShardId,
    StripePolicy, TargetId, Timestamp, ZoneId,
};
use zonal_wire::JoinTarget;
use zonal_zonemap::{Junction, MapEdit, ZoneMap};

const TARGETS: u32 = 3;
const PER_DIRECTORY: u64 = 50;
/// First data id of the files.
const DATA_FIRST: u64 = 1 << 20;
const UNITS: u32 = 16_384;
const BATCH: usize = 100_000;
const GEOMETRY: TargetConfig = TargetConfig {
    segment_units: UNITS,
    segments: 1024,
    pending_blocks_max: 4096,
};

struct Quiet;

impl CheckReporter for Quiet {
    fn finding(&mut self, _pass: u32, finding: &Finding) {
        println!("{finding}");
    }
    fn progress(&mut self, stage: CheckProgress) {
        println!(
            "  {} records, {} a second, {:?} s left",
            stage.records, stage.rate, stage.left
        );
    }
    fn repaired(&mut self, _pass: u32, _changes: u64) {}
}

/// A store that is filled in batches.
struct Filling {
    engine: Engine,
    batch: Vec<KvChange>,
}

impl Filling {
    fn open(spec: &StoreSpec) -> Self {
        Engine::format(&spec.dir, spec.identity, &spec.config).unwrap();
        let replay = &mut |_: &zonal_disk::Record, _, _| true;
        let engine = Engine::open(&spec.dir, &spec.identity, spec.config, replay).unwrap();
        Self {
            engine,
            batch: Vec::new(),
        }
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.batch.push(KvChange::put(key, value));
        if self.batch.len() >= BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.engine.apply_unlogged(std::mem::take(&mut self.batch));
        self.engine.checkpoint(&mut || Ok(())).unwrap();
    }
}

fn specs(dir: &Path) -> Vec<StoreSpec> {
    let spec = |kind, id, node, geometry| StoreSpec {
        node: NodeId(node),
        dir: dir.join(format!("{kind}-{id}")),
        identity: StoreIdentity {
            cell: [7; 16],
            kind,
            id,
        },
        config: EngineConfig::default(),
        geometry,
    };
    let mut stores = vec![
        spec(StoreKind::Manager, 1, 1, None),
        spec(StoreKind::Shard, 2, 2, None),
    ];
    for target in 1..=TARGETS {
        let geometry = Geometry {
            target: TargetId(target),
            config: GEOMETRY,
            segment_bytes: u64::from(UNITS) * 4096,
        };
        stores.push(spec(StoreKind::Target, target, 10 + target, Some(geometry)));
    }
    stores
}

fn join(map: &ZoneMap, node: u32, shard: Option<u32>, target: Option<JoinTarget>) -> ZoneMap {
    let edit = MapEdit::Join {
        node: NodeId(node),
        zone: ZoneId(1),
        zone_name: "one".into(),
        address: format!("127.0.0.1:{}", 7000 + node),
        shard: shard.map(ShardId),
        targets: target.into_iter().collect(),
    };
    map.edited(&[edit]).unwrap().unwrap()
}

fn entry(dir: Ino, name: &str, ino: Ino, kind: FileKind) -> (Vec<u8>, Vec<u8>) {
    let dentry = Dentry {
        ino,
        kind,
        chained: false,
        name: Name::new(name.as_bytes()).unwrap(),
    };
    (
        keys::dentry(dir, name_cookie(name.as_bytes(), 55)),
        dentry.to_bytes(),
    )
}

/// The first chunk of an object whose one block lies in `unit` of its target.
fn chunk_at(data_id: DataId, unit: u32) -> (Vec<u8>, Vec<u8>) {
    let object = ObjectId {
        data_id,
        column: Column(0),
    };
    let mut chunk = Chunk::default();
    let place = Place {
        segment: unit / UNITS,
        unit: unit % UNITS,
    };
    chunk.set(0, BlockState::Written(place, 1));
    let key = key::chunk(object, 0);
    let value = chunk.encode(&key);
    (key, value)
}

/// Makes the segments of a target that uses so many units.
fn make_segments(dir: &Path, used: u32) {
    let segments = dir.join("segments");
    std::fs::create_dir_all(&segments).unwrap();
    for number in 0..used.div_ceil(UNITS) {
        let file = std::fs::File::create(segments.join(format!("seg.{number:08}"))).unwrap();
        file.set_len(u64::from(UNITS) * 4096).unwrap();
    }
}

fn make(dir: &Path, files: u64) -> CellStores {
    let stores = specs(dir);
    let mut fillings: Vec<Filling> = stores.iter().map(Filling::open).collect();
    let mut map = join(&ZoneMap::new(CellId([7; 16])), 1, Some(0), None);
    map = join(&map, 2, Some(1), None);
    for spec in stores.iter().filter(|spec| spec.geometry.is_some()) {
        let target = JoinTarget {
            target: spec.geometry.unwrap().target,
            uuid: load_identity(&spec.dir).unwrap().unwrap().uuid,
            capacity: 64 << 30,
        };
        map = join(&map, spec.node.0, None, Some(target));
    }
    let wall = Timestamp::default();
    let set = map.default_sets(ZoneId(1)).next().unwrap().id;
    let partition = map.partitions_of(ShardId(1))[0];
    let ino = |sequence| Ino::new(partition, sequence);
    let top = ino(16);
    let directories = files.div_ceil(PER_DIRECTORY);
    let directory = |number, parent, entries, below| {
        let mut inode = Inode::new(ino(number), FileKind::Directory, parent, ZoneId(1), wall);
        (inode.size, inode.nlink) = (entries, 2 + below);
        inode
    };
    let below = u32::try_from(directories).unwrap();
    let mut used = [0_u32; TARGETS as usize];
    {
        let shard = &mut fillings[1];
        for change in MetaShard::format(&ShardConfig::new(ShardId(1), ZoneId(1), 1), wall) {
            shard.put(change.key, change.value.unwrap());
        }
        let inode = directory(16, Ino::ROOT, directories, below);
        shard.put(keys::inode(top), inode.to_bytes());
        shard.put(keys::ids(partition), (files * 2 + 1000, 0_u64).to_bytes());
        shard.put(keys::data_ids(partition), (DATA_FIRST + files).to_bytes());
    }
    for number in 0..files {
        let above = 17 + number / PER_DIRECTORY;
        if number.is_multiple_of(PER_DIRECTORY) {
            let entries = (files - number).min(PER_DIRECTORY);
            let inode = directory(above, top, entries, 0);
            fillings[1].put(keys::inode(inode.ino), inode.to_bytes());
            let (key, value) = entry(top, &format!("d{above}"), inode.ino, FileKind::Directory);
            fillings[1].put(key, value);
        }
        let id = ino(17 + directories + number);
        let mut inode = Inode::new(id, FileKind::File, ino(above), ZoneId(1), wall);
        let data_id = DataId::new(partition, DATA_FIRST + number);
        let policy = StripePolicy::default();
        let width = u16::try_from(TARGETS).unwrap();
        inode.layout =
            zonal_layout::new_layout(&policy, set, (width, 1), ZoneId(1), data_id).unwrap();
        (inode.size, inode.allocated) = (4096, 4096);
        let column = inode.layout.components[0].start_column.0;
        let target = usize::from(column);
        fillings[1].put(keys::inode(id), inode.to_bytes());
        fillings[1].put(keys::data(data_id), id.to_bytes());
        let (key, value) = entry(ino(above), &format!("file-{number}"), id, FileKind::File);
        fillings[1].put(key, value);
        let (key, value) = chunk_at(data_id, used[target]);
        used[target] += 1;
        fillings[2 + target].put(key, value);
    }
    fillings.iter_mut().for_each(Filling::flush);
    for (spec, used) in stores[2..].iter().zip(used) {
        make_segments(&spec.dir, used);
    }
    headers_and_maps(&mut fillings, &map, top, wall);
    CellStores { stores }
}

/// Writes the headers of the objects, the allocation of the targets, and the root with its one
/// entry.
fn headers_and_maps(fillings: &mut [Filling], map: &ZoneMap, top: Ino, wall: Timestamp) {
    for filling in &mut fillings[2..] {
        for last in [false, true] {
            let mut survey = Survey::new(GEOMETRY, Vec::new());
            let mut changes = Vec::new();
            {
                let engine = &filling.engine;
                let mut hear = |told| {
                    if let SurveyItem::Broken(broken @ TargetDefect::NoHeader(_)) = told {
                        let expect = |_| Some((0, 4096));
                        changes
                            .extend(repair::repair(&GEOMETRY, engine, &broken, &expect).unwrap());
                    }
                };
                engine
                    .scan(&[], &[0x80], &mut |key, value| {
                        survey.take(key, value, &mut hear);
                        true
                    })
                    .unwrap();
                survey.finish(&mut hear);
            }
            if last {
                changes = repair::allocation(&GEOMETRY, &survey);
            }
            for change in changes {
                filling.put(change.key, change.value.unwrap());
            }
            filling.flush();
        }
    }
    let path = "/top".to_owned();
    let zone = ZoneId(1);
    let junction = Junction {
        ino: top,
        path,
        zone,
    };
    let empty = std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let junctions = zonal_zonemap::junctions::anew(&empty, &[junction]).unwrap();
    let root = &mut fillings[0];
    let mut inode = Inode::new(Ino::ROOT, FileKind::Directory, Ino::ROOT, ZoneId(1), wall);
    (inode.size, inode.nlink) = (1, 3);
    let format = MetaShard::format(&ShardConfig::new(ShardId(0), ZoneId(1), 1), wall);
    root.put(format[0].key.clone(), format[0].value.clone().unwrap());
    root.put(keys::inode(Ino::ROOT), inode.to_bytes());
    let (key, value) = entry(Ino::ROOT, "top", top, FileKind::Directory);
    root.put(key, value);
    for change in map.to_store().into_iter().chain(junctions) {
        root.put(change.key, change.value.unwrap());
    }
    root.flush();
}

/// The largest resident memory of this process so far, in MiB.
fn peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().unwrap());
    let files: u64 = arguments
        .next()
        .map_or(1_000_000, |text| text.parse().unwrap());
    if !dir.exists() {
        make(&dir, files);
        println!("made; run again to measure without what making left in memory");
        return;
    }
    let cell = CellStores {
        stores: specs(&dir),
    };
    let options = CheckOptions {
        repair: false,
        data: false,
        scratch: dir.join("scratch"),
        wall: Timestamp::default(),
        fresh: true,
        keep_every: KEEP_EVERY,
    };
    let start = std::time::Instant::now();
    let summary = check(&cell, &options, &mut Quiet).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} inodes, {} objects, {} records, {} findings in {seconds:.1} s: {:.0} files a second, {} MiB at most",
        summary.inodes,
        summary.objects,
        summary.records,
        summary.found,
        files as f64 / seconds,
        peak()
    );
}
