//! Parameters of the pages: parts of a query, in percent encoding.

use crate::placement_service::{
    JobStart, LocateRequest, PlaceRequest, RESERVE_MS, RefusalKind, ServiceRefusal, WATCH_MS_MAX,
};
use std::collections::{BTreeMap, BTreeSet};
use zonal_placement::job_table::JOB_NODES_MAX;
use zonal_placement::{JobPolicy, JobTraffic};
use zonal_types::{NodeId, ZoneId};

/// A request of a watcher.
pub(super) struct WatchQuery {
    pub(super) since: Option<u64>,
    pub(super) wait_ms: u64,
}

/// A report of a running or ended job.
#[derive(Default)]
pub(super) struct JobReportQuery {
    pub(super) traffic: JobTraffic,
    pub(super) has_failed: bool,
}

fn wrong(text: String) -> ServiceRefusal {
    ServiceRefusal::new(RefusalKind::Invalid, text)
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, ServiceRefusal> {
    let parsed = text.parse();
    parsed.map_err(|_| wrong(format!("{what}: \"{text}\" is not a number in range")))
}

/// The number at the end of a path.
pub(super) fn last_number(path: &str, what: &str) -> Result<u64, ServiceRefusal> {
    number(path.rsplit('/').next().unwrap_or_default(), what)
}

/// Gives each parameter to `take`, decoded; false from it: there is none of this name. Parameters
/// that are not `repeatable` may come once.
fn each(
    query: &str,
    repeatable: &[&str],
    mut take: impl FnMut(&str, &str) -> Result<bool, ServiceRefusal>,
) -> Result<(), ServiceRefusal> {
    let mut known = BTreeSet::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, encoded) = part.split_once('=').unwrap_or((part, ""));
        if !known.insert(name) && !repeatable.contains(&name) {
            return Err(wrong(format!("{name} comes twice")));
        }
        let value = decoded(encoded);
        let value = value.ok_or_else(|| wrong(format!("{part} is not encoded right")))?;
        if !take(name, &value)? {
            return Err(wrong(format!("{part} is no parameter")));
        }
    }
    Ok(())
}

fn add_bytes(sums: &mut BTreeMap<ZoneId, u64>, pair: &str) -> Result<(), ServiceRefusal> {
    let Some((zone, bytes)) = pair.split_once(':') else {
        return Err(wrong(format!("bytes={pair} is not ZONE:BYTES")));
    };
    let sum = sums.entry(ZoneId(number(zone, "a zone")?)).or_default();
    *sum = sum.saturating_add(number(bytes, "bytes")?);
    Ok(())
}

pub(super) fn place(query: &str) -> Result<PlaceRequest, ServiceRefusal> {
    let mut place = PlaceRequest {
        nodes: 1,
        reserve_ms: RESERVE_MS,
        ..PlaceRequest::default()
    };
    each(query, &["bytes", "path"], |name, value| {
        match (name, value) {
            ("nodes", count) => place.nodes = number(count, "nodes")?,
            ("reserve_ms", time) => place.reserve_ms = number(time, "reserve_ms")?,
            ("policy", "near") => place.policy = JobPolicy::Near,
            ("policy", "spread") => place.policy = JobPolicy::Spread,
            ("policy", other) => {
                return Err(wrong(format!("policy={other} is not near or spread")));
            }
            ("bytes", pair) => add_bytes(&mut place.bytes, pair)?,
            ("path", path) => place.paths.push(path.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(place)
}

pub(super) fn locate(query: &str) -> Result<LocateRequest, ServiceRefusal> {
    let mut locate = LocateRequest::default();
    each(query, &["bytes", "path"], |name, value| {
        match name {
            "bytes" => add_bytes(&mut locate.bytes, value)?,
            "path" => locate.paths.push(value.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(locate)
}

pub(super) fn watch(query: &str) -> Result<WatchQuery, ServiceRefusal> {
    let mut watch = WatchQuery {
        since: None,
        wait_ms: WATCH_MS_MAX,
    };
    each(query, &[], |name, value| {
        match name {
            "since" => watch.since = Some(number(value, "since")?),
            "wait_ms" => watch.wait_ms = number(value, "wait_ms")?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(watch)
}

pub(super) fn job_start(query: &str) -> Result<JobStart, ServiceRefusal> {
    let mut start = JobStart::default();
    each(query, &["nodes"], |name, value| {
        match name {
            "name" => start.name = value.to_owned(),
            "user" => start.user = value.to_owned(),
            "zone" => start.zone = ZoneId(number(value, "zone")?),
            "nodes" => add_nodes(&mut start.nodes, value)?,
            "reservation" => start.reservation = Some(number(value, "reservation")?),
            "started_ms" => start.started_ms = number(value, "started_ms")?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(start)
}

/// Adds nodes such as `3,7-9`.
fn add_nodes(nodes: &mut Vec<NodeId>, list: &str) -> Result<(), ServiceRefusal> {
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (number(first, "nodes")?, number(last, "nodes")?);
        for node in first..=last {
            if nodes.len() >= JOB_NODES_MAX {
                return Err(wrong(format!("nodes: more than {JOB_NODES_MAX}")));
            }
            nodes.push(NodeId(node));
        }
    }
    Ok(())
}

pub(super) fn job_report(query: &str) -> Result<JobReportQuery, ServiceRefusal> {
    let mut report = JobReportQuery::default();
    each(query, &[], |name, value| {
        match (name, value) {
            ("in_zone_bytes", bytes) => report.traffic.in_zone = number(bytes, name)?,
            ("cross_zone_bytes", bytes) => report.traffic.cross_zone = number(bytes, name)?,
            ("state", "done") => report.has_failed = false,
            ("state", "failed") => report.has_failed = true,
            ("state", other) => return Err(wrong(format!("state={other} is not done or failed"))),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(report)
}

/// Decodes `%xx` (RFC 3986).
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = [*rest.next()?, *rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_is_decoded() {
        assert_eq!(decoded("/a%20b").as_deref(), Some("/a b"));
        assert_eq!(decoded("/a%2"), None);
        assert_eq!(decoded("%ff"), None);
        assert_eq!(place("path=/a%26b").unwrap().paths, ["/a&b"]);
    }

    #[test]
    fn a_parameter_with_one_value_comes_once() {
        assert!(place("bytes=1:2&bytes=2:2&path=/a&path=/b&nodes=2").is_ok());
        assert!(place("nodes=2&nodes=3").is_err());
        assert!(watch("since=1&since=1").is_err());
        assert!(job_start("name=a&name=b").is_err());
        assert!(job_report("state=done&state=failed").is_err());
    }

    #[test]
    fn nodes_are_listed_by_number_and_range() {
        let start = job_start("nodes=3,7-9&nodes=1&zone=2").unwrap();
        let nodes: Vec<u32> = start.nodes.iter().map(|node| node.0).collect();
        assert_eq!(nodes, [3, 7, 8, 9, 1]);
        for wrong in ["nodes=", "nodes=1-", "nodes=0-4294967295", "nodes=a"] {
            assert!(job_start(wrong).is_err(), "{wrong}");
        }
        assert!(job_start("nodes=9-3").unwrap().nodes.is_empty());
    }
}
