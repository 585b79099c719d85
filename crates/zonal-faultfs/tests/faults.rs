//! Each fault, through a real mount.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test program")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use zonal_faultfs::crash_image::Choice;
use zonal_faultfs::{FaultDisk, control, mount};
use zonal_fuse::{FuseSession, MountError};
use zonal_testkit::Scratch;

/// A folder on a disk with faults.
struct Mounted {
    disk: Arc<FaultDisk>,
    session: Option<FuseSession>,
    dir: Scratch,
}

impl Mounted {
    /// `None`, with a visible message, when this machine cannot mount and need not.
    fn new() -> Option<Self> {
        let dir = Scratch::new("faultfs");
        fs::create_dir(dir.join("mnt")).unwrap();
        let disk = Arc::new(FaultDisk::new(&dir.join("below")).unwrap());
        match mount(&disk, &dir.join("mnt")) {
            Ok(session) => Some(Self {
                dir,
                disk,
                session: Some(session),
            }),
            Err(
                error @ (MountError::NoDevice
                | MountError::DeviceDenied
                | MountError::NoHelper
                | MountError::Helper(_)),
            ) => {
                zonal_testkit::skip_mount(&error);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.join("mnt").join(name)
    }

    fn order(&self, line: &str) -> String {
        control::order(&self.disk, line).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.unmount(Duration::from_secs(2));
        }
    }
}

fn file(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

fn number_of<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn without_faults_it_is_a_folder() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    fs::create_dir(mounted.at("d")).unwrap();
    fs::write(mounted.at("d/a"), b"hello").unwrap();
    fs::write(mounted.at("b"), b"old").unwrap();
    fs::rename(mounted.at("d/a"), mounted.at("b")).unwrap();
    assert_eq!(fs::read(mounted.at("b")).unwrap(), b"hello");
    let open = file(&mounted.at("b"));
    fs::remove_file(mounted.at("b")).unwrap();
    open.write_all_at(b"x", 9).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 10);
    fs::remove_dir(mounted.at("d")).unwrap();
    assert_eq!(fs::read_dir(mounted.at("")).unwrap().count(), 0);
    let (first, second) = (file(&mounted.at("l")), file(&mounted.at("l")));
    assert!(first.try_lock().is_ok() && second.try_lock().is_err());
    drop(first);
    // The kernel reports a close a moment later.
    let freed = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        second.try_lock().is_ok()
    });
    assert!(freed);
}

#[test]
fn chosen_calls_fail_and_bits_flip() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let (one, two) = (file(&mounted.at("one")), file(&mounted.at("two")));
    one.write_all_at(&[7; 10_000], 0).unwrap();
    mounted.order("fail write one 4096 8192");
    mounted.order("fail sync two 0 1 1");
    assert_eq!(number_of(one.write_all_at(b"x", 5000)), Some(libc::EIO));
    one.write_all_at(b"x", 9000).unwrap();
    assert_eq!(number_of(two.sync_data()), Some(libc::EIO));
    two.sync_data().unwrap();
    mounted.order("flip one 100 16");
    mounted.order("fail read one 200 300");
    let mut bytes = [0; 4];
    one.read_exact_at(&mut bytes, 99).unwrap();
    assert_eq!(bytes, [7, 7 ^ 16, 7, 7]);
    assert_eq!(
        number_of(one.read_exact_at(&mut bytes, 298)),
        Some(libc::EIO)
    );
    mounted.order("clear");
    one.read_exact_at(&mut bytes, 99).unwrap();
    assert_eq!(bytes, [7; 4]);
    // Every 1000 bytes from there on, wherever a read begins.
    mounted.order("flip one 100 16 1000");
    for from in [0, 99, 100, 101, 1100, 2500] {
        let mut bytes = [0; 3000];
        one.read_exact_at(&mut bytes, from).unwrap();
        let flipped = (0..3000).filter(|at| bytes[*at as usize] == 7 ^ 16);
        let wanted = (0..3000).filter(|at| (from + at) % 1000 == 100);
        assert!(flipped.eq(wanted), "from {from}");
    }
    mounted.order("clear");
    assert!(control::order(&mounted.disk, "fail nothing").is_err());
}

#[test]
fn slow_reads_overlap_and_are_counted() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let one = file(&mounted.at("one"));
    one.write_all_at(&[7; 65_536], 0).unwrap();
    let read = |at: u64, ms: u64| {
        let begun = Instant::now();
        one.read_exact_at(&mut [0; 4096], at).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(ms));
    };
    mounted.order("slow-reads 100");
    read(0, 100);
    read(4096, 100);
    assert_eq!(mounted.disk.counts().reads_at_once, 1);
    // Where the machine is busy, the four overlap only if each takes longer than the last of them
    // needs to begin.
    let met = (0..6).map(|turn| 100 << turn).any(|ms| {
        mounted.order(&format!("slow-reads {ms}"));
        std::thread::scope(|scope| {
            for index in 0..4 {
                scope.spawn(move || read(index * 4096, ms));
            }
        });
        mounted.disk.counts().reads_at_once == 4
    });
    assert!(met, "{} reads at once", mounted.disk.counts().reads_at_once);
    mounted.order("slow-reads 0");
    assert_eq!(mounted.disk.counts().reads_at_once, 0);
}

