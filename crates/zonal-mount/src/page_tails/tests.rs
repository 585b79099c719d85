//! Tests of ends of files and of bypassing changes, step by step.

use super::*;

const F: Ino = Ino(5);
const KEPT: PageAccess = PageAccess {
    writes: false,
    keeps_pages: true,
};
const MAPPED: PageAccess = PageAccess {
    writes: true,
    keeps_pages: true,
};

fn range(stale: Option<StalePages>) -> Option<(u64, u64)> {
    stale.map(|stale| (stale.from, stale.to))
}

fn open(tails: &PageTails, size: u64, access: PageAccess) {
    tails.open(F, (size, size), access);
}

/// A complete bypassing write; returns the pages to drop.
fn wrote(tails: &PageTails, from: u64, to: u64) -> Option<StalePages> {
    let change = tails.change_begins(F, (from, to), || false);
    change.and_then(|change| tails.change_ends(F, change, (from, to), true))
}

fn read(tails: &PageTails, from: u64, to: u64) -> bool {
    let asks = tails.read_begins(F, (from, to), 1);
    tails.read_ends(F, (from, to), 1);
    asks
}

#[test]
fn a_short_page_is_dropped_before_a_greater_size_is_sent() {
    let tails = PageTails::default();
    assert_eq!(tails.show(F, 10), None, "nobody reads it");
    open(&tails, 10, KEPT);
    assert_eq!(tails.show(F, 10), None);
    let stale = tails.show(F, 11);
    assert_eq!(range(stale), Some((10, 11)), "of an earlier handle");
    assert_eq!(range(tails.show(F, 12)), Some((10, 12)), "not yet dropped");
    assert!(tails.holds_back(F, 12));
    stale.into_iter().for_each(|stale| tails.dropped(F, stale));
    assert_eq!(tails.show(F, 12), None);
    assert!(tails.read_short(F, 11), "12 was told meanwhile");
    assert!(!tails.read_short(F, 12));
    let stale = tails.show(F, 20);
    assert_eq!(range(stale), Some((11, 20)));
    assert!(tails.read_short(F, 13));
    stale.into_iter().for_each(|stale| tails.dropped(F, stale));
    assert_eq!(range(tails.show(F, 20)), Some((11, 20)), "read meanwhile");
    assert_eq!(tails.show(F, 5), None);
    assert!(!tails.read_short(F, 5));
    tails.close(F, false);
    assert_eq!((tails.len(), tails.show(F, 30)), (0, None));
}

#[test]
fn a_size_waits_for_nothing_where_all_pages_were_dropped() {
    let tails = PageTails::default();
    assert_eq!(tails.whole(F), None);
    open(&tails, 10, KEPT);
    let stale = tails.whole(F);
    stale.into_iter().for_each(|stale| tails.dropped(F, stale));
    assert_eq!(tails.show(F, 11), None);
    let stale = tails.whole(F);
    assert!(!tails.read_short(F, 11));
    stale.into_iter().for_each(|stale| tails.dropped(F, stale));
    assert_eq!(range(tails.show(F, 20)), Some((11, 20)), "read meanwhile");
}

#[test]
fn a_read_in_flight_of_its_pages_races_with_a_write() {
    let tails = PageTails::default();
    assert_eq!(tails.crossed(F, 0, 10), None);
    open(&tails, 100, KEPT);
    assert!(!tails.read_begins(F, (0, 50), 1) && !tails.read_begins(F, (40, 60), 1));
    assert_eq!(range(tails.crossed(F, 49, 70)), Some((49, 70)));
    assert_eq!(range(tails.crossed(F, 59, 170)), Some((59, 170)));
    tails.read_ends(F, (40, 60), 1);
    assert_eq!(tails.crossed(F, 50, 70), None);
    assert_eq!(range(tails.page_written(F, (49, 70), 1)), Some((49, 70)));
    tails.read_ends(F, (0, 50), 1);
    assert_eq!(tails.crossed(F, 0, 70), None);
    assert_eq!(tails.page_written(F, (49, 70), 1), None);
}

#[test]
fn a_read_answered_after_a_drop_races_with_a_write() {
    let tails = PageTails::default();
    open(&tails, 100, MAPPED);
    let filled_by = |thread| {
        tails.open_drops(F);
        tails.open_dropped(F);
        let drop = tails.drop_begins(F);
        tails.drop_ends(F, drop, true);
        let _asks = tails.read_begins(F, (0, PAGE), thread);
        tails.read_ends(F, (0, PAGE), thread);
    };
    filled_by(1);
    assert_eq!(tails.page_written(F, (8, 16), 1), None);
    filled_by(2);
    assert_eq!(range(tails.page_written(F, (8, 16), 1)), Some((8, 16)));
    tails.page_write_ends(F);
    assert_eq!(tails.page_written(F, (8, 16), 1), None);
    tails.close(F, true);
    // An open that bypasses the pages.
    tails.open_drops(F);
    assert_eq!(tails.len(), 1);
    tails.open_dropped(F);
    assert_eq!(tails.len(), 0);
    let drop = tails.drop_begins(F);
    assert_eq!(tails.len(), 1);
    tails.drop_ends(F, drop, true);
    assert_eq!(tails.len(), 0);
}

