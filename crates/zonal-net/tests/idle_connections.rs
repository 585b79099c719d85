//! Idle connections hold no threads, and none of them is forgotten.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::*;
use zonal_net::{Address, PayloadInto, Pool, ServerConfig};
use zonal_types::Codec;

/// One test at a time: the thread count is the whole process's.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads of this process that serve connections.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "connection").count()
}

#[test]
fn idle_connections_take_no_threads_and_are_served_again() {
    let _turn = turn();
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
        // Longer than idle connections keep their buffers.
        std::thread::sleep(Duration::from_millis(150 * round));
    }
    let accepted = counter(&server.metrics().snapshot(), "accepted");
    assert_eq!(accepted, 400, "a connection was lost");
    // Each waiting request has a thread, and other requests are answered beside them.
    let received = counter(&server.metrics().snapshot(), "frames_in");
    let waiting: Vec<_> = clients[..100]
        .iter()
        .map(|client| client.start(to, request(b"hang", &[], 60_000)).unwrap())
        .collect();
    works(&clients[399], to);
    counted(&server, "frames_in", received + 101);
    assert!(threads() >= 100);
    works(&clients[398], to);
    server.shutdown();
    for flight in waiting {
        flight.finish(PayloadInto::Owned).unwrap();
    }
    until("all threads have ended", || threads() == 0);
}

#[test]
fn parked_requests_take_no_threads_and_go_on_once() {
    let _turn = turn();
    let echo = Arc::new(Echo::default());
    let config = ServerConfig {
        connections_max: 4096,
        ..ServerConfig::new(server_identity(None))
    };
    let address = "127.0.0.1:0".parse().unwrap();
    let server = start_echo(address, config, true, Arc::clone(&echo));
    let to = Address::new(server.addresses()[0], NODE);
    let clients = [pool(None), by_tcp(client_identity(None))];
    for round in 0..3 {
        let flights: Vec<_> = (0..600)
            .map(|number| {
                let request = request(b"park", &[], 60_000);
                clients[number % 2].start(to, request).unwrap()
            })
            .collect();
        if round == 1 {
            // Some requests resume before their connections are kept.
            until("they go on", || {
                echo.resume_all();
                counter(&server.metrics().snapshot(), "frames_out") == 1201
            });
        } else {
            until("all are parked", || {
                echo.parked.lock().unwrap().len() == 600
            });
            until("threads end", || threads() <= 5);
            works(&clients[0], to);
            echo.resume_all();
        }
        for flight in flights {
            let reply = flight.finish(PayloadInto::Owned).unwrap();
            assert_eq!(reply.body, 7_u64.to_bytes());
        }
    }
    let gone = by_tcp(client_identity(None));
    let mut flight = gone.start(to, request(b"park", &[], 60_000)).unwrap();
    let canceller = flight.canceller();
    until("it is parked", || echo.parked.lock().unwrap().len() == 1);
    canceller.cancel();
    assert!(flight.finish(PayloadInto::Owned).is_err());
    until("its handler hears of it", || {
        echo.given_up.load(Ordering::SeqCst) == 1
    });
    let flight = gone.start(to, request(b"park", &[], 60_000)).unwrap();
    until("it is parked", || echo.parked.lock().unwrap().len() == 2);
    server.shutdown();
    drop(flight);
}

#[test]
fn closed_idle_connections_make_room() {
    let _turn = turn();
    let (server, to) = echo_server(true);
    let clients: Vec<Pool> = (0..50).map(|_| pool(None)).collect();
    clients.iter().for_each(|client| works(client, to));
    std::thread::sleep(Duration::from_millis(50));
    drop(clients);
    counted(&server, "connections", 0);
}
