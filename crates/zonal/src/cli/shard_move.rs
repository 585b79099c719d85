//! `zonal shard move`: moves a first-level directory with all below it to another shard of its
//! zone.
//!
//! The shard that has it carries the move out; this command orders it and shows its progress.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND, REFUSED, UNREACHABLE, USAGE};
use serde_json::json;
use std::time::{Duration, Instant};
use zonal_types::{ErrorCode, Ino, PartitionId, ShardId};
use zonal_wire::{Header, Junction, MetaReply, MetaRequest, MoveStage, MoveStatus, Service};
use zonal_zonemap::{Shard, ZoneMap};

/// Pause between two looks at a move.
const LOOK: Duration = Duration::from_millis(200);
/// How long the newest owner of a directory is sought.
const OWNER_KNOWN: Duration = Duration::from_secs(10);
/// Directories named in a message.
const NAMED: usize = 5;

/// Arguments of `zonal shard move`.
#[derive(Debug, clap::Args)]
pub struct SubtreeMove {
    #[command(flatten)]
    cell: CellArgs,
    /// The first-level directory, as a path in the cell
    path: String,
    /// The shard that gets it; `zonal shard ls` shows shards
    #[arg(long, value_name = "SHARD", required_unless_present = "cancel")]
    to: Option<u32>,
    /// End the move; possible until the copy is complete
    #[arg(long, conflicts_with_all = ["to", "no_wait"])]
    cancel: bool,
    /// Only order the move; the same command again shows how far it is
    #[arg(long)]
    no_wait: bool,
    /// Stop waiting after this many seconds; the move goes on
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    wait: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A first-level directory, and those that share its partition.
struct Subtree {
    path: String,
    partition: PartitionId,
    others: Vec<String>,
}

impl SubtreeMove {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        let subtree = self.subtree(&cell)?;
        let map = cell.map()?;
        let Some(to) = self.to.map(ShardId) else {
            return self.cancel(&cell, &map, owner_of(&map, &subtree)?, &subtree);
        };
        let from = order(&cell, map, &subtree, to)?;
        if !self.json && !subtree.others.is_empty() {
            console::note(format_args!(
                "these share its numbers and move with it: {}",
                few(&subtree.others)
            ));
        }
        if !self.no_wait {
            self.follow(&cell, from, &subtree, to)?;
        }
        let state = if self.no_wait { "ordered" } else { "moved" };
        if self.json {
            let value = json!({
                "path": subtree.path,
                "partition": subtree.partition.0,
                "from": from.0,
                "to": to.0,
                "state": state,
                "with": subtree.others,
            });
            console::json(format_args!("{value}"));
        } else if self.no_wait {
            console::line(format_args!(
                "{} is moving from shard {from} to shard {to}",
                subtree.path
            ));
        } else {
            console::line(format_args!(
                "{} has moved from shard {from} to shard {to}",
                subtree.path
            ));
        }
        Ok(())
    }

    fn subtree(&self, cell: &CellHandle) -> anyhow::Result<Subtree> {
        let name = self.path.trim_matches('/');
        if name.is_empty() || name.contains('/') {
            let text = format!("{} is no first-level directory", self.path);
            return Err(Failure::new(USAGE, text)
                .hint("only whole first-level directories move, such as /data")
                .into());
        }
        let path = format!("/{name}");
        let mut found: Option<Ino> = None;
        cell.junctions(&mut |junction: &Junction| {
            if junction.path == path {
                found = Some(junction.ino);
            }
        })?;
        let Some(ino) = found else {
            let text = format!("the cell has no first-level directory {path}");
            return Err(Failure::new(NOT_FOUND, text)
                .hint("files of the root are in the root's shard, and stay there")
                .into());
        };
        let mut others = named(cell, &[ino.partition()])?;
        others.retain(|other| *other != path);
        Ok(Subtree {
            path,
            partition: ino.partition(),
            others,
        })
    }

    fn cancel(
        &self,
        cell: &CellHandle,
        map: &ZoneMap,
        owner: &Shard,
        subtree: &Subtree,
    ) -> anyhow::Result<()> {
        let partition = subtree.partition;
        match ask(cell, map, owner, &MetaRequest::CancelMove { partition })? {
            MetaReply::Done => {}
            MetaReply::Failed { code } if code.0 == ErrorCode::NotFound => {
                let text = format!("{} is not moving", subtree.path);
                return Err(Failure::new(NOT_FOUND, text).into());
            }
            MetaReply::Failed { code } if code.0 == ErrorCode::Busy => {
                let text = format!("the copy of {} is complete", subtree.path);
                return Err(Failure::new(REFUSED, text)
                    .hint("the move ends by itself; move it back afterwards")
                    .into());
            }
            other => return Err(unexpected(owner, &other).into()),
        }
        if self.json {
            let value = json!({
                "path": subtree.path,
                "partition": partition.0,
                "from": owner.id.0,
                "to": null,
                "state": "cancelled",
                "with": subtree.others,
            });
            console::json(format_args!("{value}"));
        } else {
            console::line(format_args!("{} stays in shard {}", subtree.path, owner.id));
        }
        Ok(())
    }

