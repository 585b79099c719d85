//! Hexadecimal digits: two lower-case digits a byte, without a prefix. Reading takes upper case
//! too, and nothing between the digits.

use std::fmt::{Display, Formatter, Result as Formatted};

/// Bytes that are printed as hexadecimal digits.
#[derive(Debug, Clone, Copy)]
pub struct Hex<'a>(pub &'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Formatted {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Encodes bytes as hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    Hex(bytes).to_string()
}

/// Why a text is not bytes in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HexError {
    /// The last byte has one digit only.
    OddLength,
    /// A character is not a hexadecimal digit.
    NotADigit,
}

/// Decodes hexadecimal digits.
///
/// # Errors
/// [`HexError`]: the length is looked at first.
pub fn from_hex(text: &str) -> Result<Vec<u8>, HexError> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(HexError::OddLength);
    }
    pairs
        .iter()
        .map(|[high, low]| Ok(digit(*high)? << 4 | digit(*low)?))
        .collect()
}

fn digit(letter: u8) -> Result<u8, HexError> {
    match letter {
        b'0'..=b'9' => Ok(letter - b'0'),
        b'a'..=b'f' => Ok(letter - b'a' + 10),
        b'A'..=b'F' => Ok(letter - b'A' + 10),
        _ => Err(HexError::NotADigit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_decode_to_the_same_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&all)), Ok(all));
        assert_eq!(to_hex(&[0, 0xff, 0x7f]), "00ff7f");
        assert_eq!(from_hex("00FF7f"), Ok(vec![0, 0xff, 0x7f]));
        assert_eq!(from_hex(""), Ok(vec![]));
    }

    #[test]
    fn only_pairs_of_digits_are_hex() {
        assert_eq!(from_hex("123"), Err(HexError::OddLength));
        for text in ["0g", "+f", " f", "0x", "ü"] {
            assert_eq!(from_hex(text), Err(HexError::NotADigit), "{text}");
        }
    }
}
