//! `zonal simulate`: predicts the bandwidth of a data centre with a flow-level model.

use crate::console;
use crate::exit::{Failure, USAGE};
use clap::ValueEnum;
use serde_json::json;
use zonal_flow::presets::{self, PRESETS, PredictedLine, Prediction};
use zonal_flow::{Architecture, DataCentre, Direction, Job, Workload};
use zonal_types::Placement;
use zonal_types::limits::SET_WIDTH_DEFAULT;

/// Predict the bandwidth of a data centre: racks, links and disks under the real placements
#[derive(Debug, clap::Args)]
pub struct Simulate {
    /// A set-up by name, instead of the options below: fig5, fig6, repository, testbed-fig9,
    /// testbed-fig10, testbed-fig13
    #[arg(long)]
    preset: Option<String>,
    /// Racks
    #[arg(long, default_value_t = 4)]
    racks: u32,
    /// Nodes a rack
    #[arg(long, default_value_t = 40)]
    nodes: u32,
    /// Rate of a node's link in each direction, Mbit/s of payload
    #[arg(long, default_value_t = 1_000.0, value_name = "MBIT")]
    node_rate: f64,
    /// Rate of a node's disk, MB/s
    #[arg(long, default_value_t = 100.0, value_name = "MB")]
    disk_rate: f64,
    /// Rate of a rack's uplink in each direction, Mbit/s of payload
    #[arg(long, value_name = "MBIT", default_value_t = 10_000.0)]
    uplink_rate: f64,
    /// The uplink has the nodes' rate together, divided by this
    #[arg(long, value_name = "FACTOR", conflicts_with = "uplink_rate")]
    oversubscription: Option<f64>,
    /// Rate of the upper switch for all racks together, Mbit/s (default: never the limit)
    #[arg(long, value_name = "MBIT")]
    core_rate: Option<f64>,
    /// Slots of a stripe set at most
    #[arg(long, default_value_t = SET_WIDTH_DEFAULT, value_name = "SLOTS")]
    set_width: u16,
    /// Where files lie
    #[arg(long, value_enum, default_value = "zone")]
    architecture: ArchitectureWord,
    /// Files that the nodes read
    #[arg(long, value_enum, default_value = "own")]
    workload: WorkloadWord,
    /// Write the files instead
    #[arg(long)]
    write: bool,
    /// Megabytes a node
    #[arg(long, default_value_t = 1_000, value_name = "MB")]
    megabytes: u64,
    /// Frame by frame instead of at fair rates: bounded requests in flight, TCP, queues of ports.
    /// Slower, for 2^40 bytes of all nodes at most
    #[arg(long)]
    frames: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ArchitectureWord {
    /// Striped over the zone
    Zone,
    /// Striped over the cell
    Cell,
    /// Whole on the node that makes it
    Node,
    /// Striped over a rack of storage behind an uplink
    Separate,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WorkloadWord {
    /// A file of its own for each node, in its rack
    Own,
    /// A file of its own for each node, in the next rack
    NextRack,
    /// A file for each node, in the other racks in turn
    Shared,
    /// One file for all nodes
    OneFile,
    /// A file of its own for each node, all made by one node
    OneWriter,
}

impl Simulate {
    pub fn run(self) -> anyhow::Result<()> {
        let found = match &self.preset {
            None => self.predict(),
            Some(name) => match PRESETS.iter().find(|(known, _)| known == name) {
                Some((_, run)) => run(),
                None => {
                    let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
                    let failure = Failure::new(USAGE, format!("unknown preset {name}"));
                    return Err(failure.hint(format!("one of: {}", names.join(", "))).into());
                }
            },
        };
        let found = found.map_err(|error| Failure::new(USAGE, error.to_string()))?;
        if self.json {
            console::json(as_json(&found));
        } else {
            tell(&found);
        }
        Ok(())
    }

    fn predict(&self) -> Result<Prediction, zonal_flow::ModelError> {
        let bytes = |mbit: f64| mbit * 125e3;
        let together = f64::from(self.nodes) * self.node_rate;
        let uplink = self
            .oversubscription
            .map_or(self.uplink_rate, |factor| together / factor);
        let centre = DataCentre {
            racks: self.racks,
            nodes: self.nodes,
            node_rate: bytes(self.node_rate),
            disk_rate: self.disk_rate * 1e6,
            uplink_rate: bytes(uplink),
            core_rate: self.core_rate.map(bytes),
            set_width: self.set_width,
        };
        let job = Job {
            architecture: match self.architecture {
                ArchitectureWord::Zone => Architecture::Placed(Placement::Zone),
                ArchitectureWord::Cell => Architecture::Placed(Placement::Cell),
                ArchitectureWord::Node => Architecture::Placed(Placement::Node),
                ArchitectureWord::Separate => Architecture::Separate,
            },
            workload: match self.workload {
                WorkloadWord::Own => Workload::Own,
                WorkloadWord::NextRack => Workload::NextRack,
                WorkloadWord::Shared => Workload::Shared,
                WorkloadWord::OneFile => Workload::OneFile { copies: 1 },
                WorkloadWord::OneWriter => Workload::OneWriter,
            },
            direction: if self.write {
                Direction::Write
            } else {
                Direction::Read
            },
            bytes: self.megabytes.saturating_mul(1_000_000),
            active_racks: self.racks,
            active_nodes: self.nodes,
        };
        let point = if self.frames {
            presets::point_in_frames
        } else {
            presets::point
        };
        let points = vec![point(self.racks, &centre, &job)?];
        Ok(Prediction {
            title: "Predicted bandwidth",
            x_label: "racks",
            published: "",
            lines: vec![PredictedLine {
                name: "all nodes".to_owned(),
                points,
            }],
        })
    }
}

fn as_json(found: &Prediction) -> serde_json::Value {
    let lines = found.lines.iter().map(|line| {
        let points = line.points.iter().map(|point| {
            json!({
                "x": point.x,
                "bytes_per_second": point.rate(),
                "first_bytes_per_second": point.times.first_rate,
                "sum_of_rates": point.times.sum_of_rates,
                "seconds": point.times.seconds,
                "formula_seconds": point.formula_seconds,
            })
        });
        json!({"name": line.name, "points": points.collect::<Vec<_>>()})
    });
    json!({
        "title": found.title,
        "x_label": found.x_label,
        "published": found.published,
        "lines": lines.collect::<Vec<_>>(),
    })
}

fn tell(found: &Prediction) {
    console::line(found.title);
    if !found.published.is_empty() {
        console::line(format_args!("published: {}", found.published));
    }
    let words = [
        "line",
        found.x_label,
        "MB/s",
        "MB/s at first",
        "s",
        "s by formula",
    ];
    let mut rows = vec![words.map(str::to_owned).to_vec()];
    for line in &found.lines {
        for point in &line.points {
            let formula = point.formula_seconds;
            rows.push(vec![
                line.name.clone(),
                point.x.to_string(),
                format!("{:.1}", point.rate() / 1e6),
                format!("{:.1}", point.times.first_rate / 1e6),
                format!("{:.2}", point.times.seconds),
                formula.map_or("-".to_owned(), |seconds| format!("{seconds:.2}")),
            ]);
        }
    }
    console::table(&rows);
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_model_reads_ahead_as_a_mount_does() {
        let mount = zonal_fuse::SessionConfig::default();
        let read_ahead = zonal_flow::READ_AHEAD_BYTES;
        assert_eq!(u64::from(mount.max_readahead), read_ahead);
    }
}
