//! The frame: a fixed header of 128 bytes, then body, TLV area and payload.
//!
//! ```text
//!  offset size field              meaning
//!       0    4 magic              "ZNL1"
//!       4    2 version            1
//!       6    1 service            1 meta, 2 storage, 3 manager, 4 connection (hello), 5 admin,
//!                                  6 agent, 7 replica
//!       7    1 kind               1 request, 2 reply
//!       8    4 flags              bit 0: payload_crc is set; bit 1: room for the reply;
//!                                  bit 2: guarded; others 0
//!      12    4 body length        bytes of the encoded message
//!      16    4 payload length     raw bytes behind body and TLVs
//!      20    2 tlv length         bytes of the TLV area
//!      22    2 payload kind       0 none, 1 inline, 2 region (3 descriptor+extent: reserved)
//!      24   16 cell id
//!      40    8 session
//!      48    4 slot               u32::MAX: not a slotted request
//!      52    4 sequence
//!      56    8 map version        what the sender has, a hint
//!      64    8 epoch              of the thing touched (shard or slot); 0: none
//!      72    8 client             who sends the request; 0: a server or a command
//!      80    4 deadline           ms that the sender will wait; 0: the server's default
//!      84    4 request id         echoed in the reply
//!      88    8 trace id
//!      96    4 payload crc32c
//!     100    8 region offset      of the payload, or of the reply's room, in the region
//!     108    4 room length        bytes of that room
//!     112    4 incarnation        the client's; 0 where there is none
//!     116    8 order              of a change of a file with copies; 0: none, and in replies
//!     124    4 header crc32c      over bytes 0..124
//! ```
//! Integers are little-endian. Every field is checked before anything is allocated.

use zonal_types::limits::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX, TLV_BYTES_MAX};
use zonal_types::{
    CellId, ClientId, ClientIdentity, Codec, CodecError, Epoch, ErrorCode, Incarnation, MapVersion,
    Reader, SessionId, TraceId,
};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;
/// First four bytes of each frame.
pub const MAGIC: [u8; 4] = *b"ZNL1";
/// Feature: payloads may lie in a region that the client shares with a server on its machine.
pub const FEATURE_REGION: u64 = 1;
/// Feature: once both sides have proved their identity, frames are sent in the clear.
pub const FEATURE_PLAIN: u64 = 2;
/// Version of the protocol.
pub const VERSION: u16 = 1;
/// `slot` of a request that is not exactly-once.
pub const NO_SLOT: u32 = u32::MAX;

/// Payload kinds.
const NONE: u16 = 0;
const INLINE: u16 = 1;
const REGION: u16 = 2;
/// Flags.
const HAS_CRC: u32 = 1;
const HAS_ROOM: u32 = 2;
const IS_GUARDED: u32 = 4;

/// The addressee of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// A metadata shard.
    Meta,
    /// A storage target.
    Storage,
    /// The manager of the zone map.
    Manager,
    /// The connection itself: hello and proof.
    Connection,
    /// The server's own state, for commands.
    Admin,
    /// The agent that runs jobs on the node.
    Agent,
    /// A shard's replica, for others of its group.
    Replica,
}

impl Service {
    fn number(self) -> u8 {
        match self {
            Self::Meta => 1,
            Self::Storage => 2,
            Self::Manager => 3,
            Self::Connection => 4,
            Self::Admin => 5,
            Self::Agent => 6,
            Self::Replica => 7,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Meta,
            2 => Self::Storage,
            3 => Self::Manager,
            4 => Self::Connection,
            5 => Self::Admin,
            6 => Self::Agent,
            7 => Self::Replica,
            _ => return None,
        })
    }
}

/// Place of a request's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PayloadAt {
    /// Behind body and TLVs.
    #[default]
    Inline,
    /// In the client's region. Request: from this byte on. Reply: at the front of the room that the
    /// request gave.
    Region {
        /// Byte of the region; 0 in a reply.
        offset: u64,
    },
}

