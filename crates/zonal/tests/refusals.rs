//! Refusals, each with its code and a hint, and with nothing changed:
//!
//! * another shape of a cell, stores of other cells, ports in use,
//! * moved folders, processes of strangers, clients without a key.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, NODES, code, lives, said, write_secret, zonal};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use zonal_testkit::Scratch;

#[test]
fn another_shape_of_an_existing_cell_is_refused() {
    let cell = Cell::up("shape");
    cell.down();
    let up = |more: &[&str]| {
        let mut command = zonal();
        command.args(["up", "--dir"]).arg(cell.dir()).args(more);
        command.output().unwrap()
    };
    for other in [
        &["--zones", "5"][..],
        &["--storage-nodes", "2"],
        &["--zones", "1", "--storage-nodes", "3"],
        &["--zones", "2", "--storage-nodes", "1"],
    ] {
        let output = up(other);
        let text = said(&output);
        assert_eq!(code(&output), 5, "{other:?}: {text}");
        for part in ["zones: 1", "1 in zone 1", "nothing was changed", "Hint:"] {
            assert!(
                text.contains(part),
                "{other:?}: \"{text}\" lacks \"{part}\""
            );
        }
        assert_eq!(code(&cell.status()), 4, "nothing runs");
    }
    for same in [&[][..], &["--zones", "1"], &["--storage-nodes", "1"]] {
        let output = up(same);
        assert_eq!(code(&output), 0, "{same:?}: {}", said(&output));
    }
}

