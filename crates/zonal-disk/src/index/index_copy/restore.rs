//! Restores an index from its copy, where the copy has exactly the index's state.

use super::chain::Chain;
use super::record::Header;
use crate::files::error::DiskError;
use crate::files::identity::Stored;
use crate::files::{COPIES, INDEX};
use crate::index::IndexProgress;
use crate::index::raw_index::RawIndex;
use std::io;
use std::path::Path;

/// Puts or removes an entry.
type Put<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), DiskError> + 'a;

/// The state of a copy.
#[derive(Debug)]
pub(crate) enum Copy {
    /// There is none: none was written yet, or it was given up.
    None,
    /// It belongs to another state than the index. An older program used the store, or the copy was
    /// given up and its new beginning has no commit yet.
    Stale,
    /// Expected records are missing or damaged.
    Damaged(String),
    /// Records that make up the index when applied in order.
    Usable(Records),
}

/// Records of a copy, with their files.
#[derive(Debug)]
pub(crate) struct Records {
    chains: Vec<Chain>,
    /// Chain, position in the file, header, and whether its slice is needed.
    records: Vec<(usize, u64, Header, bool)>,
}

impl Records {
    /// The progress of an index after the last record.
    pub(crate) fn progress(&self) -> IndexProgress {
        let last = self.records.last();
        last.map_or_else(IndexProgress::default, |(_, _, header, _)| IndexProgress {
            applied: header.applied,
            applied_epoch: header.applied_epoch,
            epoch: header.applied_epoch,
            copy: header.sequence,
            store: header.store,
        })
    }

    /// The first damaged or unreadable record; reads all of them.
    fn first_bad(&self) -> Option<&Header> {
        let mut records = self.records.iter();
        let bad = records.find(|(chain, at, header, _)| {
            !matches!(self.chains[*chain].is_intact(*at, header), Ok(true))
        });
        bad.map(|(_, _, header, _)| header)
    }

    /// Passes entries and removals to `put`, in the order in which an index has to apply them.
    ///
    /// # Errors
    /// `Corrupt` for bytes that this program does not write, `Io`, and errors of `put`.
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

/// Examines the copy of an index that is at `index`, or that is lost. Reads only headers.
pub(crate) fn look(dir: &Path, store: u64, index: Option<&IndexProgress>) -> Copy {
    match chains(dir, store) {
        Ok(chains) => judge(chains, index),
        Err(error) => unreadable(&error),
    }
}

fn unreadable(error: &io::Error) -> Copy {
    Copy::Damaged(format!("it cannot be read: {error}"))
}

/// The files that are not empty.
fn chains(dir: &Path, store: u64) -> io::Result<Vec<Chain>> {
    let mut chains = Vec::new();
    for number in 0..COPIES.len() {
        if let Some(chain) = Chain::read(dir, number, store)?
            && chain.file.metadata()?.len() > 0
        {
            chains.push(chain);
        }
    }
    Ok(chains)
}

fn judge(mut chains: Vec<Chain>, index: Option<&IndexProgress>) -> Copy {
    if chains.is_empty() || index.is_some_and(|index| index.copy == 0) {
        return Copy::None;
    }
    chains.retain(|chain| !chain.records.is_empty());
    chains.sort_by_key(|chain| chain.last().map(|last| last.cycle));
    if let Some(index) = index {
        let mut all = chains.iter().flat_map(|chain| &chain.records);
        let named = all
            .clone()
            .find(|(_, header)| header.sequence == index.copy);
        match named {
            // The copy was given up and a cycle began, but the commit of its first record did not
            // happen.
            None if !chains.is_empty() && all.all(|(_, header)| header.sequence > index.copy) => {
                return Copy::Stale;
            }
            None => {
                let what = format!("record {} is missing", index.copy);
                return Copy::Damaged(what);
            }
            Some((_, header)) if !header.is_of(index) => return Copy::Stale,
            Some(_) => {}
        }
    }
    match whole(&chains) {
        // The first cycle is in progress.
        None => Copy::None,
        Some(records) => Copy::Usable(Records { chains, records }),
    }
}

/// Drops the last record if it was not written completely: its checkpoint may never have finished.
/// The log decides whether the rest is enough. Returns its sequence number.
fn drop_torn(chains: &mut [Chain]) -> Option<u64> {
    let newest = |chain: &&mut Chain| chain.last().map(|last| last.sequence);
    let chain = chains.iter_mut().max_by_key(newest)?;
    let (at, last) = chain.records.last()?;
    if matches!(chain.is_intact(*at, last), Ok(true)) {
        return None;
    }
    chain.records.pop().map(|(_, header)| header.sequence)
}

/// The records of a complete cycle, with those behind it.
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

/// Damage inside the copy of a sound index.
pub(crate) fn inside(dir: &Path, store: u64, index: &IndexProgress) -> Option<String> {
    let mut chains = match chains(dir, store) {
        Ok(chains) => chains,
        Err(error) => return Some(format!("it cannot be read: {error}")),
    };
    for chain in &mut chains {
        // Later records belong to no commit.
        let beyond = |(_, header): &(u64, Header)| header.sequence > index.copy;
        chain.records.retain(|record| !beyond(record));
    }
    let Copy::Usable(found) = judge(chains, Some(index)) else {
        return None;
    };
    let bad = found.first_bad()?;
    Some(format!("record {} fails its checksum", bad.sequence))
}

/// The records from which the index of a store can be restored, read and compared; the log decides
/// whether they are enough. The caller holds the store's lock.
pub(crate) fn intact(dir: &Path, stored: &Stored) -> Option<Records> {
    let index = RawIndex::open(&dir.join(INDEX)).ok();
    let index = index.map(|index| index.progress);
    let index = index.filter(|index| index.may_be_of(stored.tag()));
    let mut chains = chains(dir, stored.tag()).ok()?;
    let dropped = drop_torn(&mut chains);
    // The index names a record that is lost: the log may have all of its changes.
    let index = index.filter(|index| dropped != Some(index.copy));
    let Copy::Usable(found) = judge(chains, index.as_ref()) else {
        return None;
    };
    found.first_bad().is_none().then_some(found)
}
