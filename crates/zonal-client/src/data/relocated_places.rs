//! Changes beside relocations: while an object moves, a change goes to both of its places
//! (docs/rfcs/2026-11-27-relocations.md).
//!
//! A relocation may begin, or end, after the pieces of a change were made. A target then refuses
//! its part of the change, and the client gets the new layout. Other targets may have their parts,
//! in places that count no more. So after a change it looks for objects whose records are others by
//! now, and sends the change to all their places. A file without relocations costs one look at its
//! layout.

use crate::client::ClientCall;
use crate::file::batch::Batch;
use crate::file::{File, FileState};
use crate::transport::net::Net;
use zonal_layout::{Piece, object_count, object_of, place_use, places};
use zonal_types::{Column, Component, ErrorCode, Layout, Redundancy, Relocation, TargetId};
use zonal_wire::StorageReply;
use zonal_zonemap::ZoneMap;

/// Changes of a layout in which an object leaves its place and comes back, at least. Its copy goes
/// while its target is out, the bytes left behind are deleted, and a new copy is made and filled.
/// Its records are the same then.
const CHANGES_OF_A_RETURN: u32 = 4;

/// The places of a layout's objects, by component.
fn all_places(layout: &Layout) -> impl Iterator<Item = (usize, Column)> {
    let components = layout.components.iter().enumerate();
    components.flat_map(|(index, component)| places(component).map(move |place| (index, place)))
}

/// The records that say where an object lies.
fn records(component: &Component, object: Column) -> impl Iterator<Item = &Relocation> {
    let relocations = component.relocations.iter();
    relocations.filter(move |of| of.object == object && !of.state.is_left())
}

/// Places that a change may have missed which was placed by an older layout.
fn late_places(placed_by: &Layout, now: &Layout) -> Vec<(usize, Column)> {
    let changes = now.layout_gen.0.saturating_sub(placed_by.layout_gen.0);
    if changes == 0 || !now.has_copies() {
        return Vec::new();
    }
    let is_late = |(index, place): &(usize, Column)| {
        let (before, now) = (placed_by.components.get(*index), now.components.get(*index));
        let (Some(before), Some(now)) = (before, now) else {
            return true;
        };
        let object = object_of(now, *place);
        // With another number of objects, new places have other numbers.
        changes >= CHANGES_OF_A_RETURN
            || object_count(now) != object_count(before)
            || !records(before, object).eq(records(now, object))
    };
    all_places(now).filter(is_late).collect()
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
            component.redundancy == Redundancy::None || place_use(component, place).is_kept_whole()
        });
        if counts { delta } else { 0 }
    }

    /// Places of the file that a change may have missed which was placed by this layout. It is
    /// placed by the present one then. None for a file with one copy that never moved.
    pub(crate) fn late_places(&self, placed_by: &mut Layout) -> Vec<(usize, Column)> {
        if self.data.layout.layout_gen == placed_by.layout_gen {
            return Vec::new();
        }
        let late = late_places(placed_by, &self.data.layout);
        *placed_by = self.data.layout.clone();
        late
    }
}

/// True where clients read an object of the file at this target, or may read it again.
pub(crate) fn is_read_at(map: &ZoneMap, layout: &Layout, target: TargetId) -> bool {
    layout.components.iter().any(|component| {
        places(component).any(|place| {
            let found = map.slot_of_place(component, place);
            place_use(component, place).is_kept_whole()
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
        placed_by: &mut Layout,
    ) -> Result<Vec<Piece>, ErrorCode> {
        let (late, data) = {
            let state = file.state();
            let late = state.late_places(placed_by);
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
