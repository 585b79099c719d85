//! Calls over connections and ports, event by event.
//!
//! A call is a request from a client's node to a server's, the server's disk, and a reply. Each is
//! a message on a connection that carries one call at a time. The idle connection that was used
//! last is taken first, as a client's pool does it. A call on the node itself uses the disk only.
//!
//! Acknowledgements go back over the same links and wait in the same queues as data.

use crate::data_centre::DataCentre;
use crate::ports::{FRAME_BYTES, FRAME_PAYLOAD, Port};
use crate::tcp::Sender;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// A frame without payload: headers of Ethernet, IP and TCP.
const ACKNOWLEDGEMENT_BYTES: f64 = FRAME_BYTES - FRAME_PAYLOAD;

/// One call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameCall {
    /// The caller's name for it.
    pub(crate) name: (usize, usize),
    /// The client's node.
    pub(crate) client: usize,
    /// The server's node.
    pub(crate) server: usize,
    /// Bytes of the request.
    pub(crate) request: f64,
    /// Bytes of the reply.
    pub(crate) reply: f64,
    /// Bytes that the server's disk moves.
    pub(crate) disk: f64,
}

/// Frames of one message that go together, or the acknowledgement of some.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    sender: usize,
    bytes: f64,
    sent: f64,
    is_acknowledgement: bool,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// Somebody wants to be woken.
    Woken(usize),
    /// A buffer has left the port of this number on its path.
    Left(Buffer, usize),
    /// A sender notices that a buffer was lost.
    Noticed(usize, f64),
    /// A server's disk has moved the bytes of a connection's call.
    Moved(usize),
    /// A call on the node itself is done.
    DoneHere((usize, usize)),
}

#[derive(Debug)]
struct TimedEvent {
    at: f64,
    number: u64,
    event: Event,
}

impl PartialEq for TimedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for TimedEvent {}

impl PartialOrd for TimedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimedEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap's greatest is the first in time; among equals, the one planned first.
        let by_time = other.at.total_cmp(&self.at);
        by_time.then(other.number.cmp(&self.number))
    }
}

/// A step that a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    /// A call by this name is done.
    Done((usize, usize)),
    /// The time that was asked for has come.
    Woken(usize),
}

/// The connections and ports of a data centre.
#[derive(Debug)]
pub(crate) struct Network<'a> {
    centre: &'a DataCentre,
    pub(crate) now: f64,
    ports: Vec<Port>,
    /// Time at which each node's disk is free.
    disks: Vec<f64>,
    /// Two of each connection: of requests, then of replies.
    senders: Vec<Sender>,
    /// The ports that each sender's buffers cross.
    paths: Vec<Vec<usize>>,
    /// The newest call of each connection.
    calls: Vec<FrameCall>,
    /// Idle connections of a client and a server, the one used last at the end.
    idle: BTreeMap<(usize, usize), Vec<usize>>,
    events: BinaryHeap<TimedEvent>,
    planned: u64,
}

impl<'a> Network<'a> {
    pub(crate) fn new(centre: &'a DataCentre) -> Self {
        Self {
            centre,
            now: 0.0,
            ports: centre.links().into_iter().map(Port::new).collect(),
            disks: vec![0.0; centre.all_nodes()],
            senders: Vec::new(),
            paths: Vec::new(),
            calls: Vec::new(),
            idle: BTreeMap::new(),
            events: BinaryHeap::new(),
            planned: 0,
        }
    }

    fn plan(&mut self, at: f64, event: Event) {
        let number = self.planned;
        self.planned += 1;
        self.events.push(TimedEvent { at, number, event });
    }

    /// Has `next` return [`Happened::Woken`] at this time.
    pub(crate) fn wake(&mut self, at: f64, name: usize) {
        self.plan(at, Event::Woken(name));
    }

    /// Begins a call.
    pub(crate) fn call(&mut self, call: FrameCall) {
        if call.client == call.server {
            let at = self.disk_moves(&call);
            self.plan(at, Event::DoneHere(call.name));
            return;
        }
        let idle = self.idle.entry((call.client, call.server)).or_default();
        let connection = idle.pop().unwrap_or_else(|| self.connect(&call));
        self.calls[connection] = call;
        self.send(2 * connection, call.request);
    }

    fn connect(&mut self, call: &FrameCall) -> usize {
        for (from, to) in [(call.client, call.server), (call.server, call.client)] {
            let mut path = Vec::new();
            self.centre.path(from, to, |link| path.push(link));
            self.paths.push(path);
            self.senders.push(Sender::new());
        }
        self.calls.push(*call);
        self.calls.len() - 1
    }

    fn disk_moves(&mut self, call: &FrameCall) -> f64 {
        let free = &mut self.disks[call.server];
        *free = free.max(self.now) + call.disk / self.centre.disk_rate;
        *free
    }

    fn send(&mut self, sender: usize, bytes: f64) {
        self.senders[sender].begin(self.now, bytes);
        self.pump(sender);
    }

    /// Sends all buffers that a sender may send now.
    fn pump(&mut self, sender: usize) {
        while let Some(bytes) = self.senders[sender].next_buffer(self.now) {
            let buffer = Buffer {
                sender,
                bytes,
                sent: self.now,
                is_acknowledgement: false,
            };
            self.enter(buffer, 0);
        }
    }

    /// The port of this number on a buffer's way.
    fn port_of(&self, buffer: &Buffer, hop: usize) -> Option<usize> {
        let way_back = usize::from(buffer.is_acknowledgement);
        self.paths[buffer.sender ^ way_back].get(hop).copied()
    }

