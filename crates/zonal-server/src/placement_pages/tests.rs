//! The pages of a manager without nodes for jobs, and of one with.

use super::*;
use crate::config::UplinkRates;
use crate::manager_link::ManagerService;
use crate::manager_tests::{join, manager, manager_joins};
use serde_json::Value;
use zonal_testkit::Scratch;

fn pages(scratch: &Scratch, is_grown: bool) -> PlacementPages {
    let (manager, map) = manager(scratch);
    manager_joins(&manager);
    if is_grown {
        // Nodes 2 and 3 of zones 2 and 3, with a target each.
        for (node, zone, uuid) in [(2, 2, 2), (3, 3, 3)] {
            let joined = manager.handle(join(node, zone, true, Some((node, uuid))));
            assert_eq!(crate::manager_tests::failed(&joined), None, "{joined:?}");
        }
    }
    let uplinks = UplinkRates::default();
    let manager = ManagerService::Alone(Arc::new(manager));
    let service = Arc::new(PlacementService::new(map, manager, uplinks, true));
    service.take_loads();
    PlacementPages::new(service)
}

fn ask(pages: &PlacementPages, method: &str, path: &str, query: &str) -> (u16, Value) {
    match pages.answer(method, path, query) {
        PageOutcome::Answer(code, text) => (code, serde_json::from_str(&text).unwrap()),
        PageOutcome::Wait { .. } => (0, Value::Null),
    }
}

#[test]
fn the_description_lists_each_page_with_its_method_and_parameters() {
    let scratch = Scratch::new("placement-pages");
    let pages = pages(&scratch, false);
    let (code, document) = ask(&pages, "GET", "/v1/openapi.json", "");
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
                let (code, told) = ask(&pages, &method.to_uppercase(), &path, part);
                let error = told["error"].as_str().unwrap_or_default();
                assert!(
                    code != 405 && !error.contains("is no parameter"),
                    "{path}: {told}"
                );
                let answers = page["responses"].as_object().unwrap();
                // This manager has no node for jobs.
                let expected = answers.contains_key(&code.to_string());
                assert!(expected, "{method} {path}?{part}: {code} {told}");
            }
            let (code, _) = ask(&pages, "PATCH", &path, "");
            assert!(code == 405 || code == 404, "{path}: {code}");
        }
    }
    assert_eq!(ask(&pages, "POST", "/v1/place", "color=red").0, 400);
    assert_eq!(ask(&pages, "POST", "/v1/place", "path=%zz").0, 400);
    assert_eq!(ask(&pages, "POST", "/v1/place", "path=/none/a").0, 404);
    assert_eq!(ask(&pages, "GET", "/v1/locate", "path=/none-*").0, 404);
    assert_eq!(ask(&pages, "GET", "/v1/other", "").0, 404);
}

#[test]
fn the_matrix_has_a_row_for_each_zone_with_bytes() {
    let scratch = Scratch::new("locate-pages");
    let pages = pages(&scratch, true);
    let (code, told) = ask(&pages, "GET", "/v1/locate", "bytes=2:60&bytes=3:40");
    assert_eq!((code, &told["unit"]), (200, &"bytes".into()), "{told}");
    let row = |index: usize| {
        let row = &told["matrix"][index];
        let cost = |zone: usize| row["costs"][zone]["cost"].as_u64().unwrap();
        (row["zone"].as_u64().unwrap(), cost(0), cost(1))
    };
    assert_eq!(row(0), (2, 0, 60));
    assert_eq!(row(1), (3, 40, 0));
    assert_eq!(told["costs"][1]["cost"], 60);
}

#[test]
fn numbers_that_the_cell_does_not_have_are_refused() {
    let scratch = Scratch::new("refused-pages");
    let pages = pages(&scratch, true);
    let later = format!("name=a&zone=2&nodes=2&started_ms={}", u64::MAX / 1_000);
    for (method, path, query, text) in [
        ("GET", "/v1/locate", "bytes=99:5", "no zone 99"),
        ("POST", "/v1/place", "bytes=2:1&bytes=99:5", "no zone 99"),
        ("POST", "/v1/place", "nodes=0", "at least one node"),
        ("POST", "/v1/place", "path=/a/../b", "has .. in it"),
        ("GET", "/v1/locate", "path=/a/%2e%2e/b", "has .. in it"),
        ("POST", "/v1/jobs", "name=a&zone=99&nodes=2", "no zone 99"),
        ("POST", "/v1/jobs", "name=a&zone=2&nodes=2,99", "no node 99"),
        ("POST", "/v1/jobs", later.as_str(), "later than now"),
    ] {
        let (code, told) = ask(&pages, method, path, query);
        let error = told["error"].as_str().unwrap_or_default();
        assert!(
            code == 400 && error.contains(text),
            "{query}: {code} {told}"
        );
    }
    let known = "name=a&zone=2&nodes=2&started_ms=5";
    assert_eq!(ask(&pages, "POST", "/v1/jobs", known).0, 200);
    let (_, told) = ask(&pages, "GET", "/v1/jobs", "");
    assert_eq!(told["jobs"][0]["started_ms"], 5);
}

