//! What proves that both sides have the key of the cell.

use crate::identity::{CellKey, Role};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zonal_types::{CellId, Codec, NodeId};

/// Bytes of a nonce and of a proof.
const PROOF_BYTES: usize = 32;

const LABEL: &[u8] = b"zonal handshake 1";

/// Everything that a proof covers.
pub(super) struct Transcript<'a> {
    pub(super) version: u16,
    pub(super) cell: CellId,
    pub(super) client: (Role, NodeId, u64, &'a [u8; 32]),
    pub(super) server: (Role, NodeId, u64, &'a [u8; 32]),
}

impl Transcript<'_> {
    fn mac(&self, key: &CellKey, direction: &[u8]) -> Option<Hmac<Sha256>> {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(LABEL);
        bytes.extend_from_slice(direction);
        self.version.put(&mut bytes);
        self.cell.put(&mut bytes);
        for (role, node, features, nonce) in [self.client, self.server] {
            role.put(&mut bytes);
            node.put(&mut bytes);
            features.put(&mut bytes);
            nonce.put(&mut bytes);
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).ok()?;
        mac.update(&bytes);
        Some(mac)
    }

    pub(super) fn prove(
        &self,
        key: Option<&CellKey>,
        direction: &[u8],
    ) -> Option<[u8; PROOF_BYTES]> {
        let mac = self.mac(key?, direction)?;
        Some(mac.finalize().into_bytes().into())
    }

    /// True where both have no key, or the proof is right.
    pub(super) fn holds(
        &self,
        key: Option<&CellKey>,
        direction: &[u8],
        proof: Option<&[u8; PROOF_BYTES]>,
    ) -> bool {
        match (key, proof) {
            (None, None) => true,
            (Some(key), Some(proof)) => self
                .mac(key, direction)
                .is_some_and(|mac| mac.verify_slice(proof).is_ok()),
            _ => false,
        }
    }
}
