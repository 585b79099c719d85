//! Lock table: the locks that a client holds, in the order of their grants.
//!
//! A new grant may be withdrawn; then the owner's earlier locks below it apply again. So the newest
//! grants are kept apart. Older ones are merged as the shard merges them, so that a thousand
//! adjacent ranges cost as much as one.
//!
//! *Invariants*: an owner has at most [`NEWEST_MAX`] grants kept apart; a newer range decides where
//! ranges overlap.

use std::collections::{BTreeMap, VecDeque};
use zonal_types::Ino;
use zonal_wire::{LockKind, LockRange, LockRanges};

/// An owner, and whether its locks are flocks.
pub(crate) type Owner = (u64, bool);

/// Grants of one owner that can be withdrawn. A grant withdrawn after this many newer ones would
/// stay until its owner ends.
const NEWEST_MAX: usize = 64;

/// All locks of a client.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    owners: BTreeMap<(Ino, Owner), OwnerLocks>,
}

/// Locks of one owner on one inode.
#[derive(Debug)]
struct OwnerLocks {
    older: LockRanges,
    newest: VecDeque<LockRange>,
}

pub(crate) fn owner_of(range: &LockRange) -> Owner {
    (range.owner, range.whole_file)
}

impl LockTable {
    /// Inodes with locks; some come twice.
    pub(crate) fn inos(&self) -> impl Iterator<Item = Ino> {
        self.owners.keys().map(|(ino, _owner)| *ino)
    }

    /// Number of ranges kept.
    pub(crate) fn len(&self) -> usize {
        self.owners.values().map(OwnerLocks::len).sum()
    }

    /// Adds a granted lock.
    pub(crate) fn hold(&mut self, ino: Ino, range: LockRange) {
        let of = self.owners.entry((ino, owner_of(&range))).or_default();
        of.newest.push_back(range);
        of.bound();
    }

    /// True where the owner holds a lock there, got through `handle` if one is named.
    pub(crate) fn has_any(&self, ino: Ino, owner: Owner, handle: Option<u64>) -> bool {
        let of = self.owners.get(&(ino, owner));
        of.is_some_and(|of| {
            let mut all = of.within((0, u64::MAX));
            all.any(|range| handle.is_none_or(|handle| range.handle == handle))
        })
    }

    /// True where the owner holds a lock that it got by this request.
    pub(crate) fn has_number(&self, ino: Ino, owner: Owner, number: u64) -> bool {
        let of = self.owners.get(&(ino, owner));
        of.is_some_and(|of| {
            let mut all = of.within((0, u64::MAX));
            all.any(|range| range.number == number)
        })
    }

    /// Whether another owner holds a lock that conflicts with this range.
    pub(crate) fn excludes(&self, ino: Ino, range: &LockRange) -> bool {
        let own = owner_of(range);
        let others = self
            .owners
            .iter()
            .filter(|((of, owner), _)| *of == ino && *owner != own && owner.1 == range.whole_file);
        let mut held = others.flat_map(|(_, of)| of.within((range.start, range.end)));
        held.any(|held| [held.kind, range.kind].contains(&LockKind::Exclusive))
    }

    /// Removes all locks on an inode.
    pub(crate) fn forget_inode(&mut self, ino: Ino) {
        self.owners.retain(|(of, _owner), _| *of != ino);
    }

    /// Withdraws a request: the locks below it apply again.
    pub(crate) fn forget(&mut self, ino: Ino, owner: Owner, number: u64) {
        let Some(of) = self.owners.get_mut(&(ino, owner)) else {
            return;
        };
        of.newest.retain(|known| known.number != number);
        if of.len() == 0 {
            self.owners.remove(&(ino, owner));
        }
    }

    /// Removes the owner's locks within `cut` (last byte included) for which `is_meant` is true.
    /// Returns them, oldest first.
    pub(crate) fn give_up(
        &mut self,
        ino: Ino,
        owner: Owner,
        cut: (u64, u64),
        is_meant: impl Fn(&LockRange) -> bool,
    ) -> Vec<LockRange> {
        let Some(of) = self.owners.get_mut(&(ino, owner)) else {
            return Vec::new();
        };
        let meant = of.within(cut).filter(&is_meant);
        let released = with_owner(meant, owner);
        assert!(
            released
                .iter()
                .all(|range| cut.0 <= range.start && range.end <= cut.1),
            "a release goes beyond {cut:?}"
        );
        of.older.give_up(cut.0, cut.1, &is_meant);
        let newest = std::mem::take(&mut of.newest);
        for range in newest {
            if is_meant(&range) {
                of.newest.extend(outside(range, cut));
            } else {
                of.newest.push_back(range);
            }
        }
        of.bound();
        if of.len() == 0 {
            self.owners.remove(&(ino, owner));
        }
        released
    }

