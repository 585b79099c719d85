//! The simulated network: messages with delay, loss and duplication between named processes.
//!
//! A lost message shows as a time-out, a killed server as a broken connection. Requests overtake one another freely.
//! Only requests to shards are duplicated: a connection never repeats a request, but a client that tries again does,
//! and shards promise to bear that.

use crate::clock::{Clock, Group, Sleep};
use crate::report::Trace;
use crate::rng::Rng;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use zonal_client::{Message, Net, NetFailure, Reply};
use zonal_types::{Codec, Instant, Timestamp};
use zonal_wire::{Header, MetaReply, MetaRequest, NO_SLOT, Service, StorageReply, StorageRequest};

/// The group of messages under way: no process, never killed.
pub const NETWORK: Group = 0;
/// Where calendar time begins, seconds.
const WALL_START: i64 = 1_800_000_000;

/// What a process answers.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The encoded reply.
    pub body: Vec<u8>,
    /// Raw bytes behind it.
    pub payload: Vec<u8>,
}

/// A future of a process.
pub type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// What runs in a server process.
pub trait Role {
    /// Answers one request.
    fn handle(self: Rc<Self>, header: Header, body: Vec<u8>, payload: Vec<u8>) -> Task<Answer>;
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
    /// Of 1000 requests to shards, how many arrive twice.
    pub duplicate: u64,
    /// Of 1000 messages, how many take fifty times as long.
    pub slow: u64,
}

impl LinkFaults {
    /// A good network.
    pub const NONE: Self = Self {
        delay_min: 20_000,
        delay_max: 200_000,
        loss: 0,
        duplicate: 0,
        slow: 0,
    };
}

struct Server {
    group: Group,
    role: Option<Rc<dyn Role>>,
}

/// Where a reply arrives.
#[derive(Default)]
struct Place {
    outcome: RefCell<Option<Result<(Header, Answer), NetFailure>>>,
    waker: RefCell<Option<Waker>>,
}

