//! Proofs have known values and hold for what they cover only; messages come back whole.

use super::*;
use crate::identity::CellKey;

fn transcript<'a>(client: &'a [u8; 32], server: &'a [u8; 32]) -> Transcript<'a> {
    Transcript {
        version: 1,
        cell: CellId([0x11; 16]),
        client: (Role::Client, NodeId(0), 0, client),
        server: (Role::Server, NodeId(7), 3, server),
    }
}

fn key() -> CellKey {
    CellKey::new(&[0x42; 32]).unwrap()
}

/// Computed apart, with Python's hmac.
#[test]
fn proofs_have_known_values() {
    let transcript = transcript(&[1; 32], &[2; 32]);
    let hex = |direction: &[u8]| {
        let proof = transcript.prove(Some(&key()), direction).unwrap();
        proof
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    assert_eq!(
        hex(b"server"),
        "0ff818e8eda7b8f8d5aba0ecb97e7e1d5147d8297b748ff2c9c977f991728827"
    );
    assert_eq!(
        hex(b"client"),
        "e05a7994fedbd8117b7ad80392c1893e4386befed5e8ba51d4d0155f4f461b8a"
    );
}

#[test]
fn a_proof_holds_for_its_transcript_key_and_direction_only() {
    let (one, two, key) = ([1; 32], [2; 32], key());
    let transcript = transcript(&one, &two);
    let proof = transcript.prove(Some(&key), b"server");
    assert!(transcript.holds(Some(&key), b"server", proof.as_ref()));
    assert!(!transcript.holds(Some(&key), b"client", proof.as_ref()));
    let other = CellKey::new(&[0x43; 32]).unwrap();
    assert!(!transcript.holds(Some(&other), b"server", proof.as_ref()));
    assert!(!transcript.holds(None, b"server", proof.as_ref()));
    assert!(!transcript.holds(Some(&key), b"server", None));
    assert!(transcript.holds(None, b"server", None));
    let changes: [fn(&mut Transcript<'_>); 6] = [
        |t| t.version = 2,
        |t| t.cell.0[3] ^= 1,
        |t| t.client.0 = Role::Tool,
        |t| t.client.2 = 1,
        |t| t.server.1 = NodeId(8),
        |t| std::mem::swap(&mut t.client.3, &mut t.server.3),
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut changed = self::transcript(&one, &two);
        change(&mut changed);
        assert!(
            !changed.holds(Some(&key), b"server", proof.as_ref()),
            "{index}"
        );
    }
}

#[test]
fn handshake_messages_come_back_whole_and_not_in_part() {
    let hello = Hello {
        version_min: 1,
        version_max: 2,
        cell: CellId([9; 16]),
        role: Role::Tool,
        node: NodeId(3),
        features: 5,
        nonce: [7; 32],
        is_keyed: true,
    };
    let reply = HelloReply {
        version: 1,
        cell: CellId([9; 16]),
        role: Role::Server,
        node: NodeId(4),
        features: 1,
        nonce: [8; 32],
        proof: Some([6; 32]),
    };
    for message in [
        Handshake::Hello { hello },
        Handshake::HelloReply { reply },
        Handshake::Proof { proof: None },
        Handshake::Welcome,
        Handshake::Refused { code: 203 },
    ] {
        let bytes = message.to_bytes();
        assert!(bytes.len() <= FrameBounds::HANDSHAKE.body);
        assert_eq!(Handshake::from_bytes(&bytes), Ok(message));
        for end in 0..bytes.len() {
            assert!(Handshake::from_bytes(&bytes[..end]).is_err());
        }
    }
}
