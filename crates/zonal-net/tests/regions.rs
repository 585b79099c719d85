//! Payloads in memory that client and server share: used in place, never reused while a server may
//! still touch them, and harmless to a server.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use zonal_net::handshake::{Handshake, Hello};
use zonal_net::{
    Address, Handler, ListenConfig, Listeners, NetError, PayloadInto, Peer, Pool, PoolConfig,
    ReplyBuilder, Request, Role, ServerConfig, ServerHandle, serve,
};
use zonal_region::Regions;
use zonal_testkit::Rng;
use zonal_types::limits::{REGION_BYTES_MAX, REGION_PAYLOAD_MIN};
use zonal_types::{Codec, ErrorCode, NodeId, ZoneId};
use zonal_wire::frame::{FEATURE_REGION, PayloadAt, Room, VERSION};
use zonal_wire::{HEADER_BYTES, Header, Service};

const LONG: usize = 1 << 20;

/// Waits for a word where the request says so, then replies with the payload that it saw; or fills
/// that many bytes.
struct Slow {
    go_on: Mutex<Receiver<()>>,
    began: Mutex<Sender<()>>,
    seen: Mutex<Sender<Vec<u8>>>,
}

impl Handler for Slow {
    fn handle(
        &self,
        _peer: &Peer,
        _header: &Header,
        body: &[u8],
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) {
        let is_slow = body.first() == Some(&b's');
        if is_slow {
            self.began.lock().unwrap().send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
        match body {
            b"refuse" => {
                reply.payload_mut(LONG).fill(0xbb);
                reply.truncate_payload(0);
            }
            b"elsewhere" => {
                reply.leave_room();
                reply.payload_mut(LONG).fill(0xcc);
            }
            [_, byte] => reply.payload_mut(LONG).fill(*byte),
            _ => reply.body_mut().extend_from_slice(body),
        }
        if is_slow {
            self.seen.lock().unwrap().send(payload.to_vec()).unwrap();
        }
    }
}

/// A server, the sender that lets its slow requests go on, and the receiver of its events.
struct Stage {
    _server: ServerHandle,
    to: Address,
    go_on: Sender<()>,
    began: Receiver<()>,
    seen: Receiver<Vec<u8>>,
}

fn stage() -> Stage {
    let (go_on, waits) = channel();
    let (tells, began) = channel();
    let (shows, seen) = channel();
    let config = ServerConfig::new(server_identity(None));
    let listen = ListenConfig::one("127.0.0.1:0".parse().unwrap());
    let listeners = Listeners::bind(&listen, &config.identity).unwrap();
    let handler = Slow {
        go_on: Mutex::new(waits),
        began: Mutex::new(tells),
        seen: Mutex::new(shows),
    };
    let server = serve(listeners, config, Arc::new(handler)).unwrap();
    let to = Address::new(server.addresses()[0], NODE);
    Stage {
        _server: server,
        to,
        go_on,
        began,
        seen,
    }
}

fn sharing(regions: &Regions) -> Pool {
    let config = PoolConfig {
        regions: Some(regions.clone()),
        ..PoolConfig::default()
    };
    Pool::new(client_identity(None), config)
}

fn with_room<'a>(body: &'a [u8], room: usize, deadline_ms: u32) -> Request<'a> {
    Request {
        room,
        ..request(body, &[], deadline_ms)
    }
}

#[test]
fn a_payload_in_shared_memory_is_used_in_place() {
    let stage = stage();
    let regions = Regions::new(LONG, 8);
    let pool = Arc::new(sharing(&regions));
    let mut memory = regions.take(LONG);
    memory.fill(1);
    let sent = [&memory[4096..]];
    let flight = pool.start(stage.to, request(b"s", &sent, 5000)).unwrap();
    let flight = flight.detach(pool.clone());
    stage.began.recv().unwrap();
    // The payload was not sent: the server sees the change.
    memory[5000] = 2;
    stage.go_on.send(()).unwrap();
    let reply = flight.finish(PayloadInto::Owned).unwrap();
    assert_eq!(reply.payload_bytes, 0);
    let seen = stage.seen.recv().unwrap();
    assert_eq!(seen.len(), LONG - 4096);
    assert_eq!((seen[903], seen[904], seen[905]), (1, 2, 1));
    let made = pool.metrics().snapshot();
    assert!(counter(&made, "bytes_out") > LONG as u64 - 4096);

    // Payloads that are short, elsewhere or in pieces are sent; the server does not see later
    // changes.
    let own = vec![1; LONG];
    let short = &memory[..REGION_PAYLOAD_MIN - 1];
    for pieces in [&[short][..], &[&own], &[&memory[..LONG / 2], &own]] {
        let flight = pool.start(stage.to, request(b"s", pieces, 5000)).unwrap();
        stage.began.recv().unwrap();
        stage.go_on.send(()).unwrap();
        flight.finish(PayloadInto::Owned).unwrap();
        assert_eq!(stage.seen.recv().unwrap(), pieces.concat());
    }
}

