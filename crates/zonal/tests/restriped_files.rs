//! Files of a zone that has grown are striped anew over all of its servers, beside programs and
//! kills of the command.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stdout, reason = "figures")]

mod cell;
mod copied_files;
mod mounted;
mod native_files;
mod verified_files;

use cell::{Cell, code, said};
use copied_files::{connect, make_dir, pattern, target_of};
use mounted::{Mounted, can_mount};
use native_files::{read, write};
use rustix::fs::XattrFlags;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use verified_files::{Files, Programs, compare};
use zonal_native::{Native, User};

const SHAPE: (u16, u16) = (1, 4);
/// Servers that take no files at first.
const LATER: [&str; 2] = ["storage1-3", "storage1-4"];
const OPTIONS: [&str; 3] = ["--no-key", "--capacity", "512 MiB"];
const WITHIN: Duration = Duration::from_secs(90);
const MIB: usize = 1 << 20;
const FAILED: i32 = 1;

/// A cell whose files lie on two of four targets.
fn narrow_cell(name: &str) -> Cell {
    let cell = Cell::with_shape(name, SHAPE, &OPTIONS);
    for later in LATER {
        cell.runs(&["target", "disuse", "--target", &target_of(&cell, later)]);
    }
    wait_for_width(&cell, 2);
    cell
}

/// The zone gets its other two targets.
fn grow(cell: &Cell) {
    for later in LATER {
        cell.runs(&["target", "use", "--target", &target_of(cell, later)]);
    }
    wait_for_width(cell, 4);
}

