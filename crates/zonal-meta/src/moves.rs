//! Moves of partitions between shards: what a shard notes about those that leave it and those that
//! come ([RFC](../../../docs/rfcs/2026-11-26-moving-subtrees.md)).
//!
//! *Invariants*:
//! 1. A departure at stage `Switching` is durable only after the other shard has the whole copy
//!    durably. From then on this shard answers nothing about the partition, in no life.
//! 2. An arrival becomes part of the shard where the map says so, in one record, and then the shard
//!    begins a new life. So clients tell it what they hold, as after a restart.
//! 3. The map by which partitions came or went is noted in the record that adopts it. No life of
//!    the shard serves by an older one.

mod arrival;
mod departure;

pub use departure::MoveRefusal;

use crate::keys;
use crate::session::SessionRecord;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{
    Codec, ErrorCode, KvRead, MapVersion, PartitionId, ShardId, codec_enum, codec_struct,
};
use zonal_wire::MoveStage;

codec_struct! {
    /// The stored note of a partition that leaves.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Departure {
        /// Number of the attempt; rises with each.
        number: u64,
        /// The shard that gets it.
        to: ShardId,
        /// How far it is.
        stage: MoveStage,
        /// Pages of the complete copy.
        pages: u64,
    }
}

codec_enum! {
    /// How far an arrival is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ArrivalStage {
        /// Pages come in.
        Receiving = 1,
        /// All of them are here.
        Complete = 2,
    }
}

codec_struct! {
    /// The stored note of a partition that comes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Arrival {
        /// Number of the attempt.
        number: u64,
        /// The shard that has it.
        from: ShardId,
        /// How far it is.
        stage: ArrivalStage,
        /// Pages received.
        pages: u64,
        /// Its files may lie on targets of other zones.
        has_remote_data: bool,
    }
}

impl Arrival {
    /// True where all pages are here.
    #[must_use]
    pub fn is_complete(self) -> bool {
        self.stage == ArrivalStage::Complete
    }
}

codec_struct! {
    /// The stored session of a client at the shard that a partition leaves.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MovedSession {
        /// The session.
        record: SessionRecord,
        /// The subject that opened it.
        holder: Option<String>,
    }
}

/// All moves that a shard takes part in.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub departures: BTreeMap<PartitionId, Departure>,
    pub arrivals: BTreeMap<PartitionId, Arrival>,
    /// No append begins in it, and lent ends of its files are recalled.
    pub closing: Option<PartitionId>,
    /// Nothing about them is answered.
    pub frozen: BTreeSet<PartitionId>,
    /// The map that last gave the shard a partition, or took one.
    pub ownership: MapVersion,
}

impl Moves {
    pub fn load(kv: &dyn KvRead) -> Result<Self, ErrorCode> {
        let departures = notes(kv, keys::TAG_DEPARTURE)?;
        let switching = departures.iter();
        let switching =
            switching.filter(|(_, known): &(_, &Departure)| known.stage == MoveStage::Switching);
        Ok(Self {
            frozen: switching.map(|(partition, _)| *partition).collect(),
            departures,
            arrivals: notes(kv, keys::TAG_ARRIVAL)?,
            closing: None,
            ownership: ownership_version(kv)?,
        })
    }
}

/// The map that last gave the shard a partition, or took one. By an older map, the shard would
/// serve as an empty tree what it has not. Clients would not know all that they have to tell it.
///
/// # Errors
/// The store's error; `Corrupt`.
pub fn ownership_version(kv: &dyn KvRead) -> Result<MapVersion, ErrorCode> {
    let known = kv.get(&keys::ownership())?;
    let known = known
        .map(|bytes| MapVersion::from_bytes(&bytes))
        .transpose();
    Ok(known
        .map_err(|_error| ErrorCode::Corrupt)?
        .unwrap_or_default())
}

/// Partitions of which the store has keys, but not as the owner: they are coming, or have left.
/// `owned`: the shard's partitions by the map, sorted.
///
/// # Errors
/// The store's error; `Corrupt`.
pub fn partitions_under_way(
    kv: &dyn KvRead,
    owned: &[PartitionId],
) -> Result<BTreeSet<PartitionId>, ErrorCode> {
    let Moves {
        departures,
        arrivals,
        ..
    } = Moves::load(kv)?;
    let all = departures.into_keys().chain(arrivals.into_keys());
    Ok(all.filter(|of| owned.binary_search(of).is_err()).collect())
}

fn notes<T: Codec>(kv: &dyn KvRead, tag: u8) -> Result<BTreeMap<PartitionId, T>, ErrorCode> {
    let (start, end) = keys::tag_range(keys::SHARD_PARTITION, tag);
    let mut found = BTreeMap::new();
    let mut broken = false;
    kv.scan(&start, &end, &mut |key, value| {
        match (keys::moved_partition(key), T::from_bytes(value)) {
            (Some(partition), Ok(note)) => drop(found.insert(partition, note)),
            _ => broken = true,
        }
        !broken
    })?;
    match broken {
        true => Err(ErrorCode::Corrupt),
        false => Ok(found),
    }
}

/// Keys of a range, at most `limit` of them.
fn some_keys(
    kv: &dyn KvRead,
    (start, end): (Vec<u8>, Vec<u8>),
    limit: usize,
) -> Result<Vec<Vec<u8>>, ErrorCode> {
    let mut found = Vec::new();
    kv.scan(&start, &end, &mut |key, _value| {
        if found.len() < limit {
            found.push(key.to_vec());
        }
        found.len() < limit
    })?;
    Ok(found)
}
