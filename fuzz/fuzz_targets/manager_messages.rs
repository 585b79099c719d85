//! Messages of the manager, of commands, agents and replicas. The first byte selects the kind; an
//! accepted message encodes to as many bytes again.
#![no_main]

mod feed;

use feed::{by_kind, feed};
use libfuzzer_sys::fuzz_target;
use zonal_wire::{
    AdminReply, AdminRequest, AgentReply, AgentRequest, ManagerReply, ManagerRequest,
    ReplicaReply, ReplicaRequest,
};

fuzz_target!(|data: &[u8]| by_kind(
    data,
    &[
        feed::<ManagerRequest>,
        feed::<ManagerReply>,
        feed::<AdminRequest>,
        feed::<AdminReply>,
        feed::<AgentRequest>,
        feed::<AgentReply>,
        feed::<ReplicaRequest>,
        feed::<ReplicaReply>,
    ]
));
