//! A view: the contents of a store at one position of its log, readable while the store goes on.
//!
//! Memory: a copy of the active overlay, at most four times its configured size. On disk: index
//! pages that later checkpoints replace stay until the view is dropped.

use std::sync::Arc;

use zonal_types::{ErrorCode, KvRead};

use crate::engine::Engine;
use crate::engine::read::merge;
use crate::files::error::DiskError;
use crate::files::group_commit::lock;
use crate::index::Snapshot;
use crate::index::overlay::{Entry, Overlay};
use crate::log::record::Lsn;

/// An immutable view of a store.
pub struct View {
    active: Vec<Entry>,
    frozen: Arc<Overlay>,
    snapshot: Arc<Snapshot>,
    position: Lsn,
}

impl Engine {
    /// A view of the current contents, once they are durable.
    ///
    /// # Errors
    /// As [`Engine::sync`].
    pub fn view(&self) -> Result<View, DiskError> {
        let (view, position) = {
            let guard = lock(&self.append_lock);
            let views = self.views();
            let position = Lsn(guard.head);
            let active = views.active.iter();
            let view = View {
                active: active
                    .map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec)))
                    .collect(),
                frozen: views.frozen.clone().unwrap_or_default(),
                snapshot: Arc::clone(&views.snapshot),
                position,
            };
            (view, position)
        };
        self.sync(position)?;
        assert!(
            self.group.synced() >= position.0,
            "a view holds only durable records"
        );
        Ok(view)
    }
}

impl View {
    /// The view includes all records that end here or before.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.position
    }

    fn walk(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), DiskError> {
        let first = self
            .active
            .partition_point(|entry| entry.0.as_slice() < start);
        let behind = self
            .active
            .partition_point(|entry| entry.0.as_slice() < end);
        let active = self.active.get(first..behind).unwrap_or_default();
        merge(active, &self.frozen, &self.snapshot, (start, end), visit).map(drop)
    }
}

impl KvRead for View {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        let at = self
            .active
            .binary_search_by(|entry| entry.0.as_slice().cmp(key));
        if let Ok(at) = at {
            return Ok(self.active.get(at).and_then(|entry| entry.1.clone()));
        }
        if let Some(value) = self.frozen.get(key) {
            return Ok(value.map(<[u8]>::to_vec));
        }
        self.snapshot.get(key).map_err(ErrorCode::from)
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