/// The part of the client's region that may take the payload of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// First byte in the region.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// The header, decoded and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The addressee.
    pub service: Service,
    /// False for a reply.
    pub is_request: bool,
    /// Bytes of the encoded message.
    pub body_bytes: u32,
    /// Bytes of raw payload.
    pub payload_bytes: u32,
    /// Bytes of the TLV area.
    pub tlv_bytes: u16,
    /// The cell.
    pub cell: CellId,
    /// The sender's session at this server; 0 before there is one.
    pub session: SessionId,
    /// Slot of an exactly-once request, or [`NO_SLOT`].
    pub slot: u32,
    /// Sequence in the slot.
    pub sequence: u32,
    /// The zone map that the sender has (a hint).
    pub map_version: MapVersion,
    /// Epoch of the shard or slot touched; 0: none.
    pub epoch: Epoch,
    /// The client that sends it; none where a server or a command does.
    pub identity: ClientIdentity,
    /// Milliseconds that the sender will wait.
    pub deadline_ms: u32,
    /// Echoed in the reply.
    pub request_id: u32,
    /// Follows the operation through servers and logs.
    pub trace: TraceId,
    /// Checksum of the payload, where there is one.
    pub payload_crc: Option<u32>,
    /// Where the payload is.
    pub payload_at: PayloadAt,
    /// In a request without a payload: room for the reply's payload.
    pub room: Option<Room>,
    /// Order of a change of a file with copies: all copies make changes by it. 0: none.
    pub order: u64,
    /// A request about a file with copies: a target carries it out only under a lease of the
    /// manager.
    pub is_guarded: bool,
}

impl Header {
    /// A request header with nothing set but its service and cell.
    #[must_use]
    pub fn request(service: Service, cell: CellId) -> Self {
        Self {
            service,
            is_request: true,
            body_bytes: 0,
            payload_bytes: 0,
            tlv_bytes: 0,
            cell,
            session: SessionId(0),
            slot: NO_SLOT,
            sequence: 0,
            map_version: MapVersion(0),
            epoch: Epoch(0),
            identity: ClientIdentity::default(),
            deadline_ms: 0,
            request_id: 0,
            trace: TraceId(0),
            payload_crc: None,
            payload_at: PayloadAt::Inline,
            room: None,
            order: 0,
            is_guarded: false,
        }
    }

    /// The header of the reply to this request.
    #[must_use]
    pub fn reply(&self) -> Self {
        Self {
            is_request: false,
            body_bytes: 0,
            payload_bytes: 0,
            tlv_bytes: 0,
            payload_crc: None,
            payload_at: PayloadAt::Inline,
            room: None,
            order: 0,
            is_guarded: false,
            ..*self
        }
    }

