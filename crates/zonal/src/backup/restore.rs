//! Restore of a backup into new stores of a stopped cell.
//!
//! All new stores are complete before the first one replaces an old store. So a backup that is
//! damaged, of another cell, or without one of the requested shards changes nothing.

use super::format::{ENTRIES, Entries, MAP, SHARD, SHARD_END, ShardEnd, ShardStart};
use crate::atomic_file::open_regular;
use crate::exit::{FAILED, Failure, REFUSED};
use crate::progress::ProgressMeter;
use anyhow::Context;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use zonal_disk::stream::{Frame, StreamKind, StreamReader};
use zonal_server::NodeConfig;
use zonal_server::restore::{NewStore, ReadyStore};
use zonal_types::{Codec, ShardId};
use zonal_zonemap::ZoneMap;

/// The result for one shard.
pub struct RestoredShard {
    pub shard: ShardId,
    pub dir: PathBuf,
    pub entries: u64,
    /// Where the replaced store was moved to.
    pub kept: Option<PathBuf>,
}

struct Source<'a> {
    reader: StreamReader<BufReader<File>>,
    path: &'a Path,
}

impl Source<'_> {
    fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        let frame = self.reader.next_frame();
        frame.with_context(|| self.path.display().to_string())
    }

    fn odd(&self, frame: &Frame) -> anyhow::Error {
        let text = format!(
            "{}: an unexpected frame at byte {}",
            self.path.display(),
            frame.offset
        );
        Failure::new(FAILED, text).into()
    }

    fn decode<T: Codec>(&self, frame: &Frame) -> anyhow::Result<T> {
        T::from_bytes(&frame.payload).map_err(|_error| self.odd(frame))
    }
}

fn open(path: &Path) -> anyhow::Result<StreamReader<BufReader<File>>> {
    let file = open_regular(path).context("the backup")?;
    let reader = StreamReader::new(BufReader::with_capacity(1 << 20, file));
    reader.with_context(|| path.display().to_string())
}

/// Restores the shards of the nodes in `configs`; the backup must hold all of them.
pub fn restore(
    configs: &[NodeConfig],
    path: &Path,
    force: bool,
    progress: &mut ProgressMeter,
) -> anyhow::Result<Vec<RestoredShard>> {
    let reader = open(path)?;
    let header = *reader.header();
    if header.kind != StreamKind::Backup {
        let text = format!("{} holds {}", path.display(), header.kind.name());
        return Err(Failure::new(REFUSED, text).into());
    }
    if let Some(config) = configs.iter().find(|config| config.cell.0 != header.cell) {
        let found = zonal_types::CellId(header.cell);
        let text = format!("the backup is of cell {found}, not of {}", config.cell);
        return Err(Failure::new(REFUSED, text)
            .hint("nothing was touched; name the cell of the backup")
            .into());
    }
    let mut source = Source { reader, path };
    let first = source.next()?.context("an empty backup")?;
    if first.kind != MAP {
        return Err(source.odd(&first));
    }
    let map: ZoneMap = source.decode(&first)?;
    let mut ready = Vec::new();
    while let Some(frame) = source.next()? {
        if frame.kind != SHARD {
            return Err(source.odd(&frame));
        }
        let start: ShardStart = source.decode(&frame)?;
        let config = configs.iter().find(|config| {
            config.node == start.node
                && (config.manager_role.is_some() || config.meta_role.is_some())
        });
        let store = config
            .map(|config| NewStore::begin(config, force))
            .transpose()?;
        if let Some(done) = take_shard(&mut source, &start, store, &map, progress)? {
            ready.push(done);
        }
    }
    let wanted = configs
        .iter()
        .filter(|config| config.manager_role.is_some() || config.meta_role.is_some());
    if ready.len() < wanted.count() {
        let text = "the backup does not have the shards of all nodes named; nothing was touched";
        return Err(Failure::new(REFUSED, text).into());
    }
    let mut restored = Vec::new();
    for (mut done, store) in ready {
        done.kept = store.take_place()?;
        restored.push(done);
    }
    Ok(restored)
}

/// Reads one shard of the backup; writes it into `store` if there is one, else skips it.
fn take_shard(
    source: &mut Source<'_>,
    start: &ShardStart,
    mut store: Option<NewStore>,
    map: &ZoneMap,
    progress: &mut ProgressMeter,
) -> anyhow::Result<Option<(RestoredShard, ReadyStore)>> {
    let mut count = 0;
    loop {
        let frame = source.next()?.context("a shard without an end")?;
        match frame.kind {
            ENTRIES => {
                let entries: Entries = source.decode(&frame)?;
                count += entries.len() as u64;
                if let Some(store) = &mut store {
                    for (key, value) in entries {
                        store.take(key.0, value.0)?;
                    }
                }
                progress.at(count, frame.offset);
            }
            SHARD_END => {
                let end: ShardEnd = source.decode(&frame)?;
                if end.entries != count {
                    return Err(source.odd(&frame));
                }
                break;
            }
            _ => return Err(source.odd(&frame)),
        }
    }
    let Some(store) = store else {
        return Ok(None);
    };
    let done = RestoredShard {
        shard: start.shard,
        dir: store.dir().to_owned(),
        entries: store.entries(),
        kept: None,
    };
    let store = store.finish(&map.partitions_of(start.shard))?;
    Ok(Some((done, store)))
}
