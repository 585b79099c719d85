//! Strangers, wrong keys, broken frames: each ends its own connection only.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::*;
use zonal_net::handshake::{Handshake, Hello};
use zonal_net::{
    Address, Identity, ListenConfig, Listeners, NetError, PayloadInto, Pool, Role, ServerConfig,
};
use zonal_testkit::Rng;
use zonal_types::{CellId, Codec, ErrorCode, NodeId, ZoneId};
use zonal_wire::{HEADER_BYTES, Header, Service};

fn refused(pool: &Pool, to: Address) -> NetError {
    let error = call(pool, to, b"x").unwrap_err();
    assert!(error.to_string().contains(&to.tcp.to_string()), "{error}");
    error
}

#[test]
fn cells_versions_and_nodes_must_match() {
    let (server, to) = echo_server(true);
    let mut identity = client_identity(None);
    identity.cell = CellId([9; 16]);
    let error = refused(&by_tcp(identity.clone()), to);
    let NetError::WrongCell {
        expected, found, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((expected, found), (CellId([9; 16]), CELL));

    identity.cell = CELL;
    identity.versions = (2, 3);
    let error = refused(&by_tcp(identity), to);
    assert_eq!(error.code(), ErrorCode::WrongVersion);

    let elsewhere = Address::new(to.tcp, NodeId(8));
    let error = refused(&by_tcp(client_identity(None)), elsewhere);
    assert!(matches!(error, NetError::WrongNode { .. }), "{error}");

    counted(&server, "refused_wrong_cell", 1);
    counted(&server, "refused_wrong_version", 1);
}

#[test]
fn a_client_can_learn_the_cell() {
    let (_server, to) = echo_server(true);
    let identity = Identity::new(CellId::default(), Role::Tool, NodeId(0), None);
    let pool = by_tcp(identity);
    let peer = pool.probe(Address::any_node(to.tcp)).unwrap();
    assert_eq!(
        (peer.cell, peer.node, peer.role),
        (CELL, NODE, Role::Server)
    );
    let reply = call(&pool, Address::any_node(to.tcp), b"who").unwrap();
    assert!(
        String::from_bytes(&reply.body)
            .unwrap()
            .starts_with("Tool 0 127.0.0.1:")
    );
}

#[test]
fn a_server_without_a_credential_stays_on_loopback() {
    let config = ListenConfig::one("0.0.0.0:0".parse().unwrap());
    let error = Listeners::bind(&config, &server_identity(None)).unwrap_err();
    assert!(matches!(error, NetError::KeylessBind { .. }));
    assert!(error.to_string().contains("Hint"));
    let (_server, to) = echo_server(false);
    let config = ListenConfig::one(to.tcp);
    let error = Listeners::bind(&config, &server_identity(None)).unwrap_err();
    assert!(matches!(error, NetError::Bind { .. }), "{error}");
}

#[test]
fn a_megabyte_of_random_bytes_changes_nothing() {
    let (server, to) = echo_server(true);
    let pool = pool(None);
    works(&pool, to);
    let mut rng = Rng(7);
    for _ in 0..16 {
        let mut stream = TcpStream::connect(to.tcp).unwrap();
        // The server may close before it took all of it.
        let _ = stream.write_all(&rng.bytes(64 * 1024));
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    works(&pool, to);
    counted(&server, "connections", 1);
    counted(&server, "refused_protocol", 16);
    counted(&server, "handler_panics", 0);
}

/// The bytes of a handshake and a request as a client sends them; the caller awaits the replies in
/// between.
fn honest_frames(body: &[u8], payload: &[u8]) -> [Vec<u8>; 2] {
    let frame = |service, body: &[u8], payload: &[u8]| {
        let header = Header {
            body_bytes: body.len() as u32,
            payload_bytes: payload.len() as u32,
            request_id: 1,
            ..Header::request(service, CELL)
        };
        [&header.encode()[..], body, payload].concat()
    };
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        cell: CELL,
        role: Role::Client,
        node: NodeId(0),
        zone: ZoneId(0),
        features: 0,
    };
    [
        frame(
            Service::Connection,
            &Handshake::Hello { hello }.to_bytes(),
            &[],
        ),
        frame(Service::Storage, body, payload),
    ]
}

fn read_frame(stream: &mut TcpStream) -> Option<(Header, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).ok()?;
    let header = Header::decode(&head).unwrap();
    let mut rest = vec![0; (header.body_bytes + header.payload_bytes) as usize];
    stream.read_exact(&mut rest).ok()?;
    Some((header, rest))
}

