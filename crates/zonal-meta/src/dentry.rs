//! Directory entries in the order of their names' hashes.
//!
//! An entry's cookie is the hash of its name: 55 bits of SipHash-2-4 with a fixed key. The 8 bits
//! below tell apart names with the same hash. The cookie never changes while the entry lives, so
//! listings survive concurrent changes. Cookies below 256 are never given (0 start, 1 `.`, 2 `..`).
//!
//! Entries with the same hash form a chain. Its first place (low byte 0) is taken while the chain
//! has entries: a removed first entry leaves a mark (inode 0). So one key read finds most names, or
//! their absence.

use zonal_types::{Codec, ErrorCode, FileKind, Ino, Name, codec_struct};

codec_struct! {
    /// The stored value of an entry.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Dentry {
        /// The inode; 0 in the mark that a removed first entry leaves.
        ino: Ino,
        /// Its type.
        kind: FileKind,
        /// On the first place: other entries with this hash were added.
        chained: bool,
        /// The name.
        name: Name,
    }
}

impl Dentry {
    /// Decodes a stored value.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Self, ErrorCode> {
        Self::from_bytes(bytes).map_err(|_error| ErrorCode::Corrupt)
    }

    /// True for the mark of a removed first entry.
    #[must_use]
    pub fn is_mark(&self) -> bool {
        self.ino.0 == 0
    }
}

/// The first cookie of a name's chain.
#[must_use]
pub fn name_cookie(name: &[u8], hash_bits: u32) -> u64 {
    let bits = hash_bits.clamp(1, 55);
    let hash = siphash(name) >> (64 - bits);
    let cookie = hash.max(1) << 8;
    assert!(cookie >= 256, "cookie {cookie} is one of those never given");
    cookie
}

/// A stable hash of bytes.
pub(crate) fn siphash(bytes: &[u8]) -> u64 {
    // "zonal dentry key", split in two. Fixed for ever, because cookies are stored.
    let (k0, k1) = (0x7a6f_6e61_6c20_6465_u64, 0x6e74_7279_206b_6579_u64);
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = bytes.as_chunks::<8>();
    for chunk in words {
        let word = u64::from_le_bytes(*chunk);
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    let mut last = (bytes.len() as u64) << 56;
    for (index, byte) in rest.iter().enumerate() {
        last |= u64::from(*byte) << (8 * index);
    }
    v[3] ^= last;
    round(&mut v);
    round(&mut v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_stable_and_above_the_reserved() {
        // These numbers are stored on disk: a change of them is a change of the format.
        assert_eq!(name_cookie(b"a", 55), name_cookie(b"a", 55));
        for name in [
            &b"a"[..],
            b"b",
            b"a longer name than eight bytes",
            &[0xff; 255],
        ] {
            let cookie = name_cookie(name, 55);
            assert!((256..1 << 63).contains(&cookie) && cookie & 0xff == 0);
        }
        assert_ne!(name_cookie(b"a", 55), name_cookie(b"b", 55));
        assert_eq!(name_cookie(b"a", 1) >> 8, 1);
    }
}
