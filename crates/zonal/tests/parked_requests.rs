//! Waiting costs a server no thread: idle clients, changes that wait for another client's cache,
//! deadlines, callers that disconnect.
//!
//! `ZONAL_IDLE_CLIENTS` sets the number of idle clients, 1,000 by default.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod fixture;

use cell::{Cell, code, said, signal};
use fixture::{User, name, who};
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zonal_net::{
    Address, DetachedCall, Identity, NetError, PayloadInto, Pool, PoolConfig, Request, Role,
};
use zonal_types::{
    CellId, ClientId, ClientIdentity, Codec, ErrorCode, Incarnation, Ino, NodeId, ZoneId,
};
use zonal_wire::{ErrorNumber, Header, MetaReply, MetaRequest, NewKind, Service};

/// Largest number of threads of a server, however many requests wait.
const THREADS_MAX: u64 = 63;
/// Number of changes that wait at once.
const CHANGES: usize = 2_000;
/// Number of concurrent calls of one shard to another.
const CALLS: usize = 300;
/// Largest memory of an idle client at a server, in KiB.
const IDLE_KIB_MAX: u64 = 24;

fn idle_clients() -> usize {
    let given = std::env::var("ZONAL_IDLE_CLIENTS").ok();
    given.map_or(1_000, |text| text.parse().unwrap())
}

