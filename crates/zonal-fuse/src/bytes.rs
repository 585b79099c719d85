//! Reads and writes the kernel's structures as bytes, with every bound checked.
//!
//! The FUSE protocol uses the byte order of the machine, as both ends are the same machine. Only
//! this module turns numbers into bytes; no structure is ever transmuted.
#![expect(
    clippy::host_endian_bytes,
    reason = "the kernel's FUSE protocol is in host order"
)]

use crate::request::DecodeError;

/// A cursor over received bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    data: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self
            .data
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated)?;
        self.data = tail;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_ne_bytes)
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self
            .data
            .split_at_checked(count)
            .ok_or(DecodeError::Truncated)?;
        self.data = tail;
        Ok(head)
    }

    /// A name that ends with a zero byte, returned without it.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], DecodeError> {
        let end = self
            .data
            .iter()
            .position(|&b| b == 0)
            .ok_or(DecodeError::NameWithoutEnd)?;
        let name = self.take(end)?;
        self.take(1)?;
        Ok(name)
    }

    /// The bytes that are left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.data
    }
}

/// Appends numbers to a message.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }
    fn i32(&mut self, value: i32) {
        self.put(&value.to_ne_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }
    fn i64(&mut self, value: i64) {
        self.put(&value.to_ne_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A message on the stack, for the small fixed replies. Bytes past the capacity are dropped; the
/// capacities are constants that cover the largest structure (see the tests of `encode`).
pub(crate) struct Fixed<const N: usize> {
    data: [u8; N],
    len: usize,
}

impl<const N: usize> Fixed<N> {
    pub(crate) fn new() -> Self {
        Self {
            data: [0; N],
            len: 0,
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.data.get(..self.len).unwrap_or_default()
    }
}

impl<const N: usize> Put for Fixed<N> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        debug_assert!(end <= N, "message longer than its buffer");
        if let Some(to) = self.data.get_mut(self.len..end) {
            to.copy_from_slice(bytes);
            self.len = end;
        }
    }
}
