//! Zones and nodes for jobs: near, spread, bounded.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::collections::BTreeMap;
use zonal_placement::{JobError, JobPlacer, JobPolicy, JobRequest, NodeLoad, RESERVATION_MS_MAX};
use zonal_types::{NodeId, ZoneId};

/// Zones 1 to `zones`; node `zone * 100 + n`.
fn placer(zones: u16, nodes: u32) -> JobPlacer {
    JobPlacer::new((1..=zones).flat_map(|zone| {
        (0..nodes).map(move |node| (ZoneId(zone), NodeId(u32::from(zone) * 100 + node)))
    }))
}

fn request(bytes: &[(u16, u64)], nodes: usize) -> JobRequest {
    let bytes = bytes.iter().map(|(zone, held)| (ZoneId(*zone), *held));
    JobRequest {
        bytes: bytes.collect(),
        nodes,
        reserve_ms: 30_000,
        ..JobRequest::default()
    }
}

/// Places 100 jobs at once; jobs by zone.
fn burst(placer: &mut JobPlacer, request: &JobRequest) -> BTreeMap<u16, usize> {
    let mut count = BTreeMap::new();
    for job in 0..100 {
        let placed = placer.place(request, job).unwrap();
        *count.entry(placed.zone.0).or_default() += 1;
    }
    count
}

#[test]
fn a_burst_of_100_jobs_leaves_no_zone_with_more_than_its_share() {
    let near = request(&[(1, 26), (2, 25), (3, 25), (4, 24)], 2);
    let mut spread = request(&[(1, 100)], 2);
    spread.policy = JobPolicy::Spread;
    for request in [near, spread, request(&[], 1)] {
        let count = burst(&mut placer(4, 8), &request);
        assert_eq!(count.len(), 4, "{count:?}");
        // 1.2 times the share of 25.
        assert!(count.values().all(|jobs| *jobs <= 30), "{count:?}");
    }
}

#[test]
fn jobs_stay_near_their_bytes_and_spread_over_the_nodes_there() {
    let mut placer = placer(4, 4);
    let mut nodes = BTreeMap::new();
    for job in 0..40 {
        let placed = placer.place(&request(&[(3, 90), (1, 10)], 1), job).unwrap();
        assert_eq!((placed.zone, placed.cost), (ZoneId(3), 10));
        let elsewhere: Vec<u64> = placed.elsewhere.iter().map(|cost| cost.bytes).collect();
        assert_eq!(elsewhere, [90, 100, 100]);
        assert!(placed.explanation.contains("zone 3 holds 90 percent"));
        *nodes.entry(placed.nodes[0]).or_insert(0) += 1;
    }
    assert!(nodes.values().all(|jobs| *jobs == 10), "{nodes:?}");
}

#[test]
fn running_jobs_come_before_cpu_and_both_before_the_number() {
    let mut placer = placer(1, 3);
    let load = |jobs, cpu_per_mille| NodeLoad {
        jobs,
        cpu_per_mille,
        is_standby: false,
    };
    placer.set_load(NodeId(100), load(2, 0));
    placer.set_load(NodeId(101), load(1, 900));
    placer.set_load(NodeId(102), load(1, 100));
    let placed = placer.place(&request(&[], 3), 0).unwrap();
    assert_eq!(placed.nodes, [NodeId(102), NodeId(101), NodeId(100)]);
    // Both are in the same tenth, so the number decides.
    placer = self::placer(1, 2);
    placer.set_load(NodeId(100), load(0, 490));
    placer.set_load(NodeId(101), load(0, 410));
    let placed = placer.place(&request(&[], 2), 0).unwrap();
    assert_eq!(placed.nodes, [NodeId(100), NodeId(101)]);
}

#[test]
fn of_equally_near_zones_the_one_with_idle_nodes_is_taken() {
    let mut placer = placer(3, 2);
    let busy = |cpu_per_mille| NodeLoad {
        cpu_per_mille,
        ..NodeLoad::default()
    };
    let told = placer.place(&request(&[], 1), 0).unwrap().explanation;
    assert!(!told.contains("CPU"), "{told}");
    // Means: zone 1 600, zone 2 455, zone 3 no better than zone 2.
    for (node, cpu) in [(100, 900), (101, 300), (200, 455), (201, 455), (300, 900)] {
        placer.set_load(NodeId(node), busy(cpu));
    }
    let mut wanted = request(&[(1, 100), (2, 101), (3, 99)], 1);
    wanted.reserve_ms = 0;
    placer.release_ended(1_000_000);
    let placed = placer.place(&wanted, 1_000_000).unwrap();
    assert_eq!(placed.zone, ZoneId(2), "{placed:?}");
    let told = &placed.explanation;
    assert!(
        told.ends_with(", and use 46 percent of their CPU"),
        "{told}"
    );
    // Jobs come first, and far zones are not taken for their idle nodes.
    placer.count_job(&[NodeId(200)], 1);
    assert_eq!(placer.place(&wanted, 1_000_000).unwrap().zone, ZoneId(3));
    wanted.bytes = [(ZoneId(1), 100)].into();
    assert_eq!(placer.place(&wanted, 1_000_000).unwrap().zone, ZoneId(1));
    let loads: Vec<u64> = placer.zones().map(|zone| zone.cpu_per_mille).collect();
    assert_eq!(loads, [600, 455, 450]);
}

