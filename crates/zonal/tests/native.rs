//! A client without a kernel (`zonal-native`) against a cell: paths, files, locks, users, closes.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, said, zonal};
use std::io::SeekFrom;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zonal_native::{
    CellId, ConnectOptions, Error, ErrorCode, FileKind, Identity, Lock, LockKind, Native, NewTime,
    NodeId, OpenOptions, Role, Timestamp, User, Wait, Whence, ZoneId,
};

fn connect(cell: &Cell, name: &str) -> Native {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    let options = ConnectOptions::new(ZoneId(1)).named(name);
    Native::connect(&manager, identity, options).unwrap()
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Error>) -> ErrorCode {
    outcome.unwrap_err().code().unwrap()
}

fn write(native: &Native, path: &str, bytes: &[u8]) {
    let options = OpenOptions::new().write(true).truncate(true).create(0o644);
    let file = native.open(&User::root(), path, options).unwrap();
    file.write(bytes).unwrap();
    file.close().unwrap();
}

fn read(native: &Native, path: &str) -> Vec<u8> {
    let file = native
        .open(&User::root(), path, OpenOptions::new())
        .unwrap();
    let mut bytes = vec![0; 1 << 20];
    let length = file.read(&mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// Shards with a session of the client.
fn sessions(cell: &Cell, name: &str) -> Vec<u64> {
    let output = zonal()
        .args(["session", "ls", "--json", "--cell"])
        .arg(cell.dir())
        .output()
        .unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let clients = value["clients"].as_array().unwrap();
    let client = clients.iter().find(|client| client["name"] == name);
    let shards = client.and_then(|client| client["shards"].as_array());
    let shards = shards.into_iter().flatten();
    shards.map(|shard| shard.as_u64().unwrap()).collect()
}

#[test]
fn a_client_has_sessions_only_where_it_uses_something() {
    let cell = Cell::up("native-idle");
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    let options = ConnectOptions::new(ZoneId(1))
        .named("guest")
        .with_idle_ms(0);
    let native = Native::connect(&manager, identity, options).unwrap();
    let root = User::root();
    // The thread that watches the root's shard opens it.
    let end = Instant::now() + Duration::from_secs(20);
    while sessions(&cell, "guest") != [0] {
        assert!(Instant::now() < end, "no session with the root's shard");
    }
    native.mkdir(&root, "/one", 0o755).unwrap();
    write(&native, "/one/file", b"here");
    assert_eq!(sessions(&cell, "guest"), [0, 1]);
    let holder = native.open(&root, "/one/file", OpenOptions::new()).unwrap();
    std::thread::sleep(Duration::from_secs(14));
    assert_eq!(sessions(&cell, "guest"), [0, 1], "a file is open");
    holder.close().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while sessions(&cell, "guest") == [0, 1] {
        assert!(Instant::now() < end, "the session stays");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(sessions(&cell, "guest"), [0]);
    // The client continues to work.
    assert_eq!(read(&native, "/one/file"), b"here");
    assert_eq!(sessions(&cell, "guest"), [0, 1]);
    write(&native, "/one/file", b"again");
    assert_eq!(read(&native, "/one/file"), b"again");
    native.close().unwrap();
    assert!(sessions(&cell, "guest").is_empty());
}

#[test]
fn paths_lead_where_the_kernel_would_go() {
    let cell = Cell::up("native-paths");
    let native = connect(&cell, "paths");
    let root = User::root();
    for dir in ["/one", "/one/a", "/one/a/b", "/two"] {
        native.mkdir(&root, dir, 0o755).unwrap();
    }
    write(&native, "/one/a/b/file", b"here");
    for (text, link) in [
        ("a/b", "/one/relative"),
        ("/one/a", "/one/absolute"),
        ("../../one/absolute/b/", "/one/a/up"),
        ("/", "/one/top"),
        ("loop", "/one/loop"),
        ("a/b/file", "/one/to-file"),
        ("nowhere", "/one/dangling"),
    ] {
        native.symlink(&root, text, link).unwrap();
    }
    for path in [
        "one/a/b/file",
        "//one/./a//b/../b/file",
        "/../one/a/b/file",
        "/one/relative/file",
        "/one/absolute/b/file",
        "/one/a/up/file",
        "/one/top/one/top/one/relative/../b/file",
        "/one/to-file",
    ] {
        assert_eq!(read(&native, path), b"here", "{path}");
        assert_eq!(native.stat(&root, path).unwrap().size, 4, "{path}");
    }
    let kind = |path: &str| native.lstat(&root, path).map(|attr| attr.kind);
    assert_eq!(kind("/one/relative"), Ok(FileKind::Symlink));
    assert_eq!(kind("/one/relative/"), Ok(FileKind::Directory));
    assert_eq!(kind("/one/a/b/.."), Ok(FileKind::Directory));
    assert_eq!(kind("/"), Ok(FileKind::Directory));
    for (path, expected) in [
        ("/one/none", ErrorCode::NotFound),
        ("/one/none/x", ErrorCode::NotFound),
        ("/one/dangling/", ErrorCode::NotFound),
        ("", ErrorCode::NotFound),
        ("/one/a/b/file/", ErrorCode::NotDirectory),
        ("/one/to-file/x", ErrorCode::NotDirectory),
        ("/one/loop/x", ErrorCode::Loop),
        (&"n".repeat(256), ErrorCode::NameTooLong),
        (&"n/".repeat(2048), ErrorCode::NameTooLong),
    ] {
        assert_eq!(code(native.lstat(&root, path)), expected, "{path}");
    }
    assert_eq!(code(native.stat(&root, "/one/loop")), ErrorCode::Loop);
    // An open creates a file through a dangling link, but not with O_EXCL.
    let make = OpenOptions::new().write(true);
    let refused = native.open(&root, "/one/dangling", make.create_new(0o600));
    assert_eq!(refused.err().and_then(Error::code), Some(ErrorCode::Exists));
    drop(
        native
            .open(&root, "/one/dangling", make.create(0o600))
            .unwrap(),
    );
    assert_eq!(kind("/one/nowhere"), Ok(FileKind::File));
    for (path, expected) in [
        ("/one/a/", ErrorCode::IsDirectory),
        ("/one/made/", ErrorCode::IsDirectory),
        ("/one/loop", ErrorCode::Loop),
    ] {
        let opened = native.open(&root, path, make.create(0o600));
        assert_eq!(opened.err().and_then(Error::code), Some(expected), "{path}");
    }
    assert_eq!(code(native.mkdir(&root, "/", 0o755)), ErrorCode::Exists);
    assert_eq!(code(native.rmdir(&root, "/one/a/.")), ErrorCode::Invalid);
    assert_eq!(code(native.rmdir(&root, "/one/a")), ErrorCode::NotEmpty);
    assert_eq!(code(native.unlink(&root, "/one/a")), ErrorCode::IsDirectory);
    native.rename(&root, "/one/a/b/", "/one/moved/").unwrap();
    assert_eq!(read(&native, "/one/moved/file"), b"here");
    native.rename(&root, "/one/moved", "/two/moved").unwrap();
    assert_eq!(read(&native, "/two/moved/file"), b"here");
    native.close().unwrap();
}

#[test]
fn files_have_positions_ends_and_holes() {
    let cell = Cell::up("native-files");
    let native = connect(&cell, "files");
    let root = User::root();
    native.mkdir(&root, "/d", 0o755).unwrap();
    let both = OpenOptions::new().read(true).write(true);
    let file = native.open(&root, "/d/f", both.create(0o640)).unwrap();
    file.write(b"0123456789").unwrap();
    file.pwrite(2, b"xx").unwrap();
    assert_eq!(file.seek(SeekFrom::Current(-3)), Ok(7));
    let mut three = [0; 5];
    assert_eq!(file.read(&mut three), Ok(3));
    assert_eq!(&three[..3], b"789");
    assert_eq!(file.seek(SeekFrom::End(2)), Ok(12));
    assert_eq!(file.seek(SeekFrom::Current(-13)).unwrap_err().errno(), 22);
    // Another handle appends, independent of the first one's position.
    let end = native
        .open(&root, "/d/f", OpenOptions::new().append(true))
        .unwrap();
    end.write(b"end").unwrap();
    end.pwrite(0, b"!").unwrap();
    assert_eq!(end.pread(0, &mut three), Err(Error::NotOpenFor));
    end.close().unwrap();
    assert_eq!(read(&native, "/d/f"), b"01xx456789end!");
    assert_eq!(native.stat(&root, "/d/f").unwrap().mode, 0o640);
    // A large write behind a hole.
    let far = (9 << 20) + 5;
    let much: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
    file.pwrite(far, &much).unwrap();
    file.fsync().unwrap();
    let mut back = vec![0; much.len() + 9];
    assert_eq!(file.pread(far, &mut back), Ok(much.len()));
    assert!(back[..much.len()] == much[..]);
    let hole = file.find(0, Whence::Hole).unwrap();
    let data = file.find(hole, Whence::Data).unwrap();
    assert!((14..1 << 20).contains(&hole));
    assert!((far - (1 << 20)..=far).contains(&data));
    file.truncate(3).unwrap();
    assert_eq!(read(&native, "/d/f"), b"01x");
    file.close().unwrap();
    let opened = native.open(&root, "/d", OpenOptions::new());
    assert_eq!(
        opened.err().and_then(Error::code),
        Some(ErrorCode::IsDirectory)
    );
    native.mkfifo(&root, "/d/pipe", 0o600).unwrap();
    let opened = native.open(&root, "/d/pipe", OpenOptions::new());
    assert_eq!(
        opened.err().and_then(Error::code),
        Some(ErrorCode::NoDevice)
    );
    // Names, attributes, listings.
    native.link(&root, "/d/f", "/d/g").unwrap();
    native.set_xattr(&root, "/d/g", b"user.k", b"v").unwrap();
    assert_eq!(native.get_xattr(&root, "/d/f", b"user.k").unwrap(), b"v");
    assert_eq!(native.list_xattrs(&root, "/d/f").unwrap(), [b"user.k"]);
    let time = Timestamp {
        seconds: 1_000_000_000,
        nanos: 5,
    };
    let at = NewTime::At(time);
    native.utimens(&root, "/d/f", NewTime::Keep, at).unwrap();
    native.chmod(&root, "/d/g", 0o4711).unwrap();
    native.chown(&root, "/d/g", Some(5), Some(6)).unwrap();
    let attr = native.stat(&root, "/d/f").unwrap();
    assert_eq!((attr.mtime, attr.nlink), (time, 2));
    assert_eq!((attr.uid, attr.gid), (5, 6));
    let listed = native.read_dir_plus(&root, "/d").unwrap();
    let mut listed: Vec<_> = listed.map(Result::unwrap).collect();
    listed.sort_by_key(|entry| entry.name().to_owned());
    let names: Vec<_> = listed
        .iter()
        .map(|entry| entry.name().to_str().unwrap())
        .collect();
    assert_eq!(names, ["f", "g", "pipe"]);
    assert_eq!(listed[1].attr().unwrap().size, 3);
    let located = native.locate(&root, "/d/f").unwrap();
    assert_eq!(located.home, ZoneId(1));
    assert!(native.statfs(&root, "/d").unwrap().total > 0);
    native.close().unwrap();
}

#[test]
fn many_names_are_listed_once_each_by_many_threads() {
    let cell = Cell::up("native-many");
    let native = connect(&cell, "many");
    let root = User::root();
    native.mkdir(&root, "/d", 0o755).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let native = &native;
            scope.spawn(move || {
                for n in 0..600 {
                    write(native, &format!("/d/{thread}-{n}"), b"x");
                }
            });
        }
    });
    for _ in 0..2 {
        let listed = native.read_dir(&root, "/d").unwrap();
        let names: std::collections::BTreeSet<_> = listed
            .map(|entry| entry.unwrap().name().to_owned())
            .collect();
        assert_eq!(names.len(), 2400);
    }
    native.close().unwrap();
}

