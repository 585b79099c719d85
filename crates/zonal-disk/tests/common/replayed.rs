//! Replays a recording on a folder in memory, event by event, with the states that a power loss may
//! leave at each.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(dead_code, reason = "each test uses its part")]

use zonal_disk::recording::{RecordedEvent, Recording};
use zonal_testkit::Rng;
use zonal_testkit::power_cut::{CrashFolder, FileChange, FolderOperation, FolderState};

/// The change of the folder that an event makes.
fn act(event: &RecordedEvent<'_>) -> Option<FolderOperation> {
    let change = |file, change| Some(FolderOperation::Change { file, change });
    match *event {
        RecordedEvent::MakeFolder { path } => Some(FolderOperation::MakeFolder(path.into())),
        RecordedEvent::Create { file, path } => {
            let path = path.into();
            Some(FolderOperation::Create { file, path })
        }
        RecordedEvent::Write { file, at, bytes } => {
            let bytes = bytes.to_vec();
            change(file, FileChange::Write { at, bytes })
        }
        RecordedEvent::SetLen { file, length } => change(file, FileChange::Resize(length)),
        RecordedEvent::Allocate { file, end } => change(file, FileChange::AtLeast(end)),
        RecordedEvent::Flush { file } => Some(FolderOperation::Flush(file)),
        RecordedEvent::Rename { from, to } => {
            let (from, to) = (from.into(), to.into());
            Some(FolderOperation::Rename { from, to })
        }
        RecordedEvent::Remove { path } => Some(FolderOperation::Remove(path.into())),
        RecordedEvent::FlushNames { path } => Some(FolderOperation::FlushNames(path.into())),
        RecordedEvent::Begun | RecordedEvent::Ended { .. } | RecordedEvent::End(_) => None,
    }
}

/// The folder after some of a recording's events.
pub struct Replayed<'a> {
    recording: &'a Recording<'a>,
    folder: CrashFolder,
    done: usize,
    /// Flushes have no effect, as on a disk that lies.
    lies: bool,
}

impl<'a> Replayed<'a> {
    pub fn new(recording: &'a Recording<'a>, lies: bool) -> Self {
        Self {
            recording,
            folder: CrashFolder::default(),
            done: 0,
            lies,
        }
    }

    /// Replays until `events` events are done.
    pub fn run_to(&mut self, events: usize) {
        while let Some((_, event)) = self.recording.events.get(self.done) {
            if self.done >= events {
                return;
            }
            let number = self.done as u64;
            match *event {
                RecordedEvent::Begun => self.folder.settle(),
                RecordedEvent::Ended { event, is_well } => {
                    let before = &self.recording.events[event as usize].1;
                    self.folder
                        .ended(event, is_well && !(self.lies && is_flush(before)));
                }
                _ => {
                    if let Some(act) = act(event) {
                        self.folder.issue(number, act);
                    }
                }
            }
            self.done += 1;
        }
    }

    /// Length of the recording up to here.
    pub fn bytes(&self) -> u64 {
        let last = self.recording.events[..self.done].last();
        last.map_or(0, |(end, _)| *end)
    }

    pub fn live(&self) -> FolderState {
        self.folder.live()
    }

    pub fn states(&self, unit: u64, limit: usize, rng: &mut Rng) -> Vec<FolderState> {
        self.folder.states(unit, limit, rng)
    }
}

fn is_flush(event: &RecordedEvent<'_>) -> bool {
    matches!(
        event,
        RecordedEvent::Flush { .. } | RecordedEvent::FlushNames { .. }
    )
}

/// Numbers of events after which a flush is about to begin, about to end, or has ended, in the
/// recording proper.
pub fn sync_points(recording: &Recording<'_>) -> Vec<usize> {
    let events = &recording.events;
    let begun = events
        .iter()
        .position(|(_, event)| *event == RecordedEvent::Begun);
    let begun = begun.map_or(events.len(), |at| at + 1);
    let mut out = Vec::new();
    for (at, (_, event)) in events.iter().enumerate().skip(begun) {
        match event {
            event if is_flush(event) => out.push(at),
            RecordedEvent::Ended { event, .. } if is_flush(&events[*event as usize].1) => {
                out.extend([at, at + 1]);
            }
            _ => {}
        }
    }
    out.dedup();
    out
}

/// At most `count` of the points, drawn at random, in order.
pub fn some(mut points: Vec<usize>, count: usize, rng: &mut Rng) -> Vec<usize> {
    while points.len() > count {
        points.swap_remove(rng.index(points.len()));
    }
    points.sort_unstable();
    points
}
