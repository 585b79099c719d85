//! Truncation numbers (`truncate_seq`) order the truncations of a file and tell their kind. They
//! rise.
//!
//! * Even: a program's truncation. The bytes it frees were reported to the shard when they were
//!   written.
//! * Odd: disowns bytes behind the end that a client wrote and never reported, where a file is made
//!   longer. The bytes it frees were never counted, so nobody reports them.

use crate::limits::TRUNCATION_NUMBER_MAX;

/// The number of the next program's truncation after `last`; `None`: the numbers are used up.
#[must_use]
pub const fn next_truncation(last: u64) -> Option<u64> {
    if last >= TRUNCATION_NUMBER_MAX {
        return None;
    }
    Some((last | 1) + 1)
}

/// The number of the next disowning truncation after `last`; `None`: the numbers are used up.
#[must_use]
pub const fn next_disowning(last: u64) -> Option<u64> {
    match next_truncation(last) {
        Some(next) if next < TRUNCATION_NUMBER_MAX => Some(next | 1),
        _ => None,
    }
}

/// True where the bytes that this truncation frees were never counted.
#[must_use]
pub const fn is_disowning(number: u64) -> bool {
    number & 1 == 1
}

/// Lower bound of the truncations from number `before` to `number`; `None` where `number` is the
/// earlier one.
#[must_use]
pub const fn truncations_since(number: u64, before: u64) -> Option<u64> {
    match (number / 2).checked_sub(before / 2) {
        Some(0) if number < before => None,
        // Numbers of formats before the kinds were distinguished.
        Some(0) if number > before => Some(1),
        number => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_numbers_rise_and_encode_their_kind() {
        for last in [
            0,
            1,
            2,
            3,
            1 << 40,
            TRUNCATION_NUMBER_MAX - 4,
            TRUNCATION_NUMBER_MAX - 3,
        ] {
            for (next, is_of_kind) in [(next_truncation(last), false), (next_disowning(last), true)]
            {
                let next = next.unwrap();
                assert!(next > last && next <= TRUNCATION_NUMBER_MAX, "{last}");
                assert!(is_disowning(next) == is_of_kind, "{last}");
                assert!(truncations_since(next, last) == Some(1), "{last}");
            }
        }
        assert_eq!(
            next_truncation(TRUNCATION_NUMBER_MAX - 2),
            Some(TRUNCATION_NUMBER_MAX)
        );
        assert_eq!(next_disowning(TRUNCATION_NUMBER_MAX - 2), None);
        for last in [TRUNCATION_NUMBER_MAX, TRUNCATION_NUMBER_MAX + 1, u64::MAX] {
            assert_eq!((next_truncation(last), next_disowning(last)), (None, None));
        }
        let later = next_disowning(4).and_then(next_truncation).unwrap();
        assert_eq!(truncations_since(later, 4), Some(2));
        assert_eq!(truncations_since(7, 7), Some(0));
        assert_eq!(
            (truncations_since(6, 7), truncations_since(5, 7)),
            (None, None)
        );
        assert_eq!(truncations_since(7, 6), Some(1));
    }
}
