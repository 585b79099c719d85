//! Leased attributes: attributes as a shard last reported them, kept while its lease goes on. The
//! mount answers its kernel from here, whose own copies last one term.
//!
//! *Invariants*: an event is counted at its link before the client looks it up here. A grant is
//! checked against that count under the table's lock. So no entry is kept past an event. Own
//! changes: see `own_changes`. Bound: [`LEASED_ATTRIBUTES_MAX`]; the oldest make room.

use crate::cell::session::{LeaseTerm, Link};
use std::collections::BTreeSet;
use zonal_basics::BoundedMap;
use zonal_types::{Attr, Ino, Instant};

/// Inodes with leased attributes.
pub const LEASED_ATTRIBUTES_MAX: usize = 131_072;

#[derive(Debug)]
struct LeasedAttr {
    attr: Attr,
    term: LeaseTerm,
    /// The directory of a name that leads here; 0: unknown.
    parent: Ino,
}

/// Attributes under leases, by inode.
#[derive(Debug)]
pub(crate) struct LeasedAttributes {
    inodes: BoundedMap<Ino, LeasedAttr>,
    children: BTreeSet<(Ino, Ino)>,
}

impl Default for LeasedAttributes {
    fn default() -> Self {
        Self {
            inodes: BoundedMap::new(LEASED_ATTRIBUTES_MAX),
            children: BTreeSet::new(),
        }
    }
}

impl LeasedAttributes {
    /// Keeps attributes. `parent`: the directory by whose names they were found; 0: unknown.
    pub(crate) fn note(&mut self, parent: Ino, attr: &Attr, term: LeaseTerm) {
        let known = self.inodes.get(&attr.ino).map(|known| known.parent);
        let parent = if parent == Ino(0) {
            known.unwrap_or(parent)
        } else {
            parent
        };
        self.forget(attr.ino);
        let entry = LeasedAttr {
            attr: *attr,
            term,
            parent,
        };
        self.children.insert((parent, attr.ino));
        if let Some((ino, displaced)) = self.inodes.insert(attr.ino, entry) {
            self.children.remove(&(displaced.parent, ino));
        }
        assert!(
            self.children.len() == self.inodes.len(),
            "{} inodes are children, {} are kept",
            self.children.len(),
            self.inodes.len()
        );
    }

    /// Attributes, and for how many ms they are valid.
    pub(crate) fn get(&self, link: &Link, ino: Ino, now: Instant) -> Option<(Attr, u32)> {
        let known = self.inodes.get(&ino)?;
        let left = known.term.left_ms(link, now);
        (left > 0).then_some((known.attr, left))
    }

    pub(crate) fn forget(&mut self, ino: Ino) {
        if let Some(known) = self.inodes.remove(&ino) {
            self.children.remove(&(known.parent, ino));
        }
    }

    /// Forgets all that may have a name in `dir`.
    pub(crate) fn forget_children(&mut self, dir: Ino) {
        for parent in [dir, Ino(0)] {
            let range = (parent, Ino(0))..=(parent, Ino(u64::MAX));
            let children: Vec<Ino> = self.children.range(range).map(|(_, ino)| *ino).collect();
            for ino in children {
                self.forget(ino);
            }
        }
    }

    pub(crate) fn forget_all(&mut self) {
        *self = Self::default();
    }

    /// Number of inodes.
    pub(crate) fn len(&self) -> usize {
        self.inodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode_cache::sample_attributes::directory;
    use zonal_types::ShardId;

    fn table(children: &[(u64, u64)]) -> (LeasedAttributes, Link) {
        let link = Link::new(ShardId(1));
        let mut table = LeasedAttributes::default();
        let term = LeaseTerm::new(&link, Instant(0).plus_ms(100));
        for (parent, ino) in children {
            table.note(Ino(*parent), &directory(*ino, 1), term);
        }
        (table, link)
    }

    #[test]
    fn attributes_are_kept_for_their_term() {
        let (table, link) = table(&[(1, 5)]);
        let left = |ms| {
            let got = table.get(&link, Ino(5), Instant(0).plus_ms(ms));
            got.map(|(_, left)| left)
        };
        assert_eq!((left(40), left(100)), (Some(60), None));
    }

    #[test]
    fn children_of_a_directory_and_of_unknown_ones_are_forgotten() {
        let (mut table, link) = table(&[(1, 5), (2, 6), (0, 7), (1, 8), (0, 8)]);
        table.forget_children(Ino(1));
        let kept = |ino| table.get(&link, Ino(ino), Instant(0)).is_some();
        assert_eq!([5, 6, 7, 8].map(kept), [false, true, false, false]);
        assert_eq!(table.len(), 1);
    }
}
