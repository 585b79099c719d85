//! Loan of a client's shared memory to a server for one request: the payload of the request, or
//! room for the reply's payload.
//!
//! *Invariant*: a loan that is dropped without [`RegionLoan::end`] stays the server's, and its
//! memory is never used again.

use std::os::fd::AsFd;

use zonal_region::{Hold, Memory, Regions};
use zonal_types::limits::REGION_PAYLOAD_MIN;
use zonal_wire::frame::Room;

use crate::frame_io::{FrameOut, PayloadOut};

/// A part of a region, lent for one request.
#[derive(Debug)]
pub(crate) struct RegionLoan {
    hold: Hold,
    /// The lent memory, where it is room for the reply's payload; `None`: the loan is the request's
    /// payload.
    room: Option<Memory>,
}

impl RegionLoan {
    /// Lends the payload, or room of this many bytes for the reply's payload. `None` where it is
    /// too short, or not in one piece of a region.
    pub(crate) fn of(regions: &Regions, payload: &[&[u8]], room: usize) -> Option<Self> {
        match *payload {
            [payload] if payload.len() >= REGION_PAYLOAD_MIN => {
                let hold = regions.hold(payload)?;
                Some(Self { hold, room: None })
            }
            [] if room >= REGION_PAYLOAD_MIN => {
                let room = regions.take_shared(room)?;
                let hold = regions.hold(&room)?;
                let room = Some(room);
                Some(Self { hold, room })
            }
            _ => None,
        }
    }

    /// Number of its region.
    pub(crate) fn region(&self) -> u64 {
        self.hold.region().number()
    }

    /// Writes the loan's place into the request's frame, with the region unless the server has it
    /// (`known`).
    pub(crate) fn announce<'a>(&'a self, frame: &mut FrameOut<'a>, known: u64) {
        let (offset, length) = (self.hold.offset(), self.hold.length());
        if self.room.is_some() {
            frame.header.room = Some(Room { offset, length });
        } else {
            let bytes = length;
            frame.payload = PayloadOut::Region { offset, bytes };
        }
        frame.region = (self.region() != known).then(|| self.hold.region().as_fd());
    }

    /// True where the room takes a payload of `bytes`.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.room.as_ref().is_some_and(|room| bytes <= room.len())
    }

    /// Takes the room, which now has the reply's payload.
    pub(crate) fn take_room(&mut self) -> Option<Memory> {
        self.room.take()
    }

    /// Ends the loan: the server is done with it, or never heard of it.
    pub(crate) fn end(self) {
        self.hold.release();
    }
}
