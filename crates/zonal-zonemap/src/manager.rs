//! The manager of the zone map as a value without I/O: the map, its last changes, and the
//! junctions.
//!
//! It plans log records, applies logged ones, and answers requests for the map. The shell logs,
//! flushes and sends.
//!
//! *Invariants*:
//! 1. A change fits into one reply, and versions have no gaps.
//! 2. No reply has a version that is not durable ([`Manager::flushed`]).
//! 3. Each kept list has a bound.

use crate::change::MapChange;
use crate::edit::{EditError, MapEdit};
use crate::junctions::{self, JunctionChange};
use crate::map::ZoneMap;
use std::collections::VecDeque;
use std::sync::Arc;
use zonal_types::limits::{
    JUNCTIONS_LISTED_MAX, MAP_BYTES_MAX, MAP_CHANGE_BYTES_MAX, MAP_PAGE_BYTES_MAX,
    MAP_TAIL_BYTES_MAX, MAP_TAIL_CHANGES_MAX,
};
use zonal_types::{Blob, CellId, Codec, ErrorCode, KvChange, KvRead, MapVersion};
use zonal_wire::{ManagerReply, ManagerRequest};

/// The map, and recent changes for clients with an older one.
#[derive(Debug)]
pub struct Manager {
    /// With all logged changes.
    newest: Arc<ZoneMap>,
    /// The version that replies may show.
    durable: Arc<ZoneMap>,
    /// Encoded bytes of the newest map.
    bytes: usize,
    tail: Tail,
    whole: Option<EncodedMap>,
}

/// The last changes, each with the version that it makes. Kept in memory only: after a start of the
/// manager, clients with an older map fetch the whole map.
#[derive(Debug, Default)]
struct Tail {
    changes: VecDeque<(MapVersion, Blob)>,
    bytes: usize,
}

/// An encoded map that clients fetch in parts.
#[derive(Debug)]
struct EncodedMap {
    version: MapVersion,
    bytes: Vec<u8>,
}

/// A planned change: it takes effect once these key-value changes are in the log.
#[derive(Debug)]
pub struct PlannedChange {
    /// Key-value changes for the log.
    pub changes: Vec<KvChange>,
    next: Option<(ZoneMap, Blob, usize)>,
}

impl Tail {
    /// True where the tail has all changes since `version`.
    fn reaches(&self, version: MapVersion) -> bool {
        let first = self.changes.front();
        first.is_some_and(|(makes, _)| makes.0 <= version.0 + 1)
    }

    fn push(&mut self, makes: MapVersion, change: Blob) {
        self.bytes += change.0.len();
        self.changes.push_back((makes, change));
        while self.bytes > MAP_TAIL_BYTES_MAX || self.changes.len() > MAP_TAIL_CHANGES_MAX {
            let Some((_, oldest)) = self.changes.pop_front() else {
                return;
            };
            self.bytes -= oldest.0.len();
        }
    }

    /// Changes after `have` up to `last`, as many as one reply takes.
    fn since(&self, have: MapVersion, last: MapVersion) -> Option<(MapVersion, Vec<Blob>)> {
        if !self.reaches(have) {
            return None;
        }
        let (mut to, mut bytes, mut page) = (have, 0, Vec::new());
        for (makes, change) in self.changes.iter().filter(|(makes, _)| *makes > have) {
            bytes += change.0.len();
            if *makes > last || bytes > MAP_PAGE_BYTES_MAX {
                break;
            }
            to = *makes;
            page.push(change.clone());
        }
        (to > have).then_some((to, page))
    }
}

impl Manager {
    /// Loads the manager from a store; an empty store belongs to a new cell.
    ///
    /// # Errors
    /// `Corrupt` where the map belongs to another cell or breaks an invariant; `WrongVersion` for
    /// another format; those of the store.
    pub fn load(kv: &dyn KvRead, cell: CellId) -> Result<Self, ErrorCode> {
        let map = ZoneMap::load(kv)?.unwrap_or_else(|| ZoneMap::new(cell));
        if map.cell != cell || !map.check().is_empty() {
            return Err(ErrorCode::Corrupt);
        }
        Ok(Self::of(Arc::new(map)))
    }

    /// A manager that knows this map, which is durable, and no change before it.
    #[must_use]
    pub fn of(map: Arc<ZoneMap>) -> Self {
        Self {
            bytes: map.to_bytes().len(),
            newest: Arc::clone(&map),
            durable: map,
            tail: Tail::default(),
            whole: None,
        }
    }

    /// The map with all logged changes.
    #[must_use]
    pub fn newest(&self) -> &Arc<ZoneMap> {
        &self.newest
    }

    /// The durable map, which replies may show.
    #[must_use]
    pub fn durable(&self) -> &Arc<ZoneMap> {
        &self.durable
    }

