//! Source of objects: a running target, or the store of a stopped one.

use zonal_object::ObjectId;
use zonal_types::TargetId;
use zonal_wire::ObjectEntry;

/// Result of a read from an object.
pub enum ReadPiece {
    /// The stored bytes.
    Bytes(Vec<u8>),
    /// The bytes cannot be read; the reason.
    Damaged(String),
}

/// A target to read objects from.
pub trait ObjectSource {
    /// The target's id.
    fn target(&self) -> TargetId;

    /// The objects after `after` in order, and whether the list is complete.
    fn list(&mut self, after: Option<ObjectId>) -> anyhow::Result<(Vec<ObjectEntry>, bool)>;

    /// Ranges with data from `offset` on (start, length), and whether the list is complete.
    fn ranges(&mut self, object: ObjectId, offset: u64) -> anyhow::Result<(Vec<(u64, u64)>, bool)>;

    /// Reads a range; returns fewer bytes at the end of the object.
    fn read(&mut self, object: ObjectId, offset: u64, length: u32) -> anyhow::Result<ReadPiece>;
}

/// Calls `visit` for every object, or for those in `only` that exist.
pub fn each(
    source: &mut dyn ObjectSource,
    only: &[ObjectId],
    visit: &mut dyn FnMut(&mut dyn ObjectSource, ObjectEntry) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let (objects, end) = source.list(after)?;
        let Some(last) = objects.last() else {
            return Ok(());
        };
        after = Some(id(last));
        for entry in objects {
            if only.is_empty() || only.contains(&id(&entry)) {
                visit(source, entry)?;
            }
        }
        if end {
            return Ok(());
        }
    }
}

/// The object of an entry.
pub fn id(entry: &ObjectEntry) -> ObjectId {
    ObjectId {
        data_id: entry.data_id,
        column: entry.column,
    }
}
