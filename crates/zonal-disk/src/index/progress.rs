//! The progress of an index: one entry beside those of the store, and two more that older programs
//! do not know.

use crate::log::LSN_END;

pub(super) const PROGRESS: &str = "progress";
const PROGRESS_SIZE: usize = 28;
/// The number of the copy's record, a little-endian u64. In an entry of its own, since older
/// programs know only the first one.
pub(crate) const COPY: &str = "copy";
/// The tag of the store, a little-endian u64; in an entry of its own for the same reason.
pub(crate) const STORE: &str = "store";

/// The log position that an index has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexProgress {
    /// All records below this position are in the table.
    pub applied: u64,
    /// Epoch of the checkpoint that wrote it.
    pub applied_epoch: u64,
    /// Highest epoch in use.
    pub epoch: u64,
    /// The record of the copy with the same state; 0: none.
    pub copy: u64,
    /// Tag of the store whose index it is. 0: unknown, because no program that writes the tag has
    /// used the store.
    pub store: u64,
}

impl IndexProgress {
    pub(super) fn encode(&self) -> [u8; PROGRESS_SIZE] {
        let mut out = [0; PROGRESS_SIZE];
        out[..8].copy_from_slice(&self.applied.to_le_bytes());
        out[8..16].copy_from_slice(&self.applied_epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&out[..24]);
        out[24..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PROGRESS_SIZE] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let field = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(field))
        };
        let crc = u32::from_le_bytes(bytes.get(24..)?.try_into().ok()?);
        if crc_fast::crc32_iscsi(&bytes[..24]) != crc {
            return None;
        }
        let progress = Self {
            applied: word(0)?,
            applied_epoch: word(8)?,
            epoch: word(16)?,
            ..Self::default()
        };
        let sane = progress.applied < LSN_END
            && progress.applied.is_multiple_of(crate::log::ALIGN as u64)
            && progress.epoch < 1 << 62
            && progress.applied_epoch <= progress.epoch;
        sane.then_some(progress)
    }

    /// Adds the entries [`COPY`] and [`STORE`], where they exist.
    pub(crate) fn with(self, copy: Option<&[u8]>, store: Option<&[u8]>) -> Self {
        let number = |entry: Option<&[u8]>| {
            let bytes = entry.and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        Self {
            copy: number(copy),
            store: number(store),
            ..self
        }
    }

    /// Whether the index can belong to the store with this tag.
    pub(crate) fn may_be_of(&self, store: u64) -> bool {
        self.store == 0 || self.store == store
    }
}
