//! Places of the objects of a component. An object that moves has two: the one before, and the new
//! one (docs/rfcs/2026-11-27-relocations.md).
//!
//! A place has a number. `0..objects` are the places before, `objects..2 * objects` the new ones.
//! Both stay the same while an object moves, so a change that began before a step of the
//! relocation still reaches both. The object of a place is the number modulo `objects`.

use crate::stripe::{LayoutError, object_count, objects, set_of, slot_in_also_zone, slot_of};
use zonal_types::{Column, Component, Relocation, RelocationState, StripeSetId};

/// The use of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceUse {
    /// It is read, and gets each change.
    Main,
    /// Its target fills it. It gets each change after the main places.
    Filling,
    /// Its copy goes. It is not read, and no source of bytes. It gets each change as a main place
    /// does, and is marked where it misses one.
    Leaving,
    /// Its object moved away. It gets each change while its slot serves, for clients that do not
    /// know that.
    Left,
}

impl PlaceUse {
    /// True where a place without a mark has each change.
    #[must_use]
    pub fn is_kept_whole(self) -> bool {
        matches!(self, Self::Main | Self::Leaving)
    }
}

/// The object of a place.
#[must_use]
pub fn object_of(component: &Component, place: Column) -> Column {
    Column(place.0 % object_count(component).max(1))
}

fn is_new(component: &Component, place: Column) -> bool {
    place.0 >= object_count(component)
}

/// The relocation of an object that is under way.
#[must_use]
pub fn relocation_of(component: &Component, object: Column) -> Option<&Relocation> {
    let mut relocations = component.relocations.iter();
    relocations.find(|found| found.object == object && found.state.is_under_way())
}

/// The places at which something of an object is to be deleted.
pub fn leftovers(component: &Component) -> impl Iterator<Item = &Relocation> {
    let relocations = component.relocations.iter();
    relocations.filter(|of| of.state.is_left())
}

/// Copies of a column that stay: those of which no object goes. They are the first ones.
#[must_use]
pub fn staying_copies(component: &Component) -> u16 {
    let going = component.relocations.iter();
    let going = going.filter(|of| of.state.is_leaving());
    let first = going.map(|of| of.object.0 / component.count.max(1)).min();
    let copies = component.redundancy.copies();
    first.map_or(copies, |first| first.min(copies))
}

/// The new place of an object that is relocated.
fn new_place(component: &Component, object: Column) -> Option<Column> {
    let has_two = |state| matches!(state, RelocationState::Filling | RelocationState::Filled);
    relocation_of(component, object).filter(|of| has_two(of.state))?;
    object.0.checked_add(object_count(component)).map(Column)
}

/// All places of a component.
pub fn places(component: &Component) -> impl Iterator<Item = Column> {
    let before = objects(component);
    before.chain(objects(component).filter_map(|object| new_place(component, object)))
}

/// The places of one column. The first is the place before of its first copy.
pub fn places_of_column(component: &Component, column: u16) -> impl Iterator<Item = Column> {
    let copies = crate::copies_of_column(component, column);
    copies.flat_map(|object| std::iter::once(object).chain(new_place(component, object)))
}

/// The places of a piece's column other than the piece's own, for the same bytes.
pub fn other_places(
    component: &Component,
    piece: crate::Piece,
) -> impl Iterator<Item = crate::Piece> {
    let column = piece.column.0 % component.count.max(1);
    let others = places_of_column(component, column).filter(move |place| *place != piece.column);
    others.map(move |column| crate::Piece { column, ..piece })
}

/// The use of a place. A place that is not there is `Left`.
#[must_use]
pub fn place_use(component: &Component, place: Column) -> PlaceUse {
    let relocation = relocation_of(component, object_of(component, place));
    let state = relocation.map(|relocation| relocation.state);
    match (state, is_new(component, place)) {
        (Some(RelocationState::Filling), true) | (Some(RelocationState::Missing), false) => {
            PlaceUse::Filling
        }
        (Some(RelocationState::Filled), true) | (Some(RelocationState::Filling) | None, false) => {
            PlaceUse::Main
        }
        (Some(state), false) if state.is_leaving() => PlaceUse::Leaving,
        _ => PlaceUse::Left,
    }
}