    /// A buffer reaches a port. Where it is dropped, returns the acknowledgement that counts as
    /// received.
    fn enter(&mut self, buffer: Buffer, hop: usize) {
        let Some(port) = self.port_of(&buffer, hop) else {
            return;
        };
        let on_wire = if buffer.is_acknowledgement {
            ACKNOWLEDGEMENT_BYTES
        } else {
            buffer.bytes * FRAME_BYTES / FRAME_PAYLOAD
        };
        if let Some(at) = self.ports[port].send(self.now, on_wire) {
            self.plan(at, Event::Left(buffer, hop));
        } else if buffer.is_acknowledgement {
            // Later ones acknowledge its bytes, too.
            let last = self.paths[buffer.sender ^ 1].len() - 1;
            self.plan(self.now, Event::Left(buffer, last));
        } else {
            let sender = &mut self.senders[buffer.sender];
            if hop == 0 {
                sender.has_left(buffer.bytes);
            }
            let at = self.now + sender.notices_in();
            self.plan(at, Event::Noticed(buffer.sender, buffer.bytes));
        }
    }

    /// Goes on to the next thing that a caller waits for; `None` when nothing is under way.
    pub(crate) fn next(&mut self) -> Option<Happened> {
        while let Some(TimedEvent { at, event, .. }) = self.events.pop() {
            self.now = at;
            match event {
                Event::Woken(name) => return Some(Happened::Woken(name)),
                Event::DoneHere(name) => return Some(Happened::Done(name)),
                Event::Moved(connection) => {
                    let reply = self.calls[connection].reply;
                    self.send(2 * connection + 1, reply);
                }
                Event::Noticed(sender, bytes) => {
                    self.senders[sender].has_lost(self.now, bytes);
                    self.pump(sender);
                }
                Event::Left(buffer, hop) => {
                    if let Some(name) = self.left(buffer, hop) {
                        return Some(Happened::Done(name));
                    }
                }
            }
        }
        None
    }

    /// A buffer has left a port; returns the call that is done by this.
    fn left(&mut self, buffer: Buffer, hop: usize) -> Option<(usize, usize)> {
        if hop == 0 && !buffer.is_acknowledgement {
            self.senders[buffer.sender].has_left(buffer.bytes);
            self.pump(buffer.sender);
        }
        if self.port_of(&buffer, hop + 1).is_some() {
            self.enter(buffer, hop + 1);
            return None;
        }
        if buffer.is_acknowledgement {
            let sender = &mut self.senders[buffer.sender];
            sender.is_acknowledged(self.now, buffer.sent, buffer.bytes);
            self.pump(buffer.sender);
            return None;
        }
        let acknowledgement = Buffer {
            is_acknowledgement: true,
            ..buffer
        };
        self.enter(acknowledgement, 0);
        let is_complete = self.senders[buffer.sender].has_arrived(buffer.bytes);
        is_complete.then(|| self.received(buffer.sender)).flatten()
    }

    /// A message is complete; returns the call that is done by this.
    fn received(&mut self, sender: usize) -> Option<(usize, usize)> {
        let connection = sender / 2;
        let call = self.calls[connection];
        if sender.is_multiple_of(2) {
            let at = self.disk_moves(&call);
            self.plan(at, Event::Moved(connection));
            return None;
        }
        let idle = self.idle.entry((call.client, call.server)).or_default();
        idle.push(connection);
        Some(call.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn centre() -> DataCentre {
        DataCentre {
            racks: 1,
            nodes: 2,
            // 10 MB/s on the wire: a bucket of 100,000 bytes.
            node_rate: 1e7 * FRAME_PAYLOAD / FRAME_BYTES,
            disk_rate: 1e6,
            uplink_rate: 1e9,
            core_rate: None,
            set_width: 2,
        }
    }

    fn read(name: usize, server: usize, bytes: f64) -> FrameCall {
        FrameCall {
            name: (0, name),
            client: 0,
            server,
            request: 200.0,
            reply: bytes,
            disk: bytes,
        }
    }

    fn done(network: &mut Network<'_>) -> (usize, f64) {
        match network.next() {
            Some(Happened::Done((_, name))) => (name, network.now),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_call_takes_the_time_of_its_disk_and_its_link() {
        let centre = centre();
        let mut network = Network::new(&centre);
        // On the node itself there is no link.
        network.call(read(1, 0, 2e6));
        assert_eq!(done(&mut network), (1, 2.0));
        // The bucket takes this reply at once.
        network.call(read(2, 1, 50_000.0));
        let (name, ended) = done(&mut network);
        assert!(name == 2 && (ended - 2.05).abs() < 1e-6, "{ended}");
        // 1 MB: 1 s of the disk, in which the bucket fills, then 945,600 bytes at the rate.
        network.call(read(3, 1, 1e6));
        let (_, ended) = done(&mut network);
        assert!((ended - 3.145).abs() < 0.005, "{ended}");
    }

    #[test]
    fn calls_at_once_share_the_link_on_a_connection_each() {
        let centre = centre();
        let mut network = Network::new(&centre);
        network.call(read(1, 1, 1e6));
        network.call(read(2, 1, 1e6));
        let ended = [done(&mut network).1, done(&mut network).1];
        // The second reply begins after 2 s of the disk; the first has gone by then.
        assert!((ended[0] - 1.095).abs() < 0.005, "{ended:?}");
        assert!((ended[1] - 2.095).abs() < 0.005, "{ended:?}");
        assert_eq!(network.calls.len(), 2);
        network.call(read(3, 1, 1e6));
        done(&mut network);
        assert_eq!(network.calls.len(), 2);
    }
}
