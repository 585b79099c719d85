//! Stores of every released version open for ever, and those of a newer one are refused and left alone.
//!
//! `crates/zonal-disk/testdata/VERSION/cell.pack` is a small cell whose servers were killed: a part of what it holds is in
//! indexes and segments, a part in logs only; beside them a backup and exported objects. A release adds one, made by
//! `ZONAL_FIXTURE=v0.1.0 cargo test -p zonal --test upgrade -- --ignored make`; those that are there never change.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
#[path = "../../zonal-disk/tests/common/pack.rs"]
mod pack;

use cell::{Cell, NODES, code, kill, said, zonal};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zonal_client::names::{Looked, NewFile, Opened};
use zonal_client::{Client, Options};
use zonal_mount::{RealNet, block_on};
use zonal_net::{Identity, Pool, PoolConfig, Role};
use zonal_testkit::Scratch;
use zonal_types::{Attr, Blob, CellId, Credentials, Ino, Name, NodeId, ZoneId};
use zonal_wire::NewKind;
use zonal_wire::meta::flags::O_RDWR;

const VERSIONS: &[&str] = &["v0.1.0"];

fn fixture(version: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../zonal-disk/testdata")
        .join(version)
        .join("cell.pack")
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn who() -> Credentials {
    Credentials {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    }
}

/// A few bytes in each 4 KiB, so that the fixture stays small.
fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    for (index, block) in out.chunks_mut(4096).enumerate() {
        block[0] = seed;
        block[block.len() - 1] = index as u8 ^ seed;
    }
    out
}

/// A client of a cell.
struct User(Client<RealNet>);

impl User {
    fn of(cell: &Cell) -> Self {
        let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
        let pool = Arc::new(Pool::new(identity, PoolConfig::default()));
        let manager = cell.address("manager", false).to_string();
        // Another client each time: the fixture knows the one that was there when its servers were killed.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let options = Options::new(&manager, ZoneId(1), now.as_nanos() as u64);
        Self(block_on(Client::connect(RealNet::new(pool), options)).unwrap())
    }

    fn find(&self, path: &str) -> Attr {
        let mut ino = Ino::ROOT;
        let mut found = None;
        for part in path.split('/') {
            match block_on(self.0.lookup(&who(), ino, name(part))).unwrap() {
                Looked::Found(there) => {
                    ino = there.attr.ino;
                    found = Some(there.attr);
                }
                Looked::Absent(_) => panic!("{path}: {part} is not there"),
            }
        }
        found.unwrap()
    }

    fn create(&self, parent: Ino, file: &str) -> Opened<RealNet> {
        let new = NewFile {
            kind: NewKind::File,
            mode: 0o640,
            umask: 0,
        };
        block_on(self.0.create(&who(), parent, name(file), new, O_RDWR)).unwrap()
    }

    fn write(&self, parent: Ino, file: &str, parts: &[(u64, Vec<u8>)]) -> Ino {
        let opened = self.create(parent, file);
        for (offset, bytes) in parts {
            let written = self.0.write_through(&opened.file, *offset, bytes, true);
            block_on(written).unwrap();
        }
        block_on(self.0.fsync(&opened.file)).unwrap();
        opened.found.attr.ino
    }

    fn read(&self, path: &str) -> Vec<u8> {
        let attr = self.find(path);
        let opened = block_on(self.0.open(&who(), attr.ino, O_RDWR)).unwrap();
        let mut out = vec![0xee; attr.size as usize + 10];
        let count = block_on(self.0.read(&opened.file, 0, &mut out)).unwrap();
        out.truncate(count);
        out
    }
}

/// What every fixture holds, by path. `late` was written after the last checkpoint.
fn contents() -> BTreeMap<&'static str, Vec<u8>> {
    let holes = [bytes(3, 5000), vec![0; 200_000 - 5000], bytes(4, 3000)].concat();
    BTreeMap::from([
        ("plain", bytes(1, 70_000)),
        ("dir/small", b"hello".to_vec()),
        ("dir/large", bytes(2, 150_000)),
        ("dir/holes", holes),
        ("dir/cut", bytes(5, 9000)[..7000].to_vec()),
        ("dir/sub/renamed", bytes(6, 4096)),
        ("dir/late", bytes(7, 80_000)),
        ("dir/late-small", b"in the log only".to_vec()),
    ])
}

