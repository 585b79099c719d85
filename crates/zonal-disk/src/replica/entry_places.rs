//! Places of entries in the log, by index.

use std::collections::VecDeque;

use zonal_consensus::{LogIndex, Term};

use crate::engine::held_records::RecordPlace;
use crate::files::error::DiskError;
use crate::log::record::Lsn;

/// The entries that the log has, in order.
#[derive(Debug)]
pub(super) struct EntryPlaces {
    /// The entry before the first, and its term.
    base: (LogIndex, Term),
    places: VecDeque<(Term, RecordPlace)>,
}

impl EntryPlaces {
    /// No entries behind this one.
    pub(super) fn new(index: LogIndex, term: Term) -> Self {
        Self {
            base: (index, term),
            places: VecDeque::new(),
        }
    }

    /// Puts an entry at its place; what was there and behind is void. A first entry sets where the
    /// log begins, if the base is not below it.
    pub(super) fn put(
        &mut self,
        index: LogIndex,
        term: Term,
        place: RecordPlace,
    ) -> Result<(), DiskError> {
        let Some(at) = self.position(index) else {
            // Entries that the index already has: a replay begins with the first held one of the
            // checkpoint, or with some before it.
            return Ok(());
        };
        if at > self.places.len() {
            let what = format!("log: entry {index} follows none");
            return Err(DiskError::Corrupt(what));
        }
        self.places.truncate(at);
        self.places.push_back((term, place));
        Ok(())
    }

    pub(super) fn at(&self, index: LogIndex) -> Option<RecordPlace> {
        let found = self.places.get(self.position(index)?);
        found.map(|(_, place)| *place)
    }

    pub(super) fn first(&self) -> LogIndex {
        LogIndex(self.base.0.0 + 1)
    }

    pub(super) fn last(&self) -> LogIndex {
        LogIndex(self.base.0.0 + self.places.len() as u64)
    }

    pub(super) fn term(&self, index: LogIndex) -> Option<Term> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        let found = self.places.get(self.position(index)?);
        found.map(|(term, _)| *term)
    }

    /// Places of the entries from `from` up to, not including, `to`, at least one, up to
    /// `max_bytes` of records; `None` where one is not there.
    pub(super) fn range(
        &self,
        from: LogIndex,
        to: LogIndex,
        max_bytes: u64,
    ) -> Option<Vec<RecordPlace>> {
        let mut left = max_bytes;
        let mut found = Vec::new();
        for index in from.0..to.0 {
            let place = self.at(LogIndex(index))?;
            let size = place.end.0 - place.start.0;
            if !found.is_empty() && size > left {
                break;
            }
            left = left.saturating_sub(size);
            found.push(place);
        }
        Some(found)
    }

    /// Forgets entries whose records begin before `kept`: newer ones may overwrite them.
    pub(super) fn forget_before(&mut self, kept: Lsn) {
        while let Some((term, place)) = self.places.front() {
            if place.start >= kept {
                return;
            }
            self.base = (LogIndex(self.base.0.0 + 1), *term);
            self.places.pop_front();
        }
    }

    fn position(&self, index: LogIndex) -> Option<usize> {
        let at = index.0.checked_sub(self.base.0.0 + 1)?;
        usize::try_from(at).ok()
    }
}
