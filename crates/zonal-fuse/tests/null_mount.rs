//! The null file system on a real mount.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test program")]

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;
use support::{Mount, child, dies_at_once, until};
use zonal_fuse::null::{NullFs, NullOptions};

fn mounted(options: NullOptions) -> Option<(Arc<NullFs>, Mount)> {
    let null = Arc::new(NullFs::new(options));
    Mount::new(null.clone()).map(|mount| (null, mount))
}

fn strict() -> NullOptions {
    NullOptions {
        entry_valid: Duration::ZERO,
        attr_valid: Duration::ZERO,
        ..NullOptions::default()
    }
}

/// Runs in a child of a test; not a test by itself.
#[test]
fn task_of_a_child() {
    let (Ok(task), Ok(path)) = (
        std::env::var("ZONAL_FUSE_TASK"),
        std::env::var("ZONAL_FUSE_PATH"),
    ) else {
        return;
    };
    let file = File::options().read(true).write(true).open(path).unwrap();
    match task.as_str() {
        "flock" => rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap(),
        "fcntl" => rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap(),
        other => panic!("{other}"),
    }
}

fn names_and_attributes(dir: &Path) {
    let at = |name: &str| dir.join(name);
    fs::create_dir(at("d")).unwrap();
    assert_eq!(
        fs::create_dir(at("d")).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    let mut file = File::create(at("d/f")).unwrap();
    file.write_all(b"12345").unwrap();
    file.write_all_at(b"x", 9_999).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    file.set_len(3).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(at("d/f")).unwrap().len(), 3);
    assert_eq!(
        fs::metadata(at("none")).unwrap_err().kind(),
        ErrorKind::NotFound
    );

    fs::set_permissions(at("d/f"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(at("d/f")).unwrap().mode() & 0o7777, 0o640);
    std::os::unix::fs::chown(at("d/f"), Some(7), Some(8)).unwrap();
    let file = File::options().write(true).open(at("d/f")).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::new(1_000_000, 7);
    file.set_modified(time).unwrap();
    let meta = fs::metadata(at("d/f")).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.modified().unwrap()),
        (7, 8, time)
    );

    fs::hard_link(at("d/f"), at("g")).unwrap();
    assert_eq!(fs::metadata(at("g")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("d/f", at("s")).unwrap();
    assert_eq!(fs::read_link(at("s")).unwrap(), Path::new("d/f"));
    assert_eq!(fs::metadata(at("s")).unwrap().ino(), meta.ino());

    fs::rename(at("g"), at("d/h")).unwrap();
    fs::rename(at("d/h"), at("d/f")).unwrap();
    assert_eq!(
        fs::remove_dir(at("d")).unwrap_err().kind(),
        ErrorKind::DirectoryNotEmpty
    );
    // An open file outlives its name.
    fs::remove_file(at("d/h")).unwrap();
    fs::remove_file(at("d/f")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    fs::create_dir_all(at("d/e")).unwrap();
    assert_eq!(fs::metadata(at("d")).unwrap().nlink(), 3);
    fs::remove_dir(at("d/e")).unwrap();
    fs::remove_dir(at("d")).unwrap();
    fs::remove_file(at("s")).unwrap();
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn names_and_attributes_with_and_without_caches() {
    for options in [NullOptions::default(), strict()] {
        let Some((_, mount)) = mounted(options) else {
            return;
        };
        names_and_attributes(&mount.path);
        mount.unmount();
    }
}

#[test]
fn ten_thousand_entries_are_listed_once_each() {
    let Some((_, mount)) = mounted(strict()) else {
        return;
    };
    let names: BTreeSet<String> = (0..10_000)
        .map(|i| format!("a-rather-long-name-{i}"))
        .collect();
    for name in &names {
        File::create(mount.at(name)).unwrap();
    }
    let mut listed = BTreeSet::new();
    for entry in fs::read_dir(&mount.path).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file());
        assert_eq!(
            entry.metadata().unwrap().ino(),
            std::os::unix::fs::DirEntryExt::ino(&entry)
        );
        assert!(
            listed.insert(entry.file_name().into_string().unwrap()),
            "listed twice"
        );
    }
    assert_eq!(listed, names);
    mount.unmount();
}

#[test]
fn big_reads_and_writes() {
    for direct_io in [false, true] {
        let options = NullOptions {
            direct_io,
            ..NullOptions::default()
        };
        let Some((_, mount)) = mounted(options) else {
            return;
        };
        let file = File::create_new(mount.at("f")).unwrap();
        file.write_all_at(&vec![1; 5_000_001], 1).unwrap();
        drop(file);
        assert_eq!(fs::read(mount.at("f")).unwrap().len(), 5_000_002);
        mount.unmount();
    }
}

#[test]
fn a_killed_lock_waiter_dies_and_leaves_the_queue() {
    let Some((null, mount)) = mounted(strict()) else {
        return;
    };
    let path = mount.at("locked");
    let file = File::create(&path).unwrap();
    // Both kinds of lock at once: they must not see each other.
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    for task in ["flock", "fcntl"] {
        let waiter = child(task, &path);
        until("the waiter is parked", || null.lock_waiters() == 1);
        dies_at_once(waiter);
        until("the waiter is gone", || null.lock_waiters() == 0);
    }
    // A waiter that is not killed gets the lock when its holder closes.
    let mut waiters = [child("flock", &path), child("fcntl", &path)];
    until("both wait", || null.lock_waiters() == 2);
    drop(file);
    for waiter in &mut waiters {
        assert!(waiter.wait().unwrap().success());
    }
    mount.unmount();
}

#[test]
fn unmount_does_not_wait_for_an_open_file_for_ever() {
    let Some((_, mount)) = mounted(NullOptions::default()) else {
        return;
    };
    let path = mount.path.clone();
    let file = File::create(mount.at("f")).unwrap();
    mount.unmount();
    assert!(file.set_len(1).is_err());
    drop(file);
    assert!(!path.exists(), "the bare directory could not be removed");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(path.to_str().unwrap()));
}
