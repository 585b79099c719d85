//! Sessions belong to the client that opened them: nobody else can use one, and nobody can guess
//! its number.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use common::{Cell, Client, name, whole_file};
use std::sync::Arc;
use zonal_meta::{Caller, Outcome};
use zonal_testkit::Rng;
use zonal_types::limits::SESSION_TERM_MS;
use zonal_types::{ClientId, ClientIdentity, ErrorCode, Holder, Ino, SessionId};
use zonal_wire::frame::NO_SLOT;
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{MetaReply, MetaRequest};

fn holder(name: &str) -> Option<Arc<Holder>> {
    Some(Arc::new(Holder {
        subject: format!("zonal://cell/client/{name}"),
        scope: None,
    }))
}

/// The caller of the first client.
fn of_session(session: SessionId) -> Caller {
    Caller {
        identity: ClientIdentity::first(ClientId(1)),
        session,
        slot: NO_SLOT,
        sequence: 0,
    }
}

fn unknown() -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(ErrorCode::UnknownSession),
    }
}

/// A cell whose sessions have random numbers, a file, and a client called "a" that has locked it.
fn locked() -> (Cell, Client, Ino) {
    let mut cell = Cell::new();
    cell.chance = Some(Rng(0x5e55));
    cell.from = holder("a");
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let file = client.create(&mut cell, home, "f", 0o644).unwrap();
    assert_eq!(lock(&mut cell, &client, file), MetaReply::Done);
    (cell, client, file)
}

fn lock(cell: &mut Cell, client: &Client, ino: Ino) -> MetaReply {
    let request = MetaRequest::Lock {
        ino,
        range: whole_file(),
        wait: false,
        waiter: 0,
        settled: 0,
    };
    let identity = client.identity;
    let session = of_session(client.sessions[1]);
    cell.send(
        1,
        Caller {
            identity,
            ..session
        },
        &request,
    )
}

fn would_block() -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(ErrorCode::WouldBlock),
    }
}

#[test]
fn nobody_ends_a_session_by_its_number() {
    let (mut cell, client, file) = locked();
    for from in [holder("b"), None] {
        cell.from = from;
        for number in 1..=1_000 {
            for request in [MetaRequest::CloseSession, MetaRequest::EvictSession] {
                let reply = cell.send(1, of_session(SessionId(number)), &request);
                assert_eq!(reply, unknown());
            }
        }
    }
    // Nor from a subject that the shard knows.
    cell.from = holder("b");
    let own = of_session(client.sessions[1]);
    assert_eq!(cell.send(1, own, &MetaRequest::CloseSession), unknown());
    let other = cell.client(2);
    assert_eq!(lock(&mut cell, &other, file), would_block());
    // A command may evict it.
    cell.evict(1, own);
    assert_eq!(lock(&mut cell, &other, file), MetaReply::Done);
    cell.assert_sound();
}

#[test]
fn no_request_goes_on_with_the_session_of_another() {
    let (mut cell, client, file) = locked();
    let mut own = of_session(client.sessions[1]);
    (own.slot, own.sequence) = (0, client.sequence);
    let home = MetaRequest::Lookup {
        who: zonal_types::Credentials::root(),
        parent: file,
        name: name("f"),
    };
    let data = false;
    let requests = [
        home,
        MetaRequest::GetAttr { ino: file, data },
        MetaRequest::DropLeases,
        MetaRequest::PollEvents {
            boot: 1,
            acked: u64::MAX,
            wait_ms: 0,
        },
        MetaRequest::Close { inos: vec![file] },
    ];
    for from in ["b", "aa"] {
        cell.from = holder(from);
        for request in &requests {
            assert_eq!(cell.send(1, own, request), unknown(), "{request:?}");
        }
    }
    // Also after a restart.
    cell.restart(1);
    assert_eq!(cell.send(1, own, &MetaRequest::CloseSession), unknown());
    cell.from = holder("a");
    assert_eq!(
        cell.send(1, own, &MetaRequest::CloseSession),
        MetaReply::Done
    );
    let left: Vec<_> = cell.stores[1].kv.keys().cloned().collect();
    let session = client.sessions[1].0.to_be_bytes();
    assert!(!left.iter().any(|key| key.get(5..13) == Some(&session)));
    cell.assert_sound();
}

