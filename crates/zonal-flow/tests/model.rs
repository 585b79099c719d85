//! The model against cases by hand, and the shapes of published figures.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use proptest::prelude::*;
use zonal_flow::presets::{self, Prediction, published_centre};
use zonal_flow::{
    Architecture, DataCentre, Direction, FlowClass, Job, ModelError, Workload, fair_rates,
    frame_times, merged, run_flows, run_job, runs_in_frames,
};
use zonal_types::Placement;

fn flow(parts: &[(usize, f64)], bytes: f64) -> FlowClass {
    FlowClass {
        parts: parts.to_vec(),
        count: 1,
        bytes,
    }
}

fn is_near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 0.01
}

#[test]
fn flows_share_links_fairly() {
    // The textbook's case: a long flow over both links, short ones beside it.
    let flows = [
        flow(&[(0, 1.0), (1, 1.0)], 1.0),
        flow(&[(0, 1.0)], 1.0),
        flow(&[(1, 1.0)], 1.0),
    ];
    assert_eq!(fair_rates(&[10.0, 4.0], &flows).unwrap(), [2.0, 8.0, 2.0]);
    // A stripe that puts half of its bytes on a link uses half of its rate there.
    let half = [flow(&[(0, 0.5), (1, 0.5)], 1.0)];
    assert_eq!(fair_rates(&[10.0, 4.0], &half).unwrap(), [8.0]);
}

#[test]
fn the_link_of_an_ended_flow_goes_to_the_others() {
    let flows = [flow(&[(0, 1.0)], 10.0), flow(&[(0, 1.0)], 30.0)];
    let times = run_flows(&[10.0], &flows).unwrap();
    assert!(is_near(times.seconds, 4.0), "{times:?}");
    assert!(is_near(times.first_rate, 10.0), "{times:?}");
}

#[test]
fn equal_flows_are_one_class() {
    let flows = vec![
        flow(&[(0, 1.0)], 5.0),
        flow(&[(1, 1.0)], 5.0),
        flow(&[(0, 1.0)], 5.0),
    ];
    let classes = merged(flows.clone());
    assert_eq!(
        classes.iter().map(|of| of.count).collect::<Vec<_>>(),
        [2, 1]
    );
    let links = [10.0, 7.0];
    assert_eq!(
        run_flows(&links, &classes).unwrap(),
        run_flows(&links, &flows).unwrap()
    );
}

#[test]
fn rates_that_make_no_sense_are_refused() {
    assert_eq!(
        fair_rates(&[0.0], &[flow(&[(0, 1.0)], 1.0)]),
        Err(ModelError::Rate)
    );
    assert_eq!(
        fair_rates(&[1.0], &[flow(&[(1, 1.0)], 1.0)]),
        Err(ModelError::Rate)
    );
    let centre = published_centre(0);
    assert_eq!(centre.check(), Err(ModelError::Racks));
    assert_eq!(
        DataCentre {
            nodes: 0,
            ..published_centre(1)
        }
        .check(),
        Err(ModelError::Nodes)
    );
    let slow = DataCentre {
        disk_rate: 0.0,
        ..published_centre(1)
    };
    assert_eq!(slow.check(), Err(ModelError::Rate));
}

proptest! {
    #[test]
    fn no_link_is_over_full_and_each_flow_has_a_bottleneck(
        links in proptest::collection::vec(1.0..100.0_f64, 1..8),
        raw in proptest::collection::vec(
            (proptest::collection::btree_map(0..8_usize, 0.1..1.0_f64, 1..5), 1..4_u32), 1..20),
    ) {
        let mut flows = Vec::new();
        for (parts, count) in raw {
            let parts = parts.into_iter().filter(|(link, _)| *link < links.len()).collect();
            flows.push(FlowClass { parts, count, bytes: 1.0 });
        }
        flows.retain(|flow| !flow.parts.is_empty());
        let rates = fair_rates(&links, &flows).unwrap();
        let mut used = vec![0.0; links.len()];
        let mut fastest = vec![0.0_f64; links.len()];
        for (flow, rate) in flows.iter().zip(&rates) {
            for (link, part) in &flow.parts {
                used[*link] += part * rate * f64::from(flow.count);
                fastest[*link] = fastest[*link].max(*rate);
            }
        }
        for (used, rate) in used.iter().zip(&links) {
            prop_assert!(*used <= rate * (1.0 + 1e-9));
        }
        for (flow, rate) in flows.iter().zip(&rates) {
            let has_bottleneck = flow.parts.iter().any(|(link, _)| {
                used[*link] >= links[*link] * (1.0 - 1e-9) && *rate >= fastest[*link] * (1.0 - 1e-9)
            });
            prop_assert!(has_bottleneck);
        }
    }
}

/// The rate of a line's point, MB/s.
fn rate(of: &Prediction, line: &str, x: u32) -> f64 {
    let line = of.lines.iter().find(|known| known.name == line).unwrap();
    line.points
        .iter()
        .find(|point| point.x == x)
        .unwrap()
        .rate()
        / 1e6
}

