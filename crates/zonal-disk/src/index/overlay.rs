//! The overlay: changes that are not in the index yet, in memory, in key order. A removal hides
//! entries of lower layers.

use std::collections::BTreeMap;
use std::ops::Bound;

use zonal_types::KvChange;

/// Approximate overhead of a key beyond its bytes.
const ENTRY_COST: usize = 80;

/// Recent changes by key.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    map: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

/// A key with its value, or `None` for a removal.
pub(crate) type Entry = (Vec<u8>, Option<Vec<u8>>);

impl Overlay {
    /// Approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn apply(&mut self, change: KvChange) {
        let value_len = change.value.as_ref().map_or(0, Vec::len);
        let key_len = change.key.len();
        match self.map.insert(change.key, change.value) {
            Some(old) => {
                let old = old.map_or(0, |value| value.len());
                assert!(old <= self.bytes, "an overlay counts each of its values");
                self.bytes -= old;
            }
            None => self.bytes += key_len + ENTRY_COST,
        }
        self.bytes += value_len;
    }

    /// `Some(None)` for a removed key, `None` for a key without a change.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.map.get(key).map(Option::as_deref)
    }

    /// Entries in key order from `start` (inclusive) to `end` (exclusive).
    pub(crate) fn range(
        &self,
        start: &[u8],
        end: &[u8],
    ) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        // BTreeMap::range panics on an inverted range.
        let end = end.max(start);
        self.map
            .range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)))
            .map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.map
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    /// Puts the changes of `newer` over these.
    pub(crate) fn cover_with(&mut self, newer: Self) {
        for (key, value) in newer.map {
            self.apply(KvChange { key, value });
        }
    }

    /// A copy, for the rare case that a frozen overlay comes back while a reader holds it.
    pub(crate) fn duplicate(&self) -> Self {
        Self {
            map: self.map.clone(),
            bytes: self.bytes,
        }
    }
}
