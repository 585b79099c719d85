//! `zonal jobs`: the jobs that the placement service has recorded.

use super::fs::cat_stat::date;
use crate::cell::connection::CellArgs;
use crate::console;
use crate::exit::{Failure, USAGE};
use crate::placement_client::{PlacementClient, ServiceArgs};
use zonal_basics::byte_size;
use zonal_server::placement_service::JobEntry;

/// List running jobs and those that ended last, with the part of their traffic in their zone
///
/// Jobs are recorded where their starter reports them, as `zonal run` does. A low part of a job's
/// traffic in its zone shows that it was started away from its bytes.
#[derive(Debug, clap::Args)]
pub struct Jobs {
    #[command(flatten)]
    cell: CellArgs,
    #[command(flatten)]
    service: ServiceArgs,
    /// Running jobs only
    #[arg(long)]
    running: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Jobs {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        let Some(service) = PlacementClient::of(&cell, &self.service)? else {
            let text = "no address of the placement service is known";
            let hint = "name the admin pages of the manager's node with --service";
            return Err(Failure::new(USAGE, text).hint(hint).into());
        };
        let mut told = service.jobs().map_err(|error| error.failure())?;
        if self.running {
            told.jobs.retain(|job| job.state == "running");
        }
        if self.json {
            let value = serde_json::to_value(&told)?;
            console::json(format_args!("{value:#}"));
            return Ok(());
        }
        let header = [
            "JOB", "STATE", "ZONE", "NODES", "STARTED", "TIME", "BYTES", "IN ZONE", "USER", "NAME",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(told.jobs.iter().map(row));
        console::table(&rows);
        Ok(())
    }
}

fn row(job: &JobEntry) -> Vec<String> {
    let bytes = job.in_zone_bytes.saturating_add(job.cross_zone_bytes);
    let seconds = i64::try_from(job.started_ms / 1_000).unwrap_or(i64::MAX);
    vec![
        job.job.to_string(),
        job.state.clone(),
        job.zone.to_string(),
        job.nodes.to_string(),
        date(seconds),
        match job.ended_ms {
            0 => "-".to_owned(),
            ended => format!("{} s", ended.saturating_sub(job.started_ms) / 1_000),
        },
        byte_size::rounded(bytes),
        job.in_zone_per_mille.map_or("-".to_owned(), |part| {
            format!("{}.{} %", part / 10, part % 10)
        }),
        job.user.clone(),
        job.name.clone(),
    ]
}
