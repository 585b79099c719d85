//! The versions of a group's map, as its readers and writers see them.
//!
//! * A version has one content, at each replica and in each term.
//! * An acknowledged edit is in the version that it made.
//! * A reader sees the newest version that anybody knew when it began.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use zonal_types::{MapVersion, ZoneId};
use zonal_zonemap::ZoneMap;

#[derive(Default)]
struct State {
    maps: BTreeMap<MapVersion, Arc<ZoneMap>>,
    /// Acknowledged edits: the name that a zone got.
    edits: BTreeMap<MapVersion, (ZoneId, String)>,
    told: Vec<String>,
}

impl State {
    fn check_edit(&mut self, version: MapVersion) {
        let (Some(map), Some((zone, name))) = (self.maps.get(&version), self.edits.get(&version))
        else {
            return;
        };
        if map.zone(*zone).is_none_or(|known| known.name != *name) {
            let what = format!("version {version} lacks the edit that was acknowledged with it");
            self.told.push(what);
        }
    }
}

/// The history of one group's map.
#[derive(Default)]
pub struct MapHistory(RefCell<State>);

impl MapHistory {
    /// The newest version that anybody knows.
    #[must_use]
    pub fn newest(&self) -> MapVersion {
        let state = self.0.borrow();
        let shown = state.maps.last_key_value().map(|(version, _)| *version);
        let made = state.edits.last_key_value().map(|(version, _)| *version);
        shown.max(made).unwrap_or_default()
    }

    /// A reader got this map; it began when `known` was the newest version.
    pub fn answered(&self, map: &Arc<ZoneMap>, known: MapVersion) {
        let mut state = self.0.borrow_mut();
        let version = map.version;
        if version < known {
            let what = format!("version {version} was answered when version {known} was known");
            state.told.push(what);
        }
        let first = state.maps.entry(version).or_insert_with(|| map.clone());
        if first != map {
            let what = format!("version {version} has two answers");
            state.told.push(what);
        }
        state.check_edit(version);
    }

    /// An edit was acknowledged, which made this version.
    pub fn acknowledged(&self, version: MapVersion, edit: (ZoneId, String)) {
        let mut state = self.0.borrow_mut();
        let what = format!("version {version} was made twice, then by {}", edit.1);
        if state.edits.insert(version, edit).is_some() {
            state.told.push(what);
        }
        state.check_edit(version);
    }

    /// Everything that is broken since the last call.
    pub fn take(&self) -> Vec<String> {
        let told = std::mem::take(&mut self.0.borrow_mut().told);
        told.into_iter()
            .map(|what| format!("map: {what}"))
            .collect()
    }
}
