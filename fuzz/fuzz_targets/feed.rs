//! Feeds a fuzzer's bytes to the decoders of messages.

use zonal_types::Codec;

/// The first byte selects the kind of message; the rest is the encoded message.
pub fn by_kind(data: &[u8], kinds: &[fn(&[u8])]) {
    if let Some((kind, bytes)) = data.split_first() {
        kinds[usize::from(*kind) % kinds.len()](bytes);
    }
}

/// Decodes a message. Where decoding succeeds, encoding gives as many bytes again.
pub fn feed<T: Codec>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes) {
        assert_eq!(value.to_bytes().len(), bytes.len());
    }
}
