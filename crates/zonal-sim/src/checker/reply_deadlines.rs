//! Deadlines of shards' replies (invariant 9).
//!
//! A shard replies by the request's deadline, and as soon as the request's record is logged,
//! without waiting for another server. Times in which processes stood still do not count.

use crate::clock::VirtualClock;
use crate::net::Task;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use zonal_types::Instant;
use zonal_wire::{Header, MetaReply};

/// Allowed delay of a reply, beside the drift of clocks, ms.
const SLACK_MS: u64 = 100;

/// Collects late replies, in words.
#[derive(Default)]
pub struct ReplyDeadlines(RefCell<Vec<String>>);

/// A request that is being served.
pub struct WatchedRequest<'a> {
    reply_deadlines: &'a ReplyDeadlines,
    clock: VirtualClock,
    pauses: u64,
    /// The latest time of its reply.
    deadline: Option<Instant>,
    /// The time at which its record was logged.
    logged: Cell<Option<Instant>>,
}

impl ReplyDeadlines {
    /// A request has arrived.
    pub fn asked(&self, clock: &VirtualClock, header: &Header) -> WatchedRequest<'_> {
        let ms = u64::from(header.deadline_ms);
        let deadline = (ms > 0).then(|| clock.now().plus_ms(ms + ms / 25 + SLACK_MS));
        WatchedRequest {
            reply_deadlines: self,
            clock: clock.clone(),
            pauses: clock.pauses(),
            deadline,
            logged: Cell::new(None),
        }
    }

    /// The late replies since the last call.
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

    /// The request has its reply.
    pub fn answered(&self, operation: &str) {
        if self.clock.pauses() != self.pauses {
            return;
        }
        let now = self.clock.now();
        let mut told = self.reply_deadlines.0.borrow_mut();
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
