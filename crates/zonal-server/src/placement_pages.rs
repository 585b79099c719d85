//! Pages of the manager's node for placing jobs, below `/v1/`. The computation is in
//! zonal-placement; these pages are beside the path of data, never in it.
//!
//! Parameters are in the query; a body is not read. The load of nodes is that of reservations
//! alone, as nothing reports running jobs.

use crate::clock;
use crate::manager_role::ManagerRole;
use crate::map_cache::MapCache;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use zonal_placement::{JobPlacer, JobPolicy, JobRequest};
use zonal_types::{MapVersion, NodeId, ZoneId};
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::{NodeState, TargetState, ZoneMap};

/// Time of a reservation where the request names none.
const RESERVE_MS: u64 = 30_000;

/// Description of these pages.
const OPENAPI: &str = include_str!("placement_pages/openapi.json");

/// A refusal: the status code of HTTP, and the reason.
type PageRefusal = (u16, String);

/// State of the pages.
pub struct PlacementPages {
    map: Arc<MapCache>,
    manager: Arc<ManagerRole>,
    placer: Mutex<(MapVersion, JobPlacer)>,
    /// Every caller has sent the token.
    has_token: bool,
}

impl PlacementPages {
    /// Makes the pages of a manager. Without a token they tell nothing of paths.
    #[must_use]
    pub fn new(map: Arc<MapCache>, manager: Arc<ManagerRole>, has_token: bool) -> Self {
        let placer = Mutex::new((MapVersion(0), JobPlacer::default()));
        Self {
            map,
            manager,
            placer,
            has_token,
        }
    }

    /// Answers a request: the status code and JSON.
    #[must_use]
    pub fn answer(&self, method: &str, path: &str, query: &str) -> (u16, String) {
        let answered = match (method, path) {
            ("GET" | "HEAD", "/v1/openapi.json") => return (200, OPENAPI.to_owned()),
            ("GET" | "HEAD", "/v1/zones") => Ok(self.zones()),
            ("POST", "/v1/place") => self.place(query),
            ("DELETE", path) => match path.strip_prefix("/v1/reservations/") {
                Some(id) => self.release(id),
                None => Err((405, "DELETE ends /v1/reservations/ID".to_owned())),
            },
            (_, "/v1/openapi.json" | "/v1/zones") => Err((405, "use GET".to_owned())),
            (_, "/v1/place") => Err((405, "use POST".to_owned())),
            _ => Err((404, "/v1/openapi.json lists the pages".to_owned())),
        };
        match answered {
            Ok(value) => (200, format!("{value:#}\n")),
            Err((code, error)) => (code, format!("{:#}\n", json!({"error": error}))),
        }
    }

    fn with_placer<T>(&self, act: impl FnOnce(&ZoneMap, &mut JobPlacer) -> T) -> T {
        let map = self.map.current();
        let mut held = self.placer.lock().unwrap_or_else(PoisonError::into_inner);
        let (version, placer) = &mut *held;
        if *version != map.version {
            placer.set_nodes(job_nodes(&map));
            *version = map.version;
        }
        act(&map, placer)
    }

    fn zones(&self) -> Value {
        self.with_placer(|map, placer| {
            placer.release_ended(now_ms());
            let zones = placer.zones().map(|(id, nodes, jobs)| {
                let zone = map.zones.iter().find(|zone| zone.id == id);
                let name = zone.map_or("", |zone| zone.name.as_str());
                json!({"zone": id.0, "name": name, "nodes": nodes, "jobs": jobs})
            });
            json!({"map_version": map.version.0, "zones": zones.collect::<Vec<_>>()})
        })
    }

    fn release(&self, id: &str) -> Result<Value, PageRefusal> {
        let id: u64 = number(id, "a reservation")?;
        match self.with_placer(|_, placer| placer.release(id)) {
            true => Ok(json!({"released": id})),
            false => Err((404, format!("there is no reservation {id}: it has ended"))),
        }
    }

    fn place(&self, query: &str) -> Result<Value, PageRefusal> {
        let request = self.request(query)?;
        let now = now_ms();
        self.with_placer(|map, placer| {
            let placed = placer.place(&request, now);
            let placed = placed.map_err(|error| (409, error.to_string()))?;
            let nodes = placed.nodes.iter().map(|id| {
                let address = map.node(*id).map_or("", |node| node.address.as_str());
                json!({"id": id.0, "address": address})
            });
            let elsewhere = placed.elsewhere.iter();
            let elsewhere = elsewhere.map(|cost| json!({"zone": cost.zone.0, "cost": cost.bytes}));
            Ok(json!({
                "zone": placed.zone.0,
                "nodes": nodes.collect::<Vec<_>>(),
                "cost": placed.cost,
                "elsewhere": elsewhere.collect::<Vec<_>>(),
                "explanation": placed.explanation,
                "reservation": placed.reservation,
                "reserved_ms": placed.end_ms.saturating_sub(now),
                "map_version": map.version.0,
            }))
        })
    }

