//! `zonal events`: the log of changes of a cell.

use super::fs::cat_stat::date;
use crate::cell::connection::{CellArgs, CellHandle};
use crate::cell::node_states::{cause_text, events_behind};
use crate::console;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zonal_server::units::Millis;
use zonal_types::limits::EVENTS_LISTED_MAX;
use zonal_wire::{CellChange, CellEvent};

/// Show what happened to servers and mounts: nodes down and up again, zones without word, lost
/// mounts
///
/// The manager keeps the last 10,000 events, also over its restart. The oldest is shown first.
#[derive(Debug, clap::Args)]
pub struct Events {
    #[command(flatten)]
    cell: CellArgs,
    /// Go on with new events until interrupted
    #[arg(long)]
    follow: bool,
    /// Only events of the last time, such as "30 min" or "2 h"
    #[arg(long, value_name = "TIME")]
    since: Option<Millis>,
    /// As JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Time between two questions for new events.
const FOLLOW: Duration = Duration::from_millis(500);

impl Events {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        let from = self.since.map(|since| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let from = now.unwrap_or_default().saturating_sub(since.duration());
            i64::try_from(from.as_secs()).unwrap_or(i64::MAX)
        });
        let mut after = 0;
        loop {
            match self.page(&cell, &mut after, from) {
                Ok(true) => {}
                Ok(false) if !self.follow => return Ok(()),
                // A manager that is restarted answers again soon.
                Err(error) if !self.follow || after == 0 => return Err(error),
                Ok(false) | Err(_) => std::thread::sleep(FOLLOW),
            }
        }
    }

    /// Shows the events behind a number; true where there may be more.
    fn page(&self, cell: &CellHandle, after: &mut u64, from: Option<i64>) -> anyhow::Result<bool> {
        let (events, first) = events_behind(cell, *after)?;
        if first > after.saturating_add(1) && *after > 0 {
            let lost = first - *after - 1;
            console::note(format_args!("{lost} events are not kept any more"));
        }
        for event in &events {
            *after = event.number.max(*after);
            if from.is_some_and(|from| event.at.seconds < from) {
                continue;
            }
            match self.json {
                true => console::json(to_json(event)),
                false => console::line(text(event)),
            }
        }
        Ok(events.len() >= EVENTS_LISTED_MAX)
    }
}

fn text(event: &CellEvent) -> String {
    let at = date(event.at.seconds);
    let change = match &event.change {
        CellChange::NodeState {
            node,
            zone,
            was,
            state,
            cause,
            by,
        } => format!(
            "node {node} in zone {zone} is {}, was {}: {}",
            state.word(),
            was.word(),
            cause_text(*cause, by)
        ),
        CellChange::ZoneReports {
            zone,
            reports: true,
        } => format!("digests come from zone {zone} again"),
        CellChange::ZoneReports { zone, .. } => {
            format!("no digest comes from zone {zone}: it is cut off, or all its servers are gone")
        }
        CellChange::ClientLost {
            shard, zone, name, ..
        } => format!(
            "client \"{name}\" of zone {zone} is lost: its session at shard {shard} expired"
        ),
    };
    format!("{at}  {change}")
}

fn to_json(event: &CellEvent) -> Value {
    let at = event.at.seconds;
    let number = event.number;
    match &event.change {
        CellChange::NodeState {
            node,
            zone,
            was,
            state,
            cause,
            by,
        } => json!({
            "number": number, "time": at, "event": "node-state", "node": node.0, "zone": zone.0,
            "was": was.word(), "state": state.word(), "why": cause_text(*cause, by),
            "by": by.iter().map(|by| by.0).collect::<Vec<_>>(),
        }),
        CellChange::ZoneReports { zone, reports } => json!({
            "number": number, "time": at, "event": "zone-reports", "zone": zone.0,
            "reports": reports,
        }),
        CellChange::ClientLost {
            shard,
            zone,
            client,
            name,
        } => json!({
            "number": number, "time": at, "event": "client-lost", "shard": shard.0,
            "zone": zone.0, "client": format!("{:016x}", client.0), "name": name,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{NodeId, Timestamp, ZoneId};
    use zonal_wire::{NodeState, StateCause};

    #[test]
    fn an_event_names_node_state_cause_and_watchers() {
        let event = CellEvent {
            number: 7,
            at: Timestamp {
                seconds: 1_000_000_000,
                nanos: 0,
            },
            change: CellChange::NodeState {
                node: NodeId(5),
                zone: ZoneId(2),
                was: NodeState::Suspect,
                state: NodeState::Down,
                cause: StateCause::NoProcess,
                by: vec![NodeId(4), NodeId(6)],
            },
        };
        let shown = "2001-09-09 01:46:40  node 5 in zone 2 is down, was suspect: no process listens at its address (seen by nodes 4, 6)";
        assert_eq!(text(&event), shown);
        assert_eq!(to_json(&event)["state"], "down");
    }
}
