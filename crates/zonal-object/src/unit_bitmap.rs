//! A bitmap with one bit for each unit of every segment. Memory: 1 byte for 32 KiB of segments.

use crate::ids::{Extent, Place};
use std::collections::BTreeMap;

/// A set of units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitBitmap {
    segments: BTreeMap<u32, Vec<u64>>,
}

impl UnitBitmap {
    /// Loads a segment's words.
    pub(crate) fn load(&mut self, segment: u32, words: Vec<u64>) {
        self.segments.insert(segment, words);
    }

    /// Adds a unit; false where it was already in the set.
    pub fn insert(&mut self, place: Place) -> bool {
        let words = self.segments.entry(place.segment).or_default();
        let at = (place.unit / 64) as usize;
        if words.len() <= at {
            words.resize(at + 1, 0);
        }
        let bit = 1 << (place.unit % 64);
        let is_new = words[at] & bit == 0;
        words[at] |= bit;
        is_new
    }

    /// Whether the set has a unit.
    #[must_use]
    pub fn has(&self, place: Place) -> bool {
        let words = self.segments.get(&place.segment);
        let word = words.and_then(|words| words.get((place.unit / 64) as usize));
        word.is_some_and(|word| word >> (place.unit % 64) & 1 == 1)
    }

    /// Adds or removes the units of an extent.
    pub(crate) fn set(&mut self, extent: &Extent, on: bool) {
        for place in extent.places() {
            if on {
                self.insert(place);
            } else if let Some(words) = self.segments.get_mut(&place.segment)
                && let Some(word) = words.get_mut((place.unit / 64) as usize)
            {
                *word &= !(1 << (place.unit % 64));
            }
        }
    }

    /// Adds all units of another set.
    pub fn add(&mut self, other: &Self) {
        for (segment, words) in &other.segments {
            let own = self.segments.entry(*segment).or_default();
            if own.len() < words.len() {
                own.resize(words.len(), 0);
            }
            for (word, more) in own.iter_mut().zip(words) {
                *word |= more;
            }
        }
    }

    /// Number of units in this set that are not in `other`.
    #[must_use]
    pub fn beyond(&self, other: &Self) -> u64 {
        let mut count = 0;
        for (segment, words) in &self.segments {
            let theirs = other.segments.get(segment);
            for (at, word) in words.iter().enumerate() {
                let their = theirs.and_then(|theirs| theirs.get(at)).unwrap_or(&0);
                count += u64::from((word & !their).count_ones());
            }
        }
        count
    }

    /// Lists a segment even if it has no units.
    pub(crate) fn touch(&mut self, segment: u32) {
        self.segments.entry(segment).or_default();
    }

    /// Segments with their words.
    pub fn segments(&self) -> impl Iterator<Item = (u32, &[u64])> {
        self.segments
            .iter()
            .map(|(segment, words)| (*segment, words.as_slice()))
    }
}
