//! `zonal fs` against a cell: trees copied there and back, names of any bytes, failures, and what
//! failures leave behind.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, lives, said, zonal};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};
use zonal_testkit::Scratch;

fn command<S: AsRef<OsStr>>(cell: &Cell, words: impl IntoIterator<Item = S>) -> Command {
    let mut command = zonal();
    command.arg("fs").args(words).arg("--cell").arg(cell.dir());
    command
}

fn fs<S: AsRef<OsStr>>(cell: &Cell, words: impl IntoIterator<Item = S>) -> Output {
    command(cell, words).output().unwrap()
}

/// Runs a command that must succeed; returns its output.
fn done<S: AsRef<OsStr>>(cell: &Cell, words: impl IntoIterator<Item = S>) -> String {
    let output = fs(cell, words);
    assert_eq!(code(&output), 0, "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with this exit code and text.
#[track_caller]
fn refused<S: AsRef<OsStr>>(
    cell: &Cell,
    words: impl IntoIterator<Item = S>,
    number: i32,
    text: &str,
) {
    let output = fs(cell, words);
    assert_eq!(code(&output), number, "{}", said(&output));
    assert!(said(&output).contains(text), "{}", said(&output));
}

fn words(dir: &Path, before: &[&str], after: &[&str]) -> Vec<OsString> {
    let mut words: Vec<OsString> = before.iter().map(Into::into).collect();
    words.push(dir.into());
    words.extend(after.iter().map(OsString::from));
    words
}

/// A description of everything that a copy keeps below a directory.
fn described(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        let content = if kind.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            Vec::new()
        } else if kind.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_vec()
        } else if kind.is_file() {
            fs::read(&path).unwrap()
        } else {
            b"other".to_vec()
        };
        let nlink = if kind.is_dir() { 0 } else { metadata.nlink() };
        let mut value = [0_u8; 64];
        let xattr = rustix::fs::lgetxattr(&path, "user.note", &mut value[..]).unwrap_or(0);
        let name = path.strip_prefix(top).unwrap();
        found.push(format!(
            "{name:?} {:o} {nlink} {}:{} {}.{} {} {} {:?}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.size() * u64::from(!kind.is_dir()),
            crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &content),
            value.get(..xattr).unwrap(),
        ));
    }
    found.sort();
    found
}

