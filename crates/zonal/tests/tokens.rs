//! A new node joins with a token and nothing else; a token works once, and only as it was made.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, said, zonal};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

const REFUSED: i32 = 5;
const UNREACHABLE: i32 = 4;

fn done(cell: &Cell, words: &[&str]) -> String {
    let output = cell.command(words).output().unwrap();
    assert_eq!(code(&output), 0, "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn document(cell: &Cell, words: &[&str]) -> Value {
    serde_json::from_str(&done(cell, &[words, &["--json"]].concat())).unwrap()
}

fn join(token: &str, dir: &Path) -> Output {
    let mut join = zonal();
    join.args(["node", "join", "--capacity", "1 GiB", "--token", token]);
    join.arg("--dir").arg(dir).output().unwrap()
}

fn refused(token: &str, dir: &Path, with: i32, why: &str) {
    let output = join(token, dir);
    assert_eq!(code(&output), with, "{}", said(&output));
    assert!(said(&output).contains(why), "{}", said(&output));
    assert!(std::fs::read_dir(dir).is_err(), "a folder without a node");
}

/// A server that ends with the test.
struct Server(Child);

impl Server {
    fn of(config: &Path) -> Self {
        let mut server = zonal();
        server.arg("server").arg("--config").arg(config);
        Self(server.stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Waits until the map has so many nodes; returns them.
fn nodes(cell: &Cell, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let listed = document(cell, &["node", "ls"]);
        let nodes = listed["nodes"].as_array().unwrap().clone();
        if nodes.len() == count {
            return nodes;
        }
        assert!(Instant::now() < deadline, "{listed}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The token with another hexadecimal digit at `at`, counted from the end where negative.
fn forged(token: &str, at: usize) -> String {
    let mut digits: Vec<char> = token.chars().collect();
    digits[at] = if digits[at] == '0' { '1' } else { '0' };
    digits.into_iter().collect()
}

#[test]
fn a_new_machine_joins_with_a_token_and_nothing_else_and_only_once() {
    let cell = Cell::with_key("tokens-join");
    let here = |name: &str| -> PathBuf { cell.dir().join(name) };
    let token = done(
        &cell,
        &[
            "token",
            "create",
            "--roles",
            "storage,meta",
            "--zone",
            "row b",
        ],
    );
    let listed = document(&cell, &["token", "ls"]);
    assert_eq!(listed["tokens"][0]["state"], "valid");
    assert_eq!(listed["tokens"][0]["node"], 4);
    // "zonal-", 16 bytes of the cell, 16 of the authority's fingerprint, 16 of the secret.
    let (authority, secret) = (6 + 32 + 3, 6 + 64 + 3);
    refused(
        &forged(&token, secret),
        &here("a"),
        REFUSED,
        "does not know",
    );
    refused(
        &forged(&token, authority),
        &here("b"),
        UNREACHABLE,
        "authority",
    );
    let joined = join(&token, &here("joined"));
    assert_eq!(code(&joined), 0, "{}", said(&joined));
    refused(&token, &here("c"), REFUSED, "used already");
    assert_eq!(
        document(&cell, &["token", "ls"])["tokens"][0]["state"],
        "used"
    );

    let _server = Server::of(&here("joined/node.toml"));
    let nodes = nodes(&cell, 4);
    assert_eq!(nodes[3]["id"], 4);
    assert_eq!(nodes[3]["targets"].as_array().unwrap().len(), 1);
    assert_eq!(nodes[3]["roles"], serde_json::json!(["meta", "storage"]));
    let zones = document(&cell, &["zone", "ls"]);
    assert_eq!(zones["zones"][1]["name"], "row b");
}

#[test]
fn tokens_are_revoked_and_name_no_number_twice() {
    let cell = Cell::with_key("tokens-revoke");
    let first = done(&cell, &["token", "create", "--roles", "agent"]);
    let second = done(&cell, &["token", "create"]);
    assert_ne!(first, second);
    let listed = document(&cell, &["token", "ls"]);
    let tokens = listed["tokens"].as_array().unwrap();
    let mut numbers: Vec<u64> = tokens
        .iter()
        .map(|one| one["node"].as_u64().unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [4, 5]);
    // A number of a node, and one that a token promises.
    for number in ["1", "4"] {
        let mut twice = cell.command(&["token", "create", "--node", number]);
        let twice = twice.output().unwrap();
        assert_eq!(code(&twice), REFUSED, "{}", said(&twice));
    }
    for token in tokens {
        let id = token["id"].as_str().unwrap();
        done(&cell, &["token", "revoke", id]);
    }
    refused(&first, &cell.dir().join("a"), REFUSED, "does not know");
    // Nothing is left of the tokens over a restart either.
    let kept = done(&cell, &["token", "create"]);
    assert_eq!(code(&cell.down()), 0);
    assert_eq!(code(&cell.up_again()), 0);
    refused(&second, &cell.dir().join("b"), REFUSED, "does not know");
    let joined = join(&kept, &cell.dir().join("c"));
    assert_eq!(code(&joined), 0, "{}", said(&joined));
}
