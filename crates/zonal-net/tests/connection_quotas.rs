//! Quotas of a server's connections: a client that wants many waits for its own, and other clients
//! are served meanwhile.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::time::{Duration, Instant};

use common::*;
use zonal_net::{
    Address, Identity, InFlight, NetError, PayloadInto, Pool, PoolConfig, Role, ServerConfig,
    ServerHandle,
};
use zonal_types::{ErrorCode, NodeId};

/// Connections of the server; a client's quota is a quarter.
const BOUND: usize = 64;
const SHARE: usize = BOUND / 4;

fn bounded(has_unix: bool) -> (ServerHandle, Address) {
    let config = ServerConfig {
        connections_max: BOUND,
        ..ServerConfig::new(server_identity(None))
    };
    start(config, has_unix)
}

/// Starts as many requests as a client may have in flight.
fn fill<'a>(pool: &'a Pool, to: Address) -> Vec<InFlight<'a>> {
    let flights = (0..SHARE).map(|_| pool.start(to, request(b"hello", &[], 0)).unwrap());
    flights.collect()
}

fn one_more_waits_for_one_that_comes_back(has_unix: bool) {
    let (server, to) = bounded(has_unix);
    let pool = pool(None);
    let mut flights = fill(&pool, to);
    assert_eq!(flights[0].server().is_unix(), has_unix);
    // No connection comes back: the call still fails soon, with the same error as before.
    let start = Instant::now();
    let error = pool.start(to, request(b"one more", &[], 0)).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(error.code(), ErrorCode::Overloaded, "{error}");
    counted(&server, "connections", SHARE as u64);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| call(&pool, to, b"one more"));
        until("one waits", || {
            counter(&pool.metrics().snapshot(), "waited_for_share") == 2
        });
        flights.pop().unwrap().finish(PayloadInto::Owned).unwrap();
        assert_eq!(waiter.join().unwrap().unwrap().body, b"one more");
    });
    for flight in flights {
        assert_eq!(flight.finish(PayloadInto::Owned).unwrap().body, b"hello");
    }
    let metrics = pool.metrics().snapshot();
    let connected = ["connected_unix", "connected_tcp"].map(|name| counter(&metrics, name));
    let all = SHARE as u64;
    assert_eq!(connected, if has_unix { [all, 0] } else { [0, all] });
}

#[test]
fn a_call_past_the_quota_waits_for_a_returned_connection_by_tcp() {
    one_more_waits_for_one_that_comes_back(false);
}

#[test]
fn a_call_past_the_quota_waits_for_a_returned_connection_by_unix_socket() {
    one_more_waits_for_one_that_comes_back(true);
}

#[test]
fn commands_and_servers_have_no_quota() {
    let (_server, to) = bounded(true);
    let client = pool(None);
    let flights = fill(&client, to);
    for role in [Role::Tool, Role::Server] {
        let identity = Identity::new(CELL, role, NodeId(0), None);
        let other = Pool::new(identity, PoolConfig::default());
        let more: Vec<_> = (0..SHARE + 1)
            .map(|_| other.start(to, request(b"hello", &[], 0)).unwrap())
            .collect();
        for flight in more {
            flight.finish(PayloadInto::Owned).unwrap();
        }
        other.close_idle();
    }
    drop(flights);
}

#[test]
fn a_client_gets_closed_connections_back() {
    let (server, to) = bounded(true);
    let client = pool(None);
    for _round in 0..3 {
        let flights = fill(&client, to);
        assert!(flights[0].server().is_unix());
        // Unfinished calls close their connections.
        drop(flights);
        client.close_idle();
        counted(&server, "connections", 0);
    }
    let refused = |error: &NetError| error.code() == ErrorCode::Overloaded;
    let flights = fill(&client, to);
    assert!(
        client
            .start(to, request(b"", &[], 0))
            .is_err_and(|error| refused(&error))
    );
    drop(flights);
}