#[test]
fn pages_under_a_write_are_dropped_and_the_short_one_before_it() {
    let tails = PageTails::default();
    assert_eq!(wrote(&tails, 0, 10), None);
    assert_eq!(tails.len(), 0);
    for _ in 0..2 {
        tails.open(F, (100, 100), PageAccess::default());
    }
    tails.close(F, false);
    assert_eq!(wrote(&tails, 20, 30), None, "there are no pages");
    read(&tails, 0, 100);
    assert!(!tails.read_short(F, 100));
    assert_eq!(range(wrote(&tails, 20, 30)), Some((20, 30)));
    let stale = wrote(&tails, 200, 210);
    assert_eq!(range(stale), Some((100, 210)));
    stale.into_iter().for_each(|stale| tails.dropped(F, stale));
    assert_eq!(range(wrote(&tails, 210, 220)), Some((210, 220)));
    assert!(tails.read_short(F, 215));
    let change = tails.change_begins(F, (300, 300), || false);
    let stale = change.and_then(|change| tails.change_ends(F, change, (300, 300), true));
    assert_eq!(range(stale), Some((215, 300)), "growth alone");
    let change = tails.change_begins(F, (250, 250), || false);
    let stale = change.and_then(|change| tails.change_ends(F, change, (250, 250), true));
    assert_eq!(stale, None, "neither growth nor bytes");
}

#[test]
fn pages_of_earlier_handles_are_dropped_once() {
    let tails = PageTails::default();
    open(&tails, 100, KEPT);
    let stale = wrote(&tails, 20, 30);
    assert_eq!(range(stale), Some((0, u64::MAX)));
    stale.into_iter().for_each(|stale| tails.dropped(F, stale));
    assert_eq!(wrote(&tails, 20, 30), None);
    read(&tails, 0, 100);
    assert_eq!(range(wrote(&tails, 20, 30)), Some((20, 30)));
    tails.truncate(F, 0);
    assert_eq!(wrote(&tails, 20, 30), None);
}

#[test]
fn bytes_stored_behind_the_end_are_omitted_where_the_file_grows() {
    let tails = PageTails::default();
    assert_eq!(tails.growth_begins(F, 9000), None);
    open(&tails, 5000, MAPPED);
    assert!(tails.growth_begins(F, 5000).is_none() && tails.growth_begins(F, 400).is_none());
    let Some((change, behind)) = tails.growth_begins(F, 9000) else {
        panic!("nothing is left out");
    };
    assert_eq!(behind, (5000, 8192));
    assert_eq!(tails.write_back_begins(F, 4096, 8192).1, [(4096, 5000)]);
    tails.truncate(F, 9000);
    let stale = tails.behind_ends(F, change, behind);
    assert_eq!(range(stale), Some((5000, 8192)));
    assert_eq!(tails.write_back_begins(F, 4096, 8192).1, [(4096, 5000)]);
    stale.into_iter().for_each(|stale| tails.dropped(F, stale));
    assert_eq!(tails.write_back_begins(F, 4096, 8192).1, [(4096, 8192)]);
    // A write through pages masks the gap before it.
    assert!(!tails.read_short(F, 9000));
    let (gap, _) = tails.page_write(F, 9100, 9200);
    assert_eq!(gap.map(|(_change, range)| range), Some((9000, 9100)));
    assert_eq!(tails.page_write(F, 9200, 9300).0, None);
    read(&tails, 8192, 12_288);
    assert_eq!(
        tails.write_back_begins(F, 8192, 9300).1,
        [(8192, 9000), (9100, 9300)],
        "it is not carried out"
    );
}

#[test]
fn a_file_with_a_possibly_stored_page_takes_space() {
    let tails = PageTails::default();
    assert_eq!(tails.space(F, 10, 0), 0);
    let access = PageAccess {
        writes: true,
        keeps_pages: false,
    };
    assert!(!tails.open(F, (10, 0), access));
    assert!(!tails.may_be_dirty(F));
    assert_eq!((tails.space(F, 10, 0), tails.space(F, 10, 512)), (0, 512));
    assert!(read(&tails, 0, 4096), "the kernel knows of no space");
    assert!(!read(&tails, 0, 4096));
    assert!(tails.may_be_dirty(F));
    assert_eq!((tails.space(F, 10, 0), tails.space(F, 0, 0)), (PAGE, 0));
    tails.close(F, true);
    assert!(tails.open(F, (10, 0), MAPPED));
}

#[test]
fn a_change_waits_for_writeback_of_its_pages_or_is_cancelled() {
    let tails = PageTails::default();
    open(&tails, 5000, MAPPED);
    let (number, _) = tails.write_back_begins(F, 0, 4096);
    assert_eq!(tails.change_begins(F, (10, 20), || true), None);
    assert_eq!(tails.write_back_begins(F, 0, 4096).1, [(0, 4096)]);
    std::thread::scope(|scope| {
        let change = scope.spawn(|| tails.change_begins(F, (5000, 5010), || false));
        assert!(change.join().is_ok_and(|change| change.is_some()));
        let change = scope.spawn(|| tails.change_begins(F, (10, 20), || false));
        for number in [number, number + 2, number + 1] {
            tails.write_back_ends(F, number);
        }
        assert!(change.join().is_ok_and(|change| change.is_some()));
    });
}

#[test]
fn the_length_that_the_kernel_surely_knows_is_tracked() {
    let tails = PageTails::default();
    assert!(!tails.may_be_longer(F, 10), "it is not open");
    open(&tails, 10, MAPPED);
    assert!(tails.may_be_longer(F, 10));
    assert!(tails.show(F, 20).is_some());
    assert!(tails.may_be_longer(F, 20), "it may not have taken that");
    tails.lengthened(F, 20);
    assert!(!tails.may_be_longer(F, 20) && tails.may_be_longer(F, 21));
    assert_eq!(tails.page_written(F, (20, 30), 1), None);
    assert!(!tails.may_be_longer(F, 30));
    assert_eq!(tails.show(F, 5), None);
    assert!(tails.may_be_longer(F, 30), "another mount truncated it");
    tails.truncate(F, 40);
    assert!(!tails.may_be_longer(F, 40));
}
