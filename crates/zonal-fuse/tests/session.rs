//! The session around a file system: panics, late and lost answers, interrupts, notifications.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test program")]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{Mount, child, dies_at_once, until};
use zonal_fuse::{Abort, Context, Errno, FileSystem, FuseAttr, FuseEntry, ReplyAttr, ReplyEntry};

const LONG: Duration = Duration::from_secs(600);

/// A file system whose behaviour depends on the name looked up.
#[derive(Default)]
struct Moody {
    lookups: AtomicU32,
    getattrs: AtomicU32,
    working: AtomicU32,
    interrupts: AtomicU32,
    parked: Mutex<Option<ReplyEntry>>,
    destroyed: AtomicU32,
}

fn attr(ino: u64) -> FuseAttr {
    let kind = if ino == 1 {
        libc::S_IFDIR
    } else {
        libc::S_IFREG
    };
    FuseAttr {
        ino,
        mode: kind | 0o777,
        nlink: 1,
        ..FuseAttr::default()
    }
}

fn entry(ino: u64) -> FuseEntry {
    FuseEntry {
        ino,
        attr: attr(ino),
        entry_valid: LONG,
        attr_valid: LONG,
        ..FuseEntry::default()
    }
}

impl FileSystem for Moody {
    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }

    fn interrupt(&self, unique: u64) -> bool {
        let mut parked = self.parked.lock().unwrap();
        if parked.as_ref().is_none_or(|reply| reply.unique() != unique) {
            return false;
        }
        // Pretend twice that the request is unknown: the kernel must send the interrupt again.
        if self.interrupts.fetch_add(1, Ordering::SeqCst) < 2 {
            return false;
        }
        parked.take().unwrap().err(Errno::INTR);
        true
    }

    fn lookup(&self, ctx: &Context<'_>, _: u64, name: &[u8], reply: ReplyEntry) {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        match name {
            b"panic" => panic!("on purpose"),
            b"lost" => drop(reply),
            b"late" => drop(std::thread::spawn(move || reply.entry(&entry(3)))),
            b"parked" => *self.parked.lock().unwrap() = Some(reply),
            b"works" => {
                self.working.fetch_add(1, Ordering::SeqCst);
                while !ctx.interrupted() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                reply.err(Errno::INTR);
            }
            b"file" => reply.entry(&entry(2)),
            b"none" => reply.negative(LONG),
            _ => reply.err(Errno::NOENT),
        }
    }

    fn getattr(&self, _: &Context<'_>, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        self.getattrs.fetch_add(1, Ordering::SeqCst);
        reply.attr(&attr(ino), LONG);
    }
}

fn mounted() -> Option<(Arc<Moody>, Mount)> {
    let moody = Arc::new(Moody::default());
    Mount::new(moody.clone()).map(|mount| (moody, mount))
}

/// Runs in a child of a test; not a test by itself.
#[test]
fn task_of_a_child() {
    let Ok(path) = std::env::var("ZONAL_FUSE_PATH") else {
        return;
    };
    if std::env::var("ZONAL_FUSE_TASK").as_deref() == Ok("mount") {
        waits_for_a_lock(Path::new(&path));
    }
    let _ = fs::metadata(path);
}

/// Mounts in `dir`, looks up a name whose answer never comes, and makes the kernel drop a name of
/// that directory. The file `dir/waits` then exists.
fn waits_for_a_lock(dir: &Path) -> ! {
    let moody = Arc::new(Moody::default());
    let mount = Mount::at_point(moody.clone(), &dir.join("point")).unwrap();
    let notifier = mount.session().notifier();
    until("it is parked", || moody.parked.lock().unwrap().is_some());
    std::thread::spawn(move || notifier.alone().inval_entry(1, b"file", false));
    let drops = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut at = tasks.filter_map(|task| fs::read_to_string(task.path().join("wchan")).ok());
        at.any(|function| function.contains("inval_entry") || function.contains("rwsem"))
    };
    until("it waits for the directory", drops);
    fs::write(dir.join("waits"), "").unwrap();
    loop {
        std::thread::park();
    }
}

