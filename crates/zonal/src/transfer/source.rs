//! Where objects come from: a target that runs, or the store of one that is stopped.

use zonal_object::ObjectId;
use zonal_types::TargetId;
use zonal_wire::ObjectEntry;

/// Some bytes of an object.
pub enum ReadPiece {
    /// As they are stored.
    Bytes(Vec<u8>),
    /// They cannot be had: what is wrong.
    Damaged(String),
}

/// A target to read from.
pub trait ObjectSource {
    /// Which one it is.
    fn target(&self) -> TargetId;

    /// Objects behind `after` in order, and whether there are no more.
    fn list(&mut self, after: Option<ObjectId>) -> anyhow::Result<(Vec<ObjectEntry>, bool)>;

    /// Ranges with data from `offset` on (start, length), and whether there are no more.
    fn ranges(&mut self, object: ObjectId, offset: u64) -> anyhow::Result<(Vec<(u64, u64)>, bool)>;

    /// Bytes of a range; fewer where the object ends.
    fn read(&mut self, object: ObjectId, offset: u64, length: u32) -> anyhow::Result<ReadPiece>;
}

/// Calls `visit` for every object, or for those in `only` that are there.
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

/// Which object an entry is of.
pub fn id(entry: &ObjectEntry) -> ObjectId {
    ObjectId {
        data_id: entry.data_id,
        column: entry.column,
    }
}