#[test]
fn mutated_frames_end_their_connection_only() {
    let (server, to) = echo_server(true);
    let pool = pool(None);
    let mut rng = Rng(11);
    for round in 0..300 {
        let mut frames = honest_frames(b"body", &rng.bytes(500));
        let victim = rng.index(2);
        let at = rng.index(frames[victim].len());
        match rng.below(4) {
            0 => frames[victim][at] ^= 1 << rng.below(8),
            1 => frames[victim].truncate(at),
            2 => {
                let extra = rng.bytes(9);
                frames[victim].splice(at..at, extra);
            }
            _ => {
                // A well-formed header with a wild length.
                let header = Header {
                    body_bytes: (rng.bits() as u32) & 0xf_ffff,
                    payload_bytes: (rng.bits() as u32) & 0x3f_ffff,
                    ..Header::request(Service::Connection, CELL)
                };
                frames[victim][..HEADER_BYTES].copy_from_slice(&header.encode());
            }
        }
        let mut stream = TcpStream::connect(to.tcp).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        for (index, frame) in frames.iter().enumerate() {
            if stream.write_all(frame).is_err() {
                break;
            }
            if index == victim {
                let _ = stream.shutdown(Shutdown::Write);
            }
            match read_frame(&mut stream) {
                Some((header, body)) if header.service == Service::Connection => {
                    if matches!(Handshake::from_bytes(&body), Ok(Handshake::Refused { .. })) {
                        break;
                    }
                }
                Some(_) => {}
                None => break,
            }
        }
        if round % 50 == 0 {
            works(&pool, to);
        }
    }
    works(&pool, to);
    counted(&server, "connections", 1);
    assert_eq!(counter(&server.metrics().snapshot(), "handler_panics"), 0);
}

fn honest_connection(to: Address, frames: &[Vec<u8>; 2]) -> TcpStream {
    let mut stream = TcpStream::connect(to.tcp).unwrap();
    stream.write_all(&frames[0]).unwrap();
    read_frame(&mut stream).unwrap();
    stream
}

#[test]
fn a_frame_of_another_cell_is_refused_by_name() {
    let (server, to) = echo_server(true);
    let frames = honest_frames(b"body", b"payload");
    let mut stream = honest_connection(to, &frames);
    let other = Header::request(Service::Storage, CellId([1; 16]));
    stream.write_all(&other.encode()).unwrap();
    let (_, body) = read_frame(&mut stream).unwrap();
    let code = ErrorCode::WrongCell.number();
    assert_eq!(
        Handshake::from_bytes(&body),
        Ok(Handshake::Refused { code })
    );
    assert!(read_frame(&mut stream).is_none());
    counted(&server, "refused_wrong_cell", 1);
}

#[test]
fn a_damaged_payload_is_refused() {
    let (_server, to) = echo_server(true);
    let frames = honest_frames(b"body", b"payload");
    let mut stream = honest_connection(to, &frames);
    let header = Header {
        payload_bytes: 4,
        payload_crc: Some(zonal_wire::frame::crc32c(b"good")),
        ..Header::request(Service::Storage, CELL)
    };
    stream.write_all(&header.encode()).unwrap();
    stream.write_all(b"gord").unwrap();
    let (_, body) = read_frame(&mut stream).unwrap();
    let code = ErrorCode::Protocol.number();
    assert_eq!(
        Handshake::from_bytes(&body),
        Ok(Handshake::Refused { code })
    );
}

