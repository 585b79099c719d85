//! A repeated request gets the same reply and has no second effect, also after a restart.
#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tables of tests"
)]

mod common;

use common::*;
use zonal_types::{Blob, ErrorCode, Ino, Timestamp};
use zonal_wire::meta::{AttrChange, NewKind};
use zonal_wire::{MetaReply, MetaRequest};

/// One of each mutation, each on names and inodes of its own.
fn mutations(cell: &mut Cell, client: &mut Client, home: Ino) -> Vec<MetaRequest> {
    let who = client.who.clone();
    let zone = client.zone;
    let mut file = |client: &mut Client, name: &str| {
        let ino = client.create(cell, home, name, 0o644).unwrap();
        client.report(cell, ino, 100).unwrap();
        ino
    };
    let f: Vec<Ino> = (0..12)
        .map(|index| file(client, &format!("f{index}")))
        .collect();
    client.mkdir(cell, home, "dir").unwrap();
    client.setxattr(cell, f[8], "user.x", b"1", 0).unwrap();
    client.open(cell, f[9], 2).unwrap();
    vec![
        client.create_request(home, "new", NewKind::File, 0o644, true),
        client.create_request(home, "pipe", NewKind::Fifo, 0o644, false),
        MetaRequest::Mkdir {
            who: who.clone(),
            parent: home,
            name: name("sub"),
            mode: 0o755,
            umask: 0,
            zone,
        },
        MetaRequest::Tmpfile {
            who: who.clone(),
            parent: home,
            mode: 0o600,
            umask: 0,
            zone,
            node: zonal_types::NodeId(0),
            exclusive: false,
        },
        MetaRequest::Unlink {
            who: who.clone(),
            parent: home,
            name: name("f0"),
        },
        MetaRequest::Rmdir {
            who: who.clone(),
            parent: home,
            name: name("dir"),
        },
        MetaRequest::Rename {
            who: who.clone(),
            parent: home,
            name: name("f1"),
            new_parent: home,
            new_name: name("moved"),
            flags: 0,
        },
        MetaRequest::Link {
            who: who.clone(),
            ino: f[2],
            parent: home,
            name: name("second"),
        },
        MetaRequest::Open {
            who: who.clone(),
            ino: f[3],
            open_flags: 0,
        },
        MetaRequest::SetAttr {
            who: who.clone(),
            ino: f[4],
            change: AttrChange {
                mode: Some(0o600),
                ..AttrChange::default()
            },
        },
        MetaRequest::Truncate {
            who: who.clone(),
            ino: f[5],
            size: 5,
            by_handle: false,
            confirmed_seq: 0,
            kill_suid: false,
        },
        MetaRequest::ReportWrite {
            ino: f[6],
            size: 200,
            truncate_seq: u64::MAX,
            mtime: Some(cell.now.wall),
            allocated_delta: 4096,
            kill_suid: false,
            inline: Some((190, Blob(vec![7; 10]))),
            sync: false,
        },
        MetaRequest::SetXattr {
            who: who.clone(),
            ino: f[7],
            name: Blob(b"user.a".into()),
            value: Blob(b"1".into()),
            flags: 1,
        },
        MetaRequest::RemoveXattr {
            who: who.clone(),
            ino: f[8],
            name: Blob(b"user.x".into()),
        },
        MetaRequest::Close { inos: vec![f[9]] },
        MetaRequest::Touch {
            reads: vec![(f[10], Timestamp::default())],
        },
        MetaRequest::SetPolicy {
            who: who.clone(),
            dir: home,
            policy: Some(zonal_types::StripePolicy::default()),
        },
        // Fails, and fails the same way again.
        MetaRequest::Unlink {
            who,
            parent: home,
            name: name("absent"),
        },
    ]
}