    /// Locks of the range's owner within the range, each byte once.
    pub(crate) fn within(&self, ino: Ino, range: &LockRange) -> Vec<LockRange> {
        let owner = owner_of(range);
        let of = self.owners.get(&(ino, owner));
        of.map_or_else(Vec::new, |of| {
            with_owner(of.resolved((range.start, range.end)).iter(), owner)
        })
    }

    /// All locks on the wanted inodes, each byte of an owner once.
    pub(crate) fn of_inodes(&self, is_wanted: impl Fn(Ino) -> bool) -> Vec<(Ino, LockRange)> {
        let wanted = self.owners.iter().filter(|((ino, _), _)| is_wanted(*ino));
        wanted
            .flat_map(|((ino, owner), of)| {
                let all = with_owner(of.resolved((0, u64::MAX)).iter(), *owner);
                all.into_iter().map(|range| (*ino, range))
            })
            .collect()
    }
}

impl Default for OwnerLocks {
    fn default() -> Self {
        Self {
            older: LockRanges::merging(),
            newest: VecDeque::new(),
        }
    }
}

impl OwnerLocks {
    fn len(&self) -> usize {
        self.older.len() + self.newest.len()
    }

    /// Merges grants beyond the newest ones.
    fn bound(&mut self) {
        while self.newest.len() > NEWEST_MAX
            && let Some(old) = self.newest.pop_front()
        {
            self.older.replace(old.start, old.end, Some((&old).into()));
        }
        assert!(
            self.newest.len() <= NEWEST_MAX,
            "{} grants are kept apart",
            self.newest.len()
        );
    }

    /// Locks within `cut`, where the newer decides. Those of different requests stay apart.
    fn resolved(&self, cut: (u64, u64)) -> LockRanges {
        let mut resolved = LockRanges::default();
        for range in self.within(cut) {
            resolved.replace(range.start, range.end, Some((&range).into()));
        }
        resolved
    }

    /// Grants within the range, oldest first.
    fn within(&self, (from, to): (u64, u64)) -> impl Iterator<Item = LockRange> {
        let newest = self.newest.iter();
        let newest = newest.filter(move |range| range.start <= to && from <= range.end);
        let newest = newest.map(move |range| LockRange {
            start: range.start.max(from),
            end: range.end.min(to),
            ..*range
        });
        self.older.within(from, to).chain(newest)
    }
}

fn with_owner(
    ranges: impl Iterator<Item = LockRange>,
    (owner, whole_file): Owner,
) -> Vec<LockRange> {
    let named = ranges.map(|range| LockRange {
        owner,
        whole_file,
        ..range
    });
    named.collect()
}

