//! Requests to targets and their replies; `data` retries them.

use crate::cell::call::Call;
use crate::cell::call::SentRequest;
use crate::cell::owner::SessionOwner;
use crate::cell::placement::TargetPlace;
use crate::cell::zone_traffic::TrafficDirection;
use crate::transport::net::{Message, Net, ServerReply};
use crate::transport::retry::failure_code;
use zonal_types::{ClientIdentity, Codec, DataId, ErrorCode, Ino};
use zonal_wire::{Service, StorageReply, StorageRequest};

impl<C: SessionOwner> Call<'_, C> {
    /// Sends a request about a target itself; [`Self::storage_reply`] takes the reply.
    pub(crate) fn start_storage(
        &self,
        place: &TargetPlace,
        request: &StorageRequest,
    ) -> SentRequest<C::Net> {
        self.start_numbered(self.cell().identity(), place, request, (&[], 0), (0, 0))
    }

    /// Sends a read of a file.
    pub(crate) fn start_read(
        &self,
        ino: Ino,
        place: &TargetPlace,
        request: &StorageRequest,
    ) -> SentRequest<C::Net> {
        self.start_sunk(ino, place, request, 0)
    }

    /// Sends a read whose payload, of at most `room` bytes, is for a sink.
    pub(crate) fn start_sunk(
        &self,
        ino: Ino,
        place: &TargetPlace,
        request: &StorageRequest,
        room: usize,
    ) -> SentRequest<C::Net> {
        self.start_numbered(
            self.cell().identity_for(ino),
            place,
            request,
            (&[], room),
            (0, 0),
        )
    }

    pub(crate) fn start_numbered(
        &self,
        identity: ClientIdentity,
        place: &TargetPlace,
        request: &StorageRequest,
        (payload, room): (&[&[u8]], usize),
        (attempt, order): (u32, u64),
    ) -> SentRequest<C::Net> {
        let mut header = self.header(Service::Storage);
        header.epoch = place.epoch;
        header.identity = identity;
        header.sequence = attempt;
        header.order = order;
        header.is_guarded = place.is_guarded;
        let mut sent = self.start(
            &place.address,
            Message {
                node: place.node,
                header,
                body: &request.to_bytes(),
                payload,
                room,
            },
        );
        sent.data_id = request.object().map(|object| object.data_id);
        sent
    }

    /// Counts the payload of a request that succeeded, about an object of a file.
    pub(crate) fn count_traffic(
        &self,
        place: &TargetPlace,
        data_id: Option<DataId>,
        direction: TrafficDirection,
        bytes: usize,
    ) {
        if let Some(data_id) = data_id {
            let traffic = &self.cell().traffic;
            traffic.count(place.zone, data_id, direction, bytes);
        }
    }

    /// Receives one reply. `Failed` replies become errors.
    pub(crate) async fn storage_reply(
        &self,
        place: &TargetPlace,
        sent: SentRequest<C::Net>,
        out: Option<&mut [u8]>,
    ) -> Result<(StorageReply, usize), ErrorCode> {
        let (sent_bytes, data_id) = (sent.payload_bytes, sent.data_id);
        match self.finish(&place.address, sent, out).await {
            Ok(ServerReply {
                header,
                body,
                payload_bytes,
            }) => {
                self.cell().note_map_version(header.map_version);
                match StorageReply::from_bytes(&body).map_err(|_error| ErrorCode::Protocol)? {
                    StorageReply::Failed { code, .. } => Err(code.0),
                    StorageReply::Stale { map_version, .. } => {
                        self.cell().note_map_version(map_version);
                        Err(ErrorCode::StaleEpoch)
                    }
                    StorageReply::Overtaken { order } => {
                        self.cell().note_order(order);
                        Err(ErrorCode::Overtaken)
                    }
                    reply => {
                        match reply {
                            StorageReply::Read { .. } => {
                                let direction = TrafficDirection::Read;
                                self.count_traffic(place, data_id, direction, payload_bytes);
                            }
                            StorageReply::Written { .. } => {
                                let direction = TrafficDirection::Write;
                                self.count_traffic(place, data_id, direction, sent_bytes);
                            }
                            _ => {}
                        }
                        Ok((reply, payload_bytes))
                    }
                }
            }
            Err(failure) => {
                self.cell().net.complain(
                    self.context(),
                    &format!("target {} at {}", place.target, place.address),
                    "storage",
                    failure,
                );
                Err(failure_code(failure))
            }
        }
    }
}
