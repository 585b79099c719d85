//! Departures: carries out moves of partitions that leave this shard, one after the other.
//!
//! The partition is copied page by page while it is served. Keys that change behind the copy's
//! place are sent again. Then the partition is frozen for the rest, for [`FREEZE_MS`] at most.
//! A page costs one call and, at the other shard, one record.

mod copy_progress;

pub(super) use copy_progress::{CopyProgress, MoveProgress};

use super::waits::Key;
use super::{ShardDriver, ShardHost};
use crate::joined_futures::either;
use zonal_basics::BackOff;
use zonal_meta::{Departure, MoveRefusal};
use zonal_types::{Blob, ErrorCode, Instant, KvChange, MapVersion, PartitionId, ShardId};
use zonal_wire::{MetaReply, MetaRequest, MoveStage, MoveStatus, MovedEntry};

/// How long a partition is closed to appends, or frozen, before the move gives up for now, ms.
pub const FREEZE_MS: u64 = 5_000;
/// How long the move waits for the time to freeze: longer than clients may take to tell what they
/// hold, ms.
const CLOSE_MS: u64 = 10_000;
/// Pause between two looks at a partition that is being closed, and between repeated calls, ms.
const LOOK_MS: u64 = 20;
/// How long a call is repeated while the other shard does not answer, ms.
const CALL_MS: u64 = 4_000;
/// Rounds in which changes are sent before the partition is closed, at most.
const ROUNDS: u32 = 64;
/// Changes that are left for the time after the freeze.
const FEW: usize = 64;
/// Keys removed by one record after the partition has left.
const CLEARED_AT_ONCE: usize = 512;
/// Sessions in one page.
const SESSIONS_AT_ONCE: usize = 1_024;

/// An attempt under way: what each of its messages names.
#[derive(Clone, Copy)]
struct CopyAttempt {
    partition: PartitionId,
    to: ShardId,
    number: u64,
}

impl<H: ShardHost> ShardDriver<H> {
    /// Carries out departures, and learns when an arrival is the shard's, until [`Self::stop`].
    pub async fn run_moves(&self) {
        let mut backoff = BackOff::new(self.pace.moves_ms);
        while !self.is_stopping() {
            let (wait, next, awaits_map) = {
                let mut state = self.lock();
                self.adopt_map(&mut state);
                let next = state.shard.departures().next();
                let awaits_map = state.shard.arrivals().next().is_some();
                (self.waits.register(Key::Moves), next, awaits_map)
            };
            let Some((partition, departure)) = next else {
                if awaits_map {
                    self.host.seek_map(self.map_version()).await;
                    self.drop_dead_arrivals().await;
                    let again = self.host.now().instant.plus_ms(backoff.next_ms());
                    either(wait, self.host.sleep_until(again)).await;
                } else {
                    backoff.reset();
                    wait.await;
                }
                continue;
            };
            let gone_on = match departure.stage {
                MoveStage::Copying => self.copy(partition, departure).await,
                MoveStage::Switching => self.switch(partition, departure).await,
                MoveStage::Clearing => self.clear(partition).await,
                MoveStage::Cancelled => self.tell_dropped(partition, departure).await,
            };
            self.lock().progress.failure = gone_on.err();
            if gone_on.is_ok() {
                backoff.reset();
                continue;
            }
            let again = self.host.now().instant.plus_ms(backoff.next_ms());
            either(wait, self.host.sleep_until(again)).await;
        }
    }