/// Parts of a range outside of another.
fn outside(range: LockRange, (from, to): (u64, u64)) -> impl Iterator<Item = LockRange> {
    let is_apart = range.end < from || to < range.start;
    let before = (range.start < from).then(|| LockRange {
        end: range.end.min(from.saturating_sub(1)),
        ..range
    });
    let behind = (to < range.end && !is_apart).then(|| LockRange {
        start: range.start.max(to.saturating_add(1)),
        ..range
    });
    let whole = (is_apart && before.is_none()).then_some(range);
    before.into_iter().chain(behind).chain(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Rng;

    const INO: Ino = Ino(7);

    fn range(owner: u64, start: u64, end: u64, kind: LockKind) -> LockRange {
        LockRange {
            whole_file: false,
            owner,
            handle: 0,
            number: 1,
            pid: 1,
            kind,
            start,
            end,
        }
    }

    #[test]
    fn a_release_leaves_what_lies_outside() {
        let exclusive = |owner, start, end| range(owner, start, end, LockKind::Exclusive);
        let mut held = LockTable::default();
        for range in [
            exclusive(1, 0, 9),
            exclusive(2, 0, 9),
            exclusive(1, 20, u64::MAX),
        ] {
            held.hold(INO, range);
        }
        let released = held.give_up(INO, (1, false), (5, 24), |_| true);
        assert_eq!(released, [exclusive(1, 5, 9), exclusive(1, 20, 24)]);
        let left = [
            exclusive(1, 0, 4),
            exclusive(1, 25, u64::MAX),
            exclusive(2, 0, 9),
        ];
        assert_eq!(held.of_inodes(|_| true), left.map(|range| (INO, range)));
        let all = (0, u64::MAX);
        assert_eq!(held.give_up(INO, (1, false), all, |_| true).len(), 2);
        assert!(!held.has_any(INO, (1, false), None) && held.has_any(INO, (2, false), None));
    }

    #[test]
    fn a_lock_of_another_owner_conflicts_if_either_is_exclusive() {
        let mut held = LockTable::default();
        held.hold(INO, range(1, 0, 9, LockKind::Exclusive));
        held.hold(INO, range(2, 20, 29, LockKind::Shared));
        for (owner, start, kind, expected) in [
            (2, 5, LockKind::Shared, true),
            (1, 5, LockKind::Exclusive, false),
            (2, 10, LockKind::Exclusive, false),
            (1, 25, LockKind::Shared, false),
            (1, 25, LockKind::Exclusive, true),
        ] {
            let asked = range(owner, start, start + 3, kind);
            assert_eq!(held.excludes(INO, &asked), expected, "{asked:?}");
            assert!(!held.excludes(Ino(8), &asked));
        }
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut held = LockTable::default();
        for at in 0..20_000 {
            held.hold(INO, range(1, at * 10, at * 10 + 9, LockKind::Exclusive));
        }
        assert!(held.len() <= NEWEST_MAX + 1, "{}", held.len());
        let all = range(1, 0, 199_999, LockKind::Exclusive);
        assert_eq!(held.of_inodes(|_| true), [(INO, all)]);
    }

    #[test]
    fn a_close_releases_locks_got_through_its_open_file() {
        let mut held = LockTable::default();
        let by = |handle, number, start, end| LockRange {
            handle,
            number,
            ..range(1, start, end, LockKind::Exclusive)
        };
        held.hold(INO, by(7, 1, 0, 9));
        held.hold(INO, by(8, 2, 5, 14));
        let all = (0, u64::MAX);
        held.give_up(INO, (1, false), all, |range| range.handle == 7);
        assert_eq!(held.of_inodes(|_| true), [(INO, by(8, 2, 5, 14))]);
        assert!(!held.has_any(INO, (1, false), Some(7)));
        assert!(held.has_any(INO, (1, false), Some(8)));
        held.give_up(INO, (1, false), all, |range| range.number < 2);
        assert!(held.has_any(INO, (1, false), None));
        held.forget(INO, (1, false), 1);
        assert!(held.has_any(INO, (1, false), None));
        held.forget(INO, (1, false), 2);
        assert_eq!(held.len(), 0);
    }

    /// The kind at each place, computed from all grants in their order.
    fn kinds(grants: &[LockRange], owner: u64) -> Vec<Option<LockKind>> {
        let at = |place| {
            let mut grants = grants.iter().rev();
            grants.find(|range| range.owner == owner && (range.start..=range.end).contains(&place))
        };
        (0..PLACES)
            .map(|place| at(place).map(|range| range.kind))
            .collect()
    }

    const PLACES: u64 = 40;

    #[test]
    fn merging_old_grants_changes_no_lock() {
        let mut rng = Rng(5);
        let (mut held, mut grants) = (LockTable::default(), Vec::<LockRange>::new());
        let (mut last, mut has_merged) = (None, false);
        for step in 0..20_000 {
            let start = rng.below(PLACES);
            let end = start + rng.below(PLACES - start);
            let kind = [LockKind::Shared, LockKind::Exclusive][rng.below(2) as usize];
            let number = step;
            let range = LockRange {
                number,
                ..range(rng.below(2), start, end, kind)
            };
            let owner = (range.owner, false);
            match rng.below(40) {
                0 => {
                    last = None;
                    let released = held.give_up(INO, owner, (start, end), |_| true);
                    let named = |known: &LockRange| known.owner == range.owner;
                    assert!(released.iter().all(named), "step {step}");
                    grants = grants
                        .into_iter()
                        .flat_map(|known| {
                            let is_owners = known.owner == range.owner;
                            let left: Vec<_> = if is_owners {
                                outside(known, (start, end)).collect()
                            } else {
                                vec![known]
                            };
                            left
                        })
                        .collect();
                }
                1 => {
                    if let Some(taken) = last.take() {
                        grants.pop();
                        held.forget(INO, owner_of(&taken), taken.number);
                    }
                }
                _ => {
                    held.hold(INO, range);
                    grants.push(range);
                    last = Some(range);
                }
            }
            let kept: Vec<_> = held
                .of_inodes(|_| true)
                .into_iter()
                .map(|(_, range)| range)
                .collect();
            for owner in 0..2 {
                assert_eq!(kinds(&kept, owner), kinds(&grants, owner), "step {step}");
            }
            has_merged |= held.owners.values().any(|of| !of.older.is_empty());
        }
        assert!(has_merged, "nothing was merged");
    }
}
