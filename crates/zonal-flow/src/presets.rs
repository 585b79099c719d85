//! Published set-ups and the testbed's, as data centres and jobs.

use crate::data_centre::{DataCentre, ModelError};
use crate::fair_rates::FlowTimes;
use crate::frame_run::frame_times;
use crate::transfers::{Architecture, Direction, Job, Workload, run_job};
use zonal_types::Placement;
use zonal_types::limits::SET_WIDTH_DEFAULT;

/// 1 Gbit/s in bytes a second.
const GIGABIT: f64 = 125e6;
const MIB: u64 = 1 << 20;
/// Payload of a 100 Mbit/s link: 1,448 of 1,514 bytes of a frame.
const TESTBED_LINK: f64 = 12.5e6 * 1_448.0 / 1_514.0;
/// The page cache takes the testbed's bytes; its links limit.
const TESTBED_DISK: f64 = 1e9;

const ZONE: Architecture = Architecture::Placed(Placement::Zone);
const CELL: Architecture = Architecture::Placed(Placement::Cell);
const NODE: Architecture = Architecture::Placed(Placement::Node);

/// One point of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictedPoint {
    /// Racks or nodes.
    pub x: u32,
    /// Bytes of all flows together.
    pub bytes: f64,
    /// Their course.
    pub times: FlowTimes,
    /// Seconds by the publication's formula.
    pub formula_seconds: Option<f64>,
}

impl PredictedPoint {
    /// Bytes a second of all nodes together, until the last one ends. 0 where nothing is moved.
    #[must_use]
    pub fn rate(&self) -> f64 {
        if self.times.seconds > 0.0 {
            self.bytes / self.times.seconds
        } else {
            0.0
        }
    }
}

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictedLine {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<PredictedPoint>,
}

/// A preset's result.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Its title.
    pub title: &'static str,
    /// The meaning of x.
    pub x_label: &'static str,
    /// The publication's statement.
    pub published: &'static str,
    /// Its lines.
    pub lines: Vec<PredictedLine>,
}

/// Runs one job as a point at `x`.
///
/// # Errors
/// Each [`ModelError`].
pub fn point(x: u32, centre: &DataCentre, job: &Job) -> Result<PredictedPoint, ModelError> {
    Ok(point_of(x, job, run_job(centre, job)?))
}

/// Runs one job frame by frame as a point at `x`.
///
/// # Errors
/// Each [`ModelError`].
pub fn point_in_frames(
    x: u32,
    centre: &DataCentre,
    job: &Job,
) -> Result<PredictedPoint, ModelError> {
    Ok(point_of(x, job, frame_times(centre, job)?))
}

fn point_of(x: u32, job: &Job, times: FlowTimes) -> PredictedPoint {
    let flows = f64::from(job.active_racks) * f64::from(job.active_nodes);
    let bytes = flows * job.bytes as f64;
    PredictedPoint {
        x,
        bytes,
        times,
        formula_seconds: None,
    }
}

/// The data centre of the ZoneFS simulation: 40 nodes a rack, `racks` racks.
#[must_use]
pub fn published_centre(racks: u32) -> DataCentre {
    DataCentre {
        racks,
        nodes: 40,
        node_rate: GIGABIT,
        disk_rate: 100e6,
        uplink_rate: 10.0 * GIGABIT,
        core_rate: Some(10.0 * GIGABIT),
        set_width: SET_WIDTH_DEFAULT,
    }
}

fn line<const N: usize>(
    name: impl Into<String>,
    xs: [u32; N],
    run: impl Fn(u32) -> Result<PredictedPoint, ModelError>,
) -> Result<PredictedLine, ModelError> {
    let points = xs.into_iter().map(run).collect::<Result<_, _>>()?;
    Ok(PredictedLine {
        name: name.into(),
        points,
    })
}

fn job(architecture: Architecture, workload: Workload, mib: u64, active: (u32, u32)) -> Job {
    Job {
        architecture,
        workload,
        direction: Direction::Read,
        bytes: mib * MIB,
        active_racks: active.0,
        active_nodes: active.1,
    }
}

