//! Power cuts: the states of files that a power loss may leave. Any choice of units of the
//! unflushed writes has arrived, in the order of the writes. All tests of power cuts share this
//! enumeration.
//!
//! A change is *issued*, and later it has *ended*. A flush covers the changes that had ended when
//! it was issued, and makes them durable when it has ended itself. Until then each unit of a change
//! may have arrived or not, independently of the others. A unit is 512 or 4096 bytes of a write, or
//! a new length.
//!
//! Units: bytes.

mod folder;
mod sparse_bytes;

pub use folder::{CrashFolder, FolderOperation, FolderState};
pub use sparse_bytes::SparseBytes;

use crate::Rng;

/// A change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// A write; a shorter file grows to fit.
    Write {
        /// Where they begin.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Sets the length.
    Resize(u64),
    /// Grows the file to at least this length.
    AtLeast(u64),
}

impl FileChange {
    /// The parts that arrive independently.
    fn units(&self, unit: u64) -> Vec<Self> {
        let Self::Write { at, bytes } = self else {
            return vec![self.clone()];
        };
        let unit = unit.max(1);
        let mut out = Vec::new();
        let mut rest = bytes.as_slice();
        let mut at = *at;
        while !rest.is_empty() {
            let step = (unit - at % unit).min(rest.len() as u64);
            let (first, behind) = rest.split_at(step as usize);
            let bytes = first.to_vec();
            out.push(Self::Write { at, bytes });
            at += step;
            rest = behind;
        }
        out
    }

    fn apply(&self, to: &mut SparseBytes) {
        match self {
            Self::Write { at, bytes } => to.put(*at, bytes),
            Self::Resize(length) => to.resize(*length),
            Self::AtLeast(length) => to.resize((*length).max(to.len())),
        }
    }
}

/// A change that is not durable.
#[derive(Debug, Clone)]
struct Pending {
    ticket: u64,
    has_ended: bool,
    change: FileChange,
}

/// One file: its durable contents, and its pending changes.
#[derive(Debug, Clone, Default)]
pub struct Image {
    durable: SparseBytes,
    pending: Vec<Pending>,
    next: u64,
}

/// The changes that an issued flush will make durable.
#[derive(Debug, Clone)]
pub struct Covered(Vec<u64>);

impl Image {
    /// A file whose bytes are durable.
    #[must_use]
    pub fn holding(durable: SparseBytes) -> Self {
        Self {
            durable,
            ..Self::default()
        }
    }

    /// Issues a change; returns its ticket.
    pub fn issue(&mut self, change: FileChange) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.pending.push(Pending {
            ticket,
            has_ended: false,
            change,
        });
        ticket
    }

    /// Ends a change. A failed change is never ended: it may have arrived in part, and no flush
    /// covers it.
    pub fn ended(&mut self, ticket: u64) {
        let found = self.pending.iter_mut().find(|own| own.ticket == ticket);
        if let Some(pending) = found {
            pending.has_ended = true;
        }
    }

    /// Issues and ends a change.
    pub fn change(&mut self, change: FileChange) {
        let ticket = self.issue(change);
        self.ended(ticket);
    }

    /// Issues a flush.
    #[must_use]
    pub fn flush(&self) -> Covered {
        let ended = self.pending.iter().filter(|pending| pending.has_ended);
        Covered(ended.map(|pending| pending.ticket).collect())
    }

    /// Ends a flush that succeeded.
    pub fn flushed(&mut self, covered: &Covered) {
        let durable = &mut self.durable;
        self.pending.retain(|pending| {
            // Tickets are in the order of issue.
            let is_covered = covered.0.binary_search(&pending.ticket).is_ok();
            if is_covered {
                pending.change.apply(durable);
            }
            !is_covered
        });
    }

    /// Makes everything durable.
    pub fn settle(&mut self) {
        for pending in self.pending.drain(..) {
            pending.change.apply(&mut self.durable);
        }
    }

    /// The contents that a reader sees while the power is on.
    #[must_use]
    pub fn live(&self) -> SparseBytes {
        let mut out = self.durable.clone();
        self.pending
            .iter()
            .for_each(|pending| pending.change.apply(&mut out));
        out
    }

    /// A random state, with equal odds for all its units.
    #[must_use]
    pub fn survivor(&self, unit: u64, rng: &mut Rng) -> SparseBytes {
        let odds = rng.below(5);
        let mut out = self.durable.clone();
        for change in self.units(unit) {
            if rng.below(4) < odds {
                change.apply(&mut out);
            }
        }
        out
    }

    fn units(&self, unit: u64) -> Vec<FileChange> {
        let all = self.pending.iter();
        all.flat_map(|pending| pending.change.units(unit)).collect()
    }
}

