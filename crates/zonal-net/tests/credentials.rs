//! Credentials: which identity a peer may claim by TCP, what a relay can do, and that a Unix socket
//! needs none.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use zonal_net::{
    Address, Authority, Credential, Identity, NetError, PayloadInto, Pool, Role, ServerConfig,
    Subject, SubjectKind, TlsFault, Transport,
};
use zonal_types::{CellId, NodeId, Scope};
use zonal_wire::{Header, Service};

fn fault(pool: &Pool, to: Address) -> TlsFault {
    match call(pool, to, b"x").unwrap_err() {
        NetError::Unauthenticated { fault, .. } => fault,
        error => panic!("{error}"),
    }
}

fn serve_with(credential: Option<Arc<Credential>>) -> (zonal_net::ServerHandle, Address) {
    start(ServerConfig::new(server_identity(credential)), false)
}

#[test]
fn payloads_of_all_lengths_round_trip_encrypted() {
    let keys = Keys::new();
    let (_server, to) = serve_with(keys.server());
    let pool = by_tcp(client_identity(keys.client(Scope::default())));
    for length in [0, 1, 4096, 16_384, 65_537, 1 << 20, 4 << 20] {
        let payload: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        let slices = [&payload[..length / 3], &payload[length / 3..]];
        let reply = pool.call(to, request(b"body", &slices, 0), PayloadInto::Owned);
        let reply = reply.unwrap();
        assert_eq!(reply.body, b"body");
        assert!(reply.payload == payload, "{length}");
    }
    assert_eq!(counter(&pool.metrics().snapshot(), "connected_tcp"), 1);
}

#[test]
fn both_sides_have_a_credential_or_neither() {
    let keys = Keys::new();
    let (server, to) = serve_with(keys.server());
    assert_eq!(fault(&by_tcp(client_identity(None)), to), TlsFault::Absent);
    counted(&server, "refused_unauthenticated", 1);
    let (_plain, to) = serve_with(None);
    let pool = by_tcp(client_identity(keys.client(Scope::default())));
    assert_eq!(fault(&pool, to), TlsFault::Broken);
}

#[test]
fn another_authority_is_no_authority() {
    let (own, other) = (Keys::new(), Keys::new());
    let (server, to) = serve_with(own.server());
    // The client notices first.
    let pool = by_tcp(client_identity(other.client(Scope::default())));
    assert_eq!(fault(&pool, to), TlsFault::Untrusted);
    // A certificate of the other authority under this authority's name: the server notices.
    let forged = Authority::make(CELL).unwrap();
    let kind = SubjectKind::Admin { name: "a".into() };
    let subject = Subject { cell: CELL, kind };
    let pem = forged.issue(&subject, TERM).unwrap().pem;
    let (mine, _authority) = pem.rsplit_once("-----BEGIN CERTIFICATE-----").unwrap();
    let own_pem = own.0.to_pem();
    let at = own_pem.find("-----BEGIN CERTIFICATE-----").unwrap();
    let mixed = format!("{mine}{}", &own_pem[at..]);
    let credential = Credential::from_pem(mixed.as_bytes()).unwrap();
    assert!(credential.check_now().is_err());
    let pool = by_tcp(client_identity(Some(Arc::new(credential))));
    assert!(call(&pool, to, b"x").is_err());
    counted(&server, "frames_in", 0);
}

#[test]
fn a_client_passes_for_nobody_else() {
    let keys = Keys::new();
    let (server, to) = serve_with(keys.server());
    let claims =
        |role, node, credential| by_tcp(Identity::new(CELL, role, NodeId(node), credential));
    let client = || keys.client(Scope::default());
    for pool in [
        claims(Role::Server, 7, client()),
        claims(Role::Tool, 0, client()),
        claims(Role::Server, 7, keys.admin()),
        claims(Role::Server, 8, keys.server()),
        claims(Role::Client, 0, keys.server()),
        claims(Role::Tool, 0, keys.server()),
    ] {
        assert_eq!(fault(&pool, to), TlsFault::Refused);
    }
    counted(&server, "refused_unauthenticated", 6);
    works(&claims(Role::Tool, 0, keys.admin()), to);
    works(&claims(Role::Client, 0, keys.admin()), to);
    works(&claims(Role::Server, 7, keys.server()), to);
    // A client's certificate is not valid for a server.
    let identity = server_identity(client());
    let (_fake, to) = start(ServerConfig::new(identity), false);
    assert!(call(&claims(Role::Client, 0, client()), to, b"x").is_err());
}

