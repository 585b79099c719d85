//! Calls over real sockets: payloads, deadlines, restarts, pools.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::*;
use zonal_net::{
    Address, Canceller, Endpoint, NetError, PayloadInto, Pool, PoolConfig, ServerConfig,
};
use zonal_testkit::Rng;
use zonal_types::ErrorCode;
use zonal_types::limits::PAYLOAD_BYTES_MAX;

fn payloads_come_back(has_unix: bool) {
    let (_server, to) = echo_server(has_unix);
    let pool = pool(None);
    let data = Rng(42).bytes(PAYLOAD_BYTES_MAX);
    for len in [
        0,
        1,
        4095,
        4096,
        8063,
        8064,
        8192,
        65_537,
        1 << 20,
        PAYLOAD_BYTES_MAX,
    ] {
        let payload = &data[..len];
        let reply = pool
            .call(to, request(b"b", &[payload], 0), PayloadInto::Owned)
            .unwrap();
        assert_eq!(reply.payload, payload, "owned {len}");
        assert_eq!((reply.body.as_slice(), reply.is_resent), (&b"b"[..], false));
        assert_eq!(reply.header.payload_crc.is_some(), !has_unix && len > 0);

        let mut room = vec![0xee; len + 3];
        let (left, right) = payload.split_at(len / 3);
        let reply = pool
            .call(
                to,
                request(b"b", &[left, &[], right], 0),
                PayloadInto::One(&mut room),
            )
            .unwrap();
        assert_eq!((reply.payload_bytes, reply.payload.len()), (len, 0));
        assert_eq!(&room[..len], payload, "into one slice {len}");
        assert_eq!(&room[len..], [0xee; 3]);
    }
    assert_eq!(pool.idle_count(), 1, "one connection was enough");
    let made = pool.metrics().snapshot();
    assert_eq!(counter(&made, "connected_unix"), u64::from(has_unix));
    assert_eq!(counter(&made, "connected_tcp"), u64::from(!has_unix));
}

/// Runs calls at the same time, each on a connection of its own.
fn at_once(pool: &Pool, to: Address, count: usize) {
    let flights: Vec<_> = (0..count)
        .map(|_| pool.start(to, request(b"x", &[], 5000)).unwrap())
        .collect();
    for flight in flights {
        flight.finish(PayloadInto::Owned).unwrap();
    }
}

#[test]
fn payloads_round_trip_by_tcp() {
    payloads_come_back(false);
}

#[test]
fn payloads_round_trip_by_unix_socket_which_is_preferred() {
    payloads_come_back(true);
}

#[test]
fn long_bodies_round_trip() {
    let (_server, to) = echo_server(false);
    let body = Rng(1).bytes(zonal_types::limits::BODY_BYTES_MAX);
    assert_eq!(call(&pool(None), to, &body).unwrap().body, body);
}

#[test]
fn a_frame_past_a_bound_is_not_sent() {
    let (_server, to) = echo_server(true);
    let pool = pool(None);
    let payload = vec![0; PAYLOAD_BYTES_MAX + 1];
    let error = pool
        .call(to, request(b"b", &[&payload], 0), PayloadInto::Owned)
        .unwrap_err();
    assert!(matches!(error, NetError::TooLong { .. }), "{error}");
    works(&pool, to);
}

#[test]
fn a_payload_longer_than_the_room_is_an_error() {
    let (_server, to) = echo_server(true);
    let pool = pool(None);
    let error = pool
        .call(
            to,
            request(b"b", &[&[1; 100]], 0),
            PayloadInto::One(&mut [0; 99]),
        )
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::Protocol);
    works(&pool, to);
}

#[test]
fn several_requests_are_in_flight_at_once() {
    let (_one, a) = echo_server(true);
    let (_two, b) = echo_server(false);
    let pool = pool(None);
    let data = Rng(3).bytes(PAYLOAD_BYTES_MAX);
    let slices: [&[u8]; 1] = [&data];
    let flights: Vec<_> = [a, b, a, b]
        .iter()
        .map(|to| pool.start(*to, request(b"x", &slices, 0)).unwrap())
        .collect();
    for flight in flights {
        let mut room = vec![0; data.len()];
        flight.finish(PayloadInto::One(&mut room)).unwrap();
        assert!(room == data);
    }
    assert_eq!(pool.idle_count(), 4);
    pool.close_idle();
    assert_eq!(pool.idle_count(), 0);
}

