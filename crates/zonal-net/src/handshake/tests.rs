//! Handshake messages round trip.

use super::*;

#[test]
fn handshake_messages_round_trip_and_prefixes_are_refused() {
    let hello = Hello {
        version_min: 1,
        version_max: 2,
        cell: CellId([9; 16]),
        role: Role::Tool,
        node: NodeId(3),
        zone: ZoneId(2),
        features: 5,
    };
    let reply = HelloReply {
        version: 1,
        cell: CellId([9; 16]),
        role: Role::Server,
        node: NodeId(4),
        features: 1,
    };
    for message in [
        Handshake::Hello { hello },
        Handshake::HelloReply { reply },
        Handshake::Refused { code: 203 },
        Handshake::Claim {
            claim: TokenClaim {
                id: [1; 8],
                proof: [2; 32],
            },
        },
        Handshake::Claimed {
            outcome: ClaimOutcome::Sealed {
                sealed: zonal_types::Blob(vec![3; 9]),
            },
        },
    ] {
        let bytes = message.to_bytes();
        assert!(bytes.len() <= FrameBounds::HANDSHAKE.body);
        assert_eq!(Handshake::from_bytes(&bytes), Ok(message));
        for end in 0..bytes.len() {
            assert!(Handshake::from_bytes(&bytes[..end]).is_err());
        }
    }
}
