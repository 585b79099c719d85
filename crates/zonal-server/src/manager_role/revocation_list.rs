//! The list of revoked certificates: a key of the manager's store, beside the zone map.
//!
//! *Invariants*: (1) a list is durable before it is sent; (2) entries are never removed; (3) it has
//! at most [`REVOKED_MAX`] serial numbers.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use zonal_disk::{Engine, LogRoom};
use zonal_driver::shard::Durability;
use zonal_types::describe::{Described, Field};
use zonal_types::limits::REVOKED_MAX;
use zonal_types::{Codec, ErrorCode, KvChange, KvRead, codec_struct};
use zonal_wire::ManagerReply;

use super::ManagerError;
use crate::shard_log::ShardLog;

/// Key of the list, behind the scrub's record.
pub(crate) const REVOKED_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf3];

codec_struct! {
    /// The list in its stored form.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct RevocationRecord {
        /// Rises with each change.
        version: u64,
        /// Serial numbers, in rising order.
        serials: Vec<u64>,
    }
}

/// The list in printable form, for dumps; `None` where the key is another one, or the value is
/// damaged.
#[must_use]
pub fn describe(key: &[u8], value: &[u8]) -> Option<Described> {
    if key != REVOKED_KEY {
        return None;
    }
    let list = RevocationRecord::from_bytes(value).ok()?;
    let serials = list.serials.iter().map(|serial| format!("{serial:016x}"));
    Some(
        Described::new("revoked credentials")
            .with("version", list.version)
            .with("serials", serials.collect::<Field>()),
    )
}

/// The manager's list.
pub(super) struct RevocationList {
    list: Mutex<RevocationRecord>,
}

impl RevocationList {
    /// Loads the list.
    pub(super) fn open(engine: &Engine) -> Result<Self, ManagerError> {
        let stored = engine.get(&REVOKED_KEY).map_err(ManagerError::Stored)?;
        let list = match stored {
            Some(bytes) => RevocationRecord::from_bytes(&bytes)
                .map_err(|_error| ManagerError::Stored(ErrorCode::Corrupt))?,
            None => RevocationRecord::default(),
        };
        Ok(Self {
            list: Mutex::new(list),
        })
    }

    /// The reply to a client with version `have`: the list where it is newer, else no serial
    /// numbers.
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

    /// Adds serial numbers.
    pub(super) fn add(
        &self,
        log: &ShardLog,
        serials: &[u64],
    ) -> Result<ManagerReply, ManagerError> {
        // Held while logging: lists are logged in the order of their versions.
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let all: BTreeSet<u64> = list.serials.iter().chain(serials).copied().collect();
        if all.len() > REVOKED_MAX {
            return Err(ManagerError::TooManyRevoked);
        }
        if all.len() > list.serials.len() {
            let next = RevocationRecord {
                version: list.version + 1,
                serials: all.into_iter().collect(),
            };
            let change = KvChange::put(REVOKED_KEY.to_vec(), next.to_bytes());
            log.append(vec![change], LogRoom::Normal, Durability::Later)?;
            log.flush_now()?;
            *list = next;
        }
        Ok(ManagerReply::Revoked {
            version: list.version,
            serials: list.serials.clone(),
        })
    }
}
