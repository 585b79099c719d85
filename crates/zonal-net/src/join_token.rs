//! Join token: the one-time secret by which a new node gets its credential from a manager.
//!
//! The token's maker has the authority. It seals the node's credential under the token's secret.
//! The manager keeps the sealed bytes, gives them to the first claim, and then forgets them. So the
//! manager learns no private key, and the new node needs nothing but the token
//! (docs/rfcs/2026-11-26-tokens.md).
//!
//! *Invariants*:
//! 1. The secret never leaves the token. A claim shows a value derived from it, and only to a
//!    manager that the pinned authority certified.
//! 2. A secret seals once, so the nonce is fixed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::{digest, hkdf};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
pub use rustls::pki_types::CertificateDer;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use zonal_basics::{from_hex, to_hex};
use zonal_types::{CellId, Codec, codec_enum, codec_struct};

use crate::address::Endpoint;
use crate::credential::{CredentialError, PROTOCOL, subject_of};
use crate::error::NetError;
use crate::frame_io::{Conn, TimeLimit};
use crate::handshake;
use crate::stream::Stream;

/// Beginning of a token's text.
const PREFIX: &str = "zonal-";
/// Bytes of the authority's fingerprint: SHA-256, shortened.
const FINGERPRINT_BYTES: usize = 16;
/// Characters of a token's text at most.
const TEXT_MAX: usize = 4096;

codec_struct! {
    /// A token: the cell, its authority's fingerprint, the secret, the managers' addresses.
    #[derive(Clone, PartialEq, Eq)]
    pub struct JoinToken {
        /// The cell.
        cell: CellId,
        /// Fingerprint of the authority's certificate.
        authority: [u8; FINGERPRINT_BYTES],
        /// The secret.
        secret: [u8; 16],
        /// Addresses of managers, each `ip:port`.
        managers: Vec<String>,
    }
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinToken")
            .field("cell", &self.cell)
            .finish_non_exhaustive()
    }
}

codec_struct! {
    /// Claim of the credential that a token stands for.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TokenClaim {
        /// Name of the token.
        id: [u8; 8],
        /// Proof that the sender has the token.
        proof: [u8; 32],
    }
}

codec_enum! {
    /// Answer to a claim.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ClaimOutcome {
        /// The sealed credential.
        Sealed = 1 {
            /// The sealed bytes.
            sealed: zonal_types::Blob,
        },
        /// No token has the id, or the proof is wrong.
        Unknown = 2,
        /// The token was used.
        Used = 3,
        /// The token's time is over.
        Expired = 4,
        /// Ask again, or another manager: this one cannot answer now.
        NotReady = 5,
    }
}

/// The text is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no join token")]
pub struct JoinTokenError;

impl std::str::FromStr for JoinToken {
    type Err = JoinTokenError;
    fn from_str(text: &str) -> Result<Self, JoinTokenError> {
        let digits = text.strip_prefix(PREFIX).filter(|_| text.len() <= TEXT_MAX);
        let bytes = from_hex(digits.ok_or(JoinTokenError)?).map_err(|_error| JoinTokenError)?;
        let token = Self::from_bytes(&bytes).map_err(|_error| JoinTokenError)?;
        match token.addresses().is_empty() {
            true => Err(JoinTokenError),
            false => Ok(token),
        }
    }
}

