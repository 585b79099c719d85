//! Invariant 9, as for replies of shards: a request is answered by its deadline, and a reply leaves
//! as soon as its record is logged: it waits for no other server. Times in which processes stood
//! still do not count.

use crate::clock::VirtualClock;
use crate::net::Task;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use zonal_types::Instant;
use zonal_wire::{Header, MetaReply};

/// How late a reply may be, beside the drift of clocks, ms.
const SLACK_MS: u64 = 100;

/// What came too late, in words.
#[derive(Default)]
pub struct Promptness(RefCell<Vec<String>>);

/// A request that is watched.
pub struct WatchedRequest<'a> {
    promptness: &'a Promptness,
    clock: VirtualClock,
    pauses: u64,
    /// When it must have been answered.
    deadline: Option<Instant>,
    /// When its record was logged.
    logged: Cell<Option<Instant>>,
}

impl Promptness {
    /// A request has arrived.
    pub fn asked(&self, clock: &VirtualClock, header: &Header) -> WatchedRequest<'_> {
        let ms = u64::from(header.deadline_ms);
        let deadline = (ms > 0).then(|| clock.now().plus_ms(ms + ms / 25 + SLACK_MS));
        WatchedRequest {
            promptness: self,
            clock: clock.clone(),
            pauses: clock.pauses(),
            deadline,
            logged: Cell::new(None),
        }
    }

    /// What was noted since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}

impl WatchedRequest<'_> {
    /// Runs the request; `appended` counts the records of its process.
    pub async fn watch(&self, task: &mut Task<MetaReply>, appended: &Cell<u64>) -> MetaReply {
        poll_fn(|context| {
            let before = appended.get();
            let polled = task.as_mut().poll(context);
            if appended.get() > before {
                self.logged.set(Some(self.clock.now()));
            }
            polled
        })
        .await
    }

    /// It is answered.
    pub fn answered(&self, operation: &str) {
        if self.clock.pauses() != self.pauses {
            return;
        }
        let now = self.clock.now();
        let mut told = self.promptness.0.borrow_mut();
        if self.deadline.is_some_and(|deadline| deadline < now) {
            told.push(format!(
                "invariant 9: {operation} is answered after its deadline"
            ));
        }
        let waited = self.logged.get().map_or(0, |logged| now.ms_since(logged));
        if waited > SLACK_MS {
            told.push(format!(
                "invariant 9: the reply to {operation} leaves {waited} ms after its record was logged"
            ));
        }
    }
}
