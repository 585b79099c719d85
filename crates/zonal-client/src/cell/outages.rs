//! Outages: which copies of a file are in service, and reports of targets that do not answer.

use crate::cell::Cell;
use crate::cell::call::Call;
use crate::cell::owner::SessionOwner;
use crate::cell::placement::TargetPlace;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use zonal_layout::{PlaceUse, place_use};
use zonal_types::{
    Column, Component, ErrorCode, Instant, Layout, MapVersion, Redundancy, TargetId,
};
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::map::SlotState;

/// Least time between two reports of one target, ms.
const REPORT_PAUSE_MS: u64 = 500;
/// How long a report waits for a manager, ms.
const REPORT_WAIT_MS: u64 = 500;

/// When targets were reported last. Bounded by the targets of the map.
#[derive(Debug, Default)]
pub(crate) struct ReportedOutages {
    reported: Mutex<BTreeMap<TargetId, Instant>>,
    /// A file with copies was opened here.
    has_copies: AtomicBool,
}

impl ReportedOutages {
    /// True where the target was not reported just before; notes the report.
    fn is_due(&self, target: TargetId, now: Instant) -> bool {
        let mut reported = lock(&self.reported);
        reported.retain(|_, at| now.ms_since(*at) < REPORT_PAUSE_MS);
        let is_due = !reported.contains_key(&target);
        if is_due {
            reported.insert(target, now);
        }
        is_due
    }

    /// Notes that a file with copies was opened.
    pub(crate) fn note_copies(&self) {
        self.has_copies.store(true, Ordering::Relaxed);
    }

    /// True where this client has had a file with copies open.
    pub(crate) fn has_seen_copies(&self) -> bool {
        self.has_copies.load(Ordering::Relaxed)
    }
}

/// The service of one copy of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyState {
    /// It is read, and gets each change. The only copy always is. A copy that goes is not read.
    InService,
    /// Its target is out. It misses nothing yet: before the next change it is marked.
    Out,
    /// It misses changes, and its target is out; or its object lies elsewhere.
    Stale,
    /// It misses changes, and its target fills it; or its object has moved away, and clients that
    /// do not know that may read it. It gets each change after the copies that have all of them.
    Filling,
}

impl<N: Net> Cell<N> {
    /// The state of a place of an object.
    pub(crate) fn copy_state(
        &self,
        layout: &Layout,
        component: &Component,
        place: Column,
    ) -> CopyState {
        if component.redundancy == Redundancy::None {
            return CopyState::InService;
        }
        let map = self.map();
        let Some(found) = map.slot_of_place(component, place) else {
            // The map is older than the layout; or the object has left the place.
            return match place_use(component, place) {
                PlaceUse::Main | PlaceUse::Leaving => CopyState::InService,
                PlaceUse::Filling | PlaceUse::Left => CopyState::Stale,
            };
        };
        let is_out = found.slot.state == SlotState::Out;
        let is_stale = layout.is_stale(found.slot.target);
        match (place_use(component, place), is_stale, is_out) {
            // The only copy is waited for.
            (PlaceUse::Main, false, _) if component.redundancy.copies() < 2 => CopyState::InService,
            (PlaceUse::Main | PlaceUse::Leaving, false, true) => CopyState::Out,
            (PlaceUse::Main | PlaceUse::Leaving, false, false) => CopyState::InService,
            (_, _, true) => CopyState::Stale,
            (_, _, false) => CopyState::Filling,
        }
    }

    /// True for a copy that gets a change after the others, if at all.
    pub(crate) fn misses_changes(
        &self,
        layout: &Layout,
        component: &Component,
        object: Column,
    ) -> bool {
        let state = self.copy_state(layout, component, object);
        matches!(state, CopyState::Stale | CopyState::Filling)
    }

    /// True for a place that its object has left and whose target left the cell: it gets no change.
    pub(crate) fn is_gone(&self, component: &Component, place: Column) -> bool {
        let map = self.map();
        let found = map.slot_of_place(component, place);
        place_use(component, place) == PlaceUse::Left
            && found.is_some_and(|found| map.target(found.slot.target).is_none())
    }

    /// [`Self::place`] for a layout that is known as of a version of the map.
    ///
    /// # Errors
    /// `StaleEpoch` also where a target of the set went out or came back since: the layout may lack
    /// marks.
    pub(crate) fn place_known(
        &self,
        as_of: MapVersion,
        component: &Component,
        object: Column,
    ) -> Result<TargetPlace, ErrorCode> {
        if !self.knows_place(as_of, component, object) {
            return Err(ErrorCode::StaleEpoch);
        }
        self.place(component, object)
    }

    /// True where a layout of this version has the marks of all outages, and all relocations that
    /// targets know. A file with one copy that never moved has none.
    pub(crate) fn has_marks(&self, as_of: MapVersion, component: &Component) -> bool {
        component.redundancy == Redundancy::None || self.map().knows_outages(component, as_of)
    }

    /// As [`Self::has_marks`], for the sender of a request to this place.
    fn knows_place(&self, as_of: MapVersion, component: &Component, place: Column) -> bool {
        if component.redundancy != Redundancy::None {
            return self.has_marks(as_of, component);
        }
        let map = self.map();
        let found = map.slot_of_place(component, place);
        found.is_none_or(|found| found.slot.slot_epoch.0 <= as_of.0)
    }
}

impl<C: SessionOwner> Call<'_, C> {
    /// Reports to the managers that a target does not answer, and takes the map where it is out.
    /// Each waits only briefly; the next failure reports again.
    pub(crate) async fn report_outage(&self, target: TargetId) {
        let now = self.cell().net.now();
        if self.cell().map().is_out(target) || !self.cell().outages.is_due(target, now) {
            return;
        }
        let request = ManagerRequest::TakeOut { target };
        let call = self.briefly(REPORT_WAIT_MS);
        if let Ok(ManagerReply::At { version }) = call.ask_manager(&request).await
            && version > self.cell().map().version
        {
            zonal_types::mark!(TargetTakenOut);
            call.refresh_map().await.ok();
        }
    }
}