#[test]
fn the_cell_judges_each_user() {
    let cell = Cell::up("native-users");
    let native = connect(&cell, "users");
    let (root, anna) = (User::root(), User::new(1000, 1000).with_umask(0o077));
    let bert = User::new(1001, 1001).with_groups(&[1000]);
    native.mkdir(&root, "/d", 0o755).unwrap();
    let refused = native.mkdir(&anna, "/d/x", 0o755);
    assert_eq!(code(refused), ErrorCode::Access);
    native.chown(&root, "/d", Some(1000), Some(1000)).unwrap();
    native.mkdir(&anna, "/d/private", 0o755).unwrap();
    let make = OpenOptions::new().write(true).create(0o666);
    drop(native.open(&anna, "/d/private/f", make).unwrap());
    let attr = native.stat(&anna, "/d/private/f").unwrap();
    assert_eq!((attr.uid, attr.gid, attr.mode), (1000, 1000, 0o600));
    for path in ["/d/private/f", "/d/private/.", "/d/private/.."] {
        assert_eq!(code(native.stat(&bert, path)), ErrorCode::Access, "{path}");
    }
    let listed = native.read_dir(&bert, "/d/private").map(drop);
    assert_eq!(code(listed), ErrorCode::Access);
    // Group rights: a user who may list but not search gets no attributes.
    native.chmod(&anna, "/d/private", 0o740).unwrap();
    let mut listed = native.read_dir_plus(&bert, "/d/private").unwrap();
    assert!(listed.next().unwrap().unwrap().attr().is_none());
    let refused = native.chmod(&bert, "/d/private", 0o777);
    assert_eq!(code(refused), ErrorCode::NotPermitted);
    // A write drops set-id bits if the user may not keep them.
    native.chmod(&anna, "/d/private/f", 0o4755).unwrap();
    native.chmod(&anna, "/d/private", 0o777).unwrap();
    let file = native.open(&anna, "/d/private/f", OpenOptions::new().write(true));
    file.as_ref().unwrap().write(b"x").unwrap();
    file.unwrap().close().unwrap();
    assert_eq!(native.stat(&anna, "/d/private/f").unwrap().mode, 0o755);
    native.close().unwrap();
}