#[test]
fn the_disk_is_full_at_its_budget_and_existing_bytes_can_be_overwritten() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let one = file(&mounted.at("one"));
    one.write_all_at(&[7; 65_536], 0).unwrap();
    mounted.order("budget 131072");
    assert_eq!(
        number_of(one.write_all_at(&[7; 131_072], 65_536)),
        Some(libc::ENOSPC)
    );
    one.write_all_at(&[8; 4096], 8192).unwrap();
    let space = rustix::fs::statvfs(mounted.at("")).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 131_072);
    assert_eq!(space.f_bavail * space.f_frsize, 65_536);
    mounted.order("budget off");
    one.write_all_at(&[7; 131_072], 65_536).unwrap();
}

#[test]
fn a_power_cut_keeps_flushed_bytes_and_any_part_of_the_rest() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let one = file(&mounted.at("one"));
    one.write_all_at(&[1; 8192], 0).unwrap();
    one.sync_all().unwrap();
    File::open(mounted.at("")).unwrap().sync_all().unwrap();
    one.write_all_at(&[2; 4096], 0).unwrap();
    one.write_all_at(&[3; 4096], 4096).unwrap();
    fs::write(mounted.at("two"), b"new").unwrap();
    fs::rename(mounted.at("two"), mounted.at("three")).unwrap();
    assert_eq!(mounted.disk.events().1, 6);
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let to = mounted.dir.join(format!("state-{seed}"));
        let choice = Choice::of_seed(seed, 4096, usize::MAX);
        mounted.disk.snapshot(&to, choice).unwrap();
        let bytes = fs::read(to.join("one")).unwrap();
        assert_eq!(bytes.len(), 8192);
        assert!(
            bytes[..4096].iter().all(|byte| *byte == bytes[0]),
            "a torn unit"
        );
        let names = (to.join("two").exists(), to.join("three").exists());
        assert_ne!(names, (true, true));
        seen.insert((bytes[0], bytes[8191], names));
        fs::remove_dir_all(to).unwrap();
    }
    let old_and_new: BTreeSet<_> = seen.iter().map(|state| (state.0, state.1)).collect();
    assert_eq!(
        old_and_new,
        BTreeSet::from([(1, 1), (1, 3), (2, 1), (2, 3)])
    );
    let names: BTreeSet<_> = seen.iter().map(|state| state.2).collect();
    assert_eq!(names.len(), 3, "no file, its first name, its second");
    // The disk itself goes on as if nothing had happened; then its power is cut.
    assert_eq!(fs::read(mounted.at("three")).unwrap(), b"new");
    drop(one);
    mounted.order("cut 3 4096");
    assert_eq!(fs::read(mounted.at("one")).unwrap().len(), 8192);
    assert_eq!(mounted.disk.events(), (0, 0));
}

#[test]
fn a_slow_disk_delays_flushes() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let flush = || {
        let start = Instant::now();
        write_and_flush(&mounted);
        start.elapsed() >= Duration::from_millis(300)
    };
    mounted.order("slow 300");
    assert!(flush());
    mounted.order("clear");
    assert!((0..10).any(|_| !flush()));
}

#[test]
fn a_flush_that_lies_keeps_nothing() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    write_and_flush(&mounted);
    mounted.order("lie on");
    let one = file(&mounted.at("one"));
    one.write_all_at(&[2; 8192], 0).unwrap();
    one.sync_all().unwrap();
    let lost = (0..20).any(|seed| {
        let to = mounted.dir.join(format!("lie-{seed}"));
        let choice = Choice::of_seed(seed, 512, usize::MAX);
        mounted.disk.snapshot(&to, choice).unwrap();
        fs::read(to.join("one")).unwrap() != [2; 8192]
    });
    assert!(lost);
}

fn write_and_flush(mounted: &Mounted) {
    let one = file(&mounted.at("one"));
    one.write_all_at(&[1; 8192], 0).unwrap();
    one.sync_all().unwrap();
    File::open(mounted.at("")).unwrap().sync_all().unwrap();
}

#[test]
fn with_everything_recorded_any_earlier_moment_can_be_made() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    mounted.order("record");
    let one = file(&mounted.at("one"));
    for step in 0..10 {
        one.write_all_at(&[step; 512], 0).unwrap();
        one.sync_all().unwrap();
    }
    fs::remove_file(mounted.at("one")).unwrap();
    File::open(mounted.at("")).unwrap().sync_all().unwrap();
    let points = mounted.disk.sync_points();
    assert_eq!(points.len(), 11);
    for (step, point) in points.iter().take(10).enumerate() {
        let to = mounted.dir.join(format!("moment-{step}"));
        // Directly behind the flush. The name may not have arrived yet, so all of the rest must
        // arrive.
        let mut choice = Choice::of_seed(0, 512, point + 1);
        choice.odds = 4;
        mounted.disk.snapshot(&to, choice).unwrap();
        assert_eq!(
            fs::read(to.join("one")).unwrap(),
            [u8::try_from(step).unwrap(); 512]
        );
    }
    let to = mounted.dir.join("end");
    let choice = Choice::of_seed(0, 512, usize::MAX);
    mounted.disk.snapshot(&to, choice).unwrap();
    assert!(!to.join("one").exists());
}
