//! A cell without damage is clean, even where records are only in its logs; a check changes
//! nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{TestCell, open_engine};
use zonal_offline::OfflineError;

#[test]
fn a_healthy_cell_is_clean_and_stays_as_it_is() {
    let cell = TestCell::make("healthy", 300);
    let before = cell.save();
    let (summary, heard) = cell.fsck(false);
    assert_eq!(heard.findings, []);
    assert_eq!((summary.found, summary.left, summary.passes), (0, 0, 1));
    assert!(summary.inodes > 300 && summary.objects > 250, "{summary:?}");
    assert!(cell.save() == before, "a check wrote something");
    let (summary, _) = cell.fsck(true);
    assert_eq!((summary.found, summary.changes), (0, 0));
    assert!(cell.save() == before, "a repair of nothing wrote something");
    assert_eq!(cell.verify("healthy"), (300, 0));
    cell.work("healthy");
    assert_eq!(cell.work_names("healthy"), 4);
}

#[test]
fn a_cell_in_use_is_refused() {
    let cell = TestCell::make("in-use", 10);
    for at in 0..cell.cell.stores.len() {
        let engine = open_engine(cell.spec(at));
        assert!(matches!(
            cell.try_fsck(false),
            Err(OfflineError::Running(_))
        ));
        drop(engine);
    }
    cell.fsck(false);
}
