//! A simulated storage process: one target with its disk.
//!
//! Between plan and commit of a write there may be a pause in which other requests run, as with threads.

mod admission;
mod changes;

use crate::checker::slots::CarriedOut;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::meta_node::MapCell;
use crate::net::{Answer, Network, Role, Task};
use crate::plant::Plant;
use crate::rng::Rng;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use zonal_object::key::{Named, OBJECT, parse};
use zonal_object::{
    Attempt, Cut, Edit, ObjectId, ObjectStat, Outcome, ReadPlan, Record, Sender, Target,
    TargetConfig, replay_checks,
};
use zonal_types::limits::BLOCK_BYTES;
use zonal_types::{Codec, ErrorCode, KvRead, ShardId, TargetId};
use zonal_wire::{ErrorNumber, Header, ObjectRef, StorageReply, StorageRequest};
use zonal_zonemap::ZoneMap;

/// Size of simulated targets: 64 MiB in segments of 4 MiB, and few pending blocks, so that checkpoints happen.
pub const LARGE: TargetConfig = TargetConfig {
    segment_units: 1024,
    segments: 16,
    pending_blocks_max: 256,
};

/// A target that soon is full: 2 MiB.
pub const SMALL: TargetConfig = TargetConfig {
    segment_units: 256,
    segments: 2,
    pending_blocks_max: 64,
};

/// What a target's process needs.
pub struct Parts {
    /// Which target.
    pub id: TargetId,
    /// Its size.
    pub config: TargetConfig,
    /// What connects it.
    pub network: Rc<Network>,
    /// The map as the manager has it.
    pub map: MapCell,
    /// Who watches by what slots requests come.
    pub carried_out: Rc<CarriedOut>,
    /// What it has.
    pub disk: Rc<Disk>,
    /// A bug.
    pub plant: Plant,
}

/// A storage process.
pub struct StorageNode {
    id: TargetId,
    clock: Clock,
    network: Rc<Network>,
    map: MapCell,
    /// The newest map of which this process has heard.
    known: RefCell<Arc<ZoneMap>>,
    carried_out: Rc<CarriedOut>,
    disk: Rc<Disk>,
    target: RefCell<Target>,
    /// Shards that have said since the start who is fenced.
    heard: RefCell<BTreeSet<ShardId>>,
    rng: RefCell<Rng>,
    plant: Plant,
}

impl StorageNode {
    /// Starts on what the disk has.
    ///
    /// # Errors
    /// A store that the target refuses.
    pub fn start(parts: Parts, rng: Rng) -> Result<Self, ErrorCode> {
        let Parts {
            id,
            config,
            network,
            map,
            carried_out,
            disk,
            plant,
        } = parts;
        let notes = disk.notes();
        let target = Target::open(config, disk.as_ref(), notes.iter().map(Vec::as_slice))?;
        let known = RefCell::new(map.borrow().clone());
        let node = Self {
            id,
            clock: network.clock.clone(),
            network,
            map,
            known,
            carried_out,
            disk,
            target: RefCell::new(target),
            heard: RefCell::default(),
            rng: RefCell::new(rng),
            plant,
        };
        let unfinished = node.target.borrow().unfinished_deletes();
        node.delete(unfinished)?;
        Ok(node)
    }

    /// True where all blocks that a record wrote to segments are there.
    #[must_use]
    pub fn is_whole(config: &TargetConfig, disk: &Disk, record: &Record) -> bool {
        let Ok(checks) = replay_checks(config, record) else {
            return false;
        };
        checks.iter().all(|check| {
            let mut block = vec![0; BLOCK_BYTES];
            let read = disk.read_segment(check.place.segment, check.place.offset(), &mut block);
            read.is_ok() && zonal_wire::frame::crc32c(&block) == check.crc
        })
    }

    /// Which target it is.
    #[must_use]
    pub fn id(&self) -> TargetId {
        self.id
    }

    /// Its disk.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Bytes free, and bytes of pending blocks with their bound.
    #[must_use]
    pub fn space(&self) -> (u64, (u64, u64)) {
        let target = self.target.borrow();
        (target.statfs().free, target.pending_bytes())
    }

    /// Units that plans hold.
    #[must_use]
    pub fn units_in_flight(&self) -> u64 {
        self.target.borrow().units_in_flight()
    }

    /// What is broken in the target's store.
    #[must_use]
    pub fn check(&self) -> Option<String> {
        let broken = self.target.borrow().check(self.disk.as_ref()).err()?;
        Some(format!("target {}: {broken:?}", self.id))
    }

