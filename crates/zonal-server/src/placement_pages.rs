//! Pages of the manager's node for placing jobs, below `/v1/`: the placement service as HTTP and
//! JSON.
//!
//! Parameters are in the query; a body is not read.

mod parameters;

use crate::placement_service::{
    ChangesAnswer, PlacementService, RefusalKind, ServiceRefusal, WATCH_MS_MAX,
};
use parameters::{JobReportQuery, WatchQuery};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// Description of these pages.
const OPENAPI: &str = include_str!("placement_pages/openapi.json");

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum PageOutcome {
    /// Status code and JSON.
    Answer(u16, String),
    /// The caller waits for a change behind a version, at most for a time.
    Wait {
        /// The version.
        since: u64,
        /// Milliseconds.
        wait_ms: u64,
    },
}

/// The pages.
pub struct PlacementPages {
    service: Arc<PlacementService>,
}

impl PlacementPages {
    /// Makes the pages of a service.
    #[must_use]
    pub fn new(service: Arc<PlacementService>) -> Self {
        Self { service }
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &Arc<PlacementService> {
        &self.service
    }

    /// Answers a request.
    #[must_use]
    pub fn answer(&self, method: &str, path: &str, query: &str) -> PageOutcome {
        if let Err(refusal) = self.service.check_leads() {
            let (code, text) = refused(&refusal);
            return PageOutcome::Answer(code, text);
        }
        if path == "/v1/watch" && matches!(method, "GET" | "HEAD") {
            return self.watch(query);
        }
        let (code, text) = self.page(method, path, query);
        PageOutcome::Answer(code, text)
    }

    fn page(&self, method: &str, path: &str, query: &str) -> (u16, String) {
        let service = &self.service;
        match (method, path) {
            ("GET" | "HEAD", "/v1/openapi.json") => (200, OPENAPI.to_owned()),
            ("GET" | "HEAD", "/v1/zones") => shown(Ok(service.zones())),
            ("GET" | "HEAD", "/v1/locate") => {
                let query = parameters::locate(query);
                shown(query.and_then(|query| service.locate(&query)))
            }
            ("GET" | "HEAD", "/v1/jobs") => shown(Ok(service.jobs())),
            ("POST", "/v1/place") => {
                let query = parameters::place(query);
                shown(query.and_then(|query| service.place(&query)))
            }
            ("POST", "/v1/jobs") => {
                let start = parameters::job_start(query);
                shown(start.and_then(|start| service.start_job(start)))
            }
            ("PUT" | "DELETE", path) if path.starts_with("/v1/jobs/") => {
                shown(self.report(method, path, query))
            }
            ("DELETE", path) if path.starts_with("/v1/reservations/") => {
                let id = parameters::last_number(path, "a reservation");
                shown(id.and_then(|id| service.release(id)))
            }
            (_, path) => refused(&misplaced(path)),
        }
    }

    fn report(
        &self,
        method: &str,
        path: &str,
        query: &str,
    ) -> Result<crate::placement_service::JobAnswer, ServiceRefusal> {
        let job = parameters::last_number(path, "a job")?;
        let JobReportQuery {
            traffic,
            has_failed,
        } = parameters::job_report(query)?;
        match method {
            "PUT" => self.service.report_job(job, traffic),
            _ => self.service.end_job(job, has_failed, traffic),
        }
    }

    fn watch(&self, query: &str) -> PageOutcome {
        let WatchQuery { since, wait_ms } = match parameters::watch(query) {
            Ok(query) => query,
            Err(refusal) => {
                let (code, text) = refused(&refusal);
                return PageOutcome::Answer(code, text);
            }
        };
        match (self.service.changes(since), since) {
            (Some(answer), _) => {
                let (code, text) = shown(Ok(answer));
                PageOutcome::Answer(code, text)
            }
            (None, Some(since)) if wait_ms > 0 => PageOutcome::Wait {
                since,
                wait_ms: wait_ms.min(WATCH_MS_MAX),
            },
            (None, since) => {
                let (code, text) = unchanged(since.unwrap_or_default());
                PageOutcome::Answer(code, text)
            }
        }
    }

    /// The answer at the end of a wait.
    #[must_use]
    pub fn after_wait(&self, since: u64) -> (u16, String) {
        if let Err(refusal) = self.service.check_leads() {
            return refused(&refusal);
        }
        match self.service.changes(Some(since)) {
            Some(answer) => shown(Ok(answer)),
            None => unchanged(since),
        }
    }
}

fn unchanged(version: u64) -> (u16, String) {
    shown(Ok(ChangesAnswer {
        version,
        is_complete: true,
        changes: Vec::new(),
    }))
}

fn shown<T: Serialize>(answered: Result<T, ServiceRefusal>) -> (u16, String) {
    match answered.map(|answer| serde_json::to_string_pretty(&answer)) {
        Ok(Ok(text)) => (200, format!("{text}\n")),
        Ok(Err(error)) => {
            let text = format!("the answer cannot be written: {error}");
            refused(&ServiceRefusal::new(RefusalKind::Unavailable, text))
        }
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &ServiceRefusal) -> (u16, String) {
    let code = match refusal.kind {
        RefusalKind::Invalid => 400,
        RefusalKind::Forbidden => 403,
        RefusalKind::Missing => 404,
        RefusalKind::WrongMethod => 405,
        RefusalKind::Conflict => 409,
        RefusalKind::Unavailable => 503,
    };
    (code, format!("{:#}\n", json!({"error": refusal.text})))
}

/// The refusal of a path with a method that it does not have.
fn misplaced(path: &str) -> ServiceRefusal {
    let methods = match path {
        "/v1/openapi.json" | "/v1/zones" | "/v1/locate" | "/v1/watch" => "use GET",
        "/v1/place" => "use POST",
        "/v1/jobs" => "use GET or POST",
        path if path.starts_with("/v1/jobs/") => "PUT reports a job, DELETE ends it",
        path if path.starts_with("/v1/reservations/") => "DELETE ends a reservation",
        _ => {
            let text = "/v1/openapi.json lists the pages";
            return ServiceRefusal::new(RefusalKind::Missing, text);
        }
    };
    ServiceRefusal::new(RefusalKind::WrongMethod, methods)
}

#[cfg(test)]
mod tests;
