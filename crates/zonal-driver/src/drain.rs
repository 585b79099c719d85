//! Drain: moves the objects of targets that leave, or are fuller than others, to other targets
//! (docs/rfcs/2026-11-27-relocations.md, docs/rfcs/2026-11-27-rebalance.md). The leading manager
//! drives it.
//!
//! All state is in the map and in the layouts: another manager goes on where this one ended, and
//! each round may be repeated.
//!
//! *Cost* of a round: one call to each shard for 256 files: of all files at first, then of those
//! that are not filled yet. An edit of the map for each fence.

mod rooms;
mod shedding;

pub use rooms::KnownSpace;
use rooms::Rooms;
use shedding::Shedding;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use zonal_types::{ErrorCode, Ino, Instant, MapVersion, ShardId, TargetId};
use zonal_wire::{DrainStatus, MetaReply, MetaRequest, RelocationPlan, TargetRoom};
use zonal_zonemap::map::SlotState;
use zonal_zonemap::{MapEdit, Target, TargetState, ZoneMap};

/// Time between two looks through all files while some objects have no place to go, ms. It doubles
/// from look to look.
const LOOK_AGAIN_MS: u64 = 15_000;
/// The longest time between two looks, as a power of two of the first: 8 minutes.
const LOOK_AGAIN_DOUBLINGS: u32 = 5;

/// Everything that a drain runs on.
pub trait DrainHost {
    /// The newest map that the manager decided.
    fn map(&self) -> Arc<ZoneMap>;

    /// The time.
    fn now(&self) -> Instant;

    /// Edits the map durably.
    ///
    /// # Errors
    /// The edit is refused, or this manager does not lead.
    fn edit(&self, edit: MapEdit) -> impl Future<Output = Result<MapVersion, ErrorCode>>;

    /// Asks a shard. `None`: no answer.
    fn ask_shard(
        &self,
        shard: ShardId,
        request: &MetaRequest,
    ) -> impl Future<Output = Option<MetaReply>>;

    /// Takes a target out whose server has ended, without a client that reports it.
    fn take_out_silent(&self, target: TargetId);

    /// Asks targets for their space. `None`: no answer.
    fn spaces(&self, targets: &[TargetId]) -> impl Future<Output = Vec<Option<KnownSpace>>>;

    /// Time for which a target may serve by an older map than the manager's, ms.
    fn lease_ms(&self) -> u64;
}

/// Counts of a drain.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DrainCounts {
    /// Relocations made, changed or dropped in the last round.
    pub begun: u64,
    /// Objects on their way.
    pub filling: u64,
    /// Those of them that clients may not know.
    pub unfenced: u64,
    /// Objects without another copy in service, or without a target to go to.
    pub stuck: u64,
    /// Those of them for which no target has room.
    pub no_room: u64,
}

/// A target that leaves, as this manager knows it.
#[derive(Debug, Default)]
struct LeavingTarget {
    /// All files were looked through and nothing was begun, at this time.
    looked: Option<Instant>,
    stuck: (u64, u64),
    /// Looks through all files after which objects were stuck, by the present service.
    stuck_looks: u32,
    /// Last looks that found objects which had a place before: it ran full.
    relapses: u32,
    /// The next look through all files comes after all had been filled.
    is_last_look: bool,
    service: ServiceCounts,
    /// The last fence, and its version of the map: while a target leaves, the one after which
    /// nothing was on its way any more.
    fenced: Option<(Instant, MapVersion)>,
    /// Its state when it was seen last.
    state: Option<TargetState>,
    begun: Option<Instant>,
    counts: DrainCounts,
    most: u64,
    shedding: Shedding,
}

impl LeavingTarget {
    /// Notes a look through all files.
    fn note_full_look(&mut self, counts: &DrainCounts, now: Instant) {
        if std::mem::take(&mut self.is_last_look) && counts.begun > 0 {
            self.relapses = self.relapses.saturating_add(1);
        }
        self.stuck = (counts.stuck, counts.no_room);
        self.stuck_looks = match counts.stuck {
            0 => 0,
            _ => self.stuck_looks.saturating_add(1),
        };
        self.looked = (counts.begun == 0).then_some(now);
    }
}

/// Numbers that change where stuck objects may get a source, or a place to go: targets that take
/// files, and slots that are out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct ServiceCounts {
    targets: usize,
    out: usize,
}

impl ServiceCounts {
    fn of(map: &ZoneMap) -> Self {
        let slots = map.sets.iter().flat_map(|set| &set.slots);
        let targets = map.targets.iter();
        Self {
            targets: targets.filter(|of| of.state.takes_files()).count(),
            out: slots.filter(|slot| slot.state == SlotState::Out).count(),
        }
    }
}

