//! Groups of replicas whose members come and go, under kills, cuts and lost messages. Nothing
//! acknowledged is lost, and no answer is older than one before.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod memory_replica;

use memory_replica::{Applied, Disk, MemoryHost, start};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_consensus::{
    ConsensusError, EntryBody, LogEntry, LogIndex, MemberRole, Membership, PeerMessage, RaftPart,
    ReplicaId, Term,
};
use zonal_driver::replica::{MemberStep, next_step};
use zonal_driver::{ReplicaDriver, ReplicaEnd, ReplicaStatus, at_once};
use zonal_testkit::Rng;
use zonal_types::{ErrorCode, KvChange};

/// Nodes that may have a replica; three at a time are wanted.
const NODES: u64 = 5;

struct Node {
    own: ReplicaId,
    disk: Rc<RefCell<Disk>>,
    running: Option<ReplicaDriver<MemoryHost>>,
}

struct Group {
    rng: Rng,
    seed: u64,
    nodes: Vec<Node>,
    network: Vec<PeerMessage>,
    wanted: Vec<ReplicaId>,
    cut_off: Option<ReplicaId>,
    effects: u64,
    /// Effects that wait for their commit: node, reign, place, effect.
    pending: Vec<(usize, Term, LogIndex, u64)>,
    acknowledged: Vec<u64>,
    leaders: BTreeMap<Term, ReplicaId>,
    forgets_members: bool,
}

fn key(effect: u64) -> Vec<u8> {
    effect.to_be_bytes().to_vec()
}

/// Whether the state of a replica has an effect.
fn has(driver: &ReplicaDriver<MemoryHost>, effect: u64) -> bool {
    let applied = driver.host().applied.borrow();
    applied.contents.contains_key(&key(effect))
}

impl Group {
    fn new(seed: u64, forgets_members: bool) -> Self {
        let node = |own| Node {
            own: ReplicaId(own),
            disk: Rc::new(RefCell::new(match own {
                1 => Disk::founding(ReplicaId(1)),
                _ => Disk::empty(),
            })),
            running: None,
        };
        Self {
            rng: Rng(seed),
            seed,
            nodes: (1..=NODES).map(node).collect(),
            network: Vec::new(),
            wanted: [1, 2, 3].map(ReplicaId).into(),
            cut_off: None,
            effects: 0,
            pending: Vec::new(),
            acknowledged: Vec::new(),
            leaders: BTreeMap::new(),
            forgets_members,
        }
    }

    fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let seed = self.seed ^ self.rng.bits();
        node.running = Some(start(node.own, &node.disk, seed, self.forgets_members));
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at].running = None;
        self.pending.retain(|(of, ..)| *of != at);
    }

    /// Chooses three nodes, two of them as before.
    fn want_others(&mut self) {
        let leaves = self.rng.index(3);
        let mut others = (1..=NODES).map(ReplicaId);
        let spare: Vec<ReplicaId> = others
            .by_ref()
            .filter(|one| !self.wanted.contains(one))
            .collect();
        self.wanted[leaves] = *self.rng.pick(&spare);
    }

    fn step(&mut self, is_rough: bool) {
        let at = self.rng.index(self.nodes.len());
        match self.rng.below(if is_rough { 1200 } else { 1 }) {
            1 | 2 => self.kill(at),
            3 | 4 => self.cut_off = self.cut_off.xor(Some(self.nodes[at].own)),
            5 => self.want_others(),
            _ => {}
        }
        if self.nodes[at].running.is_none() && (!is_rough || self.rng.below(25) == 0) {
            self.start(at);
        }
        match self.rng.below(10) {
            0 | 1 => self.append(at),
            2 => self.read(at),
            3 => self.checkpoint(at),
            4 => self.look(at),
            _ => {}
        }
        for at in 0..self.nodes.len() {
            if self.rng.below(3) == 0
                && let Some(driver) = &self.nodes[at].running
            {
                driver.tick();
            }
            self.after(at);
        }
        for _ in 0..4 {
            self.deliver(is_rough);
        }
    }

    fn append(&mut self, at: usize) {
        let Some(driver) = &self.nodes[at].running else {
            return;
        };
        let Some(reign) = driver.reign() else {
            return;
        };
        self.effects += 1;
        let changes = vec![KvChange::put(key(self.effects), vec![1])];
        match driver.append(reign, &changes) {
            Ok(index) => {
                assert!(has(driver, self.effects));
                self.pending.push((at, reign, index, self.effects));
            }
            Err(code) => assert!(matches!(code, ErrorCode::NotOwner | ErrorCode::Overloaded)),
        }
    }

    /// An answer of a leader has everything that was acknowledged.
    fn read(&mut self, at: usize) {
        let Some(driver) = &self.nodes[at].running else {
            return;
        };
        let Some(reign) = driver.reign() else {
            return;
        };
        if at_once(driver.settled(reign, driver.position())) == Ok(Ok(())) {
            self.check(at, "an answer is older than one before");
        }
    }

    fn check(&self, at: usize, fault: &str) {
        let driver = self.nodes[at].running.as_ref().unwrap();
        let applied = driver.host().applied.borrow();
        for effect in &self.acknowledged {
            assert!(
                applied.contents.contains_key(&key(*effect)),
                "{fault}: {effect}"
            );
        }
    }

    fn checkpoint(&mut self, at: usize) {
        let node = &self.nodes[at];
        let Some(driver) = &node.running else {
            return;
        };
        let applied = driver.host().applied.borrow().clone();
        if applied.index <= driver.status().committed {
            let mut disk = node.disk.borrow_mut();
            disk.trim(LogIndex(applied.index.0.saturating_sub(30)));
            disk.checkpoint = applied;
        }
    }

    fn look(&mut self, at: usize) {
        let node = &self.nodes[at];
        if let Some(driver) = &node.running
            && driver.reign().is_some()
        {
            match next_step(&self.wanted, node.own, &driver.status()) {
                Some(MemberStep::Change(change)) => drop(driver.change_members(&change)),
                Some(MemberStep::HandOver(to)) => driver.hand_over(to),
                None => {}
            }
        }
    }

    /// Does a host's part after each call of a driver.
    fn after(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(driver) = &node.running else {
            return;
        };
        let host = driver.host();
        if host.wants_flush.take()
            && let Some(order) = driver.take_flush()
        {
            driver.flushed(order);
        }
        self.network.append(&mut host.sent.borrow_mut());
        if let Some(reign) = driver.reign() {
            let known = *self.leaders.entry(reign).or_insert(node.own);
            assert_eq!(known, node.own, "two leaders in term {reign}");
        }
        match driver.end() {
            None => {}
            Some(ReplicaEnd::Failed(code)) => panic!("a replica fails: {code}"),
            Some(ReplicaEnd::Superseded(generation)) => panic!("superseded by {generation}"),
            Some(ReplicaEnd::Replaced) => {
                self.kill(at);
                self.start(at);
            }
            Some(ReplicaEnd::Behind(offer)) => self.install(at, offer.from),
        }
        self.acknowledge(at);
    }

    fn install(&mut self, at: usize, from: ReplicaId) {
        self.kill(at);
        let source = self.nodes.iter().find(|one| one.own == from).unwrap();
        let snapshot = source.running.as_ref().and_then(|driver| {
            let applied = driver.host().applied.borrow().clone();
            let status = driver.status();
            let is_whole = applied.index <= status.committed && status.members == applied.members;
            (driver.reign().is_some() && is_whole).then_some(applied)
        });
        if let Some(snapshot) = snapshot {
            let node = &mut self.nodes[at];
            let filled = node.disk.borrow().filled(snapshot);
            node.disk = Rc::new(RefCell::new(filled));
        }
        self.start(at);
    }

    fn acknowledge(&mut self, at: usize) {
        let Some(driver) = &self.nodes[at].running else {
            return;
        };
        let mut acknowledged = Vec::new();
        self.pending.retain(|(of, reign, index, effect)| {
            if *of != at {
                return true;
            }
            match at_once(driver.settled(*reign, *index)) {
                Ok(Ok(())) => acknowledged.push(*effect),
                Ok(Err(_reign_is_over)) => {}
                Err(_waits) => return true,
            }
            false
        });
        self.acknowledged.extend(acknowledged);
    }

    fn deliver(&mut self, is_rough: bool) {
        if self.network.is_empty() {
            return;
        }
        let at = match self.rng.below(8) {
            0 => self.rng.index(self.network.len()),
            _ => 0,
        };
        let message = self.network.remove(at);
        let is_cut = self
            .cut_off
            .is_some_and(|one| one == message.from || one == message.to);
        if is_cut || (is_rough && self.rng.below(40) == 0) {
            return;
        }
        let to = usize::try_from(message.to.0 - 1).unwrap();
        if let Some(driver) = &self.nodes[to].running {
            // Refused by those who have left, or are not members yet.
            let _ = driver.receive(&[message]);
            self.after(to);
        }
    }

    fn statuses(&self) -> Vec<(ReplicaId, Option<ReplicaStatus>)> {
        let status = |node: &Node| (node.own, node.running.as_ref().map(ReplicaDriver::status));
        self.nodes.iter().map(status).collect()
    }

    fn leader(&self) -> Option<usize> {
        let reign = |node: &Node| node.running.as_ref().and_then(ReplicaDriver::reign);
        self.nodes.iter().position(|node| reign(node).is_some())
    }

    fn run(&mut self) {
        self.start(0);
        for _ in 0..4_000 {
            self.step(true);
        }
        self.cut_off = None;
        for _ in 0..3_000 {
            self.step(false);
        }
        let leader = self.leader();
        let leader = leader.unwrap_or_else(|| panic!("no leader: {:#?}", self.statuses()));
        self.check(leader, "an acknowledged effect is lost");
        assert!(self.acknowledged.len() > 20, "effects were acknowledged");
        let status = self.nodes[leader].running.as_ref().unwrap().status();
        let mut wanted = self.wanted.clone();
        wanted.sort_unstable();
        assert!(
            status.members.voters == wanted,
            "others vote: {:#?}",
            self.statuses()
        );
        assert_eq!(status.members.learners, []);
    }
}

