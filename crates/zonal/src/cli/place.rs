//! `zonal place`: a zone and nodes for a job, near its files.

mod bytes;
mod nodes;

use super::fs::connection::{AccessArgs, CellConnection};
use crate::console;
use crate::exit::{FAILED, Failure, USAGE};
use crate::progress::ProgressMeter;
use serde_json::{Map, Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use zonal_basics::byte_size;
use zonal_placement::{
    JobError, JobFormat, JobPlacement, JobPlacer, JobPolicy, JobRequest, render,
};
use zonal_server::placement_service::job_nodes;
use zonal_zonemap::ZoneMap;

/// Choose a zone and nodes for a job, near its files
///
/// PATH is a path in the cell, starting at its root. Without --recursive a directory counts by its
/// home zone alone. The load of nodes is not known here: nodes count as idle.
#[derive(Debug, clap::Args)]
pub struct PlaceJob {
    #[command(flatten)]
    access: AccessArgs,
    /// Nodes that the job runs on
    #[arg(long, short, default_value = "1", value_name = "COUNT")]
    nodes: usize,
    /// near: the zone with most of the bytes; spread: any zone, the least loaded
    #[arg(long, default_value = "near", value_name = "near|spread", value_parser = ["near", "spread"])]
    policy: String,
    /// Add up the bytes of all files below directories
    #[arg(long, short)]
    recursive: bool,
    /// Form of the answer: hostfile, rankfile (Open MPI), slurm-topology, slurm-hints (Slurm),
    /// k8s-affinity, k8s-labels (Kubernetes), yarn-topology (Hadoop), json
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Files or directories that the job uses
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// The form of the answer.
#[derive(Clone, Copy)]
enum AnswerForm {
    Text,
    Json,
    Rendered(JobFormat),
}

impl PlaceJob {
    pub fn run(self) -> anyhow::Result<()> {
        let form = self.form()?;
        let map = self.access.map()?;
        let cell = self.access.connect("place")?;
        let outcome = self.answer(&cell, &map, form);
        cell.end(outcome)
    }

    fn form(&self) -> anyhow::Result<AnswerForm> {
        match self.format.as_deref() {
            None if self.json => Ok(AnswerForm::Json),
            None => Ok(AnswerForm::Text),
            Some("json") => Ok(AnswerForm::Json),
            Some(name) => JobFormat::named(name)
                .map(AnswerForm::Rendered)
                .ok_or_else(|| {
                    let names = JobFormat::NAMES.map(|(name, _)| name).join(", ");
                    let text = format!("\"{name}\" is no format of `zonal place`");
                    let failure = Failure::new(USAGE, text);
                    failure.hint(format!("formats are {names}, json")).into()
                }),
        }
    }

    fn answer(&self, cell: &CellConnection, map: &ZoneMap, form: AnswerForm) -> anyhow::Result<()> {
        let mut progress = ProgressMeter::new("files", std::io::stderr().is_terminal());
        let bytes = bytes::by_zone(cell, &self.paths, self.recursive, &mut progress)?;
        let request = JobRequest {
            bytes: bytes.demand(),
            nodes: self.nodes,
            policy: match self.policy.as_str() {
                "spread" => JobPolicy::Spread,
                _ => JobPolicy::Near,
            },
            reserve_ms: 0,
        };
        let mut placer = JobPlacer::new(job_nodes(map));
        let placed = placer.place(&request, 0).map_err(|error| refusal(&error))?;
        match form {
            AnswerForm::Text => print(map, &placed),
            AnswerForm::Json => {
                let value = self.to_json(map, &request, &placed);
                console::json(format_args!("{value:#}"));
            }
            AnswerForm::Rendered(format) => {
                let shown = match format.is_of_cell() {
                    true => nodes::named(map, job_nodes(map).into_iter().map(|(_, node)| node)),
                    false => nodes::named(map, placed.nodes.iter().copied()),
                };
                console::lines(render(format, &shown).trim_end());
            }
        }
        Ok(())
    }

    fn to_json(&self, map: &ZoneMap, request: &JobRequest, placed: &JobPlacement) -> Value {
        let paths = self.paths.iter().map(|path| console::json_path(path));
        let bytes = request.bytes.iter();
        let bytes: Map<String, Value> = bytes
            .map(|(zone, bytes)| (zone.to_string(), (*bytes).into()))
            .collect();
        let nodes = placed.nodes.iter().map(|id| {
            let address = map.node(*id).map_or("", |node| node.address.as_str());
            json!({"id": id.0, "address": address})
        });
        let elsewhere = placed.elsewhere.iter();
        let elsewhere = elsewhere.map(|cost| json!({"zone": cost.zone.0, "cost": cost.bytes}));
        json!({
            "paths": paths.collect::<Vec<_>>(),
            "policy": request.policy.name(),
            "zone": placed.zone.0,
            "zone_name": nodes::zone_name(map, placed.zone),
            "nodes": nodes.collect::<Vec<_>>(),
            "bytes": bytes,
            "cost": placed.cost,
            "elsewhere": elsewhere.collect::<Vec<_>>(),
            "explanation": placed.explanation,
            "map_version": map.version.0,
        })
    }
}

fn refusal(error: &JobError) -> Failure {
    let failure = Failure::new(FAILED, error.to_string());
    match error {
        JobError::TooManyNodes { .. } => failure
            .hint("ask for fewer with --nodes; `zonal zone-map show` lists each zone's nodes"),
        JobError::NoNodes => failure.hint("--nodes is at least 1"),
        JobError::NoZones => failure.hint("`zonal zone-map show` lists zones and nodes"),
    }
}

/// `zone 1 (leaf-1): nodes 3 at 10.0.0.3:7420, ...`, the cost, and the reason.
fn print(map: &ZoneMap, placed: &JobPlacement) {
    let name = nodes::zone_name(map, placed.zone);
    let nodes = placed.nodes.iter().map(|id| {
        let address = map.node(*id).map_or("", |node| node.address.as_str());
        format!("{id} at {address}")
    });
    let nodes: Vec<String> = nodes.collect();
    console::line(format_args!(
        "zone {} ({name}): nodes {}",
        placed.zone,
        nodes.join(", ")
    ));
    console::line(format_args!("because {}", placed.explanation));
    let cost = byte_size::rounded(placed.cost);
    let least = placed.elsewhere.iter().min_by_key(|other| other.bytes);
    let elsewhere = least.map_or(String::new(), |other| {
        let cost = byte_size::rounded(other.bytes);
        format!("; the best other zone, {}, costs {cost}", other.zone)
    });
    console::line(format_args!("cost over uplinks {cost}{elsewhere}"));
}