#[test]
fn knowing_a_client_id_does_not_give_access_to_its_session() {
    let (mut cell, client, _file) = locked();
    let open = MetaRequest::OpenSession {
        zone: zonal_types::ZoneId(1),
        name: "test".into(),
    };
    let caller = |identity| Caller {
        identity,
        ..common::none()
    };
    let failed = |code| MetaReply::Failed {
        code: ErrorNumber(code),
    };
    for _life in 0..2 {
        cell.from = holder("b");
        let taken = cell.send(1, caller(client.identity), &open);
        assert_eq!(taken, failed(ErrorCode::Access));
        cell.from = holder("a");
        assert_eq!(cell.client(1).sessions, client.sessions);
        cell.restart(1);
    }
    // Over a Unix socket, whose peer is root.
    cell.from = None;
    assert_eq!(cell.client(1).sessions, client.sessions);
    // Nobody opens a session without a client.
    let nobody = cell.send(1, common::none(), &open);
    assert_eq!(nobody, failed(ErrorCode::Invalid));
}

#[test]
fn a_session_is_of_one_client_and_one_incarnation() {
    let (mut cell, client, file) = locked();
    let data = false;
    let get = MetaRequest::GetAttr { ino: file, data };
    let failed = |code| MetaReply::Failed {
        code: ErrorNumber(code),
    };
    let mut caller = of_session(client.sessions[1]);
    caller.identity = ClientIdentity::first(ClientId(2));
    assert_eq!(cell.send(1, caller, &get), unknown());
    // The client begins anew: it keeps its session, and its earlier requests are refused.
    let mut newer = client.identity;
    newer.incarnation = newer.incarnation.next();
    caller.identity = newer;
    assert_eq!(cell.send(1, caller, &get), failed(ErrorCode::Fenced));
    assert_eq!(cell.client_as(newer).sessions, client.sessions);
    for _life in 0..2 {
        caller.identity = newer;
        let got = cell.send(1, caller, &get);
        assert!(matches!(got, MetaReply::Attr { .. }), "{got:?}");
        caller.identity = client.identity;
        assert_eq!(cell.send(1, caller, &get), failed(ErrorCode::Fenced));
        let open = MetaRequest::OpenSession {
            zone: zonal_types::ZoneId(1),
            name: "test".into(),
        };
        let late = Caller {
            identity: client.identity,
            ..common::none()
        };
        assert_eq!(cell.send(1, late, &open), failed(ErrorCode::Fenced));
        cell.restart(1);
        caller.identity = newer;
        let (opens, locks) = (Vec::new(), Vec::new());
        cell.send(1, caller, &MetaRequest::Reclaim { opens, locks });
    }
}

/// A client may be stopped, or revoked, since it sent the poll.
#[test]
fn the_end_of_a_poll_does_not_renew_a_session() {
    let (mut cell, client, file) = locked();
    let other = cell.client(2);
    let boot = cell.stores[1].shard.boot();
    let polled = common::poll_as(&mut cell, &client, boot, 0, 20_000);
    let Outcome::Wait { attempt, .. } = polled else {
        panic!("{polled:?}");
    };
    let poll = MetaRequest::PollEvents {
        boot,
        acked: 0,
        wait_ms: 20_000,
    };
    cell.pass_ms(20_000);
    let store = &mut cell.stores[1];
    let attempt = Some(attempt);
    let ended = store
        .shard
        .handle(&store.kv, cell.now, client.caller(1), &poll, attempt);
    assert!(matches!(ended, Outcome::Reply { .. }), "{ended:?}");
    cell.pass_ms(SESSION_TERM_MS - 20_000 - 1);
    cell.tick();
    let still = cell.send(1, other.caller(1), &MetaRequest::DropLeases);
    assert_eq!(still, MetaReply::Done);
    assert_eq!(lock(&mut cell, &other, file), would_block());
    cell.pass_ms(2);
    cell.tick();
    assert_eq!(lock(&mut cell, &other, file), MetaReply::Done);
}