/// Makes a tree with everything that a copy keeps.
fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    let much: Vec<u8> = (0..5_000_000_u32).map(|n| (n / 3) as u8).collect();
    fs::write(top.join("a/much"), &much).unwrap();
    fs::write(top.join("nothing"), b"").unwrap();
    let strange = OsString::from_vec(b"bytes\xff\xfe of a name\n".to_vec());
    fs::write(top.join("a").join(&strange), b"strange").unwrap();
    fs::hard_link(top.join("a/much"), top.join("a/b/same")).unwrap();
    std::os::unix::fs::symlink("../a/much", top.join("a/link")).unwrap();
    std::os::unix::fs::symlink("/nowhere", top.join("dangling")).unwrap();
    let holes = File::create(top.join("holes")).unwrap();
    holes.write_all_at(b"middle", 20 << 20).unwrap();
    holes.set_len(64 << 20).unwrap();
    // If the local file system has no extended attributes, none are compared.
    let note = rustix::fs::XattrFlags::empty();
    let _ = rustix::fs::setxattr(top.join("holes"), "user.note", b"\x00kept", note);
    let _ = rustix::fs::setxattr(top.join("empty"), "user.note", b"here", note);
    for n in 0..40 {
        fs::write(top.join(format!("a/b/{n}")), n.to_string()).unwrap();
    }
    for (path, mode) in [
        ("a/much", 0o640),
        ("nothing", 0o400),
        ("a/b", 0o1750),
        ("empty", 0o555),
    ] {
        fs::set_permissions(top.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    for path in ["a/much", "holes", "a", "."] {
        File::open(top.join(path))
            .unwrap()
            .set_modified(old)
            .unwrap();
    }
}

#[test]
fn a_tree_comes_back_as_it_went() {
    let (cell, here) = (Cell::up("fs-tree"), Scratch::new("fs-tree-here"));
    make_tree(&here.join("tree"));
    done(&cell, ["mkdir", "/d"]);
    let told = done(
        &cell,
        words(&here.join("tree"), &["put", "-r", "--json"], &["/d/tree"]),
    );
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told["files"], &told["directories"]),
        (&45.into(), &4.into())
    );
    let sent = described(&here.join("tree"));
    for round in 0..2 {
        // The second copy replaces the first.
        done(
            &cell,
            words(&here.join("back"), &["get", "-r", "/d/tree/."], &[]),
        );
        assert_eq!(described(&here.join("back")), sent, "round {round}");
        done(
            &cell,
            words(
                &here.join("tree/."),
                &["put", "-r", "-j", "1"],
                &["/d/tree"],
            ),
        );
    }
    let blocks = fs::metadata(here.join("back/holes")).unwrap().blocks();
    assert!(blocks * 512 < 4 << 20, "holes stay holes: {blocks} blocks");
    let stat = done(&cell, ["stat", "--json", "/d/tree/holes"]);
    let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
    assert_eq!(stat["size"], 64 << 20);
    assert!(stat["allocated"].as_u64().unwrap() < 4 << 20, "{stat}");
    // Listings and attributes of the copy.
    let listed = done(&cell, ["ls", "-r", "/d/tree"]);
    assert_eq!(listed.lines().count(), 50, "{listed}");
    assert!(
        listed.contains(r"/d/tree/a/bytes\xff\xfe of a name\x0a"),
        "{listed}"
    );
    assert!(!listed.contains(".zonal-put."), "{listed}");
    let long = done(&cell, ["ls", "-l", "/d/tree"]);
    assert!(
        long.contains("-r--------") && long.contains("dangling -> /nowhere"),
        "{long}"
    );
    let found = done(&cell, ["find", "/d", "--type", "f", "--size", "+4 MiB"]);
    assert_eq!(found, "/d/tree/a/b/same\n/d/tree/a/much\n/d/tree/holes\n");
    let found = done(
        &cell,
        ["find", "/d", "--name", "bytes*", "--mtime", "-1", "--json"],
    );
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["size"], 7);
    let sum = done(&cell, ["du", "-s", "--json", "/d/tree"]);
    let sum: serde_json::Value = serde_json::from_str(&sum).unwrap();
    assert_eq!(sum["directories"], 4);
    assert!(
        sum["size"].as_u64().unwrap() > (64 << 20) + 5_000_000,
        "{sum}"
    );
    assert!(
        sum["size"].as_u64().unwrap() < (64 << 20) + 5_001_000,
        "a file counts once: {sum}"
    );
    done(&cell, ["rm", "-r", "/d/tree"]);
    assert_eq!(done(&cell, ["ls", "/d"]), "");
}

#[test]
fn single_files_are_put_shown_moved_and_removed() {
    let (cell, here) = (Cell::up("fs-single"), Scratch::new("fs-single-here"));
    done(&cell, ["mkdir", "-p", "/d/x/y"]);
    done(&cell, ["mkdir", "-p", "/d/x/y"]);
    let mut put = command(&cell, ["put", "-", "/d/in"]);
    let mut put = put.stdin(Stdio::piped()).spawn().unwrap();
    put.stdin
        .take()
        .unwrap()
        .write_all(b"from a pipe\n")
        .unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(
        done(&cell, ["cat", "/d/in", "/d/in"]),
        "from a pipe\nfrom a pipe\n"
    );
    fs::write(here.join("f"), b"new").unwrap();
    done(&cell, words(&here.join("f"), &["put"], &["/d/in"]));
    assert_eq!(done(&cell, ["cat", "/d/in"]), "new");
    done(&cell, words(&here.join("f"), &["put"], &["/d/x"]));
    done(&cell, ["mv", "/d/x/f", "/d/in", "/d/x/y"]);
    assert_eq!(done(&cell, ["ls", "/d/x/y"]), "/d/x/y/f\n/d/x/y/in\n");
    refused(
        &cell,
        ["mv", "--no-clobber", "/d/x/y/f", "/d/x/y/in"],
        1,
        "exists",
    );
    done(&cell, ["rm", "/d/x/y/f"]);
    done(&cell, ["rm", "-f", "/d/x/y/f"]);
    // Errors have a text, an exit code and a hint.
    refused(&cell, ["rm", "/d/x/y/f"], 7, "/d/x/y/f");
    refused(&cell, ["cat", "/none/x"], 7, "no such file");
    refused(&cell, ["ls", "/none"], 7, "/none");
    refused(&cell, ["rm", "/d/x"], 1, "Hint: -r removes");
    refused(&cell, ["rm", "-r", "/"], 2, "name the entries below it");
    refused(&cell, ["cat", "/d"], 1, "directory");
    refused(&cell, ["mkdir", "/d"], 1, "exists");
    refused(
        &cell,
        ["stat", "/none", "/d", "/neither"],
        7,
        "2 paths failed",
    );
    let none = here.join("none");
    refused(
        &cell,
        words(&none, &["put"], &["/d/none"]),
        7,
        "on this machine",
    );
    refused(
        &cell,
        words(&here.join("f"), &["put"], &["/none/f"]),
        7,
        "/none/f",
    );
    refused(
        &cell,
        words(&here, &["put"], &["/d/tree"]),
        1,
        "Hint: -r copies",
    );
    refused(
        &cell,
        words(&none, &["get", "/d/x"], &[]),
        1,
        "Hint: -r copies",
    );
    refused(&cell, words(&none, &["get", "/none"], &[]), 7, "/none");
    assert_eq!(done(&cell, ["find", "/d", "--type", "f"]), "/d/x/y/in\n");
    assert_eq!(fs::read_dir(&*here).unwrap().count(), 1);
}

