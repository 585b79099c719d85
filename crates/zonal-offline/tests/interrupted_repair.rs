//! A repair that is ended after any of its steps, and done again.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{TestCell, be_quiet_about_the_library, damages, interrupt, whole};
use std::fs;
use zonal_disk::repair::drop_copy;
use zonal_testkit::Rng;

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
            // The log goes back to the formatting; otherwise a replay would restore everything.
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
            // The first steps make the most difference. Of the others tests take each tenth, or
            // each.
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
