//! Visits all files of a running cell with their survival, through a snapshot of one shard after
//! another. So memory does not grow with the number of files.
//!
//! Invariants:
//! 1. A file is judged by a map that is at least as new as its layout.
//! 2. A shard that does not answer is named in the result; files of the others are visited.
//! 3. A file is visited once, as long as no directory moves between shards meanwhile.
//!
//! A snapshot that was lost, as with its server or after a long pause, is taken anew. The search
//! goes on behind the last key.

use super::loss_scope::{LossScope, refuse_unknown, targets_in};
use crate::backup::ShardBackup;
use crate::cell::connection::{CallRefusal, CellHandle};
use crate::cell::node_states::{down_nodes, node_states, targets_of};
use crate::console;
use crate::exit::with_causes;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use zonal_fsck::survival::{FileSurvival, TargetService};
use zonal_meta::inode::Inode;
use zonal_meta::keys;
use zonal_net::NetError;
use zonal_types::limits::SNAPSHOT_TERM_MS;
use zonal_types::{Blob, ErrorCode, FileKind, NodeId, ShardId};
use zonal_zonemap::{Shard, ZoneMap};

/// Attempts to go on with one shard without a new page.
const ATTEMPTS_MAX: u32 = 3;
/// Time to wait for another command's snapshot.
const BUSY_PATIENCE: Duration = Duration::from_millis(SNAPSHOT_TERM_MS + 5_000);
const BUSY_PAUSE: Duration = Duration::from_millis(250);

/// The result of a search.
pub struct ScanEnd {
    /// Shards that did not answer: their files were not visited, or not all of them.
    pub silent: Vec<ShardId>,
    /// Directories moved between shards: files may be missing, or were visited twice.
    pub has_moved: bool,
}

/// A running search.
struct FileSearch<'a, 'v> {
    cell: &'a CellHandle,
    if_lost: &'a [LossScope],
    map: ZoneMap,
    /// Nodes that the manager knows as down.
    down: BTreeSet<NodeId>,
    visit: &'v mut dyn FnMut(&Inode, FileSurvival),
}

/// Visits all files, as if the targets of these scopes were lost.
pub fn search(
    cell: &CellHandle,
    if_lost: &[LossScope],
    visit: &mut dyn FnMut(&Inode, FileSurvival),
) -> anyhow::Result<ScanEnd> {
    let map = cell.map()?;
    refuse_unknown(&map, if_lost)?;
    let (shards, partitions) = (map.shards.clone(), map.partitions.clone());
    let mut search = FileSearch {
        cell,
        if_lost,
        map,
        down: down_nodes(&node_states(cell)),
        visit,
    };
    let mut silent = Vec::new();
    for shard in &shards {
        match search.shard(shard) {
            Err(error) if is_silence(&error) => {
                console::note(format_args!(
                    "zonal: shard {}: {}",
                    shard.id,
                    with_causes(error.as_ref())
                ));
                silent.push(shard.id);
            }
            searched => searched?,
        }
    }
    let has_moved = cell.map()?.partitions != partitions;
    Ok(ScanEnd { silent, has_moved })
}

/// True for the error of a server that does not answer, or cannot serve now.
fn is_silence(error: &anyhow::Error) -> bool {
    let is_refused = |cause: &(dyn std::error::Error + 'static)| {
        let refused = cause.downcast_ref::<CallRefusal>();
        refused.is_some_and(|refused| refused.code != ErrorCode::NotPermitted)
    };
    let mut causes = error.chain();
    causes.any(|cause| cause.is::<NetError>() || is_refused(cause))
}

fn is_busy(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let refused = cause.downcast_ref::<CallRefusal>();
        refused.is_some_and(|refused| refused.code == ErrorCode::Busy)
    })
}

