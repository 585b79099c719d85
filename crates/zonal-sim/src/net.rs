//! The simulated network: messages with delay, loss and duplication between named processes.
//!
//! | fault | effect at the sender |
//! | --- | --- |
//! | a lost message | a time-out |
//! | a killed server | a broken connection |
//!
//! Requests overtake one another freely. The network duplicates requests to shards with a session
//! slot, and deletions and idempotent requests to targets. A connection never repeats a request,
//! but a sender that tries again does, and servers promise to bear that. Some changes of objects
//! arrive after their sender gave them up, sent them again, and went on. Each process has its own
//! clocks.

mod client;
mod delivery;
mod lent_memory;
mod message_text;
mod pending_replies;

pub use client::SimNet;
pub use lent_memory::{Lender, LentPart, LentPiece};
pub use pending_replies::PendingReply;

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
use zonal_types::{Ino, Instant, MapVersion, Timestamp};
use zonal_wire::Header;

/// Group of messages on their way: no process, never killed.
pub const NETWORK: Group = 0;

/// A reply on its way.
#[derive(Debug, Clone, Default)]
pub struct SimReply {
    /// The encoded reply.
    pub body: Vec<u8>,
    /// Raw bytes behind it.
    pub payload: Vec<u8>,
}

/// A future of a process.
pub type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// A server process that receives requests.
pub trait SimServer {
    /// Serves one request.
    fn handle(self: Rc<Self>, header: Header, body: Vec<u8>, payload: Vec<u8>) -> Task<SimReply>;

    /// The map's version, as replies name it.
    fn map_version(&self) -> MapVersion {
        MapVersion(0)
    }
}

/// Faults of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFaults {
    /// Shortest delay of a message, ns.
    pub delay_min: u64,
    /// Longest usual delay, ns.
    pub delay_max: u64,
    /// Lost messages, of 1000.
    pub loss: u64,
    /// Duplicated requests, of 1000 that may arrive twice.
    pub duplicate: u64,
    /// Messages that take fifty times as long, of 1000.
    pub slow: u64,
    /// Changes sent to targets that arrive after their sender gave them up, of 1000.
    pub late: u64,
}

impl LinkFaults {
    /// A network without faults.
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
    role: Option<Rc<dyn SimServer>>,
}

/// All processes, and the network between them.
pub struct Network {
    /// The clock of the whole world.
    pub clock: VirtualClock,
    /// Hash of all events.
    pub trace: Trace,
    rng: RefCell<SimRng>,
    servers: RefCell<BTreeMap<String, Server>>,
    faults: Cell<LinkFaults>,
    /// Pairs of processes of which the first cannot reach the second.
    cuts: RefCell<BTreeSet<(String, String)>>,
    /// Processes that no other process reaches.
    isolated: RefCell<BTreeSet<String>>,
    /// Clients whose replies arrive changed.
    garbled: RefCell<BTreeSet<String>>,
    clocks: RefCell<BTreeMap<String, Rc<ProcessClock>>>,
    /// How often each client was killed.
    deaths: RefCell<BTreeMap<String, u64>>,
    coverage: RefCell<Coverage>,
    messages: Cell<u64>,
    /// Requests to targets.
    storage_requests: Cell<u64>,
    /// A planted bug: lent memory is used again as soon as the client has dropped it.
    pub lent_is_reused: Cell<bool>,
    /// Files whose locks a client has lost to others, and was told so.
    forfeited: RefCell<BTreeSet<Ino>>,
}

impl Network {
    /// Whether a client was told that others have got its locks on a file.
    #[must_use]
    pub fn has_forfeited(&self, ino: Ino) -> bool {
        self.forfeited.borrow().contains(&ino)
    }

    /// Makes a network without servers.
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
            storage_requests: Cell::new(0),
            lent_is_reused: Cell::new(false),
            forfeited: RefCell::default(),
        }
    }

    /// Sets the faults of the network.
    pub fn set_faults(&self, faults: LinkFaults) {
        self.faults.set(faults);
    }

    /// Number of messages sent.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages.get()
    }

    /// Number of requests to targets.
    #[must_use]
    pub fn storage_requests(&self) -> u64 {
        self.storage_requests.get()
    }

    /// Sets the process that serves an address (`None`: no process).
    pub fn serve(&self, address: &str, group: Group, role: Option<Rc<dyn SimServer>>) {
        let server = Server { group, role };
        self.servers.borrow_mut().insert(address.to_owned(), server);
    }

    /// Counts a fault.
    pub fn count(&self, fault: FaultKind) {
        self.coverage.borrow_mut().count(fault);
    }

    /// The coverage so far.
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

    /// Cuts a process off from all others, or mends that.
    pub fn isolate(&self, name: &str, is_cut: bool) {
        let mut isolated = self.isolated.borrow_mut();
        if is_cut {
            isolated.insert(name.to_owned());
        } else {
            isolated.remove(name);
        }
    }

    /// Makes replies to this client arrive changed.
    pub fn garble(&self, name: &str) {
        self.garbled.borrow_mut().insert(name.to_owned());
    }

    /// Kills a client: its messages that are on their way do not arrive any more.
    pub fn died(&self, name: &str) {
        *self.deaths.borrow_mut().entry(name.to_owned()).or_default() += 1;
    }

    fn deaths_of(&self, name: &str) -> u64 {
        self.deaths.borrow().get(name).copied().unwrap_or_default()
    }

    /// Mends all ways.
    pub fn heal(&self) {
        self.cuts.borrow_mut().clear();
        self.isolated.borrow_mut().clear();
        self.faults.set(LinkFaults::NONE);
    }

    /// Sets the clocks of a process.
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

    /// Time by the process's clock.
    #[must_use]
    pub fn instant(&self, name: &str) -> Instant {
        self.clock_of(name).local(self.clock.now())
    }

    /// Calendar time by the process's clock.
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

    /// Delay of the next message from one process to another; `None` where it is lost.
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

    /// Changes some bytes of a reply to a client with garbled replies.
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

/// Changes bytes: flips a bit, cuts, or repeats some.
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
    /// Ranges of the payload that lie in memory of the client, with their positions: read on
    /// arrival.
    pub lent: Vec<(usize, LentPart)>,
}
