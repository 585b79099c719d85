//! The newest entries, in memory: a member reads each entry once more when it is committed, and
//! for other members, soon after it was written.
//!
//! *Invariant*: the entries follow one another, and are the last ones of the log.

use std::collections::VecDeque;

use zonal_consensus::{EntryBody, LogEntry, LogIndex};

/// Most bytes of entries that are kept.
const RECENT_BYTES_MAX: u64 = 4 << 20;

/// The newest entries of a log.
#[derive(Debug, Default)]
pub(super) struct RecentEntries {
    entries: VecDeque<LogEntry>,
    bytes: u64,
}

impl RecentEntries {
    /// Notes an entry that was written; those from its place on are void.
    pub(super) fn put(&mut self, entry: &LogEntry) {
        while let Some(last) = self.entries.back()
            && last.index >= entry.index
        {
            self.bytes -= size_of(last);
            self.entries.pop_back();
        }
        let follows = |last: &LogEntry| last.index.0 + 1 == entry.index.0;
        if !self.entries.back().is_none_or(follows) {
            self.entries.clear();
            self.bytes = 0;
        }
        self.bytes += size_of(entry);
        self.entries.push_back(entry.clone());
        while self.bytes > RECENT_BYTES_MAX
            && let Some(first) = self.entries.pop_front()
        {
            self.bytes -= size_of(&first);
        }
    }

    /// The entries from `from` up to, not including, `to`, at least one, up to `max_bytes`; `None`
    /// where one of them is not here.
    pub(super) fn range(
        &self,
        from: LogIndex,
        to: LogIndex,
        max_bytes: u64,
    ) -> Option<Vec<LogEntry>> {
        let first = self.entries.front()?.index.0;
        let at = usize::try_from(from.0.checked_sub(first)?).ok()?;
        let count = usize::try_from(to.0.checked_sub(from.0)?).ok()?;
        if at + count > self.entries.len() {
            return None;
        }
        let mut left = max_bytes;
        let mut found = Vec::with_capacity(count);
        for entry in self.entries.iter().skip(at).take(count) {
            let size = size_of(entry);
            if !found.is_empty() && size > left {
                break;
            }
            left = left.saturating_sub(size);
            found.push(entry.clone());
        }
        Some(found)
    }
}

/// About how many bytes of memory an entry takes.
fn size_of(entry: &LogEntry) -> u64 {
    let bytes = match &entry.body {
        EntryBody::TermStart => 0,
        EntryBody::Effect { bytes } => bytes.0.len(),
        EntryBody::Members { library, .. } => library.0.len() + 256,
    };
    bytes as u64 + 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_consensus::Term;
    use zonal_types::codec::Blob;

    fn entry(index: u64, term: u64, length: usize) -> LogEntry {
        LogEntry {
            index: LogIndex(index),
            term: Term(term),
            body: EntryBody::Effect {
                bytes: Blob(vec![0; length]),
            },
        }
    }

    fn found(recent: &RecentEntries, from: u64, to: u64, max: u64) -> Option<Vec<(u64, u64)>> {
        let entries = recent.range(LogIndex(from), LogIndex(to), max)?;
        Some(
            entries
                .iter()
                .map(|one| (one.index.0, one.term.0))
                .collect(),
        )
    }

    #[test]
    fn the_newest_entries_are_found_until_others_take_their_places() {
        let mut recent = RecentEntries::default();
        assert_eq!(found(&recent, 1, 2, 1000), None);
        for index in 5..9 {
            recent.put(&entry(index, 1, 100));
        }
        assert_eq!(found(&recent, 4, 6, 1000), None);
        assert_eq!(found(&recent, 5, 10, 1000), None);
        assert_eq!(found(&recent, 6, 8, 1000), Some(vec![(6, 1), (7, 1)]));
        assert_eq!(found(&recent, 6, 8, 1), Some(vec![(6, 1)]));
        recent.put(&entry(6, 2, 100));
        assert_eq!(found(&recent, 5, 7, 1000), Some(vec![(5, 1), (6, 2)]));
        assert_eq!(found(&recent, 6, 8, 1000), None);
        // A log that goes on elsewhere.
        recent.put(&entry(20, 3, 100));
        assert_eq!(found(&recent, 6, 7, 1000), None);
        assert_eq!(found(&recent, 20, 21, 1000), Some(vec![(20, 3)]));
    }

    #[test]
    fn the_bytes_of_recent_entries_are_bounded() {
        let mut recent = RecentEntries::default();
        for index in 1..20 {
            recent.put(&entry(index, 1, 1 << 20));
            assert!(recent.bytes <= RECENT_BYTES_MAX);
        }
        assert_eq!(recent.entries.len(), 3);
        recent.put(&entry(20, 1, 5 << 20));
        assert_eq!((recent.entries.len(), recent.bytes), (0, 0));
    }
}