/// Waits for a child to end, at most `limit`.
fn ends_within(child: &mut std::process::Child, limit: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// A mount of another process that waits for the lock of a directory, held by a look-up of its own;
/// and that look-up.
fn other_process(dir: &Path) -> Option<(std::process::Child, std::process::Child, Abort)> {
    if !rustix::process::geteuid().is_root() {
        zonal_testkit::skip_mount(&"only root sees where another process waits");
        return None;
    }
    let point = dir.join("point");
    fs::create_dir(&point).unwrap();
    let mount = child("mount", dir);
    let root = fs::metadata(dir).unwrap().dev();
    until("it is mounted", || {
        fs::metadata(&point).is_ok_and(|found| found.dev() != root)
    });
    let abort = Abort::of(&point).unwrap();
    let lookup = child("stat", &point.join("parked"));
    until("it waits", || dir.join("waits").exists());
    Some((mount, lookup, abort))
}

#[test]
fn a_killed_mount_ends_while_it_waits_for_a_directory_lock() {
    let dir = zonal_testkit::Scratch::new("killed-while-it-waits");
    let Some((mut mount, mut lookup, abort)) = other_process(&dir) else {
        return;
    };
    mount.kill().unwrap();
    let ended = [&mut mount, &mut lookup].map(|child| ends_within(child, Duration::from_secs(5)));
    // Where that failed, only this abort can end them.
    abort.end().unwrap();
    let _ = zonal_fuse::unmount(&dir.join("point"));
    mount.wait().unwrap();
    lookup.wait().unwrap();
    assert_eq!(ended, [true, true]);
}

#[test]
fn a_connection_is_aborted_after_its_mount_point_is_gone() {
    let Some((moody, mount)) = mounted() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return zonal_testkit::skip_mount(&"fusectl may not be mounted");
    }
    let abort = Abort::of(&mount.path).unwrap();
    let abort = Abort::from_file(abort.into_file()).unwrap();
    let mut waiter = child("stat", &mount.at("parked"));
    until("it is parked", || moody.parked.lock().unwrap().is_some());
    zonal_fuse::unmount(&mount.path).unwrap();
    assert!(Abort::of(&mount.path).is_err(), "nothing is mounted there");
    assert!(!ends_within(&mut waiter, Duration::from_millis(50)));
    abort.end().unwrap();
    assert!(ends_within(&mut waiter, Duration::from_secs(5)));
    until("its workers end", || mount.session().is_ended());
    // Another connection may have its number by now.
    let (_moody, later) = mounted().unwrap();
    abort.end().unwrap();
    assert!(fs::metadata(later.at("file")).is_ok());
    later.unmount();
    let null = fs::OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .unwrap();
    assert!(Abort::from_file(null).is_none());
}

#[test]
fn a_panic_and_a_lost_reply_answer_eio_and_the_mount_goes_on() {
    let Some((moody, mount)) = mounted() else {
        return;
    };
    let eio = |name: &str| {
        let error = fs::metadata(mount.at(name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
    };
    for _ in 0..20 {
        eio("panic");
        eio("lost");
    }
    assert_eq!(fs::metadata(mount.at("late")).unwrap().len(), 0);
    mount.unmount();
    assert_eq!(moody.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_worker_in_a_request_learns_of_the_interrupt() {
    let Some((moody, mount)) = mounted() else {
        return;
    };
    let waiter = child("stat", &mount.at("works"));
    until("a worker has it", || {
        moody.working.load(Ordering::SeqCst) == 1
    });
    dies_at_once(waiter);
    mount.unmount();
}

#[test]
fn an_unknown_interrupt_is_sent_again() {
    let Some((moody, mount)) = mounted() else {
        return;
    };
    let waiter = child("stat", &mount.at("parked"));
    until("it is parked", || moody.parked.lock().unwrap().is_some());
    dies_at_once(waiter);
    assert!(moody.interrupts.load(Ordering::SeqCst) >= 3);
    mount.unmount();
}

#[test]
fn notifications_make_the_kernel_ask_again() {
    let Some((moody, mount)) = mounted() else {
        return;
    };
    let notifier = mount.session().notifier();
    let lookups = |name: &str| {
        let before = moody.lookups.load(Ordering::SeqCst);
        let _ = fs::metadata(mount.at(name));
        moody.lookups.load(Ordering::SeqCst) - before
    };
    let getattrs = |name: &str| {
        let before = moody.getattrs.load(Ordering::SeqCst);
        let _ = fs::metadata(mount.at(name));
        moody.getattrs.load(Ordering::SeqCst) - before
    };
    for name in ["file", "none"] {
        assert_eq!((lookups(name), lookups(name)), (1, 0), "{name}");
        assert!(notifier.inval_entry(1, name.as_bytes(), false).unwrap());
        assert_eq!((lookups(name), lookups(name)), (1, 0), "{name}");
        assert!(notifier.inval_entry(1, name.as_bytes(), true).unwrap());
        assert_eq!((lookups(name), lookups(name)), (1, 0), "{name}");
    }
    assert!(notifier.inval_entry(1, b"file", true).unwrap());
    assert_eq!(lookups("file"), 1);
    assert_eq!(getattrs("file"), 0);
    assert!(notifier.inval_inode(2, -1, 0).unwrap());
    assert_eq!(getattrs("file"), 1);
    assert!(!notifier.inval_inode(99, -1, 0).unwrap());
    assert!(notifier.delete(1, 2, b"file").unwrap());
    assert_eq!(lookups("file"), 1);
    assert!(notifier.store(2, 0, b"data").unwrap());
    if notifier.has_prune() {
        notifier.prune(&[2, 3, 4]).unwrap();
        assert_eq!(lookups("file"), 1);
    }
    mount.unmount();
}

#[test]
fn an_invalid_mount_point_is_refused_by_name() {
    let moody = Arc::new(Moody::default());
    let path = std::env::temp_dir().join("zonal-fuse-no-such-directory");
    let (options, config) = Default::default();
    let error = zonal_fuse::FuseSession::mount(moody, &path, &options, &config).unwrap_err();
    assert!(!error.to_string().is_empty());
}
