//! Reports of traffic: bytes by file until the file's shard has counted them, and by first-level
//! directory from then on.
//!
//! A target knows no directory and a client not always the way to a file, but the shard of a file
//! knows both. Reports travel with housekeeping, so no operation waits for one.
//!
//! *Invariants*:
//! 1. Every byte is counted once: as unreported, or under a directory.
//! 2. At most [`TRAFFIC_FILES_MAX`] files wait. Bytes of others count under directory 0.
//! 3. A shard gets reports in the order of their numbers, so that it knows a repeat.

use crate::transport::mutex::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use zonal_types::limits::{TRAFFIC_FILES_MAX, TRAFFIC_REPORT_FILES_MAX};
use zonal_types::{DataId, Ino, ShardId};
use zonal_wire::{ClientTraffic, DirectoryTraffic, DirectoryTrafficTable};

/// Bytes of files, to be counted by one shard.
#[derive(Debug)]
pub(crate) struct TrafficReport {
    pub(crate) shard: ShardId,
    pub(crate) number: u64,
    pub(crate) files: Vec<(DataId, ClientTraffic)>,
}

/// Unreported bytes, and the counts by directory.
#[derive(Debug, Default)]
pub(crate) struct TrafficReports {
    waiting: Mutex<Waiting>,
    has_waiting: AtomicBool,
    by_dir: Mutex<DirectoryTrafficTable>,
}

#[derive(Debug, Default)]
struct Waiting {
    files: BTreeMap<DataId, ClientTraffic>,
    /// Reports that may not have arrived, in the order of their numbers.
    late: Vec<TrafficReport>,
    last_number: u64,
}

impl Waiting {
    fn late_files(&self) -> usize {
        self.late.iter().map(|report| report.files.len()).sum()
    }
}

impl TrafficReports {
    /// Counts bytes of a file.
    pub(crate) fn count(&self, data_id: DataId, bytes: &ClientTraffic) {
        let mut waiting = lock(&self.waiting);
        if let Some(known) = waiting.files.get_mut(&data_id) {
            return known.add(bytes);
        }
        if waiting.files.len() + waiting.late_files() >= TRAFFIC_FILES_MAX {
            drop(waiting);
            return lock(&self.by_dir).add(Ino(0), bytes);
        }
        waiting.files.insert(data_id, *bytes);
        self.has_waiting.store(true, Ordering::Relaxed);
    }

    /// True where bytes wait for a report.
    pub(crate) fn is_due(&self) -> bool {
        self.has_waiting.load(Ordering::Relaxed)
    }

    /// Number of files that wait.
    pub(crate) fn waiting_files(&self) -> usize {
        let waiting = lock(&self.waiting);
        waiting.files.len() + waiting.late_files()
    }

    /// Takes all reports to send, late ones first. Files of no known shard count under directory 0.
    pub(crate) fn take(&self, shard_of: impl Fn(DataId) -> Option<ShardId>) -> Vec<TrafficReport> {
        if !self.is_due() {
            return Vec::new();
        }
        let mut waiting = lock(&self.waiting);
        self.has_waiting.store(false, Ordering::Relaxed);
        let mut by_shard = BTreeMap::<ShardId, Vec<(DataId, ClientTraffic)>>::new();
        for (data_id, bytes) in std::mem::take(&mut waiting.files) {
            match shard_of(data_id) {
                Some(shard) => by_shard.entry(shard).or_default().push((data_id, bytes)),
                None => lock(&self.by_dir).add(Ino(0), &bytes),
            }
        }
        let mut reports = std::mem::take(&mut waiting.late);
        for (shard, files) in by_shard {
            for files in files.chunks(TRAFFIC_REPORT_FILES_MAX) {
                waiting.last_number += 1;
                reports.push(TrafficReport {
                    shard,
                    number: waiting.last_number,
                    files: files.to_vec(),
                });
            }
        }
        reports
    }

    /// Notes the answer to a report: first-level directories of its files. Others are gone.
    pub(crate) fn counted(&self, report: &TrafficReport, dirs: &[(DataId, Ino)]) {
        let dirs: BTreeMap<DataId, Ino> = dirs.iter().copied().collect();
        let mut by_dir = lock(&self.by_dir);
        for (data_id, bytes) in &report.files {
            let dir = dirs.get(data_id).copied().unwrap_or(Ino(0));
            by_dir.add(dir, bytes);
        }
    }

