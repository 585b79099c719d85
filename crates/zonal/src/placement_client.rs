//! Client of the placement service: the pages below `/v1/` of the manager's node.
//!
//! The address is that of the manager's admin pages: from the cell's folder, or from `--service`.
//! Requests are small and have a deadline. A caller goes on without the service where it is silent
//! ([`ServiceError::is_silent`]).

mod http;
mod job_reporter;

use crate::cell::connection::CellHandle;
use crate::exit::{CONFIG, FAILED, Failure, NOT_FOUND, UNREACHABLE};
use http::percent_encoded;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use zonal_placement::{JobState, JobTraffic};
use zonal_server::admin::Token;
use zonal_server::placement_service::{
    JobAnswer, JobStart, JobsAnswer, PlaceAnswer, PlaceRequest, ReservationAnswer, ZonesAnswer,
};
use zonal_types::{NodeId, ZoneId};

pub use job_reporter::JobReporter;

/// Zones whose bytes one request carries: those with most of them.
const SENT_ZONES_MAX: usize = 256;

/// Arguments that select the placement service.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServiceArgs {
    /// Address of the placement service: that of the admin pages of the manager's node [default:
    /// from the cell's folder]
    #[arg(long, value_name = "IP:PORT")]
    #[arg(env = "ZONAL_SERVICE", hide_env_values = true)]
    service: Option<SocketAddr>,
    /// File with the token of the admin pages [default: from the cell's folder]
    #[arg(long, value_name = "FILE")]
    #[arg(env = "ZONAL_TOKEN_FILE", hide_env_values = true)]
    token_file: Option<PathBuf>,
}

/// Why the service gave no answer.
#[derive(Debug)]
pub enum ServiceError {
    /// It does not answer, or not as the service.
    Silent(String),
    /// It refuses the request.
    Refused {
        /// Status code of HTTP.
        code: u16,
        /// The reason.
        text: String,
    },
}

impl std::fmt::Display for ServiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Silent(text) => write!(f, "the placement service does not answer: {text}"),
            Self::Refused { text, .. } => f.write_str(text),
        }
    }
}

impl std::error::Error for ServiceError {}

impl ServiceError {
    /// Whether a caller may go on without the service: it is away, busy, or wants another token.
    pub fn is_silent(&self) -> bool {
        match self {
            Self::Silent(_) => true,
            Self::Refused { code, .. } => matches!(code, 401 | 403 | 500..),
        }
    }

    /// The error of a command that cannot do without the service.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Silent(_) => Failure::new(UNREACHABLE, self.to_string())
                .hint("name the admin pages of the manager's node with --service"),
            Self::Refused { code: 401, .. } => Failure::new(UNREACHABLE, self.to_string())
                .hint("name the file with the token with --token-file"),
            Self::Refused { code: 404, .. } => Failure::new(NOT_FOUND, self.to_string()),
            Self::Refused { .. } => Failure::new(FAILED, self.to_string()),
        }
    }
}

/// A client of the placement service.
#[derive(Debug, Clone)]
pub struct PlacementClient {
    places: Vec<ServicePlace>,
}

/// The admin pages of a manager's node.
#[derive(Debug, Clone)]
struct ServicePlace {
    address: SocketAddr,
    token: Option<String>,
}

fn read_token(path: &Path) -> anyhow::Result<String> {
    let token = Token::read(path).map_err(|error| {
        let text = format!("token {}: {error}", path.display());
        Failure::new(CONFIG, text)
    })?;
    Ok(token.header())
}

impl ServicePlace {
    fn ask<T: DeserializeOwned>(&self, method: &str, target: &str) -> Result<T, ServiceError> {
        let silent = |text: String| ServiceError::Silent(format!("{}: {text}", self.address));
        let asked = http::ask(self.address, self.token.as_deref(), method, target);
        let (code, body) = asked.map_err(silent)?;
        if code != 200 {
            let value: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let text = match value["error"].as_str() {
                Some(error) => error.to_owned(),
                None => format!("the admin pages at {} answer {code}", self.address),
            };
            return Err(ServiceError::Refused { code, text });
        }
        serde_json::from_slice(&body).map_err(|error| silent(error.to_string()))
    }
}

impl PlacementClient {
    /// The client of a cell's service; `None` where no address is known.
    pub fn of(cell: &CellHandle, args: &ServiceArgs) -> anyhow::Result<Option<Self>> {
        let named = args.token_file.as_deref().map(read_token).transpose()?;
        if let Some(address) = args.service {
            let token = named;
            let places = vec![ServicePlace { address, token }];
            return Ok(Some(Self { places }));
        }
        let Some(folder) = &cell.folder else {
            return Ok(None);
        };
        let nodes = folder.nodes()?.into_iter();
        let managers = nodes.filter(|node| node.manager_role.is_some());
        let mut places = Vec::new();
        for admin in managers.filter_map(|node| node.admin) {
            let token = match (&named, &admin.token_file) {
                (Some(token), _) => Some(token.clone()),
                (None, Some(path)) => Some(read_token(path)?),
                (None, None) => None,
            };
            let address = admin.listen;
            places.push(ServicePlace { address, token });
        }
        Ok((!places.is_empty()).then_some(Self { places }))
    }

