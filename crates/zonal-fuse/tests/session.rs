//! What the session does around a file system: panics, late and lost answers, interrupts,
//! notifications.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test program")]

mod support;

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Mount, child, dies_at_once, until};
use zonal_fuse::{Attr, Context, Entry, Errno, FileSystem, ReplyAttr, ReplyEntry};

const LONG: Duration = Duration::from_secs(600);

/// The name that is looked up says what happens.
#[derive(Default)]
struct Moody {
    lookups: AtomicU32,
    getattrs: AtomicU32,
    working: AtomicU32,
    interrupts: AtomicU32,
    parked: Mutex<Option<ReplyEntry>>,
    destroyed: AtomicU32,
}

fn attr(ino: u64) -> Attr {
    let kind = if ino == 1 {
        libc::S_IFDIR
    } else {
        libc::S_IFREG
    };
    Attr {
        ino,
        mode: kind | 0o777,
        nlink: 1,
        ..Attr::default()
    }
}

fn entry(ino: u64) -> Entry {
    Entry {
        ino,
        attr: attr(ino),
        entry_valid: LONG,
        attr_valid: LONG,
        ..Entry::default()
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
        // Pretend twice not to know it: the kernel must ask again.
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

/// What a child of a test does; not a test by itself.
#[test]
fn task_of_a_child() {
    if let Ok(path) = std::env::var("ZONAL_FUSE_PATH") {
        let _ = fs::metadata(path);
    }
}

#[test]
fn a_panic_and_a_lost_reply_answer_eio_and_the_mount_lives() {
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
fn an_interrupt_nobody_knows_is_sent_again() {
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
fn a_mount_point_that_is_none_is_refused_with_its_name() {
    let moody = Arc::new(Moody::default());
    let path = std::env::temp_dir().join("zonal-fuse-no-such-directory");
    let (options, config) = Default::default();
    let error = zonal_fuse::Session::mount(moody, &path, &options, &config).unwrap_err();
    assert!(!error.to_string().is_empty());
}
