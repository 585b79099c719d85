//! A target that ends, or hangs, is taken out of service once its lease is over, and not before. It
//! comes back by itself.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod cell_file;

use cell::{Cell, code, kill, said, signal, zonal};
use cell_file::pool;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zonal_net::{Address, Identity, PayloadInto, Pool, PoolConfig, Request, Role};
use zonal_types::{CellId, Codec, ErrorCode, MapVersion, NodeId, TargetId};
use zonal_wire::{
    Header, ManagerReply, ManagerRequest, ObjectRef, Service, StorageReply, StorageRequest,
};
use zonal_zonemap::known_manager::is_of_follower;
use zonal_zonemap::map::SlotState;
use zonal_zonemap::{Fetch, FetchError, ZoneMap};

/// Zones, and storage nodes of each.
const SHAPE: (u16, u16) = (1, 3);
const STORAGE: &str = "storage1-2";
/// Heartbeats and leases take seconds; a busy machine gets more.
const SOON: Duration = Duration::from_secs(30);

/// A client of the cell.
struct Asking {
    cell: Cell,
    pool: Pool,
    managers: Vec<String>,
}

fn call(pool: &Pool, address: &str, header: Header, body: &[u8]) -> Option<Vec<u8>> {
    let request = Request {
        operation: "a test's request",
        header,
        body,
        payload: &[],
        room: 0,
    };
    let to = Address::any_node(address.parse().unwrap());
    let reply = pool.call(to, request, PayloadInto::Owned).ok()?;
    Some(reply.body)
}

impl Asking {
    /// A cell with so many managers.
    fn up(name: &str, managers: &[&str]) -> Self {
        let count = managers.len().to_string();
        let cell = Cell::with_shape(name, SHAPE, &["--no-key", "--replicas", &count]);
        let managers = managers.iter();
        let managers = managers.map(|name| cell.address(name, false).to_string());
        Self {
            managers: managers.collect(),
            pool: pool(),
            cell,
        }
    }

    /// The answer of a manager that lives.
    fn ask_one(&self, manager: &str, request: &ManagerRequest) -> Option<ManagerReply> {
        let header = Header::request(Service::Manager, CellId::default());
        let reply = call(&self.pool, manager, header, &request.to_bytes())?;
        Some(ManagerReply::from_bytes(&reply).unwrap())
    }