fn signal(child: &std::process::Child, name: &str) {
    let status = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(child.id().to_string())
        .status();
    assert!(status.unwrap().success());
}

/// Names of incomplete files in a directory of the cell.
fn halves(cell: &Cell) -> String {
    done(cell, ["find", "/d", "--name", "*.zonal-put.*"])
}

/// Starts a put of endless input.
fn endless(cell: &Cell) -> std::process::Child {
    let mut put = command(cell, ["put", "-", "/d/f"]);
    let zeros = File::open("/dev/zero").unwrap();
    let put = put.stdin(zeros).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while halves(cell).is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "it does not begin"
        );
    }
    put
}

#[test]
fn an_end_in_the_middle_leaves_the_old_file() {
    let cell = Cell::up("fs-ends");
    done(&cell, ["mkdir", "/d"]);
    let mut put = command(&cell, ["put", "-", "/d/f"]);
    assert!(put.stdin(Stdio::null()).status().unwrap().success());
    // Ended by a signal: nothing is left, and the exit code says so.
    let mut put = endless(&cell);
    signal(&put, "TERM");
    assert_eq!(put.wait().unwrap().code(), Some(130));
    assert_eq!(halves(&cell), "");
    assert_eq!(done(&cell, ["cat", "/d/f"]), "");
    // Killed: a partial file is left under another name.
    let mut put = endless(&cell);
    signal(&put, "KILL");
    put.wait().unwrap();
    assert!(!lives(put.id()));
    assert_eq!(halves(&cell).lines().count(), 1);
    assert_eq!(done(&cell, ["cat", "/d/f"]), "");
    assert_eq!(
        done(&cell, ["find", "/d", "--name", "f", "--size", "0"]),
        "/d/f\n"
    );
}

#[test]
fn put_to_a_full_cell_keeps_only_the_old_file() {
    let scratch = Scratch::new("fs-full");
    let cell = Cell { scratch };
    let shape = [
        "--zones",
        "1",
        "--storage-nodes",
        "1",
        "--capacity",
        "64 MiB",
    ];
    let mut up = zonal();
    up.arg("up").arg("--dir").arg(cell.dir()).args(shape);
    assert!(up.stdout(Stdio::null()).status().unwrap().success());
    done(&cell, ["mkdir", "/d"]);
    let here = cell.dir().join("here");
    fs::create_dir(&here).unwrap();
    fs::write(here.join("f"), "old").unwrap();
    done(&cell, words(&here.join("f"), &["put"], &["/d/f"]));
    let much = File::create(here.join("f")).unwrap();
    much.write_all_at(&vec![b'x'; 100 << 20], 0).unwrap();
    let put = words(&here.join("f"), &["put"], &["/d/f"]);
    refused(
        &cell,
        put,
        1,
        "no space left\nHint: `zonal status` shows full targets",
    );
    assert_eq!(halves(&cell), "");
    assert_eq!(done(&cell, ["cat", "/d/f"]), "old");
}

#[test]
fn servers_that_are_down_are_told_in_bounded_time() {
    let cell = Cell::up("fs-down");
    done(&cell, ["mkdir", "/d"]);
    let here: PathBuf = cell.dir().join("back");
    cell::kill(cell.pid("meta1"), "KILL");
    let begun = Instant::now();
    refused(
        &cell,
        ["ls", "/d", "--deadline", "1 s"],
        4,
        "Hint: is the cell up?",
    );
    refused(
        &cell,
        words(&here, &["get", "-r", "--deadline", "1 s", "/d"], &[]),
        4,
        "Hint: is",
    );
    cell.down();
    refused(&cell, ["stat", "/d"], 4, "Hint: is the cell up?");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(25), "{took:?}");
    assert!(!here.exists());
}
