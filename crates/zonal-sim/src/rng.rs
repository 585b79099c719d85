//! Random numbers of the simulator. The meaning of a seed is part of the program (`zonal sim`).

use zonal_basics::SplitMix64;

/// A generator with its own state; children made with [`SimRng::fork`] do not disturb their
/// parent's later numbers.
#[derive(Debug, Clone)]
pub struct SimRng(SplitMix64);

impl SimRng {
    /// Makes the generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64(seed ^ 0x5851_f42d_4c95_7f2d))
    }

    /// Makes a generator for one purpose.
    #[must_use]
    pub fn fork(&mut self, purpose: u64) -> Self {
        Self::new(self.bits() ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `bound` (0 where `bound` is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.bits() % bound }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True in `per_mille` of 1000 cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of the elements.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        let index = self.below(list.len() as u64) as usize;
        list.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_and_stay_in_bounds() {
        let (mut one, mut two) = (SimRng::new(7), SimRng::new(7));
        for _ in 0..1000 {
            assert_eq!(one.bits(), two.bits());
            assert!((3..=9).contains(&one.between(3, 9)));
            two.between(3, 9);
        }
        assert!(!one.chance(0) && one.chance(1000));
        assert_eq!(one.below(0), 0);
    }
}
