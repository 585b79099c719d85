//! What the fuzzers of messages do with bytes.

use zonal_types::Codec;

/// The first byte chooses the kind of message, the others are one.
pub fn by_kind(data: &[u8], kinds: &[fn(&[u8])]) {
    if let Some((kind, bytes)) = data.split_first() {
        kinds[usize::from(*kind) % kinds.len()](bytes);
    }
}

/// Decodes; what is accepted has as many bytes again.
pub fn feed<T: Codec>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes) {
        assert_eq!(value.to_bytes().len(), bytes.len());
    }
}
