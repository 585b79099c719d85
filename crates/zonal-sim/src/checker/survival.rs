//! Invariant 6: no message from the network and no byte from a disk ends a process. All processes
//! of a world run on one thread, so a panic of one ends the run, and is reported.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `run`; a panic becomes an error.
///
/// # Errors
/// The text of the panic.
pub fn watch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    // After a panic the world is not used any more.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("?");
        format!("invariant 6: a process ended by itself: {text}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported() {
        assert_eq!(watch(|| 7), Ok(7));
        let broken = watch(|| assert!(u8::try_from(300).is_ok(), "too much"));
        assert!(
            broken.is_err_and(|text| text.contains("invariant 6") && text.contains("too much"))
        );
    }
}
