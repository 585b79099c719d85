//! Jobs frame by frame: clients with bounded requests in flight over TCP and the queues of ports.
//!
//! A job runs several times on the same connections, each time with new files and after a pause.
//! The first run is not counted: later ones find windows that have met losses, as those of mounts
//! have. A run also depends on which client is a moment earlier, and on the columns at which files
//! begin. So [`frame_times`] is the median of the others.

use crate::data_centre::{DataCentre, ModelError};
use crate::fair_rates::FlowTimes;
use crate::network::{FrameCall, Happened, Network};
use crate::request_windows::RequestWindow;
use crate::transfers::{Direction, Files, Job};

/// Most bytes of all files of a job frame by frame.
const FRAMES_BYTES_MAX: u64 = 1 << 40;
/// Runs of which the median is taken, behind the first.
const RUNS: u32 = 61;
/// Files of a zone before a run: so many times its number.
const FILES_A_RUN: u64 = 65_536;
/// Seconds between runs: many timeouts of TCP, as between the loads of a testbed.
const PAUSE: f64 = 3.0;
/// Clients begin within this many seconds, as programs do that wait for the same time.
const BEGIN_WITHIN: f64 = 0.002;
/// Bytes of a request and a reply without file data: header and body.
const MESSAGE_BYTES: f64 = 200.0;

/// Runs a job frame by frame until the last client is done: the median of several runs, by seconds.
///
/// # Errors
/// Each [`ModelError`].
pub fn frame_times(centre: &DataCentre, job: &Job) -> Result<FlowTimes, ModelError> {
    let mut times = runs_in_frames(centre, job, RUNS)?;
    times.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let median = times.into_iter().nth(RUNS as usize / 2);
    median.ok_or(ModelError::Active)
}

/// So many runs in turn, behind one that is not counted.
///
/// # Errors
/// Each [`ModelError`].
pub fn runs_in_frames(
    centre: &DataCentre,
    job: &Job,
    runs: u32,
) -> Result<Vec<FlowTimes>, ModelError> {
    job.check(centre)?;
    let clients = job.active_racks * job.active_nodes;
    if u64::from(clients).saturating_mul(job.bytes) > FRAMES_BYTES_MAX {
        return Err(ModelError::TooManyFrames);
    }
    let mut files = Files::new(centre, job)?;
    let mut network = Network::new(centre);
    let mut times = Vec::new();
    for run in 0..=u64::from(runs) {
        files.begin(run * FILES_A_RUN)?;
        let mut windows = Vec::new();
        let begins = network.now + PAUSE;
        for rack in 0..job.active_racks {
            for node in 0..job.active_nodes {
                let client = windows.len();
                let late = BEGIN_WITHIN * fraction(run, client as u64);
                network.wake(begins + late, client);
                let parts = files.parts_of_client(rack, node)?;
                let window = RequestWindow::new(job.direction, parts);
                windows.push((centre.number_of(rack, node), window));
            }
        }
        times.push(ran(&mut network, &mut windows, job, begins));
    }
    times.remove(0);
    Ok(times)
}

fn ran(
    network: &mut Network<'_>,
    windows: &mut [(usize, RequestWindow)],
    job: &Job,
    begun: f64,
) -> FlowTimes {
    let mut times = FlowTimes {
        first_rate: 0.0,
        sum_of_rates: 0.0,
        seconds: 0.0,
    };
    let (mut moved, mut is_first) = (0.0, true);
    while let Some(happened) = network.next() {
        let (client, done) = match happened {
            Happened::Woken(client) => (client, None),
            Happened::Done((client, request)) => (client, Some(request)),
        };
        let (node, window) = &mut windows[client];
        if let Some(request) = done {
            window.done(request);
            moved += window.part(request).bytes as f64;
        }
        while let Some(number) = window.next_request() {
            let part = window.part(number);
            let bytes = part.bytes as f64;
            let (request, reply) = match job.direction {
                Direction::Read => (MESSAGE_BYTES, MESSAGE_BYTES + bytes),
                Direction::Write => (MESSAGE_BYTES + bytes, MESSAGE_BYTES),
            };
            network.call(FrameCall {
                name: (client, number),
                client: *node,
                server: part.node,
                request,
                reply,
                disk: bytes,
            });
        }
        if window.is_over() {
            let seconds = network.now - begun;
            times.sum_of_rates += job.bytes as f64 / seconds;
            times.seconds = seconds;
            if std::mem::take(&mut is_first) {
                times.first_rate = moved / seconds;
            }
        }
    }
    times
}

/// A number from 0 to 1 for a client of a run (splitmix64).
fn fraction(run: u64, client: u64) -> f64 {
    let mut bits = (run << 32 | client)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let top = u32::try_from((bits ^ (bits >> 31)) >> 32).unwrap_or(u32::MAX);
    f64::from(top) / f64::from(u32::MAX)
}
