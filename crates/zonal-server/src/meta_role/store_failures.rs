//! Requests that failed because of a shard's store: shown in `zonal status`, counted, and logged.

use super::MetaRole;
use crate::rate_limited_log::RateLimit;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_types::ErrorCode;
use zonal_wire::MetaRequest;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct StoreFailures {
    unreadable: AtomicU64,
    damaged: AtomicU64,
    said: RateLimit,
}

impl StoreFailures {
    /// Gauges, named as in `/metrics` without the prefix.
    pub(super) fn gauges(&self) -> [(&'static str, u64); 2] {
        [
            ("read_errors_total", self.unreadable.load(Ordering::Relaxed)),
            ("damaged_total", self.damaged.load(Ordering::Relaxed)),
        ]
    }
}

impl MetaRole {
    /// Notes a request that ends with this error.
    pub(super) fn note_failure(&self, request: &MetaRequest, code: ErrorCode) {
        let operation = request.name();
        let (count, text) = match code {
            ErrorCode::Io if self.is_healthy() => {
                self.medium_health().medium(operation);
                (
                    &self.host().store_failed.unreadable,
                    "the store cannot be read",
                )
            }
            ErrorCode::Corrupt => {
                self.medium_health().damage(operation);
                (&self.host().store_failed.damaged, "stored data is damaged")
            }
            _ => return,
        };
        let count = count.fetch_add(1, Ordering::Relaxed) + 1;
        if self.host().store_failed.said.is_due() {
            tracing::error!(shard = self.identity().0.0, operation, count, "{text}");
        }
    }
}
