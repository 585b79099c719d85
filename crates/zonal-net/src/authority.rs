//! The authority of a cell: issues credentials for servers, admins and clients. Serving does not
//! need it.
//!
//! *Invariant*: only a server's certificate is valid for server authentication.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;
use webpki::EndEntityCert;
use zonal_types::CellId;

use crate::credential::{CredentialError, SERVER_DNS_NAME, Serial};
use crate::subject::{Subject, SubjectKind};

/// Term of an authority.
const AUTHORITY_TERM: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// How far clocks of other machines may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// A cell's authority, with its private key.
pub struct Authority {
    cell: CellId,
    certificate_pem: String,
    key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("cell", &self.cell)
            .finish_non_exhaustive()
    }
}

/// A new credential.
pub struct IssuedCredential {
    /// The file's content: private key, certificate, certificate of the authority.
    pub pem: String,
    /// Serial number of the certificate.
    pub serial: Serial,
    /// End of its term, in seconds since 1970.
    pub expires: u64,
}

impl std::fmt::Debug for IssuedCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued")
            .field("serial", &self.serial)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Errors
    /// Where this machine gives no random bytes.
    pub fn make(cell: CellId) -> Result<Self, CredentialError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let params = authority_params(cell)?;
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            cell,
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Parses an authority's file.
    ///
    /// # Errors
    /// Where the text is not an authority's.
    pub fn from_pem(pem: &str) -> Result<Self, CredentialError> {
        let key = KeyPair::from_pem(pem).map_err(|_error| {
            CredentialError::Malformed("there is no authority's private key in it")
        })?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|_error| CredentialError::Malformed("there is no certificate in it"))?;
        let cell = cell_of(&certificate)?;
        let start = pem
            .find("-----BEGIN CERTIFICATE-----")
            .ok_or(CredentialError::Malformed("there is no certificate in it"))?;
        Ok(Self {
            cell,
            certificate_pem: pem.get(start..).unwrap_or_default().to_owned(),
            key_pem: key.serialize_pem(),
            issuer: Issuer::new(authority_params(cell)?, key),
        })
    }

    /// The contents of its file, which are secret.
    #[must_use]
    pub fn to_pem(&self) -> String {
        format!("{}{}", self.key_pem, self.certificate_pem)
    }

    /// Its certificate.
    ///
    /// # Errors
    /// Where its file was not an authority's.
    pub fn certificate(&self) -> Result<CertificateDer<'static>, CredentialError> {
        CertificateDer::from_pem_slice(self.certificate_pem.as_bytes())
            .map_err(|_error| CredentialError::Malformed("there is no certificate in it"))
    }

    /// Its cell.
    #[must_use]
    pub fn cell(&self) -> CellId {
        self.cell
    }

    /// Issues a credential.
    ///
    /// # Errors
    /// Where the subject belongs to another cell, or cannot be encoded.
    pub fn issue(
        &self,
        subject: &Subject,
        term: Duration,
    ) -> Result<IssuedCredential, CredentialError> {
        if subject.cell != self.cell {
            return Err(CredentialError::Malformed("the subject is of another cell"));
        }
        let uri = subject.to_string();
        // Refuse to issue a subject that cannot be parsed again.
        Subject::parse(&uri)?;
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let serial = random_serial()?;
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        let is_server = matches!(subject.kind, SubjectKind::Server { .. });
        let name = uri.try_into()?;
        params.subject_alt_names = vec![SanType::URI(name)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if is_server {
            let name = SERVER_DNS_NAME.try_into()?;
            params.subject_alt_names.push(SanType::DnsName(name));
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from(serial.0.to_be_bytes().to_vec()));
        params
            .distinguished_name
            .push(DnType::CommonName, common_name(subject));
        let expires = set_term(&mut params, term)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(IssuedCredential {
            pem: format!(
                "{}{}{}",
                key.serialize_pem(),
                certificate.pem(),
                self.certificate_pem
            ),
            serial,
            expires,
        })
    }
}

fn common_name(subject: &Subject) -> String {
    match &subject.kind {
        SubjectKind::Server { nodes, .. } => {
            let first = nodes.first().map_or(0, |node| node.0);
            format!("node {first}")
        }
        SubjectKind::Admin { name } | SubjectKind::Client { name, .. } => name.clone(),
    }
}

fn authority_params(cell: CellId) -> Result<CertificateParams, CredentialError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, format!("Zonal cell {cell}"));
    let uri = format!("zonal://{cell}/authority").try_into()?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    set_term(&mut params, AUTHORITY_TERM)?;
    Ok(params)
}

fn cell_of(certificate: &CertificateDer<'_>) -> Result<CellId, CredentialError> {
    let bad = CredentialError::Malformed("the certificate is no authority's");
    let Ok(parsed) = EndEntityCert::try_from(certificate) else {
        return Err(bad);
    };
    let mut uris = parsed.valid_uri_names();
    let cell = uris
        .next()
        .and_then(|uri| uri.strip_prefix("zonal://")?.strip_suffix("/authority"));
    cell.and_then(|cell| cell.parse().ok()).ok_or(bad)
}

/// Sets the term, which starts now; returns its end.
fn set_term(params: &mut CertificateParams, term: Duration) -> Result<u64, CredentialError> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_err(|_error| CredentialError::Malformed("the clock is before 1970"))?;
    let end = now + term;
    params.not_before = at(now.saturating_sub(CLOCK_SKEW))?;
    params.not_after = at(end)?;
    Ok(end.as_secs())
}

fn at(since_epoch: Duration) -> Result<OffsetDateTime, CredentialError> {
    let seconds = i64::try_from(since_epoch.as_secs());
    seconds
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or(CredentialError::Malformed("the term is too long"))
}

/// A random serial number: never 0, and positive in two's complement.
fn random_serial() -> Result<Serial, CredentialError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| CredentialError::Refused(error.to_string()))?;
    Ok(Serial((u64::from_be_bytes(bytes) >> 1) | (1 << 62)))
}
