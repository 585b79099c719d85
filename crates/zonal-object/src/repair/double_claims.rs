//! Double claims: units that more than one record refers to, and which claim keeps them.

use super::{Result, lose};
use crate::chunk::{BlockState, Chunk};
use crate::ids::{CHUNK_BLOCKS, ObjectId, Place, TargetConfig};
use crate::index_value;
use crate::key::{self, IndexKey};
use std::collections::BTreeSet;
use zonal_types::{KvChange, KvRead};

/// A record's claim of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The unit.
    pub place: Place,
    /// The object of the record.
    pub object: ObjectId,
    /// The object's block.
    pub block: u64,
    /// The block's recorded crc32c, where it has contents.
    pub crc: Option<u32>,
}

/// All claims of the units in `places`.
///
/// # Errors
/// Those of `kv`.
pub fn claims(
    config: &TargetConfig,
    kv: &dyn KvRead,
    places: &BTreeSet<Place>,
) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    kv.scan(&[key::OBJECT], &[key::OBJECT + 1], &mut |key, value| {
        if let (Ok(IndexKey::Chunk(object, number)), Ok(chunk)) =
            (key::parse(key), Chunk::decode(config, key, value))
        {
            for (step, state) in chunk.blocks() {
                if let Some(place) = state.place().filter(|place| places.contains(place)) {
                    claims.push(Claim {
                        place,
                        object,
                        block: number.saturating_mul(CHUNK_BLOCKS).saturating_add(step),
                        crc: match state {
                            BlockState::Written(_, crc) => Some(crc),
                            _ => None,
                        },
                    });
                }
            }
        }
        true
    })?;
    claims.sort_unstable();
    Ok(claims)
}

/// Settles the claims of one unit. `crc` is the checksum of its contents, `bytes` the contents
/// (`None`: unreadable). The first claim whose checksum fits keeps the unit, others whose checksum
/// fits get a copy, and the rest becomes lost.
///
/// # Errors
/// As [`lose`].
pub fn settle(
    config: &TargetConfig,
    kv: &dyn KvRead,
    claims: &[Claim],
    contents: Option<(&[u8], u32)>,
) -> Result<Vec<KvChange>> {
    let fits = |claim: &Claim| claim.crc.is_some() && claim.crc == contents.map(|(_, crc)| crc);
    // A claim without contents has no precedence over one whose contents are there.
    let keeper = claims.iter().position(fits).or(claims
        .iter()
        .position(|claim| claim.crc.is_none())
        .filter(|_| claims.len() > 1));
    let mut changes = Vec::new();
    for (at, claim) in claims.iter().enumerate() {
        if Some(at) == keeper {
            continue;
        }
        match contents {
            Some((bytes, _)) if fits(claim) => {
                let key = key::pending(claim.object, claim.block);
                let value = index_value::seal(&key, |out| out.extend_from_slice(bytes));
                changes.push(KvChange::put(key, value));
                changes.extend(clear(config, kv, claim)?);
            }
            _ if claim.crc.is_none() => changes.extend(clear(config, kv, claim)?),
            _ => changes.extend(lose(
                config,
                kv,
                claim.object,
                claim.block,
                claim.block + 1,
            )?),
        }
    }
    Ok(changes)
}

/// Takes a claim's place away: the block becomes a hole, or stays pending.
fn clear(config: &TargetConfig, kv: &dyn KvRead, claim: &Claim) -> Result<Vec<KvChange>> {
    let key = key::chunk(claim.object, claim.block / CHUNK_BLOCKS);
    let Some(value) = kv.get(&key)? else {
        return Ok(Vec::new());
    };
    let mut chunk = Chunk::decode(config, &key, &value)?;
    chunk.set(claim.block, BlockState::Hole);
    chunk.version += 1;
    Ok(vec![if chunk.is_empty() {
        KvChange::remove(key)
    } else {
        let value = chunk.encode(&key);
        KvChange::put(key, value)
    }])
}