    /// Plans edits of the map, if it still has version `expected`, together with changes of
    /// junctions. They make one log record.
    ///
    /// # Errors
    /// Where an edit is refused, or its result would be too large for its readers.
    pub fn plan(
        &self,
        kv: &dyn KvRead,
        edits: &[MapEdit],
        junctions: Vec<JunctionChange>,
        expected: Option<MapVersion>,
    ) -> Result<PlannedChange, EditError> {
        let now = self.newest.version;
        if let Some(expected) = expected.filter(|expected| *expected != now) {
            return Err(EditError::VersionMoved { expected, now });
        }
        let zone_of = |ino| self.newest.zone_of(ino);
        let mut changes = junctions::plan(kv, junctions, &zone_of).map_err(EditError::Store)?;
        let next = self.newest.edited_by(edits)?;
        let next = next.map(|(next, change)| {
            let encoded = change.to_bytes();
            let bytes = self.bytes_after(&change);
            if bytes > MAP_BYTES_MAX || encoded.len() > MAP_CHANGE_BYTES_MAX {
                let change = encoded.len();
                return Err(EditError::TooLarge { bytes, change });
            }
            changes.extend(change.to_store());
            Ok((next, Blob(encoded), bytes))
        });
        Ok(PlannedChange {
            next: next.transpose()?,
            changes,
        })
    }

    /// Encoded bytes of the map after a change.
    fn bytes_after(&self, change: &MapChange) -> usize {
        let puts = change.puts.iter();
        let added: usize = puts.map(|item| item.to_bytes().len()).sum();
        let keys = change.puts.iter().map(crate::change::Item::key);
        let keys = keys.chain(change.gone.iter().copied());
        let items = keys.filter_map(|key| self.newest.item(key));
        let before: usize = items.map(|item| item.to_bytes().len()).sum();
        (self.bytes + added).saturating_sub(before)
    }

    /// Applies a plan that is in the log. Plans must be logged in the order in which they were
    /// made.
    pub fn logged(&mut self, planned: PlannedChange) {
        if let Some((next, change, bytes)) = planned.next {
            self.tail.push(next.version, change);
            self.bytes = bytes;
            self.newest = Arc::new(next);
        }
    }

    /// Marks a map durable: its log record was flushed.
    pub fn flushed(&mut self, map: &Arc<ZoneMap>) {
        if map.version > self.durable.version {
            self.durable = Arc::clone(map);
        }
    }

    /// Answers a request for the map or for junctions; `None` for other requests.
    ///
    /// # Errors
    /// Those of the store.
    pub fn answer(
        &mut self,
        kv: &dyn KvRead,
        request: &ManagerRequest,
    ) -> Result<Option<ManagerReply>, ErrorCode> {
        let (found, end) = match request {
            ManagerRequest::Junction { ino } => {
                (junctions::by_ino(kv, *ino)?.into_iter().collect(), true)
            }
            ManagerRequest::JunctionsAt { path } => (junctions::by_path(kv, path)?, true),
            ManagerRequest::Junctions { after, entries } => {
                let limit = (*entries as usize).min(JUNCTIONS_LISTED_MAX);
                let after = after.as_ref().map(|(path, ino)| (path.as_str(), *ino));
                junctions::page(kv, after, limit)?
            }
            _ => return Ok(self.answer_of_map(request)),
        };
        let all = junctions::head(kv)?;
        Ok(Some(ManagerReply::Junctions {
            version: all.version,
            count: all.count,
            junctions: found,
            end,
        }))
    }

    /// Answers a request for the map; `None` for other requests.
    pub fn answer_of_map(&mut self, request: &ManagerRequest) -> Option<ManagerReply> {
        match request {
            ManagerRequest::GetMap { have } => Some(self.since(*have)),
            ManagerRequest::GetMapPart { version, offset } => Some(self.part(*version, *offset)),
            _ => None,
        }
    }

    fn since(&mut self, have: MapVersion) -> ManagerReply {
        let newest = self.durable.version;
        if have >= newest {
            return ManagerReply::At { version: newest };
        }
        if have.0 > 0
            && let Some((to, changes)) = self.tail.since(have, newest)
        {
            return ManagerReply::MapChanges {
                from: have,
                to,
                newest,
                changes,
            };
        }
        // An older encoded map serves as long as the tail has the changes after it. Otherwise a
        // fetch in many parts might never end.
        let whole = self.whole.as_ref();
        let is_kept = whole.is_some_and(|whole| {
            let is_long = whole.bytes.len() > MAP_PAGE_BYTES_MAX;
            whole.version == newest || (is_long && self.tail.reaches(whole.version))
        });
        if !is_kept {
            self.whole = Some(EncodedMap {
                version: newest,
                bytes: self.durable.to_bytes(),
            });
        }
        self.part_at(0)
    }

    fn part(&mut self, version: MapVersion, offset: u64) -> ManagerReply {
        match &self.whole {
            Some(whole) if whole.version == version => self.part_at(offset),
            _ => self.since(MapVersion(0)),
        }
    }

    fn part_at(&self, offset: u64) -> ManagerReply {
        let newest = self.durable.version;
        let Some(whole) = &self.whole else {
            return ManagerReply::At { version: newest };
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = from.min(whole.bytes.len());
        let end = whole
            .bytes
            .len()
            .min(from.saturating_add(MAP_PAGE_BYTES_MAX));
        ManagerReply::MapPart {
            version: whole.version,
            newest,
            bytes: whole.bytes.len() as u64,
            offset: from as u64,
            part: Blob(whole.bytes[from..end].to_vec()),
        }
    }
}
