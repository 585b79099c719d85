//! Appends of several clients to one file: each acknowledged record is there exactly once, each
//! other record at most once. Between records there is nothing but holes of appends that were given
//! up.

use std::collections::BTreeMap;

/// Bytes of a record.
pub const RECORD: usize = 64;

/// The record of one append.
#[must_use]
pub fn record(client: usize, number: u64) -> Vec<u8> {
    let mut bytes = format!("<{client} {number} ").into_bytes();
    bytes.resize(RECORD - 1, b'.');
    bytes.push(b'>');
    bytes
}

/// Records with whether they were acknowledged.
pub type RecordAcks = BTreeMap<(usize, u64), bool>;

/// Returns what is wrong with the file. `may_give_up`: there were faults, so appends may have been
/// given up and left holes.
#[must_use]
pub fn check(content: &[u8], known: &RecordAcks, may_give_up: bool) -> Vec<String> {
    let mut found: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut broken = Vec::new();
    if !content.len().is_multiple_of(RECORD) {
        broken.push(format!(
            "append: the file has {} bytes, no multiple of {RECORD}",
            content.len()
        ));
    }
    for (index, bytes) in content.chunks(RECORD).enumerate() {
        if bytes.iter().any(|byte| *byte != 0) {
            *found.entry(bytes.to_vec()).or_default() += 1;
        } else if !may_give_up {
            broken.push(format!(
                "append: a hole at record {index}, though none was given up"
            ));
        }
    }
    for ((client, number), acked) in known {
        let count = found.remove(&record(*client, *number)).unwrap_or(0);
        if count > 1 || (*acked && count != 1) {
            broken.push(format!(
                "append: record {number} of client {client} (acknowledged: {acked}) is there {count} times"
            ));
        }
    }
    for bytes in found.keys() {
        broken.push(format!(
            "append: torn record {:?}",
            String::from_utf8_lossy(bytes)
        ));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_doubled_and_torn_records_are_found() {
        let known = RecordAcks::from([((0, 1), true), ((1, 1), true)]);
        let good = [record(0, 1), record(1, 1)].concat();
        assert_eq!(check(&good, &known, false), Vec::<String>::new());
        assert_eq!(check(&good[..RECORD], &known, false).len(), 1);
        assert_eq!(
            check(&[&good[..], &good[..RECORD]].concat(), &known, true).len(),
            1
        );
        let mut torn = good.clone();
        torn[5] = 0;
        assert_eq!(check(&torn, &known, true).len(), 2);
        let hole = [good, vec![0; RECORD]].concat();
        assert_eq!(check(&hole, &known, false).len(), 1);
    }
}