impl Place {
    fn fill(&self, outcome: Result<(Header, Answer), NetFailure>) {
        let mut place = self.outcome.borrow_mut();
        if place.is_none() {
            *place = Some(outcome);
            drop(place);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }
}

/// Breaks the connection where its server dies before it answered.
struct Broken(Option<Rc<Place>>);

impl Drop for Broken {
    fn drop(&mut self) {
        if let Some(place) = self.0.take() {
            place.fill(Err(NetFailure::Unreachable));
        }
    }
}

/// All processes and what lies between them.
pub struct Network {
    /// The clock of the whole world.
    pub clock: Clock,
    /// What happened, as a number.
    pub trace: Trace,
    rng: RefCell<Rng>,
    servers: RefCell<BTreeMap<String, Server>>,
    faults: Cell<LinkFaults>,
    /// Pairs that cannot reach one another.
    cuts: RefCell<BTreeSet<(String, String)>>,
    messages: Cell<u64>,
}

impl Network {
    /// A network without servers.
    #[must_use]
    pub fn new(clock: Clock, rng: Rng) -> Self {
        Self {
            clock,
            trace: Trace::default(),
            rng: RefCell::new(rng),
            servers: RefCell::default(),
            faults: Cell::new(LinkFaults::NONE),
            cuts: RefCell::default(),
            messages: Cell::new(0),
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
    pub fn serve(&self, address: &str, group: Group, role: Option<Rc<dyn Role>>) {
        let server = Server { group, role };
        self.servers.borrow_mut().insert(address.to_owned(), server);
    }

    /// Cuts or mends the way between two processes.
    pub fn cut(&self, one: &str, other: &str, is_cut: bool) {
        let mut cuts = self.cuts.borrow_mut();
        for pair in [(one, other), (other, one)] {
            let pair = (pair.0.to_owned(), pair.1.to_owned());
            if is_cut {
                cuts.insert(pair);
            } else {
                cuts.remove(&pair);
            }
        }
    }

    /// Mends everything.
    pub fn heal(&self) {
        self.cuts.borrow_mut().clear();
        self.faults.set(LinkFaults::NONE);
    }

    /// Calendar time: follows the clock.
    #[must_use]
    pub fn wall(&self) -> Timestamp {
        let now = self.clock.now().0;
        Timestamp {
            seconds: WALL_START + (now / 1_000_000_000) as i64,
            nanos: (now % 1_000_000_000) as u32,
        }
    }

    /// Delay of the next message from one process to another; `None`: it is lost.
    fn travel(&self, from: &str, to: &str) -> Option<u64> {
        self.messages.set(self.messages.get() + 1);
        let faults = self.faults.get();
        let mut rng = self.rng.borrow_mut();
        let mut delay = rng.between(faults.delay_min, faults.delay_max);
        if rng.chance(faults.slow) {
            delay *= 50;
        }
        let is_cut = self
            .cuts
            .borrow()
            .contains(&(from.to_owned(), to.to_owned()));
        (!rng.chance(faults.loss) && !is_cut).then_some(delay)
    }

    /// Sends a request; the reply arrives in the pending place.
    pub fn start(self: &Rc<Self>, from: &str, to: &str, request: &Request) -> Pending {
        let place = Rc::new(Place::default());
        let deadline_ms = u64::from(request.header.deadline_ms);
        let deadline = self.clock.now().plus_ms(deadline_ms.max(1));
        let twice = request.header.service == Service::Meta && request.header.slot != NO_SLOT && {
            let duplicate = self.faults.get().duplicate;
            self.rng.borrow_mut().chance(duplicate)
        };
        let group = self.servers.borrow().get(to).map(|server| server.group);
        for _ in 0..=u32::from(twice) {
            if let Some(delay) = self.travel(from, to) {
                let net = self.clone();
                let (from, to) = (from.to_owned(), to.to_owned());
                let (request, place) = (request.clone(), place.clone());
                self.clock.spawn(NETWORK, async move {
                    net.clock.sleep(delay).await;
                    net.deliver(&from, &to, group, request, place);
                });
            }
        }
        Pending {
            place,
            deadline,
            clock: self.clock.clone(),
        }
    }

    /// Hands a request over, if the process to which it was sent is still the same: connections die with it.
    fn deliver(
        self: Rc<Self>,
        from: &str,
        to: &str,
        sent_to: Option<Group>,
        request: Request,
        place: Rc<Place>,
    ) {
        self.trace
            .note(self.clock.now(), from, to, &request.body, &request.payload);
        self.trace
            .say(self.clock.now(), &|| describe_request(from, to, &request));
        let served = {
            let servers = self.servers.borrow();
            let server = servers
                .get(to)
                .filter(|server| Some(server.group) == sent_to);
            server.and_then(|server| Some((server.group, server.role.clone()?)))
        };
        let (from, to) = (from.to_owned(), to.to_owned());
        let Some((group, role)) = served else {
            place.fill(Err(NetFailure::Unreachable));
            return;
        };
        let net = self.clone();
        self.clock.spawn(group, async move {
            let mut broken = Broken(Some(place));
            let mut header = request.header.reply();
            let answer = role
                .handle(request.header, request.body, request.payload)
                .await;
            header.body_bytes = answer.body.len() as u32;
            header.payload_bytes = answer.payload.len() as u32;
            let Some(place) = broken.0.take() else {
                return;
            };
            if let Some(delay) = net.travel(&to, &from) {
                let clock = net.clock.clone();
                net.clock.clone().spawn(NETWORK, async move {
                    clock.sleep(delay).await;
                    net.trace
                        .note(clock.now(), &to, &from, &answer.body, &answer.payload);
                    net.trace.say(clock.now(), &|| {
                        describe_reply(&to, &from, &header, &answer)
                    });
                    place.fill(Ok((header, answer)));
                });
            }
        });
    }
}

fn describe_request(from: &str, to: &str, request: &Request) -> String {
    let header = &request.header;
    let body = &request.body;
    let message = match header.service {
        Service::Meta => MetaRequest::from_bytes(body).map(|message| format!("{message:?}")),
        Service::Storage => StorageRequest::from_bytes(body).map(|message| format!("{message:?}")),
        _ => return format!("{from} > {to}: manager"),
    };
    let slot = (header.slot != NO_SLOT).then_some((header.slot, header.sequence));
    let message = message.unwrap_or_default();
    format!(
        "{from} > {to}: session {} slot {slot:?} {message} +{}",
        header.session,
        request.payload.len()
    )
}

fn describe_reply(from: &str, to: &str, header: &Header, answer: &Answer) -> String {
    let body = &answer.body;
    let message = match header.service {
        Service::Meta => MetaReply::from_bytes(body).map(|message| format!("{message:?}")),
        Service::Storage => StorageReply::from_bytes(body).map(|message| format!("{message:?}")),
        _ => return format!("{to} < {from}: manager"),
    };
    let slot = (header.slot != NO_SLOT).then_some((header.slot, header.sequence));
    format!(
        "{to} < {from}: slot {slot:?} {} +{}",
        message.unwrap_or_default(),
        answer.payload.len()
    )
}

/// A request on its way.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its header.
    pub header: Header,
    /// The encoded message.
    pub body: Vec<u8>,
    /// Raw bytes behind it.
    pub payload: Vec<u8>,
}

/// A reply not yet there.
pub struct Pending {
    place: Rc<Place>,
    deadline: Instant,
    clock: Clock,
}

impl Pending {
    /// Waits for the reply or the deadline.
    ///
    /// # Errors
    /// `TimedOut`, `Unreachable`.
    pub async fn receive(self) -> Result<(Header, Answer), NetFailure> {
        let mut sleep: Sleep = self.clock.sleep_until(self.deadline);
        std::future::poll_fn(|context| {
            if let Some(outcome) = self.place.outcome.borrow_mut().take() {
                return Poll::Ready(outcome);
            }
            *self.place.waker.borrow_mut() = Some(context.waker().clone());
            Pin::new(&mut sleep)
                .poll(context)
                .map(|()| Err(NetFailure::TimedOut))
        })
        .await
    }
}

/// The network as one client sees it.
pub struct SimNet {
    network: Rc<Network>,
    name: String,
    rng: RefCell<Rng>,
}

impl SimNet {
    /// For the process with this name.
    #[must_use]
    pub fn new(network: Rc<Network>, name: &str, rng: Rng) -> Self {
        Self {
            network,
            name: name.to_owned(),
            rng: RefCell::new(rng),
        }
    }
}

impl Net for SimNet {
    type Pending = Pending;
    type Sink = Vec<u8>;

