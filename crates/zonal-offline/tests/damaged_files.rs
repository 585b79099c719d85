//! Damage to the files of a stopped cell's stores: flipped bits, blocks zeroed, swapped or filled
//! with noise, files cut, missing, foreign. After a repair the cell is clean, every read is right,
//! and the cell works again.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{TestCell, be_quiet_about_the_library, damages};
use std::fs;
use std::path::{Path, PathBuf};
use zonal_disk::repair::drop_copy;
use zonal_fsck::FindingKind;
use zonal_testkit::Rng;

/// Damages a file; returns a description for messages.
fn damage(path: &Path, rng: &mut Rng) -> String {
    let mut bytes = fs::read(path).unwrap();
    let length = bytes.len() as u64;
    if length == 0 {
        fs::write(path, [1, 2, 3]).unwrap();
        return "filled".into();
    }
    let at = rng.below(length) as usize;
    let (block, end) = (at / 4096 * 4096, ((at / 4096 + 1) * 4096).min(bytes.len()));
    let how = match rng.below(6) {
        0 | 1 => {
            bytes[at] ^= 1 << rng.below(8);
            "a flipped bit"
        }
        2 => {
            bytes[block..end].fill(0);
            "a zeroed block"
        }
        3 => {
            let other = rng.below(length / 4096) as usize * 4096;
            if other + 4096 <= bytes.len() && end - block == 4096 {
                let copy = bytes[other..other + 4096].to_vec();
                let here = bytes[block..end].to_vec();
                bytes[block..end].copy_from_slice(&copy);
                bytes[other..other + 4096].copy_from_slice(&here);
            }
            "swapped blocks"
        }
        4 => {
            bytes[block..end]
                .iter_mut()
                .for_each(|byte| *byte = rng.byte());
            "noise"
        }
        _ => {
            bytes.truncate(at);
            "cut"
        }
    };
    fs::write(path, bytes).unwrap();
    format!("{how} at {at} of {}", path.display())
}

/// Number of whole files; `None` where the zone map is lost with an index that has no copy.
fn check_after(cell: &TestCell, context: &str, least_whole: usize) -> Option<usize> {
    let (found, heard) = cell.fsck(false);
    let (repaired, more) = cell.fsck(true);
    let is_map = |what: &FindingKind| matches!(what, FindingKind::MapLost(_));
    if least_whole == 0 && more.findings.iter().any(|told| is_map(&told.1.what)) {
        // Neither a copy of the index nor another store has the map: only a backup does.
        return None;
    }
    assert_eq!(
        repaired.left,
        0,
        "{context}: {found:?} {repaired:?}\n{:#?}\n{:#?}",
        heard.findings,
        more.findings
            .iter()
            .filter(|told| told.0 == repaired.passes)
            .collect::<Vec<_>>()
    );
    let (again, told) = cell.fsck(false);
    assert_eq!(again.found, 0, "{context}: {:#?}", told.findings);
    let (whole, other) = cell.verify(context);
    assert!(
        whole >= least_whole,
        "{context}: {whole} whole, {other} not\n{:#?}",
        heard.findings
    );
    if other > 0 {
        assert!(
            found.found > 0 || heard.names().contains(&"allocated"),
            "{context}: {other} files suffer and nothing was found"
        );
    }
    Some(whole)
}

fn victims(cell: &TestCell, names: &[&str]) -> Vec<PathBuf> {
    cell.save()
        .into_keys()
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            names.iter().any(|wanted| name.starts_with(wanted))
        })
        .collect()
}

fn run(name: &str, files: &[&str], seeds: u64, least_whole: usize) {
    let cell = TestCell::make(name, 120);
    run_on(&cell, files, seeds, least_whole);
}

fn run_on(cell: &TestCell, files: &[&str], seeds: u64, least_whole: usize) {
    be_quiet_about_the_library();
    let before = cell.save();
    let victims = victims(cell, files);
    assert!(!victims.is_empty());
    let (mut whole, mut maps_lost) = (0, 0);
    for seed in 0..seeds {
        cell.restore(&before);
        let mut rng = Rng(seed * 1000 + 17);
        let victim = &victims[rng.index(victims.len())];
        let context = format!("seed {seed}: {}", damage(victim, &mut rng));
        let Some(here) = check_after(cell, &context, least_whole) else {
            maps_lost += 1;
            continue;
        };
        whole += here;
        let worked = cell.work_names(&context);
        assert!(
            worked > 0 || here == 0,
            "{context}: no directory to work in"
        );
        if seed % 8 == 0 {
            cell.work(&context);
        }
    }
    // The map lies in few blocks, and most damages touch few files.
    assert!(maps_lost <= seeds / 8, "{maps_lost} of {seeds}");
    assert!(
        whole as u64 > (seeds - maps_lost) * 60,
        "{whole} of {}",
        seeds * 120
    );
}

#[test]
fn damaged_indexes_are_made_anew_from_their_copies_and_nothing_is_lost() {
    run("index", &["index.redb"], damages(30), 120);
}

