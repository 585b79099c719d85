//! A temporary mount for tests, and children that wait in the kernel.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use zonal_fuse::{FileSystem, FuseSession, MountError, MountOptions, SessionConfig};

/// A temporary mount in a directory of its own, removed at the end, also when the test fails.
pub struct Mount {
    pub path: PathBuf,
    session: Option<FuseSession>,
}

impl Mount {
    /// Mounts; `None`, with a message, where this machine cannot mount and need not.
    pub fn new<F: FileSystem>(fs: Arc<F>) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("zonal-fuse-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self::at_point(fs, &path)
    }

    /// Mounts at a place that the caller chose.
    pub fn at_point<F: FileSystem>(fs: Arc<F>, path: &Path) -> Option<Self> {
        let path = path.to_owned();
        match FuseSession::mount(
            fs,
            &path,
            &MountOptions::default(),
            &SessionConfig::default(),
        ) {
            Ok(session) => Some(Self {
                path,
                session: Some(session),
            }),
            Err(
                error @ (MountError::NoDevice
                | MountError::DeviceDenied
                | MountError::NoHelper
                | MountError::Helper(_)),
            ) => {
                zonal_testkit::skip_mount(&error);
                fs::remove_dir(&path).unwrap();
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn session(&self) -> &FuseSession {
        self.session.as_ref().unwrap()
    }

    /// Unmounts; every worker has ended.
    pub fn unmount(mut self) {
        self.session
            .take()
            .unwrap()
            .unmount(Duration::from_secs(2))
            .unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.take().is_some() {
            let _ = zonal_fuse::abort(&self.path);
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// Waits for a state, at most 10 s.
pub fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs the test `task_of_a_child` of this very program with a task.
pub fn child(task: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "task_of_a_child", "--nocapture"])
        .env("ZONAL_FUSE_TASK", task)
        .env("ZONAL_FUSE_PATH", path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a child with SIGKILL and checks that it dies soon: it is not stuck in the kernel.
pub fn dies_at_once(mut child: Child) {
    let start = Instant::now();
    child.kill().unwrap();
    until("a killed child is stuck in the kernel", || {
        child.try_wait().unwrap().is_some()
    });
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "took {:?}",
        start.elapsed()
    );
}
