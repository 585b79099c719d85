//! Credential: private key and certificate of one subject, with the certificate of its cell's
//! authority, in one PEM file.
//!
//! *Invariants*: (1) the authority signed the certificate, and it matches the key; (2) the private
//! key leaves this type in TLS signatures only.

use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use webpki::EndEntityCert;

use crate::subject::{Subject, SubjectKind};

/// The DNS name in every server's certificate. It tells servers from clients; the subject tells
/// which server it is.
pub(crate) const SERVER_DNS_NAME: &str = "server.zonal";
/// ALPN protocol name (RFC 7301).
pub(crate) const PROTOCOL: &[u8] = b"zonal/1";
/// Bytes of a credential's file.
pub const CREDENTIAL_BYTES_MAX: usize = 64 << 10;

/// Serial number of a certificate; a revocation names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(pub u64);

/// Why a file is not a valid credential.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The file does not have the three parts, or the parts do not belong together.
    #[error("not a credential: {0}")]
    Malformed(&'static str),
    /// The TLS library refused the key or the certificate.
    #[error("the credential cannot be used: {0}")]
    Refused(String),
    /// The subject is not one of this program's.
    #[error(transparent)]
    Subject(#[from] crate::subject::SubjectError),
}

/// A process's proof of identity.
pub struct Credential {
    subject: Subject,
    serial: Serial,
    own: CertificateDer<'static>,
    /// Verifies the certificates of a server's callers; each caller's subject is checked apart.
    callers: Arc<dyn ClientCertVerifier>,
    client: Arc<ClientConfig>,
    server: Option<Arc<ServerConfig>>,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl Credential {
    /// Parses the contents of a credential's file.
    ///
    /// # Errors
    /// Where they are not a credential. The term is checked when the credential is used.
    pub fn from_pem(pem: &[u8]) -> Result<Self, CredentialError> {
        if pem.len() > CREDENTIAL_BYTES_MAX {
            return Err(CredentialError::Malformed("the file is too long"));
        }
        let key = PrivateKeyDer::from_pem_slice(pem)
            .map_err(|_error| CredentialError::Malformed("there is no private key in it"))?;
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|_error| CredentialError::Malformed("a certificate cannot be decoded"))?;
        let [own, authority] =
            <[CertificateDer<'static>; 2]>::try_from(certificates).map_err(|_certificates| {
                CredentialError::Malformed(
                    "it has not exactly two certificates, its own and the authority's",
                )
            })?;
        let (subject, serial) = subject_of(&own)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let roots = Arc::new(roots);
        let callers: Arc<dyn ClientCertVerifier> =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()?;
        let roots_of_callers = Arc::clone(&roots);
        let chain = vec![own.clone()];
        let client = client_config(&provider, roots, chain, key.clone_key())?;
        let server = match subject.kind {
            SubjectKind::Server { .. } => {
                // A new node, which knows the authority's fingerprint alone, gets the certificate.
                let chain = vec![own.clone(), authority];
                let callers = match subject.roles().manager {
                    // A new node has no certificate; it may make a claim, and nothing else.
                    true => WebPkiClientVerifier::builder_with_provider(
                        roots_of_callers,
                        Arc::clone(&provider),
                    )
                    .allow_unauthenticated()
                    .build()?,
                    false => Arc::clone(&callers),
                };
                Some(Arc::new(server_config(&provider, callers, chain, key)?))
            }
            _ => None,
        };
        Ok(Self {
            subject,
            serial,
            own,
            callers,
            client: Arc::new(client),
            server,
        })
    }

    /// The subject that its holder is.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Serial number of its certificate.
    #[must_use]
    pub fn serial(&self) -> Serial {
        self.serial
    }

    /// Checks that the authority signed it and that it is valid now.
    ///
    /// # Errors
    /// Where it has expired, is not valid yet, or belongs to another authority.
    pub fn check_now(&self) -> Result<(), CredentialError> {
        self.callers
            .verify_client_cert(&self.own, &[], UnixTime::now())?;
        Ok(())
    }

    pub(crate) fn client_config(&self) -> &Arc<ClientConfig> {
        &self.client
    }

    /// TLS configuration of a server; `None`: the credential is not a server's.
    pub(crate) fn server_config(&self) -> Option<&Arc<ServerConfig>> {
        self.server.as_ref()
    }
}

/// The name that every server's certificate has.
pub(crate) fn server_name() -> ServerName<'static> {
    // The literal is a valid name.
    ServerName::try_from(SERVER_DNS_NAME).unwrap_or(ServerName::IpAddress(
        std::net::Ipv4Addr::UNSPECIFIED.into(),
    ))
}

/// Subject and serial number of a certificate that was verified, or is this process's own.
pub(crate) fn subject_of(
    certificate: &CertificateDer<'_>,
) -> Result<(Subject, Serial), CredentialError> {
    let parsed = EndEntityCert::try_from(certificate)
        .map_err(|_error| CredentialError::Malformed("a certificate cannot be decoded"))?;
    let mut uris = parsed.valid_uri_names();
    let (Some(uri), None) = (uris.next(), uris.next()) else {
        return Err(CredentialError::Malformed(
            "the certificate has not exactly one subject",
        ));
    };
    let bytes = parsed.serial();
    let mut number = [0; 8];
    let Some(into) = 8_usize
        .checked_sub(bytes.len())
        .and_then(|from| number.get_mut(from..))
    else {
        return Err(CredentialError::Malformed("the serial number is too long"));
    };
    into.copy_from_slice(bytes);
    Ok((Subject::parse(uri)?, Serial(u64::from_be_bytes(number))))
}

impl From<rustls::Error> for CredentialError {
    fn from(error: rustls::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<rustls::server::VerifierBuilderError> for CredentialError {
    fn from(error: rustls::server::VerifierBuilderError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<rcgen::Error> for CredentialError {
    fn from(error: rcgen::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, CredentialError> {
    let servers =
        WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build()?;
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_webpki_verifier(servers)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Resumption gains nothing: a pool keeps its connections, and each must show its certificates.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    callers: Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, CredentialError> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(callers)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
