//! Keys and values that nobody wrote, for whatever reads a store: it may refuse them, and must not panic.

use crate::Rng;

/// Keys and values of one call of [`refused`].
pub const GARBAGE: usize = 60_000;

/// Gives `refuses` keys that begin with each of `starts` and go on by chance, with values of all lengths. How many it
/// says that it refused.
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
