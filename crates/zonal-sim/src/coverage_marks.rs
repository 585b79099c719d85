//! Marks of the cores that a run reached, in a program built with `--features marks`.

use std::collections::BTreeSet;

/// Forgets the marks reached before.
pub fn begin() {
    drop(zonal_types::coverage_marks::take());
}

/// Names of the marks reached since [`begin`].
#[must_use]
pub fn end() -> BTreeSet<&'static str> {
    zonal_types::coverage_marks::take()
}
