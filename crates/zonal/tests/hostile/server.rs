//! Calls to a service in valid frames, whose replies must be typed. Bodies are random, or valid
//! ones with changes; some headers are odd.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

use std::net::SocketAddr;
use zonal_net::{Address, NetError, PayloadInto, Pool, Request};
use zonal_testkit::Rng;
use zonal_types::{CellId, ClientId, ClientIdentity, Codec, Epoch, MapVersion, SessionId, ZoneId};
use zonal_wire::{
    AdminReply, Header, ManagerReply, ManagerRequest, MetaReply, MetaRequest, Service,
    StorageReply, StorageRequest,
};
use zonal_zonemap::MapEdit;

pub const RANDOM_PER_SERVICE: usize = 120;

pub const MUTATED_PER_SERVICE: usize = 350;

/// Boundary values of numbers.
pub const EDGES: [u64; 8] = [
    0,
    1,
    (4 << 20) + 1,
    u32::MAX as u64,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX,
];

/// A service under test and the state of the connection to it.
pub struct Server<'a> {
    pub pool: &'a Pool,
    pub to: SocketAddr,
    pub service: Service,
    pub session: SessionId,
    pub identity: ClientIdentity,
    pub sequence: u32,
    pub sent: usize,
    pub refused: usize,
}

impl<'a> Server<'a> {
    pub fn new(pool: &'a Pool, to: SocketAddr, service: Service) -> Self {
        Self {
            pool,
            to,
            service,
            session: SessionId(0),
            identity: ClientIdentity::default(),
            sequence: 0,
            sent: 0,
            refused: 0,
        }
    }

    /// A header that a well-behaved client would send.
    pub fn header(&mut self) -> Header {
        self.sequence += 1;
        let mut header = Header::request(self.service, CellId::default());
        header.session = self.session;
        header.identity = self.identity;
        if self.service == Service::Meta {
            header.slot = 0;
            header.sequence = self.sequence;
        }
        header
    }

    /// The reply's body; `None` where the connection was closed.
    pub fn send(&mut self, header: Header, body: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        self.sent += 1;
        let request = Request {
            operation: "a hostile request",
            header,
            body,
            payload: &[payload],
            room: 0,
        };
        let to = Address::any_node(self.to);
        let start = &body[..body.len().min(80)];
        match self.pool.call(to, request, PayloadInto::Owned) {
            Ok(reply) => {
                self.check(&reply.body, start);
                Some(reply.body)
            }
            Err(error @ (NetError::TimedOut { .. } | NetError::Unreachable { .. })) => {
                panic!("{:?}: {error}; request {start:?}", self.service)
            }
            Err(_closed) => {
                self.refused += 1;
                None
            }
        }
    }

    pub fn check(&self, body: &[u8], request: &[u8]) {
        let is_typed = match self.service {
            Service::Meta => MetaReply::from_bytes(body).is_ok(),
            Service::Storage => StorageReply::from_bytes(body).is_ok(),
            Service::Admin => AdminReply::from_bytes(body).is_ok(),
            _ => ManagerReply::from_bytes(body).is_ok(),
        };
        assert!(is_typed, "reply {body:?} to {request:?}");
    }

    pub fn meta(&mut self, request: &MetaRequest) -> MetaReply {
        let header = self.header();
        let body = self.send(header, &request.to_bytes(), &[]);
        MetaReply::from_bytes(&body.unwrap_or_else(|| panic!("closed at {request:?}"))).unwrap()
    }

    pub fn storage(&mut self, request: &StorageRequest, payload: &[u8]) -> StorageReply {
        let header = self.header();
        let body = self.send(header, &request.to_bytes(), payload);
        StorageReply::from_bytes(&body.unwrap()).unwrap()
    }

    pub fn manager(&mut self, request: &ManagerRequest) -> ManagerReply {
        let header = self.header();
        let body = self.send(header, &request.to_bytes(), &[]);
        ManagerReply::from_bytes(&body.unwrap()).unwrap()
    }

    pub fn open_session(&mut self, client: u64) {
        self.identity = ClientIdentity::first(ClientId(client));
        let request = MetaRequest::OpenSession {
            zone: ZoneId(1),
            name: "hostile".into(),
        };
        match self.meta(&request) {
            MetaReply::Session { session, .. } => self.session = session,
            other => panic!("{other:?}"),
        }
    }

    pub fn random_bodies(&mut self, random: &mut Rng) {
        for _ in 0..RANDOM_PER_SERVICE {
            let count = random.index(400);
            let mut body = random.bytes(count);
            // Half of them have a valid tag.
            if let (0, Some(tag)) = (random.below(2), body.first_mut()) {
                *tag %= 85;
            }
            if self.is_harmless(&body) {
                let header = self.header();
                self.send(header, &body, &[]);
            }
        }
    }

    pub fn mutated(&mut self, random: &mut Rng, valid: &[Vec<u8>]) {
        for round in 0..MUTATED_PER_SERVICE {
            let mut body = valid[round % valid.len()].clone();
            body.truncate(4096);
            if random.below(3) == 0 {
                body.truncate(random.index(body.len() + 1));
            }
            for _ in 0..=random.below(4) {
                if !body.is_empty() {
                    let bit = random.index(body.len() * 8);
                    body[bit / 8] ^= 1 << (bit % 8);
                }
            }
            if self.is_harmless(&body) {
                let header = self.header();
                self.send(header, &body, &[]);
            }
        }
    }

    /// Whether a request can be sent as noise: it does not wait, end the session, or add to the
    /// map.
    pub fn is_harmless(&self, body: &[u8]) -> bool {
        match self.service {
            Service::Meta => !matches!(
                MetaRequest::from_bytes(body),
                Ok(MetaRequest::PollEvents { .. }
                    | MetaRequest::CloseSession
                    | MetaRequest::EvictSession)
            ),
            Service::Storage | Service::Admin => true,
            _ => match ManagerRequest::from_bytes(body) {
                Ok(ManagerRequest::Join { .. }) => false,
                Ok(ManagerRequest::Edit { edits, .. }) => {
                    Vec::<MapEdit>::from_bytes(&edits.0).is_err()
                }
                _ => true,
            },
        }
    }

    /// Sends headers whose fields name nothing.
    pub fn odd_headers(&mut self, body: &[u8]) {
        for edge in EDGES {
            for field in 0..6 {
                let mut header = self.header();
                match field {
                    0 => header.session = SessionId(edge),
                    1 => header.slot = edge as u32,
                    2 => header.map_version = MapVersion(edge),
                    3 => header.epoch = Epoch(edge),
                    4 => header.identity.client = ClientId(edge.max(1)),
                    // A repeat or a step back; steps ahead would use the slot up.
                    _ => (header.slot, header.sequence) = (1, edge as u32),
                }
                self.send(header, body, &[1; 64]);
            }
        }
    }
}
