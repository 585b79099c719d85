//! A stopped cell on real stores, made of known files, and what a check of it must keep: what is read is what was
//! written, or an error.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    reason = "test support, shared by several test programs"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zonal_disk::engine::Room;
use zonal_disk::store::load_identity;
use zonal_disk::{Config, Engine, Identity, StoreKind};
use zonal_fsck::Finding;
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::inode::Inode;
use zonal_meta::{Now, Shard, ShardConfig, keys};
use zonal_object::{
    Committed, Cut, Edit, ObjectId, Planned, Record, Step, Target, TargetConfig, WriteRequest,
};
use zonal_offline::{Cell, Geometry, OfflineError, Options, Report, Stage, StoreSpec, Summary};
use zonal_testkit::{Rng, Scratch};
use zonal_types::{
    CellId, Codec, Column, DataId, ErrorCode, FileKind, Ino, Instant, KvChange, KvRead, Layout,
    Name, NodeId, PartitionId, ShardId, StripePolicy, TargetId, Timestamp, ZoneId,
};
use zonal_wire::JoinTarget;
use zonal_zonemap::{MapEdit, ZoneMap};

pub const MAP_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf0];
const CELL: [u8; 16] = [9; 16];
const SEGMENT: u64 = 1 << 20;
pub const GEOMETRY: TargetConfig = TargetConfig {
    segment_units: (SEGMENT / 4096) as u32,
    segments: 64,
    pending_blocks_max: 4096,
};
pub const CONFIG: Config = Config {
    log_bytes: 1 << 20,
    overlay_bytes: 1 << 20,
    cache_bytes: 1 << 20,
    room_wait: std::time::Duration::from_secs(1),
};

/// A file that was made.
#[derive(Debug, Clone)]
pub struct Made {
    pub path: String,
    pub ino: Ino,
    pub size: u64,
    pub layout: Layout,
}

/// Contents of byte `at` of a file.
fn contents(ino: Ino, size: u64) -> Vec<u8> {
    Rng(ino.0).bytes(size as usize)
}

/// What was told.
#[derive(Default)]
pub struct Heard {
    pub findings: Vec<(u32, Finding)>,
    pub repaired: u64,
}

impl Report for Heard {
    fn finding(&mut self, pass: u32, finding: &Finding) {
        self.findings.push((pass, finding.clone()));
    }
    fn progress(&mut self, _stage: Stage) {}
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
    pub cell: Cell,
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

/// A target at work.
pub struct OpenTarget {
    pub engine: Engine,
    pub target: Target,
    dir: PathBuf,
}

impl OpenTarget {
    pub fn open(spec: &StoreSpec) -> Result<Self, ErrorCode> {
        let mut notes = Vec::new();
        let engine = Engine::open(
            &spec.dir,
            &spec.identity,
            spec.config,
            &mut |record, _, _| {
                notes.push(record.note.clone());
                true
            },
        )?;
        let target = Target::open(GEOMETRY, &engine, notes.iter().map(Vec::as_slice))?;
        fs::create_dir_all(spec.dir.join("segments")).unwrap();
        Ok(Self {
            engine,
            target,
            dir: spec.dir.join("segments"),
        })
    }

    fn segment(&self, number: u32) -> File {
        let path = self.dir.join(format!("seg.{number:08}"));
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        file.set_len(SEGMENT).unwrap();
        file
    }

    fn append(&self, record: Record) {
        self.engine
            .append_with(record.changes, &record.note, Room::Reserve)
            .unwrap();
    }

    pub fn write(&mut self, object: ObjectId, offset: u64, bytes: &[u8]) -> Result<(), ErrorCode> {
        let request = WriteRequest {
            object,
            cut: Cut::default(),
            offset,
            length: bytes.len(),
        };
        let Planned::Ready(mut plan) = self.target.plan_write(&self.engine, request)? else {
            return Err(ErrorCode::Invalid);
        };
        let writes: Vec<_> = plan.writes().collect();
        for write in writes {
            let file = self.segment(write.segment);
            file.write_all_at(&bytes[write.payload], write.offset)
                .unwrap();
        }
        plan.checksum(bytes);
        for _ in 0..100 {
            if let Some(read) = plan.old_blocks() {
                let mut buffer = vec![0; read.buffer_len()];
                for part in read.reads() {
                    self.segment(part.segment)
                        .read_exact_at(&mut buffer[part.buffer], part.offset)
                        .unwrap();
                }
                plan.supply(&mut buffer).map_err(|damage| damage.code())?;
                continue;
            }
            match self.target.commit_write(&self.engine, &mut plan, bytes)? {
                Committed::Done { record, .. } => {
                    self.append(record);
                    return Ok(());
                }
                Committed::Again => {}
            }
        }
        Err(ErrorCode::Io)
    }

