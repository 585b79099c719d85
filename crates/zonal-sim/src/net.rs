//! The simulated network: messages with delay, loss and duplication between named processes.
//!
//! A lost message shows as a time-out, a killed server as a broken connection. Requests overtake
//! one another freely. Requests to shards with a slot are duplicated, and deletions and idempotent
//! questions to targets: a connection never repeats a request, but a sender that tries again does,
//! and servers promise to bear that. Some changes of objects arrive when their sender has given
//! them up, sent them again, and gone on. Each process has its own clocks.

mod client;
mod delivery;
mod lent_memory;
mod message_text;
mod pending_replies;

pub use client::SimNet;
pub use lent_memory::{Lender, Lent, LentPart};
pub use pending_replies::Pending;

use crate::clock::{Group, VirtualClock};
use crate::clock_skew::ProcessClock;
use crate::coverage::{Coverage, FaultKind};
use crate::report::Trace;
use crate::rng::SimRng;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use zonal_types::{Ino, Instant, Timestamp};
use zonal_wire::Header;

/// The group of messages under way: no process, never killed.
pub const NETWORK: Group = 0;

/// What a process answers.
#[derive(Debug, Clone, Default)]
pub struct SimReply {
    /// The encoded reply.
    pub body: Vec<u8>,
    /// Raw bytes behind it.
    pub payload: Vec<u8>,
}

/// A future of a process.
pub type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// What runs in a server process.
pub trait ServerProcess {
    /// Answers one request.
    fn handle(self: Rc<Self>, header: Header, body: Vec<u8>, payload: Vec<u8>) -> Task<SimReply>;
}

/// How bad the network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFaults {
    /// Shortest delay of a message, ns.
    pub delay_min: u64,
    /// Longest usual delay, ns.
    pub delay_max: u64,
    /// Of 1000 messages, how many are lost.
    pub loss: u64,
    /// Of 1000 requests that may arrive twice, how many do.
    pub duplicate: u64,
    /// Of 1000 messages, how many take fifty times as long.
    pub slow: u64,
    /// Of 1000 changes that are sent to targets, how many arrive when their sender has long given
    /// them up.
    pub late: u64,
}

impl LinkFaults {
    /// A good network.
    pub const NONE: Self = Self {
        delay_min: 20_000,
        delay_max: 200_000,
        loss: 0,
        duplicate: 0,
        slow: 0,
        late: 0,
    };
}

struct Server {
    group: Group,
    role: Option<Rc<dyn ServerProcess>>,
}

/// All processes and what lies between them.
pub struct Network {
    /// The clock of the whole world.
    pub clock: VirtualClock,
    /// What happened, as a number.
    pub trace: Trace,
    rng: RefCell<SimRng>,
    servers: RefCell<BTreeMap<String, Server>>,
    faults: Cell<LinkFaults>,
    /// Pairs of which the first cannot reach the second.
    cuts: RefCell<BTreeSet<(String, String)>>,
    /// Processes that nobody reaches.
    isolated: RefCell<BTreeSet<String>>,
    /// Clients whose replies arrive changed.
    garbled: RefCell<BTreeSet<String>>,
    clocks: RefCell<BTreeMap<String, Rc<ProcessClock>>>,
    /// How often a client was killed.
    deaths: RefCell<BTreeMap<String, u64>>,
    coverage: RefCell<Coverage>,
    messages: Cell<u64>,
    /// The bug: what clients lend to servers is used again when they have dropped it.
    pub lent_is_reused: Cell<bool>,
    /// Files on which clients were told that others have got their locks.
    forfeited: RefCell<BTreeSet<Ino>>,
}

impl Network {
    /// Whether a client was told that others have got its locks on a file.
    #[must_use]
    pub fn has_forfeited(&self, ino: Ino) -> bool {
        self.forfeited.borrow().contains(&ino)
    }

    /// A network without servers.
    #[must_use]
    pub fn new(clock: VirtualClock, rng: SimRng) -> Self {
        Self {
            clock,
            trace: Trace::default(),
            rng: RefCell::new(rng),
            servers: RefCell::default(),
            faults: Cell::new(LinkFaults::NONE),
            cuts: RefCell::default(),
            isolated: RefCell::default(),
            garbled: RefCell::default(),
            clocks: RefCell::default(),
            deaths: RefCell::default(),
            coverage: RefCell::default(),
            messages: Cell::new(0),
            lent_is_reused: Cell::new(false),
            forfeited: RefCell::default(),
        }
    }

    /// From now on the network is so bad.
    pub fn set_faults(&self, faults: LinkFaults) {
        self.faults.set(faults);
    }

