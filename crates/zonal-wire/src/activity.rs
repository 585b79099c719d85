//! Activity of a node as its commands see it: client bytes by zone and by first-level directory,
//! and the times of operations.
//!
//! *Invariants*:
//! 1. [`DirectoryTrafficTable`] loses no bytes: bytes of a directory without room count as those of
//!    other directories.
//! 2. It names at most [`DIRECTORIES_COUNTED_MAX`] directories.
//!
//! *Units*: bytes of payloads; microseconds. All counts are since the start of the process.

#![expect(missing_docs, reason = "fields are described with their struct")]

use std::collections::BTreeMap;
use zonal_types::limits::DIRECTORIES_COUNTED_MAX;
use zonal_types::{Ino, TargetId, ZoneId, codec_struct};

codec_struct! {
    /// Payload bytes that clients read and wrote, by the zone of the client: the target's own, or
    /// another.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ClientTraffic {
        read_in_zone: u64,
        read_cross_zone: u64,
        written_in_zone: u64,
        written_cross_zone: u64,
    }
}

codec_struct! {
    /// Payload bytes that clients of one zone read from a target and wrote to it. Zone 0: clients
    /// of zones that the target does not count by themselves.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClientZoneTraffic {
        target: TargetId,
        zone: ZoneId,
        read: u64,
        written: u64,
    }
}

codec_struct! {
    /// Payload bytes of files below one first-level directory. The root: files in the root itself.
    /// 0: other directories, and files that were gone when their bytes were reported.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DirectoryTraffic {
        dir: Ino,
        traffic: ClientTraffic,
    }
}

codec_struct! {
    /// Times of one operation, from request to reply. Bucket `n` counts requests that took up to
    /// 2^n microseconds and longer than the bucket before; the last bucket has all longer ones.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OperationTimes {
        service: String,
        operation: String,
        sum_us: u64,
        buckets: Vec<u64>,
    }
}

codec_struct! {
    /// Counts of one node: of its target, its shard and its process. `cpu_per_mille`: used CPU of
    /// its machine in the last seconds; `None`: not known yet.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct NodeActivity {
        clients: Vec<ClientZoneTraffic>,
        directories: Vec<DirectoryTraffic>,
        operations: Vec<OperationTimes>,
        cpu_per_mille: Option<u16>,
    }
}

impl ClientTraffic {
    /// Adds other counts; the numbers may come from others, so the sums stop at the largest.
    pub fn add(&mut self, more: &Self) {
        for (sum, more) in [
            (&mut self.read_in_zone, more.read_in_zone),
            (&mut self.read_cross_zone, more.read_cross_zone),
            (&mut self.written_in_zone, more.written_in_zone),
            (&mut self.written_cross_zone, more.written_cross_zone),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Sum of all four counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        let read = self.read_in_zone.saturating_add(self.read_cross_zone);
        let written = self.written_in_zone.saturating_add(self.written_cross_zone);
        read.saturating_add(written)
    }
}

/// Counts by first-level directory.
#[derive(Debug, Default)]
pub struct DirectoryTrafficTable {
    by_dir: BTreeMap<Ino, ClientTraffic>,
    other: ClientTraffic,
}

impl DirectoryTrafficTable {
    /// Adds bytes of a directory (0: of others). A new directory takes the place of the one with
    /// the fewest bytes where the table is full.
    pub fn add(&mut self, dir: Ino, traffic: &ClientTraffic) {
        if dir == Ino(0) {
            return self.other.add(traffic);
        }
        if !self.by_dir.contains_key(&dir) && self.by_dir.len() >= DIRECTORIES_COUNTED_MAX {
            let least = self.by_dir.iter().min_by_key(|(_dir, known)| known.total());
            if let Some(least) = least.map(|(dir, _known)| *dir)
                && let Some(known) = self.by_dir.remove(&least)
            {
                self.other.add(&known);
            }
        }
        self.by_dir.entry(dir).or_default().add(traffic);
    }

    /// Number of directories with counts of their own.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_dir.len()
    }

    /// True where nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_dir.is_empty() && self.other.total() == 0
    }

    /// All counts, those of other directories last, where there are some.
    #[must_use]
    pub fn list(&self) -> Vec<DirectoryTraffic> {
        let known = self.by_dir.iter();
        let known = known.map(|(dir, traffic)| (*dir, *traffic));
        let other = (self.other.total() > 0).then_some((Ino(0), self.other));
        let all = known.chain(other);
        all.map(|(dir, traffic)| DirectoryTraffic { dir, traffic })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: u64) -> ClientTraffic {
        ClientTraffic {
            read_in_zone: bytes,
            ..ClientTraffic::default()
        }
    }

    #[test]
    fn a_full_table_counts_its_smallest_directory_with_the_others() {
        let mut table = DirectoryTrafficTable::default();
        assert!(table.is_empty());
        for dir in 1..=DIRECTORIES_COUNTED_MAX as u64 {
            table.add(Ino(dir), &read(100 + dir));
        }
        table.add(Ino(1), &read(1000));
        table.add(Ino(9000), &read(7));
        assert_eq!(table.len(), DIRECTORIES_COUNTED_MAX);
        let list = table.list();
        let of = |dir| list.iter().find(|entry| entry.dir == Ino(dir));
        assert_eq!(of(1).unwrap().traffic.read_in_zone, 1101);
        assert_eq!(of(9000).unwrap().traffic.read_in_zone, 7);
        assert_eq!(of(2), None, "it had the fewest bytes");
        assert_eq!(of(0).unwrap().traffic.read_in_zone, 102);
        let sum: u64 = list.iter().map(|entry| entry.traffic.total()).sum();
        assert_eq!(sum, (1..=64).map(|dir| 100 + dir).sum::<u64>() + 1007);
    }

    #[test]
    fn numbers_of_others_do_not_overflow() {
        let mut table = DirectoryTrafficTable::default();
        for dir in [Ino(0), Ino(3)] {
            table.add(dir, &read(u64::MAX));
            table.add(dir, &read(u64::MAX));
        }
        let list = table.list();
        assert!(list.iter().all(|entry| entry.traffic.total() == u64::MAX));
    }
}
