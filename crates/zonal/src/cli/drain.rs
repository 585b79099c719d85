//! `zonal target drain`, and the drain of a node or a zone: moves all objects of targets to other
//! targets. The leading manager does it; this command begins it, follows it, and cancels it.

use crate::cell::connection::CellHandle;
use crate::cli::edit_args::EditArgs;
use crate::cli::target_remove::edit_map;
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND, REFUSED};
use serde_json::{Value, json};
use std::time::Duration;
use zonal_types::TargetId;
use zonal_wire::{DrainStatus, ManagerReply, ManagerRequest};
use zonal_zonemap::{MapEdit, TargetState, ZoneMap};

/// Time between two looks.
const FOLLOW: Duration = Duration::from_secs(1);

/// Arguments of a drain.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Look each second until it has ended
    #[arg(long, conflicts_with = "preview")]
    follow: bool,
    /// End the drain: objects that have moved stay where they are
    #[arg(long)]
    cancel: bool,
    /// As JSON, one object for each look
    #[arg(long, requires = "follow")]
    json: bool,
}

impl DrainArgs {
    /// Drains the targets that `choose` names.
    pub fn run(
        &self,
        choose: impl FnOnce(&ZoneMap) -> anyhow::Result<Vec<TargetId>>,
    ) -> anyhow::Result<()> {
        let (cell, map) = self.edit.open()?;
        let targets = choose(&map)?;
        if targets.is_empty() {
            let text = "there is no target to drain";
            return Err(Failure::new(NOT_FOUND, text).into());
        }
        let state = match self.cancel {
            true => TargetState::Serving,
            false => TargetState::Draining,
        };
        let edits = edits(&map, &targets, state)?;
        let lines: Vec<String> = targets
            .iter()
            .map(|target| line_of(*target, state))
            .collect();
        if self.edit.previews(&map, &lines) {
            return Ok(());
        }
        let mut map = map;
        for edit in edits {
            map = edit_map(&cell, &map, edit)?;
        }
        if !self.follow {
            lines.iter().for_each(console::line);
            if !self.cancel {
                let hint = "`zonal recovery --follow` shows the progress";
                console::note(format_args!("{hint}"));
            }
            return Ok(());
        }
        self.follow(&cell, &targets)
    }

    fn follow(&self, cell: &CellHandle, targets: &[TargetId]) -> anyhow::Result<()> {
        loop {
            let map = cell.map()?;
            let drains = drains_of(cell)?;
            match self.json {
                true => console::json(to_json(&map, &drains, targets)),
                false => print(&map, &drains, targets),
            }
            let is_over = |target: &TargetId| {
                let state = map.target_state(*target);
                !state.is_some_and(|state| state.is_leaving() || state == TargetState::Returning)
            };
            if targets.iter().all(is_over) {
                return Ok(());
            }
            std::thread::sleep(FOLLOW);
        }
    }
}

/// The edits that bring targets into a state; none for those that are there.
fn edits(map: &ZoneMap, targets: &[TargetId], state: TargetState) -> anyhow::Result<Vec<MapEdit>> {
    let mut edits = Vec::new();
    for id in targets {
        let known = map.target(*id).map(|target| target.state);
        match (known, state) {
            (None, _) => {
                let failure = Failure::new(NOT_FOUND, format!("the cell has no target {id}"));
                let hint = "`zonal node ls` lists the targets of each node";
                return Err(failure.hint(hint).into());
            }
            (Some(TargetState::Drained), _) => {
                let text = format!("target {id} is drained");
                let hint = format!("`zonal target remove --target {id}` takes it out of the cell");
                return Err(Failure::new(REFUSED, text).hint(hint).into());
            }
            (Some(known), TargetState::Serving) if !known.is_leaving() => {
                let text = format!("target {id} is not draining");
                return Err(Failure::new(REFUSED, text).into());
            }
            (Some(TargetState::Draining), TargetState::Draining) => {}
            _ => edits.push(MapEdit::UseTarget { target: *id, state }),
        }
    }
    Ok(edits)
}

fn line_of(target: TargetId, state: TargetState) -> String {
    match state {
        TargetState::Draining => format!("the objects of target {target} move to other targets"),
        _ => format!("the drain of target {target} ends: objects that have moved stay there"),
    }
}

/// Progress of all targets whose objects move, by the leading manager.
pub fn drains_of(cell: &CellHandle) -> anyhow::Result<Vec<DrainStatus>> {
    match cell.ask_manager(&ManagerRequest::GetDrains)? {
        ManagerReply::Drains { drains } => Ok(drains),
        other => {
            let text = format!("the manager answers {other:?}");
            Err(Failure::new(FAILED, text).into())
        }
    }
}

/// Estimated time until nothing is left, in seconds, by the pace so far.
#[must_use]
pub fn seconds_left(drain: &DrainStatus) -> Option<u64> {
    let done = drain
        .most
        .checked_sub(drain.filling)
        .filter(|done| *done > 0)?;
    Some((drain.ms.saturating_mul(drain.filling) / done).div_ceil(1_000))
}

/// Progress of one target, in words.
#[must_use]
pub fn progress(drain: &DrainStatus) -> String {
    let mut text = match (drain.most, drain.filling) {
        (0, _) => "looking for its objects".to_owned(),
        (_, 0) => "ending".to_owned(),
        (most, left) => format!("{left} of {most} objects to move"),
    };
    if let Some(seconds) = seconds_left(drain).filter(|seconds| *seconds > 0) {
        text.push_str(&format!(", {seconds} s left"));
    }
    let stuck = drain.stuck.saturating_sub(drain.no_room);
    if stuck > 0 {
        text.push_str(&format!(
            ", {stuck} objects have no copy in service, or no target to go to"
        ));
    }
    if drain.no_room > 0 {
        let objects = drain.no_room;
        text.push_str(&format!(", no target has room for {objects} objects"));
    }
    text
}

fn print(map: &ZoneMap, drains: &[DrainStatus], targets: &[TargetId]) {
    for target in targets {
        let state = map
            .target_state(*target)
            .map_or("removed", TargetState::word);
        match drains.iter().find(|drain| drain.target == *target) {
            Some(drain) => {
                console::line(format_args!(
                    "target {target}: {state}, {}",
                    progress(drain)
                ));
            }
            None => console::line(format_args!("target {target}: {state}")),
        }
    }
}

fn to_json(map: &ZoneMap, drains: &[DrainStatus], targets: &[TargetId]) -> Value {
    let of_target = |target: &TargetId| {
        let drain = drains.iter().find(|drain| drain.target == *target);
        let state = map
            .target_state(*target)
            .map_or("removed", TargetState::word);
        json!({
            "target": target.0,
            "state": state,
            "objects_left": drain.map(|drain| drain.filling),
            "objects_stuck": drain.map(|drain| drain.stuck),
            "objects_without_room": drain.map(|drain| drain.no_room),
            "seconds_left": drain.and_then(seconds_left),
        })
    };
    json!({ "targets": targets.iter().map(of_target).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_goes_by_the_pace_so_far() {
        let drain = |most, filling| DrainStatus {
            target: TargetId(1),
            filling,
            most,
            stuck: 0,
            no_room: 0,
            ms: 10_000,
        };
        assert_eq!(seconds_left(&drain(100, 100)), None);
        assert_eq!(seconds_left(&drain(100, 50)), Some(10));
        assert_eq!(seconds_left(&drain(100, 0)), Some(0));
        assert_eq!(
            progress(&drain(100, 20)),
            "20 of 100 objects to move, 3 s left"
        );
    }
}