/// Waits until new files lie on so many targets.
fn wait_for_width(cell: &Cell, width: usize) {
    let native = connect(cell);
    let begun = Instant::now();
    for number in 0.. {
        let path = format!("/probe-{number}");
        write(&native, &path, b"where does a new file lie?");
        let count = count_of(&native, &path);
        native.unlink(&User::root(), &path).unwrap();
        if count == width {
            return;
        }
        assert!(begun.elapsed() < WITHIN, "new files lie on {count} targets");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The number of targets of a file.
fn count_of(native: &Native, path: &str) -> usize {
    let text = native
        .get_xattr(&User::root(), path, b"zonal.layout")
        .unwrap();
    let text = String::from_utf8(text).unwrap();
    let mut words = text.split_ascii_whitespace();
    let count = words.find_map(|word| word.strip_prefix("count="));
    count.unwrap().parse().unwrap()
}

fn restripe(cell: &Cell, path: &Path) -> Command {
    let mut command = cell.command(&["layout", "apply", "--restripe", "-r", "--json", "-v"]);
    command.arg(path);
    command
}

/// Runs the command, which ends so; returns its figures and what it said besides.
fn restriped(cell: &Cell, path: &Path, with: i32) -> (Value, String) {
    let output = restripe(cell, path).output().unwrap();
    assert_eq!(code(&output), with, "{}", said(&output));
    let figures = serde_json::from_slice(&output.stdout).unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    println!("{figures} {text}");
    (figures, text)
}

/// Checks the stopped cell, with all bytes.
fn check_stopped(cell: &Cell) {
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
    println!("{}", said(&checked));
}

/// A file with data at its start and behind 2 MiB, and a hole at its end.
fn make_sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.write_all_at(&pattern(3)[..300_000], 0).unwrap();
    file.write_all_at(&pattern(4)[..5_000], 2 * MIB as u64 + 77)
        .unwrap();
    file.set_len(5 * MIB as u64).unwrap();
    file.sync_all().unwrap();
}

/// Files of all kinds. The last one stays open.
fn make_files(top: &Path) -> File {
    for (seed, name) in ["plain", "sub/deep", "one"].into_iter().enumerate() {
        fs::write(top.join(name), pattern(seed)).unwrap();
    }
    fs::hard_link(top.join("one"), top.join("sub/two")).unwrap();
    fs::write(top.join("small"), b"all in the shard").unwrap();
    fs::write(top.join("empty"), b"").unwrap();
    make_sparse(&top.join("sparse"));
    rustix::fs::setxattr(top.join("plain"), "user.x", b"kept", XattrFlags::empty()).unwrap();
    let mut writer = File::create(top.join("open")).unwrap();
    writer.write_all(&pattern(9)).unwrap();
    writer.sync_all().unwrap();
    writer
}

/// Inodes, times, owners and counted blocks are those from before.
fn are_the_same(names: &[&str], before: &[fs::Metadata], now: &[fs::Metadata]) {
    for ((name, before), now) in names.iter().zip(before).zip(now) {
        let of = |found: &fs::Metadata| {
            let mtime = (found.mtime(), found.mtime_nsec());
            let owner = (found.uid(), found.gid(), found.mode());
            (found.ino(), found.nlink(), found.len(), mtime, owner)
        };
        assert_eq!(of(now), of(before), "{name}");
        assert_eq!(now.blocks(), before.blocks(), "{name}");
    }
}

#[test]
fn a_tree_is_striped_anew_but_for_what_is_open() {
    if !can_mount() {
        return;
    }
    let cell = narrow_cell("restriped");
    let mount = Mounted::of(&cell);
    let top = mount.path.join("d");
    fs::create_dir_all(top.join("sub")).unwrap();
    let names = [
        "plain", "sub/deep", "one", "sparse", "small", "empty", "open",
    ];
    let mut writer = make_files(&top);
    let paths = names.map(|name| top.join(name));
    let seen = || paths.clone().map(|path| fs::metadata(path).unwrap());
    let read_all = || paths.clone().map(|path| fs::read(path).unwrap());
    let (before, bytes) = (seen(), read_all());

    grow(&cell);
    let native = connect(&cell);
    let counts = |native: &Native| names.map(|name| count_of(native, &format!("/d/{name}")));
    assert_eq!(counts(&native), [2; 7]);
    let (figures, text) = restriped(&cell, &top, FAILED);
    assert_eq!(
        (&figures["restriped"], &figures["in_use"]),
        (&6.into(), &1.into())
    );
    assert!(text.contains("d/open: is open"), "{text}");
    assert_eq!(counts(&native), [4, 4, 4, 4, 4, 4, 2]);
    assert_eq!(read_all(), bytes);
    for (name, bytes) in names.iter().zip(&bytes) {
        let path = format!("/d/{name}");
        let found = match *name {
            "sparse" => continue,
            _ => read(&connect(&cell), &path).unwrap(),
        };
        assert!(found == *bytes, "{name}");
    }
    are_the_same(&names, &before, &seen());
    let mut kept = [0_u8; 4];
    rustix::fs::getxattr(top.join("plain"), "user.x", &mut kept[..]).unwrap();
    assert_eq!(&kept, b"kept");

    // The writer goes on; once it has closed its file, that follows. Then nothing is left to do.
    writer.write_all(b"more").unwrap();
    drop(writer);
    let (figures, _) = restriped(&cell, &top, 0);
    assert_eq!(
        (&figures["restriped"], &figures["current"]),
        (&1.into(), &6.into())
    );
    assert_eq!(counts(&native), [4; 7]);
    let (figures, _) = restriped(&cell, &top, 0);
    assert_eq!(
        (&figures["restriped"], &figures["current"]),
        (&0.into(), &7.into())
    );
    let more = [pattern(9), b"more".to_vec()].concat();
    assert!(fs::read(top.join("open")).unwrap() == more);
    // Programs write and truncate the moved files.
    let moved = File::options().write(true).open(top.join("plain")).unwrap();
    moved.set_len(100_000).unwrap();
    moved.write_all_at(b"end", 200_000).unwrap();
    moved.sync_all().unwrap();
    drop(moved);
    let mut expected = pattern(0)[..100_000].to_vec();
    expected.resize(200_000, 0);
    expected.extend(b"end");
    assert!(read(&connect(&cell), "/d/plain").unwrap() == expected);
    drop(native);
    drop(mount);
    check_stopped(&cell);
}

#[test]
fn another_cell_is_refused() {
    if !can_mount() {
        return;
    }
    let cell = Cell::with_shape("restriped-here", (1, 1), &OPTIONS);
    let other = Cell::with_shape("restriped-there", (1, 1), &OPTIONS);
    let mount = Mounted::of(&cell);
    fs::write(mount.path.join("f"), b"bytes").unwrap();
    let refused = restripe(&other, &mount.path.join("f")).output().unwrap();
    assert_ne!(code(&refused), 0);
    assert!(
        said(&refused).contains("not in this cell"),
        "{}",
        said(&refused)
    );
    let (figures, _) = restriped(&cell, &mount.path.join("f"), 0);
    assert_eq!(figures["current"], 1);
}

/// Ends the sessions of killed commands, and waits until no file of theirs is left.
fn end_sessions(cell: &Cell) {
    let listed: Value = serde_json::from_str(&cell.runs(&["session", "ls", "--json"])).unwrap();
    let all = listed["clients"]
        .as_array()
        .or(listed.as_array())
        .unwrap()
        .clone();
    for client in all {
        if client["name"].as_str().unwrap().starts_with("fs restripe") {
            let id = client["client"].as_str().unwrap().to_owned();
            cell.runs(&["session", "end", &id]);
        }
    }
}

/// Number of objects that the targets of a running cell have, and findings.
fn objects(cell: &Cell) -> u64 {
    let text = cell.runs(&["fsck", "--json"]);
    let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let last = values.map(Result::unwrap).last().unwrap();
    last["objects"].as_u64().unwrap()
}

#[test]
fn kills_and_programs_beside_it_lose_nothing() {
    if !can_mount() {
        return;
    }
    let cell = narrow_cell("restriped-kills");
    let native = connect(&cell);
    let mut files = Files::new();
    for (dir, redundancy) in [("/once", "none"), ("/twice", "copies:2")] {
        make_dir(&native, dir, redundancy);
        for file in 0..12 {
            let path = format!("{dir}/rest-{file}");
            write(&native, &path, &pattern(file));
            files.insert(path, pattern(file));
        }
    }
    let mount = Mounted::of(&cell);
    grow(&cell);
    let programs = Programs::start(&cell, &["/once", "/twice"], 1);
    let mut killed = 0;
    for round in 0..6 {
        let mut command = restripe(&cell, &mount.path);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(200 + 150 * round));
        killed += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    println!("{killed} commands were killed");
    assert!(killed > 0);
    let written = programs.end();
    files.extend(written);
    end_sessions(&cell);
    let begun = Instant::now();
    // Mounts and programs have closed all files a moment later.
    while code(&restripe(&cell, &mount.path).output().unwrap()) != 0 {
        assert!(begun.elapsed() < WITHIN, "files are in use for ever");
    }
    let (figures, _) = restriped(&cell, &mount.path, 0);
    assert_eq!(
        (&figures["restriped"], &figures["current"]),
        (&0.into(), &files.len().into())
    );
    compare(&cell, &files, 2);
    for path in files.keys() {
        assert_eq!(count_of(&native, path), 4, "{path}");
    }
    // Copies of killed commands are deleted: each file has its objects, and nothing else is there.
    let twice = |path: &&String| path.starts_with("/twice");
    let most = 4 * files.len() + 4 * files.keys().filter(twice).count();
    let begun = Instant::now();
    while objects(&cell) > most as u64 {
        assert!(
            begun.elapsed() < WITHIN,
            "{} objects of {most}",
            objects(&cell)
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(native);
    drop(mount);
    check_stopped(&cell);
}
