//! A group of members over simulated disks and a network that loses, delays, repeats and cuts,
//! on one thread, from one seed.

mod checks;
mod replica;

use std::collections::BTreeMap;

use zonal_consensus::{ConsensusError, LogEntry, LogIndex, MemberRole, PeerMessage, ReplicaId};
use zonal_testkit::Rng;

use checks::Checks;
pub use checks::Fault;
use replica::{Replica, Stored};

/// A bug that is planted, to see it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// A member does not say that it may have lost entries.
    LossUntold,
    /// A leader's clock runs at an eighth of the others'.
    SlowClock,
    /// A flush is reported before it is done.
    FlushPromised,
}

/// How rough a run is.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub steps: u64,
    /// Of 1,000 messages, how many are lost.
    pub lost: u64,
    /// Of 10,000 steps, how many kill a member, and how many take its power.
    pub kills: u64,
    pub power: u64,
    /// The power of several members may be lost at once.
    pub power_of_all: bool,
    /// Of 10,000 steps, how many cut a member off or heal all.
    pub cuts: u64,
    pub bug: Option<PlantedBug>,
}

impl Weather {
    pub const ROUGH: Self = Self {
        steps: 6_000,
        lost: 50,
        kills: 12,
        power: 12,
        power_of_all: false,
        cuts: 15,
        bug: None,
    };
    /// The power of any number of members goes, at times of all at once.
    pub const STORM: Self = Self {
        power_of_all: true,
        ..Self::ROUGH
    };

    pub fn with(self, bug: PlantedBug) -> Self {
        Self {
            bug: Some(bug),
            ..self
        }
    }
}

/// Three members and what is between them.
pub struct Group {
    rng: Rng,
    weather: Weather,
    replicas: BTreeMap<ReplicaId, Replica>,
    network: Vec<PeerMessage>,
    cut_off: Option<ReplicaId>,
    proposals: u64,
    /// Steps until a member's next tick: 9 or 10, so clocks run apart by a tenth at most.
    ticks: BTreeMap<ReplicaId, u64>,
    checks: Checks,
    /// A digest of everything that happened.
    pub history: u64,
}

const MEMBERS: [u64; 3] = [1, 2, 3];

impl Group {
    pub fn new(seed: u64, weather: Weather) -> Self {
        let mut rng = Rng(seed);
        let start = |number: u64| {
            let own = ReplicaId(number);
            (
                own,
                Replica::start(own, Stored::empty(&MEMBERS), rng.bits(), weather.bug),
            )
        };
        let replicas = MEMBERS.into_iter().map(start).collect();
        Self {
            rng,
            weather,
            replicas,
            network: Vec::new(),
            cut_off: None,
            proposals: 0,
            ticks: MEMBERS.map(|number| (ReplicaId(number), 1)).into(),
            checks: Checks::default(),
            history: seed,
        }
    }

    /// Runs the weather, heals everything, and checks what must hold then.
    pub fn run(&mut self) -> Result<(), Fault> {
        for _ in 0..self.weather.steps {
            self.step()?;
        }
        self.weather = Weather {
            lost: 0,
            kills: 0,
            power: 0,
            cuts: 0,
            ..self.weather
        };
        self.cut_off = None;
        for own in MEMBERS.map(ReplicaId) {
            self.restart(own);
        }
        for _ in 0..4_000 {
            self.step()?;
        }
        self.settle()
    }