#[test]
fn locks_exclude_other_connections_and_are_waited_for() {
    let cell = Cell::up("native-locks");
    let (one, two) = (connect(&cell, "one"), connect(&cell, "two"));
    let root = User::root();
    one.mkdir(&root, "/d", 0o755).unwrap();
    write(&one, "/d/f", b"0");
    let both = OpenOptions::new().read(true).write(true);
    let mine = one.open(&root, "/d/f", both).unwrap();
    let theirs = two.open(&root, "/d/f", both).unwrap();
    for all in [
        Lock::whole(LockKind::Exclusive),
        Lock::range(LockKind::Exclusive, 0, u64::MAX),
    ] {
        mine.lock(all, Wait::No).unwrap();
        assert_eq!(code(theirs.lock(all, Wait::No)), ErrorCode::WouldBlock);
        let begun = Instant::now();
        let brief = Wait::For(Duration::from_millis(100));
        assert_eq!(code(theirs.lock(all, brief)), ErrorCode::WouldBlock);
        assert!(begun.elapsed() >= Duration::from_millis(100));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                theirs.lock(all, Wait::ForEver).unwrap();
                let mut byte = [0];
                theirs.pread(0, &mut byte).unwrap();
                byte[0]
            });
            std::thread::sleep(Duration::from_millis(50));
            mine.pwrite(0, b"7").unwrap();
            mine.unlock(all).unwrap();
            assert_eq!(waits.join().unwrap(), b'7', "what the holder wrote");
        });
        assert!(mine.test_lock(all).unwrap().is_some());
        theirs.unlock(all).unwrap();
        assert_eq!(mine.test_lock(all).unwrap(), None);
        mine.pwrite(0, b"0").unwrap();
    }
    // Two lock owners on one connection exclude one another; closing the handle releases the rest.
    let first = Lock::range(LockKind::Exclusive, 0, 9).owned_by(1);
    mine.lock(first, Wait::No).unwrap();
    let second = Lock::range(LockKind::Exclusive, 5, 9).owned_by(2);
    assert_eq!(code(mine.lock(second, Wait::No)), ErrorCode::WouldBlock);
    mine.close().unwrap();
    theirs.lock(second, Wait::No).unwrap();
    one.close().unwrap();
    two.close().unwrap();
}

