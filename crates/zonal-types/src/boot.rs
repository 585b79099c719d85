//! The number of a shard's start: it differs at each, and its upper half only where what was not
//! flushed may be gone.
//!
//! A client that got a change acknowledged compares the upper half when it asks for durability: the
//! same says that a kill at most lay in between, which takes nothing back.

/// The number of a start. `kept` stays while what was acknowledged is kept; `start` differs at each
/// start.
#[must_use]
pub const fn boot_of(kept: u32, start: u32) -> u64 {
    (kept as u64) << 32 | start as u64
}

/// The part that differs where what was not flushed may be gone.
#[must_use]
pub const fn kept_of(boot: u64) -> u32 {
    (boot >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_halves_are_apart() {
        let boot = boot_of(7, u32::MAX);
        assert_eq!(kept_of(boot), 7);
        assert_ne!(boot, boot_of(7, 0));
    }
}
