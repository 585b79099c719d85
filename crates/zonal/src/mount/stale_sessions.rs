//! Ends the sessions of mounts whose process was killed, instead of waiting for the end of their
//! term.
//!
//! The record of a mount has its client id, which is all that a shard requires of a returning
//! client. So the next mount opens the dead mount's session again and closes it. That frees its
//! locks, opens, append tickets and leases.

use crate::cell::CellHandle;
use crate::cell::mount_records::{self, MountRecord, MountRecords};
use crate::console;
use zonal_types::{ClientId, ClientIdentity, Incarnation, ZoneId};
use zonal_wire::{Header, MetaReply, MetaRequest, Service};
use zonal_zonemap::{Shard, ZoneMap};

/// Ends the sessions of this machine's dead mounts of a cell. Sessions at unreachable shards last
/// until the end of their term.
pub fn end_sessions(cell: &CellHandle) {
    let dead: Vec<(MountRecords, MountRecord)> = mount_records::places(cell)
        .inspect(MountRecords::remove_finished)
        .flat_map(|records| {
            let dead = records.dead(cell.first_manager());
            dead.into_iter()
                .map(move |record| (records.clone(), record))
        })
        .collect();
    if dead.is_empty() {
        return;
    }
    let map = match cell.map() {
        Ok(map) => map,
        Err(error) => {
            console::note(format_args!(
                "sessions of dead mounts end only with their term: {error:#}"
            ));
            return;
        }
    };
    for (records, record) in dead {
        let ended = map
            .shards
            .iter()
            .try_for_each(|shard| close_session(cell, &map, shard, (record.client, record.zone)));
        if let Err(error) = ended.and_then(|()| records.note_ended(&record)) {
            console::note(format_args!(
                "the sessions of the dead mount {} end only with their term: {error:#}",
                record.path.display()
            ));
        }
    }
}

/// Ends a dead client's session at one shard; `dead` has the client's number and zone.
fn close_session(
    cell: &CellHandle,
    map: &ZoneMap,
    shard: &Shard,
    (client, zone): (u64, u16),
) -> anyhow::Result<()> {
    let mut header = Header::request(Service::Meta, cell.id);
    header.epoch = shard.epoch;
    // The client has ended, so it opens no other session.
    header.identity = ClientIdentity {
        client: ClientId(client),
        incarnation: Incarnation(u32::MAX),
    };
    let open = MetaRequest::OpenSession {
        zone: ZoneId(zone),
        name: "a mount whose session is ended".to_owned(),
    };
    let reply = cell.call_shard(map, shard, header, &open)?;
    let MetaReply::Session { session, .. } = reply else {
        anyhow::bail!("shard {} answers {reply:?}", shard.id);
    };
    header.session = session;
    let end = MetaRequest::CloseSession;
    match cell.call_shard(map, shard, header, &end)? {
        MetaReply::Done => Ok(()),
        other => anyhow::bail!("shard {} answers {other:?}", shard.id),
    }
}
