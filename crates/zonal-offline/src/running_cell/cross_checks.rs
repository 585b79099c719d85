//! Compares snapshots with the older list of objects. A difference is a finding unless a change
//! between the two explains it.

use super::{FindingList, LATE_MAX, RunningCell};
use crate::error::OfflineError;
use crate::paths::Paths;
use zonal_fsck::data_fact::DataOwner;
use zonal_fsck::objects::{JoinOutcome, UnownedObject};
use zonal_fsck::{FindingKind, FindingPlace};
use zonal_object::{KnownObject, ObjectId};
use zonal_types::{Column, DataId, Ino, TargetId};

/// An inode and its entry: directory and cookie.
pub(super) type File = (Ino, Option<(Ino, u64)>);

/// Files whose counts differ from their objects, or whose copies differ. Mounts report counts late,
/// and a change does not reach all copies at once.
#[derive(Default)]
pub(super) struct LateFiles {
    pub files: Vec<File>,
    /// Number of files beyond [`LATE_MAX`].
    pub beyond: u64,
}

/// Judges the results of the join of inodes and objects.
pub(super) struct CrossChecks<'a> {
    cell: &'a dyn RunningCell,
    paths: Paths<'a>,
    told: &'a mut FindingList,
    pub late: LateFiles,
}

/// Asks a target for an object's present state; `None` where it is gone, or its deletion has begun.
pub(super) fn object_now(
    cell: &dyn RunningCell,
    target: TargetId,
    object: ObjectId,
) -> Result<Option<KnownObject>, OfflineError> {
    let before = match object.column.0.checked_sub(1) {
        Some(column) => Some(ObjectId {
            column: Column(column),
            ..object
        }),
        None => object.data_id.0.checked_sub(1).map(|data_id| ObjectId {
            data_id: DataId(data_id),
            column: Column(u16::MAX),
        }),
    };
    let (found, _) = cell.objects(target, before, 1)?;
    Ok(found.into_iter().find(|known| known.object == object))
}

impl<'a> CrossChecks<'a> {
    pub fn new(cell: &'a dyn RunningCell, paths: Paths<'a>, told: &'a mut FindingList) -> Self {
        Self {
            cell,
            paths,
            told,
            late: LateFiles::default(),
        }
    }

    pub fn judge(&mut self, joined: JoinOutcome) -> Result<(), OfflineError> {
        match joined {
            JoinOutcome::Unowned(data_id, objects) => self.unowned(data_id, &objects)?,
            JoinOutcome::Wrong(
                _,
                owner,
                FindingKind::Allocated { .. }
                | FindingKind::BehindSize { .. }
                | FindingKind::CopiesDiffer { .. },
            ) => {
                self.late(&owner);
            }
            JoinOutcome::Wrong(target, owner, what) => {
                if let (FindingKind::Misplaced { object, .. }, Some(target)) = (&what, target)
                    && object_now(self.cell, target, *object)?.is_none()
                {
                    return Ok(());
                }
                self.tell(target, &owner, what);
            }
            // The join reports `Allocated` as well, since all targets are present.
            JoinOutcome::Short(..) => {}
        }
        Ok(())
    }

    fn tell(&mut self, target: Option<TargetId>, owner: &DataOwner, what: FindingKind) {
        let place = target.map_or(FindingPlace::Cell, FindingPlace::Target);
        let named = owner.name;
        let path = named.and_then(|(dir, cookie)| self.paths.path(dir, cookie));
        self.told.tell(place, path, what);
    }

    fn late(&mut self, owner: &DataOwner) {
        let file = (owner.ino, owner.name);
        if self.late.files.last() == Some(&file) {
            return;
        }
        if self.late.files.len() < LATE_MAX {
            self.late.files.push(file);
        } else {
            self.late.beyond += 1;
        }
    }

    /// The inode is older than the object and not in the snapshot. Either the object is gone by
    /// now, or nobody will ever remove it.
    fn unowned(&mut self, data_id: DataId, objects: &[UnownedObject]) -> Result<(), OfflineError> {
        let (mut count, mut bytes) = (0, 0);
        for unowned in objects {
            let object = ObjectId {
                data_id,
                column: Column(unowned.column),
            };
            if let Some(known) = object_now(self.cell, unowned.target, object)? {
                count += 1;
                bytes += known.bytes;
            }
        }
        if count > 0 {
            let what = FindingKind::NoInode {
                data_id,
                objects: count,
                bytes,
            };
            self.told.tell(FindingPlace::Cell, None, what);
        }
        Ok(())
    }
}
