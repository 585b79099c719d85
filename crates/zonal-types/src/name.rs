//! A name of a directory entry: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.

use crate::codec::{Codec, CodecError, Reader};
use crate::error::ErrorCode;
use crate::limits::NAME_BYTES_MAX;

/// A checked name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// Checks `bytes`.
    ///
    /// # Errors
    /// `NameTooLong` past 255 bytes; `Invalid` where it is empty, `.`, `..`, or holds `/` or NUL.
    pub fn new(bytes: &[u8]) -> Result<Self, ErrorCode> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(ErrorCode::NameTooLong);
        }
        if bytes.is_empty()
            || bytes == b"."
            || bytes == b".."
            || bytes.iter().any(|byte| matches!(byte, 0 | b'/'))
        {
            return Err(ErrorCode::Invalid);
        }
        Ok(Self(bytes.to_vec()))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

impl Codec for Name {
    fn put(&self, out: &mut Vec<u8>) {
        crate::codec::Blob(self.0.clone()).put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        Self::new(from.bytes()?).map_err(|_error| CodecError::BadValue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(Name::new(b"a").is_ok());
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert_eq!(Name::new(&[b'x'; 256]), Err(ErrorCode::NameTooLong));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(Name::new(bad), Err(ErrorCode::Invalid));
        }
    }
}
