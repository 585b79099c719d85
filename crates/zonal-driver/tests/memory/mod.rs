//! A target on a host in memory, whose calls wait or fail where a test tells them to.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use zonal_driver::at_once;
use zonal_driver::storage::{
    BackingSpace, CopyBytes, NotAdmitted, Refused, ReplyRoom, TargetDriver, TargetHost, TargetNote,
    WriteFailure,
};
use zonal_object::{EffectRecord, StorageTarget, TargetConfig};
use zonal_types::{
    CellId, ClientId, ClientIdentity, Column, Component, ComponentKind, DataId, Epoch, ErrorCode,
    Fence, FileData, HolderNumber, Incarnation, Ino, KvChange, KvRead, Layout, LayoutGen,
    MapVersion, NodeId, Redundancy, ShardId, StripeSetId, TargetId, ZoneId,
};
use zonal_wire::{
    Header, JoinTarget, MetaReply, MetaRequest, ObjectRef, Service, StorageReply, StorageRequest,
};
use zonal_zonemap::{MapEdit, ZoneMap};

pub const BLOCK: usize = 4096;
/// Two segments of 1 MiB, and few pending blocks.
pub const CONFIG: TargetConfig = TargetConfig {
    segment_units: 256,
    segments: 2,
    pending_blocks_max: 32,
};
/// The host's calendar, us.
pub const NOW_US: u64 = 1_000_000;
const TARGET: TargetId = TargetId(1);
const CELL: CellId = CellId([7; 16]);

/// The call that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Commit,
    Read,
    Checkpoint,
    ReadCopy,
}

/// Contents of the disk, which outlive the process.
#[derive(Default)]
pub struct Stored {
    pub keys: BTreeMap<Vec<u8>, Vec<u8>>,
    pub notes: Vec<Vec<u8>>,
    pub segments: BTreeMap<u32, Vec<u8>>,
}

#[derive(Default)]
pub struct Memory {
    stored: RefCell<Stored>,
    /// The next call of this kind waits, until this is cleared.
    pub stops_at: Cell<Option<At>>,
    pub log_fails: Cell<bool>,
    pub lease: Cell<bool>,
    /// The map, where it is not an empty one.
    pub map: RefCell<Option<Arc<ZoneMap>>>,
    /// The first segment that cannot be made.
    pub full_from: Cell<Option<u32>>,
    /// Work of another thread while the space below is looked at.
    pub beside_space: RefCell<Option<Box<dyn FnOnce()>>>,
    /// The fences that the shard of all files reports.
    pub fences: RefCell<Option<(Vec<Fence>, bool)>>,
    /// Answers of the shard to other questions, and those questions.
    pub shard_answers: RefCell<VecDeque<MetaReply>>,
    pub asked: RefCell<Vec<MetaRequest>>,
    /// The bytes of the copy on another target.
    pub copy: RefCell<Vec<u8>>,
    /// The highest order of a byte of that copy.
    pub copy_order: Cell<u64>,
    /// Texts that the host reported to people.
    pub told: RefCell<Vec<String>>,
}

impl Memory {
    async fn pass(&self, at: At) {
        if self.stops_at.get() != Some(at) {
            return;
        }
        self.stops_at.set(None);
        let mut was_here = false;
        std::future::poll_fn(|_context| match std::mem::replace(&mut was_here, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Flips a bit of each block in the segments.
    pub fn damage(&self) {
        for bytes in self.stored.borrow_mut().segments.values_mut() {
            bytes.iter_mut().step_by(BLOCK).for_each(|byte| *byte ^= 1);
        }
    }
}

impl KvRead for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        KvRead::get(&self.stored.borrow().keys, key)
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        self.stored.borrow().keys.scan(start, end, visit)
    }
}

impl TargetHost for Memory {
    type Error = ErrorCode;
    type Position = usize;
    type Turn<'a> = ();
    type Begun<'a> = (Vec<KvChange>, usize);

    fn store(&self) -> &dyn KvRead {
        self
    }

    fn is_cold(&self) -> bool {
        true
    }