#[test]
fn two_connections_see_one_another_and_leave_nothing() {
    let cell = Cell::up("native-ends");
    let (one, two) = (connect(&cell, "first"), connect(&cell, "second"));
    let root = User::root();
    one.mkdir(&root, "/d", 0o755).unwrap();
    for n in 0..20 {
        let path = format!("/d/{n}");
        assert_eq!(code(two.stat(&root, &path)), ErrorCode::NotFound);
        write(&one, &path, path.as_bytes());
        assert_eq!(read(&two, &path), path.as_bytes());
        two.unlink(&root, &path).unwrap();
        assert_eq!(code(one.stat(&root, &path)), ErrorCode::NotFound);
    }
    let sessions = || {
        let listed = zonal()
            .args(["session", "ls", "--json", "--cell"])
            .arg(cell.dir())
            .output();
        said(&listed.unwrap())
    };
    assert!(sessions().contains("first") && sessions().contains("second"));
    let file = one
        .open(
            &root,
            "/d/left",
            OpenOptions::new().write(true).create(0o600),
        )
        .unwrap();
    file.write(b"flushed at the end").unwrap();
    let begun = Instant::now();
    one.close().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "polls are ended");
    assert_eq!(file.write(b"late"), Err(Error::Closed));
    drop(file);
    assert_eq!(read(&two, "/d/left"), b"flushed at the end");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!sessions().contains("first"), "{}", sessions());
    two.close().unwrap();
}