/// The place at which an object is read.
#[must_use]
pub fn main_place(component: &Component, object: Column) -> Column {
    match relocation_of(component, object) {
        Some(found) if found.state == RelocationState::Filled => {
            new_place(component, object).unwrap_or(object)
        }
        _ => object,
    }
}

/// The set and the slot of a place. `width_of` gives the slots of a set; 0 for an unknown one.
///
/// # Errors
/// As [`slot_of`] and [`slot_in_also_zone`]; `BadColumn` for a place that is not there (any more).
pub fn slot_of_place(
    component: &Component,
    place: Column,
    width_of: impl FnOnce(StripeSetId) -> u16,
) -> Result<(StripeSetId, u16), LayoutError> {
    let object = object_of(component, place);
    let is_settled =
        |found: &&Relocation| found.object == object && found.state == RelocationState::Settled;
    let found = match is_new(component, place) {
        true => {
            new_place(component, object).ok_or(LayoutError::BadColumn { column: place })?;
            relocation_of(component, object)
        }
        false => component.relocations.iter().find(is_settled),
    };
    if let Some(found) = found {
        return Ok((found.set, found.slot));
    }
    let set = set_of(component, object);
    let slot = match set == component.set {
        true => slot_of(component, object, width_of(set))?,
        false => slot_in_also_zone(component, object, width_of(set))?,
    };
    Ok((set, slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{
        ComponentKind, DataId, MapVersion, Redundancy, ZoneId, limits::STRIPE_UNIT_DEFAULT,
    };

    fn component(records: &[(u16, u16, RelocationState)]) -> Component {
        let record = |&(object, slot, state): &(u16, u16, RelocationState)| Relocation {
            object: Column(object),
            set: StripeSetId(9),
            slot,
            state,
            as_of: MapVersion(1),
        };
        Component {
            kind: ComponentKind::Striped,
            start: 0,
            end: u64::MAX,
            data_id: DataId(1),
            zone: ZoneId(1),
            set: StripeSetId(1),
            start_column: Column(0),
            count: 2,
            unit: STRIPE_UNIT_DEFAULT,
            span: 0,
            redundancy: Redundancy::Copies { copies: 2, step: 1 },
            relocations: records.iter().map(record).collect(),
        }
    }

    fn of_column(component: &Component, column: u16) -> Vec<(u16, PlaceUse)> {
        let places = places_of_column(component, column);
        places.map(|at| (at.0, place_use(component, at))).collect()
    }

    #[test]
    fn an_object_that_moves_has_two_places_with_lasting_numbers() {
        use PlaceUse::{Filling, Left, Main};
        use RelocationState as State;
        let still = component(&[]);
        assert_eq!(of_column(&still, 1), [(1, Main), (3, Main)]);
        let filling = component(&[(3, 5, State::Filling)]);
        assert_eq!(of_column(&filling, 1), [(1, Main), (3, Main), (7, Filling)]);
        assert_eq!(of_column(&filling, 0), [(0, Main), (2, Main)]);
        let filled = component(&[(3, 5, State::Filled)]);
        assert_eq!(of_column(&filled, 1), [(1, Main), (3, Left), (7, Main)]);
        assert_eq!(main_place(&filled, Column(3)), Column(7));
        let computed = Ok((StripeSetId(1), 2));
        assert_eq!(slot_of_place(&filled, Column(3), |_set| 4), computed);
        assert_eq!(
            slot_of_place(&filled, Column(7), |_set| 4),
            Ok((StripeSetId(9), 5))
        );
        let settled = component(&[(3, 5, State::Settled)]);
        assert_eq!(of_column(&settled, 1), [(1, Main), (3, Main)]);
        assert_eq!(
            slot_of_place(&settled, Column(3), |_set| 4),
            Ok((StripeSetId(9), 5))
        );
        assert!(slot_of_place(&settled, Column(7), |_set| 4).is_err());
        // It moves again: from the settled place to another one.
        let again = component(&[(3, 5, State::Settled), (3, 6, State::Filling)]);
        assert_eq!(of_column(&again, 1), [(1, Main), (3, Main), (7, Filling)]);
        assert_eq!(
            slot_of_place(&again, Column(3), |_set| 4),
            Ok((StripeSetId(9), 5))
        );
        assert_eq!(
            slot_of_place(&again, Column(7), |_set| 4),
            Ok((StripeSetId(9), 6))
        );
        assert_eq!(places(&again).count(), 5);
    }
}
