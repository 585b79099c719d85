//! Reservations: nodes that were given to a job which has not reported itself yet.
//!
//! They make bursts of jobs spread. A reservation is a hint: the table is bounded, and a full table
//! releases the reservation that would have ended first.

use std::collections::BTreeMap;
use zonal_types::{NodeId, ZoneId};

/// Most reservations that are kept.
pub const RESERVATIONS_MAX: usize = 65_536;

/// Longest time of a reservation.
pub const RESERVATION_MS_MAX: u64 = 600_000;

/// Nodes that are reserved for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Its number, never used again.
    pub id: u64,
    /// When it ends.
    pub end_ms: u64,
    /// The zone of the nodes.
    pub zone: ZoneId,
    /// The nodes.
    pub nodes: Vec<NodeId>,
}

/// All reservations, the one that ends first in front.
#[derive(Debug, Default)]
pub struct ReservationTable {
    by_end: BTreeMap<(u64, u64), Reservation>,
    ends: BTreeMap<u64, u64>,
    last_id: u64,
}

impl ReservationTable {
    /// Makes an empty table whose first reservation gets the number behind `last_id`.
    #[must_use]
    pub fn new(last_id: u64) -> Self {
        Self {
            last_id,
            ..Self::default()
        }
    }

    /// The reservation of a number.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Reservation> {
        let end_ms = self.ends.get(&id)?;
        self.by_end.get(&(*end_ms, id))
    }

    /// Adds a reservation; returns its number, and the reservation that a full table released.
    pub fn add(
        &mut self,
        end_ms: u64,
        zone: ZoneId,
        nodes: Vec<NodeId>,
    ) -> (u64, Option<Reservation>) {
        let released = match self.by_end.len() >= RESERVATIONS_MAX {
            true => self.by_end.pop_first().map(|(_, first)| first),
            false => None,
        };
        if let Some(first) = &released {
            self.ends.remove(&first.id);
        }
        self.last_id += 1;
        let id = self.last_id;
        let added = Reservation {
            id,
            end_ms,
            zone,
            nodes,
        };
        self.by_end.insert((end_ms, id), added);
        self.ends.insert(id, end_ms);
        (id, released)
    }

    /// Removes a reservation, as its job has begun or was given up.
    pub fn release(&mut self, id: u64) -> Option<Reservation> {
        let end_ms = self.ends.remove(&id)?;
        self.by_end.remove(&(end_ms, id))
    }

    /// Removes one reservation that has ended.
    pub fn pop_ended(&mut self, now_ms: u64) -> Option<Reservation> {
        let first = self.by_end.first_entry()?;
        if first.get().end_ms > now_ms {
            return None;
        }
        let ended = first.remove();
        self.ends.remove(&ended.id);
        Some(ended)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_end.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_releases_the_reservation_that_ends_first() {
        let mut table = ReservationTable::default();
        for number in 0..RESERVATIONS_MAX as u64 {
            let (_, released) = table.add(1_000 + number, ZoneId(1), Vec::new());
            assert_eq!(released, None);
        }
        let (_, released) = table.add(5, ZoneId(2), Vec::new());
        assert_eq!(released.unwrap().end_ms, 1_000);
        assert_eq!(table.len(), RESERVATIONS_MAX);
    }

    #[test]
    fn reservations_end_by_time_or_by_release() {
        let mut table = ReservationTable::default();
        let (first, _) = table.add(10, ZoneId(1), vec![NodeId(1)]);
        let (second, _) = table.add(20, ZoneId(1), vec![NodeId(2)]);
        assert_eq!(table.pop_ended(9), None);
        assert_eq!(table.pop_ended(10).unwrap().id, first);
        assert_eq!(table.release(second).unwrap().nodes, [NodeId(2)]);
        assert_eq!(table.release(second), None);
        assert!(table.is_empty());
    }
}
