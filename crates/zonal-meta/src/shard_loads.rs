//! Loads of the zones' shards, as the root's shard knows them. A new first-level directory goes to
//! the least loaded shard of its home zone.
//!
//! Shards report their inodes and requests ([`MetaRequest::ReportShardLoad`]); the root's shard
//! counts their first-level directories. Directories made since a report count as much as the
//! zone's directories have on average, so that a burst of them is spread.
//!
//! *Invariants*:
//! 1. Reports are of shards of the map.
//! 2. `directories` counts the root's entries that lead to other shards, by the partition of their
//!    inodes; no count is 0.
//!
//! [`MetaRequest::ReportShardLoad`]: zonal_wire::MetaRequest::ReportShardLoad

use crate::dentry::Dentry;
use crate::keys;
use crate::outcome::JunctionChange;
use std::collections::BTreeMap;
use zonal_types::{ErrorCode, Ino, Instant, KvRead, PartitionId, ShardId, ZoneId};
use zonal_wire::meta::ShardLoad;
use zonal_zonemap::{Shard, ZoneMap};

/// Age in ms at which a report tells nothing any more: the shard may be gone.
pub const REPORT_AGE_MAX_MS: u64 = 10_000;

#[derive(Debug, Clone, Copy)]
struct Report {
    at: Instant,
    inodes: u64,
    requests: u64,
    /// Requests in a second, between the last two reports; `None` before the second.
    rate: Option<u64>,
    /// First-level directories that were made since.
    made_since: u64,
}

/// Loads of shards.
#[derive(Debug, Default)]
pub(crate) struct ShardLoads {
    reports: BTreeMap<ShardId, Report>,
    directories: BTreeMap<PartitionId, u64>,
}