    async fn wait_for_room(&self) -> Result<(), ErrorCode> {
        self.pass(At::Commit).await;
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    fn append(&self, record: EffectRecord) -> Result<usize, ErrorCode> {
        if self.log_fails.get() {
            return Err(ErrorCode::Io);
        }
        let mut stored = self.stored.borrow_mut();
        for change in &record.changes {
            change.apply_to(&mut stored.keys);
        }
        stored.notes.push(record.note);
        Ok(stored.notes.len())
    }

    fn head(&self) -> usize {
        self.stored.borrow().notes.len()
    }

    async fn flush(&self, _upto: usize) -> Result<(), ErrorCode> {
        Ok(())
    }

    fn verifier(&self) -> u64 {
        0
    }

    async fn read_segment(
        &self,
        segment: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), ErrorCode> {
        self.pass(At::Read).await;
        let stored = self.stored.borrow();
        let bytes = stored.segments.get(&segment).ok_or(ErrorCode::Corrupt)?;
        buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
        Ok(())
    }

    async fn write_segment(
        &self,
        segment: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WriteFailure<ErrorCode>> {
        if self.full_from.get().is_some_and(|first| segment >= first) {
            return Err(WriteFailure::NoSpace(ErrorCode::NoSpace));
        }
        let mut stored = self.stored.borrow_mut();
        let length = CONFIG.segment_units as usize * BLOCK;
        let all = stored.segments.entry(segment);
        let all = all.or_insert_with(|| vec![0; length]);
        all[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn space(&self) -> Result<BackingSpace, ErrorCode> {
        let beside = self.beside_space.take();
        beside.map(|beside| beside()).unwrap_or_default();
        let unmade = if self.full_from.get().is_some() {
            0
        } else {
            u64::MAX
        };
        Ok(BackingSpace { made: 0, unmade })
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn has_lease(&self) -> bool {
        self.lease.get()
    }

    fn map(&self) -> Arc<ZoneMap> {
        let map = self.map.borrow().clone();
        map.unwrap_or_else(|| Arc::new(ZoneMap::new(CELL)))
    }

    async fn map_at_least(&self, _version: MapVersion) -> Arc<ZoneMap> {
        self.map()
    }

    async fn ask_shard(&self, _shard: ShardId, request: &MetaRequest) -> Option<MetaReply> {
        if let MetaRequest::FencesOf { .. } = request {
            let (fences, end) = self.fences.borrow().clone()?;
            return Some(MetaReply::Fences { fences, end });
        }
        self.asked.borrow_mut().push(request.clone());
        self.shard_answers.borrow_mut().pop_front()
    }

    async fn read_copy(
        &self,
        _map: &ZoneMap,
        request: &StorageRequest,
    ) -> Result<CopyBytes, ErrorCode> {
        let StorageRequest::Read { offset, length, .. } = request else {
            return Err(ErrorCode::Protocol);
        };
        let bytes = {
            let copy = self.copy.borrow();
            let from = (*offset as usize).min(copy.len());
            let end = (from + *length as usize).min(copy.len());
            copy[from..end].to_vec()
        };
        self.pass(At::ReadCopy).await;
        let order = self.copy_order.get();
        Ok(CopyBytes { bytes, order })
    }

    fn calendar_us(&self) -> u64 {
        NOW_US
    }

    fn request_checkpoint(&self) {}

    async fn checkpoint_turn(&self) {}

    fn begin_checkpoint(&self, changes: Vec<KvChange>) -> Self::Begun<'_> {
        (changes, self.head())
    }

    async fn commit_checkpoint(&self, begun: Self::Begun<'_>) -> Result<(), ErrorCode> {
        self.pass(At::Checkpoint).await;
        let mut stored = self.stored.borrow_mut();
        for change in &begun.0 {
            change.apply_to(&mut stored.keys);
        }
        stored.notes.drain(..begun.1);
        Ok(())
    }

    fn note(&self, note: TargetNote<'_>) {
        self.told.borrow_mut().push(match note {
            TargetNote::Unreadable { object, .. } => format!("unreadable: {object}"),
            TargetNote::Damaged { detail } => format!("damaged: {detail}"),
            TargetNote::CannotMove { why } => format!("cannot move: {why}"),
            TargetNote::Stopped { why } => format!("stopped: {why}"),
        });
    }
}

#[derive(Default)]
struct Payload(Vec<u8>);

impl ReplyRoom for Payload {
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        self.0.clear();
        self.0.resize(bytes, 0xee);
        &mut self.0
    }

    fn cut(&mut self, bytes: usize) {
        self.0.truncate(bytes);
    }

    fn leave_shared(&mut self) {}

    fn is_sender_gone(&self) -> bool {
        false
    }
}

pub type Driven = TargetDriver<Memory>;
type Answer = Result<(StorageReply, Vec<u8>), ErrorCode>;

/// Opens a target on the contents of a disk.
pub fn open(stored: Stored) -> Driven {
    let host = Memory::default();
    let notes = stored.notes.iter().map(Vec::as_slice);
    let target = StorageTarget::open(CONFIG, &stored.keys, notes).unwrap();
    host.stored.replace(stored);
    let driven = TargetDriver::new(TARGET, target, host);
    at_once(driven.resume()).unwrap().unwrap();
    driven
}

/// Ends the process and returns the contents of its disk.
pub fn kill(driven: &Driven) -> Stored {
    driven.host().stored.take()
}

/// A request of client 5.
pub async fn ask(driven: &Driven, request: StorageRequest, payload: Vec<u8>) -> Answer {
    let header = Header::request(Service::Storage, CELL);
    ask_with(driven, header, request, payload).await
}

/// A request of client 5 about a file with copies.
pub async fn ask_guarded(
    driven: &Driven,
    epoch: Epoch,
    request: StorageRequest,
    payload: Vec<u8>,
) -> Answer {
    let mut header = Header::request(Service::Storage, CELL);
    header.is_guarded = true;
    header.epoch = epoch;
    ask_with(driven, header, request, payload).await
}

/// A change of a file with copies, by a client with its order.
pub async fn ask_ordered(
    driven: &Driven,
    (client, order): (u64, u64),
    request: StorageRequest,
    payload: Vec<u8>,
) -> Answer {
    let mut header = Header::request(Service::Storage, CELL);
    header.order = order;
    header.identity = ClientIdentity::first(ClientId(client));
    ask_with(driven, header, request, payload).await
}

/// A map in which this target is alone in a set.
pub fn map_with_target() -> ZoneMap {
    ZoneMap::new(CELL)
        .edited(&[join(1, None)])
        .unwrap()
        .unwrap()
}

/// A map in which target 2 of another node is in a set with this target. The root's shard is there.
pub fn map_with_two_targets() -> ZoneMap {
    let own = join(1, Some(ShardId(0)));
    let map = ZoneMap::new(CELL).edited(&[own]).unwrap().unwrap();
    map.edited(&[join(2, None)]).unwrap().unwrap()
}

/// As [`map_with_two_targets`], with target 3 of a third node.
pub fn map_with_three_targets() -> ZoneMap {
    let map = map_with_two_targets();
    map.edited(&[join(3, None)]).unwrap().unwrap()
}

/// A file with a copy on this target, and one on target 2 with these bytes. Returns the shard's
/// answer about it.
pub fn copied_file(driven: &Driven, copy: Vec<u8>, stale: Vec<TargetId>) -> MetaReply {
    let map = map_with_two_targets();
    let set = map.sets.iter().find(|set| set.width() == 2).unwrap();
    let own = set.slots.iter().position(|slot| slot.target == TargetId(1));
    let component = Component {
        kind: ComponentKind::Striped,
        start: 0,
        end: u64::MAX,
        data_id: DataId(1),
        zone: ZoneId(1),
        set: set.id,
        start_column: Column(own.unwrap() as u16),
        count: 1,
        unit: 1 << 20,
        span: 0,
        redundancy: Redundancy::Copies { copies: 2, step: 1 },
        relocations: Vec::new(),
    };
    let data = FileData {
        layout: Layout {
            layout_gen: LayoutGen(1),
            components: vec![component],
            stale,
        },
        as_of: map.version,
        truncate_seq: 0,
        truncate_size: 0,
    };
    let host = driven.host();
    host.map.replace(Some(Arc::new(map)));
    host.fences.replace(Some((Vec::new(), true)));
    host.copy.replace(copy);
    let files = vec![(Ino(5), data)];
    MetaReply::Files { files, next: None }
}

fn join(number: u8, shard: Option<ShardId>) -> MapEdit {
    MapEdit::Join {
        node: NodeId(number.into()),
        zone: ZoneId(1),
        zone_name: String::new(),
        address: format!("127.0.0.1:700{number}"),
        shard,
        targets: vec![JoinTarget {
            target: TargetId(number.into()),
            uuid: [number; 16],
            capacity: 1 << 30,
        }],
    }
}

async fn ask_with(
    driven: &Driven,
    mut header: Header,
    request: StorageRequest,
    payload: Vec<u8>,
) -> Answer {
    if request.object().is_some() && header.identity == ClientIdentity::default() {
        header.identity = ClientIdentity {
            client: ClientId(5),
            incarnation: Incarnation(1),
        };
    }
    let (from, mut reply) = ((&header, HolderNumber(0)), Payload::default());
    match driven.handle(from, &request, &payload, &mut reply).await {
        Ok(answer) => Ok((answer, reply.0)),
        Err(NotAdmitted::Refused(Refused { code, .. })) => Err(code),
        Err(NotAdmitted::Stale(_)) => Err(ErrorCode::StaleEpoch),
    }
}

pub fn now(driven: &Driven, request: StorageRequest, payload: &[u8]) -> Answer {
    at_once(ask(driven, request, payload.to_vec())).unwrap()
}

/// A request in flight, polled up to the call that waits.
pub fn begun<'a, T>(future: impl Future<Output = T> + 'a) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    let mut future: Pin<Box<dyn Future<Output = T> + 'a>> = Box::pin(future);
    let polled = future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "it does not wait");
    future
}

pub fn object(id: u64) -> ObjectRef {
    ObjectRef {
        target: TARGET,
        set: StripeSetId(0),
        slot: 0,
        data_id: DataId(id),
        column: Column(0),
        layout_gen: 0,
        truncate_seq: 0,
        truncate_bytes: 0,
    }
}

pub fn write_at(id: u64, offset: u64) -> StorageRequest {
    StorageRequest::Write {
        object: object(id),
        offset,
        sync: false,
        expected_version: 0,
        txn: 0,
        snap_epoch: 0,
    }
}

pub fn read_of(id: u64, bytes: usize) -> StorageRequest {
    StorageRequest::Read {
        object: object(id),
        offset: 0,
        length: bytes as u32,
    }
}

pub fn delete_of(id: u64) -> StorageRequest {
    StorageRequest::Delete {
        target: TARGET,
        objects: vec![(DataId(id), Column(0))],
    }
}

pub fn write(driven: &Driven, id: u64, offset: u64, bytes: &[u8]) {
    now(driven, write_at(id, offset), bytes).unwrap();
}

pub fn contents(driven: &Driven, id: u64) -> Vec<u8> {
    now(driven, read_of(id, 1 << 20), &[]).unwrap().1
}
