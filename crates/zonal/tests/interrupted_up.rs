//! A folder with the list of an interrupted `zonal up`: the next one removes only names of its own
//! plan.
//!
//! Destructive cases run in a chroot made of plain copies, with nothing mounted below.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{code, copy_program, said, zonal};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use zonal_testkit::Scratch;

const SHAPE: [&str; 6] = [
    "--zones",
    "1",
    "--storage-nodes",
    "1",
    "--capacity",
    "1 GiB",
];

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn up(dir: &Path) -> Output {
    let mut command = zonal();
    command.arg("up").args(SHAPE).arg("--dir").arg(dir);
    command.output().unwrap()
}

/// A cell that is stopped at the end of the test; it should never have started.
struct Stopped(PathBuf);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = zonal().arg("down").arg("--dir").arg(&self.0).output();
    }
}

fn folder(scratch: &Scratch) -> Stopped {
    let dir = scratch.join("cell");
    fs::create_dir(&dir).unwrap();
    Stopped(dir)
}

#[test]
fn an_unfinished_list_removes_only_names_of_plans() {
    for name in [
        "mine",
        "meta65",
        "meta01",
        "storage1-",
        "..",
        ".",
        "cell.key/..",
    ] {
        let scratch = Scratch::new("forged-list");
        let cell = folder(&scratch);
        let mine = cell.0.join("mine");
        fs::create_dir(&mine).unwrap();
        fs::write(mine.join("file"), "kept").unwrap();
        fs::write(cell.0.join("unfinished"), format!("manager\n{name}\n")).unwrap();
        let output = up(&cell.0);
        assert!(mine.join("file").exists(), "{name}: {}", said(&output));
        assert_eq!(code(&output), 5, "{name}: {}", said(&output));
        assert!(cell.0.join("unfinished").exists() && !cell.0.join("manager").exists());
    }
}

/// Copies a program and its shared libraries to where they are found below another root.
fn copy_linked(program: &str, root: &Path) {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.chain([program]) {
        let to = root.join(file.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        copy_program(file, &to);
    }
}

#[test]
fn an_unfinished_list_does_not_remove_the_root() {
    if !is_root() {
        eprintln!("skipped: only root can have a root of its own");
        return;
    }
    let root = Scratch::new("forged-root");
    let program = zonal().get_program().to_str().unwrap().to_owned();
    copy_linked(&program, &root);
    for dir in ["cell", "home", "tmp"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::write(root.join("home/file"), "kept").unwrap();
    fs::write(root.join("cell/unfinished"), "/\n").unwrap();
    let output = Command::new("chroot")
        .arg(&*root)
        .arg(&program)
        .args(["up", "--dir", "/cell"])
        .args(SHAPE)
        .output()
        .unwrap();
    assert!(root.join("home/file").exists(), "{}", said(&output));
    assert_eq!(code(&output), 5, "{}", said(&output));
}

#[test]
fn mounts_in_an_unfinished_cell_stay() {
    if !is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    let scratch = Scratch::new("unfinished-mount");
    let cell = folder(&scratch);
    let (point, other) = (cell.0.join("manager/inner"), scratch.join("other"));
    fs::create_dir_all(&point).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), "kept").unwrap();
    fs::write(cell.0.join("unfinished"), "manager\nmeta1\nstorage1-1\n").unwrap();
    // A bind mount: its device number is that of the folder around it.
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", script, "-"])
        .args([&other, &point])
        .arg(zonal().get_program())
        .arg("up")
        .args(SHAPE)
        .arg("--dir")
        .arg(&cell.0)
        .output()
        .unwrap();
    assert!(other.join("file").exists(), "{}", said(&output));
    assert_eq!(code(&output), 5, "{}", said(&output));
}