fn fill(user: &User) {
    let client = &user.0;
    user.write(Ino::ROOT, "plain", &[(0, bytes(1, 70_000))]);
    let mode = (0o755, 0);
    let dir = block_on(client.mkdir(&who(), Ino::ROOT, name("dir"), mode, Some(ZoneId(1))));
    let dir = dir.unwrap().attr.ino;
    let sub = block_on(client.mkdir(&who(), dir, name("sub"), mode, None));
    let sub = sub.unwrap().attr.ino;
    let small = user.write(dir, "small", &[(0, b"hello".to_vec())]);
    user.write(dir, "large", &[(0, bytes(2, 150_000))]);
    user.write(
        dir,
        "holes",
        &[(0, bytes(3, 5000)), (200_000, bytes(4, 3000))],
    );
    let cut = user.write(dir, "cut", &[(0, bytes(5, 9000))]);
    block_on(client.truncate(&who(), cut, 7000, true, false)).unwrap();
    user.write(dir, "before", &[(0, bytes(6, 4096))]);
    let (from, to) = ((dir, name("before")), (sub, name("renamed")));
    block_on(client.rename(&who(), from, to, 0)).unwrap();
    user.write(dir, "removed", &[(0, bytes(9, 100))]);
    block_on(client.unlink(&who(), dir, name("removed"))).unwrap();
    block_on(client.setxattr(&who(), small, b"user.color", b"blue", 0)).unwrap();
    block_on(client.hard_link(&who(), small, dir, name("linked"))).unwrap();
    let link = NewFile {
        kind: NewKind::Symlink {
            text: Blob(b"dir/small".to_vec()),
        },
        mode: 0o777,
        umask: 0,
    };
    block_on(client.make(&who(), dir, name("symlink"), link)).unwrap();
}

fn fill_late(user: &User) {
    let dir = user.find("dir").ino;
    user.write(dir, "late", &[(0, bytes(7, 80_000))]);
    user.write(dir, "late-small", &[(0, b"in the log only".to_vec())]);
    block_on(user.0.sync_all()).unwrap();
}

fn check(user: &User) {
    check_names(user, 9);
    for (path, expected) in contents() {
        assert!(user.read(path) == expected, "{path}");
    }
}

fn is_late(path: &str) -> bool {
    path.starts_with("dir/late")
}

fn check_names(user: &User, count: usize) {
    let small = user.find("dir/small");
    assert_eq!((small.mode & 0o777, small.nlink), (0o640, 2));
    assert_eq!(user.find("dir/linked").ino, small.ino);
    let color = block_on(user.0.getxattr(&who(), small.ino, b"user.color"));
    assert_eq!(color.unwrap(), b"blue");
    let link = user.find("dir/symlink").ino;
    assert_eq!(block_on(user.0.readlink(link)).unwrap(), b"dir/small");
    let dir = user.find("dir").ino;
    let (entries, end) = block_on(user.0.readdir(&who(), dir, 0, 100, true)).unwrap();
    assert!(end);
    assert_eq!(entries.len(), count);
}

/// A cell out of a fixture, with ports that are free here.
fn unpacked(version: &str) -> Cell {
    let scratch = Scratch::new(version);
    pack::unpack(&fs::read(fixture(version)).unwrap(), &scratch);
    let mut files: Vec<PathBuf> = NODES
        .iter()
        .map(|node| scratch.join(node).join("node.toml"))
        .collect();
    files.push(scratch.join("cell.toml"));
    let mut ports = BTreeMap::new();
    let mut held = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let mut parts = text.split("127.0.0.1:");
        let mut out = parts.next().unwrap().to_owned();
        for part in parts {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap();
            let (port, rest) = part.split_at(digits);
            let free = ports.entry(port.to_owned()).or_insert_with(|| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let port = listener.local_addr().unwrap().port();
                held.push(listener);
                port
            });
            out.push_str(&format!("127.0.0.1:{free}{rest}"));
        }
        fs::write(&file, out).unwrap();
    }
    drop(held);
    Cell { scratch }
}

#[test]
fn the_cell_of_every_version_comes_up_with_all_that_it_held() {
    for version in VERSIONS {
        let cell = unpacked(version);
        let up = cell.up_again();
        assert_eq!(code(&up), 0, "{version}: {}", said(&up));
        let user = User::of(&cell);
        check(&user);
        // It is one to work with, also over a restart.
        let dir = user.find("dir").ino;
        user.write(dir, "new", &[(0, bytes(8, 100_000))]);
        block_on(user.0.close()).unwrap();
        assert_eq!(code(&cell.down()), 0);
        let up = cell.up_again();
        assert_eq!(code(&up), 0, "{version}: {}", said(&up));
        let user = User::of(&cell);
        assert!(user.read("dir/new") == bytes(8, 100_000));
        block_on(user.0.unlink(&who(), dir, name("new"))).unwrap();
        check(&user);
        block_on(user.0.close()).unwrap();
        scrubbed(&cell);
        let status = cell.status();
        assert_eq!(code(&status), 0, "{version}: {}", said(&status));
    }
}