    /// All objects, with their sizes.
    #[must_use]
    pub fn objects(&self) -> Vec<(ObjectId, ObjectStat)> {
        let mut ids = Vec::new();
        let space = [OBJECT]..[OBJECT + 1];
        let scanned = self
            .disk
            .scan(&space.start, &space.end, &mut |key, _value| {
                if let Ok(Named::Header(object)) = parse(key) {
                    ids.push(object);
                }
                true
            });
        let target = self.target.borrow();
        let stat_of = |object| {
            let stat = target.stat(self.disk.as_ref(), object).unwrap_or_default();
            (object, stat)
        };
        scanned.map_or(Vec::new(), |()| ids.into_iter().map(stat_of).collect())
    }

    /// Objects that exist.
    #[must_use]
    pub fn object_count(&self) -> u64 {
        self.target.borrow().statfs().objects
    }

    fn written(&self, outcome: Outcome) -> StorageReply {
        StorageReply::Written {
            allocated_delta: outcome.allocated_delta,
            object_bytes: outcome.object_bytes,
            verifier: self.disk.power_losses(),
        }
    }

    fn cut(&self, object: &ObjectRef) -> Cut {
        if self.plant == Plant::TargetIgnoresTruncation {
            return Cut::default();
        }
        Cut {
            seq: object.truncate_seq,
            bytes: object.truncate_bytes,
        }
    }

    async fn pause(&self) {
        let nanos = {
            let mut rng = self.rng.borrow_mut();
            if rng.chance(300) {
                rng.below(3_000_000)
            } else {
                0
            }
        };
        if nanos > 0 {
            self.clock.sleep(nanos).await;
        }
    }

    fn fill(&self, plan: &ReadPlan) -> Result<Vec<u8>, ErrorCode> {
        let mut buffer = vec![0; plan.buffer_len()];
        for read in plan.reads() {
            let part = &mut buffer[read.buffer];
            self.disk.read_segment(read.segment, read.offset, part)?;
        }
        Ok(buffer)
    }

    fn attempt(&self, header: &Header) -> Attempt {
        let number = if self.plant == Plant::AttemptsAreIgnored {
            0
        } else {
            header.sequence
        };
        Attempt {
            sender: Sender {
                identity: header.identity,
                ..Sender::default()
            },
            number,
        }
    }

    /// The object that a request means.
    fn id_of(&self, object: &ObjectRef) -> ObjectId {
        let mut column = object.column;
        if self.plant == Plant::ColumnsAreMixed && column.0 == 1 {
            column.0 = 200;
        }
        ObjectId {
            data_id: object.data_id,
            column,
        }
    }

    /// Hears of the newest map.
    pub fn hear_of_map(&self) {
        self.known.replace(self.map.borrow().clone());
    }

    fn log(&self, record: Record) {
        self.disk.append(record, true);
    }