#[test]
fn a_server_answers_for_its_roles_only() {
    let keys = Keys::new();
    let (server, to) = serve_with(keys.server());
    let pool = by_tcp(client_identity(keys.client(Scope::default())));
    works(&pool, to);
    for service in [Service::Manager, Service::Meta] {
        let mut asked = request(b"x", &[], 0);
        asked.header = Header::request(service, CELL);
        let error = pool.call(to, asked, PayloadInto::Owned).unwrap_err();
        assert!(matches!(
            error,
            NetError::Unauthenticated {
                fault: TlsFault::Claim,
                ..
            }
        ));
    }
    counted(&server, "frames_in", 1);
    // A server's certificate is valid for its own node only.
    let elsewhere = Address::new(to.tcp, NodeId(8));
    let error = call(&pool, elsewhere, b"x").unwrap_err();
    assert!(matches!(error, NetError::WrongNode { .. }), "{error}");
}

#[test]
fn a_credential_ends_with_its_term() {
    let keys = Keys::new();
    let (_server, to) = serve_with(keys.server());
    let kind = SubjectKind::Admin { name: "a".into() };
    let short = keys.issue(kind, Duration::ZERO);
    until("it has expired", || {
        short.as_ref().unwrap().check_now().is_err()
    });
    let pool = by_tcp(Identity::new(CELL, Role::Tool, NodeId(0), short));
    assert_eq!(fault(&pool, to), TlsFault::Refused);
}

#[test]
fn the_cell_is_taken_from_the_credential() {
    let keys = Keys::new();
    let identity = Identity::new(CellId::default(), Role::Tool, NodeId(0), keys.admin());
    assert_eq!(identity.cell, CELL);
    // An authority of another cell counts for nothing here.
    let elsewhere = Authority::make(CellId([1; 16])).unwrap();
    let kind = SubjectKind::Admin { name: "a".into() };
    assert!(
        elsewhere
            .issue(&Subject { cell: CELL, kind }, TERM)
            .is_err()
    );
}

/// Changes the bytes that a relay passes on.
type Spoil = fn(&mut Vec<u8>);

/// Bytes that a relay has passed on to the server, and whether it changes the next ones.
#[derive(Default)]
struct Passed {
    bytes: AtomicU64,
    spoils: AtomicBool,
}

/// Passes bytes both ways between a client and a server; `spoil` changes the client's bytes on
/// request.
fn relay(server: SocketAddr, spoil: Spoil) -> (SocketAddr, Arc<Passed>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let passed = Arc::new(Passed::default());
    let known = Arc::clone(&passed);
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(server).unwrap();
            let (to_client, from_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pass(from_server, to_client, |_| {}));
            let known = Arc::clone(&known);
            std::thread::spawn(move || {
                let change = move |bytes: &mut Vec<u8>| {
                    known.bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                    if known.spoils.load(Ordering::SeqCst) {
                        spoil(bytes);
                    }
                };
                pass(client, server, change);
            });
        }
    });
    (address, passed)
}

fn pass(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut Vec<u8>)) {
    let mut buffer = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..count].to_vec();
        change(&mut bytes);
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}

