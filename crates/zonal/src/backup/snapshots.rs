//! Consistent snapshots of all shards of a running cell.
//!
//! Shards change independently, except for first-level directories: making one changes a junction
//! and the root in one record. The command therefore takes snapshots in this order:
//!
//! 1. the root's,
//! 2. those of all zones,
//! 3. the root's again.
//!
//! If both root snapshots have the same version of the map and of the junctions, the snapshots fit
//! together. Otherwise all are released and taken again. Operations in progress between two shards
//! are completed at the shards' next start, as after a crash.

use super::format::{Entries, ShardStart};
use crate::cell::connection::{CallRefusal, CellHandle};
use crate::console;
use crate::exit::{FAILED, Failure, with_causes};
use anyhow::Context;
use std::time::{Duration, Instant};
use zonal_net::Address;
use zonal_types::limits::SNAPSHOT_TERM_MS;
use zonal_types::{Blob, Codec, ErrorCode, ShardId};
use zonal_wire::{AdminReply, AdminRequest};
use zonal_zonemap::{Assembly, JunctionsHead, Shard, ZoneMap, junctions, map_records};

/// Attempts while first-level directories keep changing.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);
/// Time to wait for another command's snapshot. The server drops a snapshot that nobody reads
/// before this time is over.
const BUSY_PATIENCE: Duration = Duration::from_millis(SNAPSHOT_TERM_MS + 5_000);
const BUSY_PAUSE: Duration = Duration::from_millis(250);

/// The snapshot of one shard; released when dropped.
pub struct ShardBackup<'a> {
    cell: &'a CellHandle,
    to: Address,
    id: u64,
    pub start: ShardStart,
}

impl Drop for ShardBackup<'_> {
    fn drop(&mut self) {
        let snapshot = self.id;
        // Best effort: the server drops an unread snapshot by itself.
        let _ = self
            .cell
            .admin(self.to, &AdminRequest::SnapshotEnd { snapshot });
    }
}

