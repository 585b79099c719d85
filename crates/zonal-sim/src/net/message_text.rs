//! Texts of messages, for traces.

use super::{SimReply, SimRequest};
use zonal_consensus::PeerMessage;
use zonal_types::Codec;
use zonal_wire::{
    Header, MetaReply, MetaRequest, NO_SLOT, ReplicaReply, ReplicaRequest, Service, StorageReply,
    StorageRequest,
};

pub(super) fn describe_request(from: &str, to: &str, request: &SimRequest) -> String {
    let header = &request.header;
    let body = &request.body;
    let message = match header.service {
        Service::Meta => MetaRequest::from_bytes(body).map(|message| format!("{message:?}")),
        Service::Storage => StorageRequest::from_bytes(body).map(|message| format!("{message:?}")),
        Service::Replica => return format!("{from} > {to}: {}", describe_replica(request)),
        _ => return format!("{from} > {to}: manager"),
    };
    let slot = (header.slot != NO_SLOT).then_some((header.slot, header.sequence));
    let message = message.unwrap_or_default();
    format!(
        "{from} > {to}: session {} slot {slot:?} {message} +{}",
        header.session,
        request.payload.len()
    )
}

pub(super) fn describe_reply(from: &str, to: &str, header: &Header, answer: &SimReply) -> String {
    let body = &answer.body;
    let message = match header.service {
        Service::Meta => MetaReply::from_bytes(body).map(|message| format!("{message:?}")),
        Service::Storage => StorageReply::from_bytes(body).map(|message| format!("{message:?}")),
        Service::Replica => {
            let reply = ReplicaReply::from_bytes(body).map_or("garbled", |reply| reply.name());
            return format!("{to} < {from}: {reply} +{}", answer.payload.len());
        }
        _ => return format!("{to} < {from}: manager"),
    };
    let slot = (header.slot != NO_SLOT).then_some((header.slot, header.sequence));
    format!(
        "{to} < {from}: slot {slot:?} {} +{}",
        message.unwrap_or_default(),
        answer.payload.len()
    )
}

fn describe_replica(request: &SimRequest) -> String {
    let asked = ReplicaRequest::from_bytes(&request.body);
    let asked = asked.map_or("garbled", |asked| asked.name());
    let messages = Vec::<PeerMessage>::from_bytes(&request.payload).unwrap_or_default();
    let messages: Vec<String> = messages.iter().map(describe_peer).collect();
    format!("{asked} {}", messages.join(", "))
}

fn describe_peer(message: &PeerMessage) -> String {
    let part = message.raft.as_ref().map(|part| {
        let entries = part.entries.len();
        format!(
            " kind {} of {} {}+{entries} commit {} no {}",
            part.kind, part.term, part.index, part.commit, part.is_rejected
        )
    });
    format!(
        "term {}{}{}",
        message.term,
        if message.is_quarantined { " ward" } else { "" },
        part.unwrap_or_default()
    )
}
