//! Resumed checks: a check after an interruption resumes and reports the same as an uninterrupted
//! one. It never uses state that is torn or damaged, or was saved of other stores.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Ended, TestCell, be_quiet_about_the_library, interrupt, open_engine, whole};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zonal_disk::repair::drop_copy;
use zonal_offline::{
    CheckOptions, CheckStart, CheckSummary, MADE, OfflineError, WORK_FOLDER, check,
};
use zonal_testkit::Rng;

fn options(cell: &TestCell) -> CheckOptions {
    CheckOptions {
        keep_every: 50,
        ..cell.options(false)
    }
}

fn goes_on(told: &Ended) -> Option<u64> {
    match told.begin {
        Some(CheckStart::GoesOn { read, .. }) => Some(read),
        _ => None,
    }
}

fn begins_anew(told: &Ended) -> Option<&str> {
    match &told.begin {
        Some(CheckStart::Anew(why)) => Some(why),
        _ => None,
    }
}

/// A cell with something wrong in each store and between stores.
fn damaged(name: &str) -> TestCell {
    be_quiet_about_the_library();
    let cell = TestCell::make(name, 150);
    let mut rng = Rng(5);
    for at in 1..5 {
        // Drops the copy of the index; with it, the damage below would be none.
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

fn same(one: &(CheckSummary, Ended), other: &(CheckSummary, Ended), context: &str) {
    assert_eq!(one.1.findings, other.1.findings, "{context}");
    let apart = |summary: CheckSummary| CheckSummary { kept: 0, ..summary };
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
    assert_eq!(wanted.1.begin, Some(CheckStart::New));
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
            // The resumed check does not repeat saved steps.
            assert!(again.1.steps < wanted.1.steps, "step {steps}");
            read.push(kept);
        }
        assert!(steps < 1000);
    }
    assert_eq!(read.last(), Some(&5), "{read:?}");
    assert!(read.contains(&0) && read.contains(&2), "{read:?}");
}

#[test]
fn a_check_that_is_ended_repeatedly_completes() {
    let cell = damaged("resume-again");
    let options = options(&cell);
    let wanted = whole(&cell, &options);
    // The first step is the beginning itself. Each round makes one more step, until every store is
    // read.
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
fn a_saved_file_that_is_cut_or_flipped_leads_to_a_fresh_start() {
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
        // The name of the first file that was not there before.
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
fn a_missing_saved_file_leads_to_a_fresh_start_or_to_less_saved_state() {
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
fn saved_state_of_other_stores_is_not_used() {
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
    // Another byte in a segment, with the old times.
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
    // A new file, and a removed file.
    changed(2, &|dir| fs::write(dir.join("notes.txt"), "mine").unwrap());
    changed(2, &|dir| fs::remove_file(dir.join("notes.txt")).unwrap());
    changed(4, &|dir| fs::remove_file(dir.join("index.redb")).unwrap());
}

#[test]
fn other_options_and_the_option_fresh_begin_anew() {
    let cell = damaged("resume-arguments");
    let options = options(&cell);
    let wanted = whole(&cell, &options);
    let steps = wanted.1.steps;
    let without = CheckOptions {
        data: false,
        ..options.clone()
    };
    assert!(interrupt(&cell, &without, 6));
    let again = whole(&cell, &options);
    assert!(begins_anew(&again.1).is_some());
    same(&again, &wanted, "with --data behind one without");

    assert!(interrupt(&cell, &options, steps));
    let fresh = CheckOptions {
        fresh: true,
        ..options.clone()
    };
    let again = whole(&cell, &fresh);
    assert_eq!(
        (again.1.begin.as_ref(), again.0.kept),
        (Some(&CheckStart::New), 0)
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
    let repair = CheckOptions {
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
    // Ends in a later pass: the next check finds and repairs the rest.
    for steps in [one_pass + 3, 2 * one_pass] {
        cell.restore(&before);
        assert!(interrupt(&cell, &repair, steps));
        let (summary, told) = whole(&cell, &repair);
        assert_eq!(summary.left, 0);
        assert!(begins_anew(&told).is_none(), "{:?}", told.begin);
        assert_eq!(whole(&cell, &options).0.found, 0);
    }
}