#[test]
fn a_job_takes_the_place_of_its_reservation_and_counts_until_it_ends() {
    let scratch = Scratch::new("job-pages");
    let pages = pages(&scratch, true);
    let (_, placed) = ask(&pages, "POST", "/v1/place", "bytes=2:1");
    let reservation = placed["reservation"].as_u64().unwrap();
    let jobs_of_zone_2 = || ask(&pages, "GET", "/v1/zones", "").1["zones"][0]["jobs"].clone();
    assert_eq!(jobs_of_zone_2(), 1);
    let query = format!("name=j%201&user=u&reservation={reservation}");
    let (code, started) = ask(&pages, "POST", "/v1/jobs", &query);
    assert_eq!(code, 200, "{started}");
    assert_eq!(jobs_of_zone_2(), 1);
    assert_eq!(ask(&pages, "POST", "/v1/jobs", &query).0, 404);
    assert_eq!(ask(&pages, "POST", "/v1/jobs", "name=a").0, 400);

    let page = format!("/v1/jobs/{}", started["job"]);
    assert_eq!(ask(&pages, "PUT", &page, "in_zone_bytes=3").0, 200);
    let ended = ask(
        &pages,
        "DELETE",
        &page,
        "in_zone_bytes=3&cross_zone_bytes=1",
    );
    assert_eq!(ended.0, 200, "{}", ended.1);
    assert_eq!(ask(&pages, "DELETE", &page, "").0, 404);
    assert_eq!(jobs_of_zone_2(), 0);
    let (_, told) = ask(&pages, "GET", "/v1/jobs", "");
    let job = &told["jobs"][0];
    assert_eq!(
        (&job["name"], &job["state"], &job["in_zone_per_mille"]),
        (&"j 1".into(), &"done".into(), &750.into())
    );
    assert_eq!(told["running"], 0);
}

#[test]
fn the_cpu_that_nodes_report_decides_between_equal_numbers_of_jobs() {
    let scratch = Scratch::new("load-pages");
    let pages = pages(&scratch, true);
    let report = |node, cpu_per_mille| {
        let node = zonal_types::NodeId(node);
        let report = zonal_wire::ManagerRequest::ReportLoad {
            node,
            cpu_per_mille,
        };
        let told = pages.service().manager_for_tests().handle(report);
        assert_eq!(crate::manager_tests::failed(&told), None, "{told:?}");
    };
    let place = || ask(&pages, "POST", "/v1/place", "reserve_ms=0").1;
    assert_eq!(place()["zone"], 2);
    report(2, 730);
    report(77, 5);
    let placed = place();
    assert_eq!(placed["zone"], 3, "{placed}");
    report(3, 9_999);
    let placed = place();
    assert_eq!(placed["zone"], 2, "{placed}");
    let told = placed["explanation"].as_str().unwrap();
    assert!(told.contains("use 73 percent of their CPU"), "{told}");
    let (_, zones) = ask(&pages, "GET", "/v1/zones", "");
    assert_eq!(zones["zones"][0]["cpu_per_mille"], 730);
    assert_eq!(zones["zones"][1]["cpu_per_mille"], 1_000);
}

#[test]
fn a_watcher_hears_of_reservations_and_nodes_behind_its_version() {
    let scratch = Scratch::new("watch-pages");
    let pages = pages(&scratch, true);
    let (_, told) = ask(&pages, "GET", "/v1/watch", "");
    let version = told["version"].as_u64().unwrap();
    let since = format!("since={version}");
    let waits = pages.answer("GET", "/v1/watch", &format!("{since}&wait_ms=99999"));
    assert_eq!(
        waits,
        PageOutcome::Wait {
            since: version,
            wait_ms: WATCH_MS_MAX
        }
    );
    let (_, told) = ask(&pages, "GET", "/v1/watch", &format!("{since}&wait_ms=0"));
    assert_eq!(told["version"], version);

    let (_, placed) = ask(&pages, "POST", "/v1/place", "nodes=1");
    let joined = pages
        .service()
        .manager_for_tests()
        .handle(join(4, 4, true, Some((4, 4))));
    assert_eq!(crate::manager_tests::failed(&joined), None, "{joined:?}");
    let (_, told) = ask(&pages, "GET", "/v1/watch", &since);
    let changes: Vec<(&str, &str, u64)> = told["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| {
            let text = |key: &str| change[key].as_str().unwrap();
            (text("kind"), text("change"), change["id"].as_u64().unwrap())
        })
        .collect();
    let reservation = placed["reservation"].as_u64().unwrap();
    assert_eq!(
        changes,
        [
            ("reservation", "added", reservation),
            ("zone", "added", 0),
            ("node", "added", 4)
        ]
    );
    assert_eq!(told["is_complete"], true);
    // Of another process.
    let (_, told) = ask(&pages, "GET", "/v1/watch", "since=5");
    assert_eq!(told["is_complete"], false);
}
