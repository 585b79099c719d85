//! Durable truncations: the truncation numbers (`truncate_seq`) that a shard's log has flushed. A
//! file that is extended again and again under one number then costs one flush.
//!
//! A number that targets may see must not be lost with the shard's power
//! (docs/rfcs/2026-11-22-files-grow-over-zeros.md). A number that this table forgets is flushed
//! once more.

use std::collections::BTreeMap;
use zonal_types::Ino;
use zonal_wire::{MetaReply, MetaRequest};

/// Files remembered; past it the table is cleared.
pub const FLUSHED_MAX: usize = 4096;

/// The last flushed truncation number of each file.
#[derive(Debug, Default)]
pub struct DurableTruncations {
    numbers: BTreeMap<Ino, u64>,
}

impl DurableTruncations {
    /// True where the log has to be flushed before this reply.
    #[must_use]
    pub fn is_missing(&self, request: &MetaRequest, reply: &MetaReply) -> bool {
        if request.is_sync() {
            return true;
        }
        let is_known = match reply {
            MetaReply::Truncated {
                attr,
                data,
                push: false,
            } => self.numbers.get(&attr.ino) == Some(&data.truncate_seq),
            _ => false,
        };
        reply.must_be_durable() && !is_known
    }

    /// Notes that the log was flushed after this reply was made.
    pub fn note(&mut self, reply: &MetaReply) {
        if let MetaReply::Truncated { attr, data, .. } = reply {
            if self.numbers.len() >= FLUSHED_MAX {
                self.numbers.clear();
            }
            self.numbers.insert(attr.ino, data.truncate_seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Inode;
    use zonal_types::{FileKind, Timestamp, ZoneId};

    #[test]
    fn a_number_is_flushed_once() {
        let mut flushed = DurableTruncations::default();
        let reply = |number: u64, size: u64| {
            let (time, zone) = (Timestamp::default(), ZoneId(1));
            let mut inode = Inode::new(Ino(5), FileKind::File, Ino(1), zone, time);
            (inode.size, inode.truncate_seq, inode.truncate_size) = (size, number, 10);
            MetaReply::Truncated {
                attr: inode.attr(),
                data: inode.data(zonal_types::MapVersion(0)),
                push: false,
            }
        };
        let request = MetaRequest::StatFs;
        assert!(flushed.is_missing(&request, &reply(7, 20)));
        flushed.note(&reply(7, 20));
        assert!(!flushed.is_missing(&request, &reply(7, 30)));
        assert!(flushed.is_missing(&request, &reply(9, 30)));
        assert!(flushed.is_missing(&MetaRequest::Sync, &reply(7, 30)));
    }
}
