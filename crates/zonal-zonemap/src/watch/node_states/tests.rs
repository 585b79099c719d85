//! Tests of the states of nodes: digests in, changes out.

use super::*;

const ZONE: ZoneId = ZoneId(1);
const WALL: Timestamp = Timestamp {
    seconds: 1_000,
    nanos: 0,
};

fn at(ms: u64) -> Instant {
    Instant(0).plus_ms(1_000_000 + ms)
}

fn members(nodes: u32) -> ZoneMembers {
    let mut members = ZoneMembers::default();
    members.insert(ZONE, (1..=nodes).map(NodeId).collect());
    members
}

fn digest(suspicions: &[(u32, NodeState)], unknown: &[u32]) -> ZoneDigest {
    let suspicions = suspicions.iter().map(|(node, state)| Suspicion {
        node: NodeId(*node),
        state: *state,
        cause: StateCause::Hung,
        by: vec![NodeId(1)],
    });
    ZoneDigest {
        suspicions: suspicions.collect(),
        unknown: unknown.iter().map(|node| NodeId(*node)).collect(),
    }
}

/// Takes a digest of a reporter; returns the changes in words.
fn take(
    states: &mut NodeStates,
    of: &ZoneMembers,
    (reporter, ms): (u32, u64),
    digest: ZoneDigest,
) -> Vec<String> {
    let changes = states.take((ZONE, NodeId(reporter)), digest, of, (at(ms), WALL));
    changes.iter().map(words).collect()
}

fn words(change: &StateChange) -> String {
    match change {
        CellChange::NodeState { node, state, .. } => format!("{node} {}", state.name()),
        CellChange::ZoneReports { reports, .. } => format!("zone reports {reports}"),
        CellChange::ClientLost { name, .. } => format!("{name} lost"),
    }
}

#[test]
fn a_digest_changes_states_once() {
    let of = members(4);
    let mut states = NodeStates::new(at(0));
    states.follow(&of, WALL);
    let down = || digest(&[(3, NodeState::Down)], &[]);
    assert!(take(&mut states, &of, (1, 0), digest(&[], &[])).is_empty());
    assert_eq!(take(&mut states, &of, (1, 100), down()), ["3 Down"]);
    assert!(take(&mut states, &of, (1, 1_100), down()).is_empty());
    // Another reporter begins, and does not know yet.
    assert!(take(&mut states, &of, (2, 4_500), digest(&[], &[3])).is_empty());
    assert_eq!(states.state(NodeId(3)), Some(NodeState::Down));
    assert_eq!(
        take(&mut states, &of, (2, 5_000), digest(&[], &[])),
        ["3 Up"]
    );
    // Nodes of elsewhere say nothing, and nothing is said of them.
    assert!(
        take(
            &mut states,
            &of,
            (9, 5_100),
            digest(&[(1, NodeState::Down)], &[])
        )
        .is_empty()
    );
    assert!(
        take(
            &mut states,
            &of,
            (1, 5_200),
            digest(&[(9, NodeState::Down)], &[])
        )
        .is_empty()
    );
    assert_eq!(states.count(NodeState::Up), 4);
}

#[test]
fn halves_of_a_zone_that_hear_only_themselves_are_suspect() {
    let of = members(4);
    let mut states = NodeStates::new(at(0));
    states.follow(&of, WALL);
    let (lower, upper) = ([1, 2], [3, 4]);
    let all = |nodes: [u32; 2]| digest(&nodes.map(|node| (node, NodeState::Down)), &[]);
    assert_eq!(
        take(&mut states, &of, (1, 0), all(upper)),
        ["3 Down", "4 Down"]
    );
    let changed = take(&mut states, &of, (3, 10), all(lower));
    assert_eq!(
        changed,
        ["1 Suspect", "2 Suspect", "3 Suspect", "4 Suspect"]
    );
    // The upper half is cut off from the manager too.
    take(&mut states, &of, (1, 2_000), all(upper));
    let changed = take(&mut states, &of, (1, 3_000), all(upper));
    assert_eq!(changed, ["1 Up", "2 Up", "3 Down", "4 Down"]);
}

/// Ticks from `from` to `to`; the manager's heartbeats get the result of `answer` at once, or none.
fn ticks(
    states: &mut NodeStates,
    of: &ZoneMembers,
    (from, to): (u64, u64),
    answer: impl Fn(NodeId) -> Option<StateCause>,
) -> Vec<(u64, String)> {
    let mut changed = Vec::new();
    for ms in (from..=to).step_by(250) {
        let orders = states.tick(of, (at(ms), WALL));
        changed.extend(orders.changes.iter().map(|change| (ms, words(change))));
        for node in orders.heartbeats {
            if let Some(result) = answer(node) {
                states.answered(node, result, at(ms));
            }
        }
    }
    changed
}

#[test]
fn a_lone_node_that_hangs_is_down_within_5_s() {
    let of = members(1);
    let mut states = NodeStates::new(at(0));
    states.follow(&of, WALL);
    take(&mut states, &of, (1, 0), digest(&[], &[]));
    let changed = ticks(&mut states, &of, (0, 4_750), |_| None);
    let last = changed.last().cloned();
    assert!(
        last.is_some_and(|(_, what)| what == "1 Down"),
        "{changed:?}"
    );
    assert_eq!(
        take(&mut states, &of, (1, 6_000), digest(&[], &[]))
            .last()
            .unwrap(),
        "1 Up"
    );
}

#[test]
fn a_silent_zone_is_one_event_and_its_first_nodes_are_looked_at() {
    let of = members(40);
    let mut states = NodeStates::new(at(0));
    states.follow(&of, WALL);
    take(&mut states, &of, (1, 0), digest(&[], &[]));
    let changed = ticks(&mut states, &of, (0, 5_000), |_| None);
    let zone = changed
        .iter()
        .filter(|(_, what)| what == "zone reports false");
    assert_eq!((zone.count(), states.silent_zones()), (1, 1));
    let down = changed.iter().filter(|(_, what)| what.ends_with("Down"));
    assert_eq!((down.count(), changed.len()), (8, 9));
    assert_eq!(states.state(NodeId(40)), Some(NodeState::Suspect));
    let back = take(&mut states, &of, (1, 6_000), digest(&[], &[]));
    assert_eq!((back.len(), back[0].as_str()), (9, "zone reports true"));
    assert_eq!(states.state(NodeId(40)), Some(NodeState::Up));
}

#[test]
fn between_two_reporters_a_zone_is_not_suspect() {
    let of = members(4);
    let mut states = NodeStates::new(at(0));
    states.follow(&of, WALL);
    take(&mut states, &of, (1, 0), digest(&[], &[]));
    let changed = ticks(&mut states, &of, (0, 5_000), |node| {
        (node != NodeId(1)).then_some(StateCause::Serves)
    });
    assert_eq!(
        changed.iter().map(|(_, what)| what).collect::<Vec<_>>(),
        ["1 Down"]
    );
}

#[test]
fn a_manager_that_was_stopped_blames_no_zone() {
    let of = members(4);
    let mut states = NodeStates::new(at(0));
    states.follow(&of, WALL);
    take(&mut states, &of, (1, 0), digest(&[], &[]));
    assert!(ticks(&mut states, &of, (0, 1_000), |_| None).is_empty());
    assert!(ticks(&mut states, &of, (60_000, 61_000), |_| None).is_empty());
    take(&mut states, &of, (1, 61_100), digest(&[], &[]));
    assert!(ticks(&mut states, &of, (61_250, 62_000), |_| None).is_empty());
}
