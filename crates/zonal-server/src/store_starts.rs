//! Start records: whether a store that comes up is the one that the cell used last. The manager's
//! records, and a node's part.
//!
//! The manager keeps the uuid of each store and the last mark that it took. A store that knows this
//! mark is the one that was used last. A store that does not is a copy or an older image; it is
//! refused before it can serve or change the map. See docs/rfcs/2026-11-21-starts-of-stores.md.

use zonal_disk::start_marks::{self, Starts, StoredMark};
use zonal_disk::{DiskError, StoreDir};
use zonal_types::describe::Described;
use zonal_types::{Codec, ErrorCode, codec_struct};
use zonal_wire::{StartMark, StoreStart};

/// Key of the records in the manager's store, behind the zone map; the kind and the number of the
/// store follow.
const KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf1];
/// Kinds of stores, as in [`StoreStart::kind`].
pub(crate) const SHARD: u8 = 1;
pub(crate) const TARGET: u8 = 2;
/// Kind of the record of a removed target's store; the store's uuid follows in the key.
const REMOVED: u8 = 3;
/// The replica of the root's shard of one of several managers.
pub(crate) const ROOT: u8 = 4;

codec_struct! {
    /// The manager's record of a store.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct StartRecord {
        /// Its identity.
        uuid: [u8; 16],
        /// The last start taken.
        mark: StartMark,
    }
}

/// Why a store may not serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreStartError {
    /// The store was formatted anew, or is another one.
    #[error("{what} {id} is known with another store: this one was formatted apart from it")]
    OtherStore {
        /// Shard or target.
        what: &'static str,
        /// Its number.
        id: u32,
    },
    /// A later start was taken than the store knows.
    #[error(
        "{what} {id} is an older image or a copy: it was last in use at its start {found}, the cell has seen its start {newest}"
    )]
    NotNewest {
        /// Shard or target.
        what: &'static str,
        /// Its number.
        id: u32,
        /// The last start that the store knows to be taken.
        found: u64,
        /// The last start taken.
        newest: u64,
    },
    /// The store was taken out of the cell.
    #[error(
        "this store ({what} {id}) was taken out of the cell by `zonal target remove` or `zonal node remove`"
    )]
    Removed {
        /// Shard or target.
        what: &'static str,
        /// Its number.
        id: u32,
    },
    /// This program does not know the kind.
    #[error("a store of kind {0}")]
    Kind(u8),
}

impl StoreStartError {
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::OtherStore { .. } | Self::NotNewest { .. } | Self::Removed { .. } => {
                ErrorCode::WrongTarget
            }
            Self::Kind(_) => ErrorCode::Invalid,
        }
    }
}

/// Key of a store's record.
pub(crate) fn key(kind: u8, id: u32) -> Vec<u8> {
    let mut key = KEY.to_vec();
    key.push(kind);
    key.extend_from_slice(&id.to_be_bytes());
    key
}

/// Key of the record of a removed store.
pub(crate) fn removed_key(uuid: [u8; 16]) -> Vec<u8> {
    let mut key = KEY.to_vec();
    key.push(REMOVED);
    key.extend_from_slice(&uuid);
    key
}

/// True for a key of a start record.
pub(crate) fn is_record(key: &[u8]) -> bool {
    key.starts_with(&KEY)
}

/// True for the key of a shard's start record.
pub(crate) fn is_of_shard(key: &[u8]) -> bool {
    is_record(key) && key.get(KEY.len()) == Some(&SHARD)
}

/// A record in printable form; `None` where the key is another one, or the value is damaged.
#[must_use]
pub fn describe(key: &[u8], value: &[u8]) -> Option<Described> {
    let (kind, id) = key.strip_prefix(&KEY)?.split_first()?;
    let known = StartRecord::from_bytes(value).ok()?;
    let kind = match *kind {
        SHARD => "shard of node",
        ROOT => "manager on node",
        TARGET => "target",
        REMOVED => {
            let known = Described::new("store that was taken out of the cell");
            return Some(known.with("uuid", id).with("start", known_start(value)?));
        }
        _ => return None,
    };
    Some(
        Described::new("last start of a store")
            .with("kind", kind)
            .with("number", u32::from_be_bytes(id.try_into().ok()?))
            .with("uuid", &known.uuid[..])
            .with("start", known.mark.number)
            .with("tag", known.mark.tag),
    )
}

fn known_start(value: &[u8]) -> Option<u64> {
    Some(StartRecord::from_bytes(value).ok()?.mark.number)
}

