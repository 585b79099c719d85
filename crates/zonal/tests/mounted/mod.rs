//! A mount of a cell for tests.
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::cell::{Cell, code, said, zonal};
use std::fs;
use std::path::{Path, PathBuf};

/// Said visibly where this machine cannot mount.
pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("SKIPPED: no mount without root and /dev/fuse");
    }
    can
}

/// A mount that ends with the test, before its cell.
pub struct Mounted {
    pub path: PathBuf,
}

impl Mounted {
    pub fn of(cell: &Cell) -> Self {
        let path = cell.dir().join("mount");
        fs::create_dir_all(&path).unwrap();
        let mounted = cell.command(&["mount"]).arg(&path).output().unwrap();
        assert_eq!(code(&mounted), 0, "{}", said(&mounted));
        Self { path }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let gone = zonal().arg("umount").arg(&self.path).output().unwrap();
        if !std::thread::panicking() {
            assert_eq!(code(&gone), 0, "{}", said(&gone));
        }
    }
}