    /// Answers commands about departures.
    pub(super) async fn answer_about_departures(
        &self,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        let (reply, position) = {
            let mut state = self.lock();
            self.adopt_map(&mut state);
            let effect = match request {
                MetaRequest::MovePartition { partition, to } => {
                    match state.shard.order_move(self.host.store(), *partition, *to) {
                        Ok(effect) => effect,
                        Err(MoveRefusal::Code(code)) => return Err(code),
                        Err(MoveRefusal::Joined(partitions)) => {
                            return Ok(MetaReply::Joined { partitions });
                        }
                    }
                }
                MetaRequest::CancelMove { partition } => {
                    let known = state.shard.departure(*partition);
                    let known = known.ok_or(ErrorCode::NotFound)?;
                    match known.stage {
                        MoveStage::Copying => {
                            let stage = MoveStage::Cancelled;
                            let known = Departure { stage, ..known };
                            vec![state.shard.note_departure(*partition, known)]
                        }
                        MoveStage::Cancelled => Vec::new(),
                        MoveStage::Switching | MoveStage::Clearing => return Err(ErrorCode::Busy),
                    }
                }
                _ => {
                    let moves = self.moves_in(&state)?;
                    return Ok(MetaReply::Moves { moves });
                }
            };
            self.log(&mut state, effect, Vec::new())?;
            (MetaReply::Done, self.host.position())
        };
        self.host.settled(position).await?;
        self.waits.wake(Key::Moves);
        Ok(reply)
    }

    fn moves_in(&self, state: &super::State) -> Result<Vec<MoveStatus>, ErrorCode> {
        let mut moves = Vec::new();
        for (partition, known) in state.shard.departures() {
            let own = &state.progress;
            let is_own = own.partition == partition;
            moves.push(MoveStatus {
                partition,
                number: known.number,
                to: known.to,
                stage: known.stage,
                sent: if is_own { own.sent } else { 0 },
                inodes: zonal_meta::inodes_of(self.host.store(), partition)?,
                attempts: if is_own { own.attempts } else { 0 },
                failure: own.failure.filter(|_code| is_own).map(ErrorCode::number),
            });
        }
        Ok(moves)
    }

    async fn copy(&self, partition: PartitionId, before: Departure) -> Result<(), ErrorCode> {
        let done = self.try_copy(partition, before).await;
        let mut state = self.lock();
        state.copy = None;
        if done.is_err() {
            state.shard.thaw_partition(partition);
        }
        done
    }

    async fn try_copy(&self, partition: PartitionId, before: Departure) -> Result<(), ErrorCode> {
        let attempt = self.begin_attempt(partition, before).await?;
        self.call_until_ready(
            attempt.to,
            MetaRequest::MoveBegin {
                partition,
                from: self.id,
                number: attempt.number,
            },
        )
        .await?;
        self.lock().copy = Some(CopyProgress::new(partition));
        let mut page = 0;
        let mut rounds = 0;
        loop {
            let (entries, left) = self.next_entries(attempt)?;
            if !entries.is_empty() {
                page += 1;
                self.send_page(attempt, page, entries).await?;
            }
            rounds += u32::from(left.is_some());
            if left.is_some_and(|left| left <= FEW) || rounds > ROUNDS {
                break;
            }
        }
        let position = self.freeze(attempt).await?;
        let until = self.host.now().instant.plus_ms(FREEZE_MS);
        loop {
            let (entries, _left) = self.next_entries(attempt)?;
            if entries.is_empty() {
                break;
            }
            page += 1;
            self.send_in_freeze(attempt, page, entries, until).await?;
        }
        let (sessions, has_remote_data) = {
            let state = self.lock();
            let sessions = state.shard.sessions_to_move(partition);
            (sessions, state.shard.has_remote_data())
        };
        for some in sessions.chunks(SESSIONS_AT_ONCE) {
            let entries = some.iter().map(|(key, value)| MovedEntry {
                key: Blob(key.clone()),
                value: Some(Blob(value.clone())),
            });
            page += 1;
            self.send_in_freeze(attempt, page, entries.collect(), until)
                .await?;
        }
        // Records that the other shard has must not be taken back here.
        self.host.settled(position).await?;
        self.end_copy(attempt, page, has_remote_data).await?;
        self.note_complete(attempt, page).await
    }

