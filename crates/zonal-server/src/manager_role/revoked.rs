//! The list of revoked certificates: a key of the manager's store, beside the zone map.
//!
//! *Invariants*: (1) a list is durable before anybody hears of it; (2) nothing leaves it; (3) it
//! has at most [`REVOKED_MAX`] numbers.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use zonal_disk::{Engine, LogRoom};
use zonal_types::describe::{Described, Field};
use zonal_types::limits::REVOKED_MAX;
use zonal_types::{Codec, ErrorCode, KvChange, KvRead, codec_struct};
use zonal_wire::ManagerReply;

use super::ManagerError;

/// Behind the scrub's record.
pub(crate) const REVOKED_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf3];

codec_struct! {
    /// The list as it is stored.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct RevokedList {
        /// Rises with each change.
        version: u64,
        /// Serial numbers, rising.
        serials: Vec<u64>,
    }
}

/// The list in words, for dumps; `None` where the key is another one's, or the value is damaged.
#[must_use]
pub fn describe(key: &[u8], value: &[u8]) -> Option<Described> {
    if key != REVOKED_KEY {
        return None;
    }
    let list = RevokedList::from_bytes(value).ok()?;
    let serials = list.serials.iter().map(|serial| format!("{serial:016x}"));
    Some(
        Described::new("revoked credentials")
            .with("version", list.version)
            .with("serials", serials.collect::<Field>()),
    )
}

/// The list at the manager.
pub(super) struct Revoked {
    list: Mutex<RevokedList>,
}

impl Revoked {
    /// Reads the list.
    pub(super) fn open(engine: &Engine) -> Result<Self, ManagerError> {
        let stored = engine.get(&REVOKED_KEY).map_err(ManagerError::Stored)?;
        let list = match stored {
            Some(bytes) => RevokedList::from_bytes(&bytes)
                .map_err(|_error| ManagerError::Stored(ErrorCode::Corrupt))?,
            None => RevokedList::default(),
        };
        Ok(Self {
            list: Mutex::new(list),
        })
    }

    /// The list, where it is newer than `have`; without numbers where it is not.
    pub(super) fn newer(&self, have: u64) -> ManagerReply {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        ManagerReply::Revoked {
            version: list.version,
            serials: match list.version > have {
                true => list.serials.clone(),
                false => Vec::new(),
            },
        }
    }

    /// Adds numbers.
    pub(super) fn add(
        &self,
        engine: &Engine,
        serials: &[u64],
    ) -> Result<ManagerReply, ManagerError> {
        // Held over the log: lists are logged in the order of their versions.
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let all: BTreeSet<u64> = list.serials.iter().chain(serials).copied().collect();
        if all.len() > REVOKED_MAX {
            return Err(ManagerError::TooManyRevoked);
        }
        if all.len() > list.serials.len() {
            let next = RevokedList {
                version: list.version + 1,
                serials: all.into_iter().collect(),
            };
            let change = KvChange::put(REVOKED_KEY.to_vec(), next.to_bytes());
            engine.append_with(vec![change], &[], LogRoom::Normal)?;
            engine.sync_all()?;
            *list = next;
        }
        Ok(ManagerReply::Revoked {
            version: list.version,
            serials: list.serials.clone(),
        })
    }
}