    fn request(&self, query: &str) -> Result<JobRequest, PageRefusal> {
        let mut request = JobRequest {
            nodes: 1,
            reserve_ms: RESERVE_MS,
            ..JobRequest::default()
        };
        let mut homes = BTreeMap::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match (name, value) {
                ("nodes", count) => request.nodes = number(count, "nodes")?,
                ("reserve_ms", time) => request.reserve_ms = number(time, "reserve_ms")?,
                ("policy", "near") => request.policy = JobPolicy::Near,
                ("policy", "spread") => request.policy = JobPolicy::Spread,
                ("policy", other) => {
                    return Err((400, format!("policy={other} is not near or spread")));
                }
                ("bytes", pair) => {
                    let Some((zone, bytes)) = pair.split_once(':') else {
                        return Err((400, format!("bytes={pair} is not ZONE:BYTES")));
                    };
                    let zone = ZoneId(number(zone, "a zone")?);
                    let sum: &mut u64 = request.bytes.entry(zone).or_default();
                    *sum = sum.saturating_add(number(bytes, "bytes")?);
                }
                ("path", path) => *homes.entry(self.home(path)?).or_default() += 1,
                _ => return Err((400, format!("{part} is no parameter"))),
            }
        }
        if request.bytes.values().all(|bytes| *bytes == 0) {
            request.bytes = homes;
        }
        Ok(request)
    }

    /// The home of the first-level directory of a path in percent encoding.
    fn home(&self, encoded: &str) -> Result<ZoneId, PageRefusal> {
        if !self.has_token {
            let text = "names are for callers with the token: set admin.token_file, or give bytes";
            return Err((403, text.to_owned()));
        }
        let path = decoded(encoded).ok_or((400, format!("path={encoded} is not encoded right")))?;
        let first = path.split('/').find(|name| !name.is_empty());
        let first = format!("/{}", first.unwrap_or_default());
        let at = ManagerRequest::JunctionsAt {
            path: first.clone(),
        };
        match self.manager.handle(at) {
            ManagerReply::Junctions { junctions, .. } => {
                let found = junctions.first().map(|junction| junction.zone);
                found.ok_or((404, format!("there is no first-level directory {first}")))
            }
            _ => Err((503, "the manager does not list junctions".to_owned())),
        }
    }
}

fn now_ms() -> u64 {
    clock::instant().0 / 1_000_000
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, PageRefusal> {
    let parsed = text.parse();
    parsed.map_err(|_| (400, format!("{what}: \"{text}\" is not a number in range")))
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

/// Nodes with a serving target.
#[must_use]
pub fn job_nodes(map: &ZoneMap) -> Vec<(ZoneId, NodeId)> {
    let targets = map.targets.iter();
    let serving: BTreeSet<NodeId> = targets
        .filter(|target| target.state == TargetState::Serving)
        .map(|target| target.node)
        .collect();
    let nodes = map.nodes.iter();
    nodes
        .filter(|node| node.state == NodeState::Up && serving.contains(&node.id))
        .map(|node| (node.zone, node.id))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager_tests::{manager, manager_joins};
    use zonal_testkit::Scratch;

    #[test]
    fn the_description_lists_each_page_with_its_method_and_parameters() {
        let scratch = Scratch::new("placement-pages");
        let (manager, map) = manager(&scratch);
        manager_joins(&manager);
        let pages = PlacementPages::new(map, Arc::new(manager), true);
        let (code, text) = pages.answer("GET", "/v1/openapi.json", "");
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &document["openapi"]), (200, &"3.0.3".into()));
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, page) in methods.as_object().unwrap() {
                let path = path.replace("{id}", "77");
                let parameters = page["parameters"].as_array().cloned().unwrap_or_default();
                let query: Vec<String> = parameters
                    .iter()
                    .filter(|parameter| parameter["in"] == "query")
                    .map(|parameter| format!("{}=wrong", parameter["name"].as_str().unwrap()))
                    .collect();
                for part in query.iter().map(String::as_str).chain([""]) {
                    let (code, text) = pages.answer(&method.to_uppercase(), &path, part);
                    assert!(
                        code != 405 && !text.contains("is no parameter"),
                        "{path}: {text}"
                    );
                    let answers = page["responses"].as_object().unwrap();
                    // This manager has no node for jobs.
                    let expected = answers.contains_key(&code.to_string());
                    assert!(expected, "{method} {path}?{part}: {code} {text}");
                }
                let (code, _) = pages.answer("PATCH", &path, "");
                assert!(code == 405 || code == 404, "{path}: {code}");
            }
        }
        assert_eq!(pages.answer("POST", "/v1/place", "color=red").0, 400);
        assert_eq!(pages.answer("POST", "/v1/place", "path=%zz").0, 400);
        assert_eq!(pages.answer("POST", "/v1/place", "path=/none/a").0, 404);
        assert_eq!(pages.answer("GET", "/v1/other", "").0, 404);
    }

    #[test]
    fn percent_encoding_is_decoded() {
        assert_eq!(decoded("/a%20b").as_deref(), Some("/a b"));
        assert_eq!(decoded("/a%2"), None);
        assert_eq!(decoded("%ff"), None);
    }
}