impl<'a> FileSearch<'a, '_> {
    fn shard(&mut self, shard: &Shard) -> anyhow::Result<()> {
        let (mut after, mut attempts) = (Blob::default(), 0);
        loop {
            let searched = self
                .snapshot(shard)
                .and_then(|snapshot| self.read(shard.id, &snapshot, &mut after, &mut attempts));
            match searched {
                Err(error) if is_silence(&error) && attempts < ATTEMPTS_MAX => attempts += 1,
                searched => return searched,
            }
        }
    }

    /// Takes a snapshot of a shard; waits while another command has one.
    fn snapshot(&mut self, shard: &Shard) -> anyhow::Result<ShardBackup<'a>> {
        let since = Instant::now();
        let snapshot = loop {
            match ShardBackup::fix(self.cell, &self.map, shard) {
                Err(error) if is_busy(&error) && since.elapsed() < BUSY_PATIENCE => {
                    std::thread::sleep(BUSY_PAUSE);
                }
                taken => break taken?,
            }
        };
        if snapshot.start.map_version > self.map.version {
            self.map = self.cell.map()?;
        }
        Ok(snapshot)
    }

    /// Visits the files of a snapshot behind a key, which it moves on.
    fn read(
        &mut self,
        shard: ShardId,
        snapshot: &ShardBackup<'_>,
        after: &mut Blob,
        attempts: &mut u32,
    ) -> anyhow::Result<()> {
        let silent = targets_of(&self.map, &self.down);
        let lost = targets_in(&self.map, self.if_lost);
        let service = TargetService::new(&self.map, silent, lost);
        loop {
            let (entries, is_end) = snapshot.read(after)?;
            *attempts = 0;
            for (key, value) in &entries {
                let inode = file_of(&key.0, &value.0).map_err(|code| {
                    anyhow::anyhow!("an entry of shard {shard} cannot be understood: {code}")
                })?;
                // Of a directory that moves, two shards may have entries.
                let is_own = |inode: &Inode| {
                    let owner = self.map.shard_of(inode.ino.partition());
                    owner.is_some_and(|owner| owner.id == shard)
                };
                if let Some(inode) = inode.filter(is_own) {
                    let survival = service.judge(&inode.layout, inode.size);
                    (self.visit)(&inode, survival);
                }
            }
            match entries.into_iter().next_back() {
                Some((last, _)) if !is_end => *after = behind(last),
                _ => return Ok(()),
            }
        }
    }
}

/// The file in an entry of a shard's store; `None` for other entries.
fn file_of(key: &[u8], value: &[u8]) -> Result<Option<Inode>, ErrorCode> {
    let (partition, rest) = key.split_first_chunk::<4>().ok_or(ErrorCode::Corrupt)?;
    let is_inode = rest.first() == Some(&keys::TAG_INODE);
    if !is_inode || u32::from_be_bytes(*partition) == keys::SHARD_PARTITION {
        return Ok(None);
    }
    let ino = keys::ino_of(key).ok_or(ErrorCode::Corrupt)?;
    let inode = Inode::decode(ino, value)?;
    Ok((inode.kind == FileKind::File).then_some(inode))
}

/// The key to go on behind: where the inodes of a partition are through, its end.
fn behind(last: Blob) -> Blob {
    match last.0.split_at_checked(4) {
        Some((partition, [tag, ..])) if *tag > keys::TAG_INODE => {
            Blob([partition, &[keys::TAG_END]].concat())
        }
        _ => last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::Ino;

    #[test]
    fn entries_of_other_kinds_are_passed_over() {
        assert_eq!(file_of(b"", b""), Err(ErrorCode::Corrupt));
        let inode = keys::inode(Ino::new(zonal_types::PartitionId(3), 9));
        assert_eq!(file_of(&inode, b"short"), Err(ErrorCode::Corrupt));
        let dentry = keys::dentry(Ino::ROOT, 5);
        assert_eq!(file_of(&dentry, b"short"), Ok(None));
        assert_eq!(behind(Blob(inode.clone())), Blob(inode));
        let end = vec![0, 0, 0, 0, keys::TAG_END];
        assert_eq!(behind(Blob(dentry)), Blob(end));
    }
}
