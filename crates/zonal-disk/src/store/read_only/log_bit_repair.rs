//! Repair of one flipped bit in a record of a log, found by the checksum that it breaks.

use crate::files::disk::LogFile;
use crate::files::error::DiskError;
use crate::log::{HEADER, Origin, RecordHeader, RecordKind};

/// The longest payload in which a bit is searched. Two flipped bits are never taken for one; of
/// three and more, one in 30,000 is at this length.
const PAYLOAD_LONGEST: usize = 16 << 10;
/// The polynomial of crc32c (RFC 3720), lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The flipped bit that hides a record at `position`, of this epoch or a later one: its byte in the
/// file, and its mask.
///
/// # Errors
/// `Io`.
pub(super) fn flipped(
    file: &dyn LogFile,
    origin: Origin,
    position: u64,
    epoch: u64,
) -> Result<Option<(u64, u8)>, DiskError> {
    let read = |at: u64, length: usize| {
        let mut bytes = vec![0; length];
        let read = file.read_at(at, &mut bytes);
        let read = read.map_err(|error| DiskError::io("read the log", error));
        read.map(|()| bytes)
    };
    let at = position % origin.capacity;
    let is_next = |header: &RecordHeader| {
        header.lsn == position
            && header.store == origin.store
            && (epoch..=origin.epoch).contains(&header.epoch)
    };
    let place = |start: u64, bit: usize| (start + bit as u64 / 8, 1 << (bit % 8));
    let bytes = read(at, HEADER)?;
    let Some(header) = RecordHeader::decode(&bytes) else {
        return Ok(of_header(&bytes, is_next).map(|bit| place(at, bit)));
    };
    let start = at + HEADER as u64;
    let length = header.payload_len as usize;
    let is_whole = length <= PAYLOAD_LONGEST && start + length as u64 <= origin.capacity;
    if header.kind == RecordKind::Pad || !is_next(&header) || !is_whole {
        return Ok(None);
    }
    let bit = of_payload(&read(start, length)?, header.payload_crc);
    Ok(bit.map(|bit| place(start, bit)))
}

fn of_header(bytes: &[u8], is_right: impl Fn(&RecordHeader) -> bool) -> Option<usize> {
    (0..bytes.len() * 8).find(|bit| {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        RecordHeader::decode(&bytes).is_some_and(|header| is_right(&header))
    })
}

/// The checksum is linear: the change that a bit makes in it depends only on the number of bytes
/// that follow.
fn of_payload(payload: &[u8], crc: u32) -> Option<usize> {
    let difference = crc_fast::crc32_iscsi(payload) ^ crc;
    let mut changes: [u32; 8] = std::array::from_fn(|bit| one_byte_on(1 << bit));
    for at in (0..payload.len()).rev() {
        if let Some(bit) = changes.iter().position(|change| *change == difference) {
            return Some(at * 8 + bit);
        }
        changes = changes.map(one_byte_on);
    }
    None
}

fn one_byte_on(sum: u32) -> u32 {
    (0..8).fold(sum, |sum, _| {
        let carry = if sum & 1 == 1 { POLYNOMIAL } else { 0 };
        (sum >> 1) ^ carry
    })
}