#[test]
fn a_server_that_does_not_answer_is_named_within_the_deadline() {
    let (_server, to) = echo_server(true);
    let pool = pool(None);
    for _ in 0..2 {
        let start = Instant::now();
        let error = pool
            .call(to, request(b"hang", &[], 600), PayloadInto::Owned)
            .unwrap_err();
        let took = start.elapsed();
        let NetError::TimedOut {
            server,
            operation,
            ms,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(
            (server, operation, ms),
            (Endpoint::Unix(to.tcp), "test Echo", 600)
        );
        assert!(
            took >= Duration::from_millis(600) && took < Duration::from_secs(2),
            "{took:?}"
        );
    }
    assert_eq!(pool.idle_count(), 0, "timed-out connections are closed");
    works(&pool, to);
}

#[test]
fn a_reply_that_arrived_in_time_counts_after_the_deadline() {
    for has_unix in [false, true] {
        let (_server, to) = echo_server(has_unix);
        let pool = pool(None);
        // Short enough to be in the socket's buffer before it is received.
        let payload = vec![7; 4096];
        let payload = [payload.as_slice()];
        let flight = pool.start(to, request(b"late", &payload, 200)).unwrap();
        // The caller waited for another server meanwhile.
        std::thread::sleep(Duration::from_secs(1));
        let reply = flight.finish(PayloadInto::Owned).unwrap();
        assert_eq!((&reply.body[..], reply.payload.len()), (&b"late"[..], 4096));
    }
}

#[test]
fn idle_connections_are_dropped_after_an_unanswered_request() {
    let (_server, to) = echo_server(true);
    let pool = pool(None);
    at_once(&pool, to, 3);
    assert_eq!(pool.idle_count(), 3);
    let hang = request(b"hang", &[], 100);
    assert!(pool.call(to, hang, PayloadInto::Owned).is_err());
    assert_eq!(
        pool.idle_count(),
        0,
        "the threads behind them may stand still, too"
    );
}

#[test]
fn a_silent_listener_is_named_and_then_fails_fast() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Address::any_node(listener.local_addr().unwrap());
    let pool = Pool::new(
        client_identity(None),
        PoolConfig {
            connect_limit: Duration::from_millis(100),
            backoff: Duration::from_secs(100),
            ..PoolConfig::default()
        },
    );
    let error = call(&pool, to, b"x").unwrap_err();
    assert!(
        matches!(error, NetError::TimedOut { ms: 100, .. }),
        "{error}"
    );
    let start = Instant::now();
    let error = call(&pool, to, b"x").unwrap_err();
    assert!(matches!(error, NetError::Unreachable { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_millis(50));
    assert!(error.is_retryable() && !error.may_have_executed());
}

#[test]
fn a_closed_port_is_unreachable() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = call(&pool(None), Address::any_node(free), b"x").unwrap_err();
    assert!(matches!(error, NetError::Unreachable { .. }));
    assert!(error.to_string().contains(&free.to_string()), "{error}");
}

#[test]
fn a_dripping_server_does_not_stretch_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Address::any_node(listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).unwrap();
        // A byte every 20 ms, until the client gives up.
        while stream.write_all(b"Z").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let start = Instant::now();
    let error = pool(None)
        .call(to, request(b"x", &[], 300), PayloadInto::Owned)
        .unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(matches!(error, NetError::TimedOut { .. }), "{error}");
    thread.join().unwrap();
}

#[test]
fn a_restart_between_calls_goes_unnoticed() {
    for has_unix in [false, true] {
        let (server, to) = echo_server(has_unix);
        let pool = pool(None);
        at_once(&pool, to, 3);
        server.shutdown();
        let _server = start_at(to.tcp, ServerConfig::new(server_identity(None)), has_unix);
        works(&pool, to);
        assert_eq!(pool.idle_count(), 1, "the other dead ones are gone");
        works(&pool, to);
    }
}

#[test]
fn a_request_that_may_have_run_twice_says_so() {
    let (_server, to) = echo_server(true);
    let pool = pool(None);
    works(&pool, to);
    // The handler panics on the idle connection and again on the fresh one.
    let error = call(&pool, to, b"panic").unwrap_err();
    assert!(matches!(error, NetError::Lost { .. }), "{error}");
    assert!(error.may_have_executed());
    assert_eq!(counter(&pool.metrics().snapshot(), "resent"), 1);
    works(&pool, to);
}

#[test]
fn idle_connections_are_bounded_in_number_and_age() {
    let (_server, to) = echo_server(true);
    let pool = Pool::new(
        client_identity(None),
        PoolConfig {
            idle_max: 2,
            idle_limit: Duration::from_millis(30),
            ..PoolConfig::default()
        },
    );
    at_once(&pool, to, 4);
    assert_eq!(pool.idle_count(), 2);
    std::thread::sleep(Duration::from_millis(40));
    works(&pool, to);
    assert_eq!(pool.idle_count(), 1);
}

#[test]
fn a_call_is_cancelled_from_another_thread() {
    let (_server, to) = echo_server(true);
    let pool = pool(None);
    works(&pool, to);
    let mut flight = pool.start(to, request(b"hang", &[], 0)).unwrap();
    let canceller = flight.canceller();
    let thread = std::thread::spawn(move || canceller.cancel());
    let error = flight.finish(PayloadInto::Owned).unwrap_err();
    assert!(matches!(error, NetError::Cancelled { .. }), "{error}");
    thread.join().unwrap();
    works(&pool, to);
}

#[test]
fn threads_share_a_pool() {
    let (server, to) = echo_server(true);
    let pool = pool(None);
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..200_u32 {
                    let body = [&[thread], &round.to_le_bytes()[..]].concat();
                    assert_eq!(call(pool, to, &body).unwrap().body, body);
                }
            });
        }
    });
    assert!(pool.idle_count() <= 8);
    counted(&server, "frames_out", 1600);
}

/// A listener whose process is stopped: the kernel accepts connections while the queue has room,
/// and no process answers.
#[test]
fn a_call_is_cancelled_while_it_connects() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Address::any_node(listener.local_addr().unwrap());
    let pool = pool(None);
    // The first calls wait for the handshake, those behind a full queue for the connection itself.
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        for _ in 0..200 {
            let canceller = Canceller::default();
            let (pool, own) = (&pool, canceller.clone());
            let call = scope.spawn(move || {
                let request = request(b"b", &[], 30_000);
                pool.start_cancellable(to, request, &own).map(drop)
            });
            waiting.push((canceller, call));
        }
        std::thread::sleep(Duration::from_millis(300));
        let start = Instant::now();
        for (canceller, _) in &waiting {
            canceller.cancel();
        }
        for (_, call) in waiting {
            let error = call.join().unwrap().unwrap_err();
            assert!(matches!(error, NetError::Cancelled { .. }), "{error}");
        }
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
    });
    // A cancelled call starts no back-off: the next call tries.
    drop(listener);
    let error = pool.call(to, request(b"b", &[], 0), PayloadInto::Owned);
    assert!(matches!(error, Err(NetError::Unreachable { .. })));
}