    pub fn truncate(&mut self, object: ObjectId, cut: Cut) {
        let mut edit = Edit::truncate(object, cut);
        loop {
            match self.target.edit_step(&self.engine, &mut edit).unwrap() {
                Step::Log { record, done } => {
                    self.append(record);
                    if done.is_some() {
                        return;
                    }
                }
                Step::Done(_) => return,
                Step::Read => panic!("nothing is to be read"),
            }
        }
    }

    pub fn read(&self, object: ObjectId, offset: u64, length: usize) -> Result<Vec<u8>, ErrorCode> {
        let cut = Cut::default();
        let plan = self
            .target
            .plan_read(&self.engine, object, cut, offset, length)?;
        let mut buffer = vec![0; plan.buffer_len()];
        for part in plan.reads() {
            let path = self.dir.join(format!("seg.{:08}", part.segment));
            let file = File::open(path).map_err(|_| ErrorCode::Corrupt)?;
            file.read_exact_at(&mut buffer[part.buffer], part.offset)
                .map_err(|_| ErrorCode::Corrupt)?;
        }
        let range = plan.finish(&mut buffer).map_err(|damage| damage.code())?;
        Ok(buffer[range].to_vec())
    }

    pub fn checkpoint(&mut self) {
        let changes = self.target.freeze();
        self.engine.apply_unlogged(changes);
        self.engine.checkpoint(&mut || Ok(())).unwrap();
        self.target.checkpoint_done();
    }
}

impl TestCell {
    /// A cell with one zone of three targets and files in a tree; a part of all stores is only in their logs.
    pub fn make(name: &str, files: u64) -> Self {
        let dir = Scratch::new(name);
        let mut stores = Vec::new();
        let mut spec = |kind, id, node, geometry: Option<Geometry>| {
            stores.push(StoreSpec {
                node: NodeId(node),
                dir: dir.join(format!("{kind}-{id}")),
                identity: Identity {
                    cell: CELL,
                    kind,
                    id,
                },
                config: CONFIG,
                geometry,
            });
        };
        spec(StoreKind::Manager, 1, 1, None);
        spec(StoreKind::Shard, 2, 2, None);
        for target in 1..=3 {
            let geometry = Geometry {
                target: TargetId(target),
                config: GEOMETRY,
                segment_bytes: SEGMENT,
            };
            spec(StoreKind::Target, target, 10 + target, Some(geometry));
        }
        let mut joins = vec![(1, Some(0), None), (2, Some(1), None)];
        for spec in &stores {
            Engine::format(&spec.dir, spec.identity, &CONFIG).unwrap();
            if let Some(geometry) = &spec.geometry {
                let uuid = load_identity(&spec.dir).unwrap().unwrap().uuid;
                let target = JoinTarget {
                    target: geometry.target,
                    uuid,
                    capacity: 64 << 20,
                };
                joins.push((spec.node.0, None, Some(target)));
            }
        }
        let mut map = ZoneMap::new(CellId(CELL));
        for (node, shard, target) in joins {
            let join = MapEdit::Join {
                node: NodeId(node),
                zone: ZoneId(1),
                zone_name: "one".into(),
                address: format!("127.0.0.1:{}", 7000 + node),
                shard: shard.map(ShardId),
                targets: target.into_iter().collect(),
            };
            map = map.edited(&[join]).unwrap().unwrap();
        }
        let mut made = Self {
            dir,
            cell: Cell { stores },
            map,
            files: Vec::new(),
        };
        made.fill(files);
        made
    }