#[test]
fn a_standby_node_is_taken_only_when_nothing_else_is_left() {
    let mut placer = placer(2, 3);
    let standby = NodeLoad {
        is_standby: true,
        ..NodeLoad::default()
    };
    placer.set_load(NodeId(100), standby);
    let one = placer.place(&request(&[(1, 100)], 2), 0).unwrap();
    assert_eq!(one.nodes, [NodeId(101), NodeId(102)]);
    // Three others are in zone 2 alone, far from the bytes.
    let three = placer.place(&request(&[(1, 100)], 3), 0).unwrap();
    assert_eq!(three.zone, ZoneId(2));
    placer.set_load(NodeId(200), standby);
    let three = placer.place(&request(&[(1, 100)], 3), 0).unwrap();
    assert_eq!(three.zone, ZoneId(1));
    assert_eq!(three.nodes.last(), Some(&NodeId(100)));
    assert!(three.explanation.contains("standby"), "{three:?}");
}

#[test]
fn a_placement_that_cannot_be_met_tells_what_there_is() {
    let mut placer = placer(2, 3);
    let error = placer.place(&request(&[(1, 1)], 4), 0).unwrap_err();
    let (asked, most) = (4, 3);
    assert!(
        matches!(error, JobError::TooManyNodes { asked: a, most: m, .. } if (a, m) == (asked, most))
    );
    let error = placer.place(&request(&[], 0), 0).unwrap_err();
    assert_eq!(error, JobError::NoNodes);
    let error = JobPlacer::default().place(&request(&[], 1), 0);
    assert_eq!(error.unwrap_err(), JobError::NoZones);
}

#[test]
fn a_reservation_that_is_never_used_ends() {
    let mut placer = placer(1, 2);
    let mut long = request(&[], 1);
    long.reserve_ms = u64::MAX;
    let first = placer.place(&long, 1_000).unwrap();
    assert_eq!(first.end_ms, 1_000 + RESERVATION_MS_MAX);
    let second = placer.place(&long, 1_000).unwrap();
    assert_ne!(first.nodes, second.nodes);
    assert!(placer.release(second.reservation.unwrap()).is_some());
    assert!(placer.release(second.reservation.unwrap()).is_none());
    assert_eq!(
        placer.place(&request(&[], 1), 1_001).unwrap().nodes,
        second.nodes
    );
    let later = placer.place(&request(&[], 1), first.end_ms).unwrap();
    assert_eq!(later.nodes, first.nodes);
    assert_eq!(placer.reservations().len(), 1);
    let jobs: Vec<u64> = placer.zones().map(|zone| zone.jobs).collect();
    assert_eq!(jobs, [1]);
}

#[test]
fn a_new_map_keeps_the_reservations_of_nodes_that_stay() {
    let mut placer = placer(1, 2);
    let first = placer.place(&request(&[], 1), 0).unwrap();
    assert_eq!(first.nodes, [NodeId(100)]);
    placer.set_nodes([(ZoneId(1), NodeId(100)), (ZoneId(1), NodeId(102))]);
    let second = placer.place(&request(&[], 1), 0).unwrap();
    assert_eq!(second.nodes, [NodeId(102)]);
    assert!(placer.release(first.reservation.unwrap()).is_some());
    let third = placer.place(&request(&[], 1), 0).unwrap();
    assert_eq!(third.nodes, [NodeId(100)]);
}

#[test]
fn running_jobs_count_as_load_until_they_end() {
    let mut placer = placer(1, 2);
    let nodes = [NodeId(100), NodeId(100), NodeId(999)];
    placer.count_job(&nodes, 1);
    let idle = |placer: &mut JobPlacer| {
        let mut asked = request(&[], 1);
        asked.reserve_ms = 0;
        placer.place(&asked, 0).unwrap().nodes
    };
    assert_eq!(idle(&mut placer), [NodeId(101)]);
    placer.count_job(&nodes, -1);
    assert_eq!(idle(&mut placer), [NodeId(100)]);
    // An end that is reported twice takes nothing from others.
    placer.count_job(&nodes, -1);
    let jobs: Vec<u64> = placer.zones().map(|zone| zone.jobs).collect();
    assert_eq!(jobs, [0]);
}
