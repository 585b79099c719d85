//! `zonal scrub`: the verification of everything stored, in the background.

use crate::cell::connect::{Cell, CellArgs};
use crate::exit::{FAILED, Failure, NOT_FOUND};
use crate::out;
use anyhow::Context;
use serde_json::{Value, json};
use zonal_server::units::Size;
use zonal_types::{TargetId, Timestamp};
use zonal_wire::{AdminReply, AdminRequest, ScrubReport, ScrubState};

/// Compare everything stored with its checksums, in the background
///
/// Each target reads its own bytes from the medium, at a bounded rate, keeps its place over a restart, and begins by itself
/// as its config says (`scrub_period`, a week by default). What is damaged is in the log, in metrics, and in `status`.
#[derive(Debug, clap::Subcommand)]
pub enum Scrub {
    /// Begin, or go on where it was stopped
    Start {
        #[command(flatten)]
        which: Which,
        /// Bytes a second [default: `scrub_rate` of the target's config, 64 MiB]
        #[arg(long, value_name = "SIZE")]
        rate: Option<Size>,
        /// From the start, also where one was stopped or is under way
        #[arg(long)]
        anew: bool,
    },
    /// Stop; the place is kept
    Stop {
        #[command(flatten)]
        which: Which,
    },
    /// Show how far it is and what was found; exits with 1 where something is damaged
    Status {
        #[command(flatten)]
        which: Which,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Targets of a cell.
#[derive(Debug, clap::Args)]
pub struct Which {
    #[command(flatten)]
    cell: CellArgs,
    /// Only this target
    #[arg(long, value_name = "N")]
    target: Option<u32>,
}

impl Which {
    fn targets(&self) -> anyhow::Result<(Cell, Vec<TargetId>)> {
        let cell = self.cell.open()?;
        let map = cell.map()?;
        let mut targets: Vec<TargetId> = map.targets.iter().map(|target| target.id).collect();
        if let Some(wanted) = self.target {
            targets.retain(|target| target.0 == wanted);
            if targets.is_empty() {
                let text = format!("the cell has no target {wanted}");
                return Err(Failure::new(NOT_FOUND, text)
                    .hint("`zonal zone-map show` lists the targets")
                    .into());
            }
        }
        Ok((cell, targets))
    }

    /// Asks every target, also where one does not answer; its error comes at the end.
    fn each(
        &self,
        request: impl Fn(TargetId) -> AdminRequest,
        mut took: impl FnMut(TargetId, AdminReply),
    ) -> anyhow::Result<()> {
        let (cell, targets) = self.targets()?;
        let map = cell.map()?;
        let mut failed = None;
        for target in targets {
            match cell.ask_target(&map, target, &request(target)) {
                Ok(reply) => took(target, reply),
                Err(error) => {
                    let error = error.context(format!("target {target}"));
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Scrub {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Start { which, rate, anew } => {
                let rate = rate.map_or(0, |rate| rate.0);
                let request = |target| AdminRequest::ScrubStart { target, rate, anew };
                which.each(request, |target, _done| {
                    out::line(format_args!("target {target}: scrubbing"));
                })
            }
            Self::Stop { which } => {
                let request = |target| AdminRequest::ScrubStop { target };
                which.each(request, |target, _done| {
                    out::line(format_args!("target {target}: stopped"));
                })
            }
            Self::Status { which, json } => show(&which, json),
        }
    }
}

fn show(which: &Which, as_json: bool) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    let asked = which.each(
        |target| AdminRequest::ScrubStatus { target },
        |target, reply| {
            if let AdminReply::Scrub { report } = reply {
                reports.push((target, report));
            }
        },
    );
    if as_json {
        let list: Vec<Value> = reports.iter().map(to_json).collect();
        out::line(format_args!("{:#}", json!({ "targets": list })));
    } else {
        print(&reports);
    }
    asked.context("not every target answers")?;
    let damaged: u64 = reports
        .iter()
        .map(|(_, report)| report.damaged_blocks)
        .sum();
    let failed = reports
        .iter()
        .filter(|(_, report)| report.state == ScrubState::Failed);
    let failed = failed.count();
    if damaged > 0 || failed > 0 {
        let text = format!("{damaged} blocks are damaged, {failed} indexes cannot be read whole");
        return Err(Failure::new(FAILED, text)
            .hint("`zonal fsck` names the files; the rest of each of them stays readable")
            .into());
    }
    Ok(())
}

fn state(report: &ScrubReport) -> &'static str {
    match report.state {
        ScrubState::Idle if report.started == Timestamp::default() => "never",
        ScrubState::Idle => "done",
        ScrubState::Running => "running",
        ScrubState::Stopped => "stopped",
        ScrubState::Failed => "failed",
    }
}

fn print(reports: &[(TargetId, ScrubReport)]) {
    let header = [
        "TARGET", "SCRUB", "OBJECTS", "READ", "RATE", "DAMAGED", "ENDED",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (target, report) in reports {
        rows.push(vec![
            target.to_string(),
            state(report).to_owned(),
            format!("{} of {}", report.objects, report.objects_now),
            format!(
                "{} of {}",
                out::bytes(report.bytes),
                out::bytes(report.bytes_now)
            ),
            format!("{}/s", out::bytes(report.rate)),
            report.damaged_blocks.to_string(),
            match report.ended.seconds {
                0 => "-".to_owned(),
                seconds => out::ago(seconds),
            },
        ]);
    }
    out::table(&rows);
    for (target, report) in reports {
        for found in &report.damaged {
            out::line(format_args!(
                "target {target}, object {}.{}, byte {}: {}",
                found.data_id, found.column, found.offset, found.detail
            ));
        }
    }
}

fn to_json((target, report): &(TargetId, ScrubReport)) -> Value {
    let damaged = report.damaged.iter().map(|found| {
        json!({
            "data_id": found.data_id.0,
            "column": found.column.0,
            "offset": found.offset,
            "detail": found.detail,
        })
    });
    json!({
        "target": target.0,
        "state": state(report),
        "rate_bytes": report.rate,
        "started": report.started.seconds,
        "ended": report.ended.seconds,
        "objects": report.objects,
        "bytes": report.bytes,
        "objects_now": report.objects_now,
        "bytes_now": report.bytes_now,
        "damaged_blocks": report.damaged_blocks,
        "damaged": damaged.collect::<Vec<_>>(),
    })
}
