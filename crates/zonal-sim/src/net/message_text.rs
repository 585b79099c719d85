//! Texts of messages, for traces.

use super::{SimReply, SimRequest};
use zonal_types::Codec;
use zonal_wire::{Header, MetaReply, MetaRequest, NO_SLOT, Service, StorageReply, StorageRequest};

pub(super) fn describe_request(from: &str, to: &str, request: &SimRequest) -> String {
    let header = &request.header;
    let body = &request.body;
    let message = match header.service {
        Service::Meta => MetaRequest::from_bytes(body).map(|message| format!("{message:?}")),
        Service::Storage => StorageRequest::from_bytes(body).map(|message| format!("{message:?}")),
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
        _ => return format!("{to} < {from}: manager"),
    };
    let slot = (header.slot != NO_SLOT).then_some((header.slot, header.sequence));
    format!(
        "{to} < {from}: slot {slot:?} {} +{}",
        message.unwrap_or_default(),
        answer.payload.len()
    )
}