    /// Keeps a report that may not have arrived.
    pub(crate) fn is_late(&self, report: TrafficReport) {
        let mut waiting = lock(&self.waiting);
        let at = waiting
            .late
            .partition_point(|known| known.number < report.number);
        waiting.late.insert(at, report);
        self.has_waiting.store(true, Ordering::Relaxed);
    }

    /// Counts by directory up to the last report. Bytes that wait are not in them yet.
    pub(crate) fn list(&self) -> Vec<DirectoryTraffic> {
        lock(&self.by_dir).list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::PartitionId;

    fn file(partition: u32, sequence: u64) -> DataId {
        DataId::new(PartitionId(partition), sequence)
    }

    fn written(bytes: u64) -> ClientTraffic {
        ClientTraffic {
            written_in_zone: bytes,
            ..ClientTraffic::default()
        }
    }

    fn shard_of(data_id: DataId) -> Option<ShardId> {
        (data_id.partition().0 < 9).then(|| ShardId(data_id.partition().0))
    }

    /// Bytes under a directory.
    fn under(reports: &TrafficReports, dir: u64) -> u64 {
        let list = reports.list();
        let of = list.iter().find(|entry| entry.dir == Ino(dir));
        of.map_or(0, |entry| entry.traffic.total())
    }

    #[test]
    fn bytes_count_under_the_directory_that_the_shard_names() {
        let reports = TrafficReports::default();
        assert!(!reports.is_due() && reports.take(shard_of).is_empty());
        for _ in 0..2 {
            reports.count(file(1, 1), &written(10));
        }
        reports.count(file(2, 1), &written(3));
        reports.count(file(1, 2), &written(4));
        reports.count(file(9, 1), &written(5));
        assert!(reports.is_due());
        let sent = reports.take(shard_of);
        let shards: Vec<_> = sent.iter().map(|report| report.shard.0).collect();
        assert_eq!(shards, [1, 2]);
        assert_eq!(under(&reports, 0), 5, "no shard has it");
        reports.counted(&sent[0], &[(file(1, 1), Ino(77))]);
        reports.counted(&sent[1], &[(file(2, 1), Ino(88))]);
        assert_eq!(under(&reports, 77), 20);
        assert_eq!(under(&reports, 88), 3);
        assert_eq!(under(&reports, 0), 9, "one file is gone");
        assert!(!reports.is_due());
    }

    #[test]
    fn a_late_report_is_sent_again_with_its_number_before_newer_ones() {
        let reports = TrafficReports::default();
        reports.count(file(1, 1), &written(10));
        let first = reports.take(shard_of).pop().unwrap();
        let number = first.number;
        reports.is_late(first);
        reports.count(file(1, 1), &written(1));
        let sent = reports.take(shard_of);
        let numbers: Vec<u64> = sent.iter().map(|report| report.number).collect();
        assert_eq!(numbers, [number, number + 1]);
        assert_eq!(sent[0].files, [(file(1, 1), written(10))]);
        // Put back in any order.
        for report in sent.into_iter().rev() {
            reports.is_late(report);
        }
        let numbers: Vec<u64> = reports
            .take(shard_of)
            .iter()
            .map(|report| report.number)
            .collect();
        assert_eq!(numbers, [number, number + 1]);
    }

    #[test]
    fn files_beyond_the_bound_count_under_no_directory() {
        let reports = TrafficReports::default();
        let files = TRAFFIC_FILES_MAX as u64;
        for sequence in 1..=files / 2 {
            reports.count(file(1, sequence), &written(1));
        }
        let sent = reports.take(shard_of);
        assert!(
            sent.iter()
                .all(|report| report.files.len() <= TRAFFIC_REPORT_FILES_MAX)
        );
        sent.into_iter().for_each(|report| reports.is_late(report));
        for sequence in 1..=files {
            reports.count(file(2, sequence), &written(1));
        }
        assert_eq!(reports.waiting_files(), TRAFFIC_FILES_MAX);
        assert_eq!(under(&reports, 0), files / 2);
    }
}
