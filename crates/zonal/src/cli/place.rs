//! `zonal place`: a zone and nodes for a job, near its files.

pub(super) mod bytes;
mod nodes;
mod patterns;

use super::fs::connection::{AccessArgs, CellConnection};
use crate::console;
use crate::exit::{FAILED, Failure, USAGE};
use crate::placement_client::{PlacementClient, ServiceArgs, ServiceError};
use crate::progress::ProgressMeter;
use serde_json::{Map, Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use zonal_basics::byte_size;
use zonal_placement::{
    JobError, JobFormat, JobPlacer, JobPolicy, JobRequest, RESERVATION_MS_MAX, render,
};
use zonal_server::placement_service::{PlaceAnswer, PlaceRequest, job_nodes};
use zonal_server::units::Millis;
use zonal_types::{NodeId, ZoneId};
use zonal_zonemap::ZoneMap;

/// Choose a zone and nodes for a job, near its files, and reserve them
///
/// PATH is a path in the cell, starting at its root; its names may be patterns (*, ?, [a-z]).
/// Without --recursive a directory counts by its home zone alone. The placement service of the
/// manager's node chooses, so that bursts of jobs spread. Where it does not answer, this command
/// chooses itself: nodes then count as idle, and nothing is reserved.
#[derive(Debug, clap::Args)]
pub struct PlaceJob {
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    service: ServiceArgs,
    /// Nodes that the job runs on
    #[arg(long, short, default_value = "1", value_name = "COUNT")]
    nodes: usize,
    /// near: the zone with most of the bytes; spread: any zone, the least loaded
    #[arg(long, default_value = "near", value_name = "near|spread", value_parser = ["near", "spread"])]
    policy: String,
    /// Add up the bytes of all files below directories
    #[arg(long, short)]
    recursive: bool,
    /// Time of the reservation, such as "2 min" (at most 10 min); the nodes then count as free
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30 s",
        conflicts_with = "no_reserve"
    )]
    hold: Millis,
    /// Do not reserve the nodes
    #[arg(long)]
    no_reserve: bool,
    /// End a reservation early, as its job was given up
    #[arg(long, value_name = "ID", conflicts_with_all = ["paths", "format", "no_reserve"])]
    release: Option<u64>,
    /// Form of the answer: hostfile, rankfile (Open MPI), slurm-topology, slurm-hints (Slurm),
    /// k8s-affinity, k8s-labels (Kubernetes), yarn-topology (Hadoop), json
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Files or directories that the job uses
    #[arg(required_unless_present = "release", value_name = "PATH")]
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
        if self.hold.0 > RESERVATION_MS_MAX {
            let text = format!("--hold {} is longer than 10 min", self.hold);
            return Err(Failure::new(USAGE, text).into());
        }
        let service = self.access.placement(&self.service)?;
        if let Some(reservation) = self.release {
            return self.end_reservation(service.as_ref(), reservation);
        }
        let map = self.access.map()?;
        let cell = self.access.connect("place")?;
        let outcome = self.answer(&cell, &map, form, service.as_ref());
        cell.end(outcome)
    }

    fn end_reservation(
        &self,
        service: Option<&PlacementClient>,
        reservation: u64,
    ) -> anyhow::Result<()> {
        let Some(service) = service else {
            let text = "no address of the placement service is known";
            let hint = "name the admin pages of the manager's node with --service";
            return Err(Failure::new(USAGE, text).hint(hint).into());
        };
        let ended = service.release(reservation);
        let ended = ended.map_err(|error| error.failure())?;
        match self.json {
            true => console::json(format_args!("{:#}", json!({"released": ended.released}))),
            false => console::line(format_args!("reservation {reservation} is ended")),
        }
        Ok(())
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

    fn answer(
        &self,
        cell: &CellConnection,
        map: &ZoneMap,
        form: AnswerForm,
        service: Option<&PlacementClient>,
    ) -> anyhow::Result<()> {
        let mut progress = ProgressMeter::new("files", std::io::stderr().is_terminal());
        let paths = patterns::expanded(cell, &self.paths)?;
        let bytes = bytes::by_zone(cell, &paths, self.recursive, &mut progress)?;
        let request = PlaceRequest {
            bytes: bytes.demand(),
            nodes: self.nodes,
            policy: match self.policy.as_str() {
                "spread" => JobPolicy::Spread,
                _ => JobPolicy::Near,
            },
            paths: Vec::new(),
            reserve_ms: match self.no_reserve {
                true => 0,
                false => self.hold.0,
            },
        };
        let placed = match ask(service, &request)? {
            Some(placed) => placed,
            None => computed(map, &request)?,
        };
        match form {
            AnswerForm::Text => print(map, &placed),
            AnswerForm::Json => {
                let value = to_json(map, &paths, &request, &placed);
                console::json(format_args!("{value:#}"));
            }
            AnswerForm::Rendered(format) => {
                let shown = match format.is_of_cell() {
                    true => nodes::named(map, job_nodes(map).into_iter().map(|(_, node)| node)),
                    false => nodes::named(map, placed.nodes.iter().map(|node| NodeId(node.id))),
                };
                console::lines(render(format, &shown).trim_end());
                if let Some(text) = reservation(&placed) {
                    console::note(text);
                }
            }
        }
        Ok(())
    }
}

