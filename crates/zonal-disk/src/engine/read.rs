//! Reads: the active overlay over the frozen overlay over the index.
//!
//! A reader holds the views' lock only to look into the active overlay or to copy a batch out of
//! it. The frozen overlay and the index's snapshot are immutable and read without a lock. So all of
//! a batch is of one moment; two batches may be of two.

use std::sync::Arc;

use zonal_types::{ErrorCode, KvRead};

use crate::engine::Engine;
use crate::files::error::DiskError;
use crate::index::Snapshot;
use crate::index::overlay::{Entry, Overlay};

/// Entries of the active overlay copied out at a time: few at first (most scans stop soon), then
/// more.
const FIRST_BATCH: usize = 16;
const LAST_BATCH: usize = 256;

/// The layers that a read looks at.
pub(crate) struct Views {
    /// Changes since the last checkpoint began.
    pub active: Overlay,
    /// Changes that a running checkpoint is writing.
    pub frozen: Option<Arc<Overlay>>,
    /// The index as of the last checkpoint.
    pub snapshot: Arc<Snapshot>,
}

impl Engine {
    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        let snapshot = {
            let views = self.views();
            let recent = views.active.get(key);
            let recent = recent.or_else(|| views.frozen.as_ref()?.get(key));
            if let Some(value) = recent {
                return Ok(value.map(<[u8]>::to_vec));
            }
            Arc::clone(&views.snapshot)
        };
        snapshot.get(key)
    }

    fn walk(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), DiskError> {
        let mut from = start.to_vec();
        let mut batch = FIRST_BATCH;
        while from.as_slice() < end {
            let (active, frozen, snapshot) = {
                let views = self.views();
                let active: Vec<Entry> = views
                    .active
                    .range(&from, end)
                    .take(batch)
                    .map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec)))
                    .collect();
                (active, views.frozen.clone(), Arc::clone(&views.snapshot))
            };
            // A full batch ends just past its last key, a short one at the end of the range.
            let until = match active.last() {
                Some((key, _)) if active.len() == batch => {
                    let mut until = key.clone();
                    until.push(0);
                    until
                }
                _ => end.to_vec(),
            };
            let empty = Overlay::default();
            let frozen = frozen.as_deref().unwrap_or(&empty);
            if !merge(&active, frozen, &snapshot, (&from, &until), visit)? {
                return Ok(());
            }
            from = until;
            batch = (batch * 4).min(LAST_BATCH);
        }
        Ok(())
    }
}

/// Visits `range` in the merged layers; false where `visit` ended it.
pub(crate) fn merge(
    active: &[Entry],
    frozen: &Overlay,
    snapshot: &Snapshot,
    range: (&[u8], &[u8]),
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<bool, DiskError> {
    let active = active
        .iter()
        .map(|(key, value)| (key.as_slice(), value.as_deref()));
    let mut active = active.peekable();
    let mut frozen = frozen.range(range.0, range.1).peekable();
    let mut stored = snapshot.range(range.0, range.1)?;
    let mut below = stored.next()?;
    loop {
        let keys = [
            active.peek().map(|entry| entry.0),
            frozen.peek().map(|entry| entry.0),
            below.as_ref().map(|entry| entry.0.as_slice()),
        ];
        let Some(key) = keys.into_iter().flatten().min() else {
            return Ok(true);
        };
        // The topmost layer with the key decides; lower layers only skip it.
        let from_active = active.next_if(|entry| entry.0 == key);
        let from_frozen = frozen.next_if(|entry| entry.0 == key);
        let held = keys[2] == Some(key);
        let value = match from_active.or(from_frozen) {
            Some((_, value)) => value,
            None => below.as_ref().map(|entry| entry.1.as_slice()),
        };
        if let Some(value) = value
            && !visit(key, value)
        {
            return Ok(false);
        }
        if held {
            below = stored.next()?;
        }
    }
}

impl KvRead for Engine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        self.read(key).map_err(ErrorCode::from)
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        self.walk(start, end, visit).map_err(ErrorCode::from)
    }
}
