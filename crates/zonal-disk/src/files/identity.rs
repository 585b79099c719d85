//! Identity of a store: its cell, kind and number, so that no process opens another's directory.
//!
//! Formatting writes the `identity` file last: a directory without it holds no store.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::files::error::DiskError;
use crate::files::{FILES, StoreDir};

/// Version of the formats of identity, log and index together.
pub const FORMAT_VERSION: u32 = 1;
/// Name of the identity file.
pub const FILE_NAME: &str = "identity";
const TEMP_NAME: &str = "identity.new";
const MAGIC: &[u8; 8] = b"ZONALID\n";
const SIZE: usize = 80;
const CRC_AT: usize = SIZE - 4;

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// A metadata shard.
    Shard,
    /// A storage target.
    Target,
    /// A manager's replica of the zone map.
    Manager,
}

impl StoreKind {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Shard => 1,
            Self::Target => 2,
            Self::Manager => 3,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Shard),
            2 => Some(Self::Target),
            3 => Some(Self::Manager),
            _ => None,
        }
    }
}

impl std::fmt::Display for StoreKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Shard => "shard",
            Self::Target => "target",
            Self::Manager => "manager",
        })
    }
}

/// The identity that an opener expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreIdentity {
    /// The cell that the store belongs to.
    pub cell: [u8; 16],
    /// Its kind.
    pub kind: StoreKind,
    /// Number of the shard, target or manager.
    pub id: u32,
}

/// The identity as stored, with the values that formatting chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The part that an opener names.
    pub identity: StoreIdentity,
    /// Random, drawn when formatting: distinguishes this store's log records from those of an
    /// earlier one.
    pub uuid: [u8; 16],
    /// Length of the log file.
    pub log_bytes: u64,
}

impl Stored {
    /// The tag of this store in log records.
    #[must_use]
    pub fn tag(&self) -> u64 {
        let mut tag = [0; 8];
        tag.copy_from_slice(&self.uuid[..8]);
        u64::from_le_bytes(tag)
    }

    fn encode(&self) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.identity.kind.number().to_le_bytes());
        out[16..32].copy_from_slice(&self.identity.cell);
        out[32..36].copy_from_slice(&self.identity.id.to_le_bytes());
        out[40..56].copy_from_slice(&self.uuid);
        out[56..64].copy_from_slice(&self.log_bytes.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes an identity file's bytes.
    ///
    /// # Errors
    /// `WrongVersion` for a version that this program does not know, `Corrupt` for any other
    /// defect.
    pub fn decode(bytes: &[u8]) -> Result<Self, DiskError> {
        let corrupt = |what: &str| DiskError::Corrupt(format!("identity file: {what}"));
        let word = |at: usize| -> Result<u32, DiskError> {
            let field = bytes
                .get(at..at + 4)
                .and_then(|field| field.try_into().ok());
            Ok(u32::from_le_bytes(
                field.ok_or_else(|| corrupt("too short"))?,
            ))
        };
        if bytes.get(..8) != Some(MAGIC) {
            return Err(corrupt("bad magic"));
        }
        let version = word(8)?;
        if version != FORMAT_VERSION {
            return Err(DiskError::WrongVersion {
                found: version,
                known: FORMAT_VERSION,
            });
        }
        let bytes: &[u8; SIZE] = bytes.try_into().map_err(|_| corrupt("wrong length"))?;
        if crc_fast::crc32_iscsi(&bytes[..CRC_AT]) != word(CRC_AT)? {
            return Err(corrupt("bad checksum"));
        }
        let kind = StoreKind::from_number(word(12)?).ok_or_else(|| corrupt("unknown kind"))?;
        let mut stored = Self {
            identity: StoreIdentity {
                cell: [0; 16],
                kind,
                id: word(32)?,
            },
            uuid: [0; 16],
            log_bytes: u64::from(word(56)?) | u64::from(word(60)?) << 32,
        };
        stored.identity.cell.copy_from_slice(&bytes[16..32]);
        stored.uuid.copy_from_slice(&bytes[40..56]);
        Ok(stored)
    }

    /// Checks that this store is the expected one.
    ///
    /// # Errors
    /// The first difference found.
    pub fn check(&self, expected: &StoreIdentity) -> Result<(), DiskError> {
        let found = &self.identity;
        if found.cell != expected.cell {
            return Err(DiskError::WrongCell {
                found: found.cell,
                expected: expected.cell,
            });
        }
        if found.kind != expected.kind {
            return Err(DiskError::WrongKind {
                found: found.kind,
                expected: expected.kind,
            });
        }
        if found.id != expected.id {
            return Err(DiskError::WrongId {
                found: found.id,
                expected: expected.id,
            });
        }
        Ok(())
    }
}

/// Reads the identity in `dir`; `None` where there is no identity file.
///
/// # Errors
/// When it cannot be read or is damaged.
pub fn load(dir: &Path) -> Result<Option<Stored>, DiskError> {
    refuse_pipes(dir)?;
    let file = match File::open(dir.join(FILE_NAME)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DiskError::io("open identity", error)),
    };
    let mut bytes = Vec::new();
    // Bounded: reads no more than this, whatever the file is.
    file.take(4096)
        .read_to_end(&mut bytes)
        .map_err(|error| DiskError::io("read identity", error))?;
    Stored::decode(&bytes).map(Some)
}

/// Fails where a file of a store is not a regular file: opening a pipe waits for ever, and reading
/// a device may never end.
fn refuse_pipes(dir: &Path) -> Result<(), DiskError> {
    for name in FILES {
        let path = dir.join(name);
        // A file that is missing or cannot be inspected is reported by its reader.
        let Ok(found) = fs::metadata(&path) else {
            continue;
        };
        if !found.is_file() && !found.is_dir() {
            let odd = io::Error::new(io::ErrorKind::InvalidInput, "no regular file");
            return Err(DiskError::io(path.display().to_string(), odd));
        }
    }
    Ok(())
}

/// The identity in `dir` with one flipped bit corrected, where that makes it valid. No other
/// store's identity is one bit away.
pub(crate) fn load_mended(dir: &Path) -> Option<Stored> {
    let mut bytes = fs::read(dir.join(FILE_NAME)).ok()?;
    if bytes.len() != SIZE {
        return None;
    }
    (0..SIZE * 8).find_map(|bit| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mended = Stored::decode(&bytes).ok();
        bytes[bit / 8] ^= 1 << (bit % 8);
        mended
    })
}

/// Writes the identity into `dir`, durably and atomically.
///
/// # Errors
/// When the medium fails.
pub fn save(dir: &Path, stored: &Stored) -> Result<(), DiskError> {
    let bytes = stored.encode();
    assert_eq!(
        Stored::decode(&bytes).ok().as_ref(),
        Some(stored),
        "an identity decodes to what is written"
    );
    StoreDir::plain(dir)
        .replace(FILE_NAME, TEMP_NAME, &bytes)
        .map_err(|error| DiskError::io("write identity", error))
}

/// Makes the entries of `dir` durable.
///
/// # Errors
/// When the medium fails.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Whether formatting may start in `dir`: it is empty, or holds only files of an unfinished format.
pub(crate) fn may_format(dir: &Path, ours: &[&str]) -> Result<bool, DiskError> {
    let entries = fs::read_dir(dir).map_err(|error| DiskError::io("list directory", error))?;
    for entry in entries {
        let name = entry
            .map_err(|error| DiskError::io("list directory", error))?
            .file_name();
        let known = name == "lost+found" || name == TEMP_NAME;
        if !known && !ours.iter().any(|our| name == *our) {
            return Ok(false);
        }
    }
    Ok(true)
}