    /// Asks at one manager's node after another: the one that leads answers.
    fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        parameters: &[(&str, String)],
    ) -> Result<T, ServiceError> {
        let parts = parameters.iter();
        let parts = parts.map(|(name, value)| format!("{name}={}", percent_encoded(value)));
        let query = parts.collect::<Vec<_>>().join("&");
        let target = match query.is_empty() {
            true => path.to_owned(),
            false => format!("{path}?{query}"),
        };
        let mut failed = ServiceError::Silent("no address of it is known".into());
        for place in &self.places {
            match place.ask(method, &target) {
                Ok(answer) => return Ok(answer),
                Err(
                    error @ (ServiceError::Silent(_) | ServiceError::Refused { code: 503, .. }),
                ) => {
                    failed = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    /// Zones with their nodes for jobs.
    pub fn zones(&self) -> Result<ZonesAnswer, ServiceError> {
        self.ask("GET", "/v1/zones", &[])
    }

    /// Chooses and reserves nodes.
    pub fn place(&self, request: &PlaceRequest) -> Result<PlaceAnswer, ServiceError> {
        let mut parameters = vec![
            ("nodes", request.nodes.to_string()),
            ("policy", request.policy.name().to_owned()),
            ("reserve_ms", request.reserve_ms.to_string()),
        ];
        let bytes = largest(&request.bytes).into_iter();
        parameters.extend(bytes.map(|(zone, held)| ("bytes", format!("{zone}:{held}"))));
        let paths = request.paths.iter();
        parameters.extend(paths.map(|path| ("path", path.clone())));
        self.ask("POST", "/v1/place", &parameters)
    }

    /// Ends a reservation.
    pub fn release(&self, reservation: u64) -> Result<ReservationAnswer, ServiceError> {
        self.ask("DELETE", &format!("/v1/reservations/{reservation}"), &[])
    }

    /// Recorded jobs.
    pub fn jobs(&self) -> Result<JobsAnswer, ServiceError> {
        self.ask("GET", "/v1/jobs", &[])
    }

    /// Reports a job that begins. With a reservation its nodes need not be named.
    pub fn start_job(&self, start: &JobStart) -> Result<JobAnswer, ServiceError> {
        let mut parameters = vec![("name", start.name.clone()), ("user", start.user.clone())];
        if let Some(reservation) = start.reservation {
            parameters.push(("reservation", reservation.to_string()));
        }
        if !start.nodes.is_empty() {
            parameters.push(("zone", start.zone.to_string()));
            parameters.push(("nodes", ranges(&start.nodes)));
        }
        if start.started_ms > 0 {
            parameters.push(("started_ms", start.started_ms.to_string()));
        }
        self.ask("POST", "/v1/jobs", &parameters)
    }

    /// Reports a running job and its traffic so far.
    pub fn report_job(&self, job: u64, traffic: JobTraffic) -> Result<JobAnswer, ServiceError> {
        self.ask("PUT", &format!("/v1/jobs/{job}"), &in_parameters(traffic))
    }

    /// Reports the end of a job, done or failed.
    pub fn end_job(
        &self,
        job: u64,
        state: JobState,
        traffic: JobTraffic,
    ) -> Result<JobAnswer, ServiceError> {
        let mut parameters = in_parameters(traffic);
        parameters.push(("state", state.name().to_owned()));
        self.ask("DELETE", &format!("/v1/jobs/{job}"), &parameters)
    }
}

fn in_parameters(traffic: JobTraffic) -> Vec<(&'static str, String)> {
    vec![
        ("in_zone_bytes", traffic.in_zone.to_string()),
        ("cross_zone_bytes", traffic.cross_zone.to_string()),
    ]
}

/// The zones with most bytes.
fn largest(bytes: &BTreeMap<ZoneId, u64>) -> Vec<(ZoneId, u64)> {
    let mut pairs: Vec<(ZoneId, u64)> = bytes.iter().map(|(zone, held)| (*zone, *held)).collect();
    pairs.sort_by_key(|(_, held)| std::cmp::Reverse(*held));
    pairs.truncate(SENT_ZONES_MAX);
    pairs
}

/// Nodes as the pages read them, such as `3,7-9`.
fn ranges(nodes: &[NodeId]) -> String {
    let mut sorted: Vec<u32> = nodes.iter().map(|node| node.0).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for node in sorted {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(node) => *last = node,
            _ => runs.push((node, node)),
        }
    }
    let runs = runs.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_sent_as_ranges() {
        let nodes = [9, 3, 8, 7, 3, u32::MAX].map(NodeId);
        assert_eq!(ranges(&nodes), "3,7-9,4294967295");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn the_zones_with_most_bytes_are_sent() {
        let bytes = (1..=300_u16).map(|zone| (ZoneId(zone), u64::from(zone)));
        let sent = largest(&bytes.collect());
        assert_eq!(sent.len(), SENT_ZONES_MAX);
        assert_eq!(sent.first(), Some(&(ZoneId(300), 300)));
    }
}
