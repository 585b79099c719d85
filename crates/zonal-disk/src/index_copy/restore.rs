//! An index made anew from its copy, where the copy is exactly what the index was.

use super::chain::{COPIES, Chain};
use super::record::Header;
use crate::error::DiskError;
use crate::identity::Stored;
use crate::index::Progress;
use crate::raw_index::RawIndex;
use crate::read_only::log_goes_on;
use crate::store::INDEX;
use std::io;
use std::path::Path;

/// Puts an entry, or takes it out.
type Put<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), DiskError> + 'a;

/// What there is of a copy.
#[derive(Debug)]
pub(crate) enum Copy {
    /// Nothing: none was written yet, or it was given up.
    None,
    /// It is of another state than the index: a program from before used the store.
    Stale,
    /// What should be there is not.
    Damaged(String),
    /// The records that make an index when they are taken in order.
    Usable(Records),
}

/// Records of a copy, and what they end with.
#[derive(Debug)]
pub(crate) struct Records {
    chains: Vec<Chain>,
    /// Chain, place in the file, header, and whether its slice is wanted.
    records: Vec<(usize, u64, Header, bool)>,
}

impl Records {
    /// Where the last of them leaves an index.
    pub(crate) fn progress(&self) -> Progress {
        let last = self.records.last();
        last.map_or_else(Progress::default, |(_, _, header, _)| Progress {
            applied: header.applied,
            applied_epoch: header.applied_epoch,
            epoch: header.applied_epoch,
            copy: header.sequence,
            store: header.store,
        })
    }

    /// The first record that is not what was written; all of them are read.
    fn first_bad(&self) -> io::Result<Option<usize>> {
        for (place, (chain, at, header, _)) in self.records.iter().enumerate() {
            if !self.chains[*chain].is_intact(*at, header)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Gives entries and removals in the order in which they have to be put into an index.
    ///
    /// # Errors
    /// `Corrupt` for what this program would not have written, `Io`, and what `put` gives.
    pub(crate) fn for_each(&self, put: &mut Put<'_>) -> Result<(), DiskError> {
        for (chain, at, header, with_slice) in &self.records {
            let chain = &self.chains[*chain];
            chain.entries(*at, header, &mut |is_slice, key, value| {
                if is_slice && !with_slice {
                    return Ok(());
                }
                put(key, value)
            })?;
        }
        Ok(())
    }
}

/// Looks at the copy of an index that is at `index`, or that is lost. Headers alone are read.
pub(crate) fn look(dir: &Path, store: u64, index: Option<&Progress>) -> io::Result<Copy> {
    let mut chains = Vec::new();
    for number in 0..COPIES.len() {
        chains.extend(Chain::read(dir, number, store)?);
    }
    let is_empty = |chain: &Chain| chain.file.metadata().map(|found| found.len() == 0);
    let mut all_empty = true;
    for chain in &chains {
        all_empty &= is_empty(chain)?;
    }
    if all_empty || index.is_some_and(|index| index.copy == 0) {
        return Ok(Copy::None);
    }
    chains.retain(|chain| !chain.records.is_empty());
    chains.sort_by_key(|chain| chain.last().map(|last| last.cycle));
    if let Some(index) = index {
        let all = || chains.iter().flat_map(|chain| &chain.records);
        let named = all().find(|(_, header)| header.sequence == index.copy);
        match named {
            None => {
                let what = format!("record {} is missing", index.copy);
                return Ok(Copy::Damaged(what));
            }
            Some((_, header)) if !header.is_of(index) => return Ok(Copy::Stale),
            Some(_) => {}
        }
    }
    Ok(match whole(&chains) {
        // The first cycle is under way.
        None => Copy::None,
        Some(records) => Copy::Usable(Records { chains, records }),
    })
}

/// The records that are a whole cycle, with those behind it.
fn whole(chains: &[Chain]) -> Option<Vec<(usize, u64, Header, bool)>> {
    let of = |number: usize, with_slice: bool| {
        let records = chains.get(number).map(|chain| chain.records.as_slice());
        let records = records.unwrap_or_default().iter();
        records.map(move |(at, header)| (number, *at, *header, with_slice))
    };
    let last = chains.len().checked_sub(1)?;
    let newest = chains.get(last)?.last()?;
    if newest.whole {
        return Some(of(last, true).collect());
    }
    let before = last.checked_sub(1)?;
    let older = chains.get(before)?.last()?;
    let first = chains.get(last)?.records.first()?.1;
    let follows =
        older.whole && older.cycle + 1 == first.cycle && older.sequence + 1 == first.sequence;
    follows.then(|| of(before, true).chain(of(last, false)).collect())
}

/// What is wrong with the bytes of the copy of a sound index.
pub(crate) fn inside(dir: &Path, store: u64, index: &Progress) -> io::Result<Option<String>> {
    let Copy::Usable(found) = look(dir, store, Some(index))? else {
        return Ok(None);
    };
    let bad = found.first_bad()?.map(|bad| found.records[bad].2.sequence);
    // What is behind belongs to no commit.
    let bad = bad.filter(|sequence| *sequence <= index.copy);
    Ok(bad.map(|sequence| format!("record {sequence} fails its checksum")))
}

/// The records from which the index of a store can be made exactly, read and compared. The store's lock is held by the caller.
///
/// # Errors
/// `Io`.
pub(crate) fn usable(dir: &Path, stored: &Stored) -> Result<Option<(Records, u64)>, DiskError> {
    let failed = |error| DiskError::io("read the copy of the index", error);
    let index = RawIndex::open(&dir.join(INDEX)).ok();
    let index = index.map(|index| index.progress);
    let index = index.filter(|index| index.may_be_of(stored.tag()));
    let Copy::Usable(mut found) = look(dir, stored.tag(), index.as_ref()).map_err(failed)? else {
        return Ok(None);
    };
    if let Some(bad) = found.first_bad().map_err(failed)? {
        // The last may be of a checkpoint that never was one.
        let named = index.map_or(0, |index| index.copy);
        let is_beyond = found.records[bad].2.sequence > named;
        if !is_beyond || bad + 1 < found.records.len() {
            return Ok(None);
        }
        let whole = found
            .records
            .iter()
            .position(|(_, _, header, _)| header.whole);
        if whole.is_none_or(|whole| whole >= bad) {
            return Ok(None);
        }
        found.records.truncate(bad);
    }
    let progress = found.progress();
    let newest = log_goes_on(dir, stored, &progress)?;
    Ok(newest.map(|epoch| (found, epoch)))
}
