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
use zonal_net::{Address, PayloadInto, Pool, Request};
use zonal_types::{CellId, Codec, ErrorCode, NodeId, TargetId};
use zonal_wire::{
    Header, ManagerReply, ManagerRequest, ObjectRef, Service, StorageReply, StorageRequest,
};
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
    manager: String,
}

impl Asking {
    fn call(&self, address: &str, header: Header, body: &[u8]) -> Option<Vec<u8>> {
        let request = Request {
            operation: "a test's request",
            header,
            body,
            payload: &[],
            room: 0,
        };
        let to = Address::any_node(address.parse().unwrap());
        let reply = self.pool.call(to, request, PayloadInto::Owned).ok()?;
        Some(reply.body)
    }

    fn ask(&self, request: &ManagerRequest) -> ManagerReply {
        let header = Header::request(Service::Manager, CellId::default());
        let reply = self.call(&self.manager, header, &request.to_bytes());
        ManagerReply::from_bytes(&reply.unwrap()).unwrap()
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
        let reply = self.call(&address, header, &request.to_bytes())?;
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
    let cell = Cell::with_shape("outages", SHAPE, &["--no-key"]);
    let asking = Asking {
        manager: cell.address("manager", false).to_string(),
        pool: pool(),
        cell,
    };
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
