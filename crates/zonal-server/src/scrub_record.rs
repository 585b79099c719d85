//! Scrub record: the progress of a target's or shard's scrub, in its own store under a key that
//! belongs to the server.
//!
//! It is written without a log record: the next checkpoint makes it durable. After a kill before
//! that, the scrub continues from an earlier position.

use crate::clock;
use zonal_types::describe::{Described, Field};
use zonal_types::{Blob, Codec, ErrorCode, KvChange, KvRead, Timestamp, codec_struct};
use zonal_wire::{Damaged, ScrubState};

/// Key of a target's record: behind all keys of the target itself.
pub const SCRUB_KEY: [u8; 1] = [0x80];
/// Key of a shard's record: behind all keys of the shard and the manager.
pub const SHARD_SCRUB_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf2];
/// Version of the record.
const FORMAT: u8 = 1;

/// Rate and period of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubPace {
    /// Bytes a second.
    pub rate: u64,
    /// Time from the end of a pass to the next, in seconds; 0: only on command.
    pub period_seconds: u64,
}

codec_struct! {
    /// The record.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ScrubRecord {
        format: u8,
        state: ScrubState,
        /// Bytes a second of this pass.
        rate: u64,
        /// When the pass began and when it ended (0: not yet).
        started: Timestamp,
        ended: Timestamp,
        /// When the next pass is due; 0: never.
        due: Timestamp,
        /// Key of the index at which the pass continues; empty: from the start.
        next: Blob,
        objects: u64,
        bytes: u64,
        damaged_blocks: u64,
        damaged: Vec<Damaged>,
    }
}

impl ScrubRecord {
    /// The record of a store that was never scrubbed.
    pub fn new(pace: ScrubPace) -> Self {
        Self {
            format: FORMAT,
            state: ScrubState::Idle,
            rate: pace.rate,
            started: Timestamp::default(),
            ended: Timestamp::default(),
            due: due(pace),
            next: Blob::default(),
            objects: 0,
            bytes: 0,
            damaged_blocks: 0,
            damaged: Vec::new(),
        }
    }

    /// Loads the record from `kv`, or makes a new one.
    ///
    /// # Errors
    /// `Corrupt`, `WrongVersion`, those of `kv`.
    pub fn load(kv: &dyn KvRead, key: &[u8], pace: ScrubPace) -> Result<Self, ErrorCode> {
        let Some(bytes) = kv.get(key)? else {
            return Ok(Self::new(pace));
        };
        match bytes.first() {
            Some(&FORMAT) => {}
            Some(_) => return Err(ErrorCode::WrongVersion),
            None => return Err(ErrorCode::Corrupt),
        }
        let mut record = Self::from_bytes(&bytes).map_err(|_error| ErrorCode::Corrupt)?;
        if pace.period_seconds == 0 || record.due == Timestamp::default() {
            record.due = due(pace);
        }
        Ok(record)
    }

    /// The change that stores the record.
    pub fn change(&self, key: &[u8]) -> KvChange {
        KvChange::put(key.to_vec(), self.to_bytes())
    }

    /// Begins a pass.
    pub fn begin(&mut self, rate: u64, pace: ScrubPace) {
        *self = Self {
            state: ScrubState::Running,
            rate,
            started: clock::wall(),
            ..Self::new(pace)
        };
    }

    /// Ends the pass.
    pub fn end(&mut self, state: ScrubState, pace: ScrubPace) {
        self.state = state;
        self.ended = clock::wall();
        self.due = due(pace);
        self.next = Blob::default();
    }
}

/// A record in printable form.
#[must_use]
pub fn describe(value: &[u8]) -> Option<Described> {
    let record = ScrubRecord::from_bytes(value).ok()?;
    let damaged = record.damaged.iter().map(|found| {
        let (id, column) = (found.data_id.0, found.column.0);
        format!("{id}/{column} @{}: {}", found.offset, found.detail)
    });
    let shown = Described::new("scrub")
        .with("format", u64::from(record.format))
        .with("state", format!("{:?}", record.state).to_lowercase())
        .with("rate", record.rate)
        .with("started", record.started.seconds)
        .with("ended", record.ended.seconds)
        .with("due", record.due.seconds)
        .with("next", &record.next.0[..])
        .with("objects", record.objects)
        .with("bytes", record.bytes)
        .with("damaged_blocks", record.damaged_blocks)
        .with("damaged", damaged.collect::<Field>());
    Some(shown)
}

/// When the next pass is due.
fn due(pace: ScrubPace) -> Timestamp {
    let period = i64::try_from(pace.period_seconds).unwrap_or(i64::MAX);
    let now = clock::wall();
    match period {
        0 => Timestamp::default(),
        period => Timestamp {
            seconds: now.seconds.saturating_add(period),
            nanos: 0,
        },
    }
}
