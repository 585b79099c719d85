//! Keys that the repair of a target's index could not save, kept in the scratch folder until the
//! cell is clean.

use crate::scratch_folder::{LOST_KEYS, let_go};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use zonal_disk::identity::sync_dir;
use zonal_disk::repair::LostKeys;
use zonal_types::{Codec, TargetId};

/// Suffix of a target's file while its store is being mended: the lost keys are not known yet.
const MENDING: &str = ".mending";

fn lost_file(scratch: &Path, target: TargetId) -> PathBuf {
    scratch.join(lost_name(target))
}

fn lost_name(target: TargetId) -> String {
    format!("{LOST_KEYS}{target}")
}

fn mending_file(scratch: &Path, target: TargetId) -> PathBuf {
    scratch.join(format!("{LOST_KEYS}{target}{MENDING}"))
}

fn load_known(scratch: &Path, target: TargetId) -> Vec<LostKeys> {
    // Others may write in this folder: ignore the files that they put there.
    let folder = zonal_disk::trusted_paths::open_above(scratch).ok();
    let file = folder.and_then(|folder| folder.file(&lost_name(target)).ok()?);
    let mut bytes = Vec::new();
    if file.is_none_or(|mut file| file.read_to_end(&mut bytes).is_err()) {
        bytes.clear();
    }
    type Stored = Vec<(zonal_types::Blob, Option<zonal_types::Blob>)>;
    let stored = Stored::from_bytes(&bytes).unwrap_or_default();
    stored
        .into_iter()
        .map(|(above, upto)| (above.0, upto.map(|upto| upto.0)))
        .collect()
}

/// Loads the keys that a repair of a target's index could not save, since the check that made the
/// repair. After an interrupted repair any key may be lost.
pub(super) fn load_lost(scratch: &Path, target: TargetId) -> Vec<LostKeys> {
    let mut lost = load_known(scratch, target);
    if mending_file(scratch, target).exists() {
        lost.push(ANY);
    }
    lost
}

/// Any key may be lost.
const ANY: LostKeys = (Vec::new(), None);

/// Called before a store is mended: until [`save_lost`], any key may be lost.
pub(crate) fn expect_lost(scratch: &Path, target: TargetId) -> io::Result<()> {
    if mending_file(scratch, target).exists() {
        // An earlier repair was interrupted and may have lost any key.
        add(scratch, target, vec![ANY])?;
    }
    write_durably(scratch, &mending_file(scratch, target), &[])
}

/// Adds keys to those that [`load_lost`] returns, and takes back that any key may be lost.
pub(crate) fn save_lost(scratch: &Path, target: TargetId, more: Vec<LostKeys>) -> io::Result<()> {
    if !more.is_empty() {
        add(scratch, target, more)?;
    }
    std::fs::remove_file(mending_file(scratch, target))
}

fn add(scratch: &Path, target: TargetId, more: Vec<LostKeys>) -> io::Result<()> {
    let mut lost = load_known(scratch, target);
    lost.extend(more);
    let stored: Vec<_> = lost
        .into_iter()
        .map(|(above, upto)| (zonal_types::Blob(above), upto.map(zonal_types::Blob)))
        .collect();
    write_durably(scratch, &lost_file(scratch, target), &stored.to_bytes())
}

/// Writes a file durably. A repair is durable, so the lost keys must be durable before it.
fn write_durably(scratch: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temp = path.as_os_str().to_owned();
    temp.push(".new");
    // Others may write in this folder: never write to a file that is there.
    match std::fs::remove_file(&temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::create_new(&temp)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temp, path)?;
    sync_dir(scratch)
}

/// Removes the scratch folder where a check made it and nothing else is in it. With `with_lost`
/// also removes the lost keys, which must be kept until the cell is clean.
pub(crate) fn clean_scratch(scratch: &Path, with_lost: bool) {
    if with_lost {
        let entries = std::fs::read_dir(scratch).into_iter().flatten();
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(LOST_KEYS) {
                // Best effort: with a left-over file a later check only suspects more damage.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
    let_go(scratch);
}
