//! A check that was interrupted goes on where it was, and tells what an uninterrupted one tells; what it kept of other stores, or what is
//! torn or damaged, is never used.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{TestCell, be_quiet_about_the_library, damages, open_engine};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zonal_disk::mend::drop_copy;
use zonal_fsck::Finding;
use zonal_offline::{
    Begin, MADE, OfflineError, Options, Report, Stage, Summary, WORK_FOLDER, check,
};
use zonal_testkit::Rng;

/// What a check told, and after how many steps it is ended.
#[derive(Default)]
struct Ended {
    findings: Vec<(u32, Finding)>,
    begin: Option<Begin>,
    steps: u32,
    limit: Option<u32>,
}

impl Report for Ended {
    fn finding(&mut self, pass: u32, finding: &Finding) {
        self.findings.push((pass, finding.clone()));
    }
    fn progress(&mut self, _stage: Stage) {}
    fn repaired(&mut self, _pass: u32, _changes: u64) {}
    fn begins(&mut self, begin: &Begin) {
        self.begin = Some(begin.clone());
    }
    fn goes_on(&mut self) -> bool {
        self.steps += 1;
        self.limit.is_none_or(|limit| self.steps < limit)
    }
}

fn options(cell: &TestCell) -> Options {
    Options {
        keep_every: 50,
        ..cell.options(false)
    }
}

/// Ends a check after so many steps; whether it was not through before.
fn interrupt(cell: &TestCell, options: &Options, steps: u32) -> bool {
    let mut told = Ended {
        limit: Some(steps),
        ..Ended::default()
    };
    match check(&cell.cell, options, &mut told) {
        Ok(_) => false,
        Err(OfflineError::Interrupted) => true,
        Err(error) => panic!("{error}"),
    }
}

fn whole(cell: &TestCell, options: &Options) -> (Summary, Ended) {
    let mut told = Ended::default();
    let summary = check(&cell.cell, options, &mut told).unwrap();
    assert!(!options.scratch.exists(), "the folder stays");
    (summary, told)
}

fn goes_on(told: &Ended) -> Option<u64> {
    match told.begin {
        Some(Begin::GoesOn { read, .. }) => Some(read),
        _ => None,
    }
}

fn begins_anew(told: &Ended) -> Option<&str> {
    match &told.begin {
        Some(Begin::Anew(why)) => Some(why),
        _ => None,
    }
}