impl ShardLoads {
    /// Counts the first-level directories in the root's store.
    pub(crate) fn load(kv: &dyn KvRead) -> Result<Self, ErrorCode> {
        let mut loads = Self::default();
        let mut failed = None;
        let (first, end) = keys::dentries(Ino::ROOT);
        kv.scan(&first, &end, &mut |_key, value| {
            match Dentry::decode(value) {
                Ok(entry) if !entry.is_mark() => loads.count(entry.ino, true),
                Ok(_mark) => {}
                Err(code) => failed = Some(code),
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(loads), Err)
    }

    fn count(&mut self, ino: Ino, is_new: bool) {
        let partition = ino.partition();
        if partition == Ino::ROOT.partition() {
            return;
        }
        let count = self.directories.entry(partition).or_default();
        *count = match is_new {
            true => count.saturating_add(1),
            false => count.saturating_sub(1),
        };
        if *count == 0 {
            self.directories.remove(&partition);
        }
    }

    /// Notes what a committed request changed.
    pub(crate) fn note(&mut self, map: &ZoneMap, changes: &[JunctionChange]) {
        for change in changes {
            match change {
                JunctionChange::Add { ino, .. } => {
                    self.count(*ino, true);
                    let shard = map.shard_of(ino.partition());
                    let report = shard.and_then(|shard| self.reports.get_mut(&shard.id));
                    if let Some(report) = report {
                        report.made_since = report.made_since.saturating_add(1);
                    }
                }
                JunctionChange::Remove { ino } => self.count(*ino, false),
                JunctionChange::Move { .. } => {}
            }
        }
    }

    /// Takes a report of a shard: its inodes, and the requests that it has answered in its life.
    pub(crate) fn report(
        &mut self,
        map: &ZoneMap,
        shard: ShardId,
        (inodes, requests): (u64, u64),
        now: Instant,
    ) {
        self.reports.retain(|known, _| map.shard(*known).is_some());
        if map.shard(shard).is_none() {
            return;
        }
        let before = self.reports.get(&shard);
        let rate = before.and_then(|before| {
            let ms = Some(now.ms_since(before.at)).filter(|ms| *ms > 0)?;
            // Fewer than before: the shard was started again.
            let answered = requests.checked_sub(before.requests)?;
            Some(answered.saturating_mul(1_000) / ms)
        });
        let report = Report {
            at: now,
            inodes,
            requests,
            rate,
            made_since: 0,
        };
        self.reports.insert(shard, report);
    }

    fn directories_of(&self, map: &ZoneMap, shard: ShardId) -> u64 {
        let ranges = map.partitions.iter().filter(|range| range.shard == shard);
        ranges
            .flat_map(|range| {
                let end = PartitionId(range.first.0.saturating_add(range.count));
                self.directories.range(range.first..end)
            })
            .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// The shard for a new first-level directory of this home. Shards that reported of late go
    /// first, then those with the fewest inodes, the fewest directories, the lowest id.
    pub(crate) fn least_loaded(
        &self,
        map: &ZoneMap,
        zone: ZoneId,
        now: Instant,
    ) -> Option<ShardId> {
        let shards: Vec<(&Shard, u64)> = map
            .shards_of_zone(zone)
            .map(|shard| (shard, self.directories_of(map, shard.id)))
            .collect();
        if let [(only, _)] = &shards[..] {
            return Some(only.id);
        }
        let sums = shards.iter().fold((0_u64, 0_u64), |sums, (shard, of)| {
            let report = self.reports.get(&shard.id);
            let (inodes, since) = report.map_or((0, 0), |known| (known.inodes, known.made_since));
            let reported = of.saturating_sub(since);
            (
                sums.0.saturating_add(inodes),
                sums.1.saturating_add(reported),
            )
        });
        let average = (sums.0 / sums.1.max(1)).max(1);
        let loads = shards.iter().map(|(shard, directories)| {
            let report = self.reports.get(&shard.id);
            let is_silent = report.is_none_or(|known| is_old(known, now));
            let inodes = report.map_or(0, |known| {
                let expected = known.made_since.saturating_mul(average);
                known.inodes.saturating_add(expected)
            });
            (is_silent, inodes, *directories, shard.id)
        });
        loads.min().map(|(.., shard)| shard)
    }

    /// Loads of all shards but the root's.
    pub(crate) fn list(&self, map: &ZoneMap, now: Instant) -> Vec<ShardLoad> {
        let shards = map.shards.iter().filter(|shard| shard.id != ShardId(0));
        shards
            .map(|shard| {
                let report = self.reports.get(&shard.id);
                let report = report.filter(|known| !is_old(known, now));
                ShardLoad {
                    shard: shard.id,
                    directories: self.directories_of(map, shard.id),
                    inodes: report.map(|known| known.inodes),
                    requests_per_second: report.and_then(|known| known.rate),
                }
            })
            .collect()
    }
}

fn is_old(report: &Report, now: Instant) -> bool {
    now.ms_since(report.at) > REPORT_AGE_MAX_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{CellId, NodeId};
    use zonal_zonemap::MapEdit;

    fn at(ms: u64) -> Instant {
        Instant::default().plus_ms(ms)
    }

    /// Zone 1 with shards 1 and 7, zone 2 with shard 2.
    fn map() -> ZoneMap {
        let join = |node: u32, zone: u16, shard: u32| MapEdit::Join {
            node: NodeId(node),
            zone: ZoneId(zone),
            zone_name: String::new(),
            address: format!("127.0.0.1:{node}"),
            shard: Some(ShardId(shard)),
            targets: Vec::new(),
        };
        let edits = [join(1, 1, 0), join(2, 1, 1), join(3, 2, 2), join(4, 1, 7)];
        let map = ZoneMap::new(CellId::default()).edited(&edits).unwrap();
        map.unwrap()
    }

    fn made(map: &ZoneMap, loads: &mut ShardLoads, shard: u32, sequence: u64) -> Ino {
        let partition = map.partitions_of(ShardId(shard))[sequence as usize % 16];
        let ino = Ino::new(partition, sequence);
        let path = format!("/{shard}-{sequence}");
        let zone = map.shard(ShardId(shard)).unwrap().zone;
        loads.note(map, &[JunctionChange::Add { ino, path, zone }]);
        ino
    }

    #[test]
    fn directories_go_to_the_shard_with_fewest_inodes_and_bursts_are_spread() {
        let (map, mut loads) = (map(), ShardLoads::default());
        let next = |loads: &ShardLoads, now| {
            let shard = loads.least_loaded(&map, ZoneId(1), at(now));
            shard.unwrap().0
        };
        // Nothing is known: by directories, then by id.
        assert_eq!(next(&loads, 0), 1);
        made(&map, &mut loads, 1, 1);
        assert_eq!(next(&loads, 0), 7);
        // Inodes count for more than directories.
        loads.report(&map, ShardId(1), (100, 0), at(1_000));
        loads.report(&map, ShardId(7), (500, 0), at(1_000));
        assert_eq!(next(&loads, 1_000), 1);
        // One directory has 600 inodes: each new one is expected to get as many.
        let turns = [0, 1, 2, 3].map(|turn| {
            let shard = next(&loads, 1_000);
            made(&map, &mut loads, shard, 10 + turn);
            shard
        });
        assert_eq!(turns, [1, 7, 1, 7]);
        // A newer report tells what they really have.
        loads.report(&map, ShardId(7), (501, 10), at(2_000));
        loads.report(&map, ShardId(1), (700, 9), at(2_000));
        assert_eq!(next(&loads, 2_000), 7);
        assert_eq!(loads.least_loaded(&map, ZoneId(2), at(0)), Some(ShardId(2)));
        assert_eq!(loads.least_loaded(&map, ZoneId(3), at(0)), None);
    }

    #[test]
    fn a_silent_shard_gets_no_directory_while_another_reports() {
        let (map, mut loads) = (map(), ShardLoads::default());
        loads.report(&map, ShardId(1), (0, 0), at(0));
        loads.report(&map, ShardId(7), (1_000, 0), at(0));
        let next = |loads: &ShardLoads, now| loads.least_loaded(&map, ZoneId(1), at(now));
        assert_eq!(next(&loads, REPORT_AGE_MAX_MS), Some(ShardId(1)));
        loads.report(&map, ShardId(7), (1_000, 8), at(4_000));
        assert_eq!(next(&loads, REPORT_AGE_MAX_MS + 1), Some(ShardId(7)));
        let now = at(REPORT_AGE_MAX_MS + 1);
        let known = loads.list(&map, now).into_iter();
        let known: Vec<_> = known
            .map(|load| (load.shard.0, load.inodes, load.requests_per_second))
            .collect();
        assert_eq!(
            known,
            [(1, None, None), (2, None, None), (7, Some(1_000), Some(2))]
        );
    }

    #[test]
    fn removed_directories_and_unknown_shards_do_not_count() {
        let (map, mut loads) = (map(), ShardLoads::default());
        let ino = made(&map, &mut loads, 7, 5);
        loads.note(&map, &[JunctionChange::Remove { ino }]);
        assert!(loads.directories.is_empty());
        loads.report(&map, ShardId(9), (1, 1), at(1));
        assert!(loads.reports.is_empty());
        // A file of the root is no first-level directory.
        loads.count(Ino::new(PartitionId(0), 77), true);
        assert!(loads.directories.is_empty());
    }
}
