//! Seeds of the simulator: good seeds stay good, the same seed gives the same trace, and planted
//! bugs are found.
//!
//! A seed repeats its run only with the code that it was found with. The seeds kept here were once
//! bad, and are run like any others.

use zonal_sim::coverage::FaultKind;
use zonal_sim::planted_bugs::PLANTS;
use zonal_sim::{BatchSummary, Plant, RunOptions, Scenario, run, run_batch};

/// Seeds of each `cargo test`.
const SEEDS: u64 = 200;
/// A planted bug must be found by this many seeds.
const FOUND_WITHIN: u64 = 1000;

fn of(scenario: Scenario) -> RunOptions {
    RunOptions {
        scenario,
        ..RunOptions::default()
    }
}

#[track_caller]
fn all_good(first: u64, count: u64, options: RunOptions) -> BatchSummary {
    let mut bad = Vec::new();
    let summary = run_batch(first, count, options, 2, |report| {
        if !report.is_good() {
            bad.push(report.to_string());
        }
        true
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    summary
}

#[test]
fn seeds_without_faults_are_good() {
    let options = RunOptions {
        faults: false,
        ..RunOptions::default()
    };
    all_good(1, 10, options);
    // Counts of allocated bytes are compared in runs without faults.
    let together = RunOptions {
        scenario: Scenario::Together,
        ..options
    };
    all_good(1, 60, together);
}

#[test]
fn seeds_with_faults_are_good_and_meet_every_kind_of_fault() {
    let summary = all_good(1, SEEDS, RunOptions::default());
    // These run by the names of their scenarios only (tests/moves.rs, tests/drains.rs,
    // tests/zones.rs).
    let of_scenarios = [
        FaultKind::Move,
        FaultKind::Drain,
        FaultKind::DrainEnded,
        FaultKind::Rebalance,
        FaultKind::RebalanceEnded,
        FaultKind::CopiesAdded,
        FaultKind::FileRestriped,
        FaultKind::CopiesLowered,
        FaultKind::TargetLost,
        FaultKind::ZoneAway,
    ];
    assert_eq!(summary.missing_faults(), of_scenarios.map(FaultKind::name));
    // Marks that few seeds reach, or only runs with far more clients and data.
    let seldom = [
        "AppendPassedOver",
        "CommitAgain",
        "DeleteInParts",
        "SizeToldAgain",
        "SessionLost",
        "SettledMeanwhile",
        "SlotLate",
        "WriteAfterDelete",
        "AppendUnknown",
        "AppendReclaimed",
        "ShardLostPower",
        "TruncateUnconfirmed",
        "LockAskedAgain",
        "MapReplaced",
        // A root that is silent for longer than a change of its leader: tests/silent_root.rs.
        "MirrorAsked",
        // Marks of moves.
        "PartitionArrived",
        "PartitionDeparted",
        "OwnerFollowed",
        // Of the scenario `copies` (tests/copies.rs).
        "OtherCopyAsked",
        "TargetTakenOut",
        "CopyMarkedStale",
        "FillingCopyChanged",
        "CopyMended",
        "CopyFilled",
        "FillOvertaken",
        "DamageRepaired",
        "SecondCopyAsked",
        // Of the scenario `writers` (tests/writers.rs).
        "ChangeOvertaken",
        "OvertakenSentAgain",
        // Of the scenario `drains` (tests/drains.rs).
        "ObjectRelocated",
        "LatePlaceChanged",
        "RelocationFilled",
        "ObjectShed",
        "FullPlaceGivenUp",
        "ObjectLeft",
        "LeftoverDeleted",
        "BytesSwapped",
        "SwapRefused",
        "CopyLeaves",
        "CopiesDropped",
        "LeavingCopyKept",
        // Marks of the scenario `appends`, which runs by name only (tests/appends.rs).
        "EndLent",
        "EndRecalled",
        "EndTakenAway",
        "EndReclaimed",
        "AppendsLost",
        "AppendsUnconfirmed",
    ];
    let missing = summary.missing_marks();
    let unexpected: Vec<_> = missing
        .iter()
        .filter(|name| !seldom.contains(name))
        .collect();
    assert!(unexpected.is_empty(), "no seed reached {unexpected:?}");
    assert!(summary.coverage.of(FaultKind::ClientCrash) > 0);
}

#[test]
fn seeds_with_killed_callers_are_good() {
    let summary = all_good(1, 30, of(Scenario::Callers));
    for fault in [FaultKind::CallerKilled, FaultKind::LentReadLate] {
        assert!(summary.coverage.of(fault) > 0, "{}", fault.name());
    }
}

#[test]
fn seeds_that_once_found_bugs_are_good() {
    // The shard's process lost or doubled acknowledged appends, and opens and locks were reported
    // never or twice.
    //
    // * 10801: a first-level directory was dropped whose entry was about to be made.
    // * 3, 7, 25, 49: a shard kept, as the reply of a request, that another shard did not answer.
    // * 4, 47, 61, 93, 212, 270, 372: a client heard late of a restart. An append was there twice,
    //   or another append's place was taken.
    let kill = [
        1, 5, 7, 16, 19, 56, 30317, 30713, 30428, 30899, 30382, 50042, 40270, 41060, 41271, 10801,
        11243, 3, 4, 7, 25, 47, 49, 61, 93, 212, 270, 372,
    ];
    // fsync returned for writes that a target had lost with its power before the sync.
    //
    // * 88, 110, 219: fsync of a directory returned though its shard had lost synced names.
    // * 566: objects were deleted before their file's removal was durable, and the file came back
    //   without them.
    let power = [30082, 30459, 30521, 88, 110, 219, 566];
    // 17323: a close was executed before a restart. It was answered after the client had told the
    // new shard that the files are open.
    //
    // * 463, 503: a create that was executed was refused at its repetition, because the shard's
    //   disk had become full.
    let media = [17_323, 463, 503];
    // 18576: a client kept a map with an address that a hostile reply had made up, since the
    // manager's map was not newer.
    // 500662: the sum of bytes that hostile targets claim to have freed overflowed.
    let hostile = [18_576, 500_662];
    // Each seed, with the error that it found:
    //
    // * 28, 62, 495, 721: an open with O_TRUNC failed where another client truncated the file
    //   repeatedly.
    // * 84: a flush that met an unknown session dropped its bytes, and the next fsync succeeded.
    // * 613, 772: an append came back at its place after a restart, though its file had been
    //   truncated before it.
    // * 30820, 31199: the oracle took a write for torn. A part of it was flushed before a
    //   truncation of its client that failed.
    // * 90108, 90140, 90145: the end of an append that was given up disowned unreported writes of
    //   its client.
    // * 8114: a read with own writes laid over it did not notice that truncations had met it.
    // * 90296: bytes that a target had not taken were gathered again over a newer write that was on
    //   its way.
    // * 7523, 7749, 7783, 7936, 30253, 30576, 61390: an append lost the place that it had, and left
    //   its bytes over another client's.
    //
    // Not 7135 and 30288: they meet bytes that a failed append may leave behind the end while
    // others have the file open (docs/semantics.md).
    let together = [
        28, 62, 84, 495, 613, 721, 772, 7394, 7546, 30820, 31199, 90_108, 90_140, 90_145, 8114,
        7523, 7749, 7783, 7936, 30253, 30576, 61390, 90_296,
    ];
    // 442, 572, 743, 775, 946: a truncation dropped bytes that a killed writer had left. The shard
    // did not know these bytes, and they showed when the file grew.
    let callers = [442, 572, 743, 775, 946];
    let seeds = [
        (Scenario::Callers, &callers[..]),
        (Scenario::Kill, &kill),
        (Scenario::Together, &together),
        (Scenario::Power, &power),
        (Scenario::Media, &media),
        (Scenario::Hostile, &hostile),
    ];
    for (scenario, seeds) in seeds {
        for seed in seeds {
            all_good(*seed, 1, of(scenario));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for scenario in [
        Scenario::Kill,
        Scenario::Together,
        Scenario::Callers,
        Scenario::Power,
        Scenario::Media,
        Scenario::Hostile,
        Scenario::Locks,
        Scenario::Appends,
        Scenario::Fences,
    ] {
        for seed in [3, 7] {
            assert_eq!(run(seed, of(scenario)), run(seed, of(scenario)));
        }
        let other = run(4, of(scenario));
        assert_ne!(run(3, of(scenario)).trace, other.trace);
    }
}

/// The text that the report must contain, and the scenario that finds the bug soonest.
fn finder(plant: Plant) -> (&'static str, Scenario) {
    match plant {
        Plant::None => ("-", Scenario::Any),
        // Found by the exact model: an operation gets the answer of another one.
        Plant::ShardForgetsReplies => ("the model says", Scenario::Kill),
        Plant::ShardLosesChanges => ("invariant 2", Scenario::Kill),
        Plant::SyncDoesNothing | Plant::ShardSyncDoesNothing | Plant::AttemptsAreIgnored => {
            ("invariant 3", Scenario::Power)
        }
        Plant::EventsAreIgnored => ("invariant 4", Scenario::Kill),
        Plant::ReadsAreUnverified => ("invariant 5", Scenario::Media),
        Plant::DecoderTrusts => ("invariant 6", Scenario::Hostile),
        Plant::TruncationsAreForgotten => ("invariant 4", Scenario::Together),
        Plant::TargetIgnoresTruncation => ("the model has", Scenario::Kill),
        Plant::EpochsAreMixed => ("invariant 7: target", Scenario::Kill),
        Plant::WaitsAreKept => ("invariant 8", Scenario::Kill),
        Plant::DeletionsAreLost => ("invariant 9", Scenario::Kill),
        Plant::AllocatedIsMiscounted => ("allocated bytes; its targets hold", Scenario::Kill),
        Plant::ColumnsAreMixed => ("invariant 10", Scenario::Kill),
        Plant::CopiesAreShifted => ("copies:", Scenario::Copies),
        Plant::OrdersAreIgnored => ("copies:", Scenario::Writers),
        // A copy that misses changes is read.
        Plant::MarksAreForgotten => ("the model", Scenario::Copies),
        Plant::FillsAreEmpty => ("copies:", Scenario::Copies),
        // A new place misses a change, so that a byte is older than the model's, or than the one
        // that was read before. Targets refuse reads of an old place.
        Plant::RelocationsAreHidden => (": byte ", Scenario::Drains),
        Plant::EndsOutliveSessions | Plant::LostAppendsAreRepeated => {
            ("records:", Scenario::Appends)
        }
        // Another write's bytes are in the place of an append that was given up, or for a while in
        // the place of a write.
        Plant::LentIsReused => ("invariant 4", Scenario::Callers),
        Plant::CallsBeforeReply => ("after its record was logged", Scenario::Kill),
        Plant::DeadlinesAreIgnored => ("answered after its deadline", Scenario::Kill),
        Plant::FencesAreForgotten | Plant::LocksBeforeFences => {
            ("a fenced client", Scenario::Fences)
        }
        Plant::VotesAreAssumed => ("lead in term", Scenario::Replicas),
        Plant::EntriesAreWrittenLate => ("without entry", Scenario::Replicas),
        Plant::RepliesBeforeCommit => ("is committed", Scenario::Replicas),
        Plant::LeasesAreIgnored => ("answers as leader", Scenario::Replicas),
        Plant::LossesAreUntold => ("may have lost entries", Scenario::Replicas),
        Plant::MapsBeforeCommit => ("map: version", Scenario::Maps),
        Plant::FlushesAreForgotten => ("has not flushed", Scenario::Replicas),
        Plant::ClosesNameOwners | Plant::TakeBacksNameOwners => ("locks:", Scenario::Locks),
    }
}

#[test]
fn every_planted_bug_is_found() {
    for (name, plant) in PLANTS {
        let (word, scenario) = finder(plant);
        assert!(!word.is_empty(), "{name}: any report would do");
        let options = RunOptions {
            plant,
            // Lost replies and dead clients leave bytes uncounted, which is no bug: counts are
            // compared without faults.
            faults: plant != Plant::AllocatedIsMiscounted,
            ..of(scenario)
        };
        let mut found = None;
        run_batch(1, FOUND_WITHIN, options, 2, |report| {
            if report.broken.iter().any(|broken| broken.contains(word)) {
                found = Some(report.seed);
            }
            found.is_none()
        });
        assert!(
            found.is_some(),
            "{name} is not found by {FOUND_WITHIN} seeds"
        );
    }
}
