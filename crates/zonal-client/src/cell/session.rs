//! Sessions at shards: opens them, reclaims held state at a restarted shard, and handles their
//! loss.
//!
//! [`link`] is the state at one shard; [`request`] sends requests in a session, [`attempt`] one
//! attempt to the replica that leads.

pub(crate) mod abandoned_appends;
mod attempt;
mod identity;
mod idle_sessions;
mod lease_renewal;
mod link;
mod parallel_requests;
mod request;

pub use idle_sessions::POLL_WAIT_MS;
pub(crate) use lease_renewal::{LeaseTerm, RENEW_WAIT_MS};
pub use link::Link;
pub(crate) use link::{AppendInFlight, CloseRequest, Links, Slot, SlotPlace};
pub(crate) use parallel_requests::is_no_answer;
pub(crate) use request::RequestStart;

use crate::cell::call::Call;
use crate::cell::owner::SessionOwner;
use crate::transport::mutex::lock;
use crate::transport::net::{ClientNotice, Net};
use crate::transport::retry::{RETRY_MS, is_passing};
use std::collections::BTreeSet;
use zonal_basics::BackOff;
use zonal_types::{Codec, ErrorCode, Incarnation, Ino, Instant, SessionId, kept_of};
use zonal_wire::{MetaReply, MetaRequest, Service};

