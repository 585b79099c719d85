//! The walk down from the root, in key order, past damaged pages.

use super::page::{Branch, Leaf, Link};
use super::{DEPTH_MAX, IndexItem, PAGE, Page, RawIndex, Visit};
use crate::index::unseal;

/// The part of the key space that a page may hold: keys above the first, up to the second.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    above: &'a [u8],
    is_first: bool,
    upto: Option<&'a [u8]>,
}

impl Bounds<'_> {
    fn admit(&self, key: &[u8]) -> bool {
        (self.is_first || key > self.above) && self.upto.is_none_or(|upto| key <= upto)
    }
}

struct Walk<'a, 'v> {
    start: &'a [u8],
    end: Option<&'a [u8]>,
    pages_left: u64,
    visit: &'a mut Visit<'v>,
}

impl RawIndex {
    /// Visits the items from `start` (inclusive) to `end` (exclusive; `None`: all behind).
    pub fn walk(&self, start: &[u8], end: Option<&[u8]>, visit: &mut Visit<'_>) -> bool {
        let Some(root) = self.root else {
            return true;
        };
        let mut walk = Walk {
            start,
            end,
            pages_left: self.length / PAGE,
            visit,
        };
        let bounds = Bounds {
            above: &[],
            is_first: true,
            upto: None,
        };
        self.descend(root, bounds, 0, &mut walk)
    }

    fn descend(&self, link: Link, bounds: Bounds<'_>, depth: u32, walk: &mut Walk<'_, '_>) -> bool {
        let offset = self.address(link.page).map_or(0, |(offset, _)| offset);
        let bad = IndexItem::BadPage {
            offset,
            depth,
            above: bounds.above,
            upto: bounds.upto,
        };
        if depth > DEPTH_MAX || walk.pages_left == 0 {
            return (walk.visit)(bad);
        }
        walk.pages_left -= 1;
        let bytes = match self.page(link) {
            Page::Sound(bytes) => bytes,
            Page::Mended(bytes) => {
                if !(walk.visit)(IndexItem::Mended { offset }) {
                    return false;
                }
                bytes
            }
            Page::Doubtful(bytes) => {
                // A leaf damaged in places: its entries have their own checksums. If all of them
                // hold, the leaf is sound but is not the one that belongs here.
                return (walk.visit)(bad)
                    && match Leaf::of(&bytes) {
                        Some(leaf) if leaf.has_damage() => leaf.visit_sound(&bounds, walk),
                        _ => true,
                    };
            }
            Page::Gone => return (walk.visit)(bad),
        };
        match (Leaf::of(&bytes), Branch::of(&bytes)) {
            (Some(leaf), _) => leaf.visit(walk),
            (_, Some(branch)) => self.children(&branch, bounds, depth, walk),
            _ => (walk.visit)(bad),
        }
    }

    fn children(
        &self,
        branch: &Branch<'_>,
        bounds: Bounds<'_>,
        depth: u32,
        walk: &mut Walk<'_, '_>,
    ) -> bool {
        for at in 0..=branch.keys {
            let (above, is_first) = match at.checked_sub(1).and_then(|before| branch.key(before)) {
                Some(key) => (key, false),
                None => (bounds.above, bounds.is_first),
            };
            let upto = branch.key(at).or(bounds.upto);
            if upto.is_some_and(|upto| upto < walk.start) {
                continue;
            }
            // Every key of this child is above `above`.
            if !is_first && walk.end.is_some_and(|end| above >= end) {
                break;
            }
            let child = Bounds {
                above,
                is_first,
                upto,
            };
            let Some(link) = branch.child(at) else {
                return true;
            };
            if !self.descend(link, child, depth + 1, walk) {
                return false;
            }
        }
        true
    }
}

impl Leaf<'_> {
    fn visit(&self, walk: &mut Walk<'_, '_>) -> bool {
        for (key, sealed) in (0..self.count).filter_map(|at| self.entry(at)) {
            if key < walk.start {
                continue;
            }
            if walk.end.is_some_and(|end| key >= end) {
                return true;
            }
            let found = match unseal(key, sealed) {
                Ok(value) => IndexItem::Entry(key, value),
                Err(_) => IndexItem::BadEntry { key },
            };
            if !(walk.visit)(found) {
                return false;
            }
        }
        true
    }

    /// Visits the entries that belong here in key order and whose checksums hold.
    fn visit_sound(&self, bounds: &Bounds<'_>, walk: &mut Walk<'_, '_>) -> bool {
        let mut last: Option<&[u8]> = None;
        for (key, sealed) in (0..self.count).filter_map(|at| self.entry(at)) {
            let is_wanted = key >= walk.start && walk.end.is_none_or(|end| key < end);
            let rises = last.is_none_or(|last| last < key);
            if let (true, true, true, Ok(value)) =
                (is_wanted, rises, bounds.admit(key), unseal(key, sealed))
            {
                last = Some(key);
                if !(walk.visit)(IndexItem::Entry(key, value)) {
                    return false;
                }
            }
        }
        true
    }
}