/// ZoneFS, Fig 5: bandwidth by racks, without and with data shared between them.
///
/// # Errors
/// Each [`ModelError`].
pub fn fig5() -> Result<Prediction, ModelError> {
    let mut lines = Vec::new();
    for (sharing, workload) in [("no sharing", Workload::Own), ("sharing", Workload::Shared)] {
        for (name, architecture) in [
            ("Internet-scale", NODE),
            ("separate", Architecture::Separate),
            ("zones", ZONE),
        ] {
            lines.push(line(
                format!("{name}, {sharing}"),
                [1, 2, 4, 8, 16, 32, 48],
                |racks| {
                    let centre = published_centre(racks);
                    point(
                        racks,
                        &centre,
                        &job(architecture, workload, 1_000, (racks, 40)),
                    )
                },
            )?);
        }
    }
    Ok(Prediction {
        title: "Fig 5: bandwidth by racks of 40 nodes",
        x_label: "racks",
        published: "without sharing the Internet-scale file system and zones grow linearly, and \
                    a separate one stops at 10 Gbit/s; with sharing all end at the upper switch",
        lines,
    })
}

/// ZoneFS, Fig 6: nodes of one rack read one chunk.
///
/// # Errors
/// Each [`ModelError`].
pub fn fig6() -> Result<Prediction, ModelError> {
    let centre = published_centre(1);
    let mut lines = Vec::new();
    for (name, architecture, copies) in [
        ("Internet-scale, 1 copy", NODE, 1),
        ("Internet-scale, 3 copies", NODE, 3),
        ("separate", Architecture::Separate, 1),
        ("zone", ZONE, 1),
    ] {
        lines.push(line(name, [1, 2, 5, 10, 15, 20], |readers| {
            let workload = Workload::OneFile { copies };
            point(
                readers,
                &centre,
                &job(architecture, workload, 64, (1, readers)),
            )
        })?);
    }
    Ok(Prediction {
        title: "Fig 6: nodes of a rack read one chunk",
        x_label: "nodes that read",
        published: "the Internet-scale file system grows with the copies only, a separate one \
                    stops at the upper switch, stripes in the rack grow with the nodes",
        lines,
    })
}

/// Blocks of a 3 GB image, copies of each, threads a data node, latency of a block in seconds.
const IMAGE: (u32, u32, f64, f64) = (48, 3, 3.0, 0.1);

/// Seconds in which `hosts` get an image, by the formula of the repository's publication.
#[must_use]
pub fn repository_seconds(hosts: u32, block_bytes: f64, rate: f64) -> f64 {
    let (blocks, copies, threads, latency) = IMAGE;
    let block_seconds = block_bytes / rate;
    let image_seconds = f64::from(blocks) * block_seconds;
    let at_once = threads * f64::from(copies);
    let waves = 1.0 + (f64::from(hosts) - at_once).max(0.0) / (at_once * f64::from(blocks));
    image_seconds * (threads + latency / block_seconds) * waves
}

/// Repository of virtual machines: hosts get one image from 256 nodes, beside the formula.
///
/// # Errors
/// Each [`ModelError`].
pub fn repository() -> Result<Prediction, ModelError> {
    let centre = DataCentre {
        racks: 16,
        nodes: 16,
        disk_rate: 60e6,
        core_rate: None,
        ..published_centre(16)
    };
    let (blocks, copies, ..) = IMAGE;
    let hosts = [16, 32, 64, 128, 256];
    let get = |workload, architecture, hosts: u32| {
        let mib = 64 * u64::from(blocks);
        let (racks, nodes) = (16.min(hosts), hosts.div_ceil(16).max(1));
        point(
            hosts,
            &centre,
            &job(architecture, workload, mib, (racks, nodes)),
        )
    };
    let blocks_line = line("blocks on nodes", hosts, |hosts| {
        let found = get(Workload::Image { blocks, copies }, NODE, hosts)?;
        let seconds = repository_seconds(hosts, 64.0 * MIB as f64, centre.disk_rate);
        Ok(PredictedPoint {
            formula_seconds: Some(seconds),
            ..found
        })
    })?;
    let cell = |hosts| get(Workload::OneFile { copies: 1 }, CELL, hosts);
    Ok(Prediction {
        title: "Repository: hosts get one image",
        x_label: "hosts",
        published: "the time of get is nearly independent of the hosts at first; bandwidth \
                    saturates near copies x blocks x point-to-point bandwidth",
        lines: vec![blocks_line, line("striped over the cell", hosts, cell)?],
    })
}

