//! Rates between samples that are made by hand.

use super::*;
use crate::cell::node_status::{NodeStatus, TargetCapacity};
use zonal_wire::{ClientZoneTraffic, DirectoryTraffic};

/// A node of a zone with one target: capacity and free bytes.
pub fn node(id: u32, zone: u16, (total, free): (u64, u64)) -> NodeSample {
    let capacity = TargetCapacity {
        total_bytes: total,
        free_bytes: free,
        objects: 1,
    };
    NodeSample {
        id: NodeId(id),
        zone: ZoneId(zone),
        address: format!("127.0.0.1:{id}"),
        serves: format!("target {id}"),
        told_ms: 0,
        status: NodeStatus {
            targets: vec![(TargetId(id), Some(capacity))],
            activity: Some(NodeActivity::default()),
            ..NodeStatus::default()
        },
    }
}

/// A cell of two zones.
pub fn cell(nodes: Vec<NodeSample>) -> CellSample {
    CellSample {
        cell: "c0ffee".into(),
        map_version: 7,
        zones: vec![(ZoneId(1), "here".into()), (ZoneId(2), "there".into())],
        nodes,
        paths: BTreeMap::from([(Ino(77), "/data".into())]),
    }
}

/// The sample that follows after some seconds, with changed activities.
pub fn later(
    before: &CellSample,
    seconds: u64,
    change: impl Fn(&mut NodeActivity, NodeId),
) -> CellSample {
    let mut now = before.clone();
    for node in &mut now.nodes {
        node.told_ms += seconds * 1000;
        if let Some(activity) = &mut node.status.activity {
            change(activity, node.id);
        }
    }
    now
}

fn clients(target: u32, zone: u16, read: u64, written: u64) -> ClientZoneTraffic {
    ClientZoneTraffic {
        target: TargetId(target),
        zone: ZoneId(zone),
        read,
        written,
    }
}

pub fn times(operation: &str, sum_us: u64, buckets: &[u64]) -> OperationTimes {
    OperationTimes {
        service: "storage".into(),
        operation: operation.into(),
        sum_us,
        buckets: buckets.to_vec(),
    }
}

fn rates(read: f64, written: f64) -> ByteRates {
    ByteRates { read, written }
}

#[test]
fn traffic_between_zones_is_the_growth_over_the_time_between_replies() {
    let mut first = cell(vec![node(3, 1, (1000, 500)), node(4, 2, (1000, 500))]);
    for node in &mut first.nodes {
        let activity = node.status.activity.as_mut().unwrap();
        activity.clients.push(clients(node.id.0, 1, 1000, 100));
    }
    // The second node told later: its rates are over its own time.
    first.nodes[1].told_ms = 500;
    let mut second = later(&first, 2, |activity, id| {
        activity.clients[0].read += 200;
        activity.clients[0].written += 20;
        activity.clients.push(clients(id.0, 2, 0, 4000));
    });
    second.nodes[1].told_ms += 2000;
    let found = CellRates::between(Some(&first), &second);
    let of = |client, target| found.matrix[&(ZoneId(client), ZoneId(target))];
    assert_eq!(of(1, 1), rates(100.0, 10.0));
    assert_eq!(of(2, 1), rates(0.0, 2000.0));
    assert_eq!(of(1, 2), rates(50.0, 5.0));
    assert_eq!(of(2, 2), rates(0.0, 1000.0));
    assert_eq!(found.nodes[0].bytes, Some(rates(100.0, 2010.0)));
    assert_eq!(found.zones[0].in_zone, rates(100.0, 10.0));
    assert_eq!(found.zones[0].cross_zone, rates(0.0, 2000.0));
    assert_eq!(found.zones[1].cross_zone, rates(50.0, 5.0));
    let zones = vec![ZoneId(1), ZoneId(2)];
    assert_eq!(found.matrix_zones(), (zones.clone(), zones));
}

#[test]
fn without_an_earlier_sample_there_are_no_rates() {
    let first = cell(vec![node(3, 1, (1000, 500))]);
    let found = CellRates::between(None, &first);
    assert_eq!(
        (found.nodes[0].bytes, found.nodes[0].requests),
        (None, None)
    );
    assert!(found.matrix.is_empty() && found.operations.is_empty());
    assert_eq!(
        (found.zones[0].total_bytes, found.zones[0].free_bytes),
        (1000, 500)
    );
    // The same reply twice, as of a time that does not pass.
    let found = CellRates::between(Some(&first), &first);
    assert_eq!(found.nodes[0].bytes, None);
}

#[test]
fn a_server_that_began_anew_counts_from_0() {
    let mut first = cell(vec![node(3, 1, (1000, 500))]);
    let activity = first.nodes[0].status.activity.as_mut().unwrap();
    activity.clients.push(clients(3, 1, 1 << 40, 0));
    activity.operations.push(times("Read", 900, &[9, 9]));
    let second = later(&first, 1, |activity, _| {
        activity.clients[0].read = 50;
        activity.operations[0] = times("Read", 8, &[0, 4]);
    });
    let found = CellRates::between(Some(&first), &second);
    assert_eq!(found.nodes[0].bytes, Some(rates(50.0, 0.0)));
    assert_eq!(found.operations[0].per_second, 4.0);
    assert_eq!(found.operations[0].mean_us, 2.0);
}