    /// Notes a new attempt, whose number is higher than all before.
    async fn begin_attempt(
        &self,
        partition: PartitionId,
        before: Departure,
    ) -> Result<CopyAttempt, ErrorCode> {
        let wall = self.host.now().wall;
        let seconds = u64::try_from(wall.seconds).unwrap_or(0);
        let (number, position) = {
            let mut state = self.lock();
            let last = before.number.max(state.progress.number);
            let number = (seconds << 20).max(last + 1);
            if state.shard.departure(partition) != Some(before) {
                return Err(ErrorCode::Interrupted);
            }
            let departure = Departure { number, ..before };
            let effect = vec![state.shard.note_departure(partition, departure)];
            self.log(&mut state, effect, Vec::new())?;
            state.progress.begin(partition, number);
            (number, self.host.position())
        };
        self.host.settled(position).await?;
        Ok(CopyAttempt {
            partition,
            to: before.to,
            number,
        })
    }

    /// The next entries to send; with the number of changes left once all keys were scanned.
    fn next_entries(
        &self,
        attempt: CopyAttempt,
    ) -> Result<(Vec<MovedEntry>, Option<usize>), ErrorCode> {
        let mut state = self.lock();
        self.check_attempt(&state, attempt)?;
        let state = &mut *state;
        let copy = state.copy.as_mut().ok_or(ErrorCode::Interrupted)?;
        let entries = copy.next_page(self.host.store(), &mut state.progress.sent)?;
        Ok((entries, copy.changes_left()))
    }

    /// The attempt goes on: it was not cancelled, and this life of the shard began it.
    fn check_attempt(&self, state: &super::State, attempt: CopyAttempt) -> Result<(), ErrorCode> {
        let known = state.shard.departure(attempt.partition);
        let is_same = known.is_some_and(|known| {
            known.number == attempt.number && known.stage == MoveStage::Copying
        });
        match is_same && !self.is_stopping() {
            true => Ok(()),
            false => Err(ErrorCode::Interrupted),
        }
    }

    /// Waits until no append to the partition is under way, then freezes it.
    async fn freeze(&self, attempt: CopyAttempt) -> Result<H::Position, ErrorCode> {
        let mut until = self.host.now().instant.plus_ms(CLOSE_MS);
        let mut is_closing = false;
        loop {
            let now = self.host.now();
            {
                let mut state = self.lock();
                self.check_attempt(&state, attempt)?;
                if state.shard.close_partition(attempt.partition, now) {
                    state.shard.freeze_partition(attempt.partition);
                    return Ok(self.host.position());
                }
                if !is_closing && state.shard.is_closing(attempt.partition) {
                    is_closing = true;
                    until = now.instant.plus_ms(FREEZE_MS);
                }
                let woken = state.shard.take_woken();
                self.wake(&woken, false);
            }
            if now.instant >= until {
                return Err(ErrorCode::Busy);
            }
            self.host.sleep_until(now.instant.plus_ms(LOOK_MS)).await;
        }
    }

    async fn send_in_freeze(
        &self,
        attempt: CopyAttempt,
        page: u64,
        entries: Vec<MovedEntry>,
        until: Instant,
    ) -> Result<(), ErrorCode> {
        if self.host.now().instant >= until {
            return Err(ErrorCode::TimedOut);
        }
        self.send_page(attempt, page, entries).await
    }

    async fn send_page(
        &self,
        attempt: CopyAttempt,
        page: u64,
        entries: Vec<MovedEntry>,
    ) -> Result<(), ErrorCode> {
        let request = MetaRequest::MoveEntries {
            partition: attempt.partition,
            number: attempt.number,
            page,
            entries,
        };
        self.call_until_ready(attempt.to, request).await
    }

    async fn end_copy(
        &self,
        attempt: CopyAttempt,
        pages: u64,
        has_remote_data: bool,
    ) -> Result<(), ErrorCode> {
        let request = MetaRequest::MoveEnd {
            partition: attempt.partition,
            number: attempt.number,
            pages,
            has_remote_data,
        };
        self.call_until_ready(attempt.to, request).await
    }

    /// Notes that the copy is complete; from here on the shard never serves the partition. Its
    /// clients learn of that in its new life.
    async fn note_complete(&self, attempt: CopyAttempt, pages: u64) -> Result<(), ErrorCode> {
        let position = {
            let mut state = self.lock();
            self.check_attempt(&state, attempt)?;
            let complete = Departure {
                number: attempt.number,
                to: attempt.to,
                stage: MoveStage::Switching,
                pages,
            };
            let effect = vec![state.shard.note_departure(attempt.partition, complete)];
            self.log(&mut state, effect, Vec::new())?;
            state.copy = None;
            self.begin_life(&mut state)?;
            self.host.position()
        };
        self.host.settled(position).await
    }