/// A mount that finds no Unix socket of a starting server uses TCP, and returns to the socket
/// later.
#[test]
fn a_session_of_a_unix_socket_goes_on_by_tcp() {
    let mut cell = Cell::new();
    cell.chance = Some(Rng(0x5e55));
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let file = client.create(&mut cell, home, "f", 0o644).unwrap();
    assert_eq!(lock(&mut cell, &client, file), MetaReply::Done);
    let release = MetaRequest::Unlock {
        ino: file,
        range: whole_file(),
    };
    for from in [holder("a"), None, holder("a")] {
        cell.from = from;
        assert_eq!(cell.client(1).sessions, client.sessions);
        let own = of_session(client.sessions[1]);
        assert_eq!(cell.send(1, own, &release), MetaReply::Done);
        assert_eq!(lock(&mut cell, &client, file), MetaReply::Done);
    }
    // A client with a scope never uses a Unix socket.
    let scope = zonal_types::Scope {
        is_read_only: true,
        ..zonal_types::Scope::default()
    };
    cell.from = Some(Arc::new(Holder {
        subject: "zonal://cell/client/a?read-only".to_owned(),
        scope: Some(scope),
    }));
    let own = of_session(client.sessions[1]);
    assert_eq!(cell.send(1, own, &MetaRequest::CloseSession), unknown());
    assert_ne!(cell.client(1).sessions[1], client.sessions[1]);
}

#[test]
fn numbers_of_sessions_have_random_bits_and_come_once() {
    let mut cell = Cell::new();
    cell.chance = Some(Rng(1));
    let mut numbers: Vec<u64> = Vec::new();
    for client in 1..=500 {
        numbers.push(cell.client(client).sessions[1].0);
    }
    assert!(numbers.iter().filter(|number| **number < 1 << 32).count() < 3);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 500);
    // The same random bits give another number.
    cell.chance = None;
    let (one, two) = (cell.client(1_001), cell.client(1_002));
    assert_ne!(one.sessions[1], two.sessions[1]);
    assert_ne!(one.sessions[1], SessionId(0));
}

#[test]
fn one_client_has_a_quarter_of_the_sessions_at_most() {
    let mut cell = Cell::new();
    let most = cell.stores[1].config.sessions_max / 4;
    let open = |cell: &mut Cell, client: u64| {
        let request = MetaRequest::OpenSession {
            zone: zonal_types::ZoneId(1),
            name: String::new(),
        };
        let identity = ClientIdentity::first(ClientId(client));
        let caller = Caller {
            identity,
            ..common::none()
        };
        cell.send(1, caller, &request)
    };
    cell.from = holder("a");
    for client in 1..=most as u64 {
        let opened = open(&mut cell, client);
        assert!(matches!(opened, MetaReply::Session { .. }), "{opened:?}");
    }
    let overloaded = MetaReply::Failed {
        code: ErrorNumber(ErrorCode::Overloaded),
    };
    assert_eq!(open(&mut cell, u64::MAX), overloaded);
    // Its session stays, and others have room.
    let MetaReply::Session { session, .. } = open(&mut cell, 1) else {
        panic!("no session");
    };
    cell.from = holder("b");
    assert!(matches!(
        open(&mut cell, u64::MAX - 1),
        MetaReply::Session { .. }
    ));
    cell.from = holder("a");
    cell.send(1, of_session(session), &MetaRequest::CloseSession);
    assert!(matches!(
        open(&mut cell, u64::MAX),
        MetaReply::Session { .. }
    ));
}

#[test]
fn one_client_leaves_half_of_each_table_to_others() {
    let mut cell = Cell::new();
    let max = 40;
    cell.stores[1].config.opens_max = max;
    cell.restart(1);
    cell.from = None;
    let mut trusted = cell.client(9);
    let home = trusted.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let opened = |cell: &mut Cell, client: &mut Client, name: &str, wanted: usize| {
        let made = (0..wanted).map(|index| {
            let name = format!("{name}{index}");
            client
                .create_open(cell, home, &name)
                .map(|(ino, _data)| ino)
        });
        let all: Vec<Result<Ino, ErrorCode>> = made.collect();
        let refused = all.iter().filter_map(|made| made.err());
        assert!(refused.clone().all(|code| code == ErrorCode::Overloaded));
        wanted - refused.count()
    };
    cell.from = holder("a");
    let mut first = cell.client(1);
    let of_first = opened(&mut cell, &mut first, "a", max);
    // Half of the table, and the entry that filled it so far.
    assert!((max / 2..=max / 2 + 1).contains(&of_first), "{of_first}");
    cell.from = holder("b");
    let mut second = cell.client(2);
    assert_eq!(opened(&mut cell, &mut second, "b", max), max / 4);
    // A peer without a certificate is root or the servers' user.
    cell.from = None;
    let left = max - max / 4 - of_first;
    assert_eq!(opened(&mut cell, &mut trusted, "c", max), left);
}
