//! A name of a directory entry: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.

use crate::codec::{Codec, CodecError, Reader};
use crate::error::ErrorCode;
use crate::limits::NAME_BYTES_MAX;
use std::fmt::Write as _;

/// A checked name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// Checks `bytes`.
    ///
    /// # Errors
    /// `NameTooLong` past 255 bytes; `Invalid` where it is empty, `.`, `..`, or has `/` or NUL.
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
        write!(f, "\"{self}\"")
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        EscapedName(&self.0).fmt(f)
    }
}

/// Prints a name or path on one line, in a form that can be reversed. A backslash becomes `\\`.
/// Each byte of a character that is not [printable](is_printable), or that is not UTF-8, becomes
/// `\xNN`.
#[derive(Debug, Clone, Copy)]
pub struct EscapedName<'a>(pub &'a [u8]);

impl std::fmt::Display for EscapedName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match letter {
                    '\\' => f.write_str(r"\\")?,
                    _ if !is_printable(letter) => {
                        hex(f, letter.encode_utf8(&mut [0; 4]).as_bytes())?;
                    }
                    _ => f.write_char(letter)?,
                }
            }
            hex(f, chunk.invalid())?;
        }
        Ok(())
    }
}

/// The bytes of a name or path that [`EscapedName`] printed; `None` where it did not.
#[must_use]
pub fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.extend_from_slice(plain.as_bytes());
        rest = match escape.strip_prefix('\\') {
            Some(rest) => {
                out.push(b'\\');
                rest
            }
            None => {
                let digits = escape.strip_prefix('x')?.get(..2)?;
                out.push(u8::from_str_radix(digits, 16).ok()?);
                escape.get(3..)?
            }
        };
    }
    out.extend_from_slice(rest.as_bytes());
    Some(out)
}

/// Prints untrusted text on one line of a terminal or a log: it makes no other line and has no
/// effect on a terminal. The end of a line becomes `\n`, each byte of another character that is not
/// [printable](is_printable) becomes `\xNN`. All else stays as it is, a backslash too.
#[derive(Debug, Clone, Copy)]
pub struct OneLine<'a>(pub &'a str);

impl std::fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\n' => f.write_str(r"\n")?,
                _ if !is_printable(letter) => hex(f, letter.encode_utf8(&mut [0; 4]).as_bytes())?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// True where a text may be the name of a zone or of a client. People are shown these: no longer
/// than a name, and all characters visible.
#[must_use]
pub fn is_title(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && text.chars().all(is_printable)
}

/// True where a terminal or an editor shows a character as itself. False for control characters,
/// line ends, invisible characters, and those that turn the writing direction (Unicode Standard
/// Annex 9).
#[must_use]
pub fn is_printable(letter: char) -> bool {
    let is_hidden = matches!(
        letter,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !letter.is_control() && !is_hidden
}

fn hex(f: &mut std::fmt::Formatter<'_>, bytes: &[u8]) -> std::fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, r"\x{byte:02x}"))
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
    #[test]
    fn an_escaped_name_is_read_back() {
        for name in [
            &b"plain"[..],
            b"a\\b\\x41",
            b"\xff\n",
            "Gr\u{f6}\u{202e}".as_bytes(),
        ] {
            let text = EscapedName(name).to_string();
            assert_eq!(unescaped(&text).as_deref(), Some(name), "{text}");
        }
        for text in ["\\", "\\x", "\\x4", "\\xzz", "\\n", "\\x\u{e9}"] {
            assert_eq!(unescaped(text), None, "{text}");
        }
    }

    #[test]
    fn untrusted_text_prints_on_one_line() {
        let text = OneLine("Größe \\ a\x1b[31m\tb\n\u{85}\u{202e}c").to_string();
        assert_eq!(
            text,
            "Größe \\ a\\x1b[31m\\x09b\\n\\xc2\\x85\\xe2\\x80\\xaec"
        );
        for (title, is_it) in [
            ("zone 1", true),
            ("", true),
            ("Größe 测试", true),
            ("a\tb", false),
            ("a\u{202e}", false),
        ] {
            assert_eq!(is_title(title), is_it, "{title:?}");
        }
        assert!(is_title(&"x".repeat(255)) && !is_title(&"x".repeat(256)));
    }

    use super::*;

    #[test]
    fn printed_names_are_one_line_and_distinct() {
        let shown = |bytes: &[u8]| Name::new(bytes).map(|name| name.to_string());
        for (bytes, text) in [
            ("Grüße 1.txt".as_bytes(), "Grüße 1.txt"),
            (b"a\nb\x1b[31m", r"a\x0ab\x1b[31m"),
            (b"\xff\xfea", r"\xff\xfea"),
            (br"\xff", r"\\xff"),
            ("\u{85}".as_bytes(), r"\xc2\x85"),
            ("a\u{202e}b".as_bytes(), r"a\xe2\x80\xaeb"),
            (
                "a\u{2028}b\u{200b}".as_bytes(),
                r"a\xe2\x80\xa8b\xe2\x80\x8b",
            ),
        ] {
            assert_eq!(shown(bytes).as_deref(), Ok(text));
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        assert!(Name::new(b"a").is_ok());
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert_eq!(Name::new(&[b'x'; 256]), Err(ErrorCode::NameTooLong));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(Name::new(bad), Err(ErrorCode::Invalid));
        }
    }
}
