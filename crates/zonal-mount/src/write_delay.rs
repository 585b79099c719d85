//! Write delay: a pause before each write of a program through pages, so that tests provoke races.
//! Only in builds with debug assertions.

use std::sync::OnceLock;
use std::time::Duration;

/// Waits for the milliseconds in the variable `ZONAL_LATE_WRITES`, read at the first write; without
/// it, not at all.
pub fn delay() {
    static DELAY: OnceLock<Option<Duration>> = OnceLock::new();
    let delay = DELAY.get_or_init(|| {
        let said = std::env::var("ZONAL_LATE_WRITES").ok()?;
        said.parse().ok().map(Duration::from_millis)
    });
    delay.iter().for_each(|delay| std::thread::sleep(*delay));
}
