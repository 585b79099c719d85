//! Connections without a request take no threads, and none of them is forgotten.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::time::Duration;

use common::*;
use zonal_net::{PayloadInto, Pool, ServerConfig};

/// Threads of this process that serve connections.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "connection").count()
}

#[test]
fn idle_connections_take_no_threads_and_are_served_again() {
    let config = ServerConfig {
        connections_max: 1024,
        patience: Duration::from_millis(200),
        ..ServerConfig::new(server_identity(None))
    };
    let (server, to) = start(config, true);
    let clients: Vec<Pool> = (0..400)
        .map(|number| match number % 2 {
            0 => pool(None),
            _ => by_tcp(client_identity(None)),
        })
        .collect();
    for round in 0..3 {
        for client in &clients {
            works(client, to);
        }
        counted(&server, "connections", 400);
        until("threads end", || threads() <= 5);
        // Longer than buffers are kept.
        std::thread::sleep(Duration::from_millis(150 * round));
    }
    let accepted = counter(&server.metrics().snapshot(), "accepted");
    assert_eq!(accepted, 400, "a connection was lost");
    // As many requests as wait have threads, and others are answered beside them.
    let waiting: Vec<_> = clients[..100]
        .iter()
        .map(|client| client.start(to, request(b"hang", &[], 60_000)).unwrap())
        .collect();
    works(&clients[399], to);
    until("all wait", || threads() >= 100);
    works(&clients[398], to);
    server.shutdown();
    for flight in waiting {
        flight.finish(PayloadInto::Owned).unwrap();
    }
    until("all threads have ended", || threads() == 0);
}

#[test]
fn connections_that_end_while_they_are_aside_make_room() {
    let (server, to) = echo_server(true);
    let clients: Vec<Pool> = (0..50).map(|_| pool(None)).collect();
    clients.iter().for_each(|client| works(client, to));
    std::thread::sleep(Duration::from_millis(50));
    drop(clients);
    counted(&server, "connections", 0);
}
