//! Numbers of cuts: which of a file's cuts targets have seen, and whether what one frees was
//! counted.
//!
//! They rise. An even one is a shrink: what it frees was told to the shard when it was written. An
//! odd one makes nobody's what a client wrote behind the end and never told, where a file is made
//! longer: what it frees was never counted, so nobody is told of it.

use crate::limits::CUT_NUMBER_MAX;

/// The number of a shrink that follows `last`; `None`: there is none.
#[must_use]
pub const fn next_shrink(last: u64) -> Option<u64> {
    if last >= CUT_NUMBER_MAX {
        return None;
    }
    Some((last | 1) + 1)
}

/// The number that follows `last` where what lies behind the end becomes nobody's; `None`: there is
/// none.
#[must_use]
pub const fn next_disowning(last: u64) -> Option<u64> {
    match next_shrink(last) {
        Some(next) if next < CUT_NUMBER_MAX => Some(next | 1),
        _ => None,
    }
}

/// Whether what the cut with this number frees was never counted.
#[must_use]
pub const fn is_disowning(number: u64) -> bool {
    number & 1 == 1
}

/// How many cuts later a number was given at least; `None` where it was given before.
#[must_use]
pub const fn cuts_since(number: u64, before: u64) -> Option<u64> {
    match (number / 2).checked_sub(before / 2) {
        Some(0) if number < before => None,
        // From before kinds were told apart by numbers.
        Some(0) if number > before => Some(1),
        cuts => cuts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_and_tell_their_kind() {
        for last in [0, 1, 2, 3, 1 << 40, CUT_NUMBER_MAX - 4, CUT_NUMBER_MAX - 3] {
            for (next, is_of_kind) in [(next_shrink(last), false), (next_disowning(last), true)] {
                let next = next.unwrap();
                assert!(next > last && next <= CUT_NUMBER_MAX, "{last}");
                assert!(is_disowning(next) == is_of_kind, "{last}");
                assert!(cuts_since(next, last) == Some(1), "{last}");
            }
        }
        assert_eq!(next_shrink(CUT_NUMBER_MAX - 2), Some(CUT_NUMBER_MAX));
        assert_eq!(next_disowning(CUT_NUMBER_MAX - 2), None);
        for last in [CUT_NUMBER_MAX, CUT_NUMBER_MAX + 1, u64::MAX] {
            assert_eq!((next_shrink(last), next_disowning(last)), (None, None));
        }
        let later = next_disowning(4).and_then(next_shrink).unwrap();
        assert_eq!(cuts_since(later, 4), Some(2));
        assert_eq!(cuts_since(7, 7), Some(0));
        assert_eq!((cuts_since(6, 7), cuts_since(5, 7)), (None, None));
        assert_eq!(cuts_since(7, 6), Some(1));
    }
}