impl<C: SessionOwner> Call<'_, C> {
    /// Handles a session that the shard does not know: drops everything cached under it and ends
    /// the incarnation. The next request opens another session.
    fn lose_session(&self, link: &Link, session: SessionId, incarnation: Incarnation) {
        self.begin_anew(incarnation);
        // So that no reply in flight is cached: its lease is void.
        link.count_event();
        link.renewal.end();
        self.forget_granted();
        let has_locks = !self.locks_at(link.shard).is_empty();
        let mut state = lock(&link.state);
        if state.session == session {
            if !has_locks {
                // Locks that come with a move later were got elsewhere.
                state.held_in = SessionId(0);
            }
            state.session = SessionId(0);
            state.is_open = false;
            state.listening = false;
        }
        drop(state);
        self.session_is_lost();
    }

    /// Opens the session if it is not open.
    pub(crate) async fn open_session(
        &self,
        link: &Link,
        deadline: Instant,
    ) -> Result<(), ErrorCode> {
        if link.is_open() {
            return Ok(());
        }
        let _guard = self.wait_for(&link.opening).await?;
        let mut pause = BackOff::new(RETRY_MS);
        let mut is_old = false;
        // For a shard that has no owner in any map.
        let mut failed = ErrorCode::TimedOut;
        while !link.is_open() {
            match self.open_once(link, &mut is_old).await {
                Ok(()) => {
                    self.cell().net.tell(ClientNotice::Opened(link.shard));
                    break;
                }
                Err(ErrorCode::NotOwner | ErrorCode::StaleEpoch) => self.try_refresh_map().await?,
                Err(code) if !is_passing(code) => return Err(code),
                Err(passing) => failed = passing,
            }
            if self.is_over(deadline) {
                return Err(failed);
            }
            self.sleep(pause.next_ms()).await;
        }
        Ok(())
    }

    /// Opens the session and reclaims held state; only then it counts as open. `is_old`: an earlier
    /// attempt resumed it.
    async fn open_once(&self, link: &Link, is_old: &mut bool) -> Result<(), ErrorCode> {
        let request = self.opening_request();
        let mut header = self.header(Service::Meta);
        let identity = self.cell().identity();
        header.identity = identity;
        match self
            .send(link, header, &request.to_bytes(), request.name(), 0)
            .await
        {
            Ok(MetaReply::Session {
                session,
                boot,
                epoch,
                resumed,
                ..
            }) => {
                let mut state = lock(&link.state);
                state.session = session;
                state.epoch = epoch;
                state.boot = boot;
                state.is_untold = false;
                state.kept = kept_of(boot);
                state.acked = 0;
                link.open_as(identity.incarnation);
                *is_old |= resumed;
                if !resumed {
                    self.cell()
                        .net
                        .tell(ClientNotice::Session(link.shard, identity));
                    state.sequences.fill(0);
                    link.forget_appends();
                }
            }
            Ok(MetaReply::Failed { code }) if code.0 == ErrorCode::Fenced => {
                self.begin_anew(identity.incarnation);
                return Err(ErrorCode::NotReady);
            }
            Ok(MetaReply::Failed { code }) => return Err(code.0),
            Ok(_other) => return Err(ErrorCode::Protocol),
            Err(code) => return Err(code),
        }
        match self.reclaim(link, *is_old).await {
            // The session opens even if a lock was lost.
            Ok(()) | Err(ErrorCode::UnknownLease) => {
                link.acknowledge(identity.incarnation);
                let mut state = lock(&link.state);
                state.held_in = state.session;
                state.is_open = true;
                Ok(())
            }
            Err(ErrorCode::UnknownSession | ErrorCode::Fenced) => Err(ErrorCode::NotReady),
            Err(code) => Err(code),
        }
    }

    /// Tells a new or restarted session what this client still holds there.
    ///
    /// `always`: sends the message also where nothing is held. A restarted shard keeps an old
    /// session's opens until it gets it.
    ///
    /// A restarted shard has forgotten reservations, and assigns places again after this message.
    /// So places of appends in flight come first.
    async fn reclaim(&self, link: &Link, always: bool) -> Result<(), ErrorCode> {
        if self.cell().map_is_old() {
            // Partitions may have moved: what is held there is told to another shard. A shard that
            // has got one refuses what is told by an older map, so a silent manager costs little.
            self.check_map().await;
        }
        let mut places = lock(&link.appending).clone();
        // Lent ends first: where another client got one, it also got the places behind it.
        places.sort_by_key(|(_ino, place)| place.length);
        let mut lost = BTreeSet::new();
        for append in places {
            if lost.contains(&append.0) {
                link.lose_append(append);
                continue;
            }
            let appends = vec![self.place_to_tell(append)];
            match self
                .tell_held(link, MetaRequest::ReclaimAppends { appends })
                .await
            {
                Ok(_done) => {}
                // The place is gone and must not be claimed again; its append learns of it by
                // itself.
                Err(ErrorCode::UnknownLease) => {
                    link.lose_append(append);
                    if append.1.length == 0 {
                        lost.insert(append.0);
                    }
                }
                Err(code) => return Err(code),
            }
        }
        // Locks of an expired session: others may have held them since. A restarted shard may not
        // know of that.
        let is_same = {
            let state = lock(&link.state);
            // Session 0: the session was lost meanwhile, and the next opening checks again.
            [SessionId(0), state.held_in].contains(&state.session) || state.held_in == SessionId(0)
        };
        if !is_same {
            let held = self.locks_at(link.shard).into_iter();
            let lost: BTreeSet<Ino> = held.map(|(ino, _range)| ino).collect();
            lost.into_iter().for_each(|ino| self.forfeit(ino));
        }
        let opens = {
            let _counting = link.ending_open();
            let mut opens = self.opens_at(link.shard);
            // Their closes will be executed after this.
            // A file that has moved is closed for the shard that has it now.
            let map = self.cell().map();
            let is_here = |ino: &Ino| {
                let owner = map.shard_of(ino.partition());
                owner.is_none_or(|owner| owner.id == link.shard)
            };
            opens.extend(link.tell_ending().into_iter().filter(is_here));
            opens
        };
        let locks = self.locks_at(link.shard);
        if !always && opens.is_empty() && locks.is_empty() {
            return Ok(());
        }
        zonal_types::mark!(Reclaimed);
        let told = self.tell_held(link, MetaRequest::Reclaim { opens, locks });
        if let MetaReply::Reclaimed { lost } = told.await? {
            lost.into_iter().for_each(|ino| self.forfeit(ino));
        }
        self.outdate_files_at(link);
        Ok(())
    }

    async fn tell_held(&self, link: &Link, request: MetaRequest) -> Result<MetaReply, ErrorCode> {
        let mut header = self.header(Service::Meta);
        {
            let state = lock(&link.state);
            header.session = state.session;
            header.epoch = state.epoch;
            header.identity = self.cell().identity_at(link);
        }
        let failed = match self
            .send(link, header, &request.to_bytes(), request.name(), 0)
            .await
        {
            Ok(MetaReply::Failed { code }) => code.0,
            Ok(done) => return Ok(done),
            Err(code) => code,
        };
        if failed != ErrorCode::UnknownLease {
            lock(&link.state).is_untold = true;
        }
        Err(failed)
    }

    /// Reclaims held state where the shard has restarted.
    pub(crate) async fn note_boot(&self, link: &Link, boot: u64) -> Result<(), ErrorCode> {
        let changed = {
            let mut state = lock(&link.state);
            let changed = state.boot != boot || state.is_untold;
            state.boot = boot;
            state.is_untold = false;
            state.kept = kept_of(boot);
            changed
        };
        if !changed {
            return Ok(());
        }
        match self.reclaim(link, true).await {
            // Partitions have moved: what is held there is told to another shard.
            Err(ErrorCode::NotOwner | ErrorCode::StaleEpoch) => {
                self.try_refresh_map().await?;
                lock(&link.state).is_untold = false;
                self.reclaim(link, true).await
            }
            told => told,
        }
    }

    /// Opens sessions at shards that have got partitions. After a move they wait to hear of what is
    /// held here, even of nothing. Looks only where the map has changed.
    pub(crate) async fn tell_new_owners(&self) {
        if self.cell().map_is_old() {
            self.check_map().await;
        }
        if !self.cell().take_map_change() {
            return;
        }
        let mut shards = self.shards_held();
        shards.extend(self.cell().take_new_owners());
        for shard in shards {
            let link = self.cell().link(shard);
            if !link.is_open() {
                // Where it does not answer, the next use of the file opens the session.
                self.open_session(&link, self.cell().net.now()).await.ok();
            }
        }
    }
}