    fn fill(&mut self, files: u64) {
        let partition = self.map.partitions_of(ShardId(1))[0];
        let ino = |sequence| Ino::new(partition, sequence);
        let wall = now().wall;
        // Directories: two first-level ones, each with directories of directories.
        let mut directories = vec![(ino(16), Ino::ROOT, "first".to_owned())];
        directories.push((ino(17), Ino::ROOT, "second".to_owned()));
        for number in 2..files.div_ceil(20).max(4) {
            let above = directories[(number / 3) as usize % directories.len()].0;
            directories.push((ino(16 + number), above, format!("dir{number}")));
        }
        let mut paths: BTreeMap<Ino, String> = BTreeMap::from([(Ino::ROOT, String::new())]);
        let mut inodes: BTreeMap<Ino, Inode> = BTreeMap::new();
        let mut changes = Vec::new();
        let mut root = Vec::new();
        for (number, above, name) in &directories {
            let path = format!("{}/{name}", paths[above]);
            paths.insert(*number, path.clone());
            let mut inode = Inode::new(*number, FileKind::Directory, *above, ZoneId(1), wall);
            inode.mode = 0o755;
            inodes.insert(*number, inode);
            if *above == Ino::ROOT {
                root.push((name.clone(), *number));
            } else {
                changes.push(entry(*above, name, *number, FileKind::Directory));
                let parent = inodes.get_mut(above).unwrap();
                parent.size += 1;
                parent.nlink += 1;
            }
        }
        let policy = StripePolicy {
            unit: 65_536,
            ..StripePolicy::default()
        };
        let set = self.map.zone(ZoneId(1)).unwrap().default_set.unwrap();
        let width = u16::try_from(self.map.set(set).unwrap().slots.len()).unwrap();
        let first = 16 + directories.len() as u64;
        let mut rng = Rng(77);
        for number in 0..files {
            let id = ino(first + number);
            let above = directories[rng.index(directories.len())].0;
            let name = format!("file{number}");
            let size = match rng.below(12) {
                0 => 0,
                1 => 300_000 + rng.below(50_000),
                2 => 65_536,
                _ => rng.below(9000),
            };
            let data = DataId(id.0);
            let layout = zonal_layout::new_layout(&policy, set, width, ZoneId(1), data).unwrap();
            let mut inode = Inode::new(id, FileKind::File, above, ZoneId(1), wall);
            inode.mode = 0o644;
            inode.size = size;
            inode.layout = layout.clone();
            inodes.insert(id, inode);
            changes.push(entry(above, &name, id, FileKind::File));
            if number % 10 == 0 {
                changes.push(entry(above, &format!("{name}.link"), id, FileKind::File));
                inodes.get_mut(&id).unwrap().nlink = 2;
                inodes.get_mut(&above).unwrap().size += 1;
            }
            if number % 7 == 0 {
                changes.push(KvChange::put(
                    keys::xattr(id, b"user.note"),
                    b"kept".to_vec(),
                ));
                inodes.get_mut(&id).unwrap().xattrs = zonal_types::limits::xattr_flags::USER;
            }
            inodes.get_mut(&above).unwrap().size += 1;
            let path = format!("{}/{name}", paths[&above]);
            self.files.push(Made {
                path,
                ino: id,
                size,
                layout,
            });
        }
        self.fill_targets(&mut inodes);
        // An orphan that a session holds, and a deletion to push.
        let orphan = ino(first + files);
        let mut inode = Inode::new(orphan, FileKind::File, ino(16), ZoneId(1), wall);
        inode.nlink = 0;
        inode.flags = zonal_meta::inode::FLAG_ORPHAN;
        inodes.insert(orphan, inode);
        let sessions = vec![zonal_types::SessionId(1)];
        changes.push(KvChange::put(keys::orphan(orphan), sessions.to_bytes()));
        let next = (first + files + 100, 0_u64).to_bytes();
        changes.push(KvChange::put(keys::ids(partition), next));
        for (number, inode) in &inodes {
            changes.push(KvChange::put(keys::inode(*number), inode.to_bytes()));
        }
        self.fill_shard(&changes);
        self.fill_root(&root);
    }

