//! The file `vote` of a member's store: what it must not forget. Its term, for whom it voted there,
//! whether it may have lost entries, and the newest members. Replaced as a whole and flushed.
//!
//! Bytes: magic `ZVOT`, the promises in the encoding of messages, crc32c of all before.

use std::io;
use std::path::Path;

use zonal_consensus::{LogIndex, Membership, ReplicaId, Term, Vote};
use zonal_types::codec::Codec;
use zonal_types::codec_struct;

use crate::files::error::DiskError;
use crate::files::{StoreDir, VOTE};

const MAGIC: [u8; 4] = *b"ZVOT";

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Promises {
    pub(super) vote: Vote,
    pub(super) may_have_lost: bool,
    /// The members since an entry.
    pub(super) members: Option<(LogIndex, Membership)>,
}

codec_struct! {
    /// The promises as they are stored.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct PromiseRecord {
        term: Term,
        for_member: ReplicaId,
        may_have_lost: bool,
        members: Option<(LogIndex, Membership)>,
    }
}

/// Reads the file of the store in `dir`; a store without it has promised nothing.
pub(super) fn load(dir: &Path) -> Result<Promises, DiskError> {
    match std::fs::read(dir.join(VOTE[0])) {
        Ok(bytes) => {
            decode(&bytes).ok_or_else(|| DiskError::Corrupt("the file of the vote".into()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Promises::default()),
        Err(error) => Err(DiskError::io("read the vote", error)),
    }
}

/// Writes the file, durably and atomically.
pub(super) fn save(store: &StoreDir, promises: &Promises) -> Result<(), DiskError> {
    store
        .replace(VOTE[0], VOTE[1], &encode(promises))
        .map_err(|error| DiskError::io("write the vote", error))
}

fn encode(promises: &Promises) -> Vec<u8> {
    let record = PromiseRecord {
        term: promises.vote.term,
        for_member: promises.vote.for_member,
        may_have_lost: promises.may_have_lost,
        members: promises.members.clone(),
    };
    let mut bytes = MAGIC.to_vec();
    record.put(&mut bytes);
    let crc = crc_fast::crc32_iscsi(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Promises> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc_fast::crc32_iscsi(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let record = PromiseRecord::from_bytes(body.strip_prefix(&MAGIC)?).ok()?;
    Some(Promises {
        vote: Vote {
            term: record.term,
            for_member: record.for_member,
        },
        may_have_lost: record.may_have_lost,
        members: record.members,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    #[test]
    fn promises_are_read_as_written_and_damage_is_none() {
        let dir = Scratch::new("vote");
        let store = StoreDir::plain(&dir);
        assert_eq!(load(&dir).unwrap(), Promises::default());
        let promises = Promises {
            vote: Vote {
                term: Term(7),
                for_member: ReplicaId(3),
            },
            may_have_lost: true,
            members: Some((LogIndex(9), Membership::of_voters([ReplicaId(4)]))),
        };
        save(&store, &promises).unwrap();
        assert_eq!(load(&dir).unwrap(), promises);
        for at in 0..encode(&promises).len() {
            let mut bytes = encode(&promises);
            bytes[at] ^= 4;
            assert_eq!(decode(&bytes), None, "byte {at}");
        }
    }
}
