//! Leases: which sessions are recalled, how long a change waits, what a record covers.

use super::*;

const D: Ino = Ino(10);
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const C: SessionId = SessionId(3);

fn at(ms: u64) -> Instant {
    Instant(1_000_000_000).plus_ms(ms)
}

fn make() -> (Leases, EventQueues) {
    let mut events = EventQueues::new();
    for session in [A, B, C] {
        events.open(session);
    }
    (Leases::new(at(0), BTreeSet::new()), events)
}

fn entry() -> [LeaseChange; 1] {
    [LeaseChange {
        directory: D,
        entries: true,
        children: Vec::new(),
        data: false,
    }]
}

fn child(ino: u64) -> [LeaseChange; 1] {
    [LeaseChange {
        directory: D,
        entries: false,
        children: vec![Ino(ino)],
        data: false,
    }]
}

/// Hands events out and acknowledges all of them; returns how many there were.
fn poll(events: &mut EventQueues, session: SessionId) -> usize {
    let got = events.poll(session, 100);
    if let Some((number, _)) = got.last() {
        events.ack(session, *number);
    }
    got.len()
}

#[test]
fn a_change_waits_for_acknowledgements() {
    let (mut leases, mut events) = make();
    assert_eq!(leases.grant(D, A, at(0)), 5000);
    assert_eq!(leases.grant(D, C, at(0)), 5000);
    assert_eq!(leases.grant(D, B, at(0)), 5000);
    let recall = leases
        .recall(&entry(), B, false, at(10), &mut events)
        .unwrap();
    assert_eq!(recall.wait_for, [(A, 1), (C, 1)]);
    assert_eq!(recall.until, at(5500));
    assert_eq!(
        events.poll(A, 9),
        [(
            1,
            Event::Invalidate {
                entries: D,
                inodes: vec![D],
                data: false
            }
        )]
    );
    assert_eq!(leases.grant(D, A, at(20)), 0, "a change waits");
    poll(&mut events, A);
    let recall = leases
        .recall(&entry(), B, true, at(30), &mut events)
        .unwrap();
    assert_eq!(recall.wait_for, [(C, 1)]);
    poll(&mut events, C);
    assert_eq!(leases.recall(&entry(), B, true, at(30), &mut events), None);
    leases.finish(&entry());
    assert_eq!(leases.grant(D, A, at(30)), 5000);
}

#[test]
fn a_dead_client_delays_a_change_once() {
    let (mut leases, mut events) = make();
    leases.grant(D, A, at(0));
    assert!(
        leases
            .recall(&entry(), B, false, at(5499), &mut events)
            .is_some()
    );
    assert_eq!(
        leases.recall(&entry(), B, true, at(5500), &mut events),
        None
    );
    leases.finish(&entry());
    assert_eq!(
        leases.recall(&entry(), B, false, at(5501), &mut events),
        None
    );
    assert!(leases.is_empty());
}

#[test]
fn a_recalled_lease_is_not_recalled_again_until_the_next_grant() {
    let (mut leases, mut events) = make();
    leases.grant(D, A, at(0));
    for change in [entry(), child(11)] {
        assert!(
            leases
                .recall(&change, B, false, at(1), &mut events)
                .is_some()
        );
        // A second change waits for the same event.
        assert!(
            leases
                .recall(&change, C, false, at(1), &mut events)
                .is_some()
        );
        assert_eq!(poll(&mut events, A), 1);
        for (by, waiting) in [(B, true), (C, true), (B, false)] {
            assert_eq!(
                leases.recall(&change, by, waiting, at(2), &mut events),
                None
            );
        }
        leases.finish(&change);
        leases.finish(&change);
    }
    assert!(
        leases
            .recall(&child(12), B, false, at(3), &mut events)
            .is_some()
    );
    leases.finish(&child(12));
    leases.grant(D, A, at(4));
    assert!(
        leases
            .recall(&entry(), B, false, at(5), &mut events)
            .is_some()
    );
}

#[test]
fn many_children_are_recalled_in_bounded_memory() {
    let (mut leases, mut events) = make();
    leases.grant(D, A, at(0));
    for ino in 100..1000 {
        assert!(
            leases
                .recall(&child(ino), B, false, at(1), &mut events)
                .is_some()
        );
        poll(&mut events, A);
        assert_eq!(
            leases.recall(&child(ino), B, true, at(1), &mut events),
            None
        );
        leases.finish(&child(ino));
    }
    let record = &leases.records[&(D, A)];
    assert!(record.children_recalled.len() <= RECALLED_CHILDREN_MAX);
    assert!(leases.blocked.is_empty());
}

#[test]
fn after_a_start_changes_wait_for_leases_of_the_former_life() {
    let mut events = EventQueues::new();
    let mut leases = Leases::new(at(0), BTreeSet::from([A, B]));
    let recall = leases
        .recall(&entry(), B, false, at(100), &mut events)
        .unwrap();
    assert_eq!((recall.wait_for, recall.until), (vec![], at(5500)));
    assert_eq!(
        leases.recall(&entry(), B, true, at(5500), &mut events),
        None
    );
    let mut leases = Leases::new(at(0), BTreeSet::from([B]));
    assert_eq!(
        leases.recall(&entry(), B, false, at(1), &mut events),
        None,
        "only its own"
    );
}