/// A figure of a process, from /proc/PID/status.
fn figure(pid: u32, wanted: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(wanted)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Waits until few threads are left that received requests.
fn settled(pid: u32) {
    let end = Instant::now() + Duration::from_secs(20);
    while figure(pid, "Threads:") > THREADS_MAX {
        assert!(Instant::now() < end, "{} threads", figure(pid, "Threads:"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A client that consists of a session only.
#[derive(Clone, Copy)]
struct Guest {
    header: Header,
    boot: u64,
}

/// A shard of a cell, called directly.
struct Shard {
    pool: Arc<Pool>,
    to: Address,
    cell: CellId,
}

impl Shard {
    fn of(cell: &Cell) -> Self {
        Self::at(cell, "meta1")
    }

    fn at(cell: &Cell, node: &str) -> Self {
        let any = CellId::default();
        let identity = Identity::new(any, Role::Client, NodeId(0), None);
        let pool = Arc::new(Pool::new(identity, PoolConfig::default()));
        let to = Address::any_node(cell.address(node, false));
        let cell = pool.probe(to).unwrap().cell;
        Self { pool, to, cell }
    }

    fn start(&self, header: Header, request: &MetaRequest) -> DetachedCall {
        let body = request.to_bytes();
        let request = Request {
            operation: request.name(),
            header,
            body: &body,
            payload: &[],
            room: 0,
        };
        let flight = self.pool.start(self.to, request).unwrap();
        flight.detach(Arc::clone(&self.pool))
    }

    fn ask(&self, header: Header, request: &MetaRequest) -> MetaReply {
        finish(self.start(header, request))
    }

    fn guest(&self, number: usize) -> Guest {
        let mut header = Header::request(Service::Meta, self.cell);
        header.identity = ClientIdentity {
            client: ClientId(1_000 + number as u64),
            incarnation: Incarnation(1),
        };
        let open = MetaRequest::OpenSession {
            zone: ZoneId(1),
            name: "guest".into(),
        };
        let MetaReply::Session { session, boot, .. } = self.ask(header, &open) else {
            panic!("no session");
        };
        header.session = session;
        Guest { header, boot }
    }

    /// Waits for events of a guest.
    fn poll(&self, guest: &Guest) -> DetachedCall {
        let mut header = guest.header;
        header.deadline_ms = 60_000;
        let request = MetaRequest::PollEvents {
            boot: guest.boot,
            acked: 0,
            wait_ms: 30_000,
        };
        self.start(header, &request)
    }

    /// Makes a guest cache a directory, so that changes in it must be announced to the guest.
    fn caches(&self, guest: &Guest, dir: Ino) {
        let request = MetaRequest::Lookup {
            who: who(),
            parent: dir,
            name: name("nothing"),
        };
        let absent = self.ask(guest.header, &request);
        assert!(
            matches!(absent, MetaReply::NoEntry { entry_ms: 1.. }),
            "{absent:?}"
        );
    }

    fn inodes(&self, guest: &Guest, dir: Ino) -> usize {
        let (mut cookie, mut count) = (0, 0);
        loop {
            let request = MetaRequest::ReadDir {
                who: who(),
                dir,
                cookie,
                entries: 1_000,
                plus: false,
            };
            let MetaReply::Dir { entries, end } = self.ask(guest.header, &request) else {
                panic!("no listing");
            };
            count += entries.len();
            let Some(last) = entries.last().filter(|_| !end) else {
                return count;
            };
            cookie = last.cookie;
        }
    }
}

fn finish(flight: DetachedCall) -> MetaReply {
    let reply = flight.finish(PayloadInto::Owned).unwrap();
    MetaReply::from_bytes(&reply.body).unwrap()
}

fn create(dir: Ino, number: usize) -> MetaRequest {
    MetaRequest::Create {
        who: who(),
        parent: dir,
        name: name(&format!("file{number}")),
        kind: NewKind::File,
        mode: 0o644,
        umask: 0,
        zone: ZoneId(1),
        node: NodeId(0),
        open: false,
        open_flags: 0,
        exclusive: true,
    }
}

/// A guest's change with its session slot.
fn change(guest: &Guest, sequence: u32, deadline_ms: u32) -> Header {
    let mut header = guest.header;
    (header.slot, header.sequence, header.deadline_ms) = (0, sequence, deadline_ms);
    header
}

/// A cell in which a node's server takes many connections.
fn cell_of(name: &str, node: &str) -> Cell {
    let cell = Cell::up(name);
    let output = cell.down();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let config = cell.config(node);
    let mut text = fs::read_to_string(&config).unwrap();
    text.push_str("\n[limits]\nconnections = 65536\n");
    fs::write(&config, text).unwrap();
    let output = cell.up_again();
    assert_eq!(code(&output), 0, "{}", said(&output));
    cell
}

/// A cell whose shard takes many connections, and a directory of its zone.
fn cell() -> (Cell, Ino) {
    let cell = cell_of("waiting", "meta1");
    let user = User::of(&cell);
    let dir = zonal_native::block_on(user.0.begin().mkdir(
        &who(),
        Ino::ROOT,
        name("dir"),
        (0o755, 0),
        Some(ZoneId(1)),
    ));
    let dir = dir.unwrap().attr.ino;
    (cell, dir)
}

#[test]
fn idle_clients_and_waiting_changes_use_no_threads() {
    let (cell, dir) = cell();
    let (shard, pid) = (Shard::of(&cell), cell.pid("meta1"));
    let before = figure(pid, "VmRSS:");
    let count = idle_clients();
    let guests: Vec<Guest> = (0..count).map(|number| shard.guest(number)).collect();
    let polls: Vec<_> = guests.iter().map(|guest| shard.poll(guest)).collect();
    settled(pid);
    let grown = figure(pid, "VmRSS:") - before;
    let each = grown / count as u64;
    assert!(each <= IDLE_KIB_MAX, "{each} KiB for each idle client");

    let reader = shard.guest(count);
    shard.caches(&reader, dir);
    let changes: Vec<_> = guests
        .iter()
        .cycle()
        .take(CHANGES)
        .enumerate()
        .map(|(number, guest)| {
            let mut header = change(guest, 1, 30_000);
            header.slot = (number / count) as u32;
            shard.start(header, &create(dir, number))
        })
        .collect();
    settled(pid);
    // The reader never acknowledges, so changes continue when its lease expires.
    let mut waited = Duration::ZERO;
    for flight in changes {
        let begun = Instant::now();
        let made = finish(flight);
        waited += begun.elapsed();
        assert!(matches!(made, MetaReply::Entry { .. }), "{made:?}");
    }
    assert!(waited > Duration::from_secs(1), "nobody waited: {waited:?}");
    assert_eq!(shard.inodes(&reader, dir), CHANGES);
    drop(polls);
}

#[test]
fn a_wait_ends_with_its_deadline_or_its_caller() {
    let (cell, dir) = cell();
    let shard = Shard::of(&cell);
    let (reader, writer) = (shard.guest(1), shard.guest(2));
    shard.caches(&reader, dir);
    let begun = Instant::now();
    let flight = shard.start(change(&writer, 1, 700), &create(dir, 1));
    // The connection times out at the same time as the shard.
    match flight.finish(PayloadInto::Owned) {
        Err(NetError::TimedOut { .. }) => {}
        late => {
            let timed_out = MetaReply::Failed {
                code: ErrorNumber(ErrorCode::TimedOut),
            };
            let late = MetaReply::from_bytes(&late.unwrap().body);
            assert_eq!(late.unwrap(), timed_out);
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(3));
    // Nothing was done, so the same request is carried out once.
    let made = shard.ask(change(&writer, 1, 20_000), &create(dir, 1));
    assert!(matches!(made, MetaReply::Entry { .. }), "{made:?}");
    assert_eq!(shard.inodes(&writer, dir), 1);

    shard.caches(&reader, dir);
    let flight = shard.start(change(&writer, 2, 20_000), &create(dir, 2));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(waiting(&cell), 1);
    drop(flight);
    let end = Instant::now() + Duration::from_secs(3);
    while waiting(&cell) > 0 {
        assert!(Instant::now() < end, "its wait is kept");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn calls_to_a_silent_shard_take_few_threads() {
    let cell = cell_of("silent-shard", "manager");
    let (root, pid, of_zone) = (
        Shard::at(&cell, "manager"),
        cell.pid("manager"),
        cell.pid("meta1"),
    );
    let guests: Vec<Guest> = (0..CALLS).map(|number| root.guest(number)).collect();
    settled(pid);
    signal(of_zone, "STOP");
    let mkdir = |number| MetaRequest::Mkdir {
        who: who(),
        parent: Ino::ROOT,
        name: name(&format!("dir{number}")),
        mode: 0o755,
        umask: 0,
        zone: ZoneId(1),
    };
    let asked = guests.iter().zip(0..);
    let flights: Vec<_> = asked
        .map(|(guest, number)| root.start(change(guest, 1, 30_000), &mkdir(number)))
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let threads = figure(pid, "Threads:");
    signal(of_zone, "CONT");
    assert!(threads <= THREADS_MAX, "{threads} threads");
    for flight in flights {
        let made = finish(flight);
        assert!(matches!(made, MetaReply::Entry { .. }), "{made:?}");
    }
    assert_eq!(root.inodes(&guests[0], Ino::ROOT), CALLS);
}

/// Requests that wait at the shard.
fn waiting(cell: &Cell) -> u64 {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(cell.address("meta1", true)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("zonal_shard_waiting_requests"));
    line.unwrap()
        .split(' ')
        .next_back()
        .unwrap()
        .parse()
        .unwrap()
}