/// Every checksum of the target holds.
fn scrubbed(cell: &Cell) {
    let scrub = |arguments: &[&str]| {
        let mut command = zonal();
        command.arg("scrub").args(arguments);
        command.arg("--cell").arg(cell.dir()).output().unwrap()
    };
    assert_eq!(code(&scrub(&["start", "--anew", "--rate", "10 GiB"])), 0);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let status = scrub(&["status", "--target", "1", "--json"]);
        if said(&status).contains("\"state\": \"done\"") {
            assert_eq!(code(&status), 0, "{}", said(&status));
            return;
        }
        assert!(Instant::now() < deadline, "{}", said(&status));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn streams_of_every_version_are_read() {
    for version in VERSIONS {
        let cell = unpacked(version);
        let (backup, objects) = (cell.dir().join("backup"), cell.dir().join("objects"));
        for (stream, wanted) in [
            (&backup, "name=\"holes\""),
            (&objects, "object_bytes=203000"),
        ] {
            let shown = zonal().arg("dump").arg(stream).output().unwrap();
            assert_eq!(code(&shown), 0, "{version}: {}", said(&shown));
            assert!(said(&shown).contains(wanted), "{version}: {}", said(&shown));
        }
        let mut command = zonal();
        command
            .args(["meta", "restore", "--force", "--from"])
            .arg(&backup);
        let restored = command.arg("--cell").arg(cell.dir()).output().unwrap();
        assert_eq!(code(&restored), 0, "{version}: {}", said(&restored));
        let up = cell.up_again();
        assert_eq!(code(&up), 0, "{version}: {}", said(&up));
        let user = User::of(&cell);
        // What came after the backup is not there.
        check_names(&user, 7);
        for (path, expected) in contents() {
            assert!(is_late(path) || user.read(path) == expected, "{path}");
        }
        let mut command = zonal();
        command.args(["target", "import", "--target", "1", "--force", "--from"]);
        let imported = command.arg(&objects).arg("--cell").arg(cell.dir()).output();
        let imported = imported.unwrap();
        assert_eq!(code(&imported), 0, "{version}: {}", said(&imported));
        for (path, expected) in contents() {
            assert!(is_late(path) || user.read(path) == expected, "{path}");
        }
        block_on(user.0.close()).unwrap();
    }
}

/// Every file of the stores, by name.
fn stored(cell: &Cell) -> BTreeMap<PathBuf, Vec<u8>> {
    let stores = ["manager/manager", "meta1/shard", "storage1-1/target"];
    let files = stores.iter().flat_map(|store| {
        let dir = cell.dir().join(store);
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    });
    files
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_store_of_a_newer_version_is_refused_and_left_alone() {
    let stores = [
        ("manager", "manager"),
        ("meta1", "shard"),
        ("storage1-1", "target"),
    ];
    for (node, store) in stores {
        let cell = unpacked(VERSIONS[0]);
        let identity = cell.dir().join(node).join(store).join("identity");
        let mut bytes = fs::read(&identity).unwrap();
        bytes[8] += 1;
        // With its checksum right, as the newer program would have written it.
        let crc = crc_fast::crc32_iscsi(&bytes[..76]);
        bytes[76..80].copy_from_slice(&crc.to_le_bytes());
        fs::write(&identity, bytes).unwrap();
        let before = stored(&cell);
        let mut command = zonal();
        command.args(["server", "--format", "--config"]);
        let output = command.arg(cell.config(node)).output().unwrap();
        assert_eq!(code(&output), 5, "{}", said(&output));
        let wanted = [
            "the store has format version 2, this program knows 1",
            "Hint: a newer zonal",
        ];
        for text in wanted {
            assert!(said(&output).contains(text), "{node}: {}", said(&output));
        }
        assert!(stored(&cell) == before, "{node}: the store was touched");
    }
}

#[test]
#[ignore = "writes a fixture: once a release"]
fn make_the_fixture_of_this_version() {
    let version = std::env::var("ZONAL_FIXTURE").unwrap();
    let path = fixture(&version);
    assert!(
        !path.exists(),
        "{} is there: fixtures never change",
        path.display()
    );
    let cell = Cell {
        scratch: Scratch::new("fixture"),
    };
    let shape = "--zones 1 --storage-nodes 1 --segment";
    let mut command = zonal();
    command.arg("up").arg("--dir").arg(cell.dir());
    command
        .args(shape.split(' '))
        .args(["1 MiB", "--capacity", "64 MiB"]);
    let up = command.output().unwrap();
    assert_eq!(code(&up), 0, "{}", said(&up));
    let user = User::of(&cell);
    fill(&user);
    block_on(user.0.close()).unwrap();
    for (command, to) in [
        ("meta backup", "backup"),
        ("target export --target 1", "objects"),
    ] {
        let mut made = zonal();
        made.args(command.split(' '))
            .arg("--to")
            .arg(cell.dir().join(to));
        let made = made.arg("--cell").arg(cell.dir()).output().unwrap();
        assert_eq!(code(&made), 0, "{}", said(&made));
    }
    // All of this into indexes and segments; what comes next stays in logs.
    assert_eq!(code(&cell.down()), 0);
    assert_eq!(code(&cell.up_again()), 0);
    let user = User::of(&cell);
    fill_late(&user);
    check(&user);
    for node in NODES {
        kill(cell.pid(node), "KILL");
    }
    drop(user);
    let packed = pack::pack(cell.dir(), |path| {
        let name = path.file_name().unwrap();
        let is_output = name == "pid" || (name == "log" && path.components().count() == 2);
        !is_output && name != "lock" && !path.starts_with("mounts")
    });
    println!("{} bytes in {}", packed.len(), path.display());
    assert!(packed.len() < 200 << 10, "{} bytes", packed.len());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, packed).unwrap();
}
