//! Hexadecimal bytes, as a corpus has them.

/// Decodes hexadecimal digits; skips spaces.
///
/// # Panics
/// On anything else than pairs of hexadecimal digits: the corpus is our own.
#[must_use]
pub fn from_hex(text: &str) -> Vec<u8> {
    match zonal_basics::from_hex(&text.replace(' ', "")) {
        Ok(bytes) => bytes,
        Err(error) => panic!("{text:?}: {error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_may_have_spaces_between_digits() {
        assert_eq!(from_hex("00ff 7f"), [0, 0xff, 0x7f]);
    }
}
