//! Which numbers of cuts a shard's log has on its medium, so that a file that is made longer again and again under one number costs one flush.
//!
//! A number that targets may hear of must not be lost with the shard's power (docs/rfcs/2026-11-22-files-grow-over-zeros.md). What this forgets is flushed once more.

use std::collections::BTreeMap;
use zonal_types::Ino;
use zonal_wire::{MetaReply, MetaRequest};

/// Files remembered; of more, all are forgotten.
pub const FLUSHED_MAX: usize = 4096;

/// The last flushed number of files.
#[derive(Debug, Default)]
pub struct Flushed {
    numbers: BTreeMap<Ino, u64>,
}

impl Flushed {
    /// Whether the log has to be flushed before this answer.
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

    /// The log was flushed after this answer was made.
    pub fn note(&mut self, reply: &MetaReply) {
        if let MetaReply::Truncated { attr, data, .. } = reply {
            if self.numbers.len() >= FLUSHED_MAX {
                self.numbers.clear();
            }
            self.numbers.insert(attr.ino, data.truncate_seq);
        }
    }
}