fn testbed() -> DataCentre {
    DataCentre {
        racks: 2,
        nodes: 4,
        node_rate: TESTBED_LINK,
        disk_rate: TESTBED_DISK,
        uplink_rate: TESTBED_LINK,
        core_rate: None,
        set_width: SET_WIDTH_DEFAULT,
    }
}

/// Lines of reads and writes of 16 MiB a node, frame by frame, by nodes of each active rack.
fn testbed_lines(
    places: [(&str, Architecture, Workload); 2],
    racks: u32,
) -> Result<Vec<PredictedLine>, ModelError> {
    let mut lines = Vec::new();
    for (name, architecture, workload) in places {
        for (word, direction) in [("write", Direction::Write), ("read", Direction::Read)] {
            lines.push(line(format!("{name} {word}"), [1, 2, 4], |nodes| {
                let job = Job {
                    direction,
                    ..job(architecture, workload, 16, (racks, nodes))
                };
                point_in_frames(racks * nodes, &testbed(), &job)
            })?);
        }
    }
    Ok(lines)
}

/// The testbed's Fig 9: local and cross-rack, separate files.
///
/// # Errors
/// Each [`ModelError`].
pub fn testbed_fig9() -> Result<Prediction, ModelError> {
    let places = [
        ("local", ZONE, Workload::Own),
        ("cross-rack", ZONE, Workload::NextRack),
    ];
    Ok(Prediction {
        title: "Fig 9 on a testbed of 2 x 4 nodes, 100 Mbit/s",
        x_label: "nodes of one rack",
        published: "cross-rack stops at the uplink whatever the nodes",
        lines: testbed_lines(places, 1)?,
    })
}

/// The testbed's Fig 10: zones, and stripes over the cell.
///
/// # Errors
/// Each [`ModelError`].
pub fn testbed_fig10() -> Result<Prediction, ModelError> {
    let places = [("zone", ZONE, Workload::Own), ("cell", CELL, Workload::Own)];
    Ok(Prediction {
        title: "Fig 10 on a testbed of 2 x 4 nodes, 100 Mbit/s",
        x_label: "nodes of both racks",
        published: "stripes over the cell lie between local and cross-rack",
        lines: testbed_lines(places, 2)?,
    })
}

/// The testbed's Fig 13: files written by one node.
///
/// # Errors
/// Each [`ModelError`].
pub fn testbed_fig13() -> Result<Prediction, ModelError> {
    let centre = DataCentre {
        racks: 1,
        ..testbed()
    };
    let lines = [("zone placement", ZONE), ("node placement", NODE)].map(|(name, architecture)| {
        line(name, [2, 4], |readers| {
            point_in_frames(
                readers,
                &centre,
                &job(architecture, Workload::OneWriter, 16, (1, readers)),
            )
        })
    });
    Ok(Prediction {
        title: "Fig 13 on a testbed of 4 nodes, 100 Mbit/s",
        x_label: "nodes that read their own file",
        published: "files of one node stop at that server",
        lines: lines.into_iter().collect::<Result<_, _>>()?,
    })
}

/// Preset by name.
type Run = fn() -> Result<Prediction, ModelError>;

/// All presets by name.
pub const PRESETS: [(&str, Run); 6] = [
    ("fig5", fig5),
    ("fig6", fig6),
    ("repository", repository),
    ("testbed-fig9", testbed_fig9),
    ("testbed-fig10", testbed_fig10),
    ("testbed-fig13", testbed_fig13),
];
