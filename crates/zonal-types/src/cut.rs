//! Numbers of cuts: which of a file's cuts targets have seen, and whether what one frees was counted.
//!
//! They rise. An even one is a shrink: what it frees was told to the shard when it was written. An odd one makes nobody's what a client
//! wrote behind the end and never told, where a file is made longer: what it frees was never counted, so nobody is told of it.

/// The number of a shrink that follows `last`.
#[must_use]
pub const fn next_shrink(last: u64) -> u64 {
    (last | 1).saturating_add(1)
}

/// The number that follows `last` where what lies behind the end becomes nobody's.
#[must_use]
pub const fn next_disowning(last: u64) -> u64 {
    next_shrink(last) | 1
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
        for last in [0, 1, 2, 3, 1 << 40, u64::MAX - 2, u64::MAX - 1, u64::MAX] {
            for (next, is_of_kind) in [(next_shrink(last), false), (next_disowning(last), true)] {
                let is_end = last >= u64::MAX - 1;
                assert!(next > last || is_end, "{last}");
                assert!(is_disowning(next) == is_of_kind || is_end, "{last}");
                assert!(cuts_since(next, last) == Some(1) || is_end, "{last}");
            }
        }
        assert_eq!(cuts_since(next_shrink(next_disowning(4)), 4), Some(2));
        assert_eq!(cuts_since(7, 7), Some(0));
        assert_eq!((cuts_since(6, 7), cuts_since(5, 7)), (None, None));
        assert_eq!(cuts_since(7, 6), Some(1));
    }
}
