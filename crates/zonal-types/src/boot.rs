//! Boot number of a shard: differs at each start. Its upper half changes only where changes that
//! were not flushed may be lost.
//!
//! A client with an acknowledged change compares the upper half when it asks for durability. An
//! equal upper half means that at most a kill lay in between, and a kill loses nothing.

/// Composes a boot number. `kept` stays while acknowledged changes are kept; `start` differs at
/// each start.
#[must_use]
pub const fn boot_of(kept: u32, start: u32) -> u64 {
    (kept as u64) << 32 | start as u64
}

/// The upper half, which differs where changes that were not flushed may be lost.
#[must_use]
pub const fn kept_of(boot: u64) -> u32 {
    (boot >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_number_keeps_its_halves_apart() {
        let boot = boot_of(7, u32::MAX);
        assert_eq!(kept_of(boot), 7);
        assert_ne!(boot, boot_of(7, 0));
    }
}
