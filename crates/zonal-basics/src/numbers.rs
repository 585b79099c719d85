//! Conversions of numbers that lose nothing, where `From` does not have them.
//!
//! *Invariant*: a `usize` has 64 bits. Zonal runs on machines with 64 bits only; others are refused
//! when this file is compiled.

const _: () = assert!(usize::BITS == 64, "Zonal needs a machine with 64 bits");

/// A number as a length or an index in memory: the same number, as a `usize` has 64 bits. The
/// caller still bounds what it allocates.
#[must_use]
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a usize has 64 bits: asserted above"
)]
pub const fn to_usize(number: u64) -> usize {
    number as usize
}

/// A constant as a `u32`.
///
/// # Panics
/// Where it does not fit. For constants: so it is an error of the compiler.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the assertion bounds the number"
)]
pub const fn const_u32(number: u64) -> u32 {
    assert!(number <= u32::MAX as u64, "a constant does not fit 32 bits");
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_keep_the_number() {
        for number in [0, 1, u64::from(u32::MAX) + 1, u64::MAX] {
            assert_eq!(to_usize(number) as u64, number);
        }
        const LARGEST: u32 = const_u32(u32::MAX as u64);
        assert_eq!(LARGEST, u32::MAX);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_constant_beyond_32_bits_is_refused() {
        let _ = const_u32(1 << 32);
    }
}