#[test]
fn a_reply_payload_is_written_into_the_offered_room() {
    let stage = stage();
    let regions = Regions::new(LONG, 2);
    let pool = sharing(&regions);
    assert!(!pool.shares_with(stage.to));
    for round in 0..8_u8 {
        let body = [b'f', round];
        let sent = with_room(&body, LONG, 5000);
        let reply = pool.call(stage.to, sent, PayloadInto::Memory).unwrap();
        assert!(matches!(reply.header.payload_at, PayloadAt::Region { .. }));
        assert_eq!(reply.memory.unwrap()[..], [round; LONG]);
    }
    assert!(pool.shares_with(stage.to));
    // A payload outside of the room, or without room, comes by the socket.
    for (body, room, byte) in [(&b"elsewhere"[..], LONG, 0xcc), (b"f1", LONG - 1, b'1')] {
        let sent = with_room(body, room, 5000);
        let reply = pool.call(stage.to, sent, PayloadInto::Memory).unwrap();
        assert_eq!(reply.header.payload_at, PayloadAt::Inline);
        assert_eq!(reply.memory.unwrap()[..], [byte; LONG]);
    }
    let all = [regions.take(1), regions.take(1)];
    let reply = pool.call(stage.to, with_room(b"f2", LONG, 5000), PayloadInto::Memory);
    assert_eq!(reply.unwrap().header.payload_at, PayloadAt::Inline);
    drop(all);
    // After a refusal the room's contents do not count.
    let reply = pool
        .call(
            stage.to,
            with_room(b"refuse", LONG, 5000),
            PayloadInto::Memory,
        )
        .unwrap();
    assert_eq!((reply.payload_bytes, reply.header.payload_bytes), (0, 0));
    assert_eq!((0..2).filter_map(|_| regions.take_shared(1)).count(), 2);
    // TCP shares nothing.
    let config = PoolConfig {
        regions: Some(regions),
        is_unix_tried: false,
        ..PoolConfig::default()
    };
    let tcp = Pool::new(client_identity(None), config);
    let reply = tcp.call(stage.to, with_room(b"f3", LONG, 5000), PayloadInto::Memory);
    assert_eq!(reply.unwrap().header.payload_at, PayloadAt::Inline);
    assert!(!tcp.shares_with(stage.to));
}

#[test]
fn memory_lent_to_an_abandoned_request_is_never_reused() {
    let stage = stage();
    let regions = Regions::new(LONG, 2);
    let pool = sharing(&regions);
    let mut memory = regions.take(LONG);
    memory.fill(1);
    // A write and a read whose server stands still.
    let outcome = pool.call(
        stage.to,
        request(b"s", &[&memory], 1000),
        PayloadInto::Owned,
    );
    assert!(
        matches!(outcome, Err(NetError::TimedOut { .. })),
        "{outcome:?}"
    );
    drop(memory);
    let outcome = pool.call(stage.to, with_room(b"s9", LONG, 1000), PayloadInto::Memory);
    assert!(
        matches!(outcome, Err(NetError::TimedOut { .. })),
        "{outcome:?}"
    );
    // All memory that is left, filled with something else, and sent.
    let mut all: Vec<_> = (0..4).map(|_| regions.take(LONG)).collect();
    all.iter_mut().for_each(|memory| memory.fill(2));
    for memory in &all {
        pool.call(stage.to, request(b"x", &[memory], 5000), PayloadInto::Owned)
            .unwrap();
    }
    // The server goes on with the bytes that it was given, and writes into memory that is not
    // reused.
    stage.go_on.send(()).unwrap();
    stage.go_on.send(()).unwrap();
    let (one, other) = (stage.seen.recv().unwrap(), stage.seen.recv().unwrap());
    let written = if one.is_empty() { other } else { one };
    assert!(written == [1; LONG], "{:?}", &written[..1]);
    assert!(all.iter().all(|memory| memory[..] == [2; LONG]));
}

