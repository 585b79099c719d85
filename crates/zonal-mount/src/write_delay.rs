//! A delay before each write of a program through pages, for tests: what may get ahead of one then
//! does. Only builds with debug assertions have it.

use std::sync::OnceLock;
use std::time::Duration;

/// Waits for as many ms as the variable `ZONAL_LATE_WRITES` said when the first write came; else
/// not at all.
pub fn delay() {
    static DELAY: OnceLock<Option<Duration>> = OnceLock::new();
    let delay = DELAY.get_or_init(|| {
        let said = std::env::var("ZONAL_LATE_WRITES").ok()?;
        said.parse().ok().map(Duration::from_millis)
    });
    delay.iter().for_each(|delay| std::thread::sleep(*delay));
}
