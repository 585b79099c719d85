//! What a check leaves of its scratch folder, and what it does with links that somebody put into its folders.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Open, TestCell};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::Path;
use zonal_fsck::Finding;
use zonal_offline::{OfflineError, RUNNING_FOLDER, Report, Stage, WORK_FOLDER, check};

/// Ends a check at its first step.
struct Ended;

impl Report for Ended {
    fn finding(&mut self, _pass: u32, _finding: &Finding) {}
    fn progress(&mut self, _stage: Stage) {}
    fn repaired(&mut self, _pass: u32, _changes: u64) {}
    fn goes_on(&mut self) -> bool {
        false
    }
}

fn interrupt(cell: &TestCell) {
    let ended = check(&cell.cell, &cell.options(false), &mut Ended);
    assert!(matches!(ended, Err(OfflineError::Interrupted)));
}

fn nothing(_open: &Open, _number: u32) {}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn a_folder_that_was_there_stays_and_one_that_a_check_made_goes() {
    let cell = TestCell::make("scratch-stays", 30);
    let scratch = cell.options(false).scratch;
    for repair in [false, true] {
        fs::create_dir(&scratch).unwrap();
        cell.fsck(repair);
        assert!(is_empty(&scratch), "repair: {repair}");
        interrupt(&cell);
        cell.fsck(repair);
        assert!(is_empty(&scratch), "interrupted, repair: {repair}");
        cell.look(0, &nothing).unwrap();
        assert!(is_empty(&scratch), "running");
        fs::remove_dir(&scratch).unwrap();
        cell.fsck(repair);
        assert!(!scratch.exists(), "repair: {repair}");
        interrupt(&cell);
        assert!(scratch.exists());
        cell.fsck(repair);
        assert!(!scratch.exists(), "interrupted, repair: {repair}");
        interrupt(&cell);
        // What the interrupted one kept stays for the next one.
        cell.look(0, &nothing).unwrap();
        assert!(scratch.join(WORK_FOLDER).exists());
        cell.fsck(repair);
        assert!(!scratch.exists(), "interrupted and looked at");
        cell.look(0, &nothing).unwrap();
        assert!(!scratch.exists(), "running");
    }
    // A folder above it is nobody's.
    let mut options = cell.options(false);
    options.scratch = scratch.join("below");
    check(&cell.cell, &options, &mut common::Heard::default()).unwrap();
    assert!(is_empty(&scratch));
}

/// Files of somebody, with links to them in a folder of a check.
fn plant(cell: &TestCell, folder: &Path, names: &[&str]) {
    let mine = cell.dir.join("mine");
    fs::create_dir_all(&mine).unwrap();
    for name in names {
        fs::write(mine.join(name), "mine").unwrap();
        symlink(mine.join(name), folder.join(name)).unwrap();
    }
    symlink(&mine, folder.join("folder")).unwrap();
}

fn is_untouched(cell: &TestCell, names: &[&str]) {
    let mine = cell.dir.join("mine");
    assert_eq!(fs::read_dir(&mine).unwrap().count(), names.len());
    for name in names {
        assert!(fs::read(mine.join(name)).unwrap() == b"mine", "{name}");
    }
}

#[test]
fn links_in_a_folder_of_a_check_are_not_followed_and_do_not_stay() {
    let cell = TestCell::make("scratch-links", 30);
    let scratch = cell.options(false).scratch;
    let names = ["lock", "stores", "stores.new", "part.shard-1.new", "other"];
    let folders = || {
        for name in [WORK_FOLDER, RUNNING_FOLDER] {
            let mut builder = fs::DirBuilder::new();
            let builder = builder.recursive(true).mode(0o700);
            builder.create(scratch.join(name)).unwrap();
            plant(&cell, &scratch.join(name), &names);
        }
    };
    folders();
    cell.fsck(false);
    is_untouched(&cell, &names);
    assert!(!scratch.join(WORK_FOLDER).exists());
    cell.look(0, &nothing).unwrap();
    is_untouched(&cell, &names);
    assert!(is_empty(&scratch));
    // What an interrupted check kept is used, and a link beside it goes.
    interrupt(&cell);
    symlink(
        cell.dir.join("mine"),
        scratch.join(WORK_FOLDER).join("later"),
    )
    .unwrap();
    cell.fsck(true);
    is_untouched(&cell, &names);
    assert!(is_empty(&scratch));
}

#[test]
fn a_link_in_place_of_a_folder_of_a_check_is_refused() {
    let cell = TestCell::make("scratch-link", 30);
    let scratch = cell.options(false).scratch;
    let mine = cell.dir.join("mine");
    for folder in [&scratch, &mine] {
        fs::create_dir(folder).unwrap();
    }
    for name in [WORK_FOLDER, RUNNING_FOLDER] {
        symlink(&mine, scratch.join(name)).unwrap();
    }
    let refused = cell.try_fsck(false).map(|_| ());
    assert!(matches!(refused, Err(OfflineError::Scratch { .. })));
    let refused = cell.look(0, &nothing).map(|_| ());
    assert!(matches!(refused, Err(OfflineError::Scratch { .. })));
    assert!(is_empty(&mine));
}
