//! Units that more than one record refers to: who claims them, and who keeps them.

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
    /// Who refers to it.
    pub object: ObjectId,
    /// With which block.
    pub block: u64,
    /// What the block must sum to, where it has contents.
    pub crc: Option<u32>,
}

/// Every claim of the units in `places`.
///
/// # Errors
/// What `kv` gives.
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

/// Settles the claims of one unit, which sums to `crc` and holds `bytes` (`None`: it cannot be
/// read). The first claim that its contents satisfy keeps it; others that they satisfy get a copy;
/// the rest is lost.
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
    // Space without contents has no better right than contents that are there.
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

/// Takes a claim's place away: the block is a hole, or pending.
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