#[test]
fn a_relay_can_neither_read_nor_change_nor_add_anything() {
    let keys = Keys::new();
    let (server, to) = serve_with(keys.server());
    let secret = [0x77_u8; 4096];
    let frames = || counter(&server.metrics().snapshot(), "frames_in");
    // How a relay behaves, and how many of three requests arrive at most.
    let relays: [(Spoil, u64); 5] = [
        (|bytes| bytes[7] ^= 1, 0),
        (
            |bytes| {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
            },
            0,
        ),
        // A request of the relay's own, after a handshake that it passed on.
        (
            |bytes| *bytes = Header::request(Service::Storage, CELL).encode().to_vec(),
            0,
        ),
        // The client's bytes again: each request is executed once.
        (|bytes| bytes.extend_from_within(..), 3),
        (
            |bytes| assert!(!bytes.windows(64).any(|window| window == [0x77; 64])),
            3,
        ),
    ];
    for (spoil, most) in relays {
        let (address, passed) = relay(to.tcp, spoil);
        let pool = by_tcp(client_identity(keys.client(Scope::default())));
        let relayed = Address::new(address, NODE);
        works(&pool, relayed);
        let before = frames();
        passed.spoils.store(true, Ordering::SeqCst);
        for _turn in 0..3 {
            let payload = [&secret[..]];
            let asked = request(b"secret", &payload, 2000);
            let _ = pool.call(relayed, asked, PayloadInto::Owned);
        }
        let arrived = frames() - before;
        assert!(arrived <= most, "{arrived} of {most}");
    }
}

#[test]
fn frames_go_in_the_clear_where_both_sides_say_so() {
    let keys = Keys::new();
    let identity = |transport| server_identity(keys.server()).with_transport(transport);
    let (_server, to) = start(ServerConfig::new(identity(Transport::Plain)), false);
    let seen = |transport: Transport| {
        let (address, passed) = relay(to.tcp, |_| {});
        let identity = client_identity(keys.client(Scope::default())).with_transport(transport);
        let pool = by_tcp(identity);
        let relayed = Address::new(address, NODE);
        works(&pool, relayed);
        let before = passed.bytes.load(Ordering::SeqCst);
        works(&pool, relayed);
        passed.bytes.load(Ordering::SeqCst) - before
    };
    let frame = 128 + b"hello".len() as u64;
    assert_eq!(seen(Transport::Plain), frame);
    assert!(seen(Transport::Tls) > frame);
    // A client without proof is refused by both.
    assert_eq!(fault(&by_tcp(client_identity(None)), to), TlsFault::Absent);
}

#[test]
fn a_unix_socket_is_trusted_by_its_owner_and_needs_no_proof() {
    let keys = Keys::new();
    let (_server, to) = start(ServerConfig::new(server_identity(keys.server())), true);
    let own = pool(keys.admin());
    works(&own, to);
    assert_eq!(counter(&own.metrics().snapshot(), "connected_unix"), 1);
    // A Unix socket would not enforce a scope: a scoped client uses TCP.
    let scope = Scope {
        is_read_only: true,
        ..Scope::default()
    };
    let restricted = pool(keys.client(scope));
    works(&restricted, to);
    assert_eq!(
        counter(&restricted.metrics().snapshot(), "connected_tcp"),
        1
    );
}

#[test]
fn invalid_credential_files_are_refused_with_the_reason() {
    let keys = Keys::new();
    let kind = SubjectKind::Admin { name: "a".into() };
    let pem = keys
        .0
        .issue(&Subject { cell: CELL, kind }, TERM)
        .unwrap()
        .pem;
    for end in (0..pem.len()).step_by(7) {
        assert!(
            Credential::from_pem(&pem.as_bytes()[..end]).is_err(),
            "{end}"
        );
    }
    assert!(Credential::from_pem(&[0x42; 32]).is_err());
    assert!(Credential::from_pem(&vec![b'a'; 1 << 20]).is_err());
    // An authority's file is not a credential, nor the reverse.
    assert!(Credential::from_pem(keys.0.to_pem().as_bytes()).is_err());
    assert!(Authority::from_pem(&pem).is_err());
    let again = Authority::from_pem(&keys.0.to_pem()).unwrap();
    assert_eq!(again.cell(), CELL);
    let kind = SubjectKind::Admin { name: "b".into() };
    let issued = again.issue(&Subject { cell: CELL, kind }, TERM).unwrap();
    let credential = Credential::from_pem(issued.pem.as_bytes()).unwrap();
    credential.check_now().unwrap();
    let (_server, to) = serve_with(keys.server());
    works(
        &by_tcp(Identity::new(
            CELL,
            Role::Tool,
            NodeId(0),
            Some(Arc::new(credential)),
        )),
        to,
    );
}
