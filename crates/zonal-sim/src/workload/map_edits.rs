//! A program that reads and edits a group's map, at whichever replica it meets.

use crate::net::SimRequest;
use crate::replica_node::GROUP_MAP;
use crate::rng::SimRng;
use crate::world::{DEADLINE_MS, World};
use std::rc::Rc;
use std::sync::Arc;
use zonal_types::{Blob, Codec, MapVersion, ZoneId};
use zonal_wire::{Header, ManagerReply, ManagerRequest, Service};
use zonal_zonemap::{Fetch, MapEdit, ZoneMap};

/// Zones of the map.
const ZONES: u64 = 3;
/// How long a request waits for its reply, ms: longer than most outages, for late replies.
const REQUEST_MS: u32 = 3_000;

type Outcome = Result<(), String>;

/// One reader and writer of the map.
pub struct MapProgram {
    world: Rc<World>,
    /// Network address of its process.
    address: String,
    index: usize,
    rng: SimRng,
    known: Arc<ZoneMap>,
}

impl MapProgram {
    /// A program that knows no map.
    #[must_use]
    pub fn new(world: Rc<World>, index: usize, rng: SimRng) -> Self {
        Self {
            address: world.client_name(index),
            world,
            index,
            rng,
            known: Arc::new(ZoneMap::unknown(GROUP_MAP)),
        }
    }

    /// Reads and edits the map.
    ///
    /// # Errors
    /// No replica answers within the deadline.
    pub async fn run(mut self, steps: u64) -> Outcome {
        for step in 0..steps {
            let pause = self.rng.between(5, 300);
            self.world.clock.sleep(pause * 1_000_000).await;
            self.read().await?;
            if self.rng.chance(700) {
                self.edit(step).await;
            }
        }
        self.read().await
    }

    /// Reads the map at the replicas in turn, until one answers.
    ///
    /// # Errors
    /// None answers within the deadline.
    pub async fn read(&mut self) -> Outcome {
        let until = self.world.clock.now().plus_ms(DEADLINE_MS);
        while self.world.clock.now() < until {
            if self.read_once().await.is_some() {
                return Ok(());
            }
            self.world.clock.sleep(20_000_000).await;
        }
        Err("no replica answers with its map".to_owned())
    }

    async fn read_once(&mut self) -> Option<()> {
        let replica = self.some_replica()?;
        let newest = self.world.map_history.newest();
        let mut fetch = if self.rng.chance(200) {
            Fetch::believing(self.known.clone())
        } else {
            Fetch::newer(self.known.clone())
        };
        loop {
            let reply = self.ask(&replica, &fetch.request()).await?;
            if let Some(map) = fetch.take(reply).ok()? {
                self.world.map_history.answered(&map, newest);
                self.known = map;
                self.world.count_operation();
                return Some(());
            }
        }
    }

    /// Adds a zone, or renames one. Nothing is known of an edit without an answer.
    async fn edit(&mut self, step: u64) {
        let zone = ZoneId(1 + self.rng.below(ZONES) as u16);
        let name = format!("c{}-{step}", self.index);
        let edit = match self.known.zone(zone) {
            None => MapEdit::AddZone {
                zone,
                name: name.clone(),
            },
            Some(_known) => MapEdit::RenameZone {
                zone,
                name: name.clone(),
            },
        };
        let expected = self.known.version;
        let request = ManagerRequest::Edit {
            expected,
            edits: Blob(vec![edit].to_bytes()),
        };
        let Some(replica) = self.some_replica() else {
            return;
        };
        if let Some(ManagerReply::At { version }) = self.ask(&replica, &request).await {
            if version != MapVersion(expected.0 + 1) {
                let what = format!("an edit of version {expected} made version {version}");
                self.world.report(what);
            }
            self.world.map_history.acknowledged(version, (zone, name));
            self.world.count_operation();
        }
    }

    fn some_replica(&mut self) -> Option<String> {
        let replicas = self.world.replica_indices();
        let index = self.rng.pick(&replicas).copied()?;
        Some(self.world.address_of(index))
    }

    async fn ask(&self, replica: &str, request: &ManagerRequest) -> Option<ManagerReply> {
        let mut header = Header::request(Service::Manager, GROUP_MAP);
        header.deadline_ms = REQUEST_MS;
        let request = SimRequest {
            header,
            body: request.to_bytes(),
            payload: Vec::new(),
            lent: Vec::new(),
        };
        let network = &self.world.network;
        let pending = network.start(&self.address, replica, &request);
        let (_header, reply) = pending.receive().await.ok()?;
        ManagerReply::from_bytes(&reply.body).ok()
    }
}