fn seeds() -> u64 {
    let asked = std::env::var("ZONAL_SEEDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(40)
}

#[test]
fn nothing_acknowledged_is_lost_while_members_come_and_go() {
    for seed in 0..seeds() {
        let run = std::panic::catch_unwind(|| Group::new(seed, false).run());
        assert!(run.is_ok(), "seed {seed}");
    }
}

/// A member that had grown its group from one stood for itself alone after a restart.
#[test]
fn a_member_that_forgets_the_members_it_acted_by_loses_effects() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let fails = |seed| std::panic::catch_unwind(|| Group::new(seed, true).run()).is_err();
    // One seed in hundreds shows it.
    let found = (700..960).any(fails);
    std::panic::set_hook(quiet);
    assert!(found, "the checks find the bug");
}

#[test]
fn an_effect_is_visible_at_once_and_settled_by_a_majority() {
    let mut group = Group::new(3, false);
    for at in 0..3 {
        group.start(at);
    }
    for _ in 0..2_000 {
        group.step(false);
    }
    let leader = group.leader().expect("a leader");
    let driver = group.nodes[leader].running.as_ref().unwrap();
    let reign = driver.reign().unwrap();
    let changes = [KvChange::put(key(0), vec![7])];
    let index = driver.append(reign, &changes).unwrap();
    assert!(has(driver, 0));
    let unsettled = at_once(driver.settled(reign, index));
    assert!(unsettled.is_err(), "nobody has acknowledged it");
    let later = Term(reign.0 + 1);
    assert_eq!(driver.append(later, &[]), Err(ErrorCode::NotOwner));
    driver.stop();
    let ended = at_once(driver.settled(reign, index));
    assert_eq!(ended, Ok(Err(ErrorCode::NotOwner)));
}

