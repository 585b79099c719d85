//! Guarded calls of the index's library (redb): it panics on damaged bytes, and the panic becomes
//! `Corrupt`.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::files::error::DiskError;

thread_local! {
    static UNDER_WAY: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of the library.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, DiskError>) -> Result<T, DiskError> {
    let before = UNDER_WAY.replace(true);
    // The library poisons itself when it panics; no state of ours is left half changed.
    let result = catch_unwind(AssertUnwindSafe(call));
    UNDER_WAY.set(before);
    result.unwrap_or_else(|_| {
        Err(DiskError::Corrupt(
            "index: the store's structure is damaged".into(),
        ))
    })
}

/// For a panic hook: whether this thread's panic becomes an error, which its caller reports.
#[must_use]
pub fn is_guarded() -> bool {
    UNDER_WAY.get()
}
