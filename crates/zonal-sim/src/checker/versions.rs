//! Invariant 5, and the newest data. Each byte of a file was written to it, at this place, and is
//! not older than a version that is known to be there.

use super::close_to_open::MARK;
use zonal_types::Ino;

/// Bits of a mark for the version.
const VERSION_BITS: u32 = 24;

fn mark(ino: Ino, version: u64, index: usize) -> u64 {
    let file = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64).wrapping_mul(0xff51_afd7);
    (file << VERSION_BITS) | version
}

/// Contents of a version: marks that name file, place and version.
#[must_use]
pub fn content(ino: Ino, version: u64, bytes: usize) -> Vec<u8> {
    let marks = (0..bytes.div_ceil(MARK)).flat_map(|index| mark(ino, version, index).to_le_bytes());
    marks.take(bytes).collect()
}

/// Returns what is wrong with `seen`. The first `bytes` must not be older than version `low`;
/// `high` is the newest version. Version 0 is zeros.
#[must_use]
pub fn check(ino: Ino, seen: &[u8], (low, bytes): (u64, usize), high: u64) -> Option<String> {
    for (index, seen) in seen.chunks_exact(MARK).enumerate() {
        let mut value = [0; MARK];
        value.copy_from_slice(seen);
        let value = u64::from_le_bytes(value);
        let version = value & ((1 << VERSION_BITS) - 1);
        let is_ours = value == mark(ino, version, index) || value == 0;
        if !is_ours {
            return Some(format!(
                "invariant 5: byte {} has {value:#018x}, which was never written there",
                index * MARK
            ));
        }
        let low = if (index + 1) * MARK <= bytes { low } else { 0 };
        if version < low || version > high {
            return Some(format!(
                "invariant 3: byte {} is of version {version}; {low} was there, {high} is the newest",
                index * MARK
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_and_old_versions_are_found() {
        let good = content(Ino(5), 3, 804);
        assert_eq!(good.len(), 804);
        assert_eq!(check(Ino(5), &good, (3, 800), 3), None);
        assert!(check(Ino(6), &good, (0, 0), 3).is_some(), "another file's");
        assert!(
            check(Ino(5), &good[8..], (0, 0), 3).is_some(),
            "another place's"
        );
        assert!(check(Ino(5), &good, (4, 800), 4).is_some(), "old");
        assert!(check(Ino(5), &[0; 80], (1, 80), 3).is_some(), "lost");
        assert_eq!(check(Ino(5), &[0; 80], (1, 0), 3), None);
    }
}
