//! Old contents of partly changed blocks (read-modify-write): pending bytes, zeros, or stored
//! blocks that the shell reads between plan and commit.

use crate::chunk::BlockState;
use crate::ids::{ObjectId, Place};
use crate::note::BlockBytes;
use crate::object_update::ObjectUpdate;
use crate::read::{Damage, ReadPlan};
use std::sync::Arc;
use zonal_types::ErrorCode;
use zonal_types::limits::BLOCK_BYTES;

/// A stored block that was read and verified, with its place and checksum.
#[derive(Debug)]
pub(crate) struct FetchedBlock {
    block: u64,
    place: Place,
    crc: u32,
    bytes: BlockBytes,
}

/// Old contents of partly changed blocks: those to be read, and those that were read.
#[derive(Debug, Default)]
pub(crate) struct OldBlocks {
    wanted: Vec<(u64, Place, u32)>,
    pub plan: Option<ReadPlan>,
    fetched: Vec<FetchedBlock>,
}

impl OldBlocks {
    /// The current bytes of `block`. `None`: they are not known, and are noted as wanted.
    pub fn current(
        &mut self,
        update: &mut ObjectUpdate<'_>,
        block: u64,
    ) -> Result<Option<[u8; BLOCK_BYTES]>, ErrorCode> {
        if let Some(bytes) = update.pending_bytes(block) {
            return Ok(Some(*bytes));
        }
        let (place, crc) = match update.stored(block)? {
            BlockState::Written(place, crc) => (place, crc),
            BlockState::Lost => return Err(ErrorCode::Corrupt),
            BlockState::Hole | BlockState::Unwritten(_) => return Ok(Some([0; BLOCK_BYTES])),
        };
        let known = self
            .fetched
            .iter()
            .find(|found| (found.block, found.place, found.crc) == (block, place, crc));
        if known.is_none() {
            self.wanted.push((block, place, crc));
        }
        Ok(known.map(|found| *found.bytes))
    }

    /// Forgets the wanted blocks of an earlier round.
    pub fn begin(&mut self) {
        self.wanted.clear();
        self.plan = None;
    }

    /// Turns the wanted blocks into a read plan; true where there is something to read.
    pub fn settle(&mut self, object: ObjectId) -> bool {
        let wanted = !self.wanted.is_empty();
        self.plan = wanted.then(|| ReadPlan::of_blocks(object, &self.wanted));
        wanted
    }

    pub fn plan(&self) -> Option<&ReadPlan> {
        self.plan.as_ref()
    }

    pub fn supply(&mut self, buffer: &mut [u8]) -> Result<(), Damage> {
        let Some(plan) = &self.plan else {
            return Ok(());
        };
        plan.finish(buffer)?;
        let blocks = buffer.chunks_exact(BLOCK_BYTES);
        for ((block, place, crc), bytes) in self.wanted.drain(..).zip(blocks) {
            let mut owned = [0; BLOCK_BYTES];
            owned.copy_from_slice(bytes);
            self.fetched.push(FetchedBlock {
                block,
                place,
                crc,
                bytes: Arc::new(owned),
            });
        }
        self.plan = None;
        Ok(())
    }
}
