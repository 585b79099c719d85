//! Restripe: a file gets the bytes of a copy over the present stripe sets. Also refusals, repeats,
//! restarts, and the end of a session.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ErrorCode::{Busy, Exists, Invalid, NotPermitted, NotSupported, Stale, WouldBlock};
use common::*;
use std::sync::Arc;
use zonal_meta::keys;
use zonal_types::{DataId, ErrorCode, FileData, Ino, NodeId, TargetId, ZoneId};
use zonal_wire::meta::NewKind;
use zonal_wire::{ErrorNumber, JoinTarget, MetaReply, MetaRequest};
use zonal_zonemap::{MapEdit, TargetState};

const SIZE: u64 = 1 << 20;
/// Longer than a removed inode can be brought back.
const LATER_MS: u64 = 2_000;

fn edit(cell: &mut Cell, edits: &[MapEdit]) {
    cell.map = Arc::new(cell.map.edited(edits).unwrap().unwrap());
    let map = cell.map.clone();
    cell.stores
        .iter_mut()
        .for_each(|store| store.shard.set_map(map.clone()));
}

/// A fourth target comes to zone 1.
fn grow(cell: &mut Cell) {
    let join = MapEdit::Join {
        node: NodeId(77),
        zone: ZoneId(1),
        zone_name: String::new(),
        address: "127.0.0.1:77".to_owned(),
        shard: None,
        targets: vec![JoinTarget {
            target: TargetId(77),
            uuid: [77; 16],
            capacity: 1 << 30,
        }],
    };
    edit(cell, &[join, MapEdit::OpenSets { zone: ZoneId(1) }]);
}

fn data_of(cell: &mut Cell, client: &mut Client, ino: Ino) -> FileData {
    match client.call(cell, ino, &MetaRequest::GetAttr { ino, data: true }) {
        Ok(MetaReply::Attr {
            data: Some(data), ..
        }) => data,
        other => panic!("{other:?}"),
    }
}

fn begin_request(client: &Client, ino: Ino, dir: Ino) -> MetaRequest {
    let who = client.who.clone();
    MetaRequest::BeginRestripe { who, ino, dir }
}

fn begin(cell: &mut Cell, client: &mut Client, ino: Ino, dir: Ino) -> Reply<(Ino, FileData)> {
    let request = begin_request(client, ino, dir);
    match client.call(cell, ino, &request)? {
        MetaReply::Opened { entry, data, push } => {
            assert!(!push);
            Ok((entry.ino, data))
        }
        other => panic!("{other:?}"),
    }
}

/// The request for a swap of the file as it is now.
fn swap_request(cell: &mut Cell, client: &mut Client, ino: Ino, copy: Ino) -> MetaRequest {
    let change = client.attr(cell, ino).unwrap().change;
    let boot = cell.stores[1].config.boot;
    let who = client.who.clone();
    MetaRequest::SwapBytes {
        who,
        ino,
        copy,
        change,
        boot,
    }
}

fn swap(cell: &mut Cell, client: &mut Client, ino: Ino, copy: Ino) -> Reply<FileData> {
    let request = swap_request(cell, client, ino, copy);
    match client.call(cell, ino, &request)? {
        MetaReply::Attr {
            data: Some(data), ..
        } => Ok(data),
        other => panic!("{other:?}"),
    }
}

/// A cell whose zone has grown since the file was made, with the client that made it.
fn grown() -> (Cell, Client, Ino, Ino) {
    let (mut cell, mut client, home) = start();
    let f = client.create(&mut cell, home, "f", 0o644).unwrap();
    client.report(&mut cell, f, SIZE).unwrap();
    grow(&mut cell);
    (cell, client, home, f)
}

/// The same with the copy begun, and both open.
fn copied() -> (Cell, Client, Ino, Ino) {
    let (mut cell, mut client, home, f) = grown();
    let (copy, _) = begin(&mut cell, &mut client, f, home).unwrap();
    client.open(&mut cell, f, 0).unwrap();
    client.report(&mut cell, copy, SIZE).unwrap();
    (cell, client, f, copy)
}

fn close_both(cell: &mut Cell, client: &mut Client, f: Ino, copy: Ino) {
    client.close(cell, f).unwrap();
    client.close(cell, copy).unwrap();
    cell.pass_ms(LATER_MS);
    cell.tick();
    cell.assert_sound();
}

