//! Numbered records that several clients append to one file, gathered or not.
//!
//! * Each record is there at most once, whole, and at the place that its writer was told.
//! * A record that a fsync or close has acknowledged is there.
//! * Another record may be missing only where its client was killed, or was told of a loss.

use super::append_log::{RECORD, record};
use std::collections::{BTreeMap, BTreeSet};

/// Client and number of a record.
pub type RecordName = (usize, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The append has not returned.
    Begun,
    /// The append has returned this place.
    Taken(u64),
    /// A fsync or close has acknowledged the record.
    Acked(u64),
    /// The record may be missing; it is at this place, where the client learned it.
    Loose(Option<u64>),
}

/// All records of one file.
#[derive(Debug, Default)]
pub struct RecordLedger {
    known: BTreeMap<RecordName, Fate>,
    /// Clients that lost records and were not told yet.
    untold: BTreeSet<usize>,
    lost: u64,
}

impl RecordLedger {
    /// An append of these records begins.
    pub fn begin(&mut self, client: usize, numbers: std::ops::Range<u64>) {
        let new = numbers.map(|number| ((client, number), Fate::Begun));
        self.known.extend(new);
    }

    /// The append has returned: the records are there from `at` on.
    ///
    /// # Errors
    /// The place is before the end of the client's acknowledged records.
    pub fn taken(
        &mut self,
        client: usize,
        numbers: std::ops::Range<u64>,
        at: u64,
    ) -> Result<(), String> {
        let before = self.known.range_mut((client, 0)..(client, numbers.start));
        for (name, fate) in before {
            match *fate {
                Fate::Acked(before) if before + RECORD as u64 > at => {
                    return Err(format!(
                        "records: client {client} was told {at} for record {}, and {before} for {name:?}",
                        numbers.start
                    ));
                }
                // The record was lost while this append waited; its writer must be told.
                Fate::Taken(before) if before + RECORD as u64 > at => {
                    *fate = Fate::Loose(Some(before));
                    self.untold.insert(client);
                }
                _before => {}
            }
        }
        for (index, number) in numbers.enumerate() {
            let at = at + (index * RECORD) as u64;
            self.known.insert((client, number), Fate::Taken(at));
        }
        Ok(())
    }

    /// A fsync or close of the client has returned.
    ///
    /// # Errors
    /// It should have reported a loss.
    pub fn acknowledged(&mut self, client: usize) -> Result<(), String> {
        if self.untold.contains(&client) {
            return Err(format!(
                "records: a loss of client {client} was not reported"
            ));
        }
        for fate in self.of(client) {
            if let Fate::Taken(at) = *fate {
                *fate = Fate::Acked(at);
            }
        }
        Ok(())
    }

    /// The client was killed, or told of a loss.
    pub fn may_be_lost(&mut self, client: usize) {
        self.untold.remove(&client);
        for fate in self.of(client) {
            match *fate {
                Fate::Taken(at) => *fate = Fate::Loose(Some(at)),
                Fate::Begun => *fate = Fate::Loose(None),
                Fate::Acked(_) | Fate::Loose(_) => {}
            }
        }
    }

    /// An append of these records has failed: its outcome is unknown.
    pub fn unknown(&mut self, client: usize, numbers: std::ops::Range<u64>) {
        let unknown = numbers.map(|number| ((client, number), Fate::Loose(None)));
        self.known.extend(unknown);
    }

