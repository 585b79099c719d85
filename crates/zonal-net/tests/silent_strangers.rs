//! Silent strangers, however many, keep no client out that shakes hands; idle connections make
//! room; connections of revoked credentials end.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::*;
use zonal_net::{NetError, PayloadInto, STRANGERS_MAX, ServerConfig, TlsFault};
use zonal_types::{ErrorCode, Scope};

#[test]
fn a_flood_of_silent_strangers_keeps_nobody_out() {
    let keys = Keys::new();
    let config = ServerConfig {
        connections_max: 64,
        ..ServerConfig::new(server_identity(keys.server()))
    };
    let (server, to) = start(config, false);
    // Five times as many as there are places of any kind.
    let silent: Vec<TcpStream> = (0..5 * (64 + STRANGERS_MAX))
        .map(|_| TcpStream::connect(to.tcp).unwrap())
        .collect();
    until("all are accepted", || {
        counter(&server.metrics().snapshot(), "accepted") == silent.len() as u64
    });
    let start = Instant::now();
    let credential = keys.client(Scope::default());
    for _client in 0..32 {
        works(&by_tcp(client_identity(credential.clone())), to);
    }
    // Long before the handshakes' limit would have ended the strangers.
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    let ended = counter(&server.metrics().snapshot(), "strangers_ended");
    assert!(
        ended >= silent.len() as u64 - STRANGERS_MAX as u64,
        "{ended}"
    );
    // A displaced stranger's connection is closed.
    let mut first = &silent[0];
    assert!(!matches!(first.read(&mut [0; 1]), Ok(1..)));
}

#[test]
fn the_longest_idle_connection_makes_room_for_a_new_one() {
    let config = ServerConfig {
        connections_max: 2,
        ..ServerConfig::new(server_identity(None))
    };
    let (server, to) = start(config, false);
    let clients = [0; 3].map(|_| by_tcp(client_identity(None)));
    works(&clients[0], to);
    works(&clients[1], to);
    // Both connections were just used.
    let error = call(&clients[2], to, b"x").unwrap_err();
    assert_eq!(error.code(), ErrorCode::Overloaded);
    until("one is idle for long enough", || {
        call(&clients[2], to, b"hello").is_ok()
    });
    counted(&server, "connections", 2);
    // A client whose connection was taken gets another one with its next call; a busy connection is
    // not taken.
    let received = counter(&server.metrics().snapshot(), "frames_in");
    let busy = clients[1].start(to, request(b"hang", &[], 60_000)).unwrap();
    // Until the request has arrived, the server counts the connection as idle.
    counted(&server, "frames_in", received + 1);
    until("the first is back", || {
        call(&clients[0], to, b"hello").is_ok()
    });
    server.shutdown();
    busy.finish(PayloadInto::Owned).unwrap();
}

#[test]
fn a_revoked_credential_ends_its_connections_and_makes_no_new_ones() {
    let keys = Keys::new();
    let (server, to) = start(ServerConfig::new(server_identity(keys.server())), false);
    let (old, new) = (keys.client(Scope::default()), keys.client(Scope::default()));
    let serial = old.as_ref().unwrap().serial();
    // Two credentials are valid side by side, as during a renewal.
    let (old, new) = (by_tcp(client_identity(old)), by_tcp(client_identity(new)));
    works(&old, to);
    works(&new, to);
    server.revoker().revoke(&BTreeSet::from([serial]));
    let error = call(&old, to, b"x").unwrap_err();
    assert!(
        matches!(
            error,
            NetError::Unauthenticated {
                fault: TlsFault::Refused,
                ..
            }
        ),
        "{error}"
    );
    works(&new, to);
    counted(&server, "connections", 1);
    server.revoker().revoke(&BTreeSet::new());
    works(&old, to);
}