    /// Bytes of payload that follow on the stream.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        match self.payload_at {
            PayloadAt::Inline => self.payload_bytes as usize,
            PayloadAt::Region { .. } => 0,
        }
    }

    fn payload_kind(&self) -> u16 {
        match self.payload_at {
            _ if self.payload_bytes == 0 => NONE,
            PayloadAt::Inline => INLINE,
            PayloadAt::Region { .. } => REGION,
        }
    }

    /// The byte form.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        MAGIC.put(&mut out);
        VERSION.put(&mut out);
        self.service.number().put(&mut out);
        (if self.is_request { 1_u8 } else { 2 }).put(&mut out);
        let crc = if self.payload_crc.is_some() {
            HAS_CRC
        } else {
            0
        };
        let room = if self.room.is_some() { HAS_ROOM } else { 0 };
        let guarded = if self.is_guarded { IS_GUARDED } else { 0 };
        (crc | room | guarded).put(&mut out);
        self.body_bytes.put(&mut out);
        self.payload_bytes.put(&mut out);
        self.tlv_bytes.put(&mut out);
        self.payload_kind().put(&mut out);
        self.cell.put(&mut out);
        self.session.put(&mut out);
        self.slot.put(&mut out);
        self.sequence.put(&mut out);
        self.map_version.put(&mut out);
        self.epoch.put(&mut out);
        self.identity.client.put(&mut out);
        self.deadline_ms.put(&mut out);
        self.request_id.put(&mut out);
        self.trace.put(&mut out);
        self.payload_crc.unwrap_or(0).put(&mut out);
        match (self.room, self.payload_at) {
            (Some(room), _) => {
                room.offset.put(&mut out);
                room.length.put(&mut out);
            }
            (None, PayloadAt::Region { offset }) => (offset, 0_u32).put(&mut out),
            (None, PayloadAt::Inline) => (0_u64, 0_u32).put(&mut out),
        }
        self.identity.incarnation.put(&mut out);
        self.order.put(&mut out);
        crc32c(&out).put(&mut out);
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    /// Decodes and checks a header.
    ///
    /// # Errors
    /// `WrongVersion` for another version, `Protocol` for anything else that is wrong.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ErrorCode> {
        let (checked, crc) = bytes.split_at(HEADER_BYTES - 4);
        if checked[..4] != MAGIC {
            return Err(ErrorCode::Protocol);
        }
        if u32::from_bytes(crc) != Ok(crc32c(checked)) {
            return Err(ErrorCode::Protocol);
        }
        Self::decode_fields(&mut Reader::new(&checked[4..])).map_err(|error| match error {
            Refused::Version => ErrorCode::WrongVersion,
            Refused::Field => ErrorCode::Protocol,
        })
    }

    /// Whether the flags are known, and a reply has nothing that only a request has.
    fn flags_fit(&self, flags: u32) -> bool {
        let is_known = flags & !(HAS_CRC | HAS_ROOM | IS_GUARDED) == 0;
        is_known && (self.is_request || !(self.is_guarded || self.order > 0))
    }

    fn decode_fields(from: &mut Reader<'_>) -> Result<Self, Refused> {
        if u16::get(from)? != VERSION {
            return Err(Refused::Version);
        }
        let service = Service::from_number(u8::get(from)?).ok_or(Refused::Field)?;
        let is_request = match u8::get(from)? {
            1 => true,
            2 => false,
            _ => return Err(Refused::Field),
        };
        let flags = u32::get(from)?;
        let body_bytes = u32::get(from)?;
        let payload_bytes = u32::get(from)?;
        let tlv_bytes = u16::get(from)?;
        let payload_kind = u16::get(from)?;
        let header = Self {
            service,
            is_request,
            body_bytes,
            payload_bytes,
            tlv_bytes,
            cell: CellId::get(from)?,
            session: SessionId::get(from)?,
            slot: u32::get(from)?,
            sequence: u32::get(from)?,
            map_version: MapVersion::get(from)?,
            epoch: Epoch::get(from)?,
            identity: ClientIdentity {
                client: ClientId::get(from)?,
                incarnation: Incarnation(0),
            },
            deadline_ms: u32::get(from)?,
            request_id: u32::get(from)?,
            trace: TraceId::get(from)?,
            payload_crc: Some(u32::get(from)?).filter(|_| flags & HAS_CRC != 0),
            payload_at: PayloadAt::Inline,
            room: None,
            order: 0,
            is_guarded: false,
        };
        let (offset, length) = (u64::get(from)?, u32::get(from)?);
        let room = (flags & HAS_ROOM != 0).then_some(Room { offset, length });
        let payload_at = match payload_kind {
            REGION => PayloadAt::Region { offset },
            _ => PayloadAt::Inline,
        };
        let identity = ClientIdentity {
            incarnation: Incarnation::get(from)?,
            ..header.identity
        };
        let header = Self {
            identity,
            payload_at,
            room,
            order: u64::get(from)?,
            is_guarded: flags & IS_GUARDED != 0,
            ..header
        };
        // Bytes in a region are in no frame: they have no checksum here.
        let kind_fits = payload_kind == header.payload_kind()
            && (payload_kind != REGION || header.payload_crc.is_none());
        // A payload goes one way, in a request or in its reply.
        let room_fits = match room {
            Some(room) => is_request && payload_bytes == 0 && room.length > 0,
            None => length == 0 && (offset == 0 || (payload_kind == REGION && is_request)),
        };
        let fits = header.sizes_fit() && header.flags_fit(flags) && identity.is_valid();
        match fits && kind_fits && room_fits {
            true => Ok(header),
            false => Err(Refused::Field),
        }
    }

    /// Whether body, payload and extensions keep to their limits.
    fn sizes_fit(&self) -> bool {
        self.body_bytes as usize <= BODY_BYTES_MAX
            && self.payload_bytes as usize <= PAYLOAD_BYTES_MAX
            && usize::from(self.tlv_bytes) <= TLV_BYTES_MAX
    }
}