/// Asks the service. `None`, with a note, where this command has to choose itself.
fn ask(
    service: Option<&PlacementClient>,
    request: &PlaceRequest,
) -> anyhow::Result<Option<PlaceAnswer>> {
    let why = match service.map(|service| service.place(request)) {
        Some(Ok(placed)) => return Ok(Some(placed)),
        Some(Err(error)) if error.is_silent() => error.to_string(),
        Some(Err(error)) => {
            let failure = error.failure();
            return Err(match error {
                ServiceError::Refused { code: 409, .. } => failure.hint(TOO_MANY_HINT),
                _ => failure,
            }
            .into());
        }
        None => "no address of the placement service is known (--service)".to_owned(),
    };
    console::note(format_args!(
        "zonal: {why}; nodes count as idle, and none is reserved"
    ));
    Ok(None)
}

/// The choice of this command itself.
fn computed(map: &ZoneMap, request: &PlaceRequest) -> anyhow::Result<PlaceAnswer> {
    let request = JobRequest {
        bytes: request.bytes.clone(),
        nodes: request.nodes,
        policy: request.policy,
        reserve_ms: 0,
    };
    let mut placer = JobPlacer::new(job_nodes(map));
    let placed = placer.place(&request, 0).map_err(|error| refusal(&error))?;
    Ok(PlaceAnswer::of(map, placed, 0))
}

fn to_json(
    map: &ZoneMap,
    paths: &[PathBuf],
    request: &PlaceRequest,
    placed: &PlaceAnswer,
) -> Value {
    let paths = paths.iter().map(|path| console::json_path(path));
    let bytes = request.bytes.iter();
    let bytes: Map<String, Value> = bytes
        .map(|(zone, bytes)| (zone.to_string(), (*bytes).into()))
        .collect();
    let mut value = json!({
        "paths": paths.collect::<Vec<_>>(),
        "policy": request.policy.name(),
        "zone": placed.zone,
        "zone_name": nodes::zone_name(map, ZoneId(placed.zone)),
        "nodes": placed.nodes,
        "bytes": bytes,
        "cost": placed.cost,
        "elsewhere": placed.elsewhere,
        "explanation": placed.explanation,
        "map_version": placed.map_version,
    });
    if let (Some(reservation), Value::Object(fields)) = (placed.reservation, &mut value) {
        fields.insert("reservation".to_owned(), reservation.into());
        fields.insert("reserved_ms".to_owned(), placed.reserved_ms.into());
    }
    value
}

const TOO_MANY_HINT: &str =
    "ask for fewer with --nodes; `zonal zone-map show` lists each zone's nodes";

fn refusal(error: &JobError) -> Failure {
    let failure = Failure::new(FAILED, error.to_string());
    match error {
        JobError::TooManyNodes { .. } => failure.hint(TOO_MANY_HINT),
        JobError::NoNodes => failure.hint("--nodes is at least 1"),
        JobError::NoZones => failure.hint("`zonal zone-map show` lists zones and nodes"),
    }
}

/// `zone 1 (leaf-1): nodes 3 at 10.0.0.3:7420, ...`, the cost, the reason and the reservation.
fn print(map: &ZoneMap, placed: &PlaceAnswer) {
    let name = nodes::zone_name(map, ZoneId(placed.zone));
    let nodes = placed.nodes.iter();
    let nodes: Vec<String> = nodes
        .map(|node| format!("{} at {}", node.id, node.address))
        .collect();
    console::line(format_args!(
        "zone {} ({name}): nodes {}",
        placed.zone,
        nodes.join(", ")
    ));
    console::line(format_args!("because {}", placed.explanation));
    let cost = byte_size::rounded(placed.cost);
    let least = placed.elsewhere.iter().min_by_key(|other| other.cost);
    let elsewhere = least.map_or(String::new(), |other| {
        let cost = byte_size::rounded(other.cost);
        format!("; the best other zone, {}, costs {cost}", other.zone)
    });
    console::line(format_args!("cost over uplinks {cost}{elsewhere}"));
    if let Some(text) = reservation(placed) {
        console::line(text);
    }
}

fn reservation(placed: &PlaceAnswer) -> Option<String> {
    let reservation = placed.reservation?;
    let time = Millis(placed.reserved_ms);
    Some(format!(
        "reserved for {time}; `zonal place --release {reservation}` ends it early"
    ))
}
