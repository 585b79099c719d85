//! A cell of one root shard and one zone shard over maps in memory, on one thread.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use zonal_meta::{Attempt, Caller, JunctionChange, Now, Outcome, Shard, ShardConfig};
use zonal_types::{
    Attr, CellId, Credentials, ErrorCode, FileData, Ino, Instant, KvChange, KvRead, Name, NodeId,
    SessionId, ShardId, TargetId, Timestamp, ZoneId,
};
use zonal_wire::frame::NO_SLOT;
use zonal_wire::meta::{DirEntry, Entry, NewKind};
use zonal_wire::{JoinTarget, MetaReply, MetaRequest};
use zonal_zonemap::{MapEdit, ZoneMap};

#[derive(Default, Clone)]
pub struct MemKv(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl KvRead for MemKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        Ok(self.0.get(key).cloned())
    }
    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        for (key, value) in self.0.range(start.to_vec()..end.to_vec()) {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}

impl MemKv {
    pub fn apply(&mut self, changes: &[KvChange]) {
        for change in changes {
            match &change.value {
                Some(value) => self.0.insert(change.key.clone(), value.clone()),
                None => self.0.remove(&change.key),
            };
        }
    }
}

pub fn map() -> ZoneMap {
    let join = |node: u32, zone: u16, shard: Option<u32>, targets: u32| MapEdit::Join {
        node: NodeId(node),
        zone: ZoneId(zone),
        zone_name: String::new(),
        address: format!("127.0.0.1:{node}"),
        shard: shard.map(ShardId),
        targets: (0..targets)
            .map(|index| JoinTarget {
                target: TargetId(node * 10 + index),
                uuid: [node as u8; 16],
                capacity: 1 << 30,
            })
            .collect(),
    };
    let edits = [
        join(1, 1, Some(0), 0),
        join(2, 1, Some(1), 0),
        join(3, 1, None, 3),
        join(4, 2, Some(2), 2),
    ];
    let map = ZoneMap::new(CellId::default());
    map.edited(&edits).unwrap().unwrap()
}

pub struct Store {
    pub kv: MemKv,
    pub shard: Shard,
    pub config: ShardConfig,
}

pub struct Cell {
    pub map: Arc<ZoneMap>,
    pub stores: Vec<Store>,
    pub now: Now,
    pub junctions: Vec<JunctionChange>,
    /// Effects of the last call, of all shards.
    pub last_effect: Vec<KvChange>,
    pub last_waits: u32,
    pub caching: bool,
}