    /// Has the map name the other shard, which confirms first that it has the copy.
    async fn switch(&self, partition: PartitionId, known: Departure) -> Result<(), ErrorCode> {
        self.settle_all().await?;
        self.host.flush().await?;
        let attempt = CopyAttempt {
            partition,
            to: known.to,
            number: known.number,
        };
        let has_remote_data = self.lock().shard.has_remote_data();
        self.end_copy(attempt, known.pages, has_remote_data).await?;
        // The other shard knows nothing of what clients cache.
        loop {
            let now = self.host.now().instant;
            if self.lock().shard.are_old_leases_over(now) || self.is_stopping() {
                break;
            }
            self.host.sleep_until(now.plus_ms(LOOK_MS)).await;
        }
        let request = MetaRequest::GivePartition {
            partition,
            from: self.id,
            to: known.to,
        };
        self.call_until_ready(ShardId(0), request).await?;
        self.host.seek_map(self.map_version()).await;
        let mut state = self.lock();
        self.adopt_map(&mut state);
        match state.shard.departure(partition) {
            Some(now) if now.stage == MoveStage::Switching => Err(ErrorCode::NotReady),
            _given => Ok(()),
        }
    }

    fn map_version(&self) -> MapVersion {
        self.lock().map_version
    }

    async fn settle_all(&self) -> Result<(), ErrorCode> {
        self.host.settled(self.host.position()).await
    }

    /// Removes what the shard still has of a partition that has left.
    async fn clear(&self, partition: PartitionId) -> Result<(), ErrorCode> {
        // A loss of power must not bring back the map in which the partition was here.
        self.settle_all().await?;
        while !self.is_stopping() {
            if !self.host.has_reserve() {
                return Err(ErrorCode::NoSpace);
            }
            let mut state = self.lock();
            let kv = self.host.store();
            let mut effect = state
                .shard
                .keys_of_departed(kv, partition, CLEARED_AT_ONCE)?;
            let is_clear = effect.is_empty();
            if is_clear {
                effect = vec![state.shard.forget_departure(partition)];
            }
            self.log(&mut state, effect, Vec::new())?;
            if is_clear {
                break;
            }
        }
        Ok(())
    }

    async fn tell_dropped(
        &self,
        partition: PartitionId,
        known: Departure,
    ) -> Result<(), ErrorCode> {
        let number = known.number;
        let request = MetaRequest::MoveDropped { partition, number };
        let is_there = self.host.map().shard(known.to).is_some();
        if number > 0 && is_there {
            self.call_until_ready(known.to, request).await?;
        }
        let mut state = self.lock();
        let effect: Vec<KvChange> = vec![state.shard.forget_departure(partition)];
        self.log(&mut state, effect, Vec::new()).map(drop)
    }

    /// Calls a shard until it answers with `Done`, or for [`CALL_MS`].
    async fn call_until_ready(
        &self,
        shard: ShardId,
        request: MetaRequest,
    ) -> Result<(), ErrorCode> {
        let until = self.host.now().instant.plus_ms(CALL_MS);
        loop {
            let failed = match self.host.call_shard(shard, &request).await {
                Ok(MetaReply::Done) => return Ok(()),
                Ok(MetaReply::Failed { code }) => code.0,
                Ok(_other) => return Err(ErrorCode::Protocol),
                Err(code) => code,
            };
            let is_passing = matches!(
                failed,
                ErrorCode::Unreachable
                    | ErrorCode::TimedOut
                    | ErrorCode::NotReady
                    | ErrorCode::Overloaded
                    | ErrorCode::StaleEpoch
                    | ErrorCode::NotOwner
            );
            let now = self.host.now().instant;
            if !is_passing || now >= until || self.is_stopping() {
                return Err(failed);
            }
            self.host.sleep_until(now.plus_ms(LOOK_MS)).await;
        }
    }
}
