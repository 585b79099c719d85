//! Three members of a group over stores of their own, with kills, losses of power and cuts at
//! random. Nothing acknowledged is lost.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{MemDisk, dump};
use zonal_consensus::{
    FlushOrder, GroupMember, LogIndex, MemberConfig, MemberRole, MemberWork, Membership,
    PeerMessage, ReplicaId,
};
use zonal_disk::{ReplicaStore, StoreDir, effect_of, record};
use zonal_testkit::{Rng, Scratch};
use zonal_types::KvChange;

type Member = GroupMember<Arc<ReplicaStore>>;

struct Replica {
    own: ReplicaId,
    disk: MemDisk,
    folder: Scratch,
    life: u64,
    lost_power: bool,
    running: Option<(Arc<ReplicaStore>, Member)>,
    flush: Option<FlushOrder>,
}

impl Replica {
    fn new(own: ReplicaId) -> Self {
        let disk = MemDisk::new();
        let members = Membership::of_voters([1, 2, 3].map(ReplicaId));
        ReplicaStore::begin(&disk.open().unwrap(), members).unwrap();
        let mut replica = Self {
            own,
            disk,
            folder: Scratch::new("replica"),
            life: 0,
            lost_power: false,
            running: None,
            flush: None,
        };
        replica.start();
        replica
    }

    fn start(&mut self) {
        self.life += 1;
        let mut found = Vec::new();
        let engine = self
            .disk
            .open_with(Default::default(), &mut |record, end, _| {
                found.push((record.note.clone(), end));
                true
            });
        let store = StoreDir::plain(&self.folder);
        let store = ReplicaStore::over(Arc::new(engine.unwrap()), store, found).unwrap();
        let store = Arc::new(store);
        let config = MemberConfig {
            group: 1,
            own: self.own,
            generation: 1,
            life: self.life,
            seed: self.life ^ self.own.0.rotate_left(8),
            election_ticks: 20,
            heartbeat_ticks: 4,
            may_have_lost: self.lost_power,
        };
        let (vote, applied) = (store.vote(), store.applied());
        let applied = (applied.index, applied.term);
        let member = GroupMember::new(config, Arc::clone(&store), vote, applied, applied.0);
        self.running = Some((store, member.unwrap()));
    }

    fn stop(&mut self, power: Option<&mut Rng>) {
        if let Some((_, member)) = self.running.take() {
            self.lost_power = member.is_quarantined();
        }
        self.flush = None;
        self.disk = match power {
            None => self.disk.after_kill(),
            Some(rng) => {
                self.lost_power = true;
                self.disk.after_power_loss(rng)
            }
        };
    }

    fn is_weak(&self) -> bool {
        match &self.running {
            Some((_, member)) => member.is_quarantined(),
            None => self.lost_power,
        }
    }

    fn leads(&self) -> bool {
        let leads = |(_, member): &(_, Member)| member.role() == MemberRole::Leads;
        self.running.as_ref().is_some_and(leads)
    }

    /// Carries out work; true where the member has lost the lead with changes of its own applied.
    fn carry_out(&mut self, work: &MemberWork) -> bool {
        let Some((store, member)) = &mut self.running else {
            return false;
        };
        if let Some(vote) = work.vote {
            store.save_vote(vote).unwrap();
        }
        let voids = work
            .append
            .first()
            .is_some_and(|first| first.index <= store.applied().index);
        if voids {
            return true;
        }
        store.append(&work.append).unwrap();
        self.flush = work.flush.or(self.flush);
        for entry in &work.committed {
            if entry.index > store.applied().index {
                let changes = effect_of(&entry.body).unwrap().changes;
                store.apply(entry, changes);
            }
        }
        member.finish().unwrap();
        false
    }
}

struct Group {
    rng: Rng,
    replicas: Vec<Replica>,
    network: Vec<PeerMessage>,
    cut_off: Option<ReplicaId>,
    effects: u64,
    /// Effects whose entries are not committed yet, by place.
    waiting: BTreeMap<(ReplicaId, LogIndex), u64>,
    acknowledged: Vec<u64>,
}