/// A connection whose handshake was done by hand.
fn raw(to: Address) -> UnixStream {
    let mut stream = UnixStream::connect(zonal_net::unix_socket::path_of(CELL, to.tcp)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let hello = Hello {
        version_min: VERSION,
        version_max: VERSION,
        cell: CELL,
        role: Role::Client,
        node: NodeId(0),
        zone: ZoneId(0),
        features: FEATURE_REGION,
    };
    let body = Handshake::Hello { hello }.to_bytes();
    let head = Header {
        body_bytes: body.len() as u32,
        ..Header::request(Service::Connection, CELL)
    };
    stream.write_all(&head.encode()).unwrap();
    stream.write_all(&body).unwrap();
    read_frame(&mut stream).unwrap();
    stream
}

fn read_frame(stream: &mut UnixStream) -> Option<(Header, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).ok()?;
    let header = Header::decode(&head).unwrap();
    let mut rest = vec![0; header.body_bytes as usize + header.inline_bytes()];
    stream.read_exact(&mut rest).ok()?;
    Some((header, rest))
}

fn send_with(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    let sent = sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::empty(),
    );
    assert_eq!(sent, Ok(bytes.len()));
}

fn memory_file(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn write_at(offset: u64, bytes: u32) -> Header {
    Header {
        payload_bytes: bytes,
        payload_at: PayloadAt::Region { offset },
        ..Header::request(Service::Storage, CELL)
    }
}

fn read_at(offset: u64, length: u32) -> Header {
    Header {
        room: Some(Room { offset, length }),
        ..Header::request(Service::Storage, CELL)
    }
}

#[test]
fn naming_unshared_memory_ends_that_connection_only() {
    let (server, to) = echo_server(true);
    let good = memory_file(LONG as u64, SealFlags::SHRINK);
    let long = LONG as u64;
    let disk: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    let bad_parts = [
        write_at(long - 1, 2),
        write_at(u64::MAX, 1),
        write_at(long, 1),
        read_at(long - 1, 2),
        read_at(u64::MAX, u32::MAX),
        read_at(0, u32::MAX),
    ];
    let bad_files = [
        memory_file(long, SealFlags::GROW),
        memory_file(0, SealFlags::SHRINK),
        memory_file(REGION_BYTES_MAX + 1, SealFlags::SHRINK),
        disk,
    ];
    let none = [write_at(0, 4096), read_at(0, 4096)];
    let (broken, short) = (ErrorCode::Protocol, ErrorCode::Overloaded);
    let cases = bad_parts.map(|head| (head, Some(&good), broken));
    // A server without a free descriptor gets none: the sender has to try again.
    let cases = cases
        .into_iter()
        .chain(none.map(|head| (head, None, short)));
    let files = bad_files
        .iter()
        .map(|file| (write_at(0, 4096), Some(file), broken));
    for (index, (head, file, code)) in cases.chain(files).enumerate() {
        let mut stream = raw(to);
        match file {
            Some(file) => send_with(&stream, &head.encode(), &[file.as_fd()]),
            None => stream.write_all(&head.encode()).unwrap(),
        }
        let (_, body) = read_frame(&mut stream).unwrap();
        let code = code.number();
        let refused = Handshake::Refused { code };
        assert_eq!(Handshake::from_bytes(&body), Ok(refused), "case {index}");
        assert!(read_frame(&mut stream).is_none(), "case {index}");
        counted(&server, "refused_protocol", index as u64 + 1);
    }
    works(&pool(None), to);
}

#[test]
fn unwanted_descriptors_are_closed() {
    let (_server, to) = echo_server(true);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let file = memory_file(LONG as u64, SealFlags::SHRINK);
    let mut stream = raw(to);
    let before = open();
    let mut rng = Rng(5);
    for round in 0..200_u8 {
        // Up to eight descriptors with one frame, also where it names no memory.
        let files = vec![file.as_fd(); 1 + rng.below(8) as usize];
        rustix::io::pwrite(&file, &[round; 8192], 0).unwrap();
        let head = if rng.below(2) == 0 {
            write_at(0, 8192)
        } else {
            Header::request(Service::Storage, CELL)
        };
        send_with(&stream, &head.encode(), &files);
        let (reply, rest) = read_frame(&mut stream).unwrap();
        assert_eq!(rest, vec![round; reply.payload_bytes as usize]);
        assert_eq!(reply.payload_bytes, head.payload_bytes);
    }
    // The server runs in this process: one descriptor may be about to be closed.
    until("descriptors are closed", || open() <= before + 1);
    // TCP carries no descriptors, and before the handshake none is accepted.
    works(&pool(None), to);
}
