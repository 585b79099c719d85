//! Delivers messages: decides about delay, duplication and lateness, and passes each message to its
//! process.

use super::message_text::{describe_reply, describe_request};
use super::pending_replies::{Broken, PendingReply, ReplySlot};
use super::{NETWORK, Network, SimRequest};
use crate::clock::Group;
use crate::coverage::FaultKind;
use std::rc::Rc;
use zonal_client::NetFailure;
use zonal_types::Codec;
use zonal_wire::{MetaRequest, NO_SLOT, Service, StorageRequest};

/// Longest time between a sender's giving up and the arrival of a late change.
const LATE_MS_MAX: u64 = 20_000;

impl Network {
    /// Sends a request. The reply arrives in the returned [`PendingReply`].
    pub fn start(self: &Rc<Self>, from: &str, to: &str, request: &SimRequest) -> PendingReply {
        let place = Rc::new(ReplySlot::default());
        let deadline_ms = u64::from(request.header.deadline_ms);
        let deadline = self.clock.now().plus_ms(deadline_ms.max(1));
        let twice = may_arrive_twice(request) && {
            let duplicate = self.faults.get().duplicate;
            self.rng.borrow_mut().chance(duplicate)
        };
        if twice {
            self.count(FaultKind::Duplicate);
        }
        if request.header.service == Service::Storage {
            self.storage_requests.set(self.storage_requests.get() + 1);
        }
        let late_ms = self.late_ms(request, deadline_ms);
        let deaths = self.deaths_of(from);
        let group = self.servers.borrow().get(to).map(|server| server.group);
        for _ in 0..=u32::from(twice) {
            if let Some(delay) = self.travel(from, to) {
                let net = self.clone();
                let (from, to) = (from.to_owned(), to.to_owned());
                let (request, place) = (request.clone(), place.clone());
                self.clock.spawn(NETWORK, async move {
                    net.clock.sleep(delay + late_ms * 1_000_000).await;
                    if late_ms == 0 || net.deaths_of(&from) == deaths {
                        net.deliver(&from, &to, group, request, place);
                    }
                });
            }
        }
        PendingReply {
            place,
            deadline,
            clock: self.clock.clone(),
        }
    }

    /// Additional delay of a request: 0, or until its sender has given it up and gone on.
    fn late_ms(&self, request: &SimRequest, deadline_ms: u64) -> u64 {
        let late = self.faults.get().late;
        let may_be_late = request.header.service == Service::Replica || changes_an_object(request);
        if late == 0 || !may_be_late || !self.rng.borrow_mut().chance(late) {
            return 0;
        }
        self.count(FaultKind::LateChange);
        deadline_ms + self.rng.borrow_mut().below(LATE_MS_MAX)
    }

    /// Passes a request to its process, unless the process was restarted since: connections die
    /// with it.
    fn deliver(
        self: Rc<Self>,
        from: &str,
        to: &str,
        sent_to: Option<Group>,
        mut request: SimRequest,
        place: Rc<ReplySlot>,
    ) {
        for (at, named) in std::mem::take(&mut request.lent) {
            let out = request.payload.get_mut(at..).unwrap_or_default();
            if named.read(out) {
                self.count(FaultKind::LentReadLate);
            }
        }
        self.trace
            .note(self.clock.now(), from, to, &request.body, &request.payload);
        self.trace
            .say(self.clock.now(), &|| describe_request(from, to, &request));
        let served = {
            let servers = self.servers.borrow();
            let server = servers
                .get(to)
                .filter(|server| Some(server.group) == sent_to);
            server.and_then(|server| Some((server.group, server.role.clone()?)))
        };
        let (from, to) = (from.to_owned(), to.to_owned());
        let Some((group, role)) = served else {
            place.fill(Err(NetFailure::Unreachable));
            return;
        };
        let net = self.clone();
        self.clock.spawn(group, async move {
            let mut broken = Broken(Some(place));
            let mut header = request.header.reply();
            let mut answer = Rc::clone(&role)
                .handle(request.header, request.body, request.payload)
                .await;
            header.map_version = role.map_version();
            net.garbled(&from, &mut answer);
            header.body_bytes = answer.body.len() as u32;
            header.payload_bytes = answer.payload.len() as u32;
            let Some(place) = broken.0.take() else {
                return;
            };
            if let Some(delay) = net.travel(&to, &from) {
                let clock = net.clock.clone();
                net.clock.clone().spawn(NETWORK, async move {
                    clock.sleep(delay).await;
                    net.trace
                        .note(clock.now(), &to, &from, &answer.body, &answer.payload);
                    net.trace.say(clock.now(), &|| {
                        describe_reply(&to, &from, &header, &answer)
                    });
                    place.fill(Ok((header, answer)));
                });
            }
        });
    }
}

/// Whether the sender may send the request again: it has a session slot, or is idempotent.
fn may_arrive_twice(request: &SimRequest) -> bool {
    match request.header.service {
        Service::Meta => {
            request.header.slot != NO_SLOT
                || matches!(
                    MetaRequest::from_bytes(&request.body),
                    Ok(MetaRequest::Unlock { .. }
                        | MetaRequest::CancelLock { .. }
                        | MetaRequest::ReleaseLocks { .. })
                )
        }
        Service::Storage => matches!(
            StorageRequest::from_bytes(&request.body),
            Ok(StorageRequest::Read { .. }
                | StorageRequest::Truncate { .. }
                | StorageRequest::Stat { .. }
                | StorageRequest::Map { .. }
                | StorageRequest::Sync { .. }
                | StorageRequest::Delete { .. })
        ),
        _ => false,
    }
}

fn changes_an_object(request: &SimRequest) -> bool {
    request.header.service == Service::Storage
        && StorageRequest::from_bytes(&request.body).is_ok_and(|request| {
            request.changes_range() || matches!(request, StorageRequest::Truncate { .. })
        })
}
