//! What of a client's memory a server may use for one request: the payload of the request, or room
//! for the reply's.
//!
//! *Invariant*: a loan that is dropped without [`RegionLoan::end`] stays the server's: its memory is used
//! for nothing else.

use std::os::fd::AsFd;

use zonal_region::{Hold, Memory, Regions};
use zonal_types::limits::REGION_PAYLOAD_MIN;
use zonal_wire::frame::Room;

use crate::frame_io::{FrameOut, PayloadOut};

/// A part of a region, lent for a request.
#[derive(Debug)]
pub(crate) struct RegionLoan {
    hold: Hold,
    /// What is held, where it is room for the reply's payload; else it is the request's.
    room: Option<Memory>,
}

impl RegionLoan {
    /// For a request with this payload, or with room for so much of the reply's: where that is long
    /// enough, and in one piece of a region.
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

    /// Number of the region it is a part of.
    pub(crate) fn region(&self) -> u64 {
        self.hold.region().number()
    }

    /// Has the frame of the request say where it is, to a server that has region `known` already.
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

    /// Whether a server may have put so many bytes into the room.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.room.as_ref().is_some_and(|room| bytes <= room.len())
    }

    /// The room, to be kept.
    pub(crate) fn take_room(&mut self) -> Option<Memory> {
        self.room.take()
    }

    /// The server is done with it, or has never heard of it.
    pub(crate) fn end(self) {
        self.hold.release();
    }
}
