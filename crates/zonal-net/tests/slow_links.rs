//! Calls over a slow link: their deadline counts from the last progress.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use zonal_net::{Address, NetError, PayloadInto, ServerConfig, ServerHandle};
use zonal_testkit::Rng;

/// Deadline of a call and patience of the server; a busy machine may hold up a step for as long.
const LIMIT: Duration = Duration::from_millis(1500);
/// Bytes of a handshake, each way, are fewer.
const HANDSHAKE: usize = 1000;
/// Bytes that take a slow link longer than the limit, at least.
const LONG: usize = 7 << 17;

/// How fast a link is in one direction, once the handshake is done.
#[derive(Clone, Copy)]
struct Pace {
    /// Bytes of a step, which are followed by a pause.
    step: usize,
    pause: Duration,
    /// Bytes after which the link stands still.
    most: usize,
}

const FAST: Pace = Pace {
    step: 1 << 20,
    pause: Duration::ZERO,
    most: usize::MAX,
};
/// Kernels tell a sender of more room in pieces of the receive buffer: a smaller step would show no
/// progress for long.
const SLOW: Pace = Pace {
    step: 48 << 10,
    pause: Duration::from_millis(100),
    most: usize::MAX,
};
const STOPPING: Pace = Pace {
    most: 1 << 19,
    ..SLOW
};
const DRIPPING: Pace = Pace {
    step: 1,
    pause: Duration::from_millis(20),
    ..FAST
};

/// A link to a server.
struct Link {
    address: Address,
    /// Bytes that it took towards the server.
    taken: Arc<AtomicUsize>,
}

impl Link {
    fn to(server: Address, there: Pace, back: Pace) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Accepted sockets inherit it.
        set_socket_recv_buffer_size(&listener, SLOW.step).unwrap();
        let address = Address::new(listener.local_addr().unwrap(), NODE);
        let taken = Arc::new(AtomicUsize::new(0));
        let counter = taken.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, counter) = (near.unwrap(), counter.clone());
                let far = TcpStream::connect(server.tcp).unwrap();
                set_socket_recv_buffer_size(&far, SLOW.step).unwrap();
                far.set_nodelay(true).unwrap();
                near.set_nodelay(true).unwrap();
                let (back_from, back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                std::thread::spawn(move || copy(back_from, back_to, back, &AtomicUsize::new(0)));
                std::thread::spawn(move || copy(near, far, there, &counter));
            }
        });
        Self { address, taken }
    }
}

/// Copies bytes until one end closes. A link that stands still leaves both open.
fn copy(mut from: TcpStream, mut to: TcpStream, pace: Pace, taken: &AtomicUsize) {
    let mut bytes = vec![0; pace.step];
    let mut done = 0;
    while let Ok(count) = from.read(&mut bytes) {
        done += count;
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            break;
        }
        if done > HANDSHAKE {
            std::thread::sleep(pace.pause);
        }
        if taken.fetch_add(count, Ordering::SeqCst) + count >= pace.most {
            std::thread::park();
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A server with the client's patience.
fn server() -> (ServerHandle, Address) {
    let mut config = ServerConfig::new(server_identity(None));
    config.patience = LIMIT;
    config.buffer_bytes = 64 << 10;
    start(config, false)
}

fn deadline_ms() -> u32 {
    u32::try_from(LIMIT.as_millis()).unwrap()
}

#[test]
fn a_request_whose_bytes_leave_slowly_and_steadily_does_not_time_out() {
    let (_server, to) = server();
    let link = Link::to(to, SLOW, FAST);
    let pool = pool(None);
    let data = Rng(5).bytes(LONG);
    let payload = [data.as_slice()];
    let begun = Instant::now();
    let reply = pool
        .call(
            link.address,
            request(b"slow", &payload, deadline_ms()),
            PayloadInto::Owned,
        )
        .unwrap();
    assert!(reply.payload == data && begun.elapsed() > LIMIT);
    assert_eq!(pool.idle_count(), 1, "its connection is used on");
}

#[test]
fn calls_that_stand_behind_one_another_do_not_time_out() {
    let (_server, to) = server();
    let link = Link::to(to, SLOW, FAST);
    let pool = pool(None);
    let data = Rng(6).bytes(LONG);
    let long = [data.as_slice()];
    let short = [&data[..1 << 19]];
    // The caller looks at the shorter one when its time is long over.
    let flights: Vec<_> = [&long, &short]
        .into_iter()
        .map(|payload| pool.start(link.address, request(b"slow", payload, deadline_ms())))
        .collect();
    for flight in flights {
        flight.unwrap().finish(PayloadInto::Owned).unwrap();
    }
}

#[test]
fn a_request_whose_bytes_stop_leaving_times_out() {
    let (_server, to) = echo_server(false);
    let link = Link::to(to, STOPPING, FAST);
    let pool = pool(None);
    let data = Rng(7).bytes(4 << 20);
    let payload = [data.as_slice()];
    let error = pool
        .call(
            link.address,
            request(b"slow", &payload, deadline_ms()),
            PayloadInto::Owned,
        )
        .unwrap_err();
    assert!(
        matches!(error, NetError::TimedOut { ms: 1500, .. }),
        "{error}"
    );
    assert!(
        link.taken.load(Ordering::SeqCst) >= STOPPING.most,
        "it moved before"
    );
}

#[test]
fn a_request_that_the_server_waits_for_in_vain_is_no_violation_of_the_protocol() {
    let (server, to) = server();
    let link = Link::to(to, STOPPING, FAST);
    let data = Rng(8).bytes(4 << 20);
    let payload = [data.as_slice()];
    let request = request(b"slow", &payload, 30_000);
    let error = pool(None).call(link.address, request, PayloadInto::Owned);
    assert!(matches!(error, Err(NetError::Lost { .. })), "{error:?}");
    counted(&server, "refused_slow", 1);
}

#[test]
fn a_reply_whose_bytes_arrive_slowly_and_steadily_does_not_time_out() {
    let (_server, to) = server();
    let link = Link::to(to, FAST, SLOW);
    let begun = Instant::now();
    let request = request(b"long", &[], deadline_ms());
    let reply = pool(None).call(link.address, request, PayloadInto::Owned);
    assert!(reply.unwrap().payload == [7; LONG] && begun.elapsed() > LIMIT);
}

#[test]
fn a_reply_that_drips_does_not_stretch_the_deadline() {
    let (_server, to) = server();
    let link = Link::to(to, FAST, DRIPPING);
    let request = request(b"long", &[], 300);
    let reply = pool(None).call(link.address, request, PayloadInto::Owned);
    assert!(matches!(reply, Err(NetError::TimedOut { ms: 300, .. })));
}
