//! The token of the admin pages: a client that sends it may see them.
//!
//! 1. The time of a comparison does not depend on how much of a token is right.
//! 2. A token never gets into a log: `Debug` does not show it.

use std::hint::black_box;
use std::path::Path;
use zonal_disk::trusted_paths::{self, PathRefusal};

/// Bytes read from a token file: one more than are allowed.
const TOKEN_FILE_MAX: u64 = 1025;

/// The shortest token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot be read")]
    Read(#[from] PathRefusal),
    /// The token is too short or too long.
    #[error("it has {bytes} bytes, allowed are 16 to 1024")]
    Length {
        /// Its length without surrounding blanks.
        bytes: usize,
    },
    /// The token has characters that an HTTP header cannot have.
    #[error("it has other characters than letters, digits and signs of ASCII")]
    Characters,
}

/// The token that a request for an admin page must carry.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads a token file, without surrounding blanks.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        Self::new(&trusted_paths::secret(path, TOKEN_FILE_MAX)?)
    }

    /// A token of 16 to 1024 bytes, without surrounding blanks.
    ///
    /// # Errors
    /// `Length`, `Characters`.
    pub fn new(bytes: &[u8]) -> Result<Self, TokenError> {
        let token = bytes.trim_ascii();
        if bytes.len() as u64 >= TOKEN_FILE_MAX || token.len() < TOKEN_BYTES_MIN {
            let bytes = token.len();
            return Err(TokenError::Length { bytes });
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::Characters);
        }
        Ok(Self(String::from_utf8_lossy(token).into_owned()))
    }

    /// The value of an `Authorization` header with this token.
    #[must_use]
    pub fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// True where the value of an `Authorization` header is `Bearer` and this token.
    #[must_use]
    pub fn is_in(&self, authorization: &str) -> bool {
        let said = authorization.trim().split_once(' ');
        said.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case("bearer") && self.is(token.trim_start().as_bytes())
        })
    }

    fn is(&self, other: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let same_length = own.len() == other.len();
        // Runs over all bytes that were sent, whatever the token's length.
        let against = own.iter().cycle();
        let differs = against
            .zip(other)
            .fold(0, |differs, (a, b)| black_box(differs | (a ^ b)));
        same_length && differs == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = Token::new(b"\n 0123456789abcdef \n").unwrap();
        for right in [
            "Bearer 0123456789abcdef",
            "bearer  0123456789abcdef",
            " Bearer 0123456789abcdef ",
        ] {
            assert!(token.is_in(right), "{right}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "0123456789abcdef",
            "Basic 0123456789abcdef",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeF",
            "Bearer 1123456789abcdef",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcdef0123456789abcdef",
            "Bearer 0123456789abcdef x",
        ] {
            assert!(!token.is_in(wrong), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn invalid_tokens_are_refused_with_the_reason() {
        for short in [&b""[..], b"  \n", b"0123456789abcde", b" 0123456789abcde\n"] {
            assert!(matches!(Token::new(short), Err(TokenError::Length { .. })));
        }
        assert!(matches!(
            Token::new(&[b'a'; 1025]),
            Err(TokenError::Length { .. })
        ));
        assert!(Token::new(&[b'a'; 1024]).is_ok());
        for odd in [&b"0123456789 abcdef"[..], b"0123456789abcde\xff"] {
            assert!(matches!(Token::new(odd), Err(TokenError::Characters)));
        }
    }
}
