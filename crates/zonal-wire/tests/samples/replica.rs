//! Samples of messages of replicas.

use zonal_types::{Blob, ErrorCode, NodeId, ShardId};
use zonal_wire::{
    ErrorNumber, ReplicaPart, ReplicaReply, ReplicaReport, ReplicaRequest, StartMark, StoreStart,
};

pub fn replica_requests() -> Vec<ReplicaRequest> {
    let shard = ShardId(3);
    vec![
        ReplicaRequest::Exchange { shard },
        ReplicaRequest::SnapshotBegin { shard },
        ReplicaRequest::SnapshotRead {
            shard,
            snapshot: 0x1112_1314_1516_1718,
            after: Blob(b"key".to_vec()),
        },
        ReplicaRequest::Status { shard },
        ReplicaRequest::HandOver {
            shard,
            to: NodeId(9),
        },
        ReplicaRequest::Starts { shard },
    ]
}

pub fn replica_replies() -> Vec<ReplicaReply> {
    let mark = StartMark { number: 4, tag: 77 };
    let start = StoreStart {
        kind: 4,
        id: 2,
        uuid: *b"fedcba9876543210",
        mark,
        taken: mark,
        proposed: Vec::new(),
    };
    let report = ReplicaReport {
        node: NodeId(4),
        votes: true,
        is_heard: false,
        lag: Some(77),
    };
    vec![
        ReplicaReply::Failed {
            code: ErrorNumber(ErrorCode::NotOwner),
            detail: "no such replica".into(),
        },
        ReplicaReply::Done,
        ReplicaReply::Exchanged,
        ReplicaReply::Snapshot { snapshot: 5 },
        ReplicaReply::Entries {
            entries: vec![(Blob(b"key".to_vec()), Blob(b"value".to_vec()))],
            end: true,
        },
        ReplicaReply::Status {
            part: ReplicaPart::Leads,
            leader: NodeId(2),
            term: 8,
            last: 1000,
            committed: 999,
            others: vec![report],
        },
        ReplicaReply::Starts { start },
    ]
}
