//! Abandoned appends: their caller was killed or its deadline passed, while the shard may still
//! hold their places. All later appends of the file would wait for them.
//!
//! The client tells the shard at once that no caller waits for the place. When no other write of
//! the file is in flight here, it also ends the place with no bytes. The shard then gives the bytes
//! behind the file's end a new truncation number.
//!
//! An unanswered request for a place keeps its slot, in which the client repeats it. The shard then
//! returns the place it assigned, or assigns one now. Bounds: [`ASKED_MAX`], [`PLACES_MAX`]; beyond
//! them a place stays until its term at the shard ends.

use super::link::{Link, SlotPlace};
use crate::transport::mutex::lock;
use zonal_types::limits::SESSION_SLOTS_MAX;
use zonal_types::{Ino, SessionId};
use zonal_wire::{AppendPlace, MetaRequest};

/// Unanswered requests of one link that keep their slot.
pub(crate) const ASKED_MAX: usize = SESSION_SLOTS_MAX as usize / 4;

/// Abandoned places of one link.
const PLACES_MAX: usize = 4_096;

/// Abandoned appends of one link.
#[derive(Default)]
pub(crate) struct AbandonedAppends {
    pub(crate) asked: Vec<UnansweredAppend>,
    pub(crate) places: Vec<AbandonedPlace>,
}

pub(crate) struct UnansweredAppend {
    pub(crate) ino: Ino,
    pub(crate) request: MetaRequest,
    pub(crate) place: SlotPlace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbandonedPlace {
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) reserved: u32,
    pub(crate) session: SessionId,
    /// The shard's boot in which the place was abandoned. The next boot has forgotten it, and may
    /// assign the same place to another append.
    pub(crate) boot: u64,
    /// The shard knows that no caller waits.
    pub(crate) is_told: bool,
}

impl Link {
    /// Number of messages still to send.
    pub(crate) fn given_up(&self) -> usize {
        let given_up = lock(&self.given_up);
        given_up.asked.len() + given_up.places.len()
    }

    pub(crate) fn give_up_place(&self, ino: Ino, offset: u64, reserved: u32, session: SessionId) {
        let boot = self.boot();
        let mut given_up = lock(&self.given_up);
        if given_up.places.len() < PLACES_MAX {
            given_up.places.push(AbandonedPlace {
                ino,
                offset,
                reserved,
                session,
                boot,
                is_told: false,
            });
        }
        assert!(
            given_up.places.len() <= PLACES_MAX,
            "{} places are abandoned",
            given_up.places.len()
        );
    }

    /// Abandons a place that this session got. The message is sent later. (A later session, or this
    /// one after a restart of the shard, may have got the same place.)
    pub(crate) fn give_up_append(&self, ino: Ino, place: AppendPlace, session: SessionId) {
        self.give_up_place(ino, place.offset, place.length, session);
    }
}

impl AbandonedPlace {
    pub(crate) fn life(&self) -> (u64, SessionId) {
        (self.boot, self.session)
    }
}