impl JoinToken {
    /// Makes a token with a random secret. `authority`: the authority's certificate.
    ///
    /// # Errors
    /// Where this machine gives no random bytes.
    pub fn make(
        cell: CellId,
        authority: &CertificateDer<'_>,
        managers: Vec<String>,
    ) -> Result<Self, CredentialError> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret)
            .map_err(|error| CredentialError::Refused(error.to_string()))?;
        let authority = fingerprint(authority);
        Ok(Self {
            cell,
            authority,
            secret,
            managers,
        })
    }

    /// The token as people copy it. It is secret.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{PREFIX}{}", to_hex(&self.to_bytes()))
    }

    /// Addresses of managers.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let parsed = self.managers.iter().map(|address| address.parse());
        parsed.filter_map(Result::ok).collect()
    }

    /// The claim that it makes.
    #[must_use]
    pub fn claim(&self) -> TokenClaim {
        let (mut id, mut proof) = ([0; 8], [0; 32]);
        id.copy_from_slice(&self.derived(b"zonal join token: id")[..8]);
        proof.copy_from_slice(&self.derived(b"zonal join token: claim"));
        TokenClaim { id, proof }
    }

    fn derived(&self, purpose: &[u8]) -> [u8; 32] {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &self.cell.0);
        let key = salt.extract(&self.secret);
        let mut bytes = [0; 32];
        let purposes = [purpose];
        let okm = key.expand(&purposes, hkdf::HKDF_SHA256);
        // 32 bytes are what the function gives.
        let filled = okm.and_then(|okm| okm.fill(&mut bytes));
        debug_assert!(filled.is_ok(), "HKDF gives as many bytes as its hash");
        bytes
    }

    fn key(&self) -> Option<LessSafeKey> {
        let key = self.derived(b"zonal join token: seal");
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).ok()?;
        Some(LessSafeKey::new(key))
    }

    /// Seals bytes under the secret. A token seals once.
    #[must_use]
    pub fn seal(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = bytes.to_vec();
        let (nonce, aad) = (
            Nonce::assume_unique_for_key([0; 12]),
            Aad::from(self.cell.0),
        );
        self.key()?
            .seal_in_place_append_tag(nonce, aad, &mut sealed)
            .ok()?;
        Some(sealed)
    }

    /// Opens sealed bytes; `None` where another secret sealed them, or they were changed.
    #[must_use]
    pub fn unseal(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = sealed.to_vec();
        let (nonce, aad) = (
            Nonce::assume_unique_for_key([0; 12]),
            Aad::from(self.cell.0),
        );
        let opened = self.key()?.open_in_place(nonce, aad, &mut bytes).ok()?;
        Some(opened.to_vec())
    }

    /// Claims the sealed credential of one manager, which the pinned authority must have certified.
    ///
    /// # Errors
    /// Where the manager cannot be reached or is not one of this authority.
    pub fn claim_from(
        &self,
        manager: SocketAddr,
        limit: Duration,
    ) -> Result<ClaimOutcome, NetError> {
        let endpoint = Endpoint::Tcp(manager);
        let time_limit = TimeLimit::start(limit);
        let stream = Stream::connect_tcp(manager, limit, 0, &|| true).map_err(|errno| {
            NetError::Unreachable {
                server: endpoint,
                source: errno.into(),
            }
        })?;
        let mut conn = Conn::new(Arc::new(stream), true);
        let config = self.client_config();
        let config = config.ok_or(NetError::Unauthenticated {
            peer: endpoint,
            fault: crate::error::TlsFault::Broken,
        })?;
        handshake::claim(
            &mut conn,
            (config, self.cell),
            self.claim(),
            endpoint,
            &time_limit,
        )
    }

    fn client_config(&self) -> Option<Arc<ClientConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let pinned = PinnedAuthority {
            cell: self.cell,
            fingerprint: self.authority,
            provider: Arc::clone(&provider),
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .ok()?;
        let mut config = config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        Some(Arc::new(config))
    }
}

/// The hash by which a manager checks a claim's proof.
#[must_use]
pub fn proof_hash(proof: &[u8; 32]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, proof).as_ref());
    hash
}

fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; FINGERPRINT_BYTES] {
    let digest = digest::digest(&digest::SHA256, certificate);
    let mut short = [0; FINGERPRINT_BYTES];
    short.copy_from_slice(&digest.as_ref()[..FINGERPRINT_BYTES]);
    short
}

/// Accepts the managers that the authority with a fingerprint certified. They send its certificate.
#[derive(Debug)]
struct PinnedAuthority {
    cell: CellId,
    fingerprint: [u8; FINGERPRINT_BYTES],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let untrusted = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let mut others = others.iter();
        let authority = others.find(|other| fingerprint(other) == self.fingerprint);
        let mut roots = RootCertStore::empty();
        roots.add(authority.ok_or_else(untrusted)?.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&self.provider),
        );
        let verifier = verifier.build().map_err(|_error| untrusted())?;
        let verified = verifier.verify_server_cert(own, &[], name, ocsp, now)?;
        let (subject, _serial) = subject_of(own).map_err(|_error| untrusted())?;
        match subject.cell == self.cell && subject.roles().manager {
            true => Ok(verified),
            false => Err(untrusted()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