    fn now(&self) -> Instant {
        self.network.clock.now()
    }

    fn wall(&self) -> Timestamp {
        self.network.wall()
    }

    fn random(&self) -> u64 {
        self.rng.borrow_mut().bits()
    }

    fn sleep(&self, ms: u64) -> impl Future<Output = ()> {
        self.network.clock.sleep(ms * 1_000_000)
    }

    fn start(&self, address: &str, message: &Message<'_>) -> Pending {
        let request = Request {
            header: message.header,
            body: message.body.to_vec(),
            payload: message.payload.concat(),
        };
        self.network.start(&self.name, address, &request)
    }

    async fn finish(
        &self,
        pending: Pending,
        payload: Option<&mut [u8]>,
    ) -> Result<Reply, NetFailure> {
        let (header, answer) = pending.receive().await?;
        let out = payload.unwrap_or_default();
        let count = answer.payload.len();
        let Some(place) = out.get_mut(..count) else {
            return Err(NetFailure::Refused(zonal_types::ErrorCode::Protocol));
        };
        place.copy_from_slice(&answer.payload);
        Ok(Reply {
            header,
            body: answer.body,
            payload_bytes: count,
        })
    }

    fn suits_sink(&self, _address: &str) -> bool {
        true
    }

    async fn finish_into(
        &self,
        pending: Pending,
        sink: &mut Vec<u8>,
        bytes: usize,
    ) -> Result<Reply, NetFailure> {
        let (header, answer) = pending.receive().await?;
        let payload_bytes = answer.payload.len();
        if payload_bytes == bytes {
            sink.extend_from_slice(&answer.payload);
        }
        Ok(Reply {
            header,
            body: answer.body,
            payload_bytes,
        })
    }

    fn complain(&self, _server: &str, _doing: &str, _failure: NetFailure) {}
}