    /// Messages sent so far.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages.get()
    }

    /// A process serves this address (`None`: nobody does).
    pub fn serve(&self, address: &str, group: Group, role: Option<Rc<dyn ServerProcess>>) {
        let server = Server { group, role };
        self.servers.borrow_mut().insert(address.to_owned(), server);
    }

    /// A fault happened.
    pub fn count(&self, fault: FaultKind) {
        self.coverage.borrow_mut().count(fault);
    }

    /// What was met so far.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        self.coverage.borrow().clone()
    }

    /// Cuts or mends the way from one process to another.
    pub fn cut_way(&self, from: &str, to: &str, is_cut: bool) {
        let mut cuts = self.cuts.borrow_mut();
        let pair = (from.to_owned(), to.to_owned());
        if is_cut {
            cuts.insert(pair);
        } else {
            cuts.remove(&pair);
        }
    }

    /// Cuts or mends both ways between two processes.
    pub fn cut(&self, one: &str, other: &str, is_cut: bool) {
        self.cut_way(one, other, is_cut);
        self.cut_way(other, one, is_cut);
    }

    /// Cuts a process off from everybody, or mends that.
    pub fn isolate(&self, name: &str, is_cut: bool) {
        let mut isolated = self.isolated.borrow_mut();
        if is_cut {
            isolated.insert(name.to_owned());
        } else {
            isolated.remove(name);
        }
    }

    /// Replies to this client arrive changed.
    pub fn garble(&self, name: &str) {
        self.garbled.borrow_mut().insert(name.to_owned());
    }

    /// A client was killed: what it sent and is not there yet does not arrive any more.
    pub fn died(&self, name: &str) {
        *self.deaths.borrow_mut().entry(name.to_owned()).or_default() += 1;
    }

    fn deaths_of(&self, name: &str) -> u64 {
        self.deaths.borrow().get(name).copied().unwrap_or_default()
    }

    /// Mends everything.
    pub fn heal(&self) {
        self.cuts.borrow_mut().clear();
        self.isolated.borrow_mut().clear();
        self.faults.set(LinkFaults::NONE);
    }

    /// Gives a process clocks of its own.
    pub fn set_clock(&self, name: &str, clock: ProcessClock) {
        let mut clocks = self.clocks.borrow_mut();
        clocks.insert(name.to_owned(), Rc::new(clock));
    }

    /// The clocks of a process.
    #[must_use]
    pub fn clock_of(&self, name: &str) -> Rc<ProcessClock> {
        let clocks = self.clocks.borrow();
        clocks.get(name).cloned().unwrap_or_default()
    }

    /// Time as a process sees it.
    #[must_use]
    pub fn instant(&self, name: &str) -> Instant {
        self.clock_of(name).local(self.clock.now())
    }

    /// Calendar time as a process sees it.
    #[must_use]
    pub fn wall(&self, name: &str) -> Timestamp {
        self.clock_of(name).wall(self.clock.now())
    }

    fn is_cut(&self, from: &str, to: &str) -> bool {
        let isolated = self.isolated.borrow();
        isolated.contains(from)
            || isolated.contains(to)
            || self
                .cuts
                .borrow()
                .contains(&(from.to_owned(), to.to_owned()))
    }

    /// Delay of the next message from one process to another; `None`: it is lost.
    fn travel(&self, from: &str, to: &str) -> Option<u64> {
        self.messages.set(self.messages.get() + 1);
        let faults = self.faults.get();
        let mut rng = self.rng.borrow_mut();
        let mut delay = rng.between(faults.delay_min, faults.delay_max);
        if rng.chance(faults.slow) {
            delay *= 50;
            self.count(FaultKind::Slow);
        }
        if rng.chance(faults.loss) {
            self.count(FaultKind::Loss);
            return None;
        }
        (!self.is_cut(from, to)).then_some(delay)
    }

    /// Changes some of the bytes that a client with garbled replies gets.
    fn garbled(&self, to: &str, answer: &mut SimReply) {
        if !self.garbled.borrow().contains(to) {
            return;
        }
        let mut rng = self.rng.borrow_mut();
        if rng.chance(200) {
            spoil(&mut answer.body, &mut rng);
            self.count(FaultKind::HostileReply);
        }
    }
}

/// Flips a bit, cuts, or repeats bytes.
pub fn spoil(bytes: &mut Vec<u8>, rng: &mut SimRng) {
    let at = rng.below(bytes.len() as u64) as usize;
    match rng.below(4) {
        0 => bytes.truncate(at),
        1 => bytes.extend_from_within(at..),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
    }
}

/// A request on its way.
#[derive(Debug, Clone)]
pub struct SimRequest {
    /// Its header.
    pub header: Header,
    /// The encoded message.
    pub body: Vec<u8>,
    /// Raw bytes behind it.
    pub payload: Vec<u8>,
    /// Parts of these, from where on, that lie in memory of the client: they are read on arrival.
    pub lent: Vec<(usize, LentPart)>,
}