    async fn answer(
        &self,
        header: &Header,
        request: StorageRequest,
        payload: &[u8],
    ) -> Result<(StorageReply, Vec<u8>), ErrorCode> {
        let attempt = self.attempt(header);
        let is_about_target = matches!(
            request,
            StorageRequest::Sync { .. } | StorageRequest::StatFs { .. }
        );
        if !is_about_target {
            self.target.borrow().admit(attempt.sender)?;
        }
        let reply = match request {
            StorageRequest::Read {
                object,
                offset,
                length,
            } => {
                return self.read(&object, offset, length as usize);
            }
            StorageRequest::Write {
                object,
                offset,
                sync,
                ..
            } => {
                let length = u32::try_from(payload.len()).map_err(|_error| ErrorCode::Invalid)?;
                let range = [(offset, length)];
                let reply = self.write(&object, attempt, &range, payload).await?;
                if sync {
                    self.disk.sync();
                }
                reply
            }
            StorageRequest::WriteRanges { object, ranges } => {
                self.write(&object, attempt, &ranges, payload).await?
            }
            StorageRequest::Truncate { object } => {
                self.edit(|| Ok(Edit::truncate(self.id_of(&object), self.cut(&object))))
                    .await?
            }
            StorageRequest::Punch {
                object,
                offset,
                length,
            } => {
                let cut = self.cut(&object);
                let punch = || Edit::punch(self.id_of(&object), cut, offset, length);
                self.edit(|| Ok(punch()?.sent_by(attempt))).await?
            }
            StorageRequest::Allocate {
                object,
                offset,
                length,
                zero,
            } => {
                let cut = self.cut(&object);
                let allocate = || Edit::allocate(self.id_of(&object), cut, offset, length, zero);
                self.edit(|| Ok(allocate()?.sent_by(attempt))).await?
            }
            StorageRequest::Stat { object } => self.stat(&object)?,
            StorageRequest::Sync { .. } => {
                if self.plant != Plant::SyncDoesNothing {
                    self.disk.sync();
                }
                let verifier = self.disk.power_losses();
                StorageReply::Synced { verifier }
            }
            StorageRequest::Delete { objects, .. } => {
                let objects = objects
                    .into_iter()
                    .map(|(data_id, column)| ObjectId { data_id, column });
                self.delete(objects.collect())?;
                StorageReply::Done
            }
            StorageRequest::Map {
                object,
                offset,
                end,
                limit,
            } => self.data_map(&object, (offset, end), limit as usize)?,
            StorageRequest::Fence { .. } if self.plant == Plant::FencesAreForgotten => {
                StorageReply::Done
            }
            StorageRequest::Fence { fences, .. } => {
                let record = self.target.borrow_mut().fence(&fences);
                self.log(record);
                self.disk.sync();
                StorageReply::Done
            }
            StorageRequest::StatFs { .. } => {
                let space = self.target.borrow().statfs();
                StorageReply::StatFs {
                    total: space.total,
                    free: space.free,
                    objects: space.objects,
                }
            }
            _reserved => return Err(ErrorCode::NotSupported),
        };
        Ok((reply, Vec::new()))
    }

    fn stat(&self, object: &ObjectRef) -> Result<StorageReply, ErrorCode> {
        let target = self.target.borrow();
        let stat = target.stat(self.disk.as_ref(), self.id_of(object))?;
        Ok(StorageReply::Stat {
            object_bytes: stat.object_bytes,
            allocated: stat.allocated,
            truncate_seq: stat.truncate_seq,
        })
    }

    fn data_map(
        &self,
        object: &ObjectRef,
        (offset, end): (u64, u64),
        limit: usize,
    ) -> Result<StorageReply, ErrorCode> {
        let target = self.target.borrow();
        let (id, cut) = (self.id_of(object), self.cut(object));
        let map = target.map(self.disk.as_ref(), id, cut, offset, end, limit)?;
        Ok(StorageReply::Map {
            ranges: map.ranges,
            object_bytes: map.object_bytes,
        })
    }

    fn read(
        &self,
        object: &ObjectRef,
        offset: u64,
        length: usize,
    ) -> Result<(StorageReply, Vec<u8>), ErrorCode> {
        let target = self.target.borrow();
        let (id, cut) = (self.id_of(object), self.cut(object));
        let plan = target.plan_read(self.disk.as_ref(), id, cut, offset, length)?;
        let mut buffer = self.fill(&plan)?;
        let range = match plan.finish(&mut buffer) {
            Ok(range) => range,
            Err(_damage) if self.plant == Plant::ReadsAreUnverified => {
                let from = (offset % BLOCK_BYTES as u64) as usize;
                from..(from + length).min(buffer.len())
            }
            Err(damage) => return Err(damage.code()),
        };
        let object_bytes = plan.object_bytes();
        let bytes = buffer.get(range).unwrap_or_default().to_vec();
        Ok((StorageReply::Read { object_bytes }, bytes))
    }
}

impl Role for StorageNode {
    fn handle(self: Rc<Self>, header: Header, body: Vec<u8>, payload: Vec<u8>) -> Task<Answer> {
        Box::pin(async move {
            let outcome = match StorageRequest::from_bytes(&body) {
                Ok(request) => match self.refusal(&header, &request) {
                    Some(refused) => Ok((refused, Vec::new())),
                    None if !self.knows_fences(&request).await => Err(ErrorCode::NotReady),
                    None => self.answer(&header, request, &payload).await,
                },
                Err(error) => {
                    assert!(
                        self.plant != Plant::DecoderTrusts,
                        "a request cannot be decoded: {error:?}"
                    );
                    Err(ErrorCode::Protocol)
                }
            };
            let (reply, payload) = outcome.unwrap_or_else(|code| {
                let failed = StorageReply::Failed {
                    code: ErrorNumber(code),
                    detail: String::new(),
                };
                (failed, Vec::new())
            });
            Answer {
                body: reply.to_bytes(),
                payload,
            }
        })
    }
}
