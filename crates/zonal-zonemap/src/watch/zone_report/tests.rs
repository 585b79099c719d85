//! Tests of reporters: sightings in, digests out.

use super::*;

const RING: [NodeId; 4] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];

fn at(ms: u64) -> Instant {
    Instant(0).plus_ms(1_000_000 + ms)
}

fn answers(node: u32) -> Sighting {
    Sighting {
        node: NodeId(node),
        result: StateCause::Serves,
        silent_ms: 0,
    }
}

fn silent(node: u32, silent_ms: u32) -> Sighting {
    Sighting {
        node: NodeId(node),
        result: StateCause::Hung,
        silent_ms,
    }
}

/// States of a digest, as (node, state).
fn shown(digest: &ZoneDigest) -> Vec<(u32, NodeState)> {
    let listed = digest.suspicions.iter();
    listed.map(|told| (told.node.0, told.state)).collect()
}

#[test]
fn a_node_is_down_where_both_neighbours_agree() {
    let mut report = ZoneReport::new(NodeId(1));
    report.take(NodeId(1), vec![answers(2), answers(4)], at(0));
    report.take(NodeId(2), vec![answers(1), answers(3)], at(0));
    report.take(NodeId(4), vec![answers(1), answers(3)], at(0));
    let digest = report.digest(&RING, at(0));
    assert_eq!((shown(&digest), digest.unknown), (vec![], vec![]));
    report.take(NodeId(2), vec![answers(1), silent(3, 3_000)], at(1_000));
    let digest = report.digest(&RING, at(1_000));
    assert_eq!(shown(&digest), [(3, NodeState::Suspect)]);
    assert_eq!(digest.suspicions[0].cause, StateCause::Disagreement);
    report.take(NodeId(4), vec![answers(1), silent(3, 3_100)], at(1_200));
    let digest = report.digest(&RING, at(1_200));
    assert_eq!(shown(&digest), [(3, NodeState::Down)]);
    assert_eq!(digest.suspicions[0].by, [NodeId(2), NodeId(4)]);
    // A watcher that starts anew tells nothing of it at first; it stays down.
    report.take(NodeId(4), vec![answers(1)], at(1_400));
    assert_eq!(
        shown(&report.digest(&RING, at(1_400))),
        [(3, NodeState::Down)]
    );
    // It is back for one, then for both.
    report.take(NodeId(4), vec![answers(1), answers(3)], at(1_600));
    assert_eq!(
        shown(&report.digest(&RING, at(1_600))),
        [(3, NodeState::Suspect)]
    );
    report.take(NodeId(2), vec![answers(1), answers(3)], at(1_800));
    assert_eq!(shown(&report.digest(&RING, at(1_800))), []);
}

#[test]
fn of_two_nodes_one_sighting_is_enough_and_one_watcher_of_many_is_not() {
    let mut report = ZoneReport::new(NodeId(1));
    report.take(NodeId(1), vec![silent(2, 3_000)], at(0));
    assert_eq!(
        shown(&report.digest(&RING[..2], at(0))),
        [(2, NodeState::Down)]
    );
    let mut report = ZoneReport::new(NodeId(1));
    // Node 2 hears nobody; the others hear each other, and not it.
    report.take(
        NodeId(2),
        vec![silent(1, 9_000), silent(3, 9_000), silent(4, 9_000)],
        at(0),
    );
    report.take(NodeId(1), vec![silent(2, 9_000), answers(4)], at(0));
    report.take(NodeId(3), vec![silent(2, 9_000), answers(4)], at(0));
    report.take(NodeId(4), vec![answers(1), answers(3)], at(0));
    let states = shown(&report.digest(&RING, at(0)));
    let suspect = NodeState::Suspect;
    assert_eq!(states, [(2, NodeState::Down), (3, suspect), (4, suspect)]);
}

#[test]
fn a_new_reporter_says_of_whom_it_does_not_know() {
    let mut report = ZoneReport::new(NodeId(2));
    report.take(NodeId(2), vec![silent(1, 3_000), answers(3)], at(0));
    let digest = report.digest(&RING, at(0));
    assert_eq!(shown(&digest), [(1, NodeState::Down)]);
    assert_eq!(digest.unknown, [NodeId(4)]);
    report.take(NodeId(4), vec![silent(1, 3_000), answers(3)], at(500));
    let digest = report.digest(&RING, at(500));
    assert_eq!(
        (shown(&digest), digest.unknown.len()),
        (vec![(1, NodeState::Down)], 0)
    );
    // Sightings that stop coming are no answers.
    let digest = report.digest(&RING, at(9_000));
    assert_eq!(shown(&digest), [(1, NodeState::Down)]);
}

#[test]
fn a_watcher_that_died_with_the_node_does_not_hold_it_up() {
    let mut report = ZoneReport::new(NodeId(1));
    report.take(NodeId(3), vec![answers(2), answers(4)], at(0));
    report.take(
        NodeId(1),
        vec![silent(2, 3_000), silent(3, 3_000), silent(4, 3_000)],
        at(4_000),
    );
    let down = |node| (node, NodeState::Down);
    assert_eq!(
        shown(&report.digest(&RING, at(4_000))),
        [down(2), down(3), down(4)]
    );
}

#[test]
fn a_digest_is_sent_at_a_change_and_once_a_period() {
    let mut report = ZoneReport::new(NodeId(1));
    let ring = &RING[..2];
    report.take(NodeId(1), vec![answers(2)], at(0));
    assert!(report.due(ring, at(0)).is_some());
    report.taken(Some(2_000));
    assert!(report.due(ring, at(1_500)).is_none());
    assert!(report.due(ring, at(2_000)).is_some());
    report.take(NodeId(1), vec![silent(2, 3_000)], at(2_100));
    assert!(report.due(ring, at(2_100)).is_none());
    let changed = report.due(ring, at(2_250)).unwrap();
    assert_eq!(shown(&changed), [(2, NodeState::Down)]);
    assert!(report.due(ring, at(3_000)).is_none());
}
