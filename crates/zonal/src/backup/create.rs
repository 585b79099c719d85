//! Backup of a running cell: snapshots of all shards, written to one stream.

use super::format::{ENTRIES, MAP, SHARD, SHARD_END, ShardEnd, ShardStart};
use super::snapshots::{ShardBackup, fix_all};
use crate::atomic_file::write_whole;
use crate::cell::connection::CellHandle;
use crate::progress::ProgressMeter;
use anyhow::Context;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zonal_disk::stream::{StreamHeader, StreamKind, StreamWriter};
use zonal_types::{Blob, Codec};
use zonal_zonemap::ZoneMap;

/// Interval at which snapshots that are not being read yet are touched, so that servers keep them.
const REMIND: Duration = Duration::from_secs(15);

/// Totals of a written backup.
pub struct BackupSummary {
    pub shards: Vec<ShardStart>,
    pub entries: u64,
    pub bytes: u64,
    pub map_version: u64,
}

/// Writes a backup to `path`, whole or not at all.
pub fn take(
    cell: &CellHandle,
    path: &Path,
    progress: &mut ProgressMeter,
) -> anyhow::Result<BackupSummary> {
    let (map, snapshots) = fix_all(cell)?;
    write_whole(path, |file| write(&snapshots, &map, file, progress))
}

/// The current time in seconds since 1970.
pub fn wall_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

fn write(
    snapshots: &[ShardBackup<'_>],
    map: &ZoneMap,
    file: File,
    progress: &mut ProgressMeter,
) -> anyhow::Result<BackupSummary> {
    let header = StreamHeader {
        kind: StreamKind::Backup,
        cell: map.cell.0,
        target: None,
        made: wall_seconds(),
    };
    let mut out = StreamWriter::new(BufWriter::with_capacity(1 << 20, file), &header)?;
    out.frame(MAP, &map.to_bytes())?;
    let mut taken = BackupSummary {
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
            let entries = snapshot.read(&after)?;
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
                    waiting.read(&Blob(vec![0xff; 8]))?;
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
