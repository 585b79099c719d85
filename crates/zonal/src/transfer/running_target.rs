//! A running target, accessed through its server.

use super::source::{ObjectSource, ReadPiece};
use crate::cell::connection::CellHandle;
use crate::exit::{FAILED, Failure};
use anyhow::Context;
use std::time::{Duration, Instant};
use zonal_basics::BackOff;
use zonal_net::Address;
use zonal_object::ObjectId;
use zonal_types::limits::OBJECTS_LISTED_MAX;
use zonal_types::{ErrorCode, StripeSetId, TargetId};
use zonal_wire::{AdminReply, AdminRequest, ObjectEntry, ObjectRef, StorageReply, StorageRequest};
use zonal_zonemap::ZoneMap;

/// A reply with its payload, or a refusal's code and text.
type Answer = Result<(StorageReply, Vec<u8>), (ErrorCode, String)>;

/// Time for a target to become ready. After its start it asks the shard of each file which clients
/// are fenced, before it changes the file. A shard that starts waits up to 5.5 s for its clients.
const READY: Duration = Duration::from_secs(30);

/// Shortest and longest pause between two attempts, in milliseconds.
const PAUSES_MS: (u64, u64) = (10, 500);

/// Ranges in one reply.
const RANGES: u32 = 1024;

/// A target of a running cell.
pub struct RunningTarget<'a> {
    cell: &'a CellHandle,
    to: Address,
    target: TargetId,
}

impl<'a> RunningTarget<'a> {
    /// Finds the target in the map.
    pub fn new(cell: &'a CellHandle, map: &ZoneMap, target: TargetId) -> anyhow::Result<Self> {
        let known = map.target(target);
        let known = known.ok_or_else(|| {
            Failure::new(
                crate::exit::NOT_FOUND,
                format!("the cell has no target {target}"),
            )
            .hint("`zonal zone-map show` lists the targets")
        })?;
        Ok(Self {
            cell,
            to: CellHandle::address(map, known.node)?,
            target,
        })
    }

    /// The object at this target, with what is known of its last truncation.
    pub fn object(&self, object: ObjectId, truncate_seq: u64, truncate_bytes: u64) -> ObjectRef {
        ObjectRef {
            target: self.target,
            set: StripeSetId(0),
            slot: 0,
            data_id: object.data_id,
            column: object.column,
            layout_gen: 0,
            truncate_seq,
            truncate_bytes,
        }
    }

    /// Sends a request. A refusal is returned as code and text. A target that is not ready yet is
    /// asked again for [`READY`].
    pub fn ask(&self, request: &StorageRequest, payload: &[u8]) -> anyhow::Result<Answer> {
        let until = Instant::now() + READY;
        let mut pause = BackOff::new(PAUSES_MS);
        loop {
            let (reply, payload) = self.cell.storage(self.to, request, payload)?;
            match reply {
                StorageReply::Failed { code, detail } => {
                    let may_change = matches!(code.0, ErrorCode::NotReady | ErrorCode::Overloaded);
                    if !may_change || Instant::now() >= until {
                        return Ok(Err((code.0, detail)));
                    }
                }
                reply => return Ok(Ok((reply, payload))),
            }
            std::thread::sleep(Duration::from_millis(pause.next_ms()));
        }
    }

    /// Makes written data durable.
    pub fn sync(&self) -> anyhow::Result<()> {
        let target = self.target;
        self.must(&StorageRequest::Sync { target }, &[]).map(drop)
    }

    /// Sends a request; a refusal is an error.
    pub fn must(&self, request: &StorageRequest, payload: &[u8]) -> anyhow::Result<StorageReply> {
        match self.ask(request, payload)? {
            Ok((reply, _)) => Ok(reply),
            Err((code, detail)) => Err(self.refused(request, code, &detail)),
        }
    }

    /// Turns a refusal into an error.
    pub fn refused(
        &self,
        request: &StorageRequest,
        code: ErrorCode,
        detail: &str,
    ) -> anyhow::Error {
        let (target, name) = (self.target, request.name());
        let text = format!("target {target} refuses {name}: {code} {detail}");
        let refused = Failure::new(FAILED, text);
        match code {
            ErrorCode::NotReady => refused
                .hint("`zonal status` says which servers are down")
                .into(),
            _ => refused.into(),
        }
    }
}

impl ObjectSource for RunningTarget<'_> {
    fn target(&self) -> TargetId {
        self.target
    }

    fn list(&mut self, after: Option<ObjectId>) -> anyhow::Result<(Vec<ObjectEntry>, bool)> {
        let request = AdminRequest::ListObjects {
            target: self.target,
            after: after.map(|object| (object.data_id, object.column)),
            limit: u32::try_from(OBJECTS_LISTED_MAX).unwrap_or(u32::MAX),
            digests: false,
        };
        match self.cell.admin(self.to, &request)? {
            AdminReply::Objects { objects, end } => Ok((objects, end)),
            other => Err(anyhow::anyhow!("an unexpected reply: {other:?}")),
        }
    }

    fn ranges(&mut self, object: ObjectId, offset: u64) -> anyhow::Result<(Vec<(u64, u64)>, bool)> {
        let request = StorageRequest::Map {
            object: self.object(object, 0, 0),
            offset,
            end: u64::MAX,
            limit: RANGES,
        };
        match self
            .must(&request, &[])
            .with_context(|| format!("object {object}"))?
        {
            StorageReply::Map { ranges, .. } => {
                let end = ranges.len() < RANGES as usize;
                Ok((ranges, end))
            }
            other => Err(anyhow::anyhow!("an unexpected reply: {other:?}")),
        }
    }

    fn read(&mut self, object: ObjectId, offset: u64, length: u32) -> anyhow::Result<ReadPiece> {
        let request = StorageRequest::Read {
            object: self.object(object, 0, 0),
            offset,
            length,
        };
        match self.ask(&request, &[])? {
            Ok((StorageReply::Read { .. }, payload)) => Ok(ReadPiece::Bytes(payload)),
            Ok((other, _)) => Err(anyhow::anyhow!("an unexpected reply: {other:?}")),
            Err((ErrorCode::Corrupt | ErrorCode::Io, detail)) => Ok(ReadPiece::Damaged(detail)),
            Err((code, detail)) => {
                let text = format!("object {object} at byte {offset}: {code} {detail}");
                Err(Failure::new(FAILED, text).into())
            }
        }
    }
}
