//! Cache misses of the index: whether recent reads have missed its cache.
//!
//! After a miss a server reads the pages of a request before it takes a lock under which requests
//! run one at a time. With all pages cached that would double the work: it then costs one load and
//! a comparison a request. No clock is read: "recent" is counted in requests.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::engine::Engine;

/// Requests that prefetch after the last miss.
const COLD_REQUESTS: u32 = 1024;

/// Cache misses of an index as requests have observed them.
#[derive(Debug, Default)]
pub(crate) struct CacheMisses {
    seen: AtomicU64,
    /// Requests that still prefetch. Races lose some counts, which is harmless.
    left: AtomicU32,
}

impl CacheMisses {
    fn judge(&self, missed: u64) -> bool {
        if missed != self.seen.load(Ordering::Relaxed) {
            self.seen.store(missed, Ordering::Relaxed);
            self.left.store(COLD_REQUESTS, Ordering::Relaxed);
            return true;
        }
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }
}

impl Engine {
    /// Whether the request that begins now should prefetch before it takes a lock. Counts the
    /// request.
    pub fn is_cold(&self) -> bool {
        self.misses.judge(self.index.missed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_prefetch_after_a_miss_and_not_with_a_warm_index() {
        let misses = CacheMisses::default();
        assert!(!misses.judge(0));
        assert!(misses.judge(1));
        for _request in 0..COLD_REQUESTS {
            assert!(misses.judge(1));
        }
        assert!(!misses.judge(1));
        assert!(misses.judge(2));
    }
}
