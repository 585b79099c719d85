//! Close-to-open: a client that opens a file after another client's close returned sees all bytes
//! that were written before that close.

/// Bytes of one version mark.
pub const MARK: usize = 8;

/// Contents of a version: its mark, repeated.
#[must_use]
pub fn content(version: u64, bytes: usize) -> Vec<u8> {
    version.to_le_bytes().repeat(bytes / MARK)
}

/// Returns what is wrong with the bytes that a reader saw. It opened the file after version
/// `closed` was closed, and `written` was the newest version.
#[must_use]
pub fn check(seen: &[u8], closed: u64, written: u64) -> Option<String> {
    let (byte, version) = foreign_version(seen, closed, written)?;
    Some(format!(
        "close-to-open: byte {byte} is of version {version}; {closed} was closed before the open, \
         {written} is the newest"
    ))
}

/// The first mark of a version outside of this range: its offset and its version.
pub(super) fn foreign_version(seen: &[u8], oldest: u64, newest: u64) -> Option<(usize, u64)> {
    seen.chunks(MARK).enumerate().find_map(|(index, mark)| {
        let mut bytes = [0; MARK];
        bytes[..mark.len()].copy_from_slice(mark);
        let version = u64::from_le_bytes(bytes);
        let is_known = (oldest..=newest).contains(&version);
        (!is_known).then_some((index * MARK, version))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_invented_versions_are_found() {
        assert_eq!(check(&content(5, 64), 5, 6), None);
        let mixed = [content(5, 64), content(6, 64)].concat();
        assert_eq!(check(&mixed, 5, 6), None);
        assert!(check(&mixed, 6, 6).is_some());
        assert!(check(&mixed, 5, 5).is_some());
    }
}