fn start(config: &Path, more: &[&str]) -> (i32, String) {
    let mut command = zonal();
    command.args(["server", "--config"]).arg(config).args(more);
    let output = command.output().unwrap();
    (code(&output), said(&output))
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map(|entries| {
            entries
                .map(|entry| entry.unwrap().path().display().to_string())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

/// All files below a folder, with their bytes.
fn bytes_below(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(bytes_below(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

#[test]
fn refusals_have_their_codes_and_touch_nothing() {
    let cell = Cell::up("refusals");
    let config = cell.config("storage1-1");
    // Its store is open in another process.
    let (code, text) = start(&config, &[]);
    assert_eq!(code, 6, "{text}");
    assert!(
        text.contains("in use by another process") && text.contains("Hint:"),
        "{text}"
    );

    let scratch = Scratch::new("copies");
    let text = fs::read_to_string(&config).unwrap();
    let variant = |name: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let folder = scratch.join(name);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("node.toml");
        let text = text.replacen(from, to, 1);
        fs::write(&path, text.split("[admin]").next().unwrap()).unwrap();
        (folder, path)
    };
    let address = cell.address("storage1-1", false).to_string();
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();

    // A store that is not formatted.
    let (folder, path) = variant("empty", &address, &free);
    let (code, text) = start(&path, &[]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("--format"), "{text}");
    assert_eq!(listing(&folder).len(), 1, "{:?}", listing(&folder));

    // A folder with something else in it.
    let foreign = folder.join("target");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "dear").unwrap();
    let (code, text) = start(&path, &["--format"]);
    assert_eq!(code, 5, "{text}");
    assert!(
        text.contains("not a store") && text.contains("Hint:"),
        "{text}"
    );
    assert_eq!(
        listing(&foreign),
        [foreign.join("thesis.txt").display().to_string()]
    );

    // Another target's number, another cell, both over the store of the running one.
    let target = cell.dir().join("storage1-1").join("target");
    let dir = format!(
        "listen = \"{free}\"\ndir = \"{}\"",
        target.parent().unwrap().display()
    );
    let listen = format!("listen = \"{address}\"");
    assert_eq!(cell::code(&cell.down()), 0);
    for (name, from, to, why) in [
        ("number", "target = 1", "target = 9", "is number 1, not 9"),
        ("cell", "cell = \"", "cell = \"ffff", "belongs to cell"),
    ] {
        let (_, path) = variant(name, &listen, &dir);
        let mut text = fs::read_to_string(&path).unwrap().replacen(from, to, 1);
        if name == "cell" {
            let start = text.find("ffff").unwrap();
            text.replace_range(start + 32..start + 36, "");
        }
        fs::write(&path, text).unwrap();
        let before = bytes_below(&target);
        assert!(before.len() > 3, "{:?}", before.keys());
        for more in [&[][..], &["--format"], &["--format-only"]] {
            let (code, text) = start(&path, more);
            assert_eq!(code, 5, "{name} {more:?}: {text}");
            assert!(text.contains(why), "{name} {more:?}: {text}");
            assert!(
                text.contains("Hint: the folder belongs to another node"),
                "{name} {more:?}: {text}"
            );
            assert!(bytes_below(&target) == before, "{name} {more:?}: changed");
        }
    }

    assert_eq!(cell::code(&cell.up_again()), 0);
    // A newly formatted target with a number that the manager knows.
    let (_, path) = variant("impostor", &address, &free);
    let (code, text) = start(&path, &["--format"]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("known with another store"), "{text}");
}

#[test]
fn a_port_in_use_is_reported() {
    let cell = Cell::up("port");
    cell.down();
    let held = TcpListener::bind(cell.address("storage1-1", false)).unwrap();
    let folder = cell.dir().join("storage1-1");
    let before = bytes_below(&folder);
    let (code, text) = start(&cell.config("storage1-1"), &[]);
    assert_eq!(code, 6, "{text}");
    assert!(
        text.contains("Hint: another process listens there: stop it, or change `listen`"),
        "{text}"
    );
    let now = bytes_below(&folder);
    let changed: Vec<_> = before
        .iter()
        .filter(|file| now.get(file.0) != Some(file.1))
        .collect();
    let names: Vec<_> = changed.iter().map(|file| file.0).collect();
    assert!(
        names.is_empty() && now.len() == before.len(),
        "changed: {names:?}"
    );
    let output = cell.up_again();
    assert_eq!(cell::code(&output), 6, "{}", said(&output));
    assert!(said(&output).contains("Hint:"), "{}", said(&output));
    assert!(
        said(&output).contains("storage1-1 ended at once"),
        "{}",
        said(&output)
    );
    drop(held);

    // The port of the admin pages; the error is of this start.
    let held = TcpListener::bind(cell.address("storage1-1", true)).unwrap();
    let output = cell.up_again();
    assert_eq!(cell::code(&output), 6, "{}", said(&output));
    let told = format!(
        "cannot listen on {} for the admin pages",
        held.local_addr().unwrap()
    );
    let text = said(&output);
    assert!(text.contains(&told), "{text}");
    assert!(text.contains("or change `listen` of [admin]"), "{text}");
    let of_before = cell.address("storage1-1", false).to_string();
    assert!(
        !text.contains(&format!("listening on {of_before}")),
        "{text}"
    );
    drop(held);
    assert_eq!(cell::code(&cell.up_again()), 0);
}

fn of_dir(command: &str, dir: &Path) -> (i32, String) {
    let output = zonal().arg(command).arg("--dir").arg(dir).output().unwrap();
    (code(&output), said(&output))
}

#[test]
fn servers_of_a_moved_folder_are_found_and_reported() {
    let cell = Cell::up("moved");
    let pids: Vec<u32> = NODES.iter().map(|node| cell.pid(node)).collect();
    let dir = cell.dir().to_path_buf();
    let moved = dir.with_extension("moved");
    fs::rename(&dir, &moved).unwrap();
    let (code, text) = of_dir("up", &moved);
    assert_eq!(code, 6, "{text}");
    assert!(
        text.contains("manager runs") && text.contains("was moved") && text.contains("Hint:"),
        "{text}"
    );
    assert!(pids.iter().all(|pid| lives(*pid)));
    let (code, text) = of_dir("down", &moved);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("stopped 3 of 3 servers"), "{text}");
    assert!(!pids.iter().any(|pid| lives(*pid)), "{text}");
    let (code, text) = of_dir("up", &moved);
    assert_eq!(code, 0, "{text}");
    assert_eq!(of_dir("down", &moved).0, 0);
    fs::rename(&moved, &dir).unwrap();
}

#[test]
fn down_reports_servers_that_it_did_not_start() {
    let cell = Cell::up("strangers");
    let pids: Vec<u32> = NODES.iter().map(|node| cell.pid(node)).collect();
    // The pid file is lost.
    let file = cell.dir().join("storage1-1").join("pid");
    let kept = fs::read(&file).unwrap();
    let nobody = "4194305\n";
    fs::write(&file, nobody).unwrap();
    let (code, text) = of_dir("up", cell.dir());
    assert_eq!(code, 6, "{text}");
    assert!(
        text.contains("another process answers as storage1-1"),
        "{text}"
    );
    let said = fs::read_to_string(&file).unwrap();
    assert_eq!(said, nobody, "it was started nevertheless");
    let (code, text) = of_dir("down", cell.dir());
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("stopped 2 of 3 servers") && text.contains("storage1-1 at"),
        "{text}"
    );
    assert_eq!(
        pids.iter().map(|pid| lives(*pid)).collect::<Vec<_>>(),
        [false, false, true]
    );
    fs::write(&file, kept).unwrap();
    assert_eq!(of_dir("down", cell.dir()).0, 0);
    assert!(!lives(pids[2]));
}

#[test]
fn a_new_cell_has_a_key_and_refuses_those_without() {
    let scratch = Scratch::new("key");
    let dir = scratch.to_str().unwrap();
    let up = ["up", "--dir", dir, "--zones", "1", "--storage-nodes", "1"];
    let output = zonal().args(up).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(!said(&output).contains("has no key"), "{}", said(&output));
    // Stopped even if an assertion fails.
    let cell = Cell { scratch };
    assert_eq!(code(&cell.status()), 0, "{}", said(&cell.status()));
    assert!(said(&cell.status()).contains("\"transport\": \"tls\""));
    assert!(!said(&cell.status()).contains("plain"));
    let key = cell.dir().join("cell.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    for node in NODES {
        let folder = fs::metadata(cell.dir().join(node)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&folder.permissions());
        assert_eq!(mode & 0o777, 0o700, "{node}");
    }
    let address = cell.address("manager", false).to_string();
    let ask = |more: &[&str]| {
        let output = zonal()
            .args(["status", "--cell", &address])
            .args(more)
            .output()
            .unwrap();
        (code(&output), said(&output))
    };
    let (code, text) = ask(&[]);
    assert!(code == 4 && text.contains("--key-file"), "{code}: {text}");
    let (code, text) = ask(&["--key-file", key.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    let wrong = cell.dir().join("wrong.key");
    write_secret(&wrong, [7; 32]);
    let (code, text) = ask(&["--key-file", wrong.to_str().unwrap()]);
    assert_eq!(code, 3, "{text}");
    // A node's credential is not valid for commands.
    let nodes = cell.dir().join("storage1-1/node.key");
    let (code, text) = ask(&["--key-file", nodes.to_str().unwrap(), "--json"]);
    assert!(code == 0 || code == 4, "{code}: {text}");
    // A node's folder may be a link to another disk; its credential is found there.
    assert_eq!(cell::code(&cell.down()), 0);
    let disk = Scratch::new("key-disk");
    let (there, here) = (disk.join("storage"), cell.dir().join("storage1-1"));
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(&here)
        .arg(&there)
        .status();
    assert!(copied.unwrap().success());
    fs::remove_dir_all(&here).unwrap();
    std::os::unix::fs::symlink(&there, &here).unwrap();
    // A server that goes in the clear says so.
    let config = fs::read_to_string(cell.config("meta1")).unwrap();
    let plain = config.replace("[zone]", "transport = \"plain\"\n[zone]");
    fs::write(cell.config("meta1"), plain).unwrap();
    let clear = "\"transport\": \"plain\"";
    let output = cell.up_again();
    assert_eq!(cell::code(&output), 0, "{}", said(&output));
    assert_eq!(cell::code(&cell.status()), 0, "{}", said(&cell.status()));
    assert!(
        said(&cell.status()).contains(clear),
        "{}",
        said(&cell.status())
    );
    cell.down();
}
