//! Siblings: directories that came in one page of a listing.
//!
//! A walk lists siblings in listing order (`find`, `tar`) or by name (`ls -R`, `rsync`). The
//! previously listed sibling shows which. Bounds: [`BESIDE_MAX`] in all, [`FAMILY_MAX`] of one
//! page; the oldest groups are forgotten.

use std::collections::BTreeMap;
use zonal_types::{Ino, Instant, Name};

/// Siblings remembered.
pub(crate) const BESIDE_MAX: usize = 4_096;
/// Siblings of one page.
const FAMILY_MAX: usize = 1_024;
/// A process that lists a subdirectory this soon after its parent walks the tree, ms.
const SOON_MS: u64 = 1_000;
/// A process that lists a second sibling this soon after another also walks: the subtree takes
/// time, ms.
const WALK_MS: u64 = 30_000;

struct SiblingGroup {
    told: Vec<Ino>,
    /// Indexes into `told` in the order of names, and the rank of each.
    by_name: Vec<usize>,
    rank: Vec<usize>,
    /// Members not listed yet.
    left: usize,
    /// Index of the member listed last.
    last: Option<usize>,
    /// Time of that, or of the page.
    at: Instant,
}

/// A walk's position in a group.
pub(super) struct WalkPosition {
    family: u64,
    place: usize,
    by_name: bool,
}

/// Groups by age.
#[derive(Default)]
pub(super) struct Siblings {
    families: BTreeMap<u64, SiblingGroup>,
    /// Group and index of members that are not listed yet.
    of: BTreeMap<Ino, (u64, usize)>,
    next: u64,
    /// Members of all groups.
    members: usize,
}