#[test]
fn figure_5_has_its_published_shape() {
    let found = presets::fig5().unwrap();
    for racks in [1, 8, 48] {
        let linear = 4_000.0 * f64::from(racks);
        assert!(is_near(
            rate(&found, "Internet-scale, no sharing", racks),
            linear
        ));
        assert!(is_near(rate(&found, "zones, no sharing", racks), linear));
        assert!(is_near(
            rate(&found, "separate, no sharing", racks),
            1_250.0
        ));
        assert!(is_near(rate(&found, "separate, sharing", racks), 1_250.0));
    }
    assert!(is_near(rate(&found, "zones, sharing", 48), 1_250.0));
    assert!(is_near(
        rate(&found, "Internet-scale, sharing", 48),
        1_250.0
    ));
}

#[test]
fn figure_6_has_its_published_shape() {
    let found = presets::fig6().unwrap();
    assert!(rate(&found, "Internet-scale, 1 copy", 20) < 106.0);
    assert!(rate(&found, "Internet-scale, 3 copies", 20) < 318.0);
    assert!(is_near(rate(&found, "separate", 20), 1_250.0));
    let grown = rate(&found, "zone", 20) / rate(&found, "zone", 5);
    assert!(grown > 3.8, "{grown}");
}

#[test]
fn the_repository_saturates_as_its_formula() {
    let found = presets::repository().unwrap();
    let last = found.lines[0].points.last().unwrap();
    assert!(last.rate() <= 48.0 * 3.0 * 60e6 * 1.01);
    assert!(last.formula_seconds.unwrap() > last.times.seconds);
}

#[test]
fn the_width_of_stripe_sets_changes_the_prediction() {
    let job = Job {
        architecture: Architecture::Placed(Placement::Zone),
        workload: Workload::Own,
        direction: Direction::Read,
        bytes: 1 << 30,
        active_racks: 1,
        active_nodes: 40,
    };
    let of = |set_width| {
        let centre = DataCentre {
            set_width,
            ..published_centre(1)
        };
        run_job(&centre, &job).unwrap().seconds
    };
    // Narrow sets are chosen by data id: some get more files than others.
    assert!(of(8) > 1.05 * of(64), "{} {}", of(8), of(64));
}

/// Four nodes behind links of 100 Mbit/s, two racks; each active node of the first has 16 MiB.
fn small_job(placement: Placement, workload: Workload, direction: Direction) -> (DataCentre, Job) {
    let centre = DataCentre {
        nodes: 4,
        node_rate: 12e6,
        disk_rate: 1e9,
        uplink_rate: 12e6,
        core_rate: None,
        ..published_centre(2)
    };
    let job = Job {
        architecture: Architecture::Placed(placement),
        workload,
        direction,
        bytes: 16 << 20,
        active_racks: 1,
        active_nodes: 4,
    };
    (centre, job)
}

#[test]
fn frame_by_frame_one_full_link_has_its_fair_rate() {
    let uplink = small_job(Placement::Zone, Workload::NextRack, Direction::Write);
    let server = small_job(Placement::Node, Workload::OneWriter, Direction::Read);
    for (centre, job) in [uplink, server] {
        let fair = run_job(&centre, &job).unwrap().seconds;
        let found = frame_times(&centre, &job).unwrap().seconds;
        assert!((found / fair - 1.0).abs() < 0.02, "{found} {fair}");
    }
}

#[test]
fn frame_by_frame_a_file_on_the_own_node_takes_its_disk_only() {
    let (centre, mut job) = small_job(Placement::Node, Workload::Own, Direction::Read);
    job.active_nodes = 1;
    let found = frame_times(&centre, &job).unwrap();
    let disk = job.bytes as f64 / centre.disk_rate;
    assert!((found.seconds - disk).abs() < 0.003, "{found:?}");
}

#[test]
fn frame_by_frame_nodes_that_stripe_over_one_another_are_slower_than_fair() {
    for direction in [Direction::Read, Direction::Write] {
        let (centre, job) = small_job(Placement::Zone, Workload::Own, direction);
        let fair = run_job(&centre, &job).unwrap().seconds;
        let found = frame_times(&centre, &job).unwrap().seconds;
        assert!(found > 1.1 * fair, "{found} {fair}");
    }
}

#[test]
fn frame_by_frame_the_width_of_stripe_sets_changes_the_prediction() {
    let (centre, job) = small_job(Placement::Zone, Workload::Own, Direction::Write);
    let narrow = DataCentre {
        set_width: 1,
        ..centre
    };
    let [wide, narrow] = [centre, narrow].map(|of| frame_times(&of, &job).unwrap().seconds);
    assert!((narrow / wide - 1.0).abs() > 0.1, "{narrow} {wide}");
}

#[test]
fn frame_by_frame_the_same_job_has_the_same_times_and_a_bound() {
    let (centre, job) = small_job(Placement::Cell, Workload::Own, Direction::Read);
    let times = runs_in_frames(&centre, &job, 3).unwrap();
    assert_eq!(times.len(), 3);
    assert_eq!(runs_in_frames(&centre, &job, 3).unwrap(), times);
    let large = Job {
        bytes: 1 << 40,
        ..job
    };
    assert_eq!(frame_times(&centre, &large), Err(ModelError::TooManyFrames));
}
