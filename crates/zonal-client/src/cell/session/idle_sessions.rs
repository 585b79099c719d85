//! Idle sessions: a client that uses nothing of a shard ends its session there, so that a shard has
//! sessions of its users only.
//!
//! A request may begin at the same time. It is counted before it checks whether the session is
//! open; the session is shut before requests are counted. So either the request waits and opens the
//! session again, or the session stays.

use super::{Link, RENEW_WAIT_MS};
use crate::cell::Cell;
use crate::cell::call::Call;
use crate::cell::owner::SessionOwner;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_types::{Codec, Instant, SessionId, ShardId};
use zonal_wire::{MetaReply, MetaRequest, Service};

/// How long a shard holds a poll without events, ms. Also the delay until it notices a client that
/// went away.
pub const POLL_WAIT_MS: u32 = 20_000;

/// Requests of a link, except polls for events.
#[derive(Debug, Default)]
pub(crate) struct LinkUsage {
    under_way: AtomicU64,
    /// Start of the last request, ns.
    last: AtomicU64,
}

/// Guard of a counted request.
pub(crate) struct InFlightRequest<'a>(Option<&'a LinkUsage>);

impl LinkUsage {
    /// Counts a request until the guard is dropped.
    pub(crate) fn begin(&self, request: &MetaRequest, now: Instant) -> InFlightRequest<'_> {
        if matches!(request, MetaRequest::PollEvents { .. }) {
            return InFlightRequest(None);
        }
        self.last.fetch_max(now.0, Ordering::Relaxed);
        self.under_way.fetch_add(1, Ordering::SeqCst);
        InFlightRequest(Some(self))
    }

    /// Notes a use that sends nothing.
    pub(crate) fn touch(&self, now: Instant) {
        self.last.fetch_max(now.0, Ordering::Relaxed);
    }

    fn is_idle(&self, now: Instant, ms: u64) -> bool {
        self.under_way.load(Ordering::SeqCst) == 0
            && Instant(self.last.load(Ordering::Relaxed)).plus_ms(ms) <= now
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.0 {
            of.under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl<N: Net> Cell<N> {
    /// Idle time after which a session may end, ms.
    #[must_use]
    pub fn leave_idle_ms(&self) -> u64 {
        self.options.leave_idle_ms
    }
}

impl<C: SessionOwner> Call<'_, C> {
    /// Ends an idle session through which nothing is held: no open or unwritten file, no lock, no
    /// message for the shard. [`crate::ClientOptions`] has the idle time.
    ///
    /// Call it between polls for events. True where there is no session now: do not poll until
    /// [`crate::transport::net::ClientNotice::Opened`].
    pub async fn leave_idle(&self, link: &Link) -> bool {
        let idle_ms = self.idle_ms();
        if !link.used.is_idle(self.cell().net.now(), idle_ms) || !self.holds_nothing(link) {
            return false;
        }
        let Some(_opening) = link.opening.try_lock() else {
            return false;
        };
        let header = {
            let mut state = lock(&link.state);
            if !state.is_open {
                return true;
            }
            state.is_open = false;
            let mut header = self.header(Service::Meta);
            (header.session, header.epoch) = (state.session, state.epoch);
            header.identity = self.cell().identity_at(link);
            header
        };
        if !link.used.is_idle(self.cell().net.now(), idle_ms) || !self.holds_nothing(link) {
            lock(&link.state).is_open = true;
            return false;
        }
        {
            let mut state = lock(&link.state);
            state.listening = false;
            state.held_in = SessionId(0);
        }
        // Leases return to the shard: nothing cached may stay, and no reply in flight may be
        // cached.
        link.count_event();
        link.renewal.end();
        self.forget_granted();
        let request = MetaRequest::CloseSession;
        let body = request.to_bytes();
        let sent = self.send(link, header, &body, request.name(), 0);
        // Without an answer the session may remain: then the next opening resumes it.
        if let Ok(MetaReply::Done) = sent.await {
            zonal_types::mark!(SessionLeft);
        }
        true
    }

    /// Idle time after which a session may end: more where its leases would be lost.
    fn idle_ms(&self) -> u64 {
        let options = &self.cell().options;
        if self.caches_leases() {
            options.leave_idle_ms.max(options.keep_leases_ms)
        } else {
            options.leave_idle_ms
        }
    }

    /// How long a shard may hold the next poll for events, ms. Briefly where it renews leases: a
    /// request may get one at any time.
    #[must_use]
    pub fn poll_wait_ms(&self, link: &Link) -> u32 {
        let options = &self.cell().options;
        let (now, kept_ms) = (self.cell().net.now(), options.keep_leases_ms);
        if self.cell().caches() && !link.used.is_idle(now, kept_ms) {
            return RENEW_WAIT_MS;
        }
        let longest = u32::try_from(options.leave_idle_ms).unwrap_or(POLL_WAIT_MS);
        POLL_WAIT_MS.min(longest)
    }

    fn holds_nothing(&self, link: &Link) -> bool {
        link.shard != ShardId(0) && link.has_nothing_to_tell() && self.holds_nothing_at(link.shard)
    }
}
