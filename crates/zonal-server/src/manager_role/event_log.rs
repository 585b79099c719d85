//! The log of events: keys of the manager's store, one for each event, in the order of their
//! numbers.
//!
//! *Invariants*: (1) numbers rise without gaps; (2) at most [`EVENTS_MAX`] events are kept, as the
//! record of a new one removes the oldest. Events are not flushed by themselves: a loss of power
//! may take the last ones, a kill takes none.

use super::ManagerError;
use crate::clock;
use crate::shard_log::ShardLog;
use zonal_disk::LogRoom;
use zonal_driver::shard::Durability;
use zonal_types::describe::Described;
use zonal_types::limits::{EVENTS_LISTED_MAX, EVENTS_MAX};
use zonal_types::{Codec, ErrorCode, KvChange, KvRead};
use zonal_wire::{CellChange, CellEvent};

/// Prefix of the events' keys, behind those of junctions.
const EVENTS_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xfd];
/// End of the events' keys (exclusive).
const EVENTS_END: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xfe];

fn key(number: u64) -> Vec<u8> {
    [&EVENTS_KEY[..], &number.to_be_bytes()].concat()
}

/// An event in printable form, for dumps; `None` where the key is another one, or the value is
/// damaged.
#[must_use]
pub fn describe(at: &[u8], value: &[u8]) -> Option<Described> {
    at.starts_with(&EVENTS_KEY).then_some(())?;
    let event = CellEvent::from_bytes(value).ok()?;
    let shown = Described::new("event").with("number", event.number);
    let shown = shown.with("seconds", event.at.seconds.unsigned_abs());
    let shown = shown.with("change", event.change.name());
    Some(match event.change {
        CellChange::NodeState {
            node,
            zone,
            state,
            cause,
            ..
        } => shown
            .with("node", node.0)
            .with("zone", zone.0)
            .with("state", state.name())
            .with("cause", cause.name()),
        CellChange::ZoneReports { zone, reports } => {
            shown.with("zone", zone.0).with("reports", reports)
        }
        CellChange::ClientLost { shard, name, .. } => {
            shown.with("shard", shard.0).with("name", name)
        }
    })
}

/// The numbers of the kept events.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    /// 0: there is none.
    first: u64,
    last: u64,
}

impl EventLog {
    /// Reads the numbers, and shows each event to `take`.
    pub(super) fn open(
        kv: &dyn KvRead,
        take: &mut dyn FnMut(CellEvent),
    ) -> Result<Self, ManagerError> {
        let mut log = Self::default();
        let mut failed = None;
        let read = kv.scan(&EVENTS_KEY, &EVENTS_END, &mut |_, value| {
            match CellEvent::from_bytes(value) {
                Ok(event) => {
                    log.last = event.number;
                    if log.first == 0 {
                        log.first = event.number;
                    }
                    take(event);
                }
                Err(_) => failed = Some(ErrorCode::Corrupt),
            }
            failed.is_none()
        });
        read.map_err(ManagerError::Stored)?;
        failed.map_or(Ok(log), |code| Err(ManagerError::Stored(code)))
    }

    /// Logs changes as events, in one record.
    pub(super) fn append(
        &mut self,
        log: &ShardLog,
        changes: Vec<CellChange>,
    ) -> Result<(), ManagerError> {
        if changes.is_empty() {
            return Ok(());
        }
        let at = clock::wall();
        let (mut first, mut last) = (self.first.max(1), self.last);
        let mut record = Vec::new();
        for change in changes {
            last += 1;
            let event = CellEvent {
                number: last,
                at,
                change,
            };
            record.push(KvChange::put(key(last), event.to_bytes()));
            if last - first >= EVENTS_MAX {
                record.push(KvChange::remove(key(first)));
                first += 1;
            }
        }
        log.append(record, LogRoom::Normal, Durability::Later)?;
        (self.first, self.last) = (first, last);
        Ok(())
    }

    /// The numbers of the oldest and the newest event; 0: there is none.
    pub(super) fn numbers(&self) -> (u64, u64) {
        (self.first, self.last)
    }

    /// Events behind a number.
    pub(super) fn listed(
        kv: &dyn KvRead,
        after: u64,
        limit: u32,
    ) -> Result<Vec<CellEvent>, ManagerError> {
        let limit = (limit as usize).min(EVENTS_LISTED_MAX);
        let mut events = Vec::new();
        if limit == 0 || after == u64::MAX {
            return Ok(events);
        }
        let read = kv.scan(&key(after + 1), &EVENTS_END, &mut |_, value| {
            events.extend(CellEvent::from_bytes(value).ok());
            events.len() < limit
        });
        read.map_err(ManagerError::Stored)?;
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use zonal_disk::engine::EngineConfig;
    use zonal_disk::{Engine, StoreIdentity, StoreKind};
    use zonal_testkit::Scratch;
    use zonal_types::ZoneId;

    fn change(zone: u16) -> CellChange {
        CellChange::ZoneReports {
            zone: ZoneId(zone),
            reports: true,
        }
    }

    #[test]
    fn events_keep_their_numbers_over_a_restart_and_the_oldest_go() {
        let folder = Scratch::in_memory("events");
        let identity = StoreIdentity {
            cell: [7; 16],
            kind: StoreKind::Manager,
            id: 1,
        };
        let bounds = EngineConfig {
            log_bytes: 8 << 20,
            ..EngineConfig::default()
        };
        Engine::format(&folder, identity, &bounds).unwrap();
        let engine = Engine::open(&folder, &identity, bounds, &mut |_, _, _| true).unwrap();
        let log = ShardLog::own(Arc::new(engine));
        let mut events = EventLog::open(&**log.engine(), &mut |_| {}).unwrap();
        assert_eq!(events.numbers(), (0, 0));
        events.append(&log, vec![change(1), change(2)]).unwrap();
        let many = usize::try_from(EVENTS_MAX).unwrap() - 1;
        events.append(&log, vec![change(3); many]).unwrap();
        assert_eq!(events.numbers(), (2, EVENTS_MAX + 1));
        let mut seen = Vec::new();
        let again = EventLog::open(&**log.engine(), &mut |event| seen.push(event)).unwrap();
        assert_eq!(again.numbers(), events.numbers());
        assert_eq!((seen.len() as u64, seen[0].number), (EVENTS_MAX, 2));
        let listed = EventLog::listed(&**log.engine(), 3, 2).unwrap();
        let numbers: Vec<u64> = listed.iter().map(|event| event.number).collect();
        assert_eq!(numbers, [4, 5]);
        assert!(
            EventLog::listed(&**log.engine(), u64::MAX, 2)
                .unwrap()
                .is_empty()
        );
        assert!(describe(&key(2), &seen[0].to_bytes()).is_some());
    }
}
