//! Tests of the oracle for one file and several clients: the contents that it allows, and those
//! that it rejects.

use super::*;

fn write(history: &mut FileHistory, client: usize, at: u64, length: usize) -> Vec<u8> {
    let number = history.write(client, at, length);
    history.bytes(number).to_vec()
}

fn append(history: &mut FileHistory, client: usize, at: u64, length: usize) -> Vec<u8> {
    let number = history.append(client, length);
    history.done(number, Some(at));
    history.bytes(number).to_vec()
}

fn truncate(history: &mut FileHistory, client: usize, size: u64) {
    let number = history.truncate(client, size);
    history.done(number, None);
}

/// Whether a client that opens the file may read this.
fn may_see(history: &mut FileHistory, content: &[u8]) -> bool {
    let look = history.look(9);
    history.seen(look, content, true).is_ok()
}

/// Whether these may be the final contents.
fn may_be(history: &mut FileHistory, content: &[u8]) -> bool {
    let look = history.look(9);
    history.seen(look, content, true).is_ok() && history.settled(look, content).is_ok()
}

#[test]
fn a_mark_names_its_operation_and_place() {
    let bytes = content(77, 100);
    assert_eq!(named(&bytes[16..]), Some((77, 16)));
    assert_eq!(named(&bytes[17..]), None);
    assert_eq!(named(&bytes[..7]), None);
    assert!(bytes.iter().all(|byte| *byte != 0));
}

#[test]
fn flushed_bytes_are_seen_and_unflushed_bytes_may_be() {
    let mut history = FileHistory::default();
    let old = write(&mut history, 0, 0, 100);
    assert!(may_see(&mut history, &old) && may_see(&mut history, &[]));
    history.flushed(0);
    assert!(may_see(&mut history, &old) && !may_see(&mut history, &[]));
    assert!(!may_see(&mut history, &old[..99]), "short");
    assert!(!may_see(&mut history, &[&old[..], &[0]].concat()), "long");
    let new = write(&mut history, 1, 0, 50);
    let mixed = [&new[..], &old[50..]].concat();
    assert!(may_see(&mut history, &old) && may_see(&mut history, &mixed));
    history.flushed(1);
    assert!(!may_see(&mut history, &old) && may_see(&mut history, &mixed));
    let mut wrong = mixed.clone();
    wrong[7] ^= 1;
    assert!(!may_see(&mut history, &wrong), "no operation's byte");
}

#[test]
fn truncated_bytes_stay_away_and_writes_behind_a_truncation_stay() {
    let mut history = FileHistory::default();
    let old = write(&mut history, 0, 0, 100);
    history.flushed(0);
    truncate(&mut history, 1, 10);
    assert!(may_be(&mut history, &old[..10]));
    truncate(&mut history, 1, 40);
    let grown = [&old[..10], &[0; 30]].concat();
    assert!(may_be(&mut history, &grown));
    assert!(!may_see(&mut history, &old[..40]), "it came back");
    let new = write(&mut history, 0, 20, 20);
    history.flushed(0);
    assert!(!may_see(&mut history, &grown), "a write is lost");
    assert!(may_be(&mut history, &[&grown[..20], &new].concat()));
}

#[test]
fn a_write_under_a_truncation_is_there_or_was_truncated_and_no_zeros() {
    let mut history = FileHistory::default();
    let bytes = write(&mut history, 0, 0, 1_000);
    truncate(&mut history, 1, 0);
    history.flushed(0);
    assert!(may_be(&mut history, &bytes) && may_be(&mut history, &[]));
    assert!(
        !may_be(&mut history, &[0; 1_000]),
        "the size came back alone"
    );
    let half = [&[0; 500], &bytes[500..]].concat();
    assert!(!may_be(&mut history, &half), "a part came back");
    let half = [&bytes[..500], &[0; 500]].concat();
    assert!(!may_be(&mut history, &half), "a part was lost");
}

#[test]
fn a_long_write_may_be_truncated_in_part() {
    let mut history = FileHistory::default();
    let bytes = write(&mut history, 0, 0, 100_000);
    truncate(&mut history, 1, 70_000);
    history.flushed(0);
    let unit = UNIT as usize;
    assert!(may_be(&mut history, &bytes) && may_be(&mut history, &bytes[..70_000]));
    truncate(&mut history, 1, 0);
    let bytes = write(&mut history, 0, 0, 100_000);
    truncate(&mut history, 1, 0);
    history.flushed(0);
    let last = [&vec![0; unit][..], &bytes[unit..]].concat();
    assert!(
        may_be(&mut history, &last),
        "the later piece came after the truncation"
    );
    let wrong = [&vec![0; unit - 1][..], &bytes[unit - 1..]].concat();
    assert!(!may_be(&mut history, &wrong));
}

#[test]
fn a_write_may_be_truncated_in_part_where_its_client_tried_to_truncate() {
    for is_unknown in [true, false] {
        let mut history = FileHistory::default();
        let mut bytes = write(&mut history, 0, 0, 1000);
        let tried = history.truncate(usize::from(!is_unknown), 600);
        history.is_unknown(tried);
        truncate(&mut history, 1, 0);
        history.flushed(0);
        bytes[..600].fill(0);
        // With another client's truncation the write is not split there.
        assert_eq!(may_be(&mut history, &bytes), is_unknown);
    }
}

#[test]
fn an_append_is_at_an_end_that_the_file_had() {
    let mut history = FileHistory::default();
    let old = append(&mut history, 0, 0, 300);
    let under_way = history.append(0, 40);
    truncate(&mut history, 1, 0);
    history.done(under_way, Some(300));
    let bytes = history.bytes(under_way).to_vec();
    assert!(may_be(&mut history, &[]), "before the truncation");
    let behind = [&[0; 300], &bytes[..]].concat();
    assert!(!may_be(&mut history, &behind), "behind a hole");
    assert!(!may_be(&mut history, &[&old[..], &bytes].concat()));

    let mut history = FileHistory::default();
    let old = append(&mut history, 0, 0, 300);
    let new = append(&mut history, 1, 300, 40);
    assert!(may_be(&mut history, &[&old[..], &new].concat()));
    assert!(!may_be(&mut history, &old), "lost");
    let twice = [&old[..], &new, &new].concat();
    assert!(!may_be(&mut history, &twice), "twice");
}

#[test]
fn unknown_outcomes_stay_unknown_until_they_are_seen() {
    let mut history = FileHistory::default();
    let old = write(&mut history, 0, 0, 100);
    history.flushed(0);
    let given_up = history.truncate(1, 30);
    history.is_unknown(given_up);
    for content in [&old[..], &old[..30]] {
        assert!(may_be(&mut history, content));
    }
    assert!(!may_be(&mut history, &old[..31]));
    let given_up = history.append(1, 20);
    history.is_unknown(given_up);
    let new = history.bytes(given_up).to_vec();
    let after = [&old[..], &new].concat();
    assert!(may_be(&mut history, &after) && may_be(&mut history, &old));
    history.begin_with(after.clone());
    assert!(may_be(&mut history, &after));
    assert!(!may_see(&mut history, &old), "it is known now");
}