/// The drains of one reign of a manager.
#[derive(Debug)]
pub struct Drains {
    begin: Instant,
    targets: BTreeMap<TargetId, LeavingTarget>,
    /// Targets that are out, and since when this manager knows it.
    out: BTreeMap<TargetId, Instant>,
    rooms: Rooms,
}

impl Drains {
    /// The drains of a manager that begins to lead.
    #[must_use]
    pub fn begin(now: Instant) -> Self {
        Self {
            begin: now,
            targets: BTreeMap::new(),
            out: BTreeMap::new(),
            rooms: Rooms::default(),
        }
    }

    /// Begins the rebuild of targets that are out for longer than `rebuild_after_ms` (0: never).
    /// Returns them.
    pub async fn begin_rebuilds<H: DrainHost>(
        &mut self,
        host: &H,
        rebuild_after_ms: u64,
    ) -> Vec<TargetId> {
        let (map, now) = (host.map(), host.now());
        self.out.retain(|target, _since| map.is_out(*target));
        let mut begun = Vec::new();
        for target in &map.targets {
            let is_known = target.state.takes_files() || target.state == TargetState::Returning;
            if !is_known {
                continue;
            }
            if !map.is_out(target.id) {
                host.take_out_silent(target.id);
                continue;
            }
            let since = *self.out.entry(target.id).or_insert(now);
            let is_due = rebuild_after_ms > 0 && now.ms_since(since) >= rebuild_after_ms;
            // A zone of which all is gone waits for its return.
            if !is_due || !has_another(&map, target) {
                continue;
            }
            let edit = MapEdit::UseTarget {
                target: target.id,
                state: TargetState::Rebuilding,
            };
            match host.edit(edit).await {
                Ok(_version) => begun.push(target.id),
                // The only target of a zone: tried again after as long a time.
                Err(_refused) => drop(self.out.insert(target.id, now)),
            }
        }
        begun
    }

    /// One round for each target that leaves, returns or sheds. Returns their progress.
    pub async fn round<H: DrainHost>(&mut self, host: &H) -> Vec<DrainStatus> {
        let map = host.map();
        let moving = map.targets.iter().filter(|target| target.state.is_moving());
        let moving: Vec<(TargetId, TargetState)> =
            moving.map(|target| (target.id, target.state)).collect();
        let is_moving = |id: &TargetId| moving.iter().any(|(target, _)| target == id);
        self.targets.retain(|id, _| is_moving(id));
        self.rooms.keep_promises(is_moving);
        let mut all = Vec::new();
        // A target may have a lease of the manager that led before.
        if host.now().ms_since(self.begin) < host.lease_ms() {
            return all;
        }
        for (target, _state) in &moving {
            open_sets_of(host, *target).await;
        }
        if !moving.is_empty() {
            self.rooms.refresh(host).await;
        }
        for (target, state) in moving {
            let mut known = self.targets.remove(&target).unwrap_or_default();
            if known.state != Some(state) {
                known = LeavingTarget {
                    state: Some(state),
                    ..LeavingTarget::default()
                };
            }
            let rooms = &mut self.rooms;
            let counts = match state {
                TargetState::Shedding { is_ending, .. } => {
                    known.shedding.step(host, (target, is_ending), rooms).await
                }
                _ => step(host, (target, state), &mut known, rooms).await,
            };
            if counts.is_ok_and(|counts| counts.filling == 0) {
                self.rooms.keep_promises(|giver| *giver != target);
            }
            if let Ok(counts) = counts {
                known.counts = counts;
                known.most = known.most.max(counts.filling);
            }
            let begun = *known.begun.get_or_insert(host.now());
            all.push(DrainStatus {
                target,
                filling: known.counts.filling,
                most: known.most,
                stuck: known.counts.stuck,
                no_room: known.counts.no_room,
                ms: host.now().ms_since(begun),
            });
            self.targets.insert(target, known);
        }
        all
    }
}

/// True where another target of its zone is in service, and takes files.
fn has_another(map: &ZoneMap, target: &Target) -> bool {
    let zone_of = |of: &Target| map.node(of.node).map(|node| node.zone);
    let mut others = map.targets.iter();
    others.any(|other| {
        let is_other = other.id != target.id && zone_of(other) == zone_of(target);
        is_other && other.state.takes_files() && !map.is_out(other.id)
    })
}

