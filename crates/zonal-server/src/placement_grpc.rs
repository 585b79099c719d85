//! The placement service as calls of gRPC: the same functions and fields as the pages below `/v1/`.

use crate::placement_service::{
    ChangesAnswer, CostEntry, JobAnswer, JobStart, LocateRequest, PlaceRequest, PlacementService,
    RESERVE_MS, RefusalKind, ServiceRefusal,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use zonal_grpc::{PlacementCalls, Status, proto};
use zonal_placement::{JobPolicy, JobTraffic};
use zonal_types::{NodeId, ZoneId};

/// The calls of one service.
pub struct ServiceCalls {
    service: Arc<PlacementService>,
}

impl ServiceCalls {
    /// The calls of a service.
    #[must_use]
    pub fn new(service: Arc<PlacementService>) -> Self {
        Self { service }
    }
}

fn status(refusal: &ServiceRefusal) -> Status {
    let text = refusal.text.clone();
    match refusal.kind {
        RefusalKind::Invalid => Status::invalid_argument(text),
        RefusalKind::Forbidden => Status::permission_denied(text),
        RefusalKind::Missing => Status::not_found(text),
        RefusalKind::WrongMethod => Status::unimplemented(text),
        RefusalKind::Conflict => Status::failed_precondition(text),
        RefusalKind::Unavailable => Status::unavailable(text),
    }
}

fn zone(number: u32) -> Result<ZoneId, Status> {
    let zone = u16::try_from(number).map(ZoneId);
    zone.map_err(|_| Status::invalid_argument(format!("zone {number} is not in range")))
}

fn bytes_by_zone(bytes: HashMap<u32, u64>) -> Result<BTreeMap<ZoneId, u64>, Status> {
    let pairs = bytes.into_iter();
    pairs
        .map(|(number, held)| Ok((zone(number)?, held)))
        .collect()
}

fn costs(entries: Vec<CostEntry>) -> Vec<proto::ZoneCost> {
    let entries = entries.into_iter().map(|entry| proto::ZoneCost {
        zone: entry.zone.into(),
        cost: entry.cost,
    });
    entries.collect()
}

fn job_reply(answer: Result<JobAnswer, ServiceRefusal>) -> Result<proto::JobReply, Status> {
    let answer = answer.map_err(|refusal| status(&refusal))?;
    Ok(proto::JobReply {
        job: answer.job,
        silence_ms: answer.silence_ms,
    })
}

fn watch_reply(answer: ChangesAnswer) -> proto::WatchReply {
    let changes = answer.changes.into_iter().map(|change| proto::Change {
        version: change.version,
        kind: change.kind,
        change: change.change,
        zone: change.zone.into(),
        id: change.id,
    });
    proto::WatchReply {
        version: answer.version,
        is_complete: answer.is_complete,
        changes: changes.collect(),
    }
}

impl PlacementCalls for ServiceCalls {
    fn check(&self) -> Result<(), Status> {
        self.service
            .check_leads()
            .map_err(|refusal| status(&refusal))
    }

    fn list_zones(&self) -> proto::ListZonesReply {
        let told = self.service.zones();
        let zones = told.zones.into_iter().map(|zone| proto::Zone {
            zone: zone.zone.into(),
            name: zone.name,
            nodes: zone.nodes as u64,
            jobs: zone.jobs,
            uplink_weight: zone.uplink_weight,
            cpu_per_mille: zone.cpu_per_mille,
        });
        proto::ListZonesReply {
            map_version: told.map_version,
            version: told.version,
            zones: zones.collect(),
        }
    }

    fn locate(&self, request: proto::LocateRequest) -> Result<proto::LocateReply, Status> {
        let request = LocateRequest {
            paths: request.paths,
            bytes: bytes_by_zone(request.bytes)?,
        };
        let told = self.service.locate(&request);
        let told = told.map_err(|refusal| status(&refusal))?;
        let paths = told.paths.into_iter().map(|path| proto::HomedPath {
            path: path.path,
            home: path.home.into(),
        });
        let matrix = told.matrix.into_iter().map(|row| proto::CostRow {
            zone: row.zone.into(),
            bytes: row.bytes,
            costs: costs(row.costs),
        });
        Ok(proto::LocateReply {
            paths: paths.collect(),
            unit: told.unit,
            matrix: matrix.collect(),
            costs: costs(told.costs),
            map_version: told.map_version,
        })
    }

    fn place(&self, request: proto::PlaceRequest) -> Result<proto::PlaceReply, Status> {
        let policy = match request.policy() {
            proto::Policy::Near => JobPolicy::Near,
            proto::Policy::Spread => JobPolicy::Spread,
        };
        let placed = self.service.place(&PlaceRequest {
            nodes: usize::try_from(request.nodes).unwrap_or(usize::MAX),
            policy,
            bytes: bytes_by_zone(request.bytes)?,
            paths: request.paths,
            reserve_ms: request.reserve_ms.unwrap_or(RESERVE_MS),
        });
        let placed = placed.map_err(|refusal| status(&refusal))?;
        let nodes = placed.nodes.into_iter().map(|node| proto::Node {
            id: node.id,
            address: node.address,
        });
        Ok(proto::PlaceReply {
            zone: placed.zone.into(),
            nodes: nodes.collect(),
            cost: placed.cost,
            elsewhere: costs(placed.elsewhere),
            explanation: placed.explanation,
            reservation: placed.reservation,
            reserved_ms: placed.reserved_ms,
            map_version: placed.map_version,
        })
    }

    fn release(&self, request: &proto::ReleaseRequest) -> Result<proto::ReleaseReply, Status> {
        let ended = self.service.release(request.reservation);
        let ended = ended.map_err(|refusal| status(&refusal))?;
        Ok(proto::ReleaseReply {
            released: ended.released,
        })
    }

    fn changes(&self, since: Option<u64>) -> Option<proto::WatchReply> {
        self.service.changes(since).map(watch_reply)
    }

    fn start_job(&self, request: proto::StartJobRequest) -> Result<proto::JobReply, Status> {
        job_reply(self.service.start_job(JobStart {
            name: request.name,
            user: request.user,
            zone: zone(request.zone)?,
            nodes: request.nodes.into_iter().map(NodeId).collect(),
            reservation: request.reservation,
            started_ms: request.started_ms,
        }))
    }

    fn report_job(&self, request: &proto::ReportJobRequest) -> Result<proto::JobReply, Status> {
        let traffic = JobTraffic {
            in_zone: request.in_zone_bytes,
            cross_zone: request.cross_zone_bytes,
        };
        job_reply(self.service.report_job(request.job, traffic))
    }

    fn end_job(&self, request: &proto::EndJobRequest) -> Result<proto::JobReply, Status> {
        let traffic = JobTraffic {
            in_zone: request.in_zone_bytes,
            cross_zone: request.cross_zone_bytes,
        };
        let ended = self
            .service
            .end_job(request.job, request.has_failed, traffic);
        job_reply(ended)
    }

    fn list_jobs(&self) -> proto::ListJobsReply {
        let told = self.service.jobs();
        let jobs = told.jobs.into_iter().map(|job| proto::Job {
            job: job.job,
            name: job.name,
            user: job.user,
            zone: job.zone.into(),
            nodes: job.nodes as u64,
            state: job.state,
            started_ms: job.started_ms,
            ended_ms: job.ended_ms,
            in_zone_bytes: job.in_zone_bytes,
            cross_zone_bytes: job.cross_zone_bytes,
            in_zone_per_mille: job
                .in_zone_per_mille
                .and_then(|part| u32::try_from(part).ok()),
        });
        proto::ListJobsReply {
            running: told.running as u64,
            jobs: jobs.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
