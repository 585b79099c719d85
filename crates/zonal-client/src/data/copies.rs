//! The copy of a column that a read asks.
//!
//! The first attempt asks a copy on the client's own node, else one by the client's number, so that
//! clients spread over the copies. It waits only briefly. Where its target does not answer or has
//! a damaged block, the next attempt asks the next copy at once. After a round of all copies the
//! usual pause and the newer map come first.

use crate::cell::Cell;
use crate::cell::outages::CopyState;
use crate::client::ClientCall;
use crate::transport::net::Net;
use zonal_basics::to_usize;
use zonal_layout::{Piece, PlaceUse, other_places, place_use};
use zonal_types::{Column, Component, ErrorCode, FileData, Layout, Redundancy, ZoneId};
use zonal_wire::StorageRequest;

/// Time after which a read that has another copy to ask goes on to it, ms.
const COPY_WAIT_MS: u64 = 500;
/// The longest wait, as a power of two of the first.
const COPY_WAIT_DOUBLINGS: u32 = 4;

/// The objects of a column that the attempts of a read ask in turn.
pub(crate) struct CopyChoice {
    /// Copies that may be asked.
    copies: usize,
    /// Attempts that went on to another copy.
    turn: usize,
    /// Any copy has the answer.
    is_free: bool,
}

impl CopyChoice {
    /// For a request about a component of this file. `reads`: any copy has the answer.
    pub(crate) fn new(data: &FileData, component: usize, reads: bool) -> Self {
        let component = data.layout.components.get(component);
        Self {
            copies: component.map_or(1, |component| component.redundancy.copies().into()),
            turn: 0,
            is_free: reads,
        }
    }

    /// Notes the request of an attempt: a change is for its own object only.
    pub(crate) fn answers(&mut self, request: &StorageRequest) {
        self.is_free = matches!(
            request,
            StorageRequest::Read { .. } | StorageRequest::Map { .. }
        );
    }

    /// Whether any copy has the answer.
    pub(crate) fn is_free(&self) -> bool {
        self.is_free
    }

    /// Goes on to the next copy after a failed attempt. False where another one cannot help, or
    /// where all have been asked in this round.
    pub(crate) fn has_another(&mut self, failed: ErrorCode) -> bool {
        let is_of_server = matches!(
            failed,
            ErrorCode::Corrupt
                | ErrorCode::Io
                | ErrorCode::Unreachable
                | ErrorCode::TimedOut
                | ErrorCode::NotReady
                | ErrorCode::Overloaded
        );
        if !self.is_free || !is_of_server || self.copies < 2 {
            return false;
        }
        self.turn = (self.turn + 1) % self.copies;
        zonal_types::mark!(OtherCopyAsked);
        self.turn != 0
    }

    /// The object for the next attempt of these copies, where the first asked `first`.
    pub(crate) fn object(&mut self, copies: &[Column], first: Column) -> Column {
        self.copies = copies.len();
        let begin = copies.iter().position(|copy| *copy == first).unwrap_or(0);
        let turn = begin + self.turn;
        let next = turn.checked_rem(copies.len()).map(|at| copies[at]);
        next.unwrap_or(first)
    }
}

impl<N: Net> Cell<N> {
    /// The objects that have a column's bytes: copies in service, else those that miss nothing yet.
    pub(crate) fn whole_copies(
        &self,
        layout: &Layout,
        component: &Component,
        object: Column,
    ) -> Vec<Column> {
        let column = object.0 % component.count.max(1);
        let places = zonal_layout::places_of_column(component, column);
        let main = places.filter(|place| place_use(component, *place) == PlaceUse::Main);
        let states = main.map(|copy| (copy, self.copy_state(layout, component, copy)));
        let states: Vec<(Column, CopyState)> = states.collect();
        let in_state = |wanted: CopyState| {
            let found = states.iter().filter(move |(_, state)| *state == wanted);
            found.map(|(copy, _)| *copy).collect::<Vec<Column>>()
        };
        let serving = in_state(CopyState::InService);
        match serving.is_empty() {
            true => in_state(CopyState::Out),
            false => serving,
        }
    }

    /// The zone whose copies this client reads: its own where the file has any there, else the
    /// file's.
    fn zone_to_read(&self, component: &Component) -> ZoneId {
        let own = self.map().node(self.options.node).map(|node| node.zone);
        let also = component.redundancy.also_zone().map(|(zone, _)| zone);
        own.filter(|own| Some(*own) == also)
            .unwrap_or(component.zone)
    }

    /// The copy of a piece that this client reads.
    fn nearest_copy(&self, layout: &Layout, component: &Component, piece: Piece) -> Piece {
        if component.redundancy == Redundancy::None {
            return piece;
        }
        let whole = self.whole_copies(layout, component, piece.column);
        let others = other_places(component, piece);
        let all = std::iter::once(piece).chain(others);
        let all: Vec<Piece> = all.filter(|copy| whole.contains(&copy.column)).collect();
        let now = self.net.now();
        let place = |piece: &Piece| self.place(component, piece.column).ok();
        let answers = |piece: &&Piece| {
            let place = place(piece);
            place.is_some_and(|place| !self.silent_servers.is_silent(&place.address, now))
        };
        let mut known: Vec<Piece> = all.iter().filter(answers).copied().collect();
        let is_own =
            |piece: &&Piece| place(piece).is_some_and(|place| place.node == self.options.node);
        if component.redundancy.also_zone().is_some() {
            let zone = self.zone_to_read(component);
            let in_zone = |piece: &Piece| place(piece).is_some_and(|place| place.zone == zone);
            if known.iter().any(in_zone) {
                known.retain(in_zone);
            }
        }
        let spread = to_usize(self.options.client.0 % known.len().max(1) as u64);
        let own = known.iter().find(is_own);
        let any = all.first().unwrap_or(&piece);
        *own.or_else(|| known.get(spread)).unwrap_or(any)
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// The pieces of a range, each of the copy that this client reads.
    ///
    /// # Errors
    /// As [`Self::known_pieces`].
    pub(crate) async fn pieces_to_read(
        &self,
        data: &FileData,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, ErrorCode> {
        let mut pieces = self.known_pieces(data, offset, length).await?;
        for piece in &mut pieces {
            let component = &data.layout.components[piece.component];
            *piece = self.nearest_copy(&data.layout, component, *piece);
        }
        Ok(pieces)
    }

    /// A call whose attempt to read waits only briefly, as there are copies to go on to. The wait
    /// doubles from attempt to attempt.
    pub(crate) fn until_other_copy(&self, attempt: u32) -> Self {
        self.briefly(COPY_WAIT_MS << attempt.min(COPY_WAIT_DOUBLINGS))
    }
}
