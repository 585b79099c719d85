//! Random keys, values and messages for decoders, which may refuse them and must not panic.

use crate::Rng;

/// Number of keys and values in one call of [`refused`].
pub const GARBAGE: usize = 60_000;

/// Passes random keys that begin with each of `starts`, and values of all lengths, to `refuses`.
/// Returns how many it refused.
pub fn refused(starts: &[&[u8]], mut refuses: impl FnMut(&[u8], &[u8]) -> bool) -> usize {
    let mut rng = Rng(7);
    let mut count = 0;
    for round in 0..GARBAGE {
        let mut key = starts[round % starts.len()].to_vec();
        key.extend(rng.bytes(round / 7 % 24));
        let value = rng.bytes(round % 97);
        count += usize::from(refuses(&key, &value));
    }
    count
}

/// One of `seeds`, spliced with another one, overwritten in part, or extended by some bytes. Its
/// first fields are mostly valid.
///
/// # Panics
/// Where `seeds` is empty.
pub fn mangled(seeds: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut bytes = random.pick(seeds).clone();
    match random.below(3) {
        0 => {
            let other = random.pick(seeds);
            bytes.truncate(random.index(bytes.len() + 1));
            bytes.extend_from_slice(&other[random.index(other.len() + 1)..]);
        }
        1 => {
            let at = random.index(bytes.len());
            let count = random.index(9).min(bytes.len() - at);
            bytes[at..at + count].fill([0, 1, 0x3f, 0x40, 0x7f, 0x80, 0xff][random.index(7)]);
        }
        _ => {
            let at = random.index(bytes.len() + 1);
            let more = random.index(16);
            bytes.splice(at..at, random.bytes(more));
        }
    }
    bytes
}
