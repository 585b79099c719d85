//! Requests to shards: choice of the link, slots for changes, retries until the deadline, and how
//! long a reply may be cached.

use super::link::{Link, SlotPlace};
use crate::cell::Cell;
use crate::cell::call::Call;
use crate::cell::owner::SessionOwner;
use crate::cell::unsynced_changes::touched;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::operation::OperationEnds;
use crate::transport::retry::{RETRY_MS, is_passing, late};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use zonal_basics::BackOff;
use zonal_types::{Codec, ErrorCode, Ino, Instant, PartitionId, ShardId};
use zonal_wire::{Entry, Header, MetaReply, MetaRequest, NO_SLOT, Service};

/// Start of a request, which limits how long its reply may be cached.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestStart {
    at: Instant,
    events: u64,
    listening: bool,
}

impl<N: Net> Cell<N> {
    /// Notes the start of a request whose reply may be cached.
    pub(crate) fn asking(&self, link: &Link) -> RequestStart {
        RequestStart {
            at: self.net.now(),
            events: link.events.load(Ordering::SeqCst),
            listening: lock(&link.state).listening,
        }
    }

    /// Remaining time of a lease, ms; 0 where an event came since the request.
    pub(crate) fn granted_ms(&self, link: &Link, asked: RequestStart, granted_ms: u32) -> u32 {
        if !asked.listening || link.events.load(Ordering::SeqCst) != asked.events {
            return 0;
        }
        let passed = u32::try_from(self.net.now().ms_since(asked.at)).unwrap_or(u32::MAX);
        granted_ms.saturating_sub(passed)
    }

    /// As [`Self::granted_ms`]; 0 where caching is off.
    pub(crate) fn cache_ms(&self, link: &Link, asked: RequestStart, granted_ms: u32) -> u32 {
        if self.caches() {
            self.granted_ms(link, asked, granted_ms)
        } else {
            0
        }
    }

    /// How long the kernel may trust an answer, ms: the remaining lease, or the time configured for
    /// a tree that nobody else writes.
    pub(crate) fn kernel_ms(&self, link: &Link, asked: RequestStart, granted_ms: u32) -> u32 {
        let left = self.cache_ms(link, asked, granted_ms);
        if link.events.load(Ordering::SeqCst) == asked.events {
            left.max(self.options.exclusive_ms)
        } else {
            left
        }
    }

    /// Limits the leases of an entry to what the kernel may trust.
    pub(crate) fn limit_leases(&self, link: &Link, asked: RequestStart, entry: &mut Entry) {
        entry.entry_ms = self.kernel_ms(link, asked, entry.entry_ms);
        entry.attr_ms = self.kernel_ms(link, asked, entry.attr_ms);
    }

    /// As [`Call::reach`], by the known map.
    pub(crate) fn link_of(&self, ino: Ino) -> Result<std::sync::Arc<Link>, ErrorCode> {
        self.link_to_partition(ino.partition())
    }

    fn link_to_partition(&self, partition: PartitionId) -> Result<std::sync::Arc<Link>, ErrorCode> {
        let shard = self.map().shard_of(partition).map(|shard| shard.id);
        Ok(self.link(shard.ok_or(ErrorCode::Stale)?))
    }

    /// The link to a shard.
    pub(crate) fn link(&self, shard: ShardId) -> std::sync::Arc<Link> {
        let mut links = lock(&self.links);
        links
            .entry(shard)
            .or_insert_with(|| std::sync::Arc::new(Link::new(shard)))
            .clone()
    }

    /// All links in use.
    pub(crate) fn all_links(&self) -> Vec<std::sync::Arc<Link>> {
        lock(&self.links).values().cloned().collect()
    }
}

