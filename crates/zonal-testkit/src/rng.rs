//! Random numbers from a seed, so that a failure can be repeated.
//!
//! Invariant: the numbers of a seed never change; tests keep the seeds of failures.

use zonal_basics::SplitMix64;

/// A generator that begins at this seed.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let mut numbers = SplitMix64(self.0);
        let bits = numbers.bits();
        self.0 = numbers.0;
        bits
    }

    /// A number below `bound` (0 where the bound is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }

    /// An index into a list of this length (0 where the list is empty).
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the elements.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.index(list.len())]
    }

    /// One random byte.
    pub fn byte(&mut self) -> u8 {
        self.bits() as u8
    }

    /// `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.bits().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_stay_in_bounds() {
        let mut rng = Rng(7);
        for length in 0..100 {
            assert_eq!(rng.bytes(length).len(), length);
            assert!(rng.index(length) < length.max(1));
            assert!([3, 5].contains(rng.pick(&[3, 5])));
        }
        assert!(!rng.chance(0) && rng.chance(100));
    }
}
