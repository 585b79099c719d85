//! Damaged indexes whose copy is whole: they are made anew before anything is said of what they
//! hold.

use crate::cell::StoreSpec;
use crate::error::OfflineError;
use crate::repair_shard::failed;
use zonal_disk::repair::can_restore_index;
use zonal_fsck::{StoreFault, What};

/// In the place of what is wrong with the index of a store, and of all that its loss leads to: that
/// its copy has it. As it is, where the index is sound, or the copy does not have it. Gives whether
/// it does.
pub(super) fn prefer(
    spec: &StoreSpec,
    uuid: Option<[u8; 16]>,
    told: &mut Vec<What>,
) -> Result<bool, OfflineError> {
    let is_of_index = |what: &What| {
        matches!(
            what,
            What::Store(
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
    told.retain(|what| matches!(what, What::Store(_)) && !is_of_index(what));
    told.push(What::Store(StoreFault::FromCopy(text)));
    Ok(true)
}

/// As [`prefer`], of an index whose damage shows in nothing but that something in it cannot be
/// read.
pub(super) fn prefer_unread(
    spec: &StoreSpec,
    uuid: Option<[u8; 16]>,
    unread: Option<String>,
    told: &mut Vec<What>,
) -> Result<bool, OfflineError> {
    let lost = unread.map(|what| What::Store(StoreFault::IndexLost(what)));
    let mut lost: Vec<What> = lost.into_iter().collect();
    let is_preferred = prefer(spec, uuid, &mut lost)?;
    if is_preferred {
        told.extend(lost);
    }
    Ok(is_preferred)
}
