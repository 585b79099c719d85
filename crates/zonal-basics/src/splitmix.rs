//! SplitMix64: reproducible numbers from a seed, the same on every machine and for ever (Steele,
//! Lea and Flood 2014).
//!
//! For tests and the simulator, whose seeds are kept. Not for numbers that must be hard to guess.

/// The generator; its state is the seed.
#[derive(Debug, Clone)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_matches_the_reference_numbers() {
        let mut numbers = SplitMix64(1_234_567);
        let first = [numbers.bits(), numbers.bits(), numbers.bits()];
        let known = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(first, known);
    }
}