#[test]
fn repeats_get_the_same_reply_and_change_nothing() {
    for restart in [false, true] {
        let mut cell = Cell::new();
        let mut client = cell.client(1);
        let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
        let mut nameless = Vec::new();
        for request in mutations(&mut cell, &mut client, home) {
            cell.pass_ms(1000);
            client.sequence += 1;
            let first = cell.send(1, client.caller(1), &request);
            assert_eq!(
                matches!(first, MetaReply::Failed { .. }),
                format!("{request:?}").contains("absent")
            );
            let store = cell.stores[1].kv.clone();
            cell.pass_ms(1000);
            if restart {
                cell.restart(1);
                let caller = Caller {
                    slot: zonal_wire::NO_SLOT,
                    ..client.caller(1)
                };
                cell.send(
                    1,
                    caller,
                    &MetaRequest::Reclaim {
                        opens: nameless.clone(),
                        locks: vec![],
                    },
                );
            }
            // The client has not heard of the repeated open, and has not told it.
            let repeat = cell.send(1, client.caller(1), &request);
            assert_eq!(repeat, first, "{request:?}");
            assert!(
                cell.last_effect.is_empty(),
                "{request:?} {restart}: {:?}",
                cell.last_effect
            );
            assert!(cell.stores[1].kv == store, "{request:?}");
            cell.assert_sound();
            if let (MetaRequest::Tmpfile { .. }, MetaReply::Opened { entry, .. }) =
                (&request, &first)
            {
                nameless.push(entry.ino);
            }
        }
        let mut old = client.clone();
        old.sequence -= 2;
        let reply = cell.send(
            1,
            old.caller(1),
            &MetaRequest::Touch {
                reads: vec![(home, Timestamp::default())],
            },
        );
        assert_eq!(
            reply,
            MetaReply::Failed {
                code: zonal_wire::ErrorNumber(ErrorCode::BadSequence)
            }
        );
    }
}

use zonal_meta::{Caller, Outcome, PendingCall};

/// Runs a first-level mkdir up to its call of the zone's shard. Returns the request, the call, and
/// the pending call to resume.
fn begin_mkdir(cell: &mut Cell, client: &mut Client) -> (MetaRequest, MetaRequest, PendingCall) {
    client.sequence += 1;
    let mkdir = MetaRequest::Mkdir {
        who: client.who.clone(),
        parent: Ino::ROOT,
        name: name("d"),
        mode: 0o755,
        umask: 0,
        zone: client.zone,
    };
    let store = &mut cell.stores[0];
    let caller = client.caller(0);
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &mkdir, None);
    let Outcome::Call { request, call, .. } = outcome else {
        panic!("{outcome:?}")
    };
    (mkdir, request, call)
}

#[test]
fn first_level_directories_are_made_once() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    // The first try reaches the zone's shard, then the root shard restarts.
    let (request, ask, _call) = begin_mkdir(&mut cell, &mut client);
    let caller = client.caller(0);
    let MetaReply::Detached { ino } = cell.send(1, none(), &ask) else {
        panic!()
    };
    cell.restart(0);
    let told = MetaRequest::Reclaim {
        opens: vec![],
        locks: vec![],
    };
    assert_eq!(cell.send(0, caller, &told), MetaReply::Done);
    let reply = cell.send(0, caller, &request);
    assert_eq!(
        entry_of(reply.clone()).unwrap().ino,
        ino,
        "not a second directory"
    );
    assert_eq!(cell.send(0, caller, &request), reply);
    cell.assert_sound();
}

#[test]
fn numbers_are_never_given_twice() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..2000 {
        let ino = client
            .create(&mut cell, home, &format!("f{index}"), 0o644)
            .unwrap();
        assert!(seen.insert(ino));
        if index % 2 == 0 {
            client
                .unlink(&mut cell, home, &format!("f{index}"))
                .unwrap();
        }
        if index % 300 == 0 {
            cell.restart(1);
            client
                .call(
                    &mut cell,
                    home,
                    &MetaRequest::Reclaim {
                        opens: vec![],
                        locks: vec![],
                    },
                )
                .unwrap();
        }
    }
}

#[test]
fn sessions_come_back_by_their_clients_number() {
    let mut cell = Cell::new();
    let client = cell.client(7);
    let again = cell.client(7);
    assert_eq!(client.sessions, again.sessions);
    let other = cell.client(8);
    assert_ne!(client.sessions, other.sessions);
    cell.restart(1);
    assert_eq!(cell.client(7).sessions, client.sessions);
    let reply = cell.send(1, client.caller(1), &MetaRequest::CloseSession);
    assert_eq!(reply, MetaReply::Done);
    let unknown = MetaReply::Failed {
        code: zonal_wire::ErrorNumber(ErrorCode::UnknownSession),
    };
    assert_eq!(
        cell.send(1, client.caller(1), &MetaRequest::StatFs),
        unknown
    );
    let newer = cell.client(7);
    assert!(
        newer.sessions[1] > other.sessions[1],
        "numbers are not used again"
    );
    let left = cell.stores[1]
        .kv
        .keys()
        .filter(|key| key[4] == 0x71)
        .count();
    assert_eq!(left, 0);
}