    /// Shows progress until the map names the other shard.
    fn follow(
        &self,
        cell: &CellHandle,
        from: ShardId,
        subtree: &Subtree,
        to: ShardId,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut shown = String::new();
        loop {
            let map = cell.map()?;
            let owner = map.shard_of(subtree.partition).map(|shard| shard.id);
            if owner == Some(to) {
                return Ok(());
            }
            // A shard that does not answer is about to be restarted, or to get another leader.
            let status = map
                .shard(from)
                .and_then(|shard| status(cell, &map, shard, subtree));
            if let Some(status) = status
                && !self.json
            {
                let text = describe(&status);
                if text != shown {
                    console::note(&text);
                    shown = text;
                }
                if status.stage == MoveStage::Cancelled {
                    let text = format!("the move of {} was cancelled", subtree.path);
                    return Err(Failure::new(FAILED, text).into());
                }
            }
            if began.elapsed().as_secs() >= self.wait {
                let text = format!(
                    "{} has not moved within {} s{}",
                    subtree.path,
                    self.wait,
                    if shown.is_empty() {
                        String::new()
                    } else {
                        format!(": {shown}")
                    }
                );
                return Err(Failure::new(FAILED, text)
                    .hint("the move goes on; the same command waits for it, --cancel ends it")
                    .into());
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The shard that the map names for a directory.
fn owner_of<'a>(map: &'a ZoneMap, subtree: &Subtree) -> anyhow::Result<&'a Shard> {
    let owner = map.shard_of(subtree.partition);
    Ok(owner.ok_or_else(|| Failure::new(FAILED, "the map names no shard for it"))?)
}

/// Orders the move at the shard that has the directory; returns this shard.
fn order(
    cell: &CellHandle,
    mut map: ZoneMap,
    subtree: &Subtree,
    to: ShardId,
) -> anyhow::Result<ShardId> {
    let partition = subtree.partition;
    let request = MetaRequest::MovePartition { partition, to };
    let began = Instant::now();
    loop {
        let owner = owner_of(&map, subtree)?;
        let reply = ask(cell, &map, owner, &request)?;
        let is_elsewhere = match &reply {
            MetaReply::NotLeader { .. } => true,
            MetaReply::Failed { code } => code.0 == ErrorCode::NotOwner,
            _ => false,
        };
        if is_elsewhere && began.elapsed() < OWNER_KNOWN {
            // An earlier move has just ended, or the shard's replicas elect a leader.
            std::thread::sleep(LOOK);
            map = cell.map()?;
            continue;
        }
        return match reply {
            MetaReply::Done => Ok(owner.id),
            reply => Err(refusal(cell, owner, subtree, to, &reply)?.into()),
        };
    }
}

/// A refusal in words.
fn refusal(
    cell: &CellHandle,
    owner: &Shard,
    subtree: &Subtree,
    to: ShardId,
    reply: &MetaReply,
) -> anyhow::Result<Failure> {
    let path = &subtree.path;
    Ok(match reply {
        MetaReply::Joined { partitions } => {
            let with = named(cell, partitions)?;
            let with = match with.is_empty() {
                true => "a removed directory".to_owned(),
                false => few(&with),
            };
            let text = format!(
                "{path} cannot move alone: files were renamed or linked between it and {with}"
            );
            Failure::new(REFUSED, text)
        }
        MetaReply::Failed { code } => match code.0 {
            ErrorCode::Exists => Failure::new(REFUSED, format!("{path} is in shard {to} already")),
            ErrorCode::NotFound => Failure::new(NOT_FOUND, format!("the cell has no shard {to}"))
                .hint("`zonal shard ls` shows shards"),
            ErrorCode::CrossShard => {
                let text = format!(
                    "shard {to} is not of zone {}, in which {path} is",
                    owner.zone
                );
                Failure::new(REFUSED, text).hint("`zonal shard ls` shows each shard's zone")
            }
            ErrorCode::Busy => {
                let text = format!("a move leaves shard {} already", owner.id);
                Failure::new(REFUSED, text).hint("one move at a time leaves a shard; try again")
            }
            code => Failure::new(
                FAILED,
                format!("shard {} refuses the move: {code}", owner.id),
            ),
        },
        other => unexpected(owner, other),
    })
}

fn unexpected(owner: &Shard, reply: &MetaReply) -> Failure {
    Failure::new(
        UNREACHABLE,
        format!("shard {} answers {}", owner.id, reply.name()),
    )
}

fn ask(
    cell: &CellHandle,
    map: &ZoneMap,
    shard: &Shard,
    request: &MetaRequest,
) -> anyhow::Result<MetaReply> {
    let mut header = Header::request(Service::Meta, cell.id);
    header.epoch = shard.epoch;
    cell.call_shard(map, shard, header, request)
}

fn status(cell: &CellHandle, map: &ZoneMap, shard: &Shard, of: &Subtree) -> Option<MoveStatus> {
    match ask(cell, map, shard, &MetaRequest::GetMoves) {
        Ok(MetaReply::Moves { moves }) => {
            moves.into_iter().find(|one| one.partition == of.partition)
        }
        _silent => None,
    }
}

fn describe(status: &MoveStatus) -> String {
    let failure = status.failure.and_then(ErrorCode::from_number);
    let again = match (failure, status.attempts) {
        (Some(failure), attempts) => format!(" (attempt {attempts}; before: {failure})"),
        (None, _) => String::new(),
    };
    match status.stage {
        MoveStage::Copying => format!("{} of {} inodes{again}", status.sent, status.inodes),
        MoveStage::Switching => format!("the copy is complete{again}"),
        MoveStage::Clearing => "the other shard serves".to_owned(),
        MoveStage::Cancelled => "cancelled".to_owned(),
    }
}

/// First-level directories in these partitions.
fn named(cell: &CellHandle, partitions: &[PartitionId]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    cell.junctions(&mut |junction: &Junction| {
        if partitions.contains(&junction.ino.partition()) {
            found.push(junction.path.clone());
        }
    })?;
    Ok(found)
}

fn few(paths: &[String]) -> String {
    let shown = paths
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match paths.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
