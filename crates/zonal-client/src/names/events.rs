//! Events that shards send to this client.

use crate::cell::SessionOwner;
use crate::cell::session::Link;
use crate::client::{Client, ClientCall};
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::retry::is_passing;
use zonal_types::{ErrorCode, Instant};
use zonal_wire::{Event, MetaReply, MetaRequest};

/// Events of one poll.
#[derive(Debug)]
pub struct PolledEvents {
    /// In order.
    pub events: Vec<Event>,
    /// The shard was restarted: everything cached of it may be stale.
    pub restarted: bool,
}

impl PolledEvents {
    fn of(numbered: Vec<(u64, Event)>, restarted: bool) -> Self {
        let events = numbered.into_iter().map(|(_seq, event)| event).collect();
        Self { events, restarted }
    }

    /// Nothing has happened.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.events.is_empty() && !self.restarted
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Acknowledges the events of the last poll, then waits for more. Call it repeatedly from one
    /// place per shard, and carry the events out between the calls.
    ///
    /// # Errors
    /// A shard that does not answer; nothing is cached until a poll succeeds again.
    pub async fn poll_events(&self, link: &Link, wait_ms: u32) -> Result<PolledEvents, ErrorCode> {
        self.another().settle_doubts(false).await;
        self.another().send_closes(link).await.ok();
        let (boot, acked) = link.polled();
        let request = MetaRequest::PollEvents {
            boot,
            acked,
            wait_ms,
        };
        // The shard queues events from the session's start, so caching may begin with the first
        // poll.
        link.set_listening(true);
        let sent = self.net.now();
        let boot_before = link.boot();
        let reply = match self.meta(link, &request).await {
            Ok(reply) => reply,
            Err(code) => {
                link.set_listening(false);
                if is_passing(code) {
                    self.settle_doubts(true).await;
                }
                return Err(code);
            }
        };
        let MetaReply::Events {
            boot,
            lease_ms,
            mut events,
        } = reply
        else {
            return Err(ErrorCode::Protocol);
        };
        if boot == boot_before && boot != link.boot() {
            // The shard was restarted, and has heard what this client holds, while the reply was on
            // its way. The reply's grants are void, and its numbers belong to the earlier boot.
            self.forget_boot(link).await;
            events.retain(|(_seq, event)| !matches!(event, Event::LockGranted { .. }));
            return Ok(PolledEvents::of(events, true));
        }
        self.note_boot(link, boot).await?;
        self.tell_new_owners().await;
        let life = link.life();
        // Another request may have heard of the restart before this poll did.
        let mut restarted = link.note_polled(boot);
        if restarted {
            self.forget_boot(link).await;
        }
        let mut granted = Vec::new();
        for (seq, event) in &events {
            link.count_event();
            self.forget_named(event);
            link.ack(*seq);
            if let Event::LockGranted { waiter, .. } = event {
                let noted = lock(&self.locks).grant(*waiter);
                granted.extend(noted.map(|noted| (*waiter, noted)));
            }
            self.update_file(link, event);
        }
        if link.life() != life || life.0 != boot {
            // As above, while the grants were noted: the restarted shard may have heard what this
            // client holds without them.
            let mut locks = lock(&self.locks);
            for (waiter, noted) in granted {
                locks.ungrant(waiter, noted);
            }
            events.retain(|(_seq, event)| !matches!(event, Event::LockGranted { .. }));
            restarted = true;
        }
        if !restarted {
            self.note_renewal(link, sent, lease_ms);
        }
        Ok(PolledEvents::of(events, restarted))
    }

    /// Forgets everything that the shard granted before its restart.
    async fn forget_boot(&self, link: &Link) {
        link.count_event();
        self.forget_granted();
        self.give_up_leases(link).await;
    }

    /// Brings an open file up to date with an event about it.
    fn update_file(&self, link: &Link, event: &Event) {
        match event {
            Event::FileTruncated { ino } => {
                if let Some(file) = self.file(*ino) {
                    file.state().outdate();
                }
            }
            Event::EndRecalled { ino } => self.end_recalled(link, *ino),
            Event::LockGranted { .. } | Event::Invalidate { .. } | Event::RecallLease { .. } => {}
        }
    }

    /// Forgets every cached entry that an event names, after the event was counted: their leases
    /// have ended.
    fn forget_named(&self, event: &Event) {
        let Event::Invalidate {
            entries,
            inodes,
            data,
        } = event
        else {
            return;
        };
        self.inode_cache.forget_named(*entries, inodes, *data);
        for ino in inodes.iter().chain([entries]) {
            self.doubt_privileges(*ino);
        }
    }

    /// Notes that the poll sent at `sent` has renewed the session's leases. After a gap they are
    /// void: forgotten before the renewal counts.
    fn note_renewal(&self, link: &Link, sent: Instant, lease_ms: u32) {
        if lease_ms == 0 {
            return;
        }
        if link.renewal.has_gap(self.net.now()) {
            self.inode_cache.forget_leased();
        }
        link.renewal.renew(sent, lease_ms);
    }

    /// Drops the kernel's caches after a restart of the shard, and tells the shard so.
    async fn give_up_leases(&self, link: &Link) {
        if self.drop_cached() {
            // A shard that does not hear of it waits until the leases have expired.
            self.meta(link, &MetaRequest::DropLeases).await.ok();
        }
    }
}

impl<N: Net> Client<N> {
    /// The link to a shard, for `poll_events`.
    #[must_use]
    pub fn link_to(&self, shard: zonal_types::ShardId) -> std::sync::Arc<Link> {
        self.link(shard)
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Reports traffic, sends gathered closes and flushes old writes; true where work remains.
    pub async fn keep_house(&self) -> bool {
        let mut has_late = self.return_ends().await;
        has_late |= self.report_traffic().await;
        for link in self.all_links() {
            self.another().send_closes(&link).await.ok();
            has_late |= link.closes() > 0;
            has_late |= self.send_given_up(&link).await;
        }
        has_late |= self.send_late_releases().await;
        self.another().send_touches().await;
        let has_gathered = self.flush_aged().await.is_some();
        // Closes of files that were flushed late follow soon.
        has_late |= self.all_links().iter().any(|link| link.closes() > 0);
        has_late |= self.has_traffic_to_report();
        has_gathered || has_late
    }

    /// Flushes everything and ends the sessions.
    ///
    /// # Errors
    /// The last failure of a flush.
    pub async fn close(&self) -> Result<(), ErrorCode> {
        let mut failed = None;
        for file in self.all_files() {
            if let Err(code) = self.another().flush(&file).await {
                failed = Some(code);
            }
        }
        self.another().send_touches().await;
        self.report_traffic().await;
        for link in self.all_links() {
            if link.is_open() {
                self.another().close_session(&link).await;
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