    fn settle(&mut self) -> Result<(), Fault> {
        let leads = |one: &Replica| one.member().is_some_and(|m| m.role() == MemberRole::Leads);
        let Some(leader) = self.replicas.values().find(|one| leads(one)) else {
            return Err(Fault("no leader after everything healed"));
        };
        let applied = leader.applied_entries();
        self.checks.all_acknowledged_in(&applied)?;
        let (last, leader) = (applied.len(), leader.own());
        for one in self.replicas.values() {
            let has = one.applied_entries();
            if has.len() + 20 < last {
                return Err(Fault("a member stays behind after everything healed"));
            }
            if one.own() != leader && has.iter().zip(&applied).any(|(a, b)| a != b) {
                return Err(Fault("two members applied different entries"));
            }
            if one.member().is_none_or(|member| member.is_quarantined()) {
                return Err(Fault("a quarantine that does not end"));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Fault> {
        let own = ReplicaId(1 + self.rng.below(3));
        match self.rng.below(10_000) {
            roll if roll < self.weather.kills => self.kill(own, false),
            roll if roll < self.weather.kills + self.weather.power => self.kill(own, true),
            roll if roll < self.weather.kills + self.weather.power + self.weather.cuts => {
                self.cut_off = match self.cut_off {
                    None => Some(own),
                    Some(_) => None,
                };
            }
            _ => {}
        }
        if self.rng.below(100) == 0 {
            self.restart(own);
        }
        match self.rng.below(10) {
            0 => self.propose(own),
            1 => self.ask_flush(own),
            2 => self.finish_flush(own)?,
            3 => self.checkpoint(own),
            4 => self.check_lease(own)?,
            _ => self.deliver()?,
        }
        for own in MEMBERS.map(ReplicaId) {
            self.tick(own)?;
        }
        self.deliver()
    }

    fn tick(&mut self, own: ReplicaId) -> Result<(), Fault> {
        let pause = 9 + self.rng.below(2);
        let left = self.ticks.entry(own).or_default();
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        *left = pause;
        let is_slow = self.weather.bug == Some(PlantedBug::SlowClock);
        let rests = is_slow && self.rng.below(8) != 0;
        if let Some(member) = self.replica(own).member_mut() {
            if rests && member.role() == MemberRole::Leads {
                return Ok(());
            }
            member.tick();
        }
        self.work(own)
    }

    fn propose(&mut self, own: ReplicaId) {
        self.proposals += 1;
        let bytes = self.proposals.to_le_bytes().to_vec();
        if let Some(member) = self.replica(own).member_mut() {
            let (term, placed) = (member.term(), member.propose(bytes));
            if let Ok(index) = placed {
                self.checks.proposed(own, (index, term));
            }
        }
    }

    fn ask_flush(&mut self, own: ReplicaId) {
        if let Some(member) = self.replica(own).member_mut() {
            let committed = member.committed();
            member.want_flush(committed);
        }
    }

    fn finish_flush(&mut self, own: ReplicaId) -> Result<(), Fault> {
        let replica = self.replica(own);
        replica.finish_flush();
        let durable = replica.member().filter(|m| m.role() == MemberRole::Leads);
        let durable = durable.map_or(LogIndex(0), |member| member.durable());
        let entries = replica.applied_entries();
        self.checks.durable(&entries, durable);
        self.work(own)
    }

    fn checkpoint(&mut self, own: ReplicaId) {
        let keeps = self.rng.below(30);
        self.replica(own).checkpoint(keeps);
    }

    /// A leader that may answer reads is the newest one.
    fn check_lease(&mut self, own: ReplicaId) -> Result<(), Fault> {
        let leased = self
            .replica(own)
            .member()
            .filter(|member| member.has_lease());
        let Some(term) = leased.map(|member| member.term()) else {
            return Ok(());
        };
        let others = self.replicas.values().filter_map(|one| one.member());
        let newest = others
            .filter(|member| member.role() == MemberRole::Leads)
            .map(|member| member.term())
            .max();
        match newest {
            Some(newest) if newest > term => Err(Fault("an older leader may answer reads")),
            _ => Ok(()),
        }
    }

    fn deliver(&mut self) -> Result<(), Fault> {
        if self.network.is_empty() {
            return Ok(());
        }
        // Mostly in order; at times any.
        let count = u64::try_from(self.network.len()).unwrap_or(u64::MAX);
        let at = if self.rng.below(10) == 0 {
            self.rng.below(count)
        } else {
            0
        };
        let message = self.network.remove(usize::try_from(at).unwrap_or(0));
        let is_cut = [message.from, message.to]
            .iter()
            .any(|end| Some(*end) == self.cut_off);
        if is_cut || self.rng.below(1_000) < self.weather.lost {
            return Ok(());
        }
        if self.weather.lost > 0 && self.rng.below(100) == 0 {
            self.network.push(message.clone());
        }
        let to = message.to;
        let Some(member) = self.replica(to).member_mut() else {
            return Ok(());
        };
        match member.receive(&message) {
            Ok(()) => self.work(to),
            Err(ConsensusError::Diverged(_)) => {
                // Only where a majority lost its power while this member was away.
                self.checks.may_diverge()?;
                self.replica(to).wipe();
                Ok(())
            }
            // The answer to what a member had before it was wiped.
            Err(ConsensusError::Senseless(_)) if self.checks.may_diverge().is_ok() => Ok(()),
            Err(_) => Err(Fault("a member refuses a message of another")),
        }
    }

    /// Carries out all work of a member.
    fn work(&mut self, own: ReplicaId) -> Result<(), Fault> {
        for _ in 0..100 {
            let Some(member) = self.replica(own).member_mut() else {
                return Ok(());
            };
            let taken = member.take_work().map_err(|_| Fault("damaged work"))?;
            let Some(mut work) = taken else {
                return self.look(own);
            };
            if let Some(offer) = work.install.take() {
                let state = self.replicas.get(&offer.from).map(Replica::state);
                self.replica(own).install(&offer, state);
            }
            self.network.append(&mut work.send);
            let replica = self.replica(own);
            let applied: Vec<LogEntry> = replica.carry_out(work);
            if let Some(member) = replica.member_mut() {
                member.finish().map_err(|_| Fault("damaged work"))?;
            }
            for entry in applied {
                let digest = entry.index.0 ^ entry.term.0.rotate_left(40) ^ own.0.rotate_left(20);
                self.history = self.history.rotate_left(7) ^ digest;
                self.checks.applied(own, &entry)?;
            }
        }
        Err(Fault("work without an end"))
    }

    fn look(&mut self, own: ReplicaId) -> Result<(), Fault> {
        let Some(member) = self.replicas.get(&own).and_then(Replica::member) else {
            return Ok(());
        };
        if matches!(member.role(), MemberRole::Leads | MemberRole::TakesOver) {
            self.checks.leads(own, member.term())?;
        }
        Ok(())
    }

    fn kill(&mut self, own: ReplicaId, loses_power: bool) {
        let others_weak = self
            .replicas
            .values()
            .any(|one| one.own() != own && one.is_weak());
        let loses_power = loses_power && (self.weather.power_of_all || !others_weak);
        let takes_all = loses_power && self.weather.power_of_all && self.rng.below(3) == 0;
        let mut rng = Rng(self.rng.bits());
        let struck: Vec<ReplicaId> = match takes_all {
            true => MEMBERS.map(ReplicaId).to_vec(),
            false => vec![own],
        };
        for one in struck {
            let replica = self.replica(one);
            replica.stop();
            if loses_power {
                replica.lose_power(&mut rng);
            }
        }
        if loses_power {
            let weak = self.replicas.values().filter(|one| one.is_weak()).count();
            if weak * 2 > MEMBERS.len() {
                self.checks.majority_lost_power();
            }
        }
    }

    fn restart(&mut self, own: ReplicaId) {
        let (seed, bug) = (self.rng.bits(), self.weather.bug);
        let replica = self.replica(own);
        if replica.member().is_none() {
            replica.restart(seed, bug);
        }
    }

    fn replica(&mut self, own: ReplicaId) -> &mut Replica {
        let found = self.replicas.get_mut(&own);
        found.unwrap_or_else(|| panic!("replica {own} is one of three"))
    }
}
