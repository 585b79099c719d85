//! Lost clients: housekeeping names each client once whose session expires, and none that left.

mod common;

use common::*;
use zonal_types::limits::SESSION_TERM_MS;
use zonal_types::{ClientId, ZoneId};
use zonal_wire::{MetaReply, MetaRequest};

/// The clients that a step of housekeeping names.
fn lost(cell: &mut Cell) -> Vec<(ClientId, ZoneId, String)> {
    let now = cell.now;
    let store = &mut cell.stores[1];
    let ticked = store.shard.tick(&store.kv, now);
    apply(&mut store.kv, &ticked.effect);
    let lost = ticked.lost.into_iter();
    lost.map(|lost| (lost.client, lost.zone, lost.name))
        .collect()
}

#[test]
fn a_client_that_is_silent_for_a_term_is_lost_once_and_one_that_leaves_is_not() {
    let (mut cell, first, _home) = start();
    let silent = cell.client(2);
    let leaves = cell.client(3);
    let closed = cell.send(1, leaves.caller(1), &MetaRequest::CloseSession);
    assert_eq!(closed, MetaReply::Done);
    cell.pass_ms(SESSION_TERM_MS / 2);
    let _ = cell.send(1, first.caller(1), &MetaRequest::StatFs);
    cell.pass_ms(SESSION_TERM_MS / 2);
    let named = (silent.identity.client, ZoneId(1), "test".to_owned());
    assert_eq!(lost(&mut cell), [named]);
    cell.acknowledge_fences();
    assert_eq!(lost(&mut cell), []);
}