/// Runs a check in a forked child before its exec.
#[expect(unsafe_code, reason = "only a fork has a child with our memory")]
fn fork(check: impl Fn() -> bool + Send + Sync + 'static) -> std::io::Result<()> {
    let mut child = Command::new("true");
    let checked = move || match check() {
        true => Ok(()),
        false => Err(std::io::Error::from_raw_os_error(131)),
    };
    // SAFETY: the check compares process ids and returns: it takes no lock and no memory.
    unsafe { child.pre_exec(checked) };
    let status = child.status()?;
    assert!(status.success());
    Ok(())
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    let cell = Cell::up("native-fork");
    let native = Arc::new(connect(&cell, "fork"));
    let root = User::root();
    native.mkdir(&root, "/d", 0o755).unwrap();
    let both = OpenOptions::new().read(true).write(true);
    let file = Arc::new(native.open(&root, "/d/f", both.create(0o600)).unwrap());
    file.write(b"before").unwrap();
    let (child, childs_file, childs_root) = (native.clone(), file.clone(), root.clone());
    let refused = |outcome: Option<Error>| outcome == Some(Error::Forked);
    fork(move || {
        let mut byte = [0];
        refused(child.stat(&childs_root, "/d").err())
            && refused(child.read_dir(&childs_root, "/d").err())
            && refused(child.open(&childs_root, "/d/f", both).err())
            && refused(child.sync_all().err())
            && refused(childs_file.write(b"x").err())
            && refused(childs_file.pread(0, &mut byte).err())
            && refused(childs_file.fsync().err())
    })
    .unwrap();
    // A check that fails would be reported.
    let told = fork(|| false).unwrap_err();
    assert_eq!(told.raw_os_error(), Some(131));
    file.write(b" and after").unwrap();
    file.fsync().unwrap();
    assert_eq!(read(&native, "/d/f"), b"before and after");
    assert!(Error::Forked.to_string().contains("connect again"));
}