/// A kind of store, in words.
pub(crate) fn what_of(kind: u8) -> Result<&'static str, StoreStartError> {
    match kind {
        SHARD => Ok("shard of node"),
        ROOT => Ok("manager on node"),
        TARGET => Ok("target"),
        other => Err(StoreStartError::Kind(other)),
    }
}

/// Checks whether `store` may serve, by its record.
///
/// # Errors
/// See [`StoreStartError`].
pub(crate) fn judge(
    known: Option<&StartRecord>,
    store: &StoreStart,
) -> Result<(), StoreStartError> {
    let what = what_of(store.kind)?;
    let id = store.id;
    let Some(known) = known else {
        return Ok(());
    };
    if known.uuid != store.uuid {
        return Err(StoreStartError::OtherStore { what, id });
    }
    // The mark of a repeated request, or one that the store knows.
    let mut marks = [store.mark, store.taken]
        .into_iter()
        .chain(store.proposed.iter().copied());
    // The store knows a later start than the manager: the manager was restored from an older image,
    // so the store is accepted.
    let is_ahead = store.taken.number > known.mark.number;
    if is_ahead || marks.any(|mark| mark == known.mark) {
        return Ok(());
    }
    Err(StoreStartError::NotNewest {
        what,
        id,
        found: store.taken.number,
        newest: known.mark.number,
    })
}

/// Prepares a start of a store, to be proposed to the manager.
///
/// # Errors
/// Where the disk fails.
pub(crate) fn begin(
    dir: &StoreDir,
    kind: u8,
    id: u32,
    uuid: [u8; 16],
) -> Result<StoreStart, DiskError> {
    Ok(of_marks(&start_marks::propose(dir)?, (kind, id, uuid)))
}

/// The starts of a store, of which none is proposed now.
///
/// # Errors
/// Where the disk fails.
pub(crate) fn known(
    dir: &StoreDir,
    kind: u8,
    id: u32,
    uuid: [u8; 16],
) -> Result<StoreStart, DiskError> {
    Ok(of_marks(&start_marks::known(dir)?, (kind, id, uuid)))
}

fn of_marks(found: &Starts, (kind, id, uuid): (u8, u32, [u8; 16])) -> StoreStart {
    let wire = |mark: &StoredMark| StartMark {
        number: mark.number,
        tag: mark.tag,
    };
    StoreStart {
        kind,
        id,
        uuid,
        mark: wire(found.proposed.last().unwrap_or(&found.taken)),
        taken: wire(&found.taken),
        proposed: found.proposed.iter().map(wire).collect(),
    }
}

/// Notes in the store that the manager has taken the start.
///
/// # Errors
/// Where the disk fails.
pub(crate) fn taken(dir: &StoreDir, store: &StoreStart) -> Result<(), DiskError> {
    let mark = StoredMark {
        number: store.mark.number,
        tag: store.mark.tag,
    };
    start_marks::taken(dir, mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64) -> StartMark {
        StartMark {
            number,
            tag: number * 1000,
        }
    }

    fn store(mark_number: u64, taken: u64) -> StoreStart {
        StoreStart {
            kind: TARGET,
            id: 3,
            uuid: [1; 16],
            mark: mark(mark_number),
            taken: mark(taken),
            proposed: vec![mark(mark_number)],
        }
    }

    fn known(number: u64) -> StartRecord {
        StartRecord {
            uuid: [1; 16],
            mark: mark(number),
        }
    }

    #[test]
    fn only_the_newest_image_of_a_store_serves() {
        assert_eq!(judge(None, &store(1, 0)), Ok(()));
        assert_eq!(judge(Some(&known(1)), &store(2, 1)), Ok(()));
        // The answer was lost: the same start again, and the next one, which knows that the first
        // was proposed.
        assert_eq!(judge(Some(&known(2)), &store(2, 1)), Ok(()));
        let mut next = store(3, 1);
        next.proposed.insert(0, mark(2));
        assert_eq!(judge(Some(&known(2)), &next), Ok(()));
        // A copy from when 1 was taken.
        let refused = judge(Some(&known(2)), &store(9, 1));
        assert!(matches!(
            refused,
            Err(StoreStartError::NotNewest {
                found: 1,
                newest: 2,
                ..
            })
        ));
        // The same number with another tag, drawn by a copy.
        let mut copy = store(2, 1);
        copy.mark.tag = 7;
        copy.proposed[0].tag = 7;
        assert!(judge(Some(&known(2)), &copy).is_err());
        let mut other = store(2, 1);
        other.uuid = [2; 16];
        assert!(matches!(
            judge(Some(&known(1)), &other),
            Err(StoreStartError::OtherStore { .. })
        ));
        // An older image of the manager.
        assert_eq!(judge(Some(&known(2)), &store(6, 5)), Ok(()));
    }
}
