//! `zonal layout set` sets the layout of directories, and with `-r` of those below, in a mount.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod mounted;

use cell::{Cell, code, said, zonal};
use mounted::{Mounted, can_mount};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

const SHAPE: (u16, u16) = (2, 2);
const NOTE: &str = "-r sets theirs, too";

/// Runs `zonal layout set`.
fn run(words: &[&str], path: &Path) -> Output {
    let mut command = zonal();
    command.args(["layout", "set"]).args(words).arg(path);
    command.output().unwrap()
}

/// Runs the command, which ends so.
fn set(words: &[&str], path: &Path, with: i32) -> Output {
    let output = run(words, path);
    assert_eq!(code(&output), with, "{words:?}: {}", said(&output));
    output
}

/// A word of the layouts of these paths.
fn layouts(word: &str, paths: &[PathBuf]) -> Vec<String> {
    let mut command = zonal();
    command.args(["layout", "show", "--json"]).args(paths);
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let shown: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown.len(), paths.len());
    let text = |layout: &Value| match &layout[word] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    shown.iter().map(text).collect()
}

fn make_homed(zone: &str, path: &Path) {
    let mut command = zonal();
    let made = command.args(["mkdir", "--zone", zone]).arg(path).output();
    let made = made.unwrap();
    assert_eq!(code(&made), 0, "{}", said(&made));
}

/// `top`, `top/a`, `top/a/b` and `top/a/b/c`, homed in zone 1.
fn make_tree(mount: &Mounted) -> Vec<PathBuf> {
    let top = mount.path.join("top");
    make_homed("1", &top);
    let dirs = ["", "a", "a/b", "a/b/c"].map(|name| top.join(name));
    fs::create_dir_all(&dirs[3]).unwrap();
    dirs.to_vec()
}

#[test]
fn directories_below_get_the_layout_where_it_is_asked_for() {
    if !can_mount() {
        return;
    }
    let cell = Cell::with_shape("set-layouts", SHAPE, &["--no-key"]);
    let mount = Mounted::of(&cell);
    let dirs = make_tree(&mount);
    let (top, last) = (&dirs[0], &dirs[3]);
    let outside = mount.path.join("outside");
    make_homed("1", &outside);
    symlink(&outside, last.join("link")).unwrap();
    fs::write(last.join("before"), b"made before").unwrap();

    // Without -r: only the named one, and a note.
    let done = set(&["--copies", "2"], top, 0);
    assert!(said(&done).contains(NOTE), "{}", said(&done));
    let redundancy = |dirs: &[PathBuf]| layouts("redundancy", dirs);
    assert_eq!(redundancy(&dirs), ["copies:2", "none", "none", "none"]);
    let alone = set(&["--stripe-unit", "128 KiB"], last, 0);
    assert_eq!(said(&alone), "");

    // With it: all, and nothing behind a link. Other words of each layout stay.
    let done = set(&["-r", "--copies", "2"], top, 0);
    assert_eq!(said(&done), "4 directories have the layout\n");
    assert_eq!(redundancy(&dirs), ["copies:2"; 4]);
    assert_eq!(redundancy(std::slice::from_ref(&outside)), ["none"]);
    let units = layouts("unit", &dirs);
    assert_eq!(units[3], "131072");
    assert_ne!(units[2], units[3]);
    let files = ["before", "after"].map(|name| last.join(name));
    fs::write(&files[1], b"made after").unwrap();
    assert_eq!(redundancy(&files), ["none", "copies:2"]);

    // Those that took a layout when they were made follow their parents, too.
    let newest = last.join("e");
    fs::create_dir(&newest).unwrap();
    let below: Vec<PathBuf> = dirs[1..].iter().cloned().chain([newest]).collect();
    set(&["--copies", "1"], top, 0);
    assert_eq!(redundancy(&below), ["copies:2"; 4]);
    for (copies, expected) in [("1", "none"), ("2", "copies:2")] {
        set(&["--copies", copies], top, 0);
        let done = set(&["--recursive", "--inherit"], &dirs[1], 0);
        assert_eq!(said(&done), "4 directories have the layout\n");
        assert_eq!(redundancy(&below), [expected; 4]);
    }

    let refused = said(&set(&["--copies", "1"], &files[0], 2));
    assert!(refused.contains("before is not a directory"), "{refused}");
    assert!(refused.contains("zonal layout apply"), "{refused}");
    assert!(!refused.contains("os error"), "{refused}");
}

#[test]
fn directories_that_fail_are_named_and_the_others_are_set() {
    if !can_mount() {
        return;
    }
    let cell = Cell::with_shape("set-layouts-partly", SHAPE, &["--no-key"]);
    let mount = Mounted::of(&cell);
    let dirs = make_tree(&mount);
    let far = mount.path.join("far");
    make_homed("2", &far);
    let far = [far.clone(), far.join("sub")];
    fs::create_dir(&far[1]).unwrap();

    // A zone cannot have the copy that another zone is to have.
    let done = set(&["-r", "--also-zone", "2"], &mount.path, 1);
    let text = said(&done);
    assert!(text.contains("5 directories have the layout"), "{text}");
    assert!(text.contains("2 directories failed"), "{text}");
    for failed in &far {
        let named = format!("{}: zone 2 is the directory's own", failed.display());
        assert!(text.contains(&named), "{text}");
    }
    assert_eq!(layouts("also_zone", &dirs), ["2"; 4]);
    assert_eq!(layouts("also_zone", &far), ["none"; 2]);

    // Directories that go meanwhile are no failures.
    let ended = AtomicBool::new(false);
    let passing = |number: usize| dirs[2].join(format!("passing-{}", number % 4));
    let set_meanwhile = std::thread::scope(|scope| {
        scope.spawn(|| {
            let numbers = (0..20_000).take_while(|_| !ended.load(Ordering::Relaxed));
            for number in numbers {
                fs::create_dir_all(passing(number).join("in")).unwrap();
                fs::remove_dir_all(passing(number.wrapping_sub(3))).ok();
            }
        });
        let copies = ["2", "1"].iter().cycle().take(40);
        let set = copies.map(|copies| run(&["-r", "--copies", copies], &dirs[0]));
        let set: Vec<Output> = set.collect();
        ended.store(true, Ordering::Relaxed);
        set
    });
    for output in set_meanwhile {
        assert_eq!(code(&output), 0, "{}", said(&output));
    }
    assert_eq!(layouts("redundancy", &dirs), ["none"; 4]);
}
