//! The authority of a cell in a folder, and the list of credentials it issued.
//!
//! | file | content |
//! | --- | --- |
//! | `authority.pem` | private key and certificate of the authority: issues credentials only |
//! | `issued.jsonl` | one line a credential: subject, serial number, end of its term; no secret |
//!
//! A credential is listed before its file is written, so that every credential can be revoked.

use crate::exit::{CONFIG, DAMAGED_HINT, FAILED, Failure, IN_USE, NOT_FOUND, REFUSED};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zonal_disk::trusted_paths::{self, PathRefusal};
use zonal_net::credential::CREDENTIAL_BYTES_MAX;
use zonal_net::join_token::CertificateDer;
use zonal_net::{Authority, Serial, Subject, SubjectKind};
use zonal_types::CellId;

/// File name of the authority.
pub const AUTHORITY_FILE: &str = "authority.pem";
/// File name of the list of issued credentials.
pub const ISSUED_FILE: &str = "issued.jsonl";
/// Largest list that is read, in bytes: some hundred thousand credentials.
const ISSUED_MAX: u64 = 64 << 20;

/// Name of the administrator whose credential the commands in a cell's folder use.
pub const COMMANDS: &str = "commands";

/// The kind of holder that a credential is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialKind {
    /// A node's server.
    Server,
    /// Commands.
    Admin,
    /// A mount.
    Client,
}

impl std::fmt::Display for CredentialKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Server => "a server",
            Self::Admin => "an administrator",
            Self::Client => "a client",
        })
    }
}

/// Parses a serial number as people type it.
pub fn serial_in(word: &str) -> Option<Serial> {
    let is_one = word.len() == 16 && word.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = is_one.then(|| u64::from_str_radix(word, 16).ok());
    number.flatten().map(Serial)
}

/// An authority that issues credentials.
pub struct Keyring {
    folder: trusted_paths::Folder,
    authority: Authority,
}

/// One line of the list of issued credentials.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IssuedLine {
    /// Subject of the credential.
    pub subject: String,
    /// Serial number of the certificate, 16 hexadecimal digits.
    pub serial: String,
    /// End of the credential's term, in seconds since 1970.
    pub expires: u64,
}

impl IssuedLine {
    /// The serial number.
    pub fn number(&self) -> Option<Serial> {
        u64::from_str_radix(&self.serial, 16).ok().map(Serial)
    }

    /// Kind of the holder; `None` for a kind that a later version introduced.
    pub fn kind(&self) -> Option<CredentialKind> {
        let subject = Subject::parse(&self.subject).ok()?;
        Some(match subject.kind {
            SubjectKind::Server { .. } => CredentialKind::Server,
            SubjectKind::Admin { .. } => CredentialKind::Admin,
            SubjectKind::Client { .. } => CredentialKind::Client,
        })
    }

    /// The holder's name as people use it: `node 3`, or the name of a client or administrator.
    pub fn name(&self) -> String {
        match Subject::parse(&self.subject).map(|subject| subject.kind) {
            Ok(SubjectKind::Admin { name } | SubjectKind::Client { name, .. }) => name,
            Ok(SubjectKind::Server { nodes, .. }) => {
                let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
                format!("node {}", numbers.join(","))
            }
            Err(_) => "?".to_owned(),
        }
    }
}

/// Formats a serial number as people read and type it.
pub fn shown(serial: Serial) -> String {
    format!("{:016x}", serial.0)
}

impl Keyring {
    /// Makes the authority of a cell in a folder that has none.
    pub fn make(folder: trusted_paths::Folder, cell: CellId) -> anyhow::Result<Self> {
        let authority = Authority::make(cell)?;
        let path = folder.path().join(AUTHORITY_FILE);
        let mut file = folder.create(AUTHORITY_FILE, 0o600).map_err(|error| {
            let text = format!("{}: {error}", path.display());
            match error.kind() {
                std::io::ErrorKind::AlreadyExists => Failure::new(IN_USE, text)
                    .hint("an authority is there already; `zonal key create` uses it"),
                _ => Failure::new(FAILED, text),
            }
        })?;
        file.write_all(authority.to_pem().as_bytes())
            .and_then(|()| file.sync_all())
            .with_context(|| path.display().to_string())?;
        Ok(Self { folder, authority })
    }

