//! Tests of a check's scratch folder: which files stay in it, and that links of others in it do no
//! harm.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Ended, Open, TestCell, whole};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use zonal_fsck::Finding;
use zonal_offline::{
    CheckOptions, CheckProgress, CheckReporter, OfflineError, RUNNING_FOLDER, WORK_FOLDER, check,
};

/// Ends a check at its first step.
fn interrupt(cell: &TestCell) {
    assert!(common::interrupt(cell, &cell.options(false), 1));
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
        // The state of the interrupted check stays for the next one.
        cell.look(0, &nothing).unwrap();
        assert!(scratch.join(WORK_FOLDER).exists());
        cell.fsck(repair);
        assert!(!scratch.exists(), "interrupted and looked at");
        cell.look(0, &nothing).unwrap();
        assert!(!scratch.exists(), "running");
    }
    // A check does not remove the parent of its scratch folder.
    let mut options = cell.options(false);
    options.scratch = scratch.join("below");
    check(&cell.cell, &options, &mut common::Heard::default()).unwrap();
    assert!(is_empty(&scratch));
}

/// Makes files of somebody else, with links to them in a folder of a check.
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
    // The state of an interrupted check is used; a link beside it is removed.
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

#[test]
fn a_folder_that_others_may_write_is_refused_and_their_files_stay() {
    let cell = TestCell::make("resume-folder", 30);
    let options = cell.options(false);
    let dir = options.scratch.join(WORK_FOLDER);
    assert!(common::interrupt(&cell, &options, 4));
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o770)).unwrap();
    let mut told = Ended::default();
    let refused = check(&cell.cell, &options, &mut told);
    assert!(matches!(refused, Err(OfflineError::Scratch { .. })));
    fs::remove_dir_all(&dir).unwrap();
    symlink(&options.scratch, &dir).unwrap();
    let refused = check(&cell.cell, &options, &mut told);
    assert!(matches!(refused, Err(OfflineError::Scratch { .. })));
    fs::remove_file(&dir).unwrap();
    // In a scratch folder with files of somebody else, these files stay.
    fs::write(options.scratch.join("thesis.txt"), "mine").unwrap();
    fs::create_dir(options.scratch.join("running")).unwrap();
    fs::write(options.scratch.join("running/shoes.txt"), "mine").unwrap();
    let clean = check(&cell.cell, &options, &mut told).unwrap();
    assert_eq!(clean.found, 0);
    let repair = CheckOptions {
        repair: true,
        ..options.clone()
    };
    check(&cell.cell, &repair, &mut told).unwrap();
    let names: Vec<_> = files_below(&options.scratch);
    assert_eq!(names, ["running/shoes.txt", "thesis.txt"]);
}

fn files_below(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap();
                names.push(name.display().to_string());
            }
        }
    }
    names.sort();
    names
}

#[test]
fn two_checks_of_other_cells_do_not_share_a_folder() {
    let (one, other) = (
        TestCell::make("resume-one", 30),
        TestCell::make("resume-other", 30),
    );
    let shared = CheckOptions {
        scratch: one.dir.join("scratch"),
        ..one.options(false)
    };
    struct Within<'a>(&'a TestCell, CheckOptions, bool);
    impl CheckReporter for Within<'_> {
        fn finding(&mut self, _pass: u32, _finding: &Finding) {}
        fn progress(&mut self, _stage: CheckProgress) {}
        fn repaired(&mut self, _pass: u32, _changes: u64) {}
        fn goes_on(&mut self) -> bool {
            let refused = check(&self.0.cell, &self.1, &mut Ended::default());
            self.2 = matches!(refused, Err(OfflineError::ScratchInUse(_)));
            self.2
        }
    }
    let mut within = Within(&other, shared.clone(), false);
    check(&one.cell, &shared, &mut within).unwrap();
    assert!(within.2);
    assert_eq!(whole(&other, &shared).0.found, 0);
}