    /// Waits for the answer of the manager that leads.
    fn ask(&self, request: &ManagerRequest) -> ManagerReply {
        let end = Instant::now() + SOON;
        loop {
            let mut managers = self.managers.iter();
            let answer = managers.find_map(|manager| {
                let answer = self.ask_one(manager, request)?;
                (!is_of_follower(&answer)).then_some(answer)
            });
            if let Some(answer) = answer {
                return answer;
            }
            assert!(Instant::now() < end, "no manager leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn map(&self) -> ZoneMap {
        let none = ZoneMap::unknown(CellId::default());
        let fetched =
            Fetch::newer(Arc::new(none)).run(|request| Ok::<_, FetchError>(self.ask(request)));
        Arc::unwrap_or_clone(fetched.unwrap())
    }

    /// The target of [`STORAGE`], with its node.
    fn target(&self) -> (TargetId, NodeId) {
        let address = self.cell.address(STORAGE, false).to_string();
        let map = self.map();
        let mut nodes = map.nodes.iter();
        let node = nodes.find(|node| node.address == address).unwrap().id;
        let mut targets = map.targets.iter();
        (targets.find(|of| of.node == node).unwrap().id, node)
    }

    /// `zonal status` of a target: whether its node is down, and whether it is out.
    fn status(&self, target: TargetId) -> (bool, bool) {
        let status: Value = serde_json::from_slice(&self.cell.status().stdout).unwrap();
        let zones = status["zones"].as_array().unwrap().iter();
        let mut nodes = zones.flat_map(|zone| zone["nodes"].as_array().unwrap());
        let shown = nodes.find_map(|node| {
            let mut targets = node["targets"].as_array().unwrap().iter();
            let own = targets.find(|of| of["id"] == target.0)?;
            let is_out = own["is_out"].as_bool().unwrap();
            Some((node["state"]["name"] == "down", is_out))
        });
        shown.unwrap()
    }

    /// Waits until the root's shard goes on without any one manager.
    fn until_all_vote(&self) {
        let end = Instant::now() + SOON;
        loop {
            let listed = self.cell.runs(&["shard", "ls", "--json"]);
            let listed: Value = serde_json::from_str(&listed).unwrap();
            let mut shards = listed["shards"].as_array().unwrap().iter();
            let root = shards.find(|shard| shard["shard"] == 0).unwrap();
            let replicas = root["replicas"].as_array().unwrap().iter();
            let follow = replicas.filter(|one| one["part"] == "follows" && one["votes"] == true);
            if root["leader"].is_u64() && follow.count() + 1 == self.managers.len() {
                return;
            }
            assert!(Instant::now() < end, "{root}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Asks to take a target out until the manager does. Each refusal before has a good reason.
    fn take_out(&self, (target, node): (TargetId, NodeId)) -> ZoneMap {
        let end = Instant::now() + SOON;
        let mut was_up = false;
        loop {
            match self.ask(&ManagerRequest::TakeOut { target }) {
                ManagerReply::At { .. } => break,
                ManagerReply::Failed { code, detail } => {
                    assert_eq!(code.0, ErrorCode::NotReady, "{detail}");
                    let of_node = detail.contains(&format!("node {node} "));
                    assert!(of_node || detail.contains("has led for"), "{detail}");
                    was_up |= detail.contains("is not down");
                    assert!(Instant::now() < end, "not taken out: {detail}");
                }
                other => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(was_up, "it was taken out while its node was up");
        assert_eq!(self.status(target), (true, true));
        self.map()
    }

    /// Waits until the target is back; returns the map.
    fn until_back(&self, target: TargetId) -> ZoneMap {
        let end = Instant::now() + SOON;
        loop {
            let map = self.map();
            if !map.is_out(target) {
                return map;
            }
            assert!(Instant::now() < end, "{}", self.cell.log(STORAGE));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The answer of the target to a guarded request by this map.
    fn guarded(&self, map: &ZoneMap, target: TargetId) -> Option<StorageReply> {
        let mut sets = map.sets.iter().rev();
        let (set, slot) = sets
            .find_map(|set| {
                let slot = set.slots.iter().position(|slot| slot.target == target)?;
                Some((set, slot))
            })
            .unwrap();
        let mut header = Header::request(Service::Storage, map.cell);
        header.map_version = map.version;
        header.epoch = set.slots[slot].slot_epoch;
        header.is_guarded = true;
        // An object of no file.
        let request = StorageRequest::Stat {
            object: ObjectRef {
                target,
                set: set.id,
                slot: u16::try_from(slot).unwrap(),
                data_id: zonal_types::DataId(u64::MAX),
                column: zonal_types::Column(0),
                layout_gen: 0,
                truncate_seq: 0,
                truncate_bytes: 0,
            },
        };
        let address = self.cell.address(STORAGE, false).to_string();
        let reply = call(&self.pool, &address, header, &request.to_bytes())?;
        Some(StorageReply::from_bytes(&reply).unwrap())
    }

    /// Waits until the target carries out guarded requests by the newest map, and its node is not
    /// down for the manager.
    fn until_it_serves(&self, target: TargetId) {
        let end = Instant::now() + SOON;
        loop {
            match self.guarded(&self.map(), target) {
                Some(StorageReply::Stat { .. }) if self.status(target) == (false, false) => return,
                answer => {
                    assert!(Instant::now() < end, "{answer:?}");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

fn epochs(map: &ZoneMap, target: TargetId) -> Vec<(SlotState, u64)> {
    let sets = map.sets.iter();
    let sets = sets.filter(|set| set.slots.iter().any(|slot| slot.target == target));
    let slots = sets.flat_map(|set| &set.slots);
    slots.map(|slot| (slot.state, slot.slot_epoch.0)).collect()
}

/// All slots of the target's sets serve, with epochs that the map before did not have.
fn assert_renewed(before: &ZoneMap, after: &ZoneMap, target: TargetId) {
    let (old, new) = (epochs(before, target), epochs(after, target));
    assert!(!old.is_empty() && old.len() == new.len());
    for ((_, old), (state, new)) in old.into_iter().zip(new) {
        assert_eq!(state, SlotState::Serving);
        assert!(new > old && new > before.version.0, "{old}, {new}");
    }
}

#[test]
fn a_target_goes_out_after_its_lease_and_comes_back_by_itself() {
    let asking = Asking::up("outages", &["manager"]);
    let (target, node) = asking.target();
    asking.until_it_serves(target);

    kill(asking.cell.pid(STORAGE), "KILL");
    let out = asking.take_out((target, node));
    let up = asking.cell.up_as(zonal(), SHAPE, &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));
    let back = asking.until_back(target);
    assert_renewed(&out, &back, target);
    asking.until_it_serves(target);

    let pid = asking.cell.pid(STORAGE);
    signal(pid, "STOP");
    let out = asking.take_out((target, node));
    signal(pid, "CONT");
    // A client that does not know that the target was out.
    let old = asking.guarded(&back, target);
    let is_refused = match &old {
        Some(StorageReply::Stale { .. }) | None => true,
        Some(StorageReply::Failed { code, .. }) => code.0 == ErrorCode::NotReady,
        Some(_) => false,
    };
    assert!(is_refused, "{old:?}");
    let back = asking.until_back(target);
    assert_renewed(&out, &back, target);
    asking.until_it_serves(target);
}

#[test]
fn only_the_leading_manager_gives_leases_and_the_next_one_waits_for_them() {
    let managers = ["manager", "manager2", "manager3"];
    let asking = Asking::up("outages-led", &managers);
    let (target, node) = asking.target();
    asking.until_it_serves(target);
    asking.until_all_vote();
    let own = Identity::new(CellId::default(), Role::Server, node, None);
    let as_server = Pool::new(own, PoolConfig::default());
    let renewal = ManagerRequest::RenewLease { node };
    let leads = |manager: &&str| {
        let address = asking.cell.address(manager, false).to_string();
        let header = Header::request(Service::Manager, CellId::default());
        let reply = call(&as_server, &address, header, &renewal.to_bytes()).unwrap();
        let reply = ManagerReply::from_bytes(&reply).unwrap();
        let get = ManagerRequest::GetMap {
            have: MapVersion(0),
        };
        let map = asking.ask_one(&address, &get);
        assert!(map.is_some_and(|map| !is_of_follower(&map)), "all relay it");
        !is_of_follower(&reply)
    };
    let leaders: Vec<&str> = managers.into_iter().filter(leads).collect();
    assert_eq!(leaders.len(), 1, "{leaders:?}");

    kill(asking.cell.pid(leaders[0]), "KILL");
    let lost = ManagerRequest::TakeOut {
        target: TargetId(u32::MAX),
    };
    assert!(matches!(asking.ask(&lost), ManagerReply::Failed { .. }));
    asking.until_it_serves(target);
    kill(asking.cell.pid(STORAGE), "KILL");
    let out = asking.take_out((target, node));
    assert!(out.is_out(target));
}