    fn fill_targets(&self, inodes: &mut BTreeMap<Ino, Inode>) {
        let set = self.map.zone(ZoneId(1)).unwrap().default_set.unwrap();
        let set = self.map.set(set).unwrap();
        let specs = self
            .cell
            .stores
            .iter()
            .filter(|spec| spec.geometry.is_some());
        let mut targets: Vec<OpenTarget> =
            specs.map(|spec| OpenTarget::open(spec).unwrap()).collect();
        let half = self.files.len() / 2;
        for (at, file) in self.files.iter().enumerate() {
            if at == half {
                targets.iter_mut().for_each(OpenTarget::checkpoint);
            }
            let bytes = contents(file.ino, file.size);
            let component = &file.layout.components[0];
            let width = u16::try_from(set.slots.len()).unwrap();
            for piece in
                zonal_layout::stripe::pieces(&file.layout, 0, file.size, |_| width).unwrap()
            {
                let slot = &set.slots[usize::from(piece.slot)];
                let target = &mut targets[slot.target.0 as usize - 1];
                let object = ObjectId {
                    data_id: component.data_id,
                    column: piece.column,
                };
                let from = piece.file_offset as usize;
                let part = &bytes[from..from + piece.length as usize];
                if target.engine.wants_checkpoint() {
                    target.checkpoint();
                }
                target.write(object, piece.object_offset, part).unwrap();
            }
            let mut allocated = 0;
            for column in 0..component.count {
                let object = ObjectId {
                    data_id: component.data_id,
                    column: Column(column),
                };
                for target in &targets {
                    allocated += target
                        .target
                        .stat(&target.engine, object)
                        .unwrap()
                        .allocated;
                }
            }
            inodes.get_mut(&file.ino).unwrap().allocated = allocated;
        }
        for target in &targets {
            target.engine.sync_all().unwrap();
        }
    }

    fn fill_shard(&self, changes: &[KvChange]) {
        let spec = &self.cell.stores[1];
        let engine = open_engine(spec);
        let config = ShardConfig::new(ShardId(1), ZoneId(1), 1);
        engine
            .append_with(Shard::format(&config, now().wall), &[], Room::Normal)
            .unwrap();
        let half = changes.len() * 2 / 3;
        for (at, group) in changes.chunks(50).enumerate() {
            if engine.wants_checkpoint() || at * 50 / half.max(1) == 1 && (at * 50) % half < 50 {
                engine.checkpoint(&mut || Ok(())).unwrap();
            }
            engine
                .append_with(group.to_vec(), &[], Room::Normal)
                .unwrap();
        }
        engine.sync_all().unwrap();
    }

    fn fill_root(&mut self, first_level: &[(String, Ino)]) {
        let engine = open_engine(&self.cell.stores[0]);
        let config = ShardConfig::new(ShardId(0), ZoneId(1), 1);
        engine
            .append_with(Shard::format(&config, now().wall), &[], Room::Normal)
            .unwrap();
        let put_map = |map: &ZoneMap| KvChange::put(MAP_KEY.to_vec(), map.to_bytes());
        engine
            .append_with(vec![put_map(&self.map)], &[], Room::Normal)
            .unwrap();
        // The second one's entry and junction are in the log alone.
        engine.checkpoint(&mut || Ok(())).unwrap();
        for (name, ino) in first_level {
            let shard = Shard::load(
                config.clone(),
                Arc::new(self.map.clone()),
                &engine,
                Instant(0),
            )
            .unwrap();
            let name = Name::new(name.as_bytes()).unwrap();
            let mut changes = shard.add_first_level(&engine, now(), &name, *ino).unwrap();
            let edit = MapEdit::AddJunction {
                ino: *ino,
                path: format!("/{name}"),
                zone: ZoneId(1),
            };
            self.map = self.map.edited(&[edit]).unwrap().unwrap();
            changes.push(put_map(&self.map));
            engine.append_with(changes, &[], Room::Normal).unwrap();
        }
        engine.sync_all().unwrap();
    }

    pub fn spec(&self, at: usize) -> &StoreSpec {
        &self.cell.stores[at]
    }

    pub fn options(&self, repair: bool) -> Options {
        Options {
            repair,
            data: true,
            scratch: self.dir.join("scratch"),
            wall: now().wall,
        }
    }