/// A process that stood still has not ticked. Others have elected another leader meanwhile, and
/// answered.
#[test]
fn a_leader_that_stood_still_does_not_answer() {
    let mut group = Group::new(3, false);
    for at in 0..3 {
        group.start(at);
    }
    for _ in 0..2_000 {
        group.step(false);
    }
    let leader = group.leader().expect("a leader");
    let driver = group.nodes[leader].running.as_ref().unwrap();
    let (reign, status) = (driver.reign().unwrap(), driver.status());
    assert_eq!(at_once(driver.settled(reign, status.committed)), Ok(Ok(())));
    driver.host().ticks.set(1_000_000);
    let answers = at_once(driver.settled(reign, status.committed));
    assert!(answers.is_err(), "it has no lease");
}

/// A member of three whose state ends with entry 5 of term 2.
fn behind_entry_5() -> ReplicaDriver<MemoryHost> {
    behind_entry_5_in(1)
}

/// The same in a generation of the group.
fn behind_entry_5_in(generation: u64) -> ReplicaDriver<MemoryHost> {
    let applied = Applied {
        index: LogIndex(5),
        term: Term(2),
        members: Membership::of_voters([1, 2, 3].map(ReplicaId)),
        since: LogIndex(1),
        ..Applied::default()
    };
    let disk = Disk::default().filled(applied).in_generation(generation);
    start(ReplicaId(1), &Rc::new(RefCell::new(disk)), 9, false)
}

fn message(from: u64, part: RaftPart) -> PeerMessage {
    PeerMessage {
        group: 5,
        from: ReplicaId(from),
        to: ReplicaId(1),
        generation: 1,
        life: 1,
        term: part.term,
        is_quarantined: false,
        released: 0,
        clock: 0,
        echo: 0,
        flushed: LogIndex(0),
        wanted: LogIndex(0),
        raft: Some(part),
    }
}

/// A majority lost its power, and committed entries with it. The member that has them refused its
/// leader for ever.
#[test]
fn a_member_with_entries_that_its_group_has_lost_begins_anew() {
    let driver = behind_entry_5();
    let append = RaftPart {
        kind: 3,
        term: Term(3),
        log_term: Term(3),
        index: LogIndex(5),
        ..RaftPart::default()
    };
    driver.receive(&[message(2, append)]).unwrap();
    match driver.end() {
        Some(ReplicaEnd::Behind(offer)) => assert_eq!(offer.from, ReplicaId(2)),
        other => panic!("it goes on: {other:?}"),
    }
}

/// A recovery began another generation: members that missed it are told, and never go on.
#[test]
fn a_member_of_an_older_generation_is_refused_and_ends() {
    let vote = RaftPart {
        kind: 17,
        term: Term(9),
        log_term: Term(9),
        index: LogIndex(90),
        ..RaftPart::default()
    };
    let of_generation = |generation| PeerMessage {
        generation,
        ..message(2, vote.clone())
    };
    let lost = behind_entry_5();
    let older = ConsensusError::OlderGeneration(1);
    let later = behind_entry_5_in(2);
    for _ in 0..100 {
        later.tick();
    }
    later.host().sent.take();
    assert_eq!(later.receive(&[of_generation(1)]), Err(older));
    let told = later.host().sent.take();
    assert_eq!(told.len(), 1, "one answer, and no vote: {told:?}");
    assert_eq!((told[0].generation, &told[0].raft), (2, &None));
    assert_eq!(later.end(), None);
    // A member that has nothing of a group yet may join.
    assert_eq!(later.receive(&[of_generation(0)]), Ok(()));

    let far = ConsensusError::FutureGeneration(1 << 40);
    assert_eq!(lost.receive(&[of_generation(1 << 40)]), Err(far));
    assert_eq!(lost.end(), None, "a forged generation ends nobody");
    lost.receive(&[of_generation(2)]).unwrap();
    assert_eq!(lost.end(), Some(ReplicaEnd::Superseded(2)));
}

