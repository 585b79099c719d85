//! Shards over maps in memory: each request runs to its end, and waits advance the clock.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "numbers of tests are small"
)]

use super::{Client, none, seconds};
use std::collections::BTreeMap;
use std::sync::Arc;
use zonal_meta::{Attempt, Caller, JunctionChange, MetaShard, Now, Outcome, ShardConfig, keys};
use zonal_testkit::Rng;
use zonal_types::{
    CellId, ClientId, ClientIdentity, Credentials, ErrorCode, Holder, Ino, Instant, KvChange,
    NodeId, ShardId, TargetId, ZoneId,
};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{JoinTarget, MetaReply, MetaRequest};
use zonal_zonemap::{MapEdit, ZoneMap};

/// A store in memory.
pub type MemKv = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn apply(kv: &mut MemKv, changes: &[KvChange]) {
    for change in changes {
        change.apply_to(kv);
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
        MapEdit::OpenSets { zone: ZoneId(1) },
        MapEdit::OpenSets { zone: ZoneId(2) },
    ];
    let map = ZoneMap::new(CellId::default());
    map.edited(&edits).unwrap().unwrap()
}

pub struct Store {
    pub kv: MemKv,
    pub shard: MetaShard,
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
    /// The connected subject, where the connection proved one.
    pub from: Option<Arc<Holder>>,
    /// Clients that targets have fenced.
    pub fenced: Vec<ClientId>,
    /// Source of random bits for session numbers.
    pub chance: Option<Rng>,
    pub is_manager_away: bool,
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
            apply(&mut kv, &MetaShard::format(&config, now.wall));
            let shard = MetaShard::load(config.clone(), map.clone(), &kv, now.instant).unwrap();
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
            from: None,
            fenced: Vec::new(),
            chance: None,
            is_manager_away: false,
        }
    }

    pub fn restart(&mut self, shard: usize) {
        let store = &mut self.stores[shard];
        store.config.boot += 1;
        store.shard = MetaShard::load(
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

    /// Sends one request to one shard and runs it to its end. Waits advance the clock.
    pub fn send(&mut self, shard: usize, caller: Caller, request: &MetaRequest) -> MetaReply {
        self.last_effect.clear();
        self.last_waits = 0;
        if let Some(chance) = &mut self.chance {
            self.stores[shard].shard.add_chance(chance.bits());
        }
        let from = self.from.clone();
        self.send_on(shard, caller, from.as_ref(), request)
    }

    fn send_on(
        &mut self,
        shard: usize,
        caller: Caller,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
    ) -> MetaReply {
        let mut attempt: Option<Attempt> = None;
        loop {
            let store = &mut self.stores[shard];
            let mut outcome = store
                .shard
                .handle_from(&store.kv, self.now, caller, from, request, attempt);
            loop {
                match outcome {
                    Outcome::Reply {
                        reply,
                        effect,
                        junctions,
                        after,
                        ..
                    } => {
                        apply(&mut self.stores[shard].kv, &effect);
                        self.last_effect.extend(effect);
                        self.junctions.extend(junctions);
                        for (shard, request) in after {
                            self.internal(shard, &request);
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
                        // The shard is about to end a session, for which this request waits.
                        let due = self.stores[shard].shard.poll_deadline();
                        if due == Some(Instant(0)) {
                            self.tick();
                            self.pass_ms(1);
                        } else {
                            let ms = until.ms_since(self.now.instant) + 1;
                            self.pass_ms(ms);
                        }
                        break;
                    }
                    Outcome::Call {
                        shard: asked,
                        request,
                        call,
                        ..
                    } => {
                        let reply = self.internal(asked, &request);
                        let store = &mut self.stores[shard];
                        outcome = store.shard.resume(&store.kv, self.now, call, reply);
                    }
                }
            }
        }
    }

    fn internal(&mut self, shard: ShardId, request: &MetaRequest) -> MetaReply {
        if let MetaRequest::OpenSets { zone } = request {
            return self.open_sets(*zone);
        }
        self.send_on(shard.0 as usize, none(), None, request)
    }

    /// Opens stripe sets, as the manager beside the root shard does.
    fn open_sets(&mut self, zone: ZoneId) -> MetaReply {
        if self.is_manager_away {
            return MetaReply::Failed {
                code: ErrorNumber(ErrorCode::Unreachable),
            };
        }
        let next = self.map.edited(&[MapEdit::OpenSets { zone }]).unwrap();
        self.map = next.map_or_else(|| self.map.clone(), Arc::new);
        self.map.opened(zone)
    }

    pub fn client(&mut self, client: u64) -> Client {
        let identity = ClientIdentity::first(ClientId(client));
        self.client_as(identity)
    }

    pub fn client_as(&mut self, identity: ClientIdentity) -> Client {
        let mut sessions = Vec::new();
        for shard in 0..self.stores.len() {
            let request = MetaRequest::OpenSession {
                zone: ZoneId(1),
                name: "test".into(),
            };
            let caller = Caller { identity, ..none() };
            match self.send(shard, caller, &request) {
                MetaReply::Session { session, .. } => sessions.push(session),
                other => panic!("{other:?}"),
            }
        }
        Client {
            identity,
            sessions,
            sequence: 0,
            who: Credentials::root(),
            zone: ZoneId(1),
        }
    }

    pub fn assert_sound(&self) {
        self.assert_consistent();
        self.assert_counted();
    }

    /// Checks the stores as `zonal fsck` does.
    pub fn assert_consistent(&self) {
        for (index, store) in self.stores.iter().enumerate() {
            let broken = store.shard.check(&store.kv);
            assert!(broken.is_empty(), "shard {index}: {broken:#?}");
        }
    }

    /// Checks that shards know the number of their inodes, also after a restart.
    fn assert_counted(&self) {
        for (index, store) in self.stores.iter().enumerate() {
            let inode = |key: &Vec<u8>| key.len() == 13 && key[4] == keys::TAG_INODE;
            let stored = store.kv.keys().filter(|key| inode(key)).count();
            assert_eq!(
                store.shard.inodes(),
                stored as u64,
                "inodes of shard {index}"
            );
            let (config, map) = (store.config.clone(), self.map.clone());
            let again = MetaShard::load(config, map, &store.kv, self.now.instant).unwrap();
            assert_eq!(
                again.inodes(),
                stored as u64,
                "shard {index}, started again"
            );
        }
    }

    /// Runs housekeeping. Targets acknowledge fences at once.
    pub fn tick(&mut self) {
        self.tick_without_targets();
        self.acknowledge_fences();
        self.tick_without_targets();
    }

    pub fn tick_without_targets(&mut self) {
        for store in &mut self.stores {
            let ticked = store.shard.tick(&store.kv, self.now);
            apply(&mut store.kv, &ticked.effect);
        }
    }

    pub fn acknowledge_fences(&mut self) {
        for store in &mut self.stores {
            for (target, fences) in store.shard.fences() {
                for fence in &fences {
                    if !self.fenced.contains(&fence.client) {
                        self.fenced.push(fence.client);
                    }
                }
                let changes = store.shard.fenced(target, &fences);
                apply(&mut store.kv, &changes);
            }
        }
    }

    /// Ends a session for its client.
    pub fn evict(&mut self, shard: usize, caller: Caller) {
        let not_ready = MetaReply::Failed {
            code: ErrorNumber(ErrorCode::NotReady),
        };
        let reply = self.send(shard, caller, &MetaRequest::EvictSession);
        if reply == not_ready {
            self.tick();
        } else {
            assert_eq!(reply, MetaReply::Done);
        }
    }
}
