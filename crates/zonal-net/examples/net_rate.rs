//! Measures rates of small calls and throughput of large payloads, TCP against Unix socket, on this
//! machine.
//!
//! `cargo run --release -p zonal-net --example net_rate`
#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use zonal_net::{
    Address, Handler, Identity, ListenConfig, Listeners, NetError, PayloadInto, Peer, Pool,
    PoolConfig, ReplyBuilder, Request, Role, ServerConfig, serve,
};
use zonal_types::{CellId, NodeId};
use zonal_wire::{Header, Service};

const CELL: CellId = CellId([1; 16]);

/// Body "r" and a length: replies with a payload of that length. Any other body: replies with
/// nothing.
struct Work;

impl Handler for Work {
    fn handle(
        &self,
        _peer: &Peer,
        _header: &Header,
        body: &[u8],
        _payload: &[u8],
        reply: &mut ReplyBuilder,
    ) {
        if let Some(length) = body.strip_prefix(b"r")
            && let Ok(length) = length.try_into()
        {
            // Like a server that reads from its page cache into the buffer, but without the read.
            reply.payload_mut(u32::from_le_bytes(length) as usize);
        }
        reply.body_mut().extend_from_slice(b"done");
    }
}

struct Case {
    name: &'static str,
    read: u32,
    write: usize,
}

fn rate(pool: &Pool, to: Address, case: &Case) -> Result<f64, NetError> {
    let body = if case.read > 0 {
        [&b"r"[..], &case.read.to_le_bytes()].concat()
    } else {
        b"w".to_vec()
    };
    let data = vec![7; case.write];
    let mut room = vec![0; case.read as usize];
    let mut count = 0_u32;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(700) {
        for _ in 0..16 {
            let request = Request {
                operation: "bench",
                header: Header::request(Service::Storage, CELL),
                body: &body,
                payload: &[&data],
                room: 0,
            };
            pool.call(to, request, PayloadInto::One(&mut room))?;
            count += 1;
        }
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

const CASES: [Case; 6] = [
    Case {
        name: "empty call",
        read: 0,
        write: 0,
    },
    Case {
        name: "read 4 KiB",
        read: 4096,
        write: 0,
    },
    Case {
        name: "write 4 KiB",
        read: 0,
        write: 4096,
    },
    Case {
        name: "read 1 MiB",
        read: 1 << 20,
        write: 0,
    },
    Case {
        name: "write 1 MiB",
        read: 0,
        write: 1 << 20,
    },
    Case {
        name: "read 4 MiB",
        read: 4 << 20,
        write: 0,
    },
];

fn main() -> Result<(), NetError> {
    let buffer_bytes = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(4 << 20);
    let identity = |role, node| Identity::new(CELL, role, NodeId(node), None);
    let mut server_config = ServerConfig::new(identity(Role::Server, 1));
    server_config.buffer_bytes = buffer_bytes;
    let listen = ListenConfig {
        buffer_bytes,
        ..ListenConfig::one(([127, 0, 0, 1], 0).into())
    };
    let listeners = Listeners::bind(&listen, &server_config.identity)?;
    let server = serve(listeners, server_config, Arc::new(Work))?;
    let to = Address::any_node(server.addresses()[0]);
    let pool = |is_unix_tried, is_unix_checked| {
        let config = PoolConfig {
            is_unix_tried,
            is_unix_checked,
            buffer_bytes,
            ..PoolConfig::default()
        };
        Pool::new(identity(Role::Client, 0), config)
    };
    let (tcp, unix) = (pool(false, false), pool(true, false));
    println!("{:12} {:>16} {:>16}", "", "TCP", "Unix socket");
    for case in &CASES {
        let mut best = [0.0_f64; 2];
        for _ in 0..3 {
            for (best, pool) in best.iter_mut().zip([&tcp, &unix]) {
                *best = best.max(rate(pool, to, case)?);
            }
        }
        let bytes = (case.read as usize + case.write) as f64;
        let show = |rate: f64| {
            if bytes > 100_000.0 {
                format!("{:.2} GB/s", rate * bytes / 1e9)
            } else {
                format!("{rate:.0}/s")
            }
        };
        println!(
            "{:12} {:>16} {:>16}",
            case.name,
            show(best[0]),
            show(best[1])
        );
    }
    Ok(())
}
