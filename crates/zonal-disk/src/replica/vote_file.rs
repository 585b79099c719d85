//! The file `vote` of a member's store: its term, and for whom it voted there. Replaced as a whole
//! and flushed, so that no member votes twice in a term.
//!
//! Bytes: magic `ZVOT`, term u64, member u64, crc32c of all before; little-endian.

use std::io;
use std::path::Path;

use zonal_consensus::{ReplicaId, Term, Vote};

use crate::files::error::DiskError;
use crate::files::{StoreDir, VOTE};

const MAGIC: [u8; 4] = *b"ZVOT";
const SIZE: usize = 24;

/// Reads the vote of the store in `dir`; a store without the file has never voted.
pub(super) fn load(dir: &Path) -> Result<Vote, DiskError> {
    match std::fs::read(dir.join(VOTE[0])) {
        Ok(bytes) => {
            decode(&bytes).ok_or_else(|| DiskError::Corrupt("the file of the vote".into()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vote::default()),
        Err(error) => Err(DiskError::io("read the vote", error)),
    }
}

/// Writes the vote, durably and atomically.
pub(super) fn save(store: &StoreDir, vote: Vote) -> Result<(), DiskError> {
    store
        .replace(VOTE[0], VOTE[1], &encode(vote))
        .map_err(|error| DiskError::io("write the vote", error))
}

fn encode(vote: Vote) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..12].copy_from_slice(&vote.term.0.to_le_bytes());
    bytes[12..20].copy_from_slice(&vote.for_member.0.to_le_bytes());
    let crc = crc_fast::crc32_iscsi(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Vote> {
    let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if body[..4] != MAGIC || crc_fast::crc32_iscsi(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let number = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
    Some(Vote {
        term: Term(number(4)?),
        for_member: ReplicaId(number(12)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    #[test]
    fn a_vote_is_read_as_written_and_damage_is_no_vote() {
        let dir = Scratch::new("vote");
        let store = StoreDir::plain(&dir);
        assert_eq!(load(&dir).unwrap(), Vote::default());
        let vote = Vote {
            term: Term(7),
            for_member: ReplicaId(3),
        };
        save(&store, vote).unwrap();
        assert_eq!(load(&dir).unwrap(), vote);
        for at in 0..SIZE {
            let mut bytes = encode(vote);
            bytes[at] ^= 4;
            assert_eq!(decode(&bytes), None, "byte {at}");
        }
    }
}
