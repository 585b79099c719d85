//! Fingerprints of stores, to recognise an unchanged store: its identity, the position of its log,
//! and the attributes of its files.

use crate::cell::StoreSpec;
use crate::store_scan::Opening;
use crc_fast::{CrcAlgorithm, Digest};
use std::fs::{Metadata, read_dir};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zonal_types::codec_struct;

/// Version of the saved state: rises when a saved file or the judgement of a store changes.
const FORM: u32 = 1;
/// Files that change with starts and stops of a store, of which the contents are part of the
/// fingerprint.
const TELLING: [&str; 3] = ["identity", "starts", "power"];
const TELLING_BYTES: u64 = 4096;

codec_struct! {
    /// Fingerprints of the stores, and options of the check.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Fingerprints {
        /// Version of the program.
        version: String,
        form: u32,
        /// Whether blocks are compared.
        data: bool,
        /// Folder and fingerprint of each store.
        stores: Vec<(String, String)>,
    }
}

impl Fingerprints {
    /// Makes the fingerprints of an opened cell, whose stores are locked.
    pub fn new(data: bool, stores: Vec<(String, String)>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            form: FORM,
            data,
            stores,
        }
    }

    /// The first difference from the fingerprints of an earlier check.
    pub fn difference(&self, old: &Self) -> Option<String> {
        if self == old {
            return None;
        }
        if (&self.version, self.form) != (&old.version, old.form) {
            return Some("another version of the program saved it".into());
        }
        if self.data != old.data {
            return Some("one check compares blocks, the other does not".into());
        }
        let dirs = |prints: &Self| -> Vec<String> {
            prints.stores.iter().map(|(dir, _)| dir.clone()).collect()
        };
        if dirs(self) != dirs(old) {
            return Some("it checked other stores".into());
        }
        let mut stores = self.stores.iter().zip(&old.stores);
        let changed = stores.find(|(now, then)| now != then);
        changed.map(|((dir, _), _)| format!("{dir} has changed since"))
    }
}

/// The folder and the fingerprint of a store.
pub(crate) fn of_store(spec: &StoreSpec, opening: &Opening) -> (String, String) {
    let says = match opening {
        Opening::Open(store, notes) => format!(
            "{:?} {:?} {:?} {}",
            store.stored(),
            store.log(),
            store.damage(),
            notes.len()
        ),
        Opening::Fault(fault) => format!("{fault:?}"),
    };
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    for name in TELLING {
        let (path, mut bytes) = (spec.dir.join(name), Vec::new());
        // Opening a pipe would block for ever. An unreadable file counts as empty: its attributes
        // are part of the fingerprint as well.
        if std::fs::metadata(&path).is_ok_and(|found| found.is_file()) {
            let _ = std::fs::File::open(&path)
                .and_then(|file| file.take(TELLING_BYTES).read_to_end(&mut bytes));
        }
        digest.update(&(bytes.len() as u64).to_le_bytes());
        digest.update(&bytes);
    }
    let files = folder(&spec.dir, &mut digest) + folder(&spec.dir.join("segments"), &mut digest);
    let sum = digest.finalize();
    let (identity, geometry) = (spec.identity, spec.geometry);
    let of = format!("{identity:?} {geometry:?} {says} {files} {sum:016x}");
    (spec.dir.display().to_string(), of)
}

/// Adds the attributes of all files in a folder. Returns the number of files.
fn folder(dir: &Path, digest: &mut Digest) -> u64 {
    let Ok(entries) = read_dir(dir) else {
        return 0;
    };
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| (entry.file_name(), entry.metadata().ok()))
        .collect();
    files.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    for (name, found) in &files {
        let name = name.as_encoded_bytes();
        digest.update(&(name.len() as u64).to_le_bytes());
        digest.update(name);
        for number in found.as_ref().map(numbers).unwrap_or_default() {
            digest.update(&number.to_le_bytes());
        }
    }
    files.len() as u64
}

/// Attributes of a file. Leaves out device numbers, which may change with a start of the system,
/// and allocated blocks, which change when the system writes them out.
fn numbers(found: &Metadata) -> [i64; 7] {
    [
        found.ino().cast_signed(),
        i64::from(found.mode()),
        found.len().cast_signed(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ]
}
