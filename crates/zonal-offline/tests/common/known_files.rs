//! Makes a cell of known files.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

use super::{
    CELL, CONFIG, GEOMETRY, Made, OpenTarget, SEGMENT, TestCell, contents, entry, now, open_engine,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use zonal_disk::LogRoom;
use zonal_disk::store::load_identity;
use zonal_disk::{Engine, StoreIdentity, StoreKind};
use zonal_meta::inode::Inode;
use zonal_meta::{MetaShard, ShardConfig, keys};
use zonal_object::ObjectId;
use zonal_offline::{CellStores, Geometry, StoreSpec};
use zonal_testkit::{Rng, Scratch};
use zonal_types::{
    CellId, Codec, Column, DataId, FileKind, Ino, Instant, KvChange, Name, NodeId, ShardId,
    StripePolicy, TargetId, ZoneId,
};
use zonal_wire::JoinTarget;
use zonal_zonemap::{JunctionChange, MapEdit, ZoneMap, junctions};

/// First data id: no inode of these cells has one as high.
const DATA_FIRST: u64 = 1 << 20;

impl TestCell {
    /// Makes a cell with one zone of three targets and files in a tree. Some records of each store
    /// are only in its log.
    pub fn make(name: &str, files: u64) -> Self {
        let dir = Scratch::new(name);
        let mut stores = Vec::new();
        let mut spec = |kind, id, node, geometry: Option<Geometry>| {
            stores.push(StoreSpec {
                node: NodeId(node),
                dir: dir.join(format!("{kind}-{id}")),
                identity: StoreIdentity {
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
        let open = MapEdit::OpenSets { zone: ZoneId(1) };
        map = map.edited(&[open]).unwrap().unwrap();
        let mut made = Self {
            dir,
            cell: CellStores { stores },
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
        // Two first-level directories, each with directories of directories.
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
        let set = self.map.default_sets(ZoneId(1)).next().unwrap().id;
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
            let data = DataId::new(partition, DATA_FIRST + number);
            let layout =
                zonal_layout::new_layout(&policy, set, (width, 1), ZoneId(1), data).unwrap();
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
        // An orphan that a session holds open, and a deletion that is not pushed yet.
        let orphan = ino(first + files);
        let mut inode = Inode::new(orphan, FileKind::File, ino(16), ZoneId(1), wall);
        inode.nlink = 0;
        inode.flags = zonal_meta::inode::FLAG_ORPHAN;
        inodes.insert(orphan, inode);
        let sessions = vec![zonal_types::SessionId(1)];
        changes.push(KvChange::put(keys::orphan(orphan), sessions.to_bytes()));
        let next = (first + files + 100, 0_u64).to_bytes();
        changes.push(KvChange::put(keys::ids(partition), next));
        let next = (DATA_FIRST + files).to_bytes();
        changes.push(KvChange::put(keys::data_ids(partition), next));
        for (number, inode) in &inodes {
            changes.push(KvChange::put(keys::inode(*number), inode.to_bytes()));
            for id in inode.layout.data_ids() {
                changes.push(KvChange::put(keys::data(id), number.to_bytes()));
            }
        }
        self.fill_shard(&changes);
        self.fill_root(&root);
    }

    fn fill_targets(&self, inodes: &mut BTreeMap<Ino, Inode>) {
        let set = self.map.default_sets(ZoneId(1)).next().unwrap().id;
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
            .append_with(MetaShard::format(&config, now().wall), &[], LogRoom::Normal)
            .unwrap();
        let half = changes.len() * 2 / 3;
        for (at, group) in changes.chunks(50).enumerate() {
            if engine.wants_checkpoint() || at * 50 / half.max(1) == 1 && (at * 50) % half < 50 {
                engine.checkpoint(&mut || Ok(())).unwrap();
            }
            engine
                .append_with(group.to_vec(), &[], LogRoom::Normal)
                .unwrap();
        }
        engine.sync_all().unwrap();
    }

    fn fill_root(&mut self, first_level: &[(String, Ino)]) {
        let engine = open_engine(&self.cell.stores[0]);
        let config = ShardConfig::new(ShardId(0), ZoneId(1), 1);
        engine
            .append_with(MetaShard::format(&config, now().wall), &[], LogRoom::Normal)
            .unwrap();
        engine
            .append_with(self.map.to_store(), &[], LogRoom::Normal)
            .unwrap();
        engine
            .append_with(self.fill_starts(), &[], LogRoom::Normal)
            .unwrap();
        // The second directory's entry and junction are in the log alone.
        engine.checkpoint(&mut || Ok(())).unwrap();
        for (name, ino) in first_level {
            let shard = MetaShard::load(
                config.clone(),
                Arc::new(self.map.clone()),
                &engine,
                Instant(0),
            )
            .unwrap();
            let name = Name::new(name.as_bytes()).unwrap();
            let mut changes = shard.add_first_level(&engine, now(), &name, *ino).unwrap();
            let junction = JunctionChange::Add {
                ino: *ino,
                path: format!("/{name}"),
                zone: ZoneId(1),
            };
            changes.extend(junctions::plan(&engine, vec![junction], &|_ino| None).unwrap());
            engine.append_with(changes, &[], LogRoom::Normal).unwrap();
        }
        engine.sync_all().unwrap();
    }
}
