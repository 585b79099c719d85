//! Every invariant of a target, for tests and fsck. Walks the whole index.

use crate::chunk::Chunk;
use crate::ids::{CHUNK_BLOCKS, ObjectId, Place};
use crate::key::{self, Named};
use crate::sealed::{self, Header};
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{ErrorCode, KvRead};

/// An invariant that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The store could not be read or holds damage.
    #[error("the index cannot be read: {0}")]
    Unreadable(ErrorCode),
    /// Two records refer to one unit.
    #[error("unit {} of segment {} is referred to twice", .0.unit, .0.segment)]
    Twice(Place),
    /// A record refers to a unit that the allocator takes for free.
    #[error("unit {} of segment {} is in use and not marked", .0.unit, .0.segment)]
    NotMarked(Place),
    /// The allocator holds units that no record refers to.
    #[error("{0} units are marked and not in use")]
    Leaked(u64),
    /// A chunk or pending block without a header.
    #[error("object {0} has no header")]
    NoHeader(ObjectId),
    /// A header counts wrongly.
    #[error("object {object} counts {counted} blocks and has {found}")]
    Blocks {
        /// The object.
        object: ObjectId,
        /// What the header says.
        counted: u64,
        /// What there is.
        found: u64,
    },
    /// The number of objects is wrong.
    #[error("{counted} objects are counted, {found} exist")]
    Objects {
        /// What the counter says.
        counted: u64,
        /// What there is.
        found: u64,
    },
}

impl Target {
    /// Checks invariants 1 to 3 of [`crate::target`], and the number of objects.
    ///
    /// # Errors
    /// The first that is broken.
    pub fn check(&self, kv: &dyn KvRead) -> Result<(), Broken> {
        let mut places = BTreeSet::new();
        let mut headers: BTreeMap<ObjectId, Header> = BTreeMap::new();
        let mut blocks: BTreeMap<ObjectId, BTreeSet<u64>> = BTreeMap::new();
        let mut broken = None;
        let mut visit = |key: &[u8], value: &[u8]| -> Result<(), Broken> {
            match key::parse(key).map_err(Broken::Unreadable)? {
                Named::Header(object) => {
                    let header = sealed::decode(key, value).map_err(Broken::Unreadable)?;
                    headers.insert(object, header);
                }
                Named::Chunk(object, number) => {
                    let chunk =
                        Chunk::decode(&self.config, key, value).map_err(Broken::Unreadable)?;
                    let own = blocks.entry(object).or_default();
                    for (block, place) in chunk.placed() {
                        own.insert(number.saturating_mul(CHUNK_BLOCKS).saturating_add(block));
                        if !places.insert(place) {
                            return Err(Broken::Twice(place));
                        }
                        if !self.space.is_live(place) {
                            return Err(Broken::NotMarked(place));
                        }
                    }
                }
                _ => return Err(Broken::Unreadable(ErrorCode::Corrupt)),
            }
            Ok(())
        };
        kv.scan(&[key::OBJECT], &[key::OBJECT + 1], &mut |key, value| {
            broken = visit(key, value).err();
            broken.is_none()
        })
        .map_err(Broken::Unreadable)?;
        if let Some(broken) = broken {
            return Err(broken);
        }
        for ((object, block), _) in self.pending.iter() {
            blocks.entry(*object).or_default().insert(*block);
        }
        if let Some(object) = blocks.keys().find(|object| !headers.contains_key(object)) {
            return Err(Broken::NoHeader(*object));
        }
        for (object, header) in &headers {
            let found = blocks.get(object).map_or(0, BTreeSet::len) as u64;
            if found != header.blocks {
                return Err(Broken::Blocks {
                    object: *object,
                    counted: header.blocks,
                    found,
                });
            }
        }
        let leaked = self.space.live().saturating_sub(places.len() as u64);
        if leaked > 0 {
            return Err(Broken::Leaked(leaked));
        }
        let (counted, found) = (self.statfs().objects, headers.len() as u64);
        if counted != found {
            return Err(Broken::Objects { counted, found });
        }
        Ok(())
    }
}