#[test]
fn a_silent_node_has_no_rates_and_its_zone_is_not_well() {
    let first = cell(vec![node(3, 1, (1000, 500)), node(4, 1, (1000, 500))]);
    let mut second = later(&first, 1, |_, _| {});
    second.nodes[1].status = NodeStatus {
        error: Some("did not answer".into()),
        is_silent: true,
        targets: vec![(TargetId(4), None)],
        ..NodeStatus::default()
    };
    let found = CellRates::between(Some(&first), &second);
    assert_eq!(found.nodes[1].state, NodeHealth::Silent);
    assert_eq!(found.nodes[1].bytes, None);
    assert_eq!((found.zones[0].nodes_well, found.zones[0].nodes), (1, 2));
    // Back again, its first sample has nothing to compare with.
    let third = later(&first, 2, |_, _| {});
    let found = CellRates::between(Some(&second), &third);
    assert_eq!(found.nodes[1].state, NodeHealth::Well);
    assert_eq!(found.nodes[1].bytes, None);
    second.nodes[1].status.is_silent = false;
    let found = CellRates::between(Some(&first), &second);
    let unwell = NodeHealth::Unwell("did not answer".into());
    assert_eq!(found.nodes[1].state, unwell);
}

#[test]
fn operations_are_in_the_order_of_their_slowest_request() {
    let mut first = cell(vec![node(3, 1, (1000, 500))]);
    let activity = first.nodes[0].status.activity.as_mut().unwrap();
    activity
        .operations
        .push(times("Write", 1000, &[5, 0, 0, 0]));
    let second = later(&first, 2, |activity, _| {
        activity.operations = vec![
            times("Write", 1012, &[7, 0, 2, 0]),
            times("Read", 10, &[10, 0, 0, 0]),
            times("Sync", 90, &[0, 0, 0, 1]),
        ];
        let mut own = times("Activity", 9, &[0, 0, 0, 1]);
        own.service = SERVICE_OF_COMMANDS.into();
        activity.operations.push(own);
    });
    let found = CellRates::between(Some(&first), &second);
    let rows = found.operations.iter();
    let rows: Vec<_> = rows
        .map(|row| {
            (
                row.operation.as_str(),
                row.per_second,
                row.mean_us,
                row.slowest_us,
            )
        })
        .collect();
    let expected = [
        ("Sync", 0.5, 90.0, f64::INFINITY),
        ("Write", 2.0, 3.0, 4.0),
        ("Read", 5.0, 1.0, 1.0),
    ];
    assert_eq!(rows, expected);
    // Those of commands count as requests of the node all the same.
    assert_eq!(found.nodes[0].requests, Some(8.0));
}

#[test]
fn directories_are_summed_over_shards_and_those_without_traffic_left_out() {
    let first = cell(vec![node(1, 1, (0, 0)), node(2, 2, (0, 0))]);
    let second = later(&first, 2, |activity, id| {
        let of = |dir, written| DirectoryTraffic {
            dir: Ino(dir),
            traffic: ClientTraffic {
                written_cross_zone: written,
                ..ClientTraffic::default()
            },
        };
        activity.directories = vec![of(0, 10), of(u64::from(id.0) + 75, 400), of(99, 0)];
    });
    let found = CellRates::between(Some(&first), &second);
    let rows = found.directories.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.inode.0, row.path.as_deref(), row.cross_zone.written))
        .collect();
    let expected = [
        (76, None, 200.0),
        (77, Some("/data"), 200.0),
        (0, None, 10.0),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn a_target_is_full_where_more_than_nine_tenths_are_used() {
    let sizes = [(1000, 101), (1000, 100), (1000, 99), (1000, 0), (0, 0)];
    let nodes = sizes.iter().zip(1..).map(|(size, id)| node(id, 1, *size));
    let found = CellRates::between(None, &cell(nodes.collect()));
    let full: Vec<u32> = found
        .full_targets
        .iter()
        .map(|target| target.id.0)
        .collect();
    assert_eq!(full, [3, 4]);
}

#[test]
fn clients_of_zones_that_the_map_lacks_have_a_row_of_their_own() {
    let mut first = cell(vec![node(3, 1, (1000, 500))]);
    let activity = first.nodes[0].status.activity.as_mut().unwrap();
    activity.clients.push(clients(3, 0, 0, 0));
    let second = later(&first, 1, |activity, _| {
        activity.clients = vec![clients(3, 0, 9, 0), clients(3, 5, 9, 0)];
    });
    let found = CellRates::between(Some(&first), &second);
    let (of_clients, of_targets) = found.matrix_zones();
    assert_eq!(of_clients, [1, 2, 5, 0].map(ZoneId));
    assert_eq!(of_targets, [1, 2].map(ZoneId));
}