/// The next step for one target.
async fn step<H: DrainHost>(
    host: &H,
    (target, state): (TargetId, TargetState),
    known: &mut LeavingTarget,
    rooms: &mut Rooms,
) -> Result<DrainCounts, ErrorCode> {
    let (now, service) = (host.now(), ServiceCounts::of(&host.map()));
    if known.service != service {
        (known.service, known.stuck_looks) = (service, 0);
    }
    let pause = LOOK_AGAIN_MS << known.stuck_looks.min(LOOK_AGAIN_DOUBLINGS);
    let is_due = |at: Instant| known.stuck.0 > 0 && now.ms_since(at) >= pause;
    let full = known.looked.is_none_or(is_due);
    // Until then the target may serve by a map without the fence.
    let is_over = |(at, _): (Instant, MapVersion)| now.ms_since(at) >= host.lease_ms();
    let returns = state == TargetState::Returning;
    let settled = match known.fenced {
        Some(fence) if returns && is_over(fence) => fence.1,
        Some(_) if returns => return Ok(DrainCounts::default()),
        _ => MapVersion(0),
    };
    let plan = RelocationPlan {
        share: 0,
        room: rooms.all(),
    };
    let counts = look(host, (target, settled), !full, plan, rooms).await?;
    if full {
        known.note_full_look(&counts, now);
    }
    let counts = DrainCounts {
        stuck: known.stuck.0,
        no_room: known.stuck.1,
        ..counts
    };
    if counts.unfenced > 0 {
        let version = host.edit(MapEdit::RenewEpochs { target }).await?;
        known.fenced = returns.then(|| (host.now(), version));
        return Ok(counts);
    }
    if counts.begun > 0 || counts.filling > 0 || known.stuck.0 > 0 {
        if !returns {
            known.fenced = None;
        }
        return Ok(counts);
    }
    let Some(fence) = known.fenced else {
        let version = host.edit(MapEdit::RenewEpochs { target }).await?;
        known.fenced = Some((host.now(), version));
        return Ok(counts);
    };
    if !is_over(fence) {
        return Ok(counts);
    }
    // The last look is through all files.
    if !full {
        let pause = match known.relapses {
            0 => 0,
            relapses => LOOK_AGAIN_MS << (relapses - 1).min(LOOK_AGAIN_DOUBLINGS),
        };
        if known.looked.is_none_or(|at| now.ms_since(at) >= pause) {
            (known.looked, known.is_last_look) = (None, true);
        }
        return Ok(counts);
    }
    let edit = match state {
        TargetState::Returning => MapEdit::EndReturn { target },
        _leaving => MapEdit::Retire { target },
    };
    host.edit(edit).await?;
    Ok(counts)
}

/// Has all shards look through their files: all, or those that are not filled yet.
async fn look<H: DrainHost>(
    host: &H,
    (target, settled): (TargetId, MapVersion),
    unfinished: bool,
    mut plan: RelocationPlan,
    rooms: &mut Rooms,
) -> Result<DrainCounts, ErrorCode> {
    let mut sum = DrainCounts::default();
    for shard in &host.map().shards {
        let mut after = Ino(0);
        loop {
            let request = MetaRequest::RelocateObjects {
                target,
                after,
                unfinished,
                settled,
                plan: plan.clone(),
            };
            let reply = host.ask_shard(shard.id, &request).await;
            let Some(MetaReply::Relocations {
                begun,
                filling,
                unfenced,
                stuck,
                no_room,
                placed,
                next,
            }) = reply
            else {
                return Err(ErrorCode::NotReady);
            };
            sum.begun = sum.begun.saturating_add(begun);
            sum.filling = sum.filling.saturating_add(filling);
            sum.unfenced = sum.unfenced.saturating_add(unfenced);
            sum.stuck = sum.stuck.saturating_add(stuck);
            sum.no_room = sum.no_room.saturating_add(no_room);
            rooms.promise(target, &placed);
            take(&mut plan, &placed);
            match next {
                Some(next) if next > after => after = next,
                _ => break,
            }
        }
    }
    Ok(sum)
}

/// Takes bytes that targets get from the room that is left.
fn take(plan: &mut RelocationPlan, placed: &[TargetRoom]) {
    for of in placed {
        let found = plan.room.iter_mut().find(|room| room.target == of.target);
        if let Some(room) = found {
            room.bytes = room.bytes.saturating_sub(of.bytes);
        }
    }
}

/// Opens the stripe sets of a target's zone: objects may go to a target that no file uses yet.
async fn open_sets_of<H: DrainHost>(host: &H, target: TargetId) {
    let map = host.map();
    let node = map.target(target).and_then(|of| map.node(of.node));
    let Some(zone) = node.map(|node| node.zone) else {
        return;
    };
    if map.default_sets(zone).any(|set| !set.is_open) {
        // The next round tries again.
        host.edit(MapEdit::OpenSets { zone }).await.ok();
    }
}