impl<C: SessionOwner> Call<'_, C> {
    /// The link to the shard that owns an inode. A partition that the map lacks is looked up in a
    /// newer map.
    pub(crate) async fn reach(&self, ino: Ino) -> Result<std::sync::Arc<Link>, ErrorCode> {
        self.reach_partition(ino.partition()).await
    }

    /// As [`Self::reach`], for a partition.
    pub(crate) async fn reach_partition(
        &self,
        partition: PartitionId,
    ) -> Result<std::sync::Arc<Link>, ErrorCode> {
        // Shards get partitions as they get directories.
        if self.cell().map().shard_of(partition).is_none() {
            self.try_refresh_map().await?;
        }
        self.cell().link_to_partition(partition)
    }

    /// Ends the session at a shard with one attempt. If that fails the session expires, and nobody
    /// waits for a server that is gone.
    pub(crate) async fn close_session(&self, link: &Link) {
        let at_once = self.cell().net.now();
        let asked = self.ask(link, &MetaRequest::CloseSession, None, at_once);
        asked.await.ok();
    }

    /// Sends a request, in a slot where it is a change, and retries it until the deadline. `Failed`
    /// replies become errors.
    pub(crate) async fn ask(
        &self,
        link: &Link,
        request: &MetaRequest,
        mut place: Option<&mut SlotPlace>,
        deadline: Instant,
    ) -> Result<MetaReply, ErrorCode> {
        let body = request.to_bytes();
        let mut pause = BackOff::new(RETRY_MS);
        let touched = touched(request);
        let _under_way = link.used.begin(request, self.cell().net.now());
        let forfeits = self.forfeits_under(request);
        loop {
            self.open_session(link, deadline).await?;
            if self.forfeits_under(request) != forfeits {
                // The request carries bytes that were written under locks which others have got.
                return Err(ErrorCode::Io);
            }
            let header = self.header_at(link, place.as_deref_mut());
            let kept = link.kept();
            let wait = if let MetaRequest::PollEvents { wait_ms, .. } = request {
                u64::from(*wait_ms)
            } else {
                0
            };
            let failed = match self.send(link, header, &body, request.name(), wait).await {
                Ok(MetaReply::Failed { code }) => code.0,
                Ok(reply) => {
                    if request.is_mutation() || touched[0].is_some() {
                        lock(&link.changes).note(touched, kept);
                    }
                    return Ok(reply);
                }
                Err(code) => code,
            };
            match failed {
                ErrorCode::UnknownSession => {
                    zonal_types::mark!(SessionLost);
                    self.lose_session(link, header.session, header.identity.incarnation);
                }
                ErrorCode::Fenced => {
                    let refused = header.identity.incarnation;
                    match self.renew(link, refused, false).await {
                        Err(code) if !is_passing(code) => return Err(code),
                        _told => {}
                    }
                }
                ErrorCode::StaleEpoch => self.try_refresh_map().await?,
                ErrorCode::NotOwner => {
                    self.try_refresh_map().await?;
                    self.take_epoch(link);
                }
                // The shard waits to hear what is open, perhaps from this very thread.
                ErrorCode::NotReady if matches!(request, MetaRequest::Close { .. }) => {
                    return Err(failed);
                }
                ErrorCode::Unreachable
                | ErrorCode::TimedOut
                | ErrorCode::NotReady
                | ErrorCode::Overloaded => {}
                other => return Err(other),
            }
            if self.is_over(deadline) {
                return Err(late(failed));
            }
            if matches!(failed, ErrorCode::Unreachable | ErrorCode::TimedOut) {
                // The server may be at another address now.
                self.check_map().await;
            }
            if failed == ErrorCode::NotOwner
                && let Some(owner) = self.other_owner(link, request)
            {
                let by = (owner, place.is_some());
                return self.ask_owner(link, by, request, deadline).await;
            }
            self.sleep(pause.next_ms()).await;
        }
    }

    /// The shard that has the request's inode by the present map, where that is not the link's.
    fn other_owner(&self, link: &Link, request: &MetaRequest) -> Option<ShardId> {
        let map = self.cell().map();
        let owner = map.shard_of(request.inode()?.partition())?.id;
        (owner != link.shard).then_some(owner)
    }

    /// Sends a request, which a shard has refused for good, to the shard that has its inode now.
    ///
    /// A place in a file belongs to the link: its caller asks again.
    fn ask_owner<'a>(
        &'a self,
        before: &'a Link,
        (owner, is_change): (ShardId, bool),
        request: &'a MetaRequest,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<MetaReply, ErrorCode>> + 'a>> {
        Box::pin(async move {
            if matches!(
                request,
                MetaRequest::AppendBegin { .. }
                    | MetaRequest::AppendAt { .. }
                    | MetaRequest::LendEnd { .. }
            ) {
                return Err(ErrorCode::NotOwner);
            }
            zonal_types::mark!(OwnerFollowed);
            // The caller must not cache the reply: the leases are another link's.
            before.count_event();
            let link = self.cell().link(owner);
            let slot = match is_change {
                true => Some(self.take_slot(&link).await?),
                false => None,
            };
            let mut place = slot.as_ref().map(|slot| SlotPlace::new(slot.index));
            self.ask(&link, request, place.as_mut(), deadline).await
        })
    }

    /// The header of the next attempt at a shard, with the next number of its slot.
    fn header_at(&self, link: &Link, place: Option<&mut SlotPlace>) -> Header {
        let mut header = self.header(Service::Meta);
        let mut state = lock(&link.state);
        header.session = state.session;
        header.epoch = state.epoch;
        header.identity = self.cell().identity_at(link);
        header.slot = NO_SLOT;
        if let Some(place) = place {
            header.slot = place.index;
            header.sequence = state.next_sequence(place);
        }
        header
    }

    /// How often the file lost locks, for a request that carries its bytes.
    fn forfeits_under(&self, request: &MetaRequest) -> u64 {
        match request {
            MetaRequest::ReportWrite {
                ino,
                inline: Some(_),
                ..
            } => self.forfeits_of(*ino),
            _other => 0,
        }
    }

    /// Takes the epoch in the map. A server's hint may name an owner that no map has.
    fn take_epoch(&self, link: &Link) {
        if let Some(shard) = self.cell().map().shard(link.shard) {
            lock(&link.state).epoch = shard.epoch;
        }
    }

    /// Deadline of retries of a request that begins now; that of an endless operation never comes.
    pub(crate) fn deadline(&self) -> Instant {
        if self.context().is_endless() {
            return Instant(u64::MAX);
        }
        let own = self
            .cell()
            .net
            .now()
            .plus_ms(self.cell().options.deadline_ms);
        let ends = self.context().ends();
        ends.map_or(own, |ends| own.min(ends.all))
    }

    /// Whether no retry may follow: the deadline has passed, or the operation's end is nearer.
    pub(crate) fn is_over(&self, deadline: Instant) -> bool {
        let (now, ends) = (self.cell().net.now(), self.context().ends());
        let is_over = ends.is_some_and(|ends| now >= ends.repeats);
        if is_over && now < deadline {
            zonal_types::mark!(OperationOver);
        }
        is_over || now >= deadline
    }

    /// How long one attempt waits, at most until the end of the operation, ms.
    pub(super) fn attempt_ms(&self) -> u64 {
        let left = |ends: OperationEnds| ends.all.ms_since(self.cell().net.now()).max(1);
        let left = self.context().ends().map_or(u64::MAX, left);
        self.cell().options.attempt_ms.min(left)
    }

    /// Header fields that all requests of this operation share.
    pub(crate) fn header(&self, service: Service) -> Header {
        let map = self.cell().map();
        let mut header = Header::request(service, map.cell);
        header.map_version = map.version;
        header.trace = self.context().trace();
        header.identity = self.cell().identity();
        header.deadline_ms = u32::try_from(self.attempt_ms()).unwrap_or(u32::MAX);
        header
    }
}