impl<'a> ShardBackup<'a> {
    /// Takes a snapshot of a shard. `Busy` where another command has one.
    pub fn fix(cell: &'a CellHandle, map: &ZoneMap, shard: &Shard) -> anyhow::Result<Self> {
        let begin = AdminRequest::SnapshotBegin { shard: shard.id };
        let begun = cell.admin_of_shard(map, shard, &begin);
        let (reply, node) = begun.with_context(|| format!("shard {}", shard.id))?;
        // A snapshot is read where it was taken.
        let to = CellHandle::address(map, node)?;
        match reply {
            AdminReply::Snapshot {
                snapshot,
                shard: id,
                epoch,
                position,
                map_version,
            } if id == shard.id => Ok(Self {
                cell,
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

    /// Reads the entries after the key `after`, and whether the end is reached; or returns the
    /// server's refusal.
    pub fn ask(&self, after: &Blob) -> anyhow::Result<Result<(Entries, bool), CallRefusal>> {
        let request = AdminRequest::SnapshotRead {
            snapshot: self.id,
            after: after.clone(),
        };
        match self.cell.ask(self.to, &request)? {
            Err(refused) => Ok(Err(refused)),
            Ok(AdminReply::Entries { entries, end }) => {
                // An empty page that is not marked as the end would make this command loop for
                // ever.
                let end = end || entries.is_empty();
                Ok(Ok((entries, end)))
            }
            Ok(other) => {
                Err(Failure::new(FAILED, format!("an unexpected reply: {other:?}")).into())
            }
        }
    }

    /// Like [`Self::ask`], with a refusal as an error.
    pub fn read(&self, after: &Blob) -> anyhow::Result<(Entries, bool)> {
        Ok(self.ask(after)??)
    }

    /// The zone map and the version of the junctions in the root's snapshot.
    fn map(&self) -> anyhow::Result<(ZoneMap, u64)> {
        let mut before = map_records::MAP_KEY.to_vec();
        let last = before.pop().unwrap_or_default();
        before.push(last.saturating_sub(1));
        before.extend([0xff; 8]);
        let (mut assembly, mut after) = (Assembly::default(), Blob(before));
        'pages: loop {
            let (entries, end) = self.read(&after)?;
            for (key, value) in &entries {
                let taken = assembly.take(&key.0, &value.0);
                if !taken.map_err(|code| anyhow::anyhow!("the zone map: {code}"))? {
                    break 'pages;
                }
            }
            match entries.into_iter().next_back() {
                Some((last, _)) if !end => after = last,
                _ => break,
            }
        }
        let map = assembly.finish();
        let map = map.context("the root's snapshot has no zone map")?;
        let head = junctions::head_key();
        let mut before = head.clone();
        before.pop();
        let (entries, _) = self.read(&Blob(before))?;
        let found = entries.iter().find(|(key, _)| key.0 == head);
        let junctions = found.map(|(_, value)| JunctionsHead::from_bytes(&value.0));
        let junctions = junctions.transpose().context("the junctions")?;
        Ok((map, junctions.unwrap_or_default().version))
    }
}

/// Snapshots of all shards that fit together, the root's first, and the zone map in it.
type Fitting<'a> = (ZoneMap, Vec<ShardBackup<'a>>);

/// Takes snapshots of all shards that fit together.
///
/// A shard has one snapshot at a time. While another command holds one, this command releases all
/// of its own and tries again, so that neither blocks the other.
pub fn fix_all(cell: &CellHandle) -> anyhow::Result<Fitting<'_>> {
    let published = cell.map()?;
    let root = published.shards.iter().find(|shard| shard.id == ShardId(0));
    let root = root.context("the zone map has no root shard")?;
    let (mut changed, mut busy_since) = (0, None);
    loop {
        let error = match try_all(cell, &published, root) {
            Ok(Some(fitting)) => return Ok(fitting),
            Ok(None) => {
                changed += 1;
                if changed == TRIES {
                    let text =
                        format!("first-level directories changed during each of {TRIES} tries");
                    return Err(Failure::new(FAILED, text)
                        .hint("try again when fewer of them are made and removed")
                        .into());
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => error,
        };
        let refused = error
            .chain()
            .find_map(|cause| cause.downcast_ref::<CallRefusal>());
        if refused.is_none_or(|refused| refused.code != ErrorCode::Busy) {
            return Err(error);
        }
        let since = *busy_since.get_or_insert_with(|| {
            console::note(format_args!(
                "{}: waiting for it; if it was killed, for {} s at most",
                with_causes(error.as_ref()),
                SNAPSHOT_TERM_MS / 1000
            ));
            Instant::now()
        });
        if since.elapsed() > BUSY_PATIENCE {
            return Err(Failure::new(FAILED, with_causes(error.as_ref()))
                .hint("try again when it is through")
                .into());
        }
        std::thread::sleep(BUSY_PAUSE);
    }
}

/// One attempt; `None` if the map or the junctions changed during it.
fn try_all<'a>(
    cell: &'a CellHandle,
    published: &ZoneMap,
    root: &Shard,
) -> anyhow::Result<Option<Fitting<'a>>> {
    let (map, junctions) = ShardBackup::fix(cell, published, root)?.map()?;
    let zones = fix_zones(cell, &map)?;
    let first = ShardBackup::fix(cell, published, root)?;
    let (now, junctions_now) = first.map()?;
    let fits = now.version == map.version && junctions_now == junctions;
    let mut all = vec![first];
    all.extend(zones);
    Ok(fits.then_some((now, all)))
}

fn fix_zones<'a>(cell: &'a CellHandle, map: &ZoneMap) -> anyhow::Result<Vec<ShardBackup<'a>>> {
    let (mut all, mut failed) = (Vec::new(), None);
    std::thread::scope(|scope| {
        let zones = map.shards.iter().filter(|shard| shard.id != ShardId(0));
        let asked: Vec<_> = zones
            .map(|shard| scope.spawn(move || ShardBackup::fix(cell, map, shard)))
            .collect();
        for thread in asked {
            match thread.join() {
                Ok(Ok(snapshot)) => all.push(snapshot),
                Ok(Err(error)) => failed = failed.take().or(Some(error)),
                Err(_panic) => {
                    failed = failed.take().or(Some(anyhow::anyhow!("a thread panicked")));
                }
            }
        }
    });
    failed.map_or(Ok(all), Err)
}
