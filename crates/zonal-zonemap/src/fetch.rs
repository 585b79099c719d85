//! Fetching the map from a manager: the next request, and the effect of each reply on the map at
//! hand. Clients, servers and commands share it.
//!
//! *Invariants*:
//! 1. A returned map has been checked, belongs to the cell, and has all changes up to its version.
//! 2. One fetch takes a bounded number of replies and of bytes.

use crate::change::{ChangeMismatch, MapChange};
use crate::map::ZoneMap;
use std::sync::Arc;
use thiserror::Error;
use zonal_types::limits::{MAP_BYTES_MAX, MAP_REPLIES_MAX};
use zonal_types::{Codec, ErrorCode, MapVersion};
use zonal_wire::{ManagerReply, ManagerRequest};

/// How often a fetch restarts with the whole map because replies did not fit.
const ANEW_MAX: u32 = 2;

/// Why a fetch failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FetchError {
    /// The manager refused the request.
    #[error("the manager refused: {detail} ({code})")]
    Refused {
        /// The error code.
        code: ErrorCode,
        /// The manager's message.
        detail: String,
    },
    /// The manager sent a reply of another kind.
    #[error("the manager sent a reply of another kind: {0}")]
    Odd(&'static str),
    /// Changes did not fit, even after the whole map was fetched.
    #[error(transparent)]
    Mismatch(#[from] ChangeMismatch),
    /// A part of the map did not follow the one before it.
    #[error("a part of the zone map is out of order")]
    OutOfOrder,
    /// The bytes are not a map; `WrongVersion` for another format.
    #[error("the zone map cannot be decoded: {0}")]
    Decode(ErrorCode),
    /// The map belongs to another cell.
    #[error("the manager belongs to another cell")]
    WrongCell,
    /// The fetch took too many replies or bytes.
    #[error("the zone map is too large, or changes faster than it can be fetched")]
    TooLarge,
}

impl FetchError {
    /// The error as a code, for callers that pass codes on.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused { code, .. } => *code,
            Self::Decode(ErrorCode::WrongVersion) => ErrorCode::WrongVersion,
            Self::WrongCell => ErrorCode::WrongCell,
            _ => ErrorCode::Protocol,
        }
    }
}

/// The parts of a map received so far.
#[derive(Debug)]
struct ReceivedParts {
    version: MapVersion,
    total: u64,
    bytes: Vec<u8>,
}

/// A fetch in progress.
#[derive(Debug)]
pub struct Fetch {
    map: Arc<ZoneMap>,
    /// Accept the manager's map whatever its version.
    believes: bool,
    /// The next request asks for the whole map.
    whole: bool,
    parts: Option<ReceivedParts>,
    replies: u32,
    anew: u32,
}

impl Fetch {
    /// Fetches a version newer than `map`; version 0: any.
    #[must_use]
    pub fn newer(map: Arc<ZoneMap>) -> Self {
        Self {
            whole: map.version == MapVersion(0),
            map,
            believes: false,
            parts: None,
            replies: 0,
            anew: 0,
        }
    }

    /// Fetches the manager's map even where it is older than `map`. Needed after a restore: a map
    /// that only this process has is never followed by a newer one.
    #[must_use]
    pub fn believing(map: Arc<ZoneMap>) -> Self {
        Self {
            believes: true,
            whole: true,
            ..Self::newer(map)
        }
    }

    /// The next request.
    #[must_use]
    pub fn request(&self) -> ManagerRequest {
        match &self.parts {
            Some(parts) => ManagerRequest::GetMapPart {
                version: parts.version,
                offset: parts.bytes.len() as u64,
            },
            None if self.whole => ManagerRequest::GetMap {
                have: MapVersion(0),
            },
            None => ManagerRequest::GetMap {
                have: self.map.version,
            },
        }
    }

