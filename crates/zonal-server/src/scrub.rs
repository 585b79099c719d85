//! Scrub: reads everything that a target or a shard stores and compares it with its checksums,
//! slowly.
//!
//! One thread a store, asleep until a pass is begun by a command or is due. It walks the chunks of
//! the index in key order, a few at a time, and plans each read as any read is planned, so that no
//! lock is held over a read and a place that was reused meanwhile is planned again: the same plan
//! that fails twice is damage. After each chunk it sleeps as long as the rate wants. A target's
//! bytes come from the medium. Of a shard every entry of the store is read, and with it every block
//! of the index in use; what the system caches of the index is not read again from the medium.
//!
//! Lock order: `Scrub::control`, then what [`Trouble`](crate::trouble::Trouble) locks.

mod chunk;
mod pass;

use crate::meta_role::MetaRole;
use crate::scrub_record::{Pace, SCRUB_KEY, SHARD_SCRUB_KEY, ScrubRecord};
use crate::storage_role::Storage;
use crate::trouble::Trouble;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zonal_disk::Engine;
use zonal_object::index_walk;
use zonal_wire::{ScrubReport, ScrubState};

struct Control {
    record: ScrubRecord,
    stopping: bool,
}

/// What is scrubbed.
#[derive(Clone)]
pub(crate) enum Subject {
    Target(Arc<Storage>),
    Shard(Arc<MetaRole>),
}

impl Subject {
    fn engine(&self) -> &Arc<Engine> {
        match self {
            Self::Target(storage) => &storage.engine,
            Self::Shard(shard) => shard.engine(),
        }
    }

    fn trouble(&self) -> &Trouble {
        match self {
            Self::Target(storage) => &storage.trouble,
            Self::Shard(shard) => shard.trouble(),
        }
    }

    fn key(&self) -> &'static [u8] {
        match self {
            Self::Target(_) => &SCRUB_KEY,
            Self::Shard(_) => &SHARD_SCRUB_KEY,
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
pub struct Scrub {
    subject: Subject,
    pace: Pace,
    control: Mutex<Control>,
    wake: Condvar,
}

impl Scrub {
    /// Starts the thread; a pass that was under way goes on.
    ///
    /// # Errors
    /// Where the system refuses a thread.
    pub(crate) fn start(
        subject: Subject,
        pace: Pace,
    ) -> std::io::Result<(Arc<Self>, JoinHandle<()>)> {
        let (engine, key) = (subject.engine(), subject.key());
        let record = ScrubRecord::load(&**engine, key, pace).unwrap_or_else(|code| {
            tracing::warn!(%code, "what was known of the scrub cannot be read; it begins anew");
            let mut record = ScrubRecord::new(pace);
            record.begin(pace.rate, pace);
            record
        });
        // When the next one is due must not begin anew with each start.
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

    /// Keeps the record; durable with the next checkpoint, which is asked for.
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

    /// Ends the thread; what was reached is kept.
    pub(crate) fn stop_thread(&self) {
        self.lock().stopping = true;
        self.wake.notify_all();
    }

    /// Begins a pass, or goes on with a stopped one. One that is under way gets the new rate.
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

    /// Stops the pass under way, if one is; it keeps its place.
    pub(crate) fn pause(&self) {
        self.change(|record| {
            if record.state == ScrubState::Running {
                record.state = ScrubState::Stopped;
            }
        });
    }

    /// How far it is.
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

    /// Figures for people.
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