#[test]
fn damaged_indexes_without_a_copy_are_written_anew_from_what_is_left() {
    let cell = TestCell::make("index-alone", 120);
    for spec in &cell.cell.stores {
        drop_copy(&spec.dir).unwrap();
    }
    run_on(&cell, &["index.redb"], damages(30), 0);
}

#[test]
fn an_index_that_is_lost_beside_its_identity_loses_nothing() {
    let cell = TestCell::make("index-identity", 120);
    let before = cell.save();
    // Nobody else knows the number of the manager's store.
    for at in 1..cell.cell.stores.len() {
        cell.restore(&before);
        let dir = &cell.spec(at).dir;
        fs::remove_file(dir.join("index.redb")).unwrap();
        fs::remove_file(dir.join("identity")).unwrap();
        check_after(&cell, &format!("store {at}"), 120);
        // The manager knows its number when its own index is there again.
        cell.restore(&before);
        for name in ["index.redb", "identity"] {
            fs::remove_file(dir.join(name)).unwrap();
        }
        fs::remove_file(cell.spec(0).dir.join("index.redb")).unwrap();
        check_after(&cell, &format!("store {at} and the manager's index"), 120);
    }
}

/// Puts the index of each other store in the place of a store's own: alone, or with its checksums.
fn swap_indexes(cell: &TestCell, least_whole: usize) {
    let before = cell.save();
    let stores = cell.cell.stores.len();
    for (to, by) in (0..stores).flat_map(|to| (1..stores).map(move |by| (to, by))) {
        let from = (to + by) % stores;
        cell.restore(&before);
        let names: &[&str] = match to % 2 {
            0 => &["index.redb"],
            _ => &["index.redb", "index.sums"],
        };
        for name in names {
            fs::copy(cell.spec(from).dir.join(name), cell.spec(to).dir.join(name)).unwrap();
        }
        let context = format!("{names:?} of store {from} in store {to}");
        let (report, heard) = cell.fsck(false);
        assert!(report.found > 0, "{context}: {:#?}", heard.findings);
        check_after(cell, &context, least_whole);
    }
}

#[test]
fn indexes_of_other_stores_are_found_and_nothing_is_lost() {
    swap_indexes(&TestCell::make("swapped", 120), 120);
}

#[test]
fn indexes_of_other_stores_give_no_wrong_byte_where_there_is_no_copy() {
    let cell = TestCell::make("swapped-alone", 120);
    for spec in &cell.cell.stores {
        drop_copy(&spec.dir).unwrap();
    }
    swap_indexes(&cell, 0);
}

#[test]
fn damaged_logs_lose_no_more_than_their_records() {
    run("log", &["log"], damages(24), 0);
}

#[test]
fn damaged_segments_lose_no_more_than_their_blocks() {
    run("segments", &["seg."], damages(16), 60);
}

#[test]
fn damaged_small_files_lose_nothing() {
    run(
        "small",
        &["identity", "index.sums", "copy.", "power", "starts", "lock"],
        damages(48),
        120,
    );
}

#[test]
fn missing_files_are_made_anew() {
    let cell = TestCell::make("missing", 120);
    let before = cell.save();
    for (number, victim) in before.keys().enumerate() {
        let is_store = victims(
            &cell,
            &[
                "index", "copy.", "log", "identity", "lock", "power", "starts", "seg.",
            ],
        );
        if !is_store.contains(victim) {
            continue;
        }
        cell.restore(&before);
        fs::remove_file(victim).unwrap();
        let context = format!("{number}: {} is missing", victim.display());
        check_after(&cell, &context, 0);
        cell.work(&context);
    }
}

#[test]
fn files_of_others_are_named_and_left_alone() {
    let cell = TestCell::make("foreign", 30);
    let path = cell.spec(2).dir.join("notes.txt");
    fs::write(&path, "mine").unwrap();
    let (summary, heard) = cell.fsck(true);
    assert_eq!((summary.found, summary.left), (0, 0));
    assert_eq!(heard.names(), ["foreign-file"]);
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn a_lost_target_is_reported_by_file_and_range() {
    let cell = TestCell::make("gone", 120);
    fs::remove_dir_all(&cell.spec(3).dir).unwrap();
    let (summary, heard) = cell.fsck(false);
    assert!(summary.left > 0);
    let mut named = 0;
    for file in &cell.files {
        // The file's column on that target has bytes.
        let has_bytes = heard.findings.iter().any(|(_, finding)| {
            finding.what.name() == "lost-with-target" && finding.path.as_ref() == Some(&file.path)
        });
        named += usize::from(has_bytes);
    }
    assert!(named > 20, "{named} files named");
    assert!(heard.names().contains(&"store-missing"));
    let text = heard
        .findings
        .iter()
        .map(|(_, finding)| finding.to_string());
    assert!(text.into_iter().any(|text| text.contains("bytes at 0-")));
}
