//! Damaged indexes with a whole copy: a repair rebuilds them before their contents are judged.

use crate::cell::StoreSpec;
use crate::error::OfflineError;
use crate::repair_shard::failed;
use zonal_disk::repair::can_restore_index;
use zonal_fsck::{FindingKind, StoreFault};

/// Replaces all findings about a store's index, and about its contents, by the one that its copy is
/// whole. Returns whether it did.
///
/// Leaves the findings alone where the index is sound, or where the copy is not whole.
pub(super) fn prefer(
    spec: &StoreSpec,
    uuid: Option<[u8; 16]>,
    told: &mut Vec<FindingKind>,
) -> Result<bool, OfflineError> {
    let is_of_index = |what: &FindingKind| {
        matches!(
            what,
            FindingKind::Store(
                StoreFault::IndexLost(_)
                    | StoreFault::IndexShut(_)
                    | StoreFault::Flipped(_)
                    | StoreFault::BadPage(_)
                    | StoreFault::BadEntry(_)
            )
        )
    };
    let Some(first) = told.iter().find(|what| is_of_index(what)) else {
        return Ok(false);
    };
    let text = first.to_string();
    let found = can_restore_index(&spec.dir, &spec.identity, uuid, &spec.config);
    if !found.map_err(|source| failed(spec, source))? {
        return Ok(false);
    }
    told.retain(|what| matches!(what, FindingKind::Store(_)) && !is_of_index(what));
    told.push(FindingKind::Store(StoreFault::FromCopy(text)));
    Ok(true)
}

/// Like [`prefer`], for an index whose damage only shows as a value that cannot be read (`unread`).
pub(super) fn prefer_unread(
    spec: &StoreSpec,
    uuid: Option<[u8; 16]>,
    unread: Option<String>,
    told: &mut Vec<FindingKind>,
) -> Result<bool, OfflineError> {
    let lost = unread.map(|what| FindingKind::Store(StoreFault::IndexLost(what)));
    let mut lost: Vec<FindingKind> = lost.into_iter().collect();
    let is_preferred = prefer(spec, uuid, &mut lost)?;
    if is_preferred {
        told.extend(lost);
    }
    Ok(is_preferred)
}
