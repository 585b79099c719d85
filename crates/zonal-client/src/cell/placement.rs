//! Placement: the pieces of a file range by its layout, and the map's target of each column.

use crate::cell::Cell;
use crate::cell::call::Call;
use crate::cell::owner::SessionOwner;
use crate::transport::net::Net;
use crate::transport::retry::{RETRY_MS, is_passing, late};
use zonal_basics::BackOff;
use zonal_layout::{Piece, object_bytes};
use zonal_types::{
    Column, Component, Epoch, ErrorCode, FileData, NodeId, Redundancy, StripeSetId, TargetId,
    ZoneId,
};
use zonal_wire::ObjectRef;

/// The slot through which a request reaches a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotAddress {
    pub(crate) target: TargetId,
    pub(crate) set: StripeSetId,
    pub(crate) slot: u16,
}

/// The slot of a request that is made anew.
impl From<&ObjectRef> for SlotAddress {
    fn from(object: &ObjectRef) -> Self {
        Self {
            target: object.target,
            set: object.set,
            slot: object.slot,
        }
    }
}

/// The slot of a place; slot 0 of set 0 for the target itself.
impl From<&TargetPlace> for SlotAddress {
    fn from(place: &TargetPlace) -> Self {
        let (set, slot) = place.slot;
        Self {
            target: place.target,
            set,
            slot,
        }
    }
}

/// A target with everything that a request to it needs.
#[derive(Debug, Clone)]
pub(crate) struct TargetPlace {
    pub(crate) target: TargetId,
    pub(crate) node: NodeId,
    pub(crate) zone: ZoneId,
    pub(crate) address: String,
    /// Set and slot; set 0: the target itself.
    pub(crate) slot: (StripeSetId, u16),
    /// Epoch of the slot.
    pub(crate) epoch: Epoch,
    /// There are other copies: its target answers under a lease only.
    pub(crate) is_guarded: bool,
}

impl<N: Net> Cell<N> {
    /// The width of a component's stripe set.
    pub(crate) fn set_width(&self, component: &Component) -> u16 {
        self.map()
            .set(component.set)
            .map_or(0, |set| u16::try_from(set.slots.len()).unwrap_or(u16::MAX))
    }

    /// Splits a file range into pieces.
    pub(crate) fn pieces(
        &self,
        data: &FileData,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, ErrorCode> {
        zonal_layout::pieces(&data.layout, offset, length, |component| {
            self.set_width(component)
        })
        .map_err(zonal_layout::LayoutError::code)
    }

    fn knows_sets(&self, data: &FileData) -> bool {
        let map = self.map();
        let mut components = data.layout.components.iter();
        components.all(|component| map.knows_sets(component))
    }

    /// The present target of a place of an object.
    pub(crate) fn place(
        &self,
        component: &Component,
        column: Column,
    ) -> Result<TargetPlace, ErrorCode> {
        let map = self.map();
        let found = map.slot_of_place(component, column);
        let found = found.ok_or(match map.knows_sets(component) {
            true => ErrorCode::Corrupt,
            false => ErrorCode::StaleEpoch,
        })?;
        let slot = found.slot;
        let node = map
            .target(slot.target)
            .and_then(|target| map.node(target.node));
        let node = node.ok_or(ErrorCode::StaleEpoch)?;
        Ok(TargetPlace {
            target: slot.target,
            node: node.id,
            zone: node.zone,
            address: node.address.clone(),
            slot: (found.set, found.number),
            epoch: slot.slot_epoch,
            is_guarded: component.redundancy != Redundancy::None,
        })
    }

    /// Address of a target, independent of its slots.
    pub(crate) fn target_place(&self, target: TargetId) -> Result<TargetPlace, ErrorCode> {
        let map = self.map();
        let node = map.target(target).and_then(|target| map.node(target.node));
        let node = node.ok_or(ErrorCode::WrongTarget)?;
        Ok(TargetPlace {
            target,
            node: node.id,
            zone: node.zone,
            address: node.address.clone(),
            slot: (StripeSetId(0), 0),
            epoch: Epoch(0),
            is_guarded: false,
        })
    }
}

impl<C: SessionOwner> Call<'_, C> {
    /// Fetches a newer map where a layout names a stripe set that the known map lacks. While no
    /// manager answers, the known map stays: reads and writes fetch it again.
    pub(crate) async fn know_sets(&self, data: &FileData) -> Result<(), ErrorCode> {
        if self.cell().knows_sets(data) {
            return Ok(());
        }
        self.try_refresh_map().await
    }

    /// [`Cell::pieces`], with a newer map where the known one lacks a stripe set. Asks the managers
    /// again until the deadline.
    ///
    /// # Errors
    /// As [`Cell::pieces`]; a passing error where no manager gives a map with the set.
    pub(crate) async fn known_pieces(
        &self,
        data: &FileData,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, ErrorCode> {
        let deadline = self.deadline();
        let mut pause = BackOff::new(RETRY_MS);
        while !self.cell().knows_sets(data) {
            let code = match self.refresh_map().await {
                Err(code) if !is_passing(code) => return Err(code),
                outcome => outcome.err().unwrap_or(ErrorCode::Unreachable),
            };
            if self.cell().knows_sets(data) {
                break;
            }
            if self.is_over(deadline) {
                return Err(late(code));
            }
            self.sleep(pause.next_ms()).await;
        }
        self.cell().pieces(data, offset, length)
    }

    /// [`Self::known_pieces`] of all copies.
    ///
    /// # Errors
    /// As [`Self::known_pieces`].
    pub(crate) async fn pieces_to_write(
        &self,
        data: &FileData,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, ErrorCode> {
        let mut pieces = self.known_pieces(data, offset, length).await?;
        for index in 0..pieces.len() {
            let piece = pieces[index];
            let component = &data.layout.components[piece.component];
            if component.redundancy != Redundancy::None {
                pieces.extend(zonal_layout::other_places(component, piece));
            }
        }
        Ok(pieces)
    }

    /// The object of a column, with the last truncation for its target.
    pub(crate) fn object(
        data: &FileData,
        component: &Component,
        column: Column,
        through: impl Into<SlotAddress>,
    ) -> ObjectRef {
        let SlotAddress { target, set, slot } = through.into();
        ObjectRef {
            target,
            set,
            slot,
            data_id: component.data_id,
            column: zonal_layout::object_of(component, column),
            layout_gen: data.layout.layout_gen.0,
            truncate_seq: data.truncate_seq,
            truncate_bytes: object_bytes(component, data.truncate_size, column),
        }
    }
}
