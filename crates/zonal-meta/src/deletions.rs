//! Deletions: layouts of removed files whose objects the targets still have to delete.
//!
//! The store has a key for each (`keys::deletion`). A scan for them steps over all keys removed
//! since the last checkpoint, so the shard also remembers their inodes. It learns those of this
//! life as they come, and older ones by reading the store once, in parts.
//!
//! *Invariants*: deletions that are not in memory lie at or behind the place where reading goes on.
//! *Bound*: [`DELETIONS_KNOWN_MAX`]; past it reading begins anew.

use crate::keys;
use crate::outcome::Deletion;
use crate::shard::MetaShard;
use std::collections::BTreeSet;
use zonal_types::{Codec, ErrorCode, Ino, Instant, KvChange, KvRead, Layout};

/// Inodes remembered.
pub const DELETIONS_KNOWN_MAX: usize = 65_536;
/// Keys read from the store at once.
const READ_AT_ONCE: usize = 1_024;

/// Inodes whose objects are to be deleted.
#[derive(Debug)]
pub(crate) struct Deletions {
    known: BTreeSet<Ino>,
    /// Key at which reading the store goes on; `None`: all are in memory.
    unread: Option<Vec<u8>>,
}

impl Default for Deletions {
    fn default() -> Self {
        Self {
            known: BTreeSet::new(),
            unread: Some(Vec::new()),
        }
    }
}

impl Deletions {
    /// The store has one more deletion.
    pub fn add(&mut self, ino: Ino) {
        if self.known.len() < DELETIONS_KNOWN_MAX {
            self.known.insert(ino);
        } else {
            self.read_again();
        }
        self.check();
    }

    /// Asserts the bound on the deletions in memory.
    fn check(&self) {
        assert!(
            self.known.len() <= DELETIONS_KNOWN_MAX,
            "{} deletions are in memory",
            self.known.len()
        );
    }

    /// The store no longer has the deletion.
    pub fn remove(&mut self, ino: Ino) {
        self.known.remove(&ino);
    }

    /// The store may have deletions that nobody reported.
    pub fn read_again(&mut self) {
        self.unread = Some(Vec::new());
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// True where the deletion of `ino` is in memory, or may still be found in the store.
    pub fn may_have(&self, ino: Ino) -> bool {
        let key = keys::deletion(ino);
        self.known.contains(&ino) || self.unread.as_ref().is_some_and(|from| *from <= key)
    }
}

fn deletion(kv: &dyn KvRead, ino: Ino) -> Result<Option<Deletion>, ErrorCode> {
    let key = keys::deletion(ino);
    let Some(value) = kv.get(&key)? else {
        return Ok(None);
    };
    let layout = Layout::from_bytes(&value).map_err(|_error| ErrorCode::Corrupt)?;
    Ok(Some(Deletion { key, layout }))
}

impl MetaShard {
    /// Layouts whose objects the targets must delete, in the order of their inodes. Those of inodes
    /// removed a moment ago wait, see [`Self::next_deletion`]. An unreadable deletion does not keep
    /// others from being done.
    ///
    /// # Errors
    /// The store's error, or `Corrupt`, where there is nothing else to do.
    pub fn deletions(
        &mut self,
        kv: &dyn KvRead,
        now: Instant,
        limit: usize,
    ) -> Result<Vec<Deletion>, ErrorCode> {
        self.recent.sweep(now);
        loop {
            let mut found = Vec::new();
            let mut gone = Vec::new();
            let mut failed = None;
            let due = self.deletions.known.iter();
            let due = due.filter(|ino| self.recent.get(**ino).is_none());
            let due = due.filter(|ino| !self.moves.frozen.contains(&ino.partition()));
            for ino in due {
                if found.len() >= limit {
                    break;
                }
                match deletion(kv, *ino) {
                    Ok(Some(deletion)) => found.push(deletion),
                    Ok(None) => gone.push(*ino),
                    Err(code) => failed = Some(code),
                }
            }
            gone.into_iter().for_each(|ino| self.deletions.remove(ino));
            if found.len() < limit {
                match self.read_deletions(kv) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(code) => failed = Some(code),
                }
            }
            return match failed {
                Some(code) if found.is_empty() => Err(code),
                _ => Ok(found),
            };
        }
    }

    /// Reads more of the store, while there is room. Returns false where it found nothing new.
    /// Fails where an unreadable key comes before anything new.
    fn read_deletions(&mut self, kv: &dyn KvRead) -> Result<bool, ErrorCode> {
        let room = DELETIONS_KNOWN_MAX.saturating_sub(self.deletions.known.len());
        let limit = room.min(READ_AT_ONCE);
        let (Some(from), true) = (self.deletions.unread.clone(), limit > 0) else {
            return Ok(false);
        };
        let mut found = Vec::new();
        let mut next = None;
        let mut failed = None;
        for partition in &self.partitions {
            let (start, end) = keys::tag_range(partition.0, keys::TAG_DELETION);
            let start = start.max(from.clone());
            if start >= end {
                continue;
            }
            let mut last = None;
            let read = kv.scan(&start, &end, &mut |key, _value| {
                if found.len() >= limit {
                    next = Some(key.to_vec());
                    return false;
                }
                found.extend(keys::ino_of(key));
                last = Some(key.to_vec());
                true
            });
            if let Err(code) = read {
                failed = Some(code);
                next = Some(last.unwrap_or(start));
            }
            if next.is_some() {
                break;
            }
        }
        self.deletions.unread = next;
        let before = self.deletions.len();
        self.deletions.known.extend(found);
        self.deletions.check();
        let has_new = self.deletions.len() > before;
        match failed {
            Some(code) if !has_new => Err(code),
            _ => Ok(has_new || self.deletions.unread.is_some()),
        }
    }

    /// When [`Self::deletions`] will have more than now, if nothing else happens.
    #[must_use]
    pub fn next_deletion(&self) -> Option<Instant> {
        self.recent.next_end()
    }

    /// The targets have deleted these; returns the effect to log.
    #[must_use]
    pub fn deletion_done(&mut self, keys: Vec<Vec<u8>>) -> Vec<KvChange> {
        for ino in keys.iter().filter_map(|key| keys::ino_of(key)) {
            self.deletions.remove(ino);
        }
        // Another shard deletes the rest again, which changes nothing.
        let is_here = |key: &Vec<u8>| {
            let partition = keys::ino_of(key).map(Ino::partition);
            partition.is_some_and(|of| {
                self.partitions.binary_search(&of).is_ok() && !self.moves.frozen.contains(&of)
            })
        };
        let keys = keys.into_iter().filter(is_here);
        keys.map(KvChange::remove).collect()
    }
}
