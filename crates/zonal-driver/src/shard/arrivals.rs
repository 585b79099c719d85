//! Arrivals: takes pages of partitions that come from other shards, and makes them part of the
//! shard when the map says so.

use zonal_types::{ErrorCode, MapVersion, boot_of, kept_of};
use zonal_wire::{MetaReply, MetaRequest, MoveStatus};
use zonal_zonemap::ZoneMap;

use super::waits::Key;
use super::{ShardDriver, ShardHost, State};

/// Distance of the boot numbers of two lives in one process, so that no start has the second.
const NEXT_LIFE: u32 = 1 << 28;

impl<H: ShardHost> ShardDriver<H> {
    /// Answers another shard whose partition comes here.
    pub(super) async fn answer_about_arrivals(
        &self,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        if matches!(request, MetaRequest::MoveEntries { .. }) {
            self.host.check_room(request)?;
        }
        let (is_done, position) = {
            let mut state = self.lock();
            self.adopt_map(&mut state);
            let kv = self.host.store();
            let (effect, is_done) = match request {
                MetaRequest::MoveBegin {
                    partition,
                    from,
                    number,
                } => state
                    .shard
                    .begin_arrival(kv, *partition, (*from, *number))?,
                MetaRequest::MoveEntries {
                    partition,
                    number,
                    page,
                    entries,
                } => {
                    let of = (*number, *page);
                    (state.shard.take_page(*partition, of, entries)?, true)
                }
                MetaRequest::MoveEnd {
                    partition,
                    number,
                    pages,
                    has_remote_data,
                } => {
                    let of = (*number, *pages);
                    let ended = state.shard.end_arrival(*partition, of, *has_remote_data)?;
                    (ended, true)
                }
                MetaRequest::MoveDropped { partition, number } => {
                    state.shard.drop_arrival(kv, *partition, *number)?
                }
                _ => return Err(ErrorCode::Protocol),
            };
            self.log(&mut state, effect, Vec::new())?;
            (is_done, self.host.position())
        };
        self.host.settled(position).await?;
        if matches!(request, MetaRequest::MoveEnd { .. }) {
            self.host.flush().await?;
            self.waits.wake(Key::Moves);
        }
        match is_done {
            true => Ok(MetaReply::Done),
            false => Err(ErrorCode::NotReady),
        }
    }

    /// Drops arrivals of which the other shard does not know: they were cancelled, and the message
    /// did not come or came early. A complete one is never dropped so: the other shard may have
    /// given the partition away and forgotten it.
    pub(super) async fn drop_dead_arrivals(&self) {
        let arrivals: Vec<_> = self.lock().shard.arrivals().collect();
        for (partition, known) in arrivals {
            if known.is_complete() {
                continue;
            }
            let asked = self.host.call_shard(known.from, &MetaRequest::GetMoves);
            let Ok(MetaReply::Moves { moves }) = asked.await else {
                continue;
            };
            let is_live = |one: &MoveStatus| {
                one.partition == partition && one.number == known.number && one.to == self.id
            };
            let mut state = self.lock();
            let now = state.shard.arrivals().find(|(of, _)| *of == partition);
            if moves.iter().any(is_live) || now != Some((partition, known)) {
                continue;
            }
            let kv = self.host.store();
            if let Ok((effect, _is_clear)) = state.shard.drop_arrival(kv, partition, known.number) {
                self.log(&mut state, effect, Vec::new()).ok();
            }
        }
    }

    /// The map that a client must know before it tells what it holds.
    pub(super) fn map_to_tell_by(&self) -> MapVersion {
        let mut state = self.lock();
        self.adopt_map(&mut state);
        state.shard.map_to_tell_by()
    }

    /// Adopts what a newer map gives and takes. True where the shard must begin a new life.
    pub(super) fn adopt_moves(&self, state: &mut State, map: &ZoneMap) -> Result<(), ErrorCode> {
        for partition in state.shard.arrived(map) {
            let (now, chance) = (self.host.now(), self.host.random()?);
            let kv = self.host.store();
            let effect = state
                .shard
                .adopt_arrival(kv, now, partition, (map.version, chance))?;
            self.log(state, effect, Vec::new())?;
            state.needs_life = true;
            zonal_types::mark!(PartitionArrived);
        }
        for (partition, departure) in state.shard.departed(map) {
            let shard = &mut state.shard;
            let effect = shard.adopt_departure(partition, departure, map.version);
            self.log(state, effect, Vec::new())?;
            state.needs_life = true;
            zonal_types::mark!(PartitionDeparted);
        }
        Ok(())
    }

    /// Begins a new life of the shard: its clients tell again what they hold.
    pub(super) fn begin_life(&self, state: &mut State) -> Result<(), ErrorCode> {
        let now = self.host.now().instant;
        let boot = state.shard.boot();
        let next = u32::try_from(boot & u64::from(u32::MAX)).unwrap_or(0);
        let boot = boot_of(kept_of(boot), next.wrapping_add(NEXT_LIFE));
        state.shard.begin_life(self.host.store(), boot, now)?;
        state.needs_life = false;
        state.flushed = zonal_meta::DurableTruncations::default();
        state.has_deletions = true;
        state.detached_at = Some(now.plus_ms(self.pace.detached_ms));
        self.waits.wake_all();
        self.waits.wake(Key::Moves);
        Ok(())
    }
}
