//! Start marks: the `starts` file of a store's directory. A cell uses them to tell a store from its
//! copies and from older images of it.
//!
//! Each start of a store proposes a new *mark* (an increasing number and a random tag). It begins
//! work only after the manager has accepted the mark. The file holds the last mark that the manager
//! accepted, and those proposed since. The manager may have accepted one of them while its answer
//! was lost. A copy has the marks of the time when it was made. Once the store itself or another
//! copy has had a mark accepted, none of the copy's marks is the newest.
//!
//! Invariants: a mark is durable here before it is proposed; a mark is drawn once.

use std::fs;
use std::io;
use std::path::Path;

use crate::files::StoreDir;
use crate::files::error::DiskError;

/// Name of the file.
pub const FILE_NAME: &str = "starts";
/// Left behind by an interrupted write of the file.
pub(crate) const TEMP_NAME: &str = "starts.new";
/// Most marks that are proposed and not known to be accepted; after that many starts in vain the
/// last one is proposed again.
pub const PROPOSALS_MAX: usize = 16;
const MAGIC: &[u8; 8] = b"ZONALSTA";
const VERSION: u32 = 1;
const MARK: usize = 16;
const HEAD: usize = 16;

/// The mark of one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredMark {
    /// Increases with each start; 0: none.
    pub number: u64,
    /// Random.
    pub tag: u64,
}

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Starts {
    /// The last mark known to be accepted; number 0: none.
    pub taken: StoredMark,
    /// Marks proposed since then, oldest first.
    pub proposed: Vec<StoredMark>,
}

impl Starts {
    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        let count = u32::try_from(self.proposed.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        for mark in std::iter::once(&self.taken).chain(&self.proposed) {
            out.extend_from_slice(&mark.number.to_le_bytes());
            out.extend_from_slice(&mark.tag.to_le_bytes());
        }
        let crc = crc_fast::crc32_iscsi(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the file's bytes; `None` for bytes that this program does not write.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        let head = body.get(..HEAD)?;
        let version = u32::from_le_bytes(head.get(8..12)?.try_into().ok()?);
        let count = u32::from_le_bytes(head.get(12..16)?.try_into().ok()?) as usize;
        let known = head.get(..8)? == MAGIC && version == VERSION && count <= PROPOSALS_MAX;
        if !known || crc_fast::crc32_iscsi(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (marks, rest) = body.get(HEAD..)?.as_chunks::<MARK>();
        if !rest.is_empty() || marks.len() != count + 1 {
            return None;
        }
        let mut marks = marks.iter().map(|mark| {
            let (number, tag) = mark.split_at(8);
            Some(StoredMark {
                number: u64::from_le_bytes(number.try_into().ok()?),
                tag: u64::from_le_bytes(tag.try_into().ok()?),
            })
        });
        Some(Self {
            taken: marks.next()??,
            proposed: marks.collect::<Option<_>>()?,
        })
    }
}

fn load(dir: &Path) -> Result<Starts, DiskError> {
    match fs::read(dir.join(FILE_NAME)) {
        // A damaged file counts as missing: the manager then decides whether the store is the
        // newest.
        Ok(bytes) => Ok(Starts::decode(&bytes).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Starts::default()),
        Err(error) => Err(DiskError::io("read the starts", error)),
    }
}

fn save(store: &StoreDir, starts: &Starts) -> Result<(), DiskError> {
    let bytes = starts.encode();
    assert_eq!(
        Starts::decode(&bytes).as_ref(),
        Some(starts),
        "start marks decode to what is written"
    );
    store
        .replace(FILE_NAME, TEMP_NAME, &bytes)
        .map_err(|error| DiskError::io("write the starts", error))
}

/// The marks of a store.
///
/// # Errors
/// When the medium fails.
pub fn known(store: &StoreDir) -> Result<Starts, DiskError> {
    load(store.path())
}

/// Begins a start of `store`, which is open. The last of the returned proposals is the mark of this
/// start.
///
/// # Errors
/// When the medium fails or there is no randomness.
pub fn propose(store: &StoreDir) -> Result<Starts, DiskError> {
    let mut starts = load(store.path())?;
    if starts.proposed.len() < PROPOSALS_MAX {
        let mut tag = [0; 8];
        getrandom::fill(&mut tag)
            .map_err(|error| DiskError::io("random bytes", io::Error::other(error)))?;
        let last = starts.proposed.last().unwrap_or(&starts.taken).number;
        starts.proposed.push(StoredMark {
            number: last.saturating_add(1),
            tag: u64::from_le_bytes(tag),
        });
        save(store, &starts)?;
    }
    Ok(starts)
}

/// Notes that the manager has accepted `mark`.
///
/// # Errors
/// When the medium fails.
pub fn taken(store: &StoreDir, mark: StoredMark) -> Result<(), DiskError> {
    let starts = Starts {
        taken: mark,
        proposed: Vec::new(),
    };
    save(store, &starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    #[test]
    fn marks_increase_and_are_kept_until_one_is_accepted() {
        let dir = Scratch::new("starts");
        let store = StoreDir::plain(&dir);
        let first = propose(&store).unwrap();
        assert_eq!((first.taken.number, first.proposed[0].number), (0, 1));
        let second = propose(&store).unwrap();
        assert_eq!(second.proposed[..1], first.proposed[..]);
        taken(&store, second.proposed[1]).unwrap();
        let third = propose(&store).unwrap();
        assert_eq!(third.taken, second.proposed[1]);
        assert_eq!(third.proposed[0].number, 3);
        for _ in 0..PROPOSALS_MAX * 2 {
            assert!(propose(&store).unwrap().proposed.len() <= PROPOSALS_MAX);
        }
        fs::write(dir.join(FILE_NAME), b"damaged").unwrap();
        assert_eq!(propose(&store).unwrap().taken, StoredMark::default());
    }

    #[test]
    fn damage_is_detected() {
        let starts = Starts {
            taken: StoredMark { number: 5, tag: 6 },
            proposed: vec![StoredMark { number: 7, tag: 8 }],
        };
        let good = starts.encode();
        assert_eq!(Starts::decode(&good), Some(starts));
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 4;
            assert_eq!(Starts::decode(&bytes), None, "byte {at}");
            assert_eq!(Starts::decode(&good[..at]), None);
        }
    }
}
