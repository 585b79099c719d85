//! No version of the zone map has two contents. Three managers are asked for it again and again,
//! while it changes and their leaders are killed.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, kill, said, zonal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Child, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zonal_net::{Address, Identity, PayloadInto, Pool, PoolConfig, Request, Role};
use zonal_types::{CellId, Codec, MapVersion, NodeId};
use zonal_wire::{Header, ManagerReply, ManagerRequest, Service};
use zonal_zonemap::{Fetch, FetchError, ZoneMap};

const MANAGERS: [&str; 3] = ["manager", "manager2", "manager3"];
/// Leaders that are killed, one after another.
const KILLS: usize = 4;

/// The contents of each version that was seen, with the manager that gave it.
#[derive(Default)]
struct SeenVersions(BTreeMap<MapVersion, (Vec<u8>, &'static str)>);

impl SeenVersions {
    /// Takes an answer in; `Err` where the version was seen with other contents.
    fn see(&mut self, map: &ZoneMap, manager: &'static str) -> Result<(), String> {
        let bytes = map.to_bytes();
        let seen = self
            .0
            .entry(map.version)
            .or_insert((bytes.clone(), manager));
        match seen.0 == bytes {
            true => Ok(()),
            false => Err(format!(
                "version {} of {manager} differs from that of {}",
                map.version, seen.1
            )),
        }
    }
}

/// The whole map as a manager gives it; `None`: it gives none now.
fn fetched(pool: &Pool, manager: Address) -> Option<ZoneMap> {
    let fetch = Fetch::newer(ZoneMap::unknown(CellId::default()).into());
    let ask = |request: &ManagerRequest| {
        let sent = Request {
            operation: request.name(),
            header: Header::request(Service::Manager, CellId::default()),
            body: &request.to_bytes(),
            payload: &[],
            room: 0,
        };
        let reply = pool.call(manager, sent, PayloadInto::Owned);
        let reply = reply
            .ok()
            .and_then(|reply| ManagerReply::from_bytes(&reply.body).ok());
        reply.ok_or(FetchError::TooLarge)
    };
    fetch.run(ask).ok().map(|map| (*map).clone())
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends the threads of a test, also where it fails.
struct TestEnd<'a>(&'a AtomicBool);

impl Drop for TestEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run(words: &[&str]) -> Output {
    zonal().args(words).output().unwrap()
}

/// The node that leads the managers, once two others follow it with their votes.
fn leader(cell: &str) -> Option<u64> {
    let output = run(&["shard", "ls", "--cell", cell, "--json"]);
    let shards: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let shards = shards["shards"].as_array()?;
    let root = shards.iter().find(|shard| shard["shard"] == 0)?;
    let replicas = root["replicas"].as_array()?.iter();
    let follow = replicas.filter(|one| one["part"] == "follows" && one["votes"] == true);
    root["leader"].as_u64().filter(|_| follow.count() == 2)
}

fn next_leader(cell: &str) -> usize {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(leader) = leader(cell) {
            // The managers are the nodes 1 to 3.
            return usize::try_from(leader).unwrap() - 1;
        }
        assert!(Instant::now() < end, "no leader with two followers");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_version_with_two_contents_is_found() {
    let cell = CellId::default();
    let one = ZoneMap::unknown(cell);
    let mut other = one.clone();
    other.set_width += 1;
    let mut seen = SeenVersions::default();
    assert_eq!(seen.see(&one, "manager"), Ok(()));
    assert_eq!(seen.see(&one, "manager2"), Ok(()));
    assert!(seen.see(&other, "manager3").is_err());
}

#[test]
fn no_version_of_the_map_has_two_contents_while_leaders_are_killed() {
    let cell = Cell::with_shape("map-versions", (1, 1), &["--replicas", "3", "--no-key"]);
    let dir = cell.dir().to_str().unwrap().to_owned();
    let mut leading = next_leader(&dir);
    let (seen, wrong) = (Mutex::new(SeenVersions::default()), Mutex::new(Vec::new()));
    let is_over = AtomicBool::new(false);
    let answers = Mutex::new([0_usize; 3]);
    let mut servers: Vec<Server> = Vec::new();
    std::thread::scope(|scope| {
        let end = TestEnd(&is_over);
        for (at, manager) in MANAGERS.into_iter().enumerate() {
            let address = Address::any_node(cell.address(manager, false));
            let (seen, wrong, answers, is_over) = (&seen, &wrong, &answers, &is_over);
            scope.spawn(move || {
                let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
                let pool = Pool::new(identity, PoolConfig::default());
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(map) = fetched(&pool, address) {
                        answers.lock().unwrap()[at] += 1;
                        let new = seen.lock().unwrap().see(&map, manager);
                        wrong.lock().unwrap().extend(new.err());
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        // Edits, of which some fail while nobody leads.
        let edits = scope.spawn(|| {
            let mut made = 0;
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("row {number}");
                made += usize::from(code(&run(&["zone", "add", &name, "--cell", &dir])) == 0);
            }
            made
        });
        let mut pids = MANAGERS.map(|name| cell.pid(name));
        for _ in 0..KILLS {
            kill(pids[leading], "KILL");
            let config = cell.config(MANAGERS[leading]);
            let mut server = zonal();
            let server = server.arg("server").arg("--config").arg(config);
            let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let server = server.unwrap();
            pids[leading] = server.id();
            servers.push(Server(server));
            leading = next_leader(&dir);
        }
        // A busy machine makes the kills faster than the edits.
        let limit = Instant::now() + Duration::from_secs(60);
        while seen.lock().unwrap().0.len() <= KILLS {
            assert!(Instant::now() < limit, "the map does not change");
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(end);
        assert!(edits.join().unwrap() > 0, "edits are made meanwhile");
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:?}");
    let answers = answers.into_inner().unwrap();
    assert!(answers.iter().all(|count| *count > 0), "{answers:?}");
    let listed = run(&["zone", "ls", "--cell", &dir]);
    assert_eq!(code(&listed), 0, "{}", said(&listed));
}
