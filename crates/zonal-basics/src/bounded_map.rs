//! A map with a bound: where it is full, a new entry displaces the one inserted longest ago.
//!
//! *Invariants*: at most `bound` entries; each has one place in the order of insertion. Inserting a
//! key again gives it the last place, changing a value in place does not.

use std::collections::BTreeMap;

/// A map of at most `bound` entries.
#[derive(Debug, Clone)]
pub struct BoundedMap<K, V> {
    bound: usize,
    entries: BTreeMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
    inserted: u64,
}

impl<K: Ord + Clone, V> BoundedMap<K, V> {
    /// Creates an empty map.
    #[must_use]
    pub const fn new(bound: usize) -> Self {
        Self {
            bound,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            inserted: 0,
        }
    }

    /// Inserts an entry at the end of the order. Returns the entry that was displaced, where the
    /// map was full.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        self.inserted += 1;
        if let Some((before, _)) = self.entries.insert(key.clone(), (self.inserted, value)) {
            self.order.remove(&before);
        }
        self.order.insert(self.inserted, key);
        let displaced = if self.order.len() > self.bound {
            self.pop_oldest()
        } else {
            None
        };
        self.assert_counts();
        displaced
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// The value of a key, to change in place.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// True where the key has an entry.
    pub fn contains_key(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// Removes the entry of a key.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (at, value) = self.entries.remove(key)?;
        self.order.remove(&at);
        self.assert_counts();
        Some(value)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True where there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn pop_oldest(&mut self) -> Option<(K, V)> {
        let (_, key) = self.order.pop_first()?;
        let (_, value) = self.entries.remove(&key)?;
        Some((key, value))
    }

    fn assert_counts(&self) {
        let (entries, ordered) = (self.entries.len(), self.order.len());
        assert!(
            entries == ordered && entries <= self.bound,
            "{entries} entries, {ordered} in order, {} at most",
            self.bound
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_drops_the_entry_inserted_longest_ago() {
        let mut map = BoundedMap::new(2);
        assert_eq!(map.insert(5, 'a'), None);
        assert_eq!(map.insert(9, 'b'), None);
        assert_eq!(map.insert(1, 'c'), Some((5, 'a')));
        assert_eq!((map.get(&5), map.get(&9), map.len()), (None, Some(&'b'), 2));
    }

    #[test]
    fn inserting_again_renews_an_entry_and_changing_it_does_not() {
        let mut map = BoundedMap::new(2);
        map.insert(1, 'a');
        map.insert(2, 'b');
        assert_eq!(map.insert(1, 'A'), None);
        if let Some(value) = map.get_mut(&2) {
            *value = 'B';
        }
        assert_eq!(map.insert(3, 'c'), Some((2, 'B')));
        assert!(map.contains_key(&1));
    }

    #[test]
    fn a_removed_entry_makes_room() {
        let mut map = BoundedMap::new(1);
        map.insert(1, ());
        assert_eq!((map.remove(&1), map.remove(&1)), (Some(()), None));
        assert!(map.is_empty());
        assert_eq!(map.insert(2, ()), None);
    }

    #[test]
    fn a_map_without_room_keeps_nothing() {
        assert_eq!(BoundedMap::new(0).insert(1, ()), Some((1, ())));
    }
}