enum Refused {
    Version,
    Field,
}

impl From<CodecError> for Refused {
    fn from(_error: CodecError) -> Self {
        Self::Field
    }
}

/// The checksum of headers and payloads: CRC-32C (RFC 3720, appendix B.4).
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "CRC-32C has 32 bits")]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            body_bytes: 17,
            payload_bytes: 4096,
            slot: 3,
            sequence: 9,
            payload_crc: Some(0xdead_beef),
            trace: TraceId(42),
            identity: ClientIdentity {
                client: ClientId(0x77),
                incarnation: Incarnation(2),
            },
            ..Header::request(Service::Storage, CellId([7; 16]))
        }
    }

    #[test]
    fn headers_come_back_whole() {
        let header = sample();
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        let guarded = Header {
            is_guarded: true,
            ..header
        };
        assert_eq!(Header::decode(&guarded.encode()), Ok(guarded));
        let reply = guarded.reply();
        assert_eq!(Header::decode(&reply.encode()), Ok(reply));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let good = sample().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_region_is_named_where_it_has_a_meaning_and_nowhere_else() {
        let request = Header {
            payload_bytes: 0,
            payload_crc: None,
            ..sample()
        };
        let room = Some(Room {
            offset: 9,
            length: 4,
        });
        let there = PayloadAt::Region { offset: 9 };
        let bad = [
            // A guard of a reply, and its order.
            Header {
                is_guarded: true,
                ..request.reply()
            },
            Header {
                order: 1,
                ..request.reply()
            },
            // A room without bytes, in a reply, beside a payload.
            Header {
                room: Some(Room {
                    offset: 9,
                    length: 0,
                }),
                ..request
            },
            Header {
                room,
                ..request.reply()
            },
            Header {
                room,
                payload_bytes: 4,
                ..request
            },
            // A checksum of bytes outside of the frame, a room in a reply, an empty place.
            Header {
                payload_at: there,
                ..sample()
            },
            Header {
                payload_at: there,
                payload_bytes: 4,
                ..request.reply()
            },
            Header {
                payload_at: there,
                ..request
            },
        ];
        for header in bad {
            let decoded = Header::decode(&header.encode());
            assert_eq!(decoded, Err(ErrorCode::Protocol), "{header:?}");
        }
    }

    #[test]
    fn an_incarnation_is_of_a_client() {
        for identity in [
            ClientIdentity::first(ClientId(0)),
            ClientIdentity {
                client: ClientId(7),
                incarnation: Incarnation(0),
            },
        ] {
            let header = Header {
                identity,
                ..sample()
            };
            assert_eq!(Header::decode(&header.encode()), Err(ErrorCode::Protocol));
        }
    }

    #[test]
    fn lengths_past_their_bounds_are_refused() {
        let too_long = Header {
            body_bytes: BODY_BYTES_MAX as u32 + 1,
            ..sample()
        };
        assert_eq!(Header::decode(&too_long.encode()), Err(ErrorCode::Protocol));
        let too_long = Header {
            payload_bytes: PAYLOAD_BYTES_MAX as u32 + 1,
            ..sample()
        };
        assert_eq!(Header::decode(&too_long.encode()), Err(ErrorCode::Protocol));
    }
}
