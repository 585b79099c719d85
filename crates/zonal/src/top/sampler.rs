//! The thread that asks the cell. A sample takes at most a few deadlines of one request, as all
//! nodes are asked in parallel; the view shows the last one meanwhile.

use super::sample::CellSample;
use crate::cell::connection::CellHandle;
use crate::cell::node_status::{directory_paths, directory_sums, look_again};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use zonal_types::Ino;
use zonal_zonemap::ZoneMap;

/// Deadline of one request.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Samples after which the paths of directories are asked for again: they may have been renamed.
const PATHS_KEPT: u32 = 30;

/// Takes samples of a cell.
pub struct Sampler {
    cell: CellHandle,
    map: Arc<ZoneMap>,
    paths: BTreeMap<Ino, String>,
    paths_age: u32,
    since: Instant,
}

impl Sampler {
    /// A sampler with the newest zone map.
    ///
    /// # Errors
    /// The manager does not answer.
    pub fn new(cell: CellHandle) -> anyhow::Result<Self> {
        let map = Arc::new(cell.map()?);
        Ok(Self {
            cell,
            map,
            paths: BTreeMap::new(),
            paths_age: 0,
            since: Instant::now(),
        })
    }

    /// Asks all nodes.
    pub fn take(&mut self) -> CellSample {
        let map = Arc::clone(&self.map);
        let (statuses, newest) = std::thread::scope(|scope| {
            // A silent manager shows as a silent node; the known map stays in use.
            let newest = scope.spawn(|| self.cell.newest_map(Arc::clone(&map)));
            (look_again(&self.cell, &map), newest.join())
        });
        let sums = directory_sums(&statuses);
        let is_unknown = |ino: &Ino| *ino != Ino(0) && !self.paths.contains_key(ino);
        let has_unknown = sums.iter().any(|entry| is_unknown(&entry.dir));
        self.paths_age += 1;
        if let Ok(Ok(newest)) = newest {
            self.map = newest;
            // With the manager silent, names would cost one more deadline.
            if has_unknown || self.paths_age >= PATHS_KEPT {
                let dirs = sums.iter().map(|entry| entry.dir);
                self.paths = directory_paths(&self.cell, dirs);
                self.paths_age = 0;
            }
        }
        CellSample::new(&map, statuses, self.paths.clone(), self.since)
    }

    /// Starts a thread that takes a sample at each interval and sends it, unless the last one was
    /// not received yet. It ends with the receiver.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(mut self, interval: Duration) -> std::io::Result<Receiver<CellSample>> {
        let (sender, receiver): (SyncSender<CellSample>, _) = sync_channel(1);
        let thread = std::thread::Builder::new().name("sampler".into());
        thread.spawn(move || {
            loop {
                let begun = Instant::now();
                if let Err(TrySendError::Disconnected(_)) = sender.try_send(self.take()) {
                    return;
                }
                std::thread::sleep(interval.saturating_sub(begun.elapsed()));
            }
        })?;
        Ok(receiver)
    }
}