    /// Opens an authority by its file.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let refused = |error: PathRefusal| {
            let text = format!("authority {error}");
            match error.hint() {
                Some(hint) => Failure::new(REFUSED, text).hint(hint),
                None if error.is_missing() => Failure::new(NOT_FOUND, text).hint(
                    "name it with --authority FILE, where `zonal key init` or `zonal up` made it",
                ),
                None => Failure::new(FAILED, text),
            }
        };
        let pem = trusted_paths::secret(path, CREDENTIAL_BYTES_MAX as u64).map_err(refused)?;
        let pem = String::from_utf8(pem);
        let bad = |what: String| {
            let failure = Failure::new(CONFIG, format!("{}: {what}", path.display()));
            failure.hint(DAMAGED_HINT)
        };
        let pem = pem.map_err(|_error| bad("no text".to_owned()))?;
        let authority = Authority::from_pem(&pem).map_err(|error| bad(error.to_string()))?;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let folder = trusted_paths::open(above.unwrap_or(Path::new("."))).map_err(refused)?;
        Ok(Self { folder, authority })
    }

    /// The cell of the authority.
    pub fn cell(&self) -> CellId {
        self.authority.cell()
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> anyhow::Result<CertificateDer<'static>> {
        Ok(self.authority.certificate()?)
    }

    /// Issues a credential for a file on another machine; returns the file's text, which is secret.
    pub fn issue_text(&self, kind: SubjectKind, term: Duration) -> anyhow::Result<String> {
        let cell = self.authority.cell();
        let subject = Subject { cell, kind };
        let issued = self.authority.issue(&subject, term)?;
        self.note(&IssuedLine {
            subject: subject.to_string(),
            serial: shown(issued.serial),
            expires: issued.expires,
        })?;
        Ok(issued.pem)
    }

    /// Issues a credential into a new file that only its owner can read.
    pub fn issue(
        &self,
        kind: SubjectKind,
        term: Duration,
        to: &Path,
    ) -> anyhow::Result<IssuedLine> {
        let cell = self.authority.cell();
        let subject = Subject { cell, kind };
        let issued = self.authority.issue(&subject, term)?;
        let name = to.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{} names no file", to.display()))?;
        let above = to.parent().filter(|above| !above.as_os_str().is_empty());
        let above = trusted_paths::open(above.unwrap_or(Path::new("."))).map_err(|error| {
            if error.is_missing() {
                let hint = "make the folder first, or name a file in one that is there";
                let failure = Failure::new(NOT_FOUND, error.to_string());
                return anyhow::Error::from(failure.hint(hint));
            }
            error.into()
        })?;
        let line = IssuedLine {
            subject: subject.to_string(),
            serial: shown(issued.serial),
            expires: issued.expires,
        };
        let mut file = above.create(name, 0o600).map_err(|error| {
            let text = format!("{}: {error}", to.display());
            match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    Failure::new(IN_USE, text).hint("choose another file; nothing is overwritten")
                }
                _ => Failure::new(FAILED, text),
            }
        })?;
        self.note(&line)
            .and_then(|()| Ok(file.write_all(issued.pem.as_bytes())?))
            .and_then(|()| Ok(file.sync_all()?))
            .inspect_err(|_error| {
                let _ = above.unlink(name);
            })
            .with_context(|| to.display().to_string())?;
        Ok(line)
    }

    fn note(&self, line: &IssuedLine) -> anyhow::Result<()> {
        let mut list = self.folder.append(ISSUED_FILE)?;
        let text = serde_json::to_string(line)? + "\n";
        list.write_all(text.as_bytes())?;
        Ok(list.sync_all()?)
    }

    /// All issued credentials, oldest first.
    pub fn issued(&self) -> anyhow::Result<Vec<IssuedLine>> {
        let path: PathBuf = self.folder.path().join(ISSUED_FILE);
        let text = self
            .folder
            .text(ISSUED_FILE, ISSUED_MAX)?
            .unwrap_or_default();
        let lines = text.lines().enumerate();
        lines
            .map(|(index, line)| {
                serde_json::from_str(line).map_err(|error| {
                    let at = format!("{}, line {}", path.display(), index + 1);
                    let failure = Failure::new(CONFIG, format!("{at}: {error}"));
                    failure.hint(DAMAGED_HINT).into()
                })
            })
            .collect()
    }
}
