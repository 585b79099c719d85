//! Taking a backup of a running cell.
//!
//! Every shard fixes a snapshot, all at nearly one moment. Shards change independently of one another but for first-level
//! directories: those change the zone map, so where its version is the same before the first snapshot and after the last,
//! the snapshots fit together (what was half done between two shards is settled at their next start, as after a crash).
//! Else all are let go and fixed again.

use super::format::{ENTRIES, Entries, MAP, SHARD, SHARD_END, ShardEnd, ShardStart};
use crate::cell::connect::Cell;
use crate::exit::{FAILED, Failure};
use crate::progress::Progress;
use crate::whole::write_whole;
use anyhow::Context;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zonal_disk::stream::{StreamHeader, StreamKind, StreamWriter};
use zonal_net::Address;
use zonal_types::{Blob, Codec};
use zonal_wire::{AdminReply, AdminRequest};
use zonal_zonemap::{Shard, ZoneMap};

/// How often snapshots are fixed anew while first-level directories change.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);
/// How often snapshots that wait for their turn are kept from being given up.
const REMIND: Duration = Duration::from_secs(15);

/// What was written.
pub struct Taken {
    pub shards: Vec<ShardStart>,
    pub entries: u64,
    pub bytes: u64,
    pub map_version: u64,
}

struct Snapshot {
    to: Address,
    id: u64,
    start: ShardStart,
}

/// Lets go of the snapshots, also after an error.
struct Snapshots<'a> {
    cell: &'a Cell,
    all: Vec<Snapshot>,
}

impl Drop for Snapshots<'_> {
    fn drop(&mut self) {
        for snapshot in &self.all {
            let snapshot_id = snapshot.id;
            let request = AdminRequest::SnapshotEnd {
                snapshot: snapshot_id,
            };
            // Best effort: the server gives it up by itself.
            let _ = self.cell.admin(snapshot.to, &request);
        }
    }
}

fn fix(cell: &Cell, map: &ZoneMap, shard: &Shard) -> anyhow::Result<Snapshot> {
    let to = Cell::address(map, shard.node)?;
    let reply = cell.admin(to, &AdminRequest::SnapshotBegin { shard: shard.id });
    match reply.with_context(|| format!("shard {}", shard.id))? {
        AdminReply::Snapshot {
            snapshot,
            shard: id,
            epoch,
            position,
            map_version,
        } if id == shard.id => Ok(Snapshot {
            to,
            id: snapshot,
            start: ShardStart {
                shard: id,
                node: shard.node,
                epoch,
                position,
                map_version,
            },
        }),
        other => Err(Failure::new(FAILED, format!("shard {}: {other:?}", shard.id)).into()),
    }
}

/// Snapshots of all shards that fit together, and the map of then.
fn fix_all(cell: &Cell) -> anyhow::Result<(Snapshots<'_>, ZoneMap)> {
    for _ in 0..TRIES {
        let map = cell.map()?;
        let mut snapshots = Snapshots {
            cell,
            all: Vec::new(),
        };
        std::thread::scope(|scope| {
            let asked: Vec<_> = map
                .shards
                .iter()
                .map(|shard| scope.spawn(|| fix(cell, &map, shard)))
                .collect();
            let mut failed = None;
            for thread in asked {
                match thread.join() {
                    Ok(Ok(snapshot)) => snapshots.all.push(snapshot),
                    Ok(Err(error)) => failed = failed.or(Some(error)),
                    Err(_panic) => failed = failed.or(Some(anyhow::anyhow!("a thread panicked"))),
                }
            }
            failed.map_or(Ok(()), Err)
        })?;
        if cell.map()?.version == map.version {
            return Ok((snapshots, map));
        }
        drop(snapshots);
        std::thread::sleep(PAUSE);
    }
    let text = format!("first-level directories changed during each of {TRIES} tries");
    Err(Failure::new(FAILED, text)
        .hint("try again when fewer of them are made and removed")
        .into())
}

/// Writes a backup to `path`, whole or not at all.
pub fn take(cell: &Cell, path: &Path, progress: &mut Progress) -> anyhow::Result<Taken> {
    let (snapshots, map) = fix_all(cell)?;
    write_whole(path, |partial| {
        write(cell, &snapshots.all, &map, partial, progress)
    })
}

/// Seconds since 1970.
pub fn wall_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

fn write(
    cell: &Cell,
    snapshots: &[Snapshot],
    map: &ZoneMap,
    path: &Path,
    progress: &mut Progress,
) -> anyhow::Result<Taken> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let header = StreamHeader {
        kind: StreamKind::Backup,
        cell: map.cell.0,
        made: wall_seconds(),
    };
    let mut out = StreamWriter::new(BufWriter::with_capacity(1 << 20, file), &header)?;
    out.frame(MAP, &map.to_bytes())?;
    let mut taken = Taken {
        shards: Vec::new(),
        entries: 0,
        bytes: 0,
        map_version: map.version.0,
    };
    let mut reminded = Instant::now();
    for (index, snapshot) in snapshots.iter().enumerate() {
        out.frame(SHARD, &snapshot.start.to_bytes())?;
        let (mut after, mut count) = (Blob::default(), 0);
        loop {
            let entries = read(cell, snapshot, &after)?;
            count += entries.0.len() as u64;
            if let Some((key, _)) = entries.0.last() {
                after = key.clone();
                out.frame(ENTRIES, &entries.0.to_bytes())?;
            }
            progress.at(taken.entries + count, out.bytes());
            if entries.1 {
                break;
            }
            if reminded.elapsed() >= REMIND {
                for waiting in snapshots.get(index + 1..).unwrap_or_default() {
                    read(cell, waiting, &Blob(vec![0xff; 8]))?;
                }
                reminded = Instant::now();
            }
        }
        out.frame(SHARD_END, &ShardEnd { entries: count }.to_bytes())?;
        taken.entries += count;
        taken.shards.push(snapshot.start.clone());
    }
    let bytes = out.bytes();
    let file = out.finish()?.into_inner().context("write the backup")?;
    file.sync_all().context("flush the backup")?;
    taken.bytes = bytes;
    Ok(taken)
}

fn read(cell: &Cell, snapshot: &Snapshot, after: &Blob) -> anyhow::Result<(Entries, bool)> {
    let request = AdminRequest::SnapshotRead {
        snapshot: snapshot.id,
        after: after.clone(),
    };
    match cell.admin(snapshot.to, &request)? {
        AdminReply::Entries { entries, end } => {
            // A server that gives nothing and no end would keep us here for ever.
            let end = end || entries.is_empty();
            Ok((entries, end))
        }
        other => Err(Failure::new(FAILED, format!("an odd answer: {other:?}")).into()),
    }
}
