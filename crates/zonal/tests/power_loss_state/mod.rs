//! A store of a shard or a target after a power loss. It is opened as its server opens it after a
//! reboot, and compared with the writes of its clients.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

use std::path::Path;
use std::sync::Arc;
use zonal_disk::{
    Engine, EngineConfig, Segments, SegmentsConfig, StoreDir, StoreIdentity, StoreKind,
};
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::inode::Inode;
use zonal_meta::{MetaShard, ShardConfig, keys};
use zonal_object::{ObjectId, StorageTarget, TargetConfig, Truncation, replay_checks};
use zonal_types::limits::INLINE_BYTES_DEFAULT;
use zonal_types::{CellId, Column, DataId, Ino, Instant, KvRead, ZoneId};
use zonal_zonemap::ZoneMap;

/// Number of first bytes of a file that its shard stores.
const HEAD: usize = INLINE_BYTES_DEFAULT as usize;
/// Unit of a file whose bytes come from one write.
const BLOCK: usize = 4096;
pub const SEGMENT: u64 = 1 << 20;
pub const CAPACITY: u64 = 64 << 20;

/// A position in the recordings of a node's two stores: their lengths.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub shard: u64,
    pub target: u64,
}

/// A file after one of its writes.
pub struct Version {
    pub contents: Vec<u8>,
    /// Position at which the write began.
    pub begun: Place,
    /// Position at which a flush of the write had returned.
    pub durable: Option<Place>,
}

/// A file and its writer's operations on it.
pub struct Noted {
    pub name: String,
    /// The versions of the file; the first one is empty.
    pub versions: Vec<Version>,
}

impl Noted {
    /// The versions allowed at a position of one recording. `None` as the oldest: the file may be
    /// missing.
    fn range(&self, place: u64, of: fn(&Place) -> u64) -> (Option<usize>, &[Version]) {
        let is_durable =
            |version: &Version| version.durable.as_ref().is_some_and(|at| of(at) <= place);
        let least = self.versions.iter().rposition(is_durable);
        let begun = self
            .versions
            .iter()
            .rposition(|version| of(&version.begun) < place);
        let end = begun
            .map_or(0, |at| at + 1)
            .max(least.map_or(0, |at| at + 1));
        (least, &self.versions[least.unwrap_or(0).min(end)..end])
    }
}

/// Facts about the cell for the checks.
pub struct Known {
    pub cell: CellId,
    pub map: Arc<ZoneMap>,
    pub home: Ino,
}

fn open(
    dir: &Path,
    identity: StoreIdentity,
    replay: &mut zonal_disk::replay::Replay<'_>,
) -> Result<Engine, String> {
    let engine = Engine::open_at_boot(
        dir,
        &identity,
        EngineConfig::default(),
        Some([9; 16]),
        replay,
    );
    engine.map_err(|error| error.to_string())
}

impl Known {
    fn identity(&self, kind: StoreKind, id: u32) -> StoreIdentity {
        StoreIdentity {
            cell: self.cell.0,
            kind,
            id,
        }
    }

    fn shard(&self, dir: &Path) -> Result<Engine, String> {
        open(dir, self.identity(StoreKind::Shard, 2), &mut |_, _, _| true)
    }

    fn inode(&self, engine: &Engine, name: &str) -> Result<Option<Inode>, String> {
        let cookie = name_cookie(name.as_bytes(), ShardConfig::HASH_BITS);
        let entry = engine.get(&keys::dentry(self.home, cookie));
        let Some(entry) = entry.map_err(|code| code.to_string())? else {
            return Ok(None);
        };
        let entry = Dentry::decode(&entry).map_err(|code| code.to_string())?;
        let inode = engine.get(&keys::inode(entry.ino));
        let inode = inode.map_err(|code| code.to_string())?;
        let inode = inode.ok_or("an entry without an inode")?;
        let inode = Inode::decode(entry.ino, &inode);
        inode.map(Some).map_err(|code| code.to_string())
    }

    /// The objects of files, from their shard's store.
    pub fn objects(&self, dir: &Path, files: &[Noted]) -> Vec<DataId> {
        let engine = self.shard(dir).unwrap();
        let object = |noted: &Noted| {
            let inode = self.inode(&engine, &noted.name).unwrap().unwrap();
            inode.layout.components[0].data_id
        };
        files.iter().map(object).collect()
    }

