//! An echo server and its client, for the tests.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(missing_docs, reason = "names say it")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use zonal_net::{
    Address, Authority, Credential, Handler, Identity, ListenConfig, Listeners, NetError,
    PayloadInto, Peer, Pool, PoolConfig, Reply, ReplyBuilder, Request, Resumer, Role, ServerConfig,
    ServerHandle, ServerRoles, Subject, SubjectKind, serve,
};
use zonal_types::{CellId, NodeId, Scope};
use zonal_wire::{Header, Service};

pub const CELL: CellId = CellId([0x5a; 16]);
pub const NODE: NodeId = NodeId(7);

/// Echoes body and payload; bodies that begin with a command do something else.
#[derive(Default)]
pub struct Echo {
    is_stopping: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
    /// Resumers of the "park" requests.
    pub parked: Mutex<Vec<Resumer>>,
    /// Parked requests whose clients went away.
    pub given_up: AtomicUsize,
}

impl Echo {
    /// Resumes all parked requests.
    pub fn resume_all(&self) {
        for resumer in self.parked.lock().unwrap().drain(..) {
            resumer.resume();
            resumer.resume();
        }
    }
}

impl Handler for Echo {
    fn handle(
        &self,
        peer: &Peer,
        _header: &Header,
        body: &[u8],
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) {
        match body {
            b"panic" => panic!("asked to"),
            b"hang" => {
                let mut guard = self.lock.lock().unwrap();
                while !self.is_stopping.load(Ordering::SeqCst) {
                    guard = self.changed.wait(guard).unwrap();
                }
            }
            b"who" => reply.message(&format!("{:?} {} {}", peer.role, peer.node, peer.endpoint)),
            b"close" => reply.close_after(),
            b"long" => reply.payload_mut(7 << 17).fill(7),
            b"park" => match reply.take_kept() {
                None => {
                    self.parked.lock().unwrap().extend(reply.resumer());
                    reply.park(Box::new(7_u64));
                }
                Some(_) if reply.is_peer_gone() => {
                    self.given_up.fetch_add(1, Ordering::SeqCst);
                }
                Some(kept) => reply.message(kept.downcast_ref::<u64>().unwrap()),
            },
            _ => {
                reply.body_mut().extend_from_slice(body);
                let len = payload.len();
                reply.payload_mut(len).copy_from_slice(payload);
            }
        }
    }

    fn stopping(&self) {
        self.resume_all();
        let _guard = self.lock.lock().unwrap();
        self.is_stopping.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

/// An authority of the cell, which issues the tests' credentials.
pub struct Keys(pub Authority);

pub const TERM: Duration = Duration::from_secs(3600);

impl Keys {
    pub fn new() -> Self {
        Self(Authority::make(CELL).unwrap())
    }

    pub fn issue(&self, kind: SubjectKind, term: Duration) -> Option<Arc<Credential>> {
        let issued = self.0.issue(&Subject { cell: CELL, kind }, term).unwrap();
        let credential = Credential::from_pem(issued.pem.as_bytes()).unwrap();
        assert_eq!(credential.serial(), issued.serial);
        Some(Arc::new(credential))
    }

    pub fn server(&self) -> Option<Arc<Credential>> {
        let roles = ServerRoles {
            storage: true,
            ..ServerRoles::default()
        };
        let nodes = vec![NODE];
        self.issue(SubjectKind::Server { nodes, roles }, TERM)
    }

    pub fn client(&self, scope: Scope) -> Option<Arc<Credential>> {
        let name = "client".to_owned();
        self.issue(SubjectKind::Client { name, scope }, TERM)
    }

    pub fn admin(&self) -> Option<Arc<Credential>> {
        let name = "admin".to_owned();
        self.issue(SubjectKind::Admin { name }, TERM)
    }
}

pub fn server_identity(credential: Option<Arc<Credential>>) -> Identity {
    Identity::new(CELL, Role::Server, NODE, credential)
}

pub fn client_identity(credential: Option<Arc<Credential>>) -> Identity {
    Identity::new(CELL, Role::Client, NodeId(0), credential)
}

pub fn start_at(address: SocketAddr, config: ServerConfig, has_unix: bool) -> ServerHandle {
    start_echo(address, config, has_unix, Arc::default())
}

pub fn start_echo(
    address: SocketAddr,
    config: ServerConfig,
    has_unix: bool,
    echo: Arc<Echo>,
) -> ServerHandle {
    let listen = ListenConfig {
        has_unix,
        ..ListenConfig::one(address)
    };
    let listeners = Listeners::bind(&listen, &config.identity).unwrap();
    serve(listeners, config, echo).unwrap()
}

pub fn start(config: ServerConfig, has_unix: bool) -> (ServerHandle, Address) {
    let server = start_at("127.0.0.1:0".parse().unwrap(), config, has_unix);
    let address = Address::new(server.addresses()[0], NODE);
    (server, address)
}

pub fn echo_server(has_unix: bool) -> (ServerHandle, Address) {
    start(ServerConfig::new(server_identity(None)), has_unix)
}

pub fn pool(credential: Option<Arc<Credential>>) -> Pool {
    Pool::new(client_identity(credential), PoolConfig::default())
}

pub fn by_tcp(identity: Identity) -> Pool {
    Pool::new(
        identity,
        PoolConfig {
            is_unix_tried: false,
            ..PoolConfig::default()
        },
    )
}

pub fn request<'a>(body: &'a [u8], payload: &'a [&'a [u8]], deadline_ms: u32) -> Request<'a> {
    Request {
        operation: "test Echo",
        header: Header {
            deadline_ms,
            ..Header::request(Service::Storage, CELL)
        },
        body,
        payload,
        room: 0,
    }
}

pub fn call(pool: &Pool, to: Address, body: &[u8]) -> Result<Reply, NetError> {
    pool.call(to, request(body, &[], 5000), PayloadInto::Owned)
}

pub fn works(pool: &Pool, to: Address) {
    assert_eq!(call(pool, to, b"hello").unwrap().body, b"hello");
}

pub fn counter(snapshot: &[(&'static str, u64)], name: &str) -> u64 {
    snapshot
        .iter()
        .find(|(counter, _)| *counter == name)
        .unwrap()
        .1
}

/// Waits until a counter of the server has this value: the server counts after it has answered.
pub fn counted(server: &ServerHandle, name: &str, value: u64) {
    until(&format!("{name} is {value}"), || {
        counter(&server.metrics().snapshot(), name) == value
    });
}

/// Waits until `state` holds, at most ten seconds.
pub fn until(what: &str, state: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !state() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::yield_now();
    }
}