pub fn seconds(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

impl Cell {
    pub fn new() -> Self {
        Self::with(55, false)
    }

    pub fn with(hash_bits: u32, caching: bool) -> Self {
        let map = Arc::new(map());
        let now = Now {
            instant: Instant(0),
            wall: seconds(1_000_000),
        };
        let stores = [(0, 1), (1, 1), (2, 2)].map(|(shard, zone)| {
            let mut config = ShardConfig::new(ShardId(shard), ZoneId(zone), 1);
            config.hash_bits = hash_bits;
            config.caching = caching;
            let mut kv = MemKv::default();
            kv.apply(&Shard::format(&config, now.wall));
            let shard = Shard::load(config.clone(), map.clone(), &kv, now.instant).unwrap();
            Store { kv, shard, config }
        });
        Self {
            map,
            stores: stores.into(),
            now,
            junctions: Vec::new(),
            last_effect: Vec::new(),
            last_waits: 0,
            caching,
        }
    }

    pub fn restart(&mut self, shard: usize) {
        let store = &mut self.stores[shard];
        store.config.boot += 1;
        store.shard = Shard::load(
            store.config.clone(),
            self.map.clone(),
            &store.kv,
            self.now.instant,
        )
        .unwrap();
    }

    pub fn pass_ms(&mut self, ms: u64) {
        self.now.instant = self.now.instant.plus_ms(ms);
        let nanos = u64::from(self.now.wall.nanos) + ms % 1000 * 1_000_000;
        self.now.wall.seconds += (ms / 1000 + nanos / 1_000_000_000) as i64;
        self.now.wall.nanos = (nanos % 1_000_000_000) as u32;
    }

    pub fn shard_of(&self, ino: Ino) -> usize {
        self.map.shard_of(ino.partition()).unwrap().id.0 as usize
    }

    /// One request to one shard, to its end. Waits pass time.
    pub fn send(&mut self, shard: usize, caller: Caller, request: &MetaRequest) -> MetaReply {
        self.last_effect.clear();
        self.last_waits = 0;
        self.send_on(shard, caller, request)
    }

    fn send_on(&mut self, shard: usize, caller: Caller, request: &MetaRequest) -> MetaReply {
        let mut attempt: Option<Attempt> = None;
        loop {
            let store = &mut self.stores[shard];
            let mut outcome = store
                .shard
                .handle(&store.kv, self.now, caller, request, attempt);
            loop {
                match outcome {
                    Outcome::Reply {
                        reply,
                        effect,
                        junctions,
                        after,
                        ..
                    } => {
                        self.stores[shard].kv.apply(&effect);
                        self.last_effect.extend(effect);
                        self.junctions.extend(junctions);
                        for (zone, request) in after {
                            self.internal(zone, &request);
                        }
                        return reply;
                    }
                    Outcome::Wait {
                        attempt: named,
                        until,
                        ..
                    } => {
                        attempt = Some(named);
                        self.last_waits += 1;
                        let ms = until.ms_since(self.now.instant) + 1;
                        self.pass_ms(ms);
                        break;
                    }
                    Outcome::Call {
                        zone,
                        request,
                        call,
                        ..
                    } => {
                        let reply = self.internal(zone, &request);
                        let store = &mut self.stores[shard];
                        outcome = store.shard.resume(&store.kv, self.now, call, reply);
                    }
                }
            }
        }
    }

    fn internal(&mut self, zone: ZoneId, request: &MetaRequest) -> MetaReply {
        let shard = self.map.shard_of_zone(zone).unwrap().id.0 as usize;
        self.send_on(shard, none(), request)
    }

    pub fn client(&mut self, client: u64) -> Client {
        let mut sessions = Vec::new();
        for shard in 0..self.stores.len() {
            let request = MetaRequest::OpenSession {
                client,
                zone: ZoneId(1),
                name: "test".into(),
            };
            match self.send(shard, none(), &request) {
                MetaReply::Session { session, .. } => sessions.push(session),
                other => panic!("{other:?}"),
            }
        }
        Client {
            sessions,
            sequence: 0,
            who: Credentials::root(),
            zone: ZoneId(1),
        }
    }

    pub fn assert_sound(&self) {
        for (index, store) in self.stores.iter().enumerate() {
            let broken = store.shard.check(&store.kv);
            assert!(broken.is_empty(), "shard {index}: {broken:#?}");
        }
    }

    pub fn tick(&mut self) {
        for store in &mut self.stores {
            let ticked = store.shard.tick(&store.kv, self.now).unwrap();
            store.kv.apply(&ticked.effect);
        }
    }
}

pub fn none() -> Caller {
    Caller {
        session: SessionId(0),
        slot: NO_SLOT,
        sequence: 0,
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A client with one slot.
#[derive(Clone)]
pub struct Client {
    pub sessions: Vec<SessionId>,
    pub sequence: u32,
    pub who: Credentials,
    pub zone: ZoneId,
}

pub type Reply<T> = Result<T, ErrorCode>;

impl Client {
    pub fn who(&self, uid: u32, gid: u32) -> Self {
        let mut other = self.clone();
        other.who = Credentials {
            uid,
            gid,
            groups: vec![],
        };
        other
    }

    pub fn caller(&self, shard: usize) -> Caller {
        Caller {
            session: self.sessions[shard],
            slot: 0,
            sequence: self.sequence,
        }
    }

    pub fn call(&mut self, cell: &mut Cell, at: Ino, request: &MetaRequest) -> Reply<MetaReply> {
        let shard = cell.shard_of(at);
        if request.is_mutation() {
            self.sequence += 1;
        }
        match cell.send(shard, self.caller(shard), request) {
            MetaReply::Failed { code } => Err(code.0),
            reply => Ok(reply),
        }
    }

    /// Tells a restarted shard what is open, as a client does before it asks anything else.
    pub fn reclaim(&mut self, cell: &mut Cell, shard: usize, opens: Vec<Ino>) {
        let locks = Vec::new();
        let request = MetaRequest::Reclaim { opens, locks };
        let reply = cell.send(shard, self.caller(shard), &request);
        assert_eq!(reply, MetaReply::Done);
    }

    /// Tells a restarted shard that nothing is held.
    pub fn holds_nothing(&mut self, cell: &mut Cell, shard: usize) {
        self.reclaim(cell, shard, Vec::new());
    }

    pub fn lookup(&mut self, cell: &mut Cell, parent: Ino, text: &str) -> Reply<Ino> {
        let request = MetaRequest::Lookup {
            who: self.who.clone(),
            parent,
            name: name(text),
        };
        match self.call(cell, parent, &request)? {
            MetaReply::Entry { entry } => Ok(entry.ino),
            MetaReply::NoEntry { .. } => Err(ErrorCode::NotFound),
            other => panic!("{other:?}"),
        }
    }

    pub fn attr(&mut self, cell: &mut Cell, ino: Ino) -> Reply<Attr> {
        match self.call(cell, ino, &MetaRequest::GetAttr { ino, data: true })? {
            MetaReply::Attr { attr, .. } => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn mkdir_mode(
        &mut self,
        cell: &mut Cell,
        parent: Ino,
        text: &str,
        mode: u32,
    ) -> Reply<Ino> {
        let request = MetaRequest::Mkdir {
            who: self.who.clone(),
            parent,
            name: name(text),
            mode,
            umask: 0,
            zone: self.zone,
        };
        entry_of(self.call(cell, parent, &request)?).map(|entry| entry.ino)
    }

    pub fn mkdir(&mut self, cell: &mut Cell, parent: Ino, text: &str) -> Reply<Ino> {
        self.mkdir_mode(cell, parent, text, 0o755)
    }

    pub fn create_request(
        &self,
        parent: Ino,
        text: &str,
        kind: NewKind,
        mode: u32,
        open: bool,
    ) -> MetaRequest {
        MetaRequest::Create {
            who: self.who.clone(),
            parent,
            name: name(text),
            kind,
            mode,
            umask: 0,
            zone: self.zone,
            open,
            open_flags: 2,
            exclusive: true,
        }
    }

    pub fn create(&mut self, cell: &mut Cell, parent: Ino, text: &str, mode: u32) -> Reply<Ino> {
        let request = self.create_request(parent, text, NewKind::File, mode, false);
        entry_of(self.call(cell, parent, &request)?).map(|entry| entry.ino)
    }

    /// Creates and keeps it open.
    pub fn create_open(
        &mut self,
        cell: &mut Cell,
        parent: Ino,
        text: &str,
    ) -> Reply<(Ino, FileData)> {
        let request = self.create_request(parent, text, NewKind::File, 0o644, true);
        match self.call(cell, parent, &request)? {
            MetaReply::Opened { entry, data, .. } => Ok((entry.ino, data)),
            other => panic!("{other:?}"),
        }
    }

    pub fn open(&mut self, cell: &mut Cell, ino: Ino, open_flags: u32) -> Reply<bool> {
        let request = MetaRequest::Open {
            who: self.who.clone(),
            ino,
            open_flags,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Opened { push, .. } => Ok(push),
            other => panic!("{other:?}"),
        }
    }

    pub fn close(&mut self, cell: &mut Cell, ino: Ino) -> Reply<()> {
        self.call(cell, ino, &MetaRequest::Close { inos: vec![ino] })
            .map(|_| ())
    }

    pub fn unlink(&mut self, cell: &mut Cell, parent: Ino, text: &str) -> Reply<()> {
        let request = MetaRequest::Unlink {
            who: self.who.clone(),
            parent,
            name: name(text),
        };
        self.call(cell, parent, &request).map(|_| ())
    }

    pub fn rmdir(&mut self, cell: &mut Cell, parent: Ino, text: &str) -> Reply<()> {
        let request = MetaRequest::Rmdir {
            who: self.who.clone(),
            parent,
            name: name(text),
        };
        self.call(cell, parent, &request).map(|_| ())
    }

    pub fn rename(
        &mut self,
        cell: &mut Cell,
        from: (Ino, &str),
        to: (Ino, &str),
        flags: u32,
    ) -> Reply<()> {
        let request = MetaRequest::Rename {
            who: self.who.clone(),
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            flags,
        };
        self.call(cell, from.0, &request).map(|_| ())
    }

    /// A rename that succeeds.
    pub fn moved(&mut self, cell: &mut Cell, from: (Ino, &str), to: (Ino, &str)) {
        self.rename(cell, from, to, 0).unwrap();
    }

    pub fn link(&mut self, cell: &mut Cell, ino: Ino, parent: Ino, text: &str) -> Reply<()> {
        let request = MetaRequest::Link {
            who: self.who.clone(),
            ino,
            parent,
            name: name(text),
        };
        self.call(cell, parent, &request).map(|_| ())
    }

    pub fn truncate(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        size: u64,
        confirmed_seq: u64,
    ) -> Reply<bool> {
        let request = MetaRequest::Truncate {
            who: self.who.clone(),
            ino,
            size,
            by_handle: false,
            confirmed_seq,
            kill_suid: false,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Truncated { push, .. } => Ok(push),
            other => panic!("{other:?}"),
        }
    }

    pub fn report(&mut self, cell: &mut Cell, ino: Ino, size: u64) -> Reply<Attr> {
        let request = MetaRequest::ReportWrite {
            ino,
            size,
            mtime: Some(cell.now.wall),
            allocated_delta: 4096,
            kill_suid: true,
            inline: None,
            sync: false,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Attr { attr, .. } => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn write_inline(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        offset: u32,
        bytes: &[u8],
    ) -> Reply<Attr> {
        let request = MetaRequest::ReportWrite {
            ino,
            size: 0,
            mtime: Some(cell.now.wall),
            allocated_delta: 0,
            kill_suid: true,
            inline: Some((offset, zonal_types::Blob(bytes.to_vec()))),
            sync: false,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Attr { attr, .. } => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn read_inline(&mut self, cell: &mut Cell, ino: Ino) -> Reply<Vec<u8>> {
        match self.call(cell, ino, &MetaRequest::ReadInline { ino })? {
            MetaReply::Inline { bytes } => Ok(bytes.0),
            other => panic!("{other:?}"),
        }
    }

    pub fn chmod(&mut self, cell: &mut Cell, ino: Ino, mode: u32) -> Reply<()> {
        let change = zonal_wire::meta::AttrChange {
            mode: Some(mode),
            ..Default::default()
        };
        self.setattr(cell, ino, change)
    }

    pub fn chown(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Reply<()> {
        let change = zonal_wire::meta::AttrChange {
            uid,
            gid,
            ..Default::default()
        };
        self.setattr(cell, ino, change)
    }

    pub fn setattr(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        change: zonal_wire::meta::AttrChange,
    ) -> Reply<()> {
        let request = MetaRequest::SetAttr {
            who: self.who.clone(),
            ino,
            change,
        };
        self.call(cell, ino, &request).map(|_| ())
    }

    pub fn access(&mut self, cell: &mut Cell, ino: Ino, mask: u32) -> Reply<()> {
        let request = MetaRequest::Access {
            who: self.who.clone(),
            ino,
            mask,
        };
        self.call(cell, ino, &request).map(|_| ())
    }

    pub fn readdir(
        &mut self,
        cell: &mut Cell,
        dir: Ino,
        cookie: u64,
        entries: u32,
    ) -> Reply<(Vec<DirEntry>, bool)> {
        let request = MetaRequest::ReadDir {
            who: self.who.clone(),
            dir,
            cookie,
            entries,
            plus: true,
        };
        match self.call(cell, dir, &request)? {
            MetaReply::Dir { entries, end } => Ok((entries, end)),
            other => panic!("{other:?}"),
        }
    }

    /// All names of a directory.
    pub fn list(&mut self, cell: &mut Cell, dir: Ino) -> Vec<DirEntry> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let (entries, end) = self.readdir(cell, dir, cookie, 7).unwrap();
            if let Some(last) = entries.last() {
                cookie = last.cookie;
            }
            all.extend(entries);
            if end {
                return all;
            }
        }
    }

    pub fn setxattr(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        text: &str,
        value: &[u8],
        flags: u32,
    ) -> Reply<()> {
        let request = MetaRequest::SetXattr {
            who: self.who.clone(),
            ino,
            name: zonal_types::Blob(text.as_bytes().to_vec()),
            value: zonal_types::Blob(value.to_vec()),
            flags,
        };
        self.call(cell, ino, &request).map(|_| ())
    }

    pub fn getxattr(&mut self, cell: &mut Cell, ino: Ino, text: &str) -> Reply<Vec<u8>> {
        let name = zonal_types::Blob(text.as_bytes().to_vec());
        let request = MetaRequest::GetXattr {
            who: self.who.clone(),
            ino,
            name,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Text { text } => Ok(text.0),
            other => panic!("{other:?}"),
        }
    }
}

pub fn entry_of(reply: MetaReply) -> Reply<Entry> {
    match reply {
        MetaReply::Entry { entry } | MetaReply::Opened { entry, .. } => Ok(entry),
        other => panic!("{other:?}"),
    }
}