    /// Checks a shard; returns the first violation.
    pub fn check_shard(&self, dir: &Path, place: u64, files: &[Noted]) -> Result<(), String> {
        let engine = self.shard(dir)?;
        for noted in files {
            let (least, versions) = noted.range(place, |at| at.shard);
            let Some(inode) = self.inode(&engine, &noted.name)? else {
                match least {
                    Some(version) => {
                        return Err(format!(
                            "{} is gone, version {version} was durable",
                            noted.name
                        ));
                    }
                    None => continue,
                }
            };
            let head = engine.get(&keys::inline(inode.ino));
            let mut head = head.map_err(|code| code.to_string())?.unwrap_or_default();
            // Bytes that were not written are a hole.
            head.resize(head.len().max(HEAD.min(inode.size as usize)), 0);
            let fits = |version: &Version| {
                let bytes = &version.contents;
                bytes.len() as u64 == inode.size && head == bytes[..bytes.len().min(HEAD)]
            };
            if !versions.iter().any(fits) {
                return Err(format!(
                    "{} of {} bytes is none of its {} versions from {least:?} on",
                    noted.name,
                    inode.size,
                    versions.len()
                ));
            }
        }
        if engine.get(&keys::format()) == Ok(None) {
            // The state is older than the shard's first record.
            return Ok(());
        }
        let shard = self
            .map
            .shards_of_zone(ZoneId(1))
            .next()
            .ok_or("no shard")?
            .id;
        let config = ShardConfig::new(shard, ZoneId(1), 1);
        let shard = MetaShard::load(config, Arc::clone(&self.map), &engine, Instant::default());
        let shard = shard.map_err(|code| code.to_string())?;
        let mut told = Vec::new();
        let broken = shard.check_store(&engine, &mut told);
        if broken.is_empty() && told.is_empty() {
            Ok(())
        } else {
            Err(format!("{broken:?} {told:?}"))
        }
    }

    /// Checks a target; returns the first violation. Like its server, it drops records whose data
    /// did not arrive.
    pub fn check_target(
        &self,
        dir: &Path,
        place: u64,
        files: &[Noted],
        objects: &[DataId],
    ) -> Result<(), String> {
        let geometry = TargetConfig {
            segment_units: (SEGMENT / BLOCK as u64) as u32,
            segments: (CAPACITY / SEGMENT) as u32,
            pending_blocks_max: 64,
        };
        let bounds = SegmentsConfig {
            segment_bytes: SEGMENT,
            capacity: CAPACITY,
            headroom: 0,
        };
        let segments = Segments::open_in(&StoreDir::plain(dir), bounds);
        let segments = segments.map_err(|error| error.to_string())?;
        let mut notes = Vec::new();
        let mut is_dropping = false;
        let identity = self.identity(StoreKind::Target, 1);
        let engine = open(dir, identity, &mut |record, _, is_certain| {
            is_dropping |= !is_certain && !has_arrived(&geometry, record, &segments);
            if !is_dropping {
                notes.push(record.note.clone());
            }
            !is_dropping
        })?;
        let target = StorageTarget::open(geometry, &engine, notes.iter().map(Vec::as_slice));
        let target = target.map_err(|code| code.to_string())?;
        target
            .check(&engine)
            .map_err(|broken| format!("{broken:?}"))?;
        for (noted, data_id) in files.iter().zip(objects) {
            let object = ObjectId {
                data_id: *data_id,
                column: Column(0),
            };
            let found = read(&target, &engine, &segments, object)?;
            compare(noted, &found, place)?;
        }
        Ok(())
    }
}

fn has_arrived(geometry: &TargetConfig, record: &zonal_disk::Record, segments: &Segments) -> bool {
    let record = zonal_object::EffectRecord {
        changes: record.changes.clone(),
        note: record.note.clone(),
    };
    let checks = replay_checks(geometry, &record).unwrap();
    let mut block = vec![0; BLOCK];
    checks.iter().all(|check| {
        let place = check.place;
        let read = segments.read_at(place.segment, place.offset(), &mut block);
        read.is_ok() && zonal_wire::frame::crc32c(&block) == check.crc
    })
}

/// All bytes of an object.
fn read(
    target: &StorageTarget,
    engine: &Engine,
    segments: &Segments,
    object: ObjectId,
) -> Result<Vec<u8>, String> {
    let plan = target.plan_read(engine, object, Truncation::default(), 0, 4 << 20);
    let plan = plan.map_err(|code| code.to_string())?;
    let mut buffer = vec![0; plan.buffer_len()];
    for part in plan.reads() {
        let read = segments.read_at(part.segment, part.offset, &mut buffer[part.buffer]);
        read.map_err(|error| error.to_string())?;
    }
    let range = plan
        .finish(&mut buffer)
        .map_err(|damage| format!("{damage:?}"))?;
    Ok(buffer[range].to_vec())
}

/// Checks that each block is of an allowed version, or absent if none had to be durable. A write is
/// not atomic here.
fn compare(noted: &Noted, found: &[u8], place: u64) -> Result<(), String> {
    let (least, versions) = noted.range(place, |at| at.target);
    let block = |bytes: &[u8], at: usize| -> Vec<u8> {
        let end = (at + BLOCK).min(bytes.len());
        let mut block = bytes.get(at..end).unwrap_or_default().to_vec();
        block.resize(BLOCK, 0);
        block
    };
    let longest = versions.iter().map(|version| version.contents.len()).max();
    let end = longest.unwrap_or(0).max(found.len());
    for at in (HEAD..end).step_by(BLOCK) {
        let there = block(found, at);
        let mut fits = versions.iter().map(|version| block(&version.contents, at));
        let is_absent = least.is_none() && there.iter().all(|byte| *byte == 0);
        if !is_absent && !fits.any(|wanted| wanted == there) {
            return Err(format!(
                "{} at {at}: the bytes of none of {} versions from {least:?} on",
                noted.name,
                versions.len()
            ));
        }
    }
    Ok(())
}