    /// Numbers of the client's records that were taken and are not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, client: usize) -> Vec<u64> {
        let own = self.known.range((client, 0)..=(client, u64::MAX));
        let taken = own.filter(|(_name, fate)| matches!(fate, Fate::Taken(_)));
        taken.map(|((_client, number), _fate)| *number).collect()
    }

    fn of(&mut self, client: usize) -> impl Iterator<Item = &mut Fate> {
        let own = self.known.range_mut((client, 0)..=(client, u64::MAX));
        own.map(|(_name, fate)| fate)
    }

    /// The acknowledged records, with their places.
    #[must_use]
    pub fn must(&self) -> Vec<(RecordName, u64)> {
        let acked = self.known.iter().filter_map(|(name, fate)| match fate {
            Fate::Acked(at) => Some((*name, *at)),
            _unknown => None,
        });
        acked.collect()
    }

    /// Number of records that were missing in the last check, and whose client was killed or told
    /// of a loss.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns what is wrong with the file. `must`: the records that were acknowledged before it
    /// was opened. `may_give_up`: appends may have been given up and left holes.
    pub fn check(
        &mut self,
        content: &[u8],
        must: &[(RecordName, u64)],
        may_give_up: bool,
    ) -> Vec<String> {
        let mut broken = Vec::new();
        if !content.len().is_multiple_of(RECORD) {
            broken.push(format!(
                "records: the file has {} bytes, no multiple of {RECORD}",
                content.len()
            ));
        }
        let mut names: BTreeMap<Vec<u8>, RecordName> = BTreeMap::new();
        for name in self.known.keys() {
            names.insert(record(name.0, name.1), *name);
        }
        let mut found: BTreeMap<RecordName, u64> = BTreeMap::new();
        for (index, bytes) in content.chunks(RECORD).enumerate() {
            let at = (index * RECORD) as u64;
            if bytes.iter().all(|byte| *byte == 0) {
                if !may_give_up {
                    broken.push(format!("records: a hole at {at}, though none was given up"));
                }
                continue;
            }
            let Some(name) = names.get(bytes) else {
                let text = String::from_utf8_lossy(bytes);
                broken.push(format!("records: torn at {at}: {text:?}"));
                continue;
            };
            if let Some(before) = found.insert(*name, at) {
                broken.push(format!("records: {name:?} is at {before} and at {at}"));
            }
            let told = match self.known.get(name) {
                Some(Fate::Taken(told) | Fate::Acked(told) | Fate::Loose(Some(told))) => *told,
                _unknown => at,
            };
            if told != at {
                broken.push(format!(
                    "records: {name:?} is at {at}, but its client was told {told}"
                ));
            }
        }
        for (name, at) in must {
            if !found.contains_key(name) {
                broken.push(format!(
                    "records: {name:?} was acknowledged at {at}, and is not there"
                ));
            }
        }
        let loose = self.known.iter().filter(|(name, fate)| {
            matches!(fate, Fate::Loose(Some(_))) && !found.contains_key(*name)
        });
        self.lost = loose.count() as u64;
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> RecordLedger {
        let mut records = RecordLedger::default();
        records.begin(0, 0..2);
        records.taken(0, 0..2, 0).unwrap();
        records.begin(1, 0..1);
        records.taken(1, 0..1, 128).unwrap();
        records.acknowledged(0).unwrap();
        records
    }

    #[test]
    fn wrong_records_are_found() {
        let mut records = known();
        let all = [record(0, 0), record(0, 1), record(1, 0)].concat();
        let must = records.must();
        assert_eq!(must.len(), 2);
        assert_eq!(records.check(&all, &must, false), Vec::<String>::new());
        assert_eq!(records.check(&all[..128], &must, false).len(), 0);
        assert_eq!(records.check(&all[..64], &must, false).len(), 1, "missing");
        let twice = [&all[..], &all[..64]].concat();
        assert_eq!(records.check(&twice, &must, true).len(), 2, "and elsewhere");
        let mut torn = all.clone();
        torn[130] = 0;
        assert_eq!(records.check(&torn, &must, true).len(), 1);
        let hole = [&all[..], &[0; 64]].concat();
        assert_eq!(records.check(&hole, &must, false).len(), 1);
        let moved = [&all[..128], &[0; 64], &all[128..]].concat();
        assert_eq!(records.check(&moved, &must, true).len(), 1);
    }

    #[test]
    fn only_unacknowledged_records_may_be_lost() {
        let mut records = known();
        records.may_be_lost(0);
        records.may_be_lost(1);
        assert_eq!(records.must().len(), 2);
        records.acknowledged(1).unwrap();
        assert_eq!(records.must().len(), 2, "told before");
        let two = [record(0, 0), record(0, 1)].concat();
        let must = records.must();
        assert!(records.check(&two, &must, false).is_empty());
        assert_eq!(records.lost(), 1);
        records.begin(0, 2..3);
        assert!(records.taken(0, 2..3, 64).is_err(), "over an earlier one");
        assert_eq!(records.unacknowledged(0), [0; 0]);
        records.begin(1, 1..3);
        records.taken(1, 1..2, 256).unwrap();
        records.taken(1, 2..3, 192).unwrap();
        assert!(records.acknowledged(1).is_err(), "not told");
        records.may_be_lost(1);
        assert!(records.acknowledged(1).is_ok());
    }
}