impl SiblingGroup {
    /// Whether `place` follows `before` more closely by name than in listing order.
    fn goes_by_name(&self, before: Option<usize>, place: usize) -> bool {
        let rank = |place: usize| self.rank.get(place).copied().unwrap_or(0);
        let Some(before) = before else {
            return rank(place) < place;
        };
        match (
            rank(place).checked_sub(rank(before)),
            place.checked_sub(before),
        ) {
            (Some(by_name), Some(told)) => by_name < told,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

impl Siblings {
    /// Adds the subdirectories of one listing page.
    pub(super) fn add<'a>(&mut self, dirs: impl Iterator<Item = (Ino, &'a Name)>, now: Instant) {
        let dirs: Vec<(Ino, &Name)> = dirs.take(FAMILY_MAX).collect();
        if dirs.len() < 2 {
            return;
        }
        while self.members + dirs.len() > BESIDE_MAX {
            let Some(oldest) = self.families.keys().next().copied() else {
                break;
            };
            for ino in self.drop_family(oldest) {
                if self
                    .of
                    .get(&ino)
                    .is_some_and(|(family, _)| *family == oldest)
                {
                    self.of.remove(&ino);
                }
            }
        }
        let mut by_name: Vec<usize> = (0..dirs.len()).collect();
        by_name.sort_by_key(|place| dirs.get(*place).map(|(_, name)| name.as_bytes()));
        let mut rank = vec![0; dirs.len()];
        for (at, place) in by_name.iter().enumerate() {
            if let Some(rank) = rank.get_mut(*place) {
                *rank = at;
            }
        }
        let number = self.next;
        self.next += 1;
        self.members += dirs.len();
        let told: Vec<Ino> = dirs.iter().map(|(ino, _)| *ino).collect();
        for (place, ino) in told.iter().enumerate() {
            if let Some((before, _)) = self.of.insert(*ino, (number, place)) {
                self.leave(before);
            }
        }
        let left = told.len();
        let family = SiblingGroup {
            told,
            by_name,
            rank,
            left,
            last: None,
            at: now,
        };
        self.families.insert(number, family);
        assert!(
            self.members <= BESIDE_MAX && self.of.len() <= self.members,
            "{} siblings, {} of them not listed",
            self.members,
            self.of.len()
        );
    }

    /// Notes that a directory is listed; `None` where no walk goes on.
    pub(super) fn listed(&mut self, dir: Ino, now: Instant) -> Option<WalkPosition> {
        let (number, place) = self.of.remove(&dir)?;
        let family = self.families.get_mut(&number)?;
        let before = family.last.replace(place);
        let patience = if before.is_some() { WALK_MS } else { SOON_MS };
        let is_walk = now.ms_since(family.at) < patience;
        family.at = now;
        let turn = WalkPosition {
            family: number,
            place,
            by_name: family.goes_by_name(before, place),
        };
        self.leave(number);
        is_walk.then_some(turn)
    }

    /// Members behind the position that the walk may list next.
    pub(super) fn behind(&self, turn: &WalkPosition) -> impl Iterator<Item = Ino> {
        let family = self.families.get(&turn.family);
        let by_name = turn.by_name;
        let order = family.map(|family| if by_name { &family.rank } else { &[][..] });
        let from = order.and_then(|rank| rank.get(turn.place).copied());
        let from = from.unwrap_or(turn.place) + 1;
        family.into_iter().flat_map(move |family| {
            (from..family.told.len()).filter_map(move |at| {
                let place = if by_name {
                    *family.by_name.get(at)?
                } else {
                    at
                };
                let ino = family.told.get(place)?;
                self.of.contains_key(ino).then_some(*ino)
            })
        })
    }

    /// Excludes a directory from prefetch.
    pub(super) fn forget(&mut self, dir: Ino) {
        if let Some((number, _)) = self.of.remove(&dir) {
            self.leave(number);
        }
    }

    fn leave(&mut self, number: u64) {
        let Some(family) = self.families.get_mut(&number) else {
            return;
        };
        assert!(family.left > 0, "more siblings were listed than there are");
        family.left -= 1;
        if family.left == 0 {
            self.drop_family(number);
        }
    }

    /// Removes a group; returns its members.
    fn drop_family(&mut self, number: u64) -> Vec<Ino> {
        let family = self.families.remove(&number);
        let told = family.map_or_else(Vec::new, |family| family.told);
        assert!(
            told.len() <= self.members,
            "{} siblings leave, {} are counted",
            told.len(),
            self.members
        );
        self.members -= told.len();
        told
    }

    /// Siblings remembered.
    pub(super) fn len(&self) -> usize {
        self.members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1);

    fn names(count: u64) -> Vec<(Ino, Name)> {
        // Names in reverse order.
        (0..count)
            .map(|at| (Ino(100 + at), format!("d{:05}", count - at)))
            .map(|(ino, text)| (ino, Name::new(text.as_bytes()).unwrap()))
            .collect()
    }

    fn family(count: u64) -> Siblings {
        let mut beside = Siblings::default();
        add(&mut beside, &names(count));
        beside
    }

    fn add(beside: &mut Siblings, dirs: &[(Ino, Name)]) {
        beside.add(dirs.iter().map(|(ino, name)| (*ino, name)), START);
    }

    fn next(beside: &mut Siblings, dir: u64, now: Instant) -> Vec<u64> {
        let turn = beside.listed(Ino(dir), now);
        turn.map_or_else(Vec::new, |turn| {
            beside.behind(&turn).take(3).map(|ino| ino.0).collect()
        })
    }

    #[test]
    fn siblings_follow_in_the_order_of_the_walk() {
        let mut beside = family(10);
        assert_eq!(next(&mut beside, 100, START), [101, 102, 103]);
        assert_eq!(next(&mut beside, 101, START), [102, 103, 104]);
        let mut beside = family(10);
        assert_eq!(next(&mut beside, 109, START), [108, 107, 106]);
        assert_eq!(next(&mut beside, 107, START), [106, 105, 104]);
        beside.forget(Ino(105));
        assert_eq!(next(&mut beside, 106, START), [104, 103, 102]);
    }

    #[test]
    fn a_late_listing_is_not_part_of_a_walk() {
        let mut beside = family(10);
        let late = START.plus_ms(SOON_MS);
        assert!(next(&mut beside, 100, late).is_empty());
        let second = late.plus_ms(WALK_MS - 1);
        assert_eq!(next(&mut beside, 101, second).len(), 3);
        let much_later = second.plus_ms(WALK_MS);
        assert!(next(&mut beside, 102, much_later).is_empty());
        assert!(next(&mut beside, 102, much_later).is_empty(), "listed");
        assert!(next(&mut beside, 7, START).is_empty(), "not known");
    }

    #[test]
    fn the_oldest_sibling_groups_are_forgotten() {
        let mut beside = Siblings::default();
        let all = names(3 * BESIDE_MAX as u64);
        for part in all.chunks(200) {
            add(&mut beside, part);
            assert!(beside.len() <= BESIDE_MAX && beside.of.len() == beside.len());
        }
        let last = all[all.len() - 2].0;
        assert_eq!(next(&mut beside, last.0, START).len(), 3);
        assert!(next(&mut beside, 100, START).is_empty());
        // Once all are listed or came again, no group stays.
        for _ in 0..2 {
            add(&mut beside, &all[..FAMILY_MAX * 2]);
        }
        assert_eq!(beside.families.values().filter(|f| f.left == 0).count(), 0);
        for (ino, _) in &all {
            beside.forget(*ino);
        }
        assert_eq!(
            (beside.len(), beside.families.len(), beside.of.len()),
            (0, 0, 0)
        );
    }
}
