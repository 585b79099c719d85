//! How cores read and change an ordered key-value store that they do not own.
//!
//! A core reads through [`KvRead`] (in a shell: overlay of recent changes, then the embedded store; in
//! the simulator: a map) and returns changes as a list of [`KvChange`]. It never writes itself.

use crate::error::ErrorCode;

/// One change of one key: a new value, or `None` to remove it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvChange {
    /// The whole key; keys order as bytes.
    pub key: Vec<u8>,
    /// The new value, or `None` to remove the key.
    pub value: Option<Vec<u8>>,
}

impl KvChange {
    /// Sets `key` to `value`.
    #[must_use]
    pub fn put(key: Vec<u8>, value: Vec<u8>) -> Self {
        Self {
            key,
            value: Some(value),
        }
    }

    /// Removes `key`.
    #[must_use]
    pub fn remove(key: Vec<u8>) -> Self {
        Self { key, value: None }
    }
}

/// Reading side of an ordered store. Errors are of the medium or of damaged contents, never "absent".
pub trait KvRead {
    /// The value of `key`, if there is one.
    ///
    /// # Errors
    /// `ErrorCode::Io` or `ErrorCode::Corrupt` where the store cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode>;

    /// Calls `visit(key, value)` for each key in `start..end` in order, until `visit` returns false.
    ///
    /// # Errors
    /// `ErrorCode::Io` or `ErrorCode::Corrupt` where the store cannot be read.
    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode>;
}