/// States of `images` together, at most `limit` and at least one. Where there are few pending
/// units: every choice of them. Otherwise some of: every prefix, every single unit lost, every
/// single unit arrived, and random choices.
pub fn states(images: &[&Image], unit: u64, limit: usize, rng: &mut Rng) -> Vec<Vec<SparseBytes>> {
    let units: Vec<Vec<FileChange>> = images.iter().map(|image| image.units(unit)).collect();
    let count = units.iter().map(Vec::len).sum();
    let state = |choice: Vec<bool>| {
        let mut taken = choice.into_iter();
        let files = images.iter().zip(&units);
        files
            .map(|(image, units)| {
                let mut out = image.durable.clone();
                for change in units {
                    if taken.next() == Some(true) {
                        change.apply(&mut out);
                    }
                }
                out
            })
            .collect()
    };
    choices(count, limit.max(1), rng)
        .into_iter()
        .map(state)
        .collect()
}

/// Which of `count` units arrive, state by state.
fn choices(count: usize, limit: usize, rng: &mut Rng) -> Vec<Vec<bool>> {
    if count < 32 && 1_usize << count <= limit {
        let masks = 0..1_usize << count;
        return masks
            .map(|mask| (0..count).map(|bit| mask >> bit & 1 == 1).collect())
            .collect();
    }
    // The end of a prefix, the lost unit, or the only unit.
    let mut regular: Vec<usize> = (0..3 * (count + 1)).collect();
    while regular.len() > limit.div_ceil(2) {
        regular.swap_remove(rng.index(regular.len()));
    }
    let mut out: Vec<Vec<bool>> = regular
        .into_iter()
        .map(|which| {
            let at = which / 3;
            let arrives = |unit: usize| match which % 3 {
                0 => unit < at,
                1 => unit != at,
                _ => unit == at,
            };
            (0..count).map(arrives).collect()
        })
        .collect();
    while out.len() < limit {
        out.push((0..count).map(|_| rng.below(2) == 0).collect());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, bytes: &[u8]) -> FileChange {
        FileChange::Write {
            at,
            bytes: bytes.to_vec(),
        }
    }

    fn all(image: &Image, limit: usize) -> Vec<Vec<u8>> {
        let states = states(&[image], 2, limit, &mut Rng(1));
        states.iter().map(|files| files[0].to_vec()).collect()
    }

    #[test]
    fn every_choice_of_few_units_is_made() {
        let mut image = Image::holding(SparseBytes::of(b"....."));
        image.change(write(1, b"abc"));
        let mut found = all(&image, 4);
        found.sort();
        assert_eq!(
            found,
            [
                b".....".to_vec(),
                b"..bc.".to_vec(),
                b".a...".to_vec(),
                b".abc.".to_vec()
            ]
        );
        assert_eq!(all(&image, 3).len(), 3);
    }

    #[test]
    fn a_flush_covers_what_had_ended_when_it_began() {
        let mut image = Image::holding(SparseBytes::of(b"...."));
        image.change(write(0, b"a"));
        let under_way = image.issue(write(1, b"b"));
        let covered = image.flush();
        image.change(write(2, b"c"));
        image.ended(under_way);
        image.flushed(&covered);
        let found = all(&image, 100);
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|bytes| bytes[0] == b'a'));
        assert!(found.contains(&b"a...".to_vec()));
        assert_eq!(image.live().to_vec(), b"abc.");
        image.settle();
        assert_eq!(all(&image, 100), [b"abc.".to_vec()]);
    }

    #[test]
    fn many_units_give_as_many_states_as_requested() {
        let mut image = Image::default();
        image.change(FileChange::Resize(600));
        image.change(write(100, &[7; 600]));
        for limit in [1, 2, 7, 100] {
            assert_eq!(all(&image, limit).len(), limit);
        }
        let mut lengths: Vec<usize> = all(&image, 200).iter().map(Vec::len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        assert!(lengths.len() > 10, "{lengths:?}");
    }
}
