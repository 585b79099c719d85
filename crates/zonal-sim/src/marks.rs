//! Marks of the cores that one run reached, where this program is built with them (`--features
//! marks`).

use std::collections::BTreeSet;

/// Forgets what was reached before.
pub fn begin() {
    drop(zonal_types::coverage_marks::take());
}

/// Names of the marks reached since.
#[must_use]
pub fn end() -> BTreeSet<&'static str> {
    zonal_types::coverage_marks::take()
}
