//! Scrub: slowly reads all that a target or a shard stores and compares it with its checksums.
//!
//! One thread a store sleeps until a command begins a pass or one is due. It walks the chunks of
//! the index in key order, a few at a time. Each read is planned as any other read, so no lock is
//! held over it, and a place that was reused meanwhile is planned again. The same plan that fails
//! twice is damage. After each chunk the thread sleeps to keep the rate.
//!
//! A target's bytes are read from the medium. Of a shard every entry of the store is read, and so
//! every used block of the index. Blocks of the index in the system's cache are not read again from
//! the medium.
//!
//! Lock order: `ScrubTask::control`, then the lock of
//! [`MediumHealth`].

mod chunk;
mod pass;

use crate::medium_health::MediumHealth;
use crate::meta_role::MetaRole;
use crate::scrub_record::{SCRUB_KEY, SHARD_SCRUB_KEY, ScrubPace, ScrubRecord};
use crate::storage_role::StorageRole;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zonal_disk::Engine;
use zonal_object::{ObjectId, index_walk};
use zonal_wire::{ScrubReport, ScrubState};

struct Control {
    record: ScrubRecord,
    stopping: bool,
}

/// The store that is scrubbed.
#[derive(Clone)]
pub(crate) enum Subject {
    Target(Arc<StorageRole>),
    Shard(Arc<MetaRole>),
}

impl Subject {
    fn engine(&self) -> &Arc<Engine> {
        match self {
            Self::Target(storage) => &storage.engine,
            Self::Shard(shard) => shard.engine(),
        }
    }

    fn medium_health(&self) -> &MediumHealth {
        match self {
            Self::Target(storage) => &storage.medium_health,
            Self::Shard(shard) => shard.medium_health(),
        }
    }

    fn key(&self) -> &'static [u8] {
        match self {
            Self::Target(_) => &SCRUB_KEY,
            Self::Shard(_) => &SHARD_SCRUB_KEY,
        }
    }

    /// Has a target repair a block that is damaged.
    fn note_damage(&self, object: ObjectId, offset: u64) {
        if let Self::Target(storage) = self {
            storage.note_damage(object, offset);
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Target(storage) => format!("target {}", storage.id()),
            Self::Shard(shard) => format!("shard {}", shard.identity().0),
        }
    }
}

/// The scrub of one store.
pub struct ScrubTask {
    subject: Subject,
    pace: ScrubPace,
    control: Mutex<Control>,
    wake: Condvar,
}

impl ScrubTask {
    /// Starts the thread; an interrupted pass goes on.
    ///
    /// # Errors
    /// Where the system refuses a thread.
    pub(crate) fn start(
        subject: Subject,
        pace: ScrubPace,
    ) -> std::io::Result<(Arc<Self>, JoinHandle<()>)> {
        let (engine, key) = (subject.engine(), subject.key());
        let record = ScrubRecord::load(&**engine, key, pace).unwrap_or_else(|code| {
            tracing::warn!(%code, "the scrub record cannot be read; the scrub starts again");
            let mut record = ScrubRecord::new(pace);
            record.begin(pace.rate, pace);
            record
        });
        // Kept, so that a restart does not postpone the next pass.
        engine.apply_unlogged(vec![record.change(key)]);
        let scrub = Arc::new(Self {
            subject,
            pace,
            control: Mutex::new(Control {
                record,
                stopping: false,
            }),
            wake: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("scrub".into()).spawn({
            let scrub = Arc::clone(&scrub);
            move || scrub.run()
        })?;
        Ok((scrub, thread))
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the record; the next checkpoint makes it durable, and is requested here.
    fn keep(&self, record: &ScrubRecord) {
        let engine = self.subject.engine();
        engine.apply_unlogged(vec![record.change(self.subject.key())]);
        engine.request_checkpoint();
    }

    fn change(&self, change: impl FnOnce(&mut ScrubRecord)) {
        let record = {
            let mut control = self.lock();
            change(&mut control.record);
            control.record.clone()
        };
        self.keep(&record);
        self.wake.notify_all();
    }

    /// Ends the thread; the progress is kept.
    pub(crate) fn stop_thread(&self) {
        self.lock().stopping = true;
        self.wake.notify_all();
    }

    /// Begins a pass, or continues a paused one. A running pass gets the new rate.
    pub(crate) fn begin(&self, rate: u64, anew: bool) {
        let rate = if rate == 0 { self.pace.rate } else { rate };
        self.change(|record| match record.state {
            ScrubState::Running | ScrubState::Stopped if !anew => {
                record.state = ScrubState::Running;
                record.rate = rate;
            }
            _ => record.begin(rate, self.pace),
        });
    }

    /// Pauses a running pass; it keeps its position.
    pub(crate) fn pause(&self) {
        self.change(|record| {
            if record.state == ScrubState::Running {
                record.state = ScrubState::Stopped;
            }
        });
    }

    /// Reports the progress.
    pub(crate) fn report(&self) -> ScrubReport {
        let record = self.lock().record.clone();
        let (objects_now, bytes_now) = match &self.subject {
            Subject::Target(storage) => {
                let space = storage.lock().statfs();
                (space.objects, space.total.saturating_sub(space.free))
            }
            Subject::Shard(_) => (0, 0),
        };
        let at = index_walk::object_at(&record.next.0).unwrap_or_default();
        ScrubReport {
            state: record.state,
            rate: record.rate,
            started: record.started,
            ended: record.ended,
            objects: record.objects,
            bytes: record.bytes,
            objects_now,
            bytes_now,
            data_id: at.data_id,
            column: at.column,
            damaged_blocks: record.damaged_blocks,
            damaged: record.damaged,
        }
    }

    /// Gauges for `zonal status` and `/metrics`.
    pub(crate) fn gauges(&self) -> Vec<(String, u64)> {
        let control = self.lock();
        let record = &control.record;
        let running = record.state == ScrubState::Running;
        let ended = u64::try_from(record.ended.seconds).unwrap_or(0);
        let named = |name: &str| match &self.subject {
            Subject::Target(_) => format!("target_scrub_{name}"),
            Subject::Shard(shard) => {
                format!("shard_scrub_{name}{{shard=\"{}\"}}", shard.identity().0)
            }
        };
        vec![
            (named("running"), u64::from(running)),
            (named("rate_bytes"), record.rate),
            (named("objects"), record.objects),
            (named("bytes"), record.bytes),
            (named("damaged_blocks"), record.damaged_blocks),
            (named("ended_seconds"), ended),
        ]
    }
}
