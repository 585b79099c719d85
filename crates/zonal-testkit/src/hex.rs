//! Hexadecimal bytes, as a corpus has them.

/// Encodes bytes with two digits each.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hexadecimal digits; skips spaces.
///
/// # Panics
/// On anything else than pairs of hexadecimal digits: the corpus is our own.
#[must_use]
pub fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|letter| *letter != ' ')
        .map(|letter| match letter.to_digit(16) {
            Some(digit) => digit as u8,
            None => panic!("{letter:?} is no hexadecimal digit"),
        })
        .collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    assert!(rest.is_empty(), "odd number of digits");
    pairs.iter().map(|[high, low]| high << 4 | low).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_decode_to_the_same_bytes() {
        assert_eq!(from_hex("00ff 7f"), [0, 0xff, 0x7f]);
        assert_eq!(to_hex(&[0, 0xff, 0x7f]), "00ff7f");
    }
}
