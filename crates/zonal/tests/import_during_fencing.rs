//! An import into a target that has just started, while the shard of its files does not answer yet.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, kill, lives, said, zonal};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn at_target(cell: &Cell, verb: &str) -> Command {
    let mut command = zonal();
    command.args(["target", verb, "--target", "1", "--cell"]);
    command.arg(cell.dir());
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
}

/// A process that is killed at the end of the test.
struct Server(Child);

impl Server {
    fn start(cell: &Cell, node: &str) -> Self {
        let mut command = zonal();
        command.args(["server", "--config"]).arg(cell.config(node));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _code = self.0.wait();
    }
}

#[test]
fn an_import_waits_until_the_shard_has_named_fenced_clients() {
    let cell = Cell::up("import-waits");
    let bytes = cell.dir().join("bytes");
    fs::write(&bytes, [7; 100_000]).unwrap();
    // The files of the root directory are the manager's.
    run(zonal()
        .args(["fs", "mkdir", "/d", "--cell"])
        .arg(cell.dir()));
    let mut put = zonal();
    put.args(["fs", "put", "--cell"]).arg(cell.dir());
    run(put.arg(&bytes).arg("/d/f"));
    let objects = cell.dir().join("objects");
    run(at_target(&cell, "export").arg("--to").arg(&objects));

    let (shard, target) = (cell.pid("meta1"), cell.pid("storage1-1"));
    kill(target, "KILL");
    kill(shard, "KILL");
    // A server that is being killed still takes connections.
    let deadline = Instant::now() + Duration::from_secs(20);
    while lives(target) || lives(shard) {
        assert!(Instant::now() < deadline, "a killed server does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let _target = Server::start(&cell, "storage1-1");
    // A server that starts listens for a moment before it serves, so a connection shows nothing.
    while code(&at_target(&cell, "ls").output().unwrap()) != 0 {
        assert!(
            Instant::now() < deadline,
            "the target's server does not start"
        );
        std::thread::sleep(Duration::from_millis(5));
    }

    let mut command = at_target(&cell, "import");
    command.arg("--force").arg("--from").arg(&objects);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut importing = command.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let early = importing.try_wait().unwrap();
    let _shard = Server::start(&cell, "meta1");
    let imported = importing.wait_with_output().unwrap();
    assert_eq!(code(&imported), 0, "{}", said(&imported));
    assert!(early.is_none());
}
