//! Walks a target's index in key order: objects for listings, chunks for a scrub. The caller bounds
//! each step. A step reads the store as it is at that time, so nothing is held between steps.

use crate::ids::{BLOCK, ObjectId};
use crate::index_value::{self, ObjectHeader, TargetRecord};
use crate::key::{self, IndexKey};
use crate::target::ObjectStat;
use zonal_types::{Column, DataId, ErrorCode, KvRead};

/// An object with its length and allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedObject {
    /// The object.
    pub object: ObjectId,
    /// Its length and allocation.
    pub stat: ObjectStat,
    /// The highest order of its changes; 0 where it has none.
    pub order: u64,
}

/// A record of the index, as a walk over all records yields it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkedRecord {
    /// The object.
    pub object: ObjectId,
    /// Number of the chunk; `None`: the object's header, which comes before its chunks.
    pub chunk: Option<u64>,
}

impl WalkedRecord {
    /// The key from which a walk continues behind this record.
    #[must_use]
    pub fn behind(&self) -> Vec<u8> {
        let mut next = match self.chunk {
            None => key::header(self.object),
            Some(number) => key::chunk(self.object, number),
        };
        next.push(0);
        next
    }
}

/// Units of a segment, as the target stored them with its first checkpoint.
///
/// # Errors
/// `Corrupt`; errors of `kv`.
pub fn segment_units(kv: &dyn KvRead) -> Result<Option<u32>, ErrorCode> {
    let key = key::target();
    let Some(value) = kv.get(&key)? else {
        return Ok(None);
    };
    let record: TargetRecord = index_value::decode(&key, &value)?;
    Ok(Some(record.segment_units))
}

/// The key at which a walk over all records begins.
#[must_use]
pub fn first() -> Vec<u8> {
    vec![key::OBJECT]
}

fn behind(object: ObjectId) -> Option<ObjectId> {
    if let Some(column) = object.column.0.checked_add(1) {
        return Some(ObjectId {
            column: Column(column),
            ..object
        });
    }
    let data_id = object.data_id.0.checked_add(1)?;
    Some(ObjectId {
        data_id: DataId(data_id),
        column: Column(0),
    })
}

/// The object of the first key at or behind `start`, with its header where that key is the
/// header's.
fn next_object(
    kv: &dyn KvRead,
    start: &[u8],
) -> Result<Option<(ObjectId, Option<ObjectHeader>)>, ErrorCode> {
    let mut found = Ok(None);
    kv.scan(start, &[key::OBJECT + 1], &mut |key, value| {
        found = match key::parse(key) {
            Ok(IndexKey::Header(object)) => {
                index_value::decode(key, value).map(|header| Some((object, Some(header))))
            }
            Ok(IndexKey::Chunk(object, _)) => Ok(Some((object, None))),
            Ok(_) | Err(_) => Err(ErrorCode::Corrupt),
        };
        false
    })?;
    found
}

/// Up to `limit` objects behind `after`, and whether these are the last. Skips objects whose
/// deletion has begun. One look-up an object, however large it is.
///
/// # Errors
/// `Corrupt`; errors of `kv`.
pub fn objects(
    kv: &dyn KvRead,
    after: Option<ObjectId>,
    limit: usize,
) -> Result<(Vec<ListedObject>, bool), ErrorCode> {
    let mut list = Vec::new();
    let mut start = match after.map(behind) {
        None => first(),
        Some(Some(object)) => key::header(object),
        Some(None) => return Ok((list, true)),
    };
    while list.len() < limit {
        let Some((object, header)) = next_object(kv, &start)? else {
            return Ok((list, true));
        };
        if let Some(header) = header.filter(|header| !header.deleting) {
            let stat = ObjectStat {
                object_bytes: header.object_bytes,
                allocated: header.blocks.saturating_mul(BLOCK),
                truncate_seq: header.truncate_seq,
            };
            let order = header.order;
            list.push(ListedObject {
                object,
                stat,
                order,
            });
        }
        let Some(next) = behind(object) else {
            return Ok((list, true));
        };
        start = key::header(next);
    }
    Ok((list, false))
}

/// Up to `limit` records from `start` on: [`first`], or [`WalkedRecord::behind`] an earlier record.
/// Fewer than `limit` are the last.
///
/// # Errors
/// `Corrupt` for an unknown key; errors of `kv`.
pub fn records(
    kv: &dyn KvRead,
    start: &[u8],
    limit: usize,
) -> Result<Vec<WalkedRecord>, ErrorCode> {
    let mut found = Vec::new();
    let mut failed = None;
    kv.scan(start, &[key::OBJECT + 1], &mut |key, _value| {
        match key::parse(key) {
            Ok(IndexKey::Header(object)) => found.push(WalkedRecord {
                object,
                chunk: None,
            }),
            Ok(IndexKey::Chunk(object, number)) => found.push(WalkedRecord {
                object,
                chunk: Some(number),
            }),
            Ok(_) | Err(_) => failed = Some(ErrorCode::Corrupt),
        }
        failed.is_none() && found.len() < limit
    })?;
    match failed {
        Some(code) => Err(code),
        None => Ok(found),
    }
}

/// The object at or behind which a walk from `start` continues.
#[must_use]
pub fn object_at(start: &[u8]) -> Option<ObjectId> {
    let known = start.strip_suffix(&[0]).unwrap_or(start);
    match key::parse(known) {
        Ok(IndexKey::Header(object) | IndexKey::Chunk(object, _)) => Some(object),
        _ => None,
    }
}
