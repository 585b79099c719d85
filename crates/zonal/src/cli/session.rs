//! `zonal session`: lists clients and ends their sessions.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::console;
use crate::exit::{Failure, NOT_FOUND};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zonal_types::{ErrorCode, SessionId};
use zonal_wire::{AdminReply, AdminRequest, Header, MetaReply, MetaRequest, Service, SessionEntry};
use zonal_zonemap::{Shard, ZoneMap};

/// Sessions in one page of a reply.
const AT_ONCE: u32 = 1_000;
/// Time for a shard to have a client fenced, and the pause between two requests.
const ENDING: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// List clients of the cell, and end the sessions of a client that is gone
///
/// A mount has a session at each metadata server it uses. The session lasts until the mount is
/// unmounted, or until 60 s after its last request.
#[derive(Debug, clap::Subcommand)]
pub enum SessionCommand {
    /// List clients: name, zone, time since the last request, number of files open and locked
    Ls {
        #[command(flatten)]
        cell: CellArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// End the sessions of a client that is gone: its locks and open files are free at once, not
    /// only when its term is over
    ///
    /// A client that still runs opens new sessions and continues. Names and attributes that it may
    /// still cache delay changes by others for at most 6 s.
    End {
        #[command(flatten)]
        cell: CellArgs,
        /// The client's number, as `ls` shows it
        #[arg(value_name = "CLIENT")]
        client: String,
    },
}

/// One client, over all shards.
#[derive(Default)]
struct Client {
    name: String,
    zone: u16,
    /// The highest incarnation that a shard knows.
    incarnation: u32,
    idle_ms: u64,
    open_files: u64,
    locked_files: u64,
    shards: Vec<u32>,
    /// Sessions with their shards.
    sessions: Vec<(u32, SessionId)>,
}

impl SessionCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Ls { cell, json } => show(&cell.open()?, json),
            Self::End { cell, client } => end(&cell.open()?, &client),
        }
    }
}

fn show(cell: &CellHandle, as_json: bool) -> anyhow::Result<()> {
    let (clients, failed) = clients(cell, &cell.map()?);
    if as_json {
        let list: Vec<_> = clients
            .iter()
            .map(|(number, client)| {
                json!({
                    "client": format!("{number:016x}"),
                    "incarnation": client.incarnation,
                    "name": client.name,
                    "zone": client.zone,
                    "idle_ms": client.idle_ms,
                    "open_files": client.open_files,
                    "locked_files": client.locked_files,
                    "shards": client.shards,
                })
            })
            .collect();
        console::json(format_args!("{:#}", json!({ "clients": list })));
    } else {
        let header = ["CLIENT", "ZONE", "HEARD OF", "OPEN", "LOCKED", "NAME"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(clients.iter().map(|(number, client)| {
            vec![
                format!("{number:016x}"),
                client.zone.to_string(),
                format!("{} s ago", client.idle_ms / 1000),
                client.open_files.to_string(),
                client.locked_files.to_string(),
                client.name.clone(),
            ]
        }));
        console::table(&rows);
    }
    failed.map_or(Ok(()), Err)
}

fn end(cell: &CellHandle, text: &str) -> anyhow::Result<()> {
    let number = u64::from_str_radix(text, 16).map_err(|_error| {
        let failure = Failure::new(2, format!("{text} is no client's number"));
        failure.hint("`zonal session ls` shows them")
    })?;
    let map = cell.map()?;
    let (clients, failed) = clients(cell, &map);
    let Some(client) = clients.get(&number) else {
        let failure = Failure::new(NOT_FOUND, format!("no session of a client {text}"));
        return Err(failed.unwrap_or_else(|| failure.hint("`zonal session ls` shows them").into()));
    };
    for (id, session) in &client.sessions {
        if let Some(shard) = map.shards.iter().find(|shard| shard.id.0 == *id) {
            evict(cell, &map, shard, *session)?;
            console::line(format_args!("shard {id}: ended"));
        }
    }
    failed.map_or(Ok(()), Err)
}

fn evict(
    cell: &CellHandle,
    map: &ZoneMap,
    shard: &Shard,
    session: SessionId,
) -> anyhow::Result<()> {
    let mut header = Header::request(Service::Meta, cell.id);
    (header.epoch, header.session) = (shard.epoch, session);
    let request = MetaRequest::EvictSession;
    let until = Instant::now() + ENDING;
    loop {
        match cell.call_shard(map, shard, header, &request)? {
            MetaReply::Done => return Ok(()),
            // The session ended in between.
            MetaReply::Failed { code } if code.0 == ErrorCode::UnknownSession => return Ok(()),
            // The shard first tells targets that the client is fenced.
            MetaReply::Failed { code }
                if code.0 == ErrorCode::NotReady && Instant::now() < until =>
            {
                std::thread::sleep(PAUSE);
            }
            other => anyhow::bail!("shard {} answers {other:?}", shard.id),
        }
    }
}

/// All clients by number, and the failure of a shard that could not be asked.
fn clients(cell: &CellHandle, map: &ZoneMap) -> (BTreeMap<u64, Client>, Option<anyhow::Error>) {
    let (mut clients, mut failed) = (BTreeMap::<u64, Client>::new(), None);
    for shard in &map.shards {
        match sessions(cell, map, shard) {
            Ok(sessions) => {
                for entry in sessions {
                    note(
                        clients.entry(entry.identity.client.0).or_default(),
                        shard,
                        entry,
                    );
                }
            }
            Err(error) => {
                failed.get_or_insert(error.context(format!("shard {}", shard.id)));
            }
        }
    }
    (clients, failed)
}

fn note(client: &mut Client, shard: &Shard, entry: SessionEntry) {
    client.idle_ms = if client.shards.is_empty() {
        entry.idle_ms
    } else {
        client.idle_ms.min(entry.idle_ms)
    };
    (client.name, client.zone) = (entry.name, entry.zone.0);
    client.incarnation = client.incarnation.max(entry.identity.incarnation.0);
    client.open_files += u64::from(entry.open_files);
    client.locked_files += u64::from(entry.locked_files);
    client.shards.push(shard.id.0);
    client.sessions.push((shard.id.0, entry.session));
}

fn sessions(cell: &CellHandle, map: &ZoneMap, shard: &Shard) -> anyhow::Result<Vec<SessionEntry>> {
    let (mut found, mut after) = (Vec::<SessionEntry>::new(), SessionId(0));
    loop {
        let request = AdminRequest::ListSessions {
            shard: shard.id,
            after,
            limit: AT_ONCE,
        };
        match cell.admin_of_shard(map, shard, &request)?.0 {
            AdminReply::Sessions { sessions, end } => {
                found.extend(sessions);
                match found.last() {
                    Some(last) if !end && last.session > after => after = last.session,
                    _ => return Ok(found),
                }
            }
            other => anyhow::bail!("it answers {other:?}"),
        }
    }
}
