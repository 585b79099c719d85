//! Facts as bytes of one size, for sorting: the big-endian number of the subject, then the
//! statement.

use zonal_types::{Codec, Reader};

/// Bytes of a stored fact. They sort by subject, then by the tag of the statement.
pub const FACT_BYTES: usize = 80;

/// Bytes of the subject's number.
const ABOUT_BYTES: usize = 8;

/// Encodes a fact. `scratch` saves an allocation.
#[must_use]
pub fn encode(about: u64, said: &impl Codec, scratch: &mut Vec<u8>) -> [u8; FACT_BYTES] {
    scratch.clear();
    scratch.extend_from_slice(&about.to_be_bytes());
    said.put(scratch);
    let mut out = [0; FACT_BYTES];
    let used = scratch.len();
    assert!(used <= FACT_BYTES, "a fact of {used} bytes");
    out[..used].copy_from_slice(scratch);
    out
}

/// Decodes the bytes that [`encode`] gave.
#[must_use]
pub fn decode<T: Codec>(bytes: &[u8; FACT_BYTES]) -> Option<(u64, T)> {
    let (about, said) = bytes.split_first_chunk::<ABOUT_BYTES>()?;
    let said = T::get(&mut Reader::new(said)).ok()?;
    Some((u64::from_be_bytes(*about), said))
}