impl Group {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng(seed),
            replicas: [1, 2, 3].map(|own| Replica::new(ReplicaId(own))).into(),
            network: Vec::new(),
            cut_off: None,
            effects: 0,
            waiting: BTreeMap::new(),
            acknowledged: Vec::new(),
        }
    }

    fn step(&mut self, is_rough: bool) {
        let at = self.rng.index(3);
        match self.rng.below(if is_rough { 1000 } else { 1 }) {
            1 | 2 => self.replicas[at].stop(None),
            3 if !(0..3).any(|other| other != at && self.replicas[other].is_weak()) => {
                self.replicas[at].stop(Some(&mut self.rng));
            }
            4 => self.cut_off = self.cut_off.xor(Some(ReplicaId(at as u64 + 1))),
            _ => {}
        }
        if self.replicas[at].running.is_none() && (!is_rough || self.rng.below(30) == 0) {
            self.replicas[at].start();
        }
        match self.rng.below(12) {
            0 => self.propose(at),
            1 => self.flush(at),
            2 if self.rng.below(10) == 0 => self.checkpoint(at),
            _ => {}
        }
        for at in 0..3 {
            if self.rng.below(3) == 0
                && let Some((_, member)) = &mut self.replicas[at].running
            {
                member.tick();
            }
            self.work(at);
        }
        for _ in 0..3 {
            self.deliver();
        }
    }

    fn propose(&mut self, at: usize) {
        self.effects += 1;
        let (key, effect) = (self.rng.below(40), self.effects);
        let size = self.rng.index(400);
        let replica = &mut self.replicas[at];
        let Some((store, member)) = &mut replica.running else {
            return;
        };
        let changes = vec![
            KvChange::put(format!("effect {effect:08}").into_bytes(), vec![1; size]),
            KvChange::put(
                format!("key {key}").into_bytes(),
                effect.to_string().into_bytes(),
            ),
        ];
        let mut bytes = Vec::new();
        record::encode(&mut bytes, &changes, b"").unwrap();
        let Ok(index) = member.propose(bytes) else {
            return;
        };
        self.waiting.insert((replica.own, index), effect);
        // As a leader's driver does: its effect is visible at once.
        while let Some(mut work) = member.take_work().unwrap() {
            self.network.append(&mut work.send);
            store.append(&work.append).unwrap();
            for entry in &work.append {
                let changes = effect_of(&entry.body).unwrap().changes;
                store.apply(entry, changes);
            }
            replica.flush = work.flush.or(replica.flush);
            assert!(work.vote.is_none() && work.committed.is_empty());
            member.finish().unwrap();
        }
    }

    fn flush(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let Some((store, member)) = &mut replica.running else {
            return;
        };
        let committed = member.committed();
        member.want_flush(committed);
        if let Some(order) = replica.flush.take() {
            store.engine().sync_all().unwrap();
            member.flushed(order);
        }
    }

    /// As a shell does: a checkpoint waits for the commit of what was applied.
    fn checkpoint(&mut self, at: usize) {
        if let Some((store, member)) = &mut self.replicas[at].running
            && store.applied().index <= member.committed()
        {
            store.engine().checkpoint(&mut || Ok(())).unwrap();
        }
    }

    fn work(&mut self, at: usize) {
        for _ in 0..50 {
            let replica = &mut self.replicas[at];
            let Some((_, member)) = &mut replica.running else {
                return;
            };
            let Some(mut work) = member.take_work().unwrap() else {
                break;
            };
            if let Some(offer) = work.install.take() {
                self.install(at, offer.from);
                return;
            }
            let mut send = std::mem::take(&mut work.send);
            if self.replicas[at].carry_out(&work) {
                // Pending changes are in its store: it begins again without them, and has
                // acknowledged nothing.
                self.replicas[at].stop(None);
                self.replicas[at].start();
                return;
            }
            self.network.append(&mut send);
        }
        self.acknowledge(at);
    }

    fn install(&mut self, at: usize, from: ReplicaId) {
        let source = self.replicas.iter().find(|one| one.own == from).unwrap();
        let contents = source.running.as_ref().and_then(|(store, member)| {
            let is_committed = store.applied().index <= member.committed();
            is_committed.then(|| dump(store.engine()))
        });
        let replica = &mut self.replicas[at];
        replica.stop(None);
        if let Some(contents) = contents {
            let disk = MemDisk::new();
            let changes = contents
                .into_iter()
                .map(|(key, value)| KvChange::put(key, value));
            ReplicaStore::fill(&disk.open().unwrap(), changes.collect()).unwrap();
            replica.disk = disk;
        }
        replica.start();
    }

    fn acknowledge(&mut self, at: usize) {
        let replica = &self.replicas[at];
        let own = replica.own;
        match &replica.running {
            Some((_, member)) if member.role() == MemberRole::Leads => {
                let committed = member.committed();
                let waiting = std::mem::take(&mut self.waiting);
                for ((of, index), effect) in waiting {
                    if of == own && index <= committed {
                        self.acknowledged.push(effect);
                    } else {
                        self.waiting.insert((of, index), effect);
                    }
                }
            }
            _ => self.waiting.retain(|(of, _), _| *of != own),
        }
    }

    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let count = self.network.len();
        let at = if self.rng.below(8) == 0 {
            self.rng.index(count)
        } else {
            0
        };
        let message = self.network.remove(at);
        let is_cut = [message.from, message.to].contains(&self.cut_off.unwrap_or_default());
        let to = usize::try_from(message.to.0 - 1).unwrap();
        if is_cut {
            return;
        }
        if let Some((_, member)) = &mut self.replicas[to].running {
            member.receive(&message).unwrap();
            self.work(to);
        }
    }

    fn run(&mut self) {
        for _ in 0..3_000 {
            self.step(true);
        }
        self.cut_off = None;
        for _ in 0..1_500 {
            self.step(false);
        }
        let leader = self.replicas.iter().find(|one| one.leads()).unwrap();
        let (store, member) = leader.running.as_ref().unwrap();
        assert!(member.committed().0 > 20, "entries were committed");
        let contents: BTreeMap<Vec<u8>, Vec<u8>> = dump(store.engine()).into_iter().collect();
        for effect in &self.acknowledged {
            let key = format!("effect {effect:08}").into_bytes();
            assert!(contents.contains_key(&key), "effect {effect} is lost");
        }
        assert!(self.acknowledged.len() > 10, "effects were acknowledged");
    }
}

/// Seeds of defects. 529: a member had acknowledged an entry and lost it, an older one came back in
/// its place, and the leader's heartbeat committed that.
const FOUND: [u64; 1] = [529];

#[test]
fn groups_over_real_logs_lose_nothing_acknowledged() {
    for seed in (0..seeds()).chain(FOUND) {
        let run = std::panic::catch_unwind(|| Group::new(seed).run());
        assert!(run.is_ok(), "seed {seed}");
    }
}

fn seeds() -> u64 {
    let asked = std::env::var("ZONAL_SEEDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(20)
}
