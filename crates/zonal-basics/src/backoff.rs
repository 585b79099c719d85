//! Back-off: pauses between attempts. Each pause is twice as long as the one before, up to a bound.

/// A back-off; pauses are in milliseconds.
#[derive(Debug, Clone)]
pub struct BackOff {
    first: u64,
    longest: u64,
    next: u64,
}

impl BackOff {
    /// Creates a back-off whose pauses rise from `first` to `longest` ms.
    #[must_use]
    pub const fn new((first, longest): (u64, u64)) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// Returns the pause before the next attempt, and doubles the one after it.
    pub fn next_ms(&mut self) -> u64 {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// Makes the next pause the longest one.
    pub fn lengthen(&mut self) {
        self.next = self.longest;
    }

    /// Resets the back-off after an attempt succeeded: the next pause is the first again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = BackOff::new((20, 70));
        let pauses: Vec<u64> = (0..4).map(|_| backoff.next_ms()).collect();
        assert_eq!(pauses, [20, 40, 70, 70]);
        backoff.reset();
        assert_eq!(backoff.next_ms(), 20);
        backoff.lengthen();
        assert_eq!(backoff.next_ms(), 70);
        assert_eq!(BackOff::new((0, 0)).next_ms(), 0);
    }
}
