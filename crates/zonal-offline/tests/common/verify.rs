//! The rule for checks and repairs: each read gives the bytes that were written, or an error.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

use super::{Made, OpenTarget, TestCell, contents, lookup, open_engine, read_map};
use std::sync::Arc;
use zonal_disk::Engine;
use zonal_meta::inode::Inode;
use zonal_meta::{MetaShard, ShardConfig, keys};
use zonal_object::ObjectId;
use zonal_types::{Column, DataId, ErrorCode, Instant, KvRead, ShardId, ZoneId};
use zonal_zonemap::ZoneMap;

impl TestCell {
    /// Opens all stores with the cores that serve them and reads all files: each read is right or
    /// an error. Returns how many files are whole under their names, and how many are not.
    pub fn verify(&self, context: &str) -> (usize, usize) {
        let shard_engine = open_engine(self.spec(1));
        let config = ShardConfig::new(ShardId(1), ZoneId(1), 2);
        let map = Arc::new(read_map(&open_engine(self.spec(0))));
        MetaShard::load(config, Arc::clone(&map), &shard_engine, Instant(0)).expect(context);
        let specs = self
            .cell
            .stores
            .iter()
            .filter(|spec| spec.geometry.is_some());
        let targets: Vec<OpenTarget> = specs
            .map(|spec| OpenTarget::open(spec).expect(context))
            .collect();
        let root_engine = open_engine(self.spec(0));
        self.verify_starts(&root_engine, context);
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

    /// Writes and reads objects, makes and removes names by the cores, as a workload would.
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
        self.work_names(context);
    }
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
            // A log's end is known only by the records that follow: a target can lose its last
            // block without a trace. The shard counts more then.
            Ok(bytes) if bytes.len() < wanted.len() && wanted.starts_with(&bytes) => whole = false,
            Ok(bytes) => {
                assert_eq!(bytes, wanted, "{context}: wrong bytes in {}", file.path);
            }
            Err(ErrorCode::Corrupt) => whole = false,
            Err(code) => panic!("{context}: {code}"),
        }
    }
    whole
}
