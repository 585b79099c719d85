//! Access to a running cell for `zonal fsck`: requests to its servers, repeated until each answers
//! or its time is over.

use crate::backup::{self, ShardBackup};
use crate::cell::connection::{CallRefusal, CellHandle};
use anyhow::Context;
use std::time::{Duration, Instant};
use zonal_net::Address;
use zonal_object::ids::BLOCK;
use zonal_object::{KnownObject, ObjectId};
use zonal_offline::OfflineError;
use zonal_offline::running_cell::{self, RunningCell, SnapshotPage, SnapshotSet};
use zonal_types::{Blob, ErrorCode, ShardId, TargetId};
use zonal_wire::{AdminReply, AdminRequest};
use zonal_zonemap::ZoneMap;

/// Time to keep asking a server that does not answer; a killed server has been restarted by then.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// A running cell that is being checked.
pub struct CheckedCell<'a> {
    pub cell: &'a CellHandle,
    /// The zone map, for the addresses of targets.
    pub map: ZoneMap,
}

/// Result of one attempt: done, worth repeating, or final.
enum Try<T> {
    Done(T),
    Again(anyhow::Error),
    Never(anyhow::Error),
}

impl<T> From<anyhow::Result<T>> for Try<T> {
    fn from(result: anyhow::Result<T>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(error) => Self::Again(error),
        }
    }
}

fn persist<T>(of: &str, mut ask: impl FnMut() -> Try<T>) -> Result<T, OfflineError> {
    let since = Instant::now();
    loop {
        let error = match ask() {
            Try::Done(value) => return Ok(value),
            Try::Again(_) if since.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Try::Again(error) | Try::Never(error) => error,
        };
        return Err(OfflineError::NoAnswer {
            of: of.to_owned(),
            why: format!("{error:#}"),
        });
    }
}

/// Classifies a server's refusal: waiting does not repair damage or missing rights.
fn refusal<T>(refused: CallRefusal) -> Try<T> {
    match refused.code {
        ErrorCode::Corrupt | ErrorCode::Io | ErrorCode::NotPermitted | ErrorCode::Protocol => {
            Try::Never(refused.into())
        }
        _ => Try::Again(refused.into()),
    }
}

impl<'a> CheckedCell<'a> {
    /// Fetches the zone map, waiting until the manager answers.
    pub fn new(cell: &'a CellHandle) -> Result<Self, OfflineError> {
        let map = persist("manager", || cell.map().into())?;
        Ok(Self { cell, map })
    }

    fn address(&self, target: TargetId) -> anyhow::Result<Address> {
        if let Some(known) = self.map.target(target) {
            return CellHandle::address(&self.map, known.node);
        }
        // The target joined after the check began.
        let map = self.cell.map()?;
        let known = map.target(target);
        let known = known.context("the zone map does not have it")?;
        CellHandle::address(&map, known.node)
    }
}

impl RunningCell for CheckedCell<'_> {
    fn map(&self) -> Result<ZoneMap, OfflineError> {
        Ok(self.map.clone())
    }

    fn objects(
        &self,
        target: TargetId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<(Vec<KnownObject>, bool), OfflineError> {
        let request = AdminRequest::ListObjects {
            target,
            after: after.map(|object| (object.data_id, object.column)),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            digests: true,
        };
        let name = format!("target {target}");
        let (listed, end) = persist(&name, || {
            match self
                .address(target)
                .and_then(|to| self.cell.ask(to, &request))
            {
                Ok(Ok(AdminReply::Objects { objects, end })) => Try::Done((objects, end)),
                Ok(Ok(other)) => Try::Never(anyhow::anyhow!("an unexpected reply: {other:?}")),
                Ok(Err(refused)) => refusal(refused),
                Err(error) => Try::Again(error),
            }
        })?;
        let known = listed.iter().map(|entry| KnownObject {
            object: ObjectId {
                data_id: entry.data_id,
                column: entry.column,
            },
            bytes: entry.object_bytes,
            blocks: entry.allocated / BLOCK,
            lost: 0,
            truncate_seq: entry.truncate_seq,
            deleting: false,
            order: entry.order,
            digest: entry.digest,
        });
        Ok((known.collect(), end))
    }

    fn fix(&self) -> Result<SnapshotSet<'_>, OfflineError> {
        let (map, snapshots) = persist("snapshots", || backup::fix_all(self.cell).into())?;
        let snapshots = snapshots.into_iter();
        Ok(SnapshotSet {
            map,
            snapshots: snapshots
                .map(|snapshot| {
                    Box::new(Read(snapshot)) as Box<dyn running_cell::ShardSnapshot + '_>
                })
                .collect(),
        })
    }
}

struct Read<'a>(ShardBackup<'a>);

impl running_cell::ShardSnapshot for Read<'_> {
    fn shard(&self) -> ShardId {
        self.0.start.shard
    }

    fn page(&self, after: &[u8]) -> Result<SnapshotPage, OfflineError> {
        match self.0.ask(&Blob(after.to_vec())) {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(refused)) if refused.code != ErrorCode::NotFound => {
                Err(OfflineError::NoAnswer {
                    of: format!("shard {}", self.shard()),
                    why: refused.to_string(),
                })
            }
            // The server was restarted, or this command was too slow and the snapshot expired.
            Ok(Err(_)) | Err(_) => Err(OfflineError::SnapshotGone(self.shard())),
        }
    }
}
