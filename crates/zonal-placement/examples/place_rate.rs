//! Prints how long a placement takes: 1,000 zones, 40,000 nodes, 100,000 junctions. Before each, as
//! many nodes report their CPU as would in 5 ms.
//!
//! `cargo run --release -p zonal-placement --example place_rate`
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Instant;
use zonal_placement::{JobPlacer, JobRequest, JunctionHomes, NodeLoad};
use zonal_types::{NodeId, ZoneId};

fn main() {
    let zones = 1..=1_000_u16;
    let nodes = zones.flat_map(|zone| {
        (0..40).map(move |node| (ZoneId(zone), NodeId(u32::from(zone) * 40 + node)))
    });
    let mut placer = JobPlacer::new(nodes);
    let mut homes = JunctionHomes::default();
    for number in 0..100_000_u32 {
        let zone = u16::try_from(number % 1_000 + 1).unwrap_or(1);
        homes.insert(&format!("/tree-{number}"), ZoneId(zone));
    }
    let mut times = Vec::new();
    for job in 0..20_000_u32 {
        for report in 0..40_u32 {
            let node = NodeId(40 + (job * 40 + report) % 40_000);
            let used = u16::try_from(job.wrapping_mul(31 + report) % 1_000).unwrap_or(0);
            let load = NodeLoad {
                cpu_per_mille: used,
                ..NodeLoad::default()
            };
            placer.set_load(node, load);
        }
        let path = format!("/tree-{}/a/b", job.wrapping_mul(7_919) % 100_000);
        let start = Instant::now();
        let home = homes.home(&path).unwrap_or(ZoneId(1));
        let request = JobRequest {
            bytes: [(home, 1 << 30)].into(),
            nodes: 8,
            reserve_ms: 30_000,
            ..JobRequest::default()
        };
        let placed = placer.place(&request, u64::from(job));
        times.push(start.elapsed());
        if let Err(error) = placed {
            println!("{error}");
        }
    }
    times.sort_unstable();
    for per_mille in [500, 990, 999] {
        if let Some(time) = times.get(times.len() * per_mille / 1_000) {
            println!("{per_mille} of 1,000 placements take at most {time:?}");
        }
    }
}
