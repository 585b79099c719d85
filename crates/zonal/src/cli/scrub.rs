//! `zonal scrub`: verifies all stored data in the background.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND};
use anyhow::Context;
use serde_json::{Value, json};
use zonal_basics::byte_size;
use zonal_server::units::ByteSize;
use zonal_types::{NodeId, Timestamp};
use zonal_wire::{AdminReply, AdminRequest, ScrubOf, ScrubReport, ScrubState};
use zonal_zonemap::ZoneMap;

/// Compare all stored data with its checksums, in the background
///
/// Each target reads its own bytes from the medium, each shard all entries of its store, at a
/// bounded rate. A scrub keeps its position over a restart, and starts by itself a week after the
/// last one (targets: after `scrub_period`). Damage is reported in the log, in metrics, and by
/// `status`.
#[derive(Debug, clap::Subcommand)]
pub enum ScrubCommand {
    /// Start, or resume where it was stopped
    Start {
        #[command(flatten)]
        which: StoreSelection,
        /// Bytes a second of each target or shard [default: `scrub_rate` of the target's config, 64
        /// MiB]
        #[arg(long, value_name = "SIZE")]
        rate: Option<ByteSize>,
        /// Start over, even if a scrub was stopped or is running
        #[arg(long)]
        anew: bool,
    },
    /// Stop; keep the position
    Stop {
        #[command(flatten)]
        which: StoreSelection,
    },
    /// Show progress and findings; exits with 1 if anything is damaged
    Status {
        #[command(flatten)]
        which: StoreSelection,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Arguments that select stores: all targets and shards, or one of them.
#[derive(Debug, clap::Args)]
pub struct StoreSelection {
    #[command(flatten)]
    cell: CellArgs,
    /// Only this target
    #[arg(long, value_name = "N", conflicts_with = "shard")]
    target: Option<u32>,
    /// Only this shard (0: the root's)
    #[arg(long, value_name = "N")]
    shard: Option<u32>,
}

fn name(of: ScrubOf) -> String {
    match of {
        ScrubOf::Target { target } => format!("target {target}"),
        ScrubOf::Shard { shard } => format!("shard {shard}"),
    }
}

impl StoreSelection {
    /// The selected stores, each with its node.
    fn stores(&self, map: &ZoneMap) -> anyhow::Result<Vec<(ScrubOf, NodeId)>> {
        let targets = map
            .targets
            .iter()
            .filter(|target| self.target.is_none_or(|wanted| target.id.0 == wanted))
            .map(|target| (ScrubOf::Target { target: target.id }, target.node));
        let shards = map
            .shards
            .iter()
            .filter(|shard| self.shard.is_none_or(|wanted| shard.id.0 == wanted))
            .map(|shard| (ScrubOf::Shard { shard: shard.id }, shard.node));
        let found: Vec<_> = match (self.target, self.shard) {
            (Some(_), _) => targets.collect(),
            (None, Some(_)) => shards.collect(),
            (None, None) => targets.chain(shards).collect(),
        };
        if found.is_empty() {
            let text = "the cell has no such target or shard";
            return Err(Failure::new(NOT_FOUND, text)
                .hint("`zonal zone-map show` lists them")
                .into());
        }
        Ok(found)
    }

    /// Sends a request about every store, even if one does not answer; that error is returned at
    /// the end.
    fn each(
        &self,
        request: impl Fn(ScrubOf) -> AdminRequest,
        mut took: impl FnMut(ScrubOf, AdminReply),
    ) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        let map = cell.map()?;
        let mut failed = None;
        for (of, node) in self.stores(&map)? {
            let asked = CellHandle::address(&map, node).and_then(|to| cell.admin(to, &request(of)));
            match asked {
                Ok(reply) => took(of, reply),
                Err(error) => {
                    let error = error.context(name(of));
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl ScrubCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Start { which, rate, anew } => {
                let rate = rate.map_or(0, |rate| rate.0);
                let request = |of| AdminRequest::ScrubStart { of, rate, anew };
                which.each(request, |of, _done| {
                    console::line(format_args!("{}: scrubbing", name(of)));
                })
            }
            Self::Stop { which } => {
                let request = |of| AdminRequest::ScrubStop { of };
                which.each(request, |of, _done| {
                    console::line(format_args!("{}: stopped", name(of)));
                })
            }
            Self::Status { which, json } => show(&which, json),
        }
    }
}

fn show(which: &StoreSelection, as_json: bool) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    let asked = which.each(
        |of| AdminRequest::ScrubStatus { of },
        |of, reply| {
            if let AdminReply::Scrub { report } = reply {
                reports.push((of, report));
            }
        },
    );
    if as_json {
        let list: Vec<Value> = reports.iter().map(to_json).collect();
        console::json(format_args!("{:#}", json!({ "stores": list })));
    } else {
        print(&reports);
    }
    asked.context("not every server answers")?;
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

fn print(reports: &[(ScrubOf, ScrubReport)]) {
    let header = [
        "STORE", "SCRUB", "OBJECTS", "READ", "RATE", "DAMAGED", "ENDED",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (of, report) in reports {
        let (objects, bytes) = (report.objects, byte_size::rounded(report.bytes));
        let measured = match of {
            ScrubOf::Target { .. } => [
                format!("{objects} of {}", report.objects_now),
                format!("{bytes} of {}", byte_size::rounded(report.bytes_now)),
            ],
            ScrubOf::Shard { .. } => [format!("{objects} entries"), bytes],
        };
        let [objects, bytes] = measured;
        rows.push(vec![
            name(*of),
            state(report).to_owned(),
            objects,
            bytes,
            format!("{}/s", byte_size::rounded(report.rate)),
            report.damaged_blocks.to_string(),
            match report.ended.seconds {
                0 => "-".to_owned(),
                seconds => console::ago(seconds),
            },
        ]);
    }
    console::table(&rows);
    for (of, report) in reports {
        for found in &report.damaged {
            console::line(format_args!(
                "{}, object {}.{}, byte {}: {}",
                name(*of),
                found.data_id,
                found.column,
                found.offset,
                found.detail
            ));
        }
    }
}

fn to_json((of, report): &(ScrubOf, ScrubReport)) -> Value {
    let damaged = report.damaged.iter().map(|found| {
        json!({
            "data_id": found.data_id.0,
            "column": found.column.0,
            "offset": found.offset,
            "detail": found.detail,
        })
    });
    json!({
        "store": name(*of),
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