    pub fn try_fsck(&self, repair: bool) -> Result<(Summary, Heard), OfflineError> {
        let mut heard = Heard::default();
        let summary = zonal_offline::check(&self.cell, &self.options(repair), &mut heard)?;
        Ok((summary, heard))
    }

    pub fn fsck(&self, repair: bool) -> (Summary, Heard) {
        self.try_fsck(repair).unwrap()
    }

    /// Copies of all files of the stores, to damage again and again.
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

    /// Opens everything with the cores that serve it and reads all files: what can be read is right. Gives how many
    /// files are whole under their names, and how many are not.
    pub fn verify(&self, context: &str) -> (usize, usize) {
        let shard_engine = open_engine(self.spec(1));
        let config = ShardConfig::new(ShardId(1), ZoneId(1), 2);
        let map = Arc::new(read_map(&open_engine(self.spec(0))));
        Shard::load(config, Arc::clone(&map), &shard_engine, Instant(0)).expect(context);
        let specs = self
            .cell
            .stores
            .iter()
            .filter(|spec| spec.geometry.is_some());
        let targets: Vec<OpenTarget> = specs
            .map(|spec| OpenTarget::open(spec).expect(context))
            .collect();
        let root_engine = open_engine(self.spec(0));
        let (mut whole, mut other) = (0, 0);
        for file in &self.files {
            let found = lookup(&root_engine, &shard_engine, &file.path);
            let is_whole =
                found == Some(file.ino) && is_right(&map, &shard_engine, &targets, file, context);
            if is_whole {
                whole += 1;
            } else {
                other += 1;
            }
        }
        (whole, other)
    }

    /// Makes, writes, reads and removes files by the cores, as a workload would.
    pub fn work(&self, context: &str) {
        let specs = self
            .cell
            .stores
            .iter()
            .filter(|spec| spec.geometry.is_some());
        for spec in specs {
            let mut target = OpenTarget::open(spec).expect(context);
            for number in 0..20_u64 {
                let object = ObjectId {
                    data_id: DataId(u64::MAX / 2 + number),
                    column: Column(0),
                };
                let bytes = vec![number as u8; 5000 + 4096 * number as usize];
                if target.engine.wants_checkpoint() {
                    target.checkpoint();
                }
                target.write(object, 0, &bytes).expect(context);
                assert_eq!(target.read(object, 0, bytes.len()).expect(context), bytes);
            }
            target.checkpoint();
            assert_eq!(target.target.check(&target.engine), Ok(()), "{context}");
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
    ZoneMap::from_bytes(&engine.get(&MAP_KEY).unwrap().unwrap()).unwrap()
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

fn is_right(
    map: &ZoneMap,
    shard: &Engine,
    targets: &[OpenTarget],
    file: &Made,
    context: &str,
) -> bool {
    let Some(bytes) = shard.get(&keys::inode(file.ino)).unwrap() else {
        return false;
    };
    let inode = Inode::decode(file.ino, &bytes).unwrap();
    let expected = contents(file.ino, file.size);
    if inode.size != file.size {
        return false;
    }
    let Some(set) = map.set(inode.layout.components[0].set) else {
        return false;
    };
    let width = u16::try_from(set.slots.len()).unwrap();
    let mut whole = true;
    for piece in zonal_layout::stripe::pieces(&inode.layout, 0, file.size, |_| width).unwrap() {
        let slot = &set.slots[usize::from(piece.slot)];
        let target = &targets[slot.target.0 as usize - 1];
        let object = ObjectId {
            data_id: inode.layout.components[0].data_id,
            column: piece.column,
        };
        let from = piece.file_offset as usize;
        let wanted = &expected[from..from + piece.length as usize];
        match target.read(object, piece.object_offset, piece.length as usize) {
            Ok(bytes) => {
                assert_eq!(bytes, wanted, "{context}: wrong bytes in {}", file.path);
            }
            Err(ErrorCode::Corrupt) => whole = false,
            Err(code) => panic!("{context}: {code}"),
        }
    }
    whole
}

/// Partitions of the zone's shard.
pub fn partitions(cell: &TestCell) -> Vec<PartitionId> {
    cell.map.partitions_of(ShardId(1))
}