#[test]
fn records_are_bounded() {
    let (leases, mut events) = make();
    let mut leases = leases.with_limit(2);
    assert_eq!(leases.grant(D, A, at(0)), 5000);
    assert_eq!(leases.grant(Ino(11), A, at(0)), 5000);
    assert_eq!(leases.grant(Ino(12), A, at(0)), 0);
    assert_eq!(leases.grant(Ino(11), A, at(1)), 5000, "has a record");
    // The sweep makes room once records expire.
    let later = at(6000);
    while leases.grant(Ino(12), A, later) == 0 {}
    leases.session_closed(A);
    assert_eq!(leases.recall(&entry(), B, false, later, &mut events), None);
    assert_eq!(leases.len(), 0);
}

#[test]
fn a_change_waits_for_a_session_without_a_queue_until_its_lease_expires() {
    let (mut leases, mut events) = make();
    leases.grant(D, A, at(0));
    events.close(A);
    let recall = leases
        .recall(&entry(), B, false, at(1), &mut events)
        .unwrap();
    assert_eq!(recall.wait_for, [(A, u64::MAX)]);
    assert_eq!(
        leases.recall(&entry(), B, true, at(5500), &mut events),
        None
    );
}

#[test]
#[should_panic(expected = "blocked by no change")]
fn a_directory_without_a_waiting_change_is_not_blocked() {
    let (mut leases, mut events) = make();
    leases.grant(D, A, at(0));
    leases.recall(&entry(), B, false, at(1), &mut events);
    leases.blocked.get_mut(&D).unwrap().changes = 0;
    leases.finish(&entry());
}

#[test]
fn a_session_renews_its_records_until_it_is_gone() {
    let (mut leases, mut events) = make();
    leases.grant(D, A, at(0));
    assert!(leases.renew(A, 0, at(4_000)) && leases.renew(A, 0, at(8_000)));
    let recall = leases
        .recall(&entry(), B, false, at(9_000), &mut events)
        .unwrap();
    assert_eq!(recall.until, at(13_500), "5.5 s after the last renewal");
    assert_eq!(
        leases.recall(&entry(), B, true, at(13_500), &mut events),
        None
    );
    leases.finish(&entry());
    assert!(leases.is_empty());
}

#[test]
fn a_session_that_acknowledges_nothing_is_not_renewed() {
    let (mut leases, mut events) = make();
    leases.grant(D, A, at(0));
    leases.renew(A, 0, at(0));
    leases
        .recall(&entry(), B, false, at(10), &mut events)
        .unwrap();
    assert!(leases.renew(A, 0, at(900)), "the recall is on its way");
    assert!(!leases.renew(A, 0, at(1_010)));
    let recall = leases
        .recall(&entry(), B, true, at(2_000), &mut events)
        .unwrap();
    assert_eq!(recall.until, at(6_400));
    poll(&mut events, A);
    assert!(leases.renew(A, events.acked(A), at(2_001)));
    assert_eq!(
        leases.recall(&entry(), B, true, at(2_002), &mut events),
        None
    );
}

#[test]
fn a_crowded_table_renews_no_session_with_a_large_part_of_it() {
    let (leases, _events) = make();
    let mut leases = leases.with_limit(32);
    for dir in 0..23 {
        leases.grant(Ino(dir), A, at(0));
    }
    assert!(leases.renew(A, 0, at(1)), "it is not crowded yet");
    for dir in 0..2 {
        leases.grant(Ino(dir), B, at(0));
    }
    assert!(!leases.renew(A, 0, at(2)) && leases.renew(B, 0, at(2)));
    leases.sweep(at(5_501), 100);
    leases.sweep(at(5_501), 100);
    assert_eq!(leases.len(), 2, "what is not renewed makes room");
    assert!(leases.renew(A, 0, at(5_502)));
}

#[test]
fn sessions_without_records_are_forgotten() {
    let (mut leases, _events) = make();
    leases.grant(D, A, at(0));
    for session in [A, B, C] {
        leases.renew(session, 0, at(0));
    }
    assert_eq!(leases.renewals.len(), 3);
    leases.session_closed(C);
    leases.sweep(at(5_500), 100);
    leases.sweep(at(5_500), 100);
    assert_eq!((leases.renewals.len(), leases.len()), (0, 0));
}

#[test]
fn a_change_of_an_access_time_is_told_and_waits_for_nobody() {
    let (mut leases, mut events) = make();
    leases.grant(D, A, at(0));
    leases.grant(D, B, at(0));
    assert_eq!(leases.tell((D, &[Ino(11)]), B, at(1), &mut events), [A]);
    let event = Event::Invalidate {
        entries: Ino(0),
        inodes: vec![Ino(11)],
        data: false,
    };
    assert_eq!(events.poll(A, 9), [(1, event)]);
    assert_eq!(leases.tell((D, &[Ino(11)]), B, at(5_500), &mut events), []);
}