/// Lost members that come back together would elect a leader before they hear of the recovery.
#[test]
fn a_member_that_starts_tells_its_generation_before_it_may_vote() {
    let driver = behind_entry_5();
    driver.tick();
    let mut greeted: Vec<u64> = driver
        .host()
        .sent
        .take()
        .iter()
        .map(|one| one.to.0)
        .collect();
    greeted.sort_unstable();
    assert_eq!(greeted, [2, 3]);
}

/// Where all followers need a snapshot, nothing is committed before one has it.
#[test]
fn a_leader_that_takes_over_lends_what_it_has_applied() {
    let driver = behind_entry_5();
    assert_eq!(
        at_once(driver.lendable(LogIndex(5))),
        Ok(Err(ErrorCode::NotOwner))
    );
    for _ in 0..200 {
        driver.tick();
        for sent in driver.host().sent.take() {
            let asked = sent.raft.unwrap_or_default();
            let kind = match asked.kind {
                5 => 6,
                17 => 18,
                _ => continue,
            };
            let vote = RaftPart {
                kind,
                term: asked.term,
                ..RaftPart::default()
            };
            driver.receive(&[message(sent.to.0, vote)]).unwrap();
        }
        if driver.status().role == MemberRole::TakesOver {
            assert_eq!(at_once(driver.lendable(LogIndex(5))), Ok(Ok(())));
            let pending = at_once(driver.lendable(LogIndex(6)));
            assert_eq!(pending, Ok(Err(ErrorCode::NotOwner)));
            return;
        }
    }
    panic!("it is not elected: {:?}", driver.status());
}

/// A follower said that it had flushed entry 7, which was another leader's. The new leader counted
/// that for its own entry 7: an fsync returned without a flush.
#[test]
fn a_flush_counts_for_the_leaders_own_entries_only() {
    let driver = behind_entry_5();
    let append = |leader, term, first: u64, last: u64| {
        let entry = |index| LogEntry {
            index: LogIndex(index),
            term: Term(term),
            body: EntryBody::TermStart,
        };
        let part = RaftPart {
            kind: 3,
            term: Term(term),
            log_term: Term(2),
            index: LogIndex(first - 1),
            entries: (first..=last).map(entry).collect(),
            commit: LogIndex(5),
            ..RaftPart::default()
        };
        let (clock, wanted) = (1, LogIndex(7));
        let message = message(leader, part);
        driver
            .receive(&[PeerMessage {
                clock,
                wanted,
                ..message
            }])
            .unwrap();
    };
    let flushes = |driver: &ReplicaDriver<MemoryHost>| {
        if let Some(order) = driver.take_flush() {
            driver.flushed(order);
        }
    };
    let told = |driver: &ReplicaDriver<MemoryHost>| {
        let sent = driver.host().sent.take();
        sent.iter().map(|message| message.flushed).max()
    };
    append(2, 2, 6, 7);
    flushes(&driver);
    assert_eq!(told(&driver), Some(LogIndex(7)));
    let heartbeat = RaftPart {
        kind: 8,
        term: Term(3),
        ..RaftPart::default()
    };
    driver.receive(&[message(3, heartbeat)]).unwrap();
    assert_eq!(told(&driver), Some(LogIndex(0)), "nothing of this leader");
    append(3, 3, 6, 7);
    assert_eq!(
        told(&driver),
        Some(LogIndex(5)),
        "its entries are not flushed"
    );
    flushes(&driver);
    assert_eq!(told(&driver), Some(LogIndex(7)));
}
