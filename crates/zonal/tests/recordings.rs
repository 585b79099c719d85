//! Recordings of a real server's stores under load (`zonal server --record`).
//!
//! Every state that a power loss may leave must open. It holds all data acknowledged as durable by
//! then, and no bytes that nobody wrote.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod cell_file;
mod power_loss_state;
#[path = "../../zonal-disk/tests/common/replayed.rs"]
mod replayed;

use cell_file::pool;
use power_loss_state::{CAPACITY, Known, Noted, Place, SEGMENT, Version};
use replayed::{Replayed, some, sync_points};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zonal_client::names::NewFile;
use zonal_client::{Client, ClientOptions};
use zonal_disk::recording::Recording;
use zonal_native::{RealNet, block_on};
use zonal_testkit::{Rng, Scratch};
use zonal_types::{CellId, ClientId, Credentials, Ino, Name, ZoneId};
use zonal_wire::NewKind;
use zonal_wire::meta::flags::O_RDWR;

const CELL: CellId = CellId([0x5a; 16]);
/// Threads of the load, each with its own files.
const WRITERS: u64 = 3;
/// Writes of each thread.
const WRITES: usize = 60;
/// Positions of each recording at which states are tried.
const MOMENTS: usize = 45;

/// Number of states tried at each position and unit; `ZONAL_CRASH_STATES` sets more.
fn states_a_moment() -> usize {
    let text = std::env::var("ZONAL_CRASH_STATES").unwrap_or_default();
    text.parse().unwrap_or(4)
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A server process of two nodes: a manager, and a zone's shard with a target.
struct Server {
    child: std::process::Child,
    manager: String,
}

impl Server {
    fn start(dir: &Path, recordings: &Path) -> Self {
        let (first, second) = (free_port(), free_port());
        let manager = format!("127.0.0.1:{first}");
        let head = |node: u32, port: u16| {
            let dir = dir.join(format!("node{node}"));
            format!(
                "cell = \"{CELL}\"\nnode = {node}\nlisten = \"127.0.0.1:{port}\"\nmanager_address = \"{manager}\"\ndir = \"{}\"\n\
                 [zone]\nid = 1\n",
                dir.display()
            )
        };
        // Small stores, so that checkpoints happen during the load.
        let store = "log = \"8 MiB\"\noverlay = \"1 MiB\"\n";
        let storage = format!(
            "[storage]\ntarget = 1\ncapacity = \"{} MiB\"\nsegment = \"{} MiB\"\npending = \"256 KiB\"\n{store}",
            CAPACITY >> 20,
            SEGMENT >> 20
        );
        let one = format!("{}[manager]\n{store}", head(1, first));
        let two = format!("{}[meta]\n{store}{storage}", head(2, second));
        let mut command = cell::zonal();
        command
            .args(["server", "--format", "--record"])
            .arg(recordings);
        for (name, text) in [("one.toml", one), ("two.toml", two)] {
            std::fs::write(dir.join(name), text).unwrap();
            command.arg("--config").arg(dir.join(name));
        }
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let child = command.stderr(log).spawn().unwrap();
        Self { child, manager }
    }

    /// A client, once the manager answers and the target has joined.
    fn client(&mut self, dir: &Path) -> Client<RealNet> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let net = RealNet::new(Arc::new(pool()));
            let options = ClientOptions::new(&self.manager, ZoneId(1), ClientId(7));
            if let Ok(client) = block_on(Client::connect(net, options))
                && !client.map().targets.is_empty()
            {
                return client;
            }
            let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            let is_over = self.child.try_wait().unwrap().is_some();
            assert!(!is_over && Instant::now() < deadline, "no cell: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The recordings of the node's two stores.
struct Recordings {
    shard: PathBuf,
    target: PathBuf,
}

impl Recordings {
    fn place(&self) -> Place {
        let length = |path: &Path| std::fs::metadata(path).unwrap().len();
        Place {
            shard: length(&self.shard),
            target: length(&self.target),
        }
    }
}

/// Bytes that identify their write, block by block.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length + 8);
    let mut word = (seed << 32) + 1;
    while out.len() < length {
        out.extend_from_slice(&word.to_le_bytes());
        word += 1;
    }
    out.truncate(length);
    out
}

/// One writer: makes, writes and flushes files, and keeps a record of it.
fn load(client: &Client<RealNet>, home: Ino, writer: u64, recordings: &Recordings) -> Vec<Noted> {
    let (mut rng, who) = (Rng(writer + 40), Credentials::root());
    let mut noted: Vec<Noted> = Vec::new();
    let mut opened = Vec::new();
    for write in 0..WRITES {
        if noted.len() < 3 || rng.below(8) == 0 {
            let name = format!("file-{writer}-{}", noted.len());
            let new = NewFile {
                kind: NewKind::File,
                mode: 0o644,
                umask: 0,
            };
            let begun = recordings.place();
            let named = Name::new(name.as_bytes()).unwrap();
            let call = client.begin();
            let made = call.create(&who, home, named, new, O_RDWR);
            opened.push(block_on(made).unwrap());
            let empty = Version {
                contents: Vec::new(),
                begun,
                durable: None,
            };
            noted.push(Noted {
                name,
                versions: vec![empty],
            });
        }
        let which = rng.index(noted.len());
        let (file, versions) = (&opened[which].file, &mut noted[which].versions);
        // Lengths that go to the shard alone, to the target's log, and to its segments.
        let length = *rng.pick(&[700, 3000, 9000, 30_000, 90_000, 250_000]);
        let at = rng.index(60_000) / 100 * 100 * usize::from(rng.below(3) > 0);
        let bytes = pattern((writer << 16) + write as u64 + 1, length);
        let mut contents = versions.last().unwrap().contents.clone();
        contents.resize(contents.len().max(at + length), 0);
        contents[at..at + length].copy_from_slice(&bytes);
        let begun = recordings.place();
        block_on(client.begin().write_through(file, at as u64, &bytes, false)).unwrap();
        let mut durable = None;
        if rng.below(2) == 0 {
            block_on(client.begin().fsync(file)).unwrap();
            durable = Some(recordings.place());
        }
        versions.push(Version {
            contents,
            begun,
            durable,
        });
    }
    for opened in opened {
        block_on(client.begin().release(opened.found.attr.ino)).unwrap();
    }
    noted
}

/// A load on a real server with its recordings, ended by a kill.
struct Run {
    known: Known,
    files: Vec<Noted>,
    shard: Vec<u8>,
    target: Vec<u8>,
}

fn run() -> Run {
    let scratch = Scratch::new("recorded");
    let folder = scratch.join("recordings");
    let recordings = Recordings {
        shard: folder.join("shard-2.0"),
        target: folder.join("target-1.0"),
    };
    let mut server = Server::start(&scratch, &folder);
    let client = server.client(&scratch);
    let name = Name::new(b"home").unwrap();
    let who = Credentials::root();
    let call = client.begin();
    let home = call.mkdir(&who, Ino::ROOT, name, (0o755, 0), Some(ZoneId(1)));
    let home = block_on(home).unwrap().attr.ino;
    let files = std::thread::scope(|scope| {
        let writer = |number| {
            let (client, recordings) = (&client, &recordings);
            scope.spawn(move || load(client, home, number, recordings))
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        let files = writers.into_iter().map(|writer| writer.join().unwrap());
        files.flatten().collect()
    });
    let known = Known {
        cell: CELL,
        map: client.map(),
        home,
    };
    drop(server);
    Run {
        known,
        files,
        shard: std::fs::read(&recordings.shard).unwrap(),
        target: std::fs::read(&recordings.target).unwrap(),
    }
}

/// Tries states of a recording; returns the violations and the number of states. With `lies`,
/// flushes count as doing nothing.
fn tried(
    bytes: &[u8],
    (moments, lies): (usize, bool),
    check: impl Fn(&Path, u64) -> Result<(), String>,
) -> (Vec<String>, usize) {
    let recording = Recording::read(bytes).unwrap();
    assert_eq!(recording.ending, None, "the server was killed");
    let scratch = Scratch::in_memory("left");
    let mut rng = Rng(7);
    let points = sync_points(&recording);
    let mut replayed = Replayed::new(&recording, lies);
    let (mut failed, mut count) = (Vec::new(), 0);
    for point in some(points, moments, &mut rng) {
        replayed.run_to(point);
        for unit in [512, 4096] {
            for state in replayed.states(unit, states_a_moment(), &mut rng) {
                let dir = scratch.join(count.to_string());
                state.write_to(&dir).unwrap();
                if let Err(text) = check(&dir, replayed.bytes()) {
                    failed.push(format!("event {point}, unit {unit}: {text}"));
                }
                std::fs::remove_dir_all(&dir).unwrap();
                count += 1;
            }
        }
    }
    (failed, count)
}

#[test]
fn stores_hold_all_durable_data_after_a_power_loss() {
    let begin = Instant::now();
    let run = run();
    println!(
        "load: {:?}, {} and {} bytes",
        begin.elapsed(),
        run.shard.len(),
        run.target.len()
    );
    let (known, files) = (&run.known, &run.files);
    let shard = |dir: &Path, place| known.check_shard(dir, place, files);
    let (failed, count) = tried(&run.shard, (MOMENTS, false), shard);
    println!("{count} states of the shard: {:?}", begin.elapsed());
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(count >= 200, "only {count} states");

    let scratch = Scratch::in_memory("last");
    let recording = Recording::read(&run.shard).unwrap();
    let mut last = Replayed::new(&recording, false);
    last.run_to(usize::MAX);
    last.live().write_to(&scratch.join("shard")).unwrap();
    let objects = known.objects(&scratch.join("shard"), files);
    let target = |dir: &Path, place| known.check_target(dir, place, files, &objects);
    let (failed, count) = tried(&run.target, (MOMENTS, false), target);
    println!("{count} states of the target: {:?}", begin.elapsed());
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(count >= 200, "only {count} states");

    // The check must find flushes that do nothing, and promises made too early. (The index's
    // library panics, which is caught.)
    std::panic::set_hook(Box::new(|_| ()));
    let (shard_lies, _) = tried(&run.shard, (6, true), shard);
    let (target_lies, _) = tried(&run.target, (3, true), target);
    let late = |dir: &Path, _| known.check_target(dir, u64::MAX, files, &objects);
    let (late, _) = tried(&run.target, (6, false), late);
    let _ = std::panic::take_hook();
    assert!(!shard_lies.is_empty(), "a shard without flushes");
    assert!(!target_lies.is_empty(), "a target without flushes");
    assert!(!late.is_empty(), "what is durable only later");
    println!("all: {:?}", begin.elapsed());
}