#[test]
fn half_open_connections_and_half_frames_are_no_burden() {
    let mut config = ServerConfig::new(server_identity(None));
    config.patience = Duration::from_millis(100);
    let (server, to) = start(config, true);
    let pool = pool(None);
    works(&pool, to);
    let frames = honest_frames(b"body", &[9; 5000]);
    // Ends in the middle of a frame; stays silent in the middle of a frame; closes one direction.
    let mut cut = honest_connection(to, &frames);
    cut.write_all(&frames[1][..200]).unwrap();
    drop(cut);
    let mut stalled = honest_connection(to, &frames);
    stalled.write_all(&frames[1][..3000]).unwrap();
    let mut half = honest_connection(to, &frames);
    half.write_all(&frames[1]).unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let (header, rest) = read_frame(&mut half).unwrap();
    assert_eq!((header.is_request, rest.len()), (false, 4 + 5000));
    counted(&server, "connections", 1);
    counted(&server, "refused_slow", 1);
    // The honest connection has been idle for longer than the server's patience, and still works.
    works(&pool, to);
    assert_eq!(counter(&pool.metrics().snapshot(), "connected_unix"), 1);
}

#[test]
fn a_slow_handshake_is_ended() {
    let mut config = ServerConfig::new(server_identity(None));
    config.handshake_limit = Duration::from_millis(200);
    let (server, to) = start(config, true);
    let silent = TcpStream::connect(to.tcp).unwrap();
    let hello = &honest_frames(b"", b"")[0];
    let mut slow = TcpStream::connect(to.tcp).unwrap();
    let start = Instant::now();
    for byte in hello.iter() {
        if slow.write_all(&[*byte]).is_err() || start.elapsed() > Duration::from_secs(5) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    counted(&server, "refused_slow", 2);
    drop(silent);
    works(&pool(None), to);
}

#[test]
fn requests_before_the_handshake_are_refused() {
    let (server, to) = echo_server(true);
    let mut stream = TcpStream::connect(to.tcp).unwrap();
    stream
        .write_all(&honest_frames(b"body", &[1; 100])[1])
        .unwrap();
    let (_, body) = read_frame(&mut stream).unwrap();
    let code = ErrorCode::Protocol.number();
    assert_eq!(
        Handshake::from_bytes(&body),
        Ok(Handshake::Refused { code })
    );
    assert!(read_frame(&mut stream).is_none());
    assert_eq!(counter(&server.metrics().snapshot(), "frames_in"), 0);
}

#[test]
fn a_panicking_handler_ends_its_connection_only() {
    let (server, to) = echo_server(true);
    let pool = pool(None);
    let flight = pool.start(to, request(b"hang", &[], 0)).unwrap();
    assert!(call(&pool, to, b"panic").is_err());
    works(&pool, to);
    counted(&server, "handler_panics", 1);
    counted(&server, "frames_in", 3);
    server.shutdown();
    // A request that ran when the server was stopped is answered.
    flight.finish(PayloadInto::Owned).unwrap();
}

#[test]
fn a_connection_past_the_bound_is_refused_as_overloaded() {
    let mut config = ServerConfig::new(server_identity(None));
    config.connections_max = 2;
    let (server, to) = start(config, true);
    let pool = pool(None);
    let flights: Vec<_> = (0..2)
        .map(|_| pool.start(to, request(b"x", &[], 0)).unwrap())
        .collect();
    let error = by_tcp(client_identity(None)).probe(to).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Overloaded, "{error}");
    assert!(error.is_retryable() && !error.may_have_executed());
    for flight in flights {
        flight.finish(PayloadInto::Owned).unwrap();
    }
    works(&pool, to);
    pool.close_idle();
    counted(&server, "connections", 0);
    works(&by_tcp(client_identity(None)), to);
}

#[test]
fn shutdown_ends_idle_connections_and_frees_the_port() {
    let (server, to) = echo_server(true);
    let pool = pool(None);
    works(&pool, to);
    server.shutdown();
    assert!(call(&pool, to, b"x").is_err());
    let again = start_at(to.tcp, ServerConfig::new(server_identity(None)), true);
    until("reachable", || call(&pool, to, b"x").is_ok());
    drop(again);
}
