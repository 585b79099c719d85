//! Interface through which cores read and change an ordered key-value store that they do not own.
//!
//! A core reads through [`KvRead`] and returns changes as a list of [`KvChange`]; it never writes
//! itself. In a shell the store is an overlay of recent changes above the embedded store; in the
//! simulator it is a map.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::error::ErrorCode;

/// One change of one key: a new value, or `None` to remove it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvChange {
    /// The whole key; keys order as bytes.
    pub key: Vec<u8>,
    /// The new value, or `None` to remove the key.
    pub value: Option<Vec<u8>>,
}

impl KvChange {
    /// Sets `key` to `value`.
    #[must_use]
    pub fn put(key: Vec<u8>, value: Vec<u8>) -> Self {
        Self {
            key,
            value: Some(value),
        }
    }

    /// Removes `key`.
    #[must_use]
    pub fn remove(key: Vec<u8>) -> Self {
        Self { key, value: None }
    }

    /// Applies the change to a map; returns the change that undoes it.
    pub fn apply_to(&self, keys: &mut BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        let before = match &self.value {
            Some(value) => keys.insert(self.key.clone(), value.clone()),
            None => keys.remove(&self.key),
        };
        Self {
            key: self.key.clone(),
            value: before,
        }
    }
}

/// Reading side of an ordered store. An error means that the medium failed or the contents are
/// damaged, never "absent".
pub trait KvRead {
    /// The value of `key`, if it exists.
    ///
    /// # Errors
    /// `ErrorCode::Io` or `ErrorCode::Corrupt` where the store cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode>;

    /// Calls `visit(key, value)` for each key in `start..end` in order, until `visit` returns
    /// false.
    ///
    /// # Errors
    /// `ErrorCode::Io` or `ErrorCode::Corrupt` where the store cannot be read.
    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode>;
}

/// A store in memory: the simulator's disks and tests.
impl KvRead for BTreeMap<Vec<u8>, Vec<u8>> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        Ok(Self::get(self, key).cloned())
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        // `BTreeMap::range` panics on an inverted range.
        if start < end {
            let range = (Bound::Included(start), Bound::Excluded(end));
            self.range::<[u8], _>(range)
                .all(|(key, value)| visit(key, value));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_a_store_and_changes_can_be_undone() {
        let mut keys = BTreeMap::new();
        let changes = [
            KvChange::put(vec![1], vec![1]),
            KvChange::put(vec![2], vec![2]),
            KvChange::put(vec![1], vec![3]),
            KvChange::remove(vec![2]),
        ];
        let undo: Vec<KvChange> = changes
            .iter()
            .map(|change| change.apply_to(&mut keys))
            .collect();
        keys.insert(vec![4], vec![4]);
        let mut seen = Vec::new();
        let mut see = |start: u8, end: u8, count: usize| {
            seen.clear();
            let visit = &mut |key: &[u8], _value: &[u8]| {
                seen.push(key[0]);
                seen.len() < count
            };
            assert_eq!(keys.scan(&[start], &[end], visit), Ok(()));
            seen.clone()
        };
        assert_eq!(see(0, 9, 9), [1, 4]);
        assert_eq!(see(1, 4, 9), [1]);
        assert_eq!(see(0, 9, 1), [1]);
        assert_eq!(see(9, 0, 9), []);
        keys.remove(&[4][..]);
        for change in undo.iter().rev() {
            change.apply_to(&mut keys);
        }
        assert!(keys.is_empty());
    }
}