#[test]
fn a_slots_sequence_wraps_to_0() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let make = |client: &Client, text: &str| MetaRequest::Mkdir {
        who: client.who.clone(),
        parent: home,
        name: name(text),
        mode: 0o755,
        umask: 0,
        zone: client.zone,
    };
    let send = |cell: &mut Cell, client: &Client, sequence, text: &str| {
        let mut caller = client.caller(1);
        (caller.slot, caller.sequence) = (9, sequence);
        cell.send(1, caller, &make(client, text))
    };
    let refused = MetaReply::Failed {
        code: zonal_wire::ErrorNumber(ErrorCode::BadSequence),
    };
    for is_restarted in [false, true] {
        let text = |text| format!("{text}{is_restarted}");
        let first = send(&mut cell, &client, u32::MAX, &text("a"));
        assert!(matches!(first, MetaReply::Entry { .. }), "{first:?}");
        if is_restarted {
            cell.restart(1);
            client.holds_nothing(&mut cell, 1);
        }
        let second = send(&mut cell, &client, 0, &text("b"));
        assert!(matches!(second, MetaReply::Entry { .. }), "{second:?}");
        if is_restarted {
            cell.restart(1);
            client.holds_nothing(&mut cell, 1);
        }
        assert_eq!(send(&mut cell, &client, 0, &text("b")), second);
        assert_eq!(send(&mut cell, &client, u32::MAX, &text("a")), refused);
        let third = send(&mut cell, &client, 1, &text("c"));
        assert!(matches!(third, MetaReply::Entry { .. }), "{third:?}");
        // Back to where it began, in two steps: no further than half of all numbers.
        for sequence in [1 << 30, (1 << 31) + 5, u32::MAX - 1] {
            send(&mut cell, &client, sequence, &text("c"));
        }
    }
    cell.assert_sound();
}

#[test]
fn a_repeat_of_an_executed_request_is_answered_on_a_full_disk() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let full = |cell: &mut Cell, client: &Client, request: &MetaRequest| {
        let store = &mut cell.stores[1];
        let outcome = store
            .shard
            .handle_full(&store.kv, client.caller(1), None, request);
        let Outcome::Reply { reply, effect, .. } = outcome else {
            panic!("{outcome:?}");
        };
        assert!(effect.is_empty());
        reply
    };
    let no_space = MetaReply::Failed {
        code: zonal_wire::ErrorNumber(ErrorCode::NoSpace),
    };
    let made = client.create_request(home, "made", NewKind::File, 0o644, true);
    client.sequence += 1;
    let first = cell.send(1, client.caller(1), &made);
    assert!(matches!(first, MetaReply::Opened { .. }), "{first:?}");
    assert_eq!(full(&mut cell, &client, &made), first);
    let refused = client.create_request(home, "refused", NewKind::File, 0o644, true);
    client.sequence += 1;
    assert_eq!(full(&mut cell, &client, &refused), no_space);
    // A repeat gets the same reply, even where there is room again: its sender may have heard the
    // first reply.
    assert_eq!(cell.send(1, client.caller(1), &refused), no_space);
    client.sequence += 1;
    let again = cell.send(1, client.caller(1), &refused);
    assert!(matches!(again, MetaReply::Opened { .. }), "{again:?}");
    cell.assert_sound();
}

#[test]
fn an_answer_that_comes_late_takes_no_slot_back() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let (_mkdir, _ask, call) = begin_mkdir(&mut cell, &mut client);
    // The client gives up, and the slot goes on.
    client.sequence += 1;
    let next = MetaRequest::SetXattr {
        who: client.who.clone(),
        ino: Ino::ROOT,
        name: Blob(b"user.x".to_vec()),
        value: Blob(b"1".to_vec()),
        flags: 1,
    };
    let first = cell.send(0, client.caller(0), &next);
    assert_eq!(first, MetaReply::Done);
    // Now the other shard refuses the abandoned request.
    let refusal = MetaReply::Failed {
        code: zonal_wire::ErrorNumber(ErrorCode::NoSpace),
    };
    let store = &mut cell.stores[0];
    store.shard.resume(&store.kv, cell.now, call, refusal);
    assert_eq!(cell.send(0, client.caller(0), &next), first);
    assert!(cell.last_effect.is_empty(), "executed twice");
}