    /// Takes the manager's reply. Returns the map once nothing more is needed; where no newer one
    /// exists, the map at hand.
    ///
    /// # Errors
    /// See [`FetchError`]. Changes that do not fit first lead to a fetch of the whole map.
    pub fn take(&mut self, reply: ManagerReply) -> Result<Option<Arc<ZoneMap>>, FetchError> {
        self.replies += 1;
        if self.replies > MAP_REPLIES_MAX {
            return Err(FetchError::TooLarge);
        }
        let taken = match reply {
            ManagerReply::At { .. } if self.parts.is_none() && !self.whole => {
                return Ok(Some(Arc::clone(&self.map)));
            }
            ManagerReply::MapChanges {
                to,
                newest,
                changes,
                ..
            } if self.parts.is_none() && !self.whole => {
                let changes = changes.iter().map(|change| change.0.as_slice());
                self.take_changes(to, changes).map(|()| newest)
            }
            ManagerReply::MapPart {
                version,
                newest,
                bytes,
                offset,
                part,
            } => match self.take_part(version, bytes, offset, &part.0) {
                Ok(true) => Ok(newest),
                Ok(false) => return Ok(None),
                Err(error) => Err(error),
            },
            ManagerReply::Failed { code, detail } => {
                return Err(FetchError::Refused {
                    code: code.0,
                    detail,
                });
            }
            other => return Err(FetchError::Odd(other.name())),
        };
        match taken {
            Ok(newest) if newest <= self.map.version => Ok(Some(Arc::clone(&self.map))),
            Ok(_newer) => Ok(None),
            Err(FetchError::Mismatch(_) | FetchError::OutOfOrder) if self.anew < ANEW_MAX => {
                self.anew += 1;
                (self.parts, self.whole) = (None, true);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn take_changes<'a>(
        &mut self,
        to: MapVersion,
        changes: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), FetchError> {
        let mut map = (*self.map).clone();
        for bytes in changes {
            let change = MapChange::from_bytes(bytes);
            let change = change.map_err(|_error| FetchError::Decode(ErrorCode::Protocol))?;
            map.take_change(&change)?;
        }
        if map.version != to || to <= self.map.version {
            return Err(FetchError::OutOfOrder);
        }
        if let Some(broken) = map.check().into_iter().next() {
            return Err(ChangeMismatch::Broken(broken).into());
        }
        self.map = Arc::new(map);
        Ok(())
    }

    /// Takes one part of a whole map; true for the last part.
    fn take_part(
        &mut self,
        version: MapVersion,
        total: u64,
        offset: u64,
        part: &[u8],
    ) -> Result<bool, FetchError> {
        if total > MAP_BYTES_MAX as u64 {
            return Err(FetchError::TooLarge);
        }
        // Offset 0: the manager has started over.
        let is_first = offset == 0;
        if is_first && self.parts.as_ref().is_some_and(|of| of.version != version) {
            self.anew += 1;
            if self.anew > ANEW_MAX {
                return Err(FetchError::TooLarge);
            }
            self.parts = None;
        }
        let parts = self.parts.get_or_insert_with(|| ReceivedParts {
            version,
            total,
            bytes: Vec::new(),
        });
        let is_next = (parts.version, parts.total) == (version, total)
            && offset == parts.bytes.len() as u64
            && offset + part.len() as u64 <= total;
        if !is_next || part.is_empty() {
            return Err(FetchError::OutOfOrder);
        }
        parts.bytes.extend_from_slice(part);
        if (parts.bytes.len() as u64) < total {
            return Ok(false);
        }
        let bytes = self.parts.take().map(|parts| parts.bytes);
        let map = ZoneMap::decode(&bytes.unwrap_or_default()).map_err(FetchError::Decode)?;
        let is_cell_known = self.map.version > MapVersion(0);
        if is_cell_known && map.cell != self.map.cell {
            return Err(FetchError::WrongCell);
        }
        if map.version != version || !map.check().is_empty() {
            return Err(FetchError::Decode(ErrorCode::Corrupt));
        }
        if self.believes || map.version > self.map.version {
            self.map = Arc::new(map);
        }
        self.whole = false;
        Ok(true)
    }

    /// Runs a whole fetch for a caller that waits for each reply.
    ///
    /// # Errors
    /// Those of `ask`, and [`FetchError`].
    pub fn run<E: From<FetchError>>(
        mut self,
        mut ask: impl FnMut(&ManagerRequest) -> Result<ManagerReply, E>,
    ) -> Result<Arc<ZoneMap>, E> {
        loop {
            let reply = ask(&self.request())?;
            if let Some(map) = self.take(reply)? {
                return Ok(map);
            }
        }
    }
}
