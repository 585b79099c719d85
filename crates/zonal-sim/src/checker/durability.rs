//! Invariant 3: writes for which fsync returned survive every crash, losses of power included.

use super::close_to_open::{MARK, foreign_version};

/// Returns what is wrong with a file of which version `synced` was synced, while `written` was the
/// newest version.
#[must_use]
pub fn check(name: &str, seen: &[u8], bytes: usize, synced: u64, written: u64) -> Option<String> {
    if seen.len() < bytes {
        return Some(format!(
            "invariant 3: {name} has {} bytes; version {synced} with {bytes} bytes was synced",
            seen.len()
        ));
    }
    let whole = seen.len() - seen.len() % MARK;
    let (byte, version) = foreign_version(&seen[..whole], synced, written)?;
    Some(format!(
        "invariant 3: byte {byte} of {name} is of version {version}; {synced} was synced, \
         {written} is the newest"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::close_to_open::content;

    #[test]
    fn lost_bytes_and_old_versions_are_found() {
        assert_eq!(check("f", &content(3, 80), 80, 3, 4), None);
        assert!(check("f", &content(3, 80), 88, 3, 4).is_some());
        assert!(check("f", &content(2, 80), 80, 3, 4).is_some());
    }
}