fn file_with(cell: &mut Cell, client: &mut Client, data_id: DataId) -> Option<Ino> {
    let request = MetaRequest::FileOf { data_id };
    match client.call(cell, Ino::new(data_id.partition(), 1), &request) {
        Ok(MetaReply::File { ino }) => Some(ino),
        Err(Stale) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_gets_the_new_set_and_keeps_all_else() {
    let (mut cell, mut client, home, f) = grown();
    client.setxattr(&mut cell, f, "user.x", b"kept", 0).unwrap();
    client.link(&mut cell, f, home, "g").unwrap();
    let old = data_of(&mut cell, &mut client, f);
    let before = client.attr(&mut cell, f).unwrap();
    assert_eq!(old.layout.components[0].count, 3);

    cell.pass_ms(3_000);
    let (copy, new) = begin(&mut cell, &mut client, f, home).unwrap();
    let component = &new.layout.components[0];
    assert_eq!(component.count, 4);
    assert_eq!(component.kind, old.layout.components[0].kind);
    client.open(&mut cell, f, 0).unwrap();
    client.report(&mut cell, copy, SIZE - 7).unwrap();
    let swapped = swap(&mut cell, &mut client, f, copy).unwrap();
    assert_eq!(swapped.layout.components, new.layout.components);
    assert!(swapped.layout.layout_gen > old.layout.layout_gen);
    assert!(swapped.truncate_seq > old.truncate_seq.max(new.truncate_seq));
    assert_eq!(swapped.truncate_size, SIZE, "it cuts nothing");

    let after = client.attr(&mut cell, f).unwrap();
    assert!(after.change > before.change && after.ctime > before.ctime);
    let (change, ctime) = (after.change, after.ctime);
    let kept = zonal_types::Attr {
        change,
        ctime,
        ..before
    };
    assert_eq!(after, kept);
    assert_eq!(client.getxattr(&mut cell, f, "user.x").unwrap(), b"kept");
    assert_eq!(client.lookup(&mut cell, home, "g"), Ok(f));
    let ids = [&new, &old].map(|data| data.layout.components[0].data_id);
    let owners = ids.map(|id| file_with(&mut cell, &mut client, id));
    assert_eq!(owners, [Some(f), Some(copy)]);
    assert_eq!(
        data_of(&mut cell, &mut client, copy).layout.components,
        old.layout.components
    );

    // The old bytes go as those of a removed file.
    close_both(&mut cell, &mut client, f, copy);
    assert_eq!(client.attr(&mut cell, copy), Err(Stale));
    assert!(cell.stores[1].kv.contains_key(&keys::deletion(copy)));
    assert!(!cell.stores[1].kv.contains_key(&keys::deletion(f)));
    assert_eq!(begin(&mut cell, &mut client, f, home), Err(Exists));
    // Writing and truncating go on.
    client.report(&mut cell, f, 2 * SIZE).unwrap();
    assert!(client.truncate(&mut cell, f, 5_000, 0).unwrap());
    cell.assert_sound();
}

#[test]
fn bytes_in_the_shard_stay_with_their_file() {
    let (mut cell, mut client, home) = start();
    let (f, _) = client.create_open(&mut cell, home, "f").unwrap();
    client.write_inline(&mut cell, f, 0, b"first").unwrap();
    client.close(&mut cell, f).unwrap();
    grow(&mut cell);
    let before = client.attr(&mut cell, f).unwrap();
    let (copy, _) = begin(&mut cell, &mut client, f, home).unwrap();
    client.open(&mut cell, f, 0).unwrap();
    swap(&mut cell, &mut client, f, copy).unwrap();
    let after = client.attr(&mut cell, f).unwrap();
    assert_eq!((after.size, after.allocated), (5, before.allocated));
    assert_eq!(client.read_inline(&mut cell, f).unwrap(), b"first");
    close_both(&mut cell, &mut client, f, copy);
    assert_eq!(client.read_inline(&mut cell, f).unwrap(), b"first");
}

#[test]
fn a_file_that_others_may_have_open_is_refused() {
    let (mut cell, mut client, f, copy) = copied();
    let mut other = cell.client(2);
    for open_flags in [0, 2] {
        other.open(&mut cell, f, open_flags).unwrap();
        assert_eq!(swap(&mut cell, &mut client, f, copy), Err(Busy));
        let home = cell_home(&mut cell, &mut client);
        assert_eq!(begin(&mut cell, &mut client, f, home), Err(Busy));
        other.close(&mut cell, f).unwrap();
    }
    // The same session, a second time.
    client.open(&mut cell, f, 0).unwrap();
    assert_eq!(swap(&mut cell, &mut client, f, copy), Err(Busy));
    client.close(&mut cell, f).unwrap();
    other.open(&mut cell, copy, 0).unwrap();
    assert_eq!(swap(&mut cell, &mut client, f, copy), Err(Busy));
    other.close(&mut cell, copy).unwrap();
    swap(&mut cell, &mut client, f, copy).unwrap();
    close_both(&mut cell, &mut client, f, copy);
}

fn cell_home(cell: &mut Cell, client: &mut Client) -> Ino {
    client.lookup(cell, Ino::ROOT, "home").unwrap()
}

#[test]
fn a_file_that_was_changed_meanwhile_is_refused() {
    let (mut cell, mut client, f, copy) = copied();
    let request = swap_request(&mut cell, &mut client, f, copy);
    let mut other = cell.client(2);
    other.open(&mut cell, f, 2).unwrap();
    other.report(&mut cell, f, SIZE).unwrap();
    other.close(&mut cell, f).unwrap();
    assert_eq!(client.call(&mut cell, f, &request), Err(Busy));
    // A truncation by name needs no open, and comes to its end at the targets.
    let request = swap_request(&mut cell, &mut client, f, copy);
    assert!(other.truncate(&mut cell, f, SIZE - 1, 0).unwrap());
    assert_eq!(client.call(&mut cell, f, &request), Err(Busy));
    assert_eq!(swap(&mut cell, &mut client, f, copy), Err(WouldBlock));
    let data = data_of(&mut cell, &mut client, f);
    let confirm = MetaRequest::ConfirmTruncate {
        ino: f,
        truncate_seq: data.truncate_seq,
        allocated_delta: 0,
    };
    other.call(&mut cell, f, &confirm).unwrap();
    // The copy is longer than the file.
    assert_eq!(swap(&mut cell, &mut client, f, copy), Err(Invalid));
    close_both(&mut cell, &mut client, f, copy);
    assert_eq!(data_of(&mut cell, &mut client, f).layout, data.layout);
}

#[test]
fn a_restart_between_ends_the_copy_and_leaves_the_file() {
    let (mut cell, mut client, f, copy) = copied();
    let request = swap_request(&mut cell, &mut client, f, copy);
    let mut other = cell.client(2);
    let before = data_of(&mut cell, &mut client, f);
    cell.restart(1);
    client.reclaim(&mut cell, 1, vec![f, copy]);
    // Another session has not told yet what it has open.
    let unsure = swap(&mut cell, &mut client, f, copy);
    assert_eq!(unsure, Err(Busy));
    other.holds_nothing(&mut cell, 1);
    // A change of the earlier life may be lost, and its number given again.
    assert_eq!(client.call(&mut cell, f, &request), Err(Busy));
    assert_eq!(data_of(&mut cell, &mut client, f), before);
    close_both(&mut cell, &mut client, f, copy);
    assert_eq!(client.attr(&mut cell, copy), Err(Stale));
}

#[test]
fn a_repeated_swap_after_a_restart_swaps_nothing_back() {
    for restarts in [false, true] {
        let (mut cell, mut client, f, copy) = copied();
        let request = swap_request(&mut cell, &mut client, f, copy);
        client.sequence += 1;
        let caller = client.caller(1);
        let answer = cell.send(1, caller, &request);
        assert!(matches!(answer, MetaReply::Attr { .. }), "{answer:?}");
        let after = data_of(&mut cell, &mut client, f);
        if restarts {
            cell.restart(1);
            client.reclaim(&mut cell, 1, vec![f, copy]);
        }
        let again = cell.send(1, caller, &request);
        let failed = MetaReply::Failed {
            code: ErrorNumber(Busy),
        };
        assert_ne!(again, failed);
        assert_eq!(data_of(&mut cell, &mut client, f), after);
        close_both(&mut cell, &mut client, f, copy);
        assert_eq!(data_of(&mut cell, &mut client, f), after);
    }
}

#[test]
fn the_log_alone_gives_a_replica_the_same_state() {
    let (mut cell, mut client, f, copy) = copied();
    let mut replica = cell.stores[1].kv.clone();
    swap(&mut cell, &mut client, f, copy).unwrap();
    // The attributes were read since: the effect is that of the last change.
    let swapped = cell.stores[1].kv.clone();
    let changed = swapped
        .iter()
        .filter(|(key, of)| replica.get(*key) != Some(of));
    assert!(changed.count() >= 4, "two inodes, two data ids");
    apply(&mut replica, &cell.last_effect);
    assert_eq!(replica, swapped);
}

#[test]
fn the_copy_of_a_session_that_ended_is_gone_and_the_file_as_before() {
    let (mut cell, mut client, f, copy) = copied();
    let before = data_of(&mut cell, &mut client, f);
    cell.evict(1, client.caller(1));
    cell.pass_ms(LATER_MS);
    cell.tick();
    let mut other = cell.client(2);
    assert_eq!(other.attr(&mut cell, copy), Err(Stale));
    assert!(cell.stores[1].kv.contains_key(&keys::deletion(copy)));
    assert_eq!(data_of(&mut cell, &mut other, f), before);
    cell.assert_sound();
}

#[test]
fn only_the_owner_may_and_a_file_that_grants_rights_is_roots() {
    let (mut cell, mut client, home, f) = grown();
    client.chown(&mut cell, f, Some(10), Some(20)).unwrap();
    let mut other = client.who(11, 20);
    assert_eq!(begin(&mut cell, &mut other, f, home), Err(NotPermitted));
    client.sequence = other.sequence;
    client.chmod(&mut cell, f, 0o4755).unwrap();
    let mut owner = client.who(10, 20);
    assert_eq!(begin(&mut cell, &mut owner, f, home), Err(NotPermitted));
    client.sequence = owner.sequence;
    client.chmod(&mut cell, f, 0o755).unwrap();
    let mut owner = client.who(10, 20);
    let (copy, _) = begin(&mut cell, &mut owner, f, home).unwrap();
    owner.open(&mut cell, f, 0).unwrap();
    client.sequence = owner.sequence;
    // Any file without a name is not a copy.
    let (stranger, _) = client.create_open(&mut cell, home, "s").unwrap();
    assert_eq!(swap(&mut cell, &mut client, f, stranger), Err(Invalid));
    assert_eq!(swap(&mut cell, &mut client, f, f), Err(Invalid));
    client
        .setxattr(&mut cell, f, "security.capability", b"cap", 0)
        .unwrap();
    owner.sequence = client.sequence;
    assert_eq!(swap(&mut cell, &mut owner, f, copy), Err(NotPermitted));
    client.sequence = owner.sequence;
    swap(&mut cell, &mut client, f, copy).unwrap();
    let dir = client.mkdir(&mut cell, home, "d").unwrap();
    assert_eq!(begin(&mut cell, &mut client, dir, home), Err(Invalid));
}

#[test]
fn a_new_layout_on_a_target_that_leaves_is_refused() {
    let (mut cell, mut client, f, copy) = copied();
    let change = client.attr(&mut cell, f).unwrap().change;
    let states = |state| MapEdit::SetTargetState {
        target: TargetId(77),
        state,
    };
    edit(&mut cell, &[states(TargetState::Draining)]);
    assert_eq!(swap(&mut cell, &mut client, f, copy), Err(WouldBlock));
    assert_eq!(client.attr(&mut cell, f).unwrap().change, change);
}

#[test]
fn files_of_nodes_are_left_and_counts_of_directories_are_followed() {
    let (mut cell, mut client, home, f) = grown();
    let root = "zonal.layout";
    client
        .setxattr(&mut cell, home, root, b"placement=node", 0)
        .unwrap();
    assert_eq!(begin(&mut cell, &mut client, f, home), Err(NotSupported));
    client
        .setxattr(&mut cell, home, root, b"count=2", 0)
        .unwrap();
    let (_, data) = begin(&mut cell, &mut client, f, home).unwrap();
    assert_eq!(data.layout.components[0].count, 2);
    // A file keeps the copies that it has.
    client
        .setxattr(&mut cell, home, root, b"count=0", 0)
        .unwrap();
    let request = client.create_request(home, "two", NewKind::File, 0o644, false);
    client
        .setxattr(&mut cell, home, root, b"redundancy=copies:2", 0)
        .unwrap();
    let two = entry_of(client.call(&mut cell, home, &request).unwrap()).unwrap();
    client
        .setxattr(&mut cell, home, root, b"count=3", 0)
        .unwrap();
    let (_, data) = begin(&mut cell, &mut client, two.ino, home).unwrap();
    let component = &data.layout.components[0];
    assert_eq!(
        (component.count, component.redundancy.zone_copies()),
        (3, 2)
    );
}
