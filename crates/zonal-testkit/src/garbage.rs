//! Keys, values and messages that nobody wrote, for whatever reads them: it may refuse them, and
//! must not panic.

use crate::Rng;

/// Keys and values of one call of [`refused`].
pub const GARBAGE: usize = 60_000;

/// Gives `refuses` keys that begin with each of `starts` and go on by chance, with values of all
/// lengths. How many it says that it refused.
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

/// One of `seeds`, spliced with another one, overwritten in part, or longer by some bytes: past its
/// first fields it is mostly right.
///
/// # Panics
/// Where there is none.
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
