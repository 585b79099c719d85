//! Describes keys, values and notes of a target in words, for `zonal dump`.

use crate::chunk::{BlockState, Chunk};
use crate::fences::StoredFence;
use crate::ids::{BLOCK, CHUNK_BLOCKS, Extent, ObjectId, TargetConfig};
use crate::index_value::{self, ObjectHeader, TargetRecord};
use crate::key::{self, IndexKey};
use crate::note::Note;
use zonal_types::ErrorCode;
use zonal_types::describe::{Described, Field};

/// Accepts any geometry, so that a chunk is shown also where the target's geometry is unknown.
const ANY: TargetConfig = TargetConfig {
    segment_units: u32::MAX,
    segments: u32::MAX,
    pending_blocks_max: 0,
};

fn of_object(what: &'static str, object: ObjectId) -> Described {
    Described::new(what)
        .with("data_id", object.data_id.0)
        .with("column", object.column.0)
}

/// Describes an entry of the index.
///
/// # Errors
/// `Corrupt` where key or value cannot be decoded, `WrongVersion` for a newer value.
pub fn entry(key: &[u8], value: &[u8]) -> Result<Described, ErrorCode> {
    Ok(match key::parse(key)? {
        IndexKey::Target => {
            let record: TargetRecord = index_value::decode(key, value)?;
            Described::new("target")
                .with("segment_units", record.segment_units)
                .with("objects", record.objects)
        }
        IndexKey::Segment(number) => {
            let bits = index_value::open(key, value)?;
            let used: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
            Described::new("allocation of a segment")
                .with("segment", number)
                .with("units", bits.len() as u64 * 8)
                .with("used", used)
                .with("runs", runs(bits))
        }
        IndexKey::Tombstone(object) => {
            index_value::open(key, value)?;
            of_object("deletion under way", object)
        }
        IndexKey::Fence(client, holder) => {
            let record: StoredFence = index_value::decode(key, value)?;
            Described::new("fence")
                .with("client", client.0)
                .with("holder", holder.0)
                .with("lowest", record.lowest.0)
        }
        IndexKey::Pending(object, block) => {
            let bytes = index_value::open(key, value)?;
            of_object("pending block", object)
                .with("offset", block.saturating_mul(BLOCK))
                .with("crc32c", hex(crc_fast::crc32_iscsi(bytes)))
        }
        IndexKey::Header(object) => {
            let header: ObjectHeader = index_value::decode(key, value)?;
            of_object("object", object)
                .with("object_bytes", header.object_bytes)
                .with("blocks", header.blocks)
                .with("truncate_seq", header.truncate_seq)
                .with("order", header.order)
                .with("deleting", header.deleting)
        }
        IndexKey::Chunk(object, number) => {
            let chunk = Chunk::decode(&ANY, key, value)?;
            let first = number.saturating_mul(CHUNK_BLOCKS);
            of_object("chunk", object)
                .with("chunk", number)
                .with("offset", first.saturating_mul(BLOCK))
                .with("version", chunk.version)
                .with("blocks", blocks(&chunk))
        }
    })
}

/// Used runs of a bitmap, as `first-last`.
fn runs(bits: &[u8]) -> Field {
    let is_used = |unit: usize| {
        bits.get(unit / 8)
            .is_some_and(|byte| byte >> (unit % 8) & 1 == 1)
    };
    let (mut found, mut unit, end) = (Vec::new(), 0, bits.len() * 8);
    while unit < end {
        if !is_used(unit) {
            unit += 1;
            continue;
        }
        let first = unit;
        while unit < end && is_used(unit) {
            unit += 1;
        }
        found.push(format!("{first}-{}", unit - 1));
    }
    found.into_iter().collect()
}

fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}

fn blocks(chunk: &Chunk) -> Field {
    let placed = chunk.placed().map(|(block, place)| {
        let mut fields = vec![
            ("block", Field::from(block)),
            ("segment", Field::from(place.segment)),
            ("unit", Field::from(place.unit)),
        ];
        if let BlockState::Written(_, crc) = chunk.get(block) {
            fields.push(("crc32c", Field::from(hex(crc))));
        }
        fields
    });
    placed.collect()
}

/// Describes the note of a record of the log.
///
/// # Errors
/// `Corrupt` where it cannot be decoded.
pub fn note(bytes: &[u8]) -> Result<Described, ErrorCode> {
    let note = Note::decode(bytes)?;
    let extents = |list: &[Extent]| -> Field {
        let shown = list.iter().map(|extent| {
            let last = u64::from(extent.unit) + u64::from(extent.count);
            format!(
                "{}:{}-{}",
                extent.segment,
                extent.unit,
                last.saturating_sub(1)
            )
        });
        shown.collect()
    };
    let removed = note.removed.iter();
    let removed =
        removed.map(|(object, (first, end))| format!("{object}:{first}-{}", end.saturating_sub(1)));
    let put = note.put.iter();
    let put = put.map(|(object, block, _bytes)| format!("{object}:{block}"));
    Ok(Described::new("note")
        .with("taken", extents(&note.taken))
        .with("freed", extents(&note.freed))
        .with("objects", note.objects)
        .with("pending_removed", removed.collect::<Field>())
        .with("pending_put", put.collect::<Field>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::{GARBAGE, refused};

    #[test]
    fn garbage_is_an_error_and_never_a_panic() {
        let starts = [&[1][..], &[2, 0, 0, 0, 1], &[3], &[4], &[0x10], &[]];
        let count = refused(&starts, |key, value| {
            let _ = note(value);
            entry(key, value).is_err()
        });
        assert!(count > GARBAGE / 2, "{count}");
    }
}
