//! Changes beside relocations: while an object moves, a change goes to both of its places
//! (docs/rfcs/2026-11-27-relocations.md).
//!
//! A relocation may begin after the pieces of a change were made. The target of the place before
//! then refuses the change, and the client gets the layout with the new place. So after a change it
//! looks whether the layout has new places that the change has not reached. A file without
//! relocations costs one look at its layout.

use crate::client::ClientCall;
use crate::file::batch::Batch;
use crate::file::{File, FileState};
use crate::transport::net::Net;
use zonal_layout::{Piece, PlaceUse, place_use, places};
use zonal_types::{Column, ErrorCode, Layout, Redundancy, TargetId};
use zonal_wire::StorageReply;
use zonal_zonemap::ZoneMap;

/// The places of a layout's objects, by component.
pub(crate) fn all_places(layout: &Layout) -> Vec<(usize, Column)> {
    let components = layout.components.iter().enumerate();
    let all = components
        .flat_map(|(index, component)| places(component).map(move |place| (index, place)));
    all.collect()
}

impl<N: Net> FileState<N> {
    /// As [`Self::note_written`], for a place. An object that moves counts at its main place.
    pub(crate) fn note_written_at(
        &mut self,
        (component, place): (usize, Column),
        target: TargetId,
        reply: &StorageReply,
    ) -> i64 {
        let delta = self.note_written(target, reply);
        let component = self.data.layout.components.get(component);
        let counts = component.is_none_or(|component| {
            component.redundancy == Redundancy::None
                || place_use(component, place) == PlaceUse::Main
        });
        if counts { delta } else { 0 }
    }

    /// Places of the file that are not among the known ones. None for a file with one copy that
    /// never moved.
    pub(crate) fn late_places(&self, known: &[(usize, Column)]) -> Vec<(usize, Column)> {
        if !self.data.layout.has_copies() {
            return Vec::new();
        }
        let mut late = all_places(&self.data.layout);
        late.retain(|place| !known.contains(place));
        late
    }
}

/// True where clients read an object of the file at this target.
pub(crate) fn is_read_at(map: &ZoneMap, layout: &Layout, target: TargetId) -> bool {
    layout.components.iter().any(|component| {
        places(component).any(|place| {
            let found = map.slot_of_place(component, place);
            place_use(component, place) == PlaceUse::Main
                && found.is_some_and(|found| found.slot.target == target)
        })
    })
}

impl<N: Net> ClientCall<'_, N> {
    /// The pieces of a batch for places that came after its own pieces were made.
    pub(crate) async fn late_pieces(
        &self,
        file: &File<N>,
        batch: &Batch,
        placed_by: &Layout,
    ) -> Result<Vec<Piece>, ErrorCode> {
        let (late, data) = {
            let state = file.state();
            if state.data.layout.layout_gen == placed_by.layout_gen {
                return Ok(Vec::new());
            }
            let late = state.late_places(&all_places(placed_by));
            if late.is_empty() {
                return Ok(Vec::new());
            }
            (late, state.data.clone())
        };
        zonal_types::mark!(LatePlaceChanged);
        let mut pieces = Vec::new();
        for (at, run) in batch.runs() {
            let all = self.pieces_to_write(&data, *at, run.len() as u64).await?;
            let is_late = |piece: &Piece| late.contains(&(piece.component, piece.column));
            pieces.extend(all.into_iter().filter(is_late));
        }
        Ok(pieces)
    }
}