/// A cell with something wrong in each store and between them.
fn damaged(name: &str) -> TestCell {
    be_quiet_about_the_library();
    let cell = TestCell::make(name, 150);
    let mut rng = Rng(5);
    for at in 1..5 {
        // With it, what is below would be no damage.
        drop_copy(&cell.spec(at).dir).unwrap();
        let index = cell.spec(at).dir.join("index.redb");
        let mut bytes = fs::read(&index).unwrap();
        for _ in 0..6 {
            let bit = rng.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        fs::write(&index, bytes).unwrap();
    }
    for at in 2..5 {
        let segments = cell.spec(at).dir.join("segments");
        for segment in fs::read_dir(segments).unwrap() {
            let path = segment.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            for _ in 0..12 {
                let byte = rng.below(bytes.len() as u64 / 4);
                bytes[byte as usize] ^= 0x40;
            }
            fs::write(&path, bytes).unwrap();
        }
    }
    fs::write(cell.spec(2).dir.join("notes.txt"), "mine").unwrap();
    cell
}

fn same(one: &(Summary, Ended), other: &(Summary, Ended), context: &str) {
    assert_eq!(one.1.findings, other.1.findings, "{context}");
    let apart = |summary: Summary| Summary { kept: 0, ..summary };
    assert_eq!(apart(one.0), apart(other.0), "{context}");
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_check_that_is_ended_at_any_step_tells_what_a_whole_one_tells() {
    let cell = damaged("resume-steps");
    let options = options(&cell);
    let wanted = whole(&cell, &options);
    assert!(wanted.0.found > 20 && wanted.1.steps > 20, "{:?}", wanted.0);
    assert_eq!(wanted.1.begin, Some(Begin::New));
    let mut read = Vec::new();
    for steps in 1.. {
        if !interrupt(&cell, &options, steps) {
            break;
        }
        let again = whole(&cell, &options);
        same(&again, &wanted, &format!("ended at step {steps}"));
        if steps > 1 {
            let kept = goes_on(&again.1).unwrap();
            assert_eq!(again.0.kept, kept);
            // What was kept is not done again.
            assert!(again.1.steps < wanted.1.steps, "step {steps}");
            read.push(kept);
        }
        assert!(steps < 1000);
    }
    assert_eq!(read.last(), Some(&5), "{read:?}");
    assert!(read.contains(&0) && read.contains(&2), "{read:?}");
}

#[test]
fn a_check_that_is_ended_again_and_again_comes_to_its_end() {
    let cell = damaged("resume-again");
    let options = options(&cell);
    let wanted = whole(&cell, &options);
    // The first step is the beginning itself; each time one more is made, until every store is read.
    let (mut rounds, mut before) = (0, 0);
    while before < 5 {
        let mut told = Ended {
            limit: Some(2),
            ..Ended::default()
        };
        let ended = check(&cell.cell, &options, &mut told);
        assert!(matches!(ended, Err(OfflineError::Interrupted)));
        let read = goes_on(&told).unwrap_or(0);
        assert!(read == before || read > before && rounds > 0);
        before = read;
        rounds += 1;
        assert!(rounds < 1000);
    }
    assert!(rounds > 12, "{rounds}");
    let again = whole(&cell, &options);
    same(&again, &wanted, "many ends");
    assert_eq!(again.0.kept, 5);
    // One step before the end.
    let steps = wanted.1.steps;
    assert!(interrupt(&cell, &options, steps));
    let again = whole(&cell, &options);
    same(&again, &wanted, "the last step");
    assert_eq!(again.0.kept, 5);
}

#[test]
fn a_kept_file_that_is_cut_or_flipped_leads_to_a_fresh_start() {
    let cell = damaged("resume-torn");
    let options = options(&cell);
    let wanted = whole(&cell, &options);
    let dir = options.scratch.join(WORK_FOLDER);
    let mut rng = Rng(9);
    let (mut anew, mut kinds) = (0, BTreeMap::new());
    let mut seen = BTreeSet::new();
    for steps in 2..=wanted.1.steps {
        assert!(interrupt(&cell, &options, steps));
        let kept = files(&dir);
        // Where a file is that was not there before.
        let new: Vec<_> = kept.keys().filter(|path| !seen.contains(*path)).collect();
        let new: Vec<_> = new.into_iter().cloned().collect();
        seen.extend(new.iter().cloned());
        fs::remove_dir_all(&options.scratch).unwrap();
        for path in &new {
            let bytes = &kept[path];
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            for damage in 0..3 {
                let at = rng.below(bytes.len().max(1) as u64) as usize;
                let mut changed = bytes.clone();
                match damage {
                    0 => changed.truncate(at),
                    1 => changed.fill(0),
                    _ if bytes.is_empty() => {}
                    _ => changed[at] ^= 1 << rng.below(8),
                }
                for (path, bytes) in &kept {
                    fs::create_dir_all(&dir).unwrap();
                    fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
                    fs::write(path, bytes).unwrap();
                }
                fs::write(options.scratch.join(MADE), "").unwrap();
                let is_same = changed == *bytes;
                fs::write(path, changed).unwrap();
                let again = whole(&cell, &options);
                let context = format!("{name} of step {steps}, damage {damage} at {at}");
                same(&again, &wanted, &context);
                if is_same {
                    continue;
                }
                assert!(
                    begins_anew(&again.1).is_some(),
                    "{context}: {:?}",
                    again.1.begin
                );
                anew += 1;
                let kind = name.split('.').next().unwrap().to_owned();
                *kinds.entry(kind).or_insert(0) += 1;
            }
        }
    }
    assert!(anew > 40, "{kinds:?}");
    for kind in ["stores", "part", "facts", "blocks", "shard-2", "target-1"] {
        assert!(kinds.contains_key(kind), "{kind} of {kinds:?}");
    }
}

#[test]
fn a_file_that_is_missing_leads_to_a_fresh_start_or_to_less_that_is_kept() {
    let cell = damaged("resume-missing");
    let options = options(&cell);
    let wanted = whole(&cell, &options);
    let dir = options.scratch.join(WORK_FOLDER);
    assert!(interrupt(&cell, &options, wanted.1.steps));
    let kept = files(&dir);
    for missing in kept.keys() {
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
        for (path, bytes) in kept.iter().filter(|(path, _)| *path != missing) {
            fs::write(path, bytes).unwrap();
        }
        fs::write(options.scratch.join(MADE), "").unwrap();
        let again = whole(&cell, &options);
        same(&again, &wanted, &missing.display().to_string());
    }
}

#[test]
fn what_was_kept_of_other_stores_is_not_used() {
    let cell = TestCell::make("resume-changed", 120);
    let options = options(&cell);
    let clean = whole(&cell, &options);
    assert_eq!((clean.0.found, clean.0.notes), (0, 0));
    let steps = clean.1.steps;
    let changed = |at: usize, change: &dyn Fn(&Path)| {
        assert!(interrupt(&cell, &options, steps));
        change(&cell.spec(at).dir);
        let dir = cell.spec(at).dir.display().to_string();
        let again = whole(&cell, &options);
        let why = begins_anew(&again.1).unwrap_or_default().to_owned();
        assert!(why.starts_with(&dir), "{why:?}");
        assert_eq!(again.0.kept, 0);
        again
    };
    // A start and a stop.
    for at in 0..5 {
        changed(at, &|_| drop(open_engine(cell.spec(at))));
    }
    // A byte of a segment, with its old times.
    let again = changed(3, &|dir| {
        let segment = dir.join("segments/seg.00000000");
        let before = fs::metadata(&segment).unwrap();
        let mut bytes = fs::read(&segment).unwrap();
        bytes[100] ^= 1;
        fs::write(&segment, bytes).unwrap();
        let file = fs::File::options().write(true).open(&segment).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        assert_eq!(
            fs::metadata(&segment).unwrap().mtime_nsec(),
            before.mtime_nsec()
        );
    });
    assert_eq!(again.0.found, 1, "{:#?}", again.1.findings);
    // A file that comes and a file that goes.
    changed(2, &|dir| fs::write(dir.join("notes.txt"), "mine").unwrap());
    changed(2, &|dir| fs::remove_file(dir.join("notes.txt")).unwrap());
    changed(4, &|dir| fs::remove_file(dir.join("index.redb")).unwrap());
}

#[test]
fn other_arguments_begin_anew_and_so_does_who_asks_for_it() {
    let cell = damaged("resume-arguments");
    let options = options(&cell);
    let wanted = whole(&cell, &options);
    let steps = wanted.1.steps;
    let without = Options {
        data: false,
        ..options.clone()
    };
    assert!(interrupt(&cell, &without, 6));
    let again = whole(&cell, &options);
    assert!(begins_anew(&again.1).is_some());
    same(&again, &wanted, "with --data behind one without");

    assert!(interrupt(&cell, &options, steps));
    let fresh = Options {
        fresh: true,
        ..options.clone()
    };
    let again = whole(&cell, &fresh);
    assert_eq!(
        (again.1.begin.as_ref(), again.0.kept),
        (Some(&Begin::New), 0)
    );
    same(&again, &wanted, "fresh");

    // Fewer stores.
    assert!(interrupt(&cell, &options, steps));
    let mut fewer = cell.cell.clone();
    fewer.stores.pop();
    let mut told = Ended::default();
    check(&fewer, &options, &mut told).unwrap();
    assert!(begins_anew(&told).is_some());
}

#[test]
fn a_repair_goes_on_where_a_check_was_and_its_next_pass_begins_anew() {
    let cell = damaged("resume-repair");
    let options = options(&cell);
    let repair = Options {
        repair: true,
        ..options.clone()
    };
    let before = cell.save();
    let wanted = whole(&cell, &repair);
    assert!(wanted.0.passes > 2, "{:?}", wanted.0);
    assert_eq!(wanted.0.left, 0);
    cell.restore(&before);
    let one_pass = whole(&cell, &options).1.steps;
    for steps in [2, one_pass / 2, one_pass] {
        cell.restore(&before);
        assert!(interrupt(&cell, &options, steps));
        let again = whole(&cell, &repair);
        assert!(goes_on(&again.1).is_some());
        same(&again, &wanted, &format!("repair behind step {steps}"));
    }
    // Ended in a later pass: what is left is found and put right.
    for steps in [one_pass + 3, 2 * one_pass] {
        cell.restore(&before);
        assert!(interrupt(&cell, &repair, steps));
        let (summary, told) = whole(&cell, &repair);
        assert_eq!(summary.left, 0);
        assert!(begins_anew(&told).is_none(), "{:?}", told.begin);
        assert_eq!(whole(&cell, &options).0.found, 0);
    }
}

#[test]
fn a_folder_that_others_may_write_is_refused_and_their_files_stay() {
    let cell = TestCell::make("resume-folder", 30);
    let options = options(&cell);
    let dir = options.scratch.join(WORK_FOLDER);
    assert!(interrupt(&cell, &options, 4));
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o770)).unwrap();
    let mut told = Ended::default();
    let refused = check(&cell.cell, &options, &mut told);
    assert!(matches!(refused, Err(OfflineError::Scratch { .. })));
    fs::remove_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(&options.scratch, &dir).unwrap();
    let refused = check(&cell.cell, &options, &mut told);
    assert!(matches!(refused, Err(OfflineError::Scratch { .. })));
    fs::remove_file(&dir).unwrap();
    // A scratch folder with files of somebody: none of them goes.
    fs::write(options.scratch.join("thesis.txt"), "mine").unwrap();
    fs::create_dir(options.scratch.join("running")).unwrap();
    fs::write(options.scratch.join("running/shoes.txt"), "mine").unwrap();
    let clean = check(&cell.cell, &options, &mut told).unwrap();
    assert_eq!(clean.found, 0);
    let repair = Options {
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
    let shared = Options {
        scratch: one.dir.join("scratch"),
        ..options(&one)
    };
    struct Within<'a>(&'a TestCell, Options, bool);
    impl Report for Within<'_> {
        fn finding(&mut self, _pass: u32, _finding: &Finding) {}
        fn progress(&mut self, _stage: Stage) {}
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

/// Zeroes a third of the blocks of an index.
fn lose_pages(cell: &TestCell, at: usize, rng: &mut Rng) {
    drop_copy(&cell.spec(at).dir).unwrap();
    let index = cell.spec(at).dir.join("index.redb");
    let mut bytes = fs::read(&index).unwrap();
    for block in bytes.chunks_mut(4096).skip(1) {
        if rng.below(3) == 0 {
            block.fill(0);
        }
    }
    fs::write(&index, bytes).unwrap();
}

#[test]
fn a_repair_that_is_ended_at_any_step_never_gives_wrong_bytes() {
    be_quiet_about_the_library();
    let cell = TestCell::make("resume-mending", 60);
    let repair = cell.options(true);
    let healthy = cell.save();
    let mut rng = Rng(3);
    let mut all = 0;
    let stride = if damages(1) > 1 { 1 } else { 10 };
    for at in [2, 1] {
        cell.restore(&healthy);
        lose_pages(&cell, at, &mut rng);
        if at == 2 {
            // It goes back to the formatting, and would tell all again.
            let log = cell.spec(at).dir.join("log");
            let length = fs::metadata(&log).unwrap().len();
            fs::write(log, vec![0; length as usize]).unwrap();
        }
        let before = cell.save();
        let (wanted, _) = whole(&cell, &repair);
        assert_eq!(wanted.left, 0, "store {at}");
        let (_, suffering) = cell.verify("a whole repair");
        all += suffering;
        let mut steps = 0;
        loop {
            // The first ones make the most difference; of the others each tenth, or each.
            steps += if steps < 10 { 1 } else { stride };
            cell.restore(&before);
            if !interrupt(&cell, &repair, steps) {
                break;
            }
            let context = format!("store {at}, ended at step {steps}");
            let (summary, told) = whole(&cell, &repair);
            assert_eq!(summary.left, 0, "{context}: {:#?}", told.findings);
            let (_, other) = cell.verify(&context);
            assert!(other >= suffering, "{context}: {other} of {suffering}");
        }
        assert!(steps > 10, "{steps}");
    }
    assert!(all > 5, "{all} files suffer");
}
