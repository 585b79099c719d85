//! Power loss: whether a store's unflushed writes are still there; the `power` file of its
//! directory.
//!
//! While the kernel runs, it keeps the writes of a process, even one that is killed. Two events end
//! that:
//!
//! * The kernel starts again; its boot id tells.
//! * A flush fails: the kernel may drop pages that it could not write, and later flushes do not
//!   report it.
//!
//! The file holds the boot id under which the store was last open, whether a flush has failed
//! since, and the *verifier*. That is a random number, drawn anew whenever unflushed writes may be
//! lost, so that clients whose writes were acknowledged can tell.
//!
//! Invariants:
//! 1. An opening writes the file after it has verified everything, so an interrupted start has no
//!    effect.
//! 2. A missing or damaged file means that nothing is known, as after a power loss.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use zonal_basics::from_hex;

use rustix::fs::{Advice, fadvise};

use crate::files::StoreDir;
use crate::files::error::DiskError;

/// Name of the file.
pub const FILE_NAME: &str = "power";
/// Left behind by an interrupted write of the file.
pub(crate) const TEMP_NAME: &str = "power.new";
const MAGIC: &[u8; 8] = b"ZONALPWR";
const VERSION: u32 = 1;
const FLAG_DOUBT: u32 = 1;
const SIZE: usize = 48;
const CRC_AT: usize = SIZE - 4;

/// Identity of a start of the kernel.
pub type BootId = [u8; 16];

/// The current start of the kernel; `None` where the kernel does not report it.
#[must_use]
pub fn kernel_boot() -> Option<BootId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    from_hex(&digits).ok()?.try_into().ok()
}

/// The contents of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerNote {
    /// The start of the kernel under which the store was last open; zero: unknown.
    pub boot: BootId,
    /// A flush has failed since.
    pub doubt: bool,
    /// See the head of this module.
    pub verifier: u64,
}

impl PowerNote {
    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let flags = if self.doubt { FLAG_DOUBT } else { 0 };
        out[12..16].copy_from_slice(&flags.to_le_bytes());
        out[16..32].copy_from_slice(&self.boot);
        out[32..40].copy_from_slice(&self.verifier.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the file's bytes; `None` for bytes that this program does not write.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let field = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(field))
        };
        let note = Self {
            boot: bytes.get(16..32)?.try_into().ok()?,
            doubt: word(12)? & FLAG_DOUBT != 0,
            verifier: u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?),
        };
        (note.encode() == *bytes).then_some(note)
    }
}

/// The fate of earlier unflushed writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnflushedWrites {
    /// The kernel has them.
    Kept,
    /// Nothing is known of them: a power loss, or another machine.
    Lost,
    /// A flush failed: the page cache may show bytes that are not on the medium.
    Doubted,
}

/// The state that an opening reads, and the note it will write once it has verified the store.
#[derive(Debug, Clone, Copy)]
pub struct Power {
    /// The fate of earlier unflushed writes.
    pub past: UnflushedWrites,
    /// The note of this opening.
    pub note: PowerNote,
}

/// Reads the file of `dir`. `boot` is the current start of the kernel.
///
/// # Errors
/// When there is no randomness, or the file exists and cannot be read.
pub fn look(dir: &Path, boot: Option<BootId>) -> Result<Power, DiskError> {
    let known = match fs::read(dir.join(FILE_NAME)) {
        Ok(bytes) => PowerNote::decode(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(DiskError::io("read the power file", error)),
    };
    let past = match known {
        Some(note) if note.doubt => UnflushedWrites::Doubted,
        Some(note) if boot == Some(note.boot) => UnflushedWrites::Kept,
        _ => UnflushedWrites::Lost,
    };
    let verifier = match known {
        Some(note) if past == UnflushedWrites::Kept => note.verifier,
        _ => random()?,
    };
    let note = PowerNote {
        boot: boot.unwrap_or_default(),
        doubt: false,
        verifier,
    };
    Ok(Power { past, note })
}

/// Writes the file of `store`, durably and atomically.
///
/// # Errors
/// When the medium fails.
pub fn save(store: &StoreDir, note: &PowerNote) -> Result<(), DiskError> {
    let bytes = note.encode();
    assert_eq!(
        PowerNote::decode(&bytes).as_ref(),
        Some(note),
        "a power note decodes to what is written"
    );
    store
        .replace(FILE_NAME, TEMP_NAME, &bytes)
        .map_err(|error| DiskError::io("write the power file", error))
}

/// Notes that a flush failed. On a medium that accepts no more writes it removes the file instead,
/// which means the same. True where one of the two succeeded.
#[must_use]
pub fn save_doubt(store: &StoreDir, note: &PowerNote) -> bool {
    let doubtful = PowerNote {
        doubt: true,
        ..*note
    };
    // Removed first: if the second step fails, at least no file says that all is well.
    let removed = store.remove(FILE_NAME).is_ok();
    save(store, &doubtful).is_ok() || removed
}

/// Drops the page cache of the files in `dir` and its `segments`, so that reads show the contents
/// of the medium.
pub(crate) fn drop_cached(dir: &Path) -> Result<(), DiskError> {
    let fail = |error| DiskError::io("drop cached pages", error);
    for folder in [dir.to_path_buf(), dir.join("segments")] {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(fail(error)),
        };
        for entry in entries {
            let entry = entry.map_err(fail)?;
            if !entry.file_type().map_err(fail)?.is_file() {
                continue;
            }
            let file = File::options().read(true).write(true).open(entry.path());
            let file = file.map_err(fail)?;
            // Dirty pages are not dropped. A second failure of the flush does not matter: later
            // reads show the medium.
            let _ = file.sync_data();
            fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| fail(error.into()))?;
        }
    }
    Ok(())
}

fn random() -> Result<u64, DiskError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| DiskError::io("random bytes", io::Error::other(error)))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    const NOTE: PowerNote = PowerNote {
        boot: [3; 16],
        doubt: false,
        verifier: 77,
    };

    #[test]
    fn only_the_same_start_of_the_kernel_keeps_writes() {
        let dir = Scratch::new("same");
        let first = look(&dir, Some([3; 16])).unwrap();
        assert_eq!(first.past, UnflushedWrites::Lost);
        let store = StoreDir::plain(&dir);
        save(&store, &first.note).unwrap();
        let again = look(&dir, Some([3; 16])).unwrap();
        assert_eq!(
            (again.past, again.note),
            (UnflushedWrites::Kept, first.note)
        );
        let other = look(&dir, Some([4; 16])).unwrap();
        assert_eq!(other.past, UnflushedWrites::Lost);
        assert_ne!(other.note.verifier, first.note.verifier);
        assert_eq!(look(&dir, None).unwrap().past, UnflushedWrites::Lost);
        assert!(save_doubt(&store, &first.note));
        let doubted = look(&dir, Some([3; 16])).unwrap();
        assert_eq!(doubted.past, UnflushedWrites::Doubted);
        assert_ne!(doubted.note.verifier, first.note.verifier);
    }

    #[test]
    fn a_damaged_file_counts_as_missing() {
        let good = NOTE.encode();
        assert_eq!(PowerNote::decode(&good), Some(NOTE));
        for at in 0..SIZE {
            let mut bytes = good;
            bytes[at] ^= 0x10;
            assert_eq!(PowerNote::decode(&bytes), None, "byte {at}");
        }
        assert_eq!(PowerNote::decode(&good[..SIZE - 1]), None);
    }
}
