//! What mending a target's index could not save, kept in the scratch folder until the cell is clean.

use std::path::{Path, PathBuf};
use zonal_disk::mend::LostKeys;
use zonal_types::{Codec, TargetId};

fn lost_file(scratch: &Path, target: TargetId) -> PathBuf {
    scratch.join(format!("lost-keys.{target}"))
}

/// Keys that a mending of a target's index could not save, from the check that mended it on.
pub(super) fn load_lost(scratch: &Path, target: TargetId) -> Vec<LostKeys> {
    let bytes = std::fs::read(lost_file(scratch, target)).unwrap_or_default();
    type Stored = Vec<(zonal_types::Blob, Option<zonal_types::Blob>)>;
    let stored = Stored::from_bytes(&bytes).unwrap_or_default();
    stored
        .into_iter()
        .map(|(above, upto)| (above.0, upto.map(|upto| upto.0)))
        .collect()
}

/// Adds to what [`load_lost`] gives.
pub(crate) fn save_lost(
    scratch: &Path,
    target: TargetId,
    more: Vec<LostKeys>,
) -> std::io::Result<()> {
    let mut lost = load_lost(scratch, target);
    lost.extend(more);
    let stored: Vec<_> = lost
        .into_iter()
        .map(|(above, upto)| (zonal_types::Blob(above), upto.map(zonal_types::Blob)))
        .collect();
    std::fs::write(lost_file(scratch, target), stored.to_bytes())
}

/// Takes the scratch folder away; `with_lost`: also what must not be forgotten before the cell is clean.
pub(crate) fn clean_scratch(scratch: &Path, with_lost: bool) {
    let Ok(entries) = std::fs::read_dir(scratch) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if with_lost || !name.to_string_lossy().starts_with("lost-keys.") {
            // Best effort: a left-over costs space and nothing else.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let _ = std::fs::remove_dir(scratch);
}
