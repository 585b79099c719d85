//! Patterns for names: `*`, `?`, `[a-z]`, `[!a-z]`, and a backslash that quotes the next byte.
//! Patterns match bytes, since names are bytes.

/// Whether a name matches a pattern. Time: at most the length of the pattern times that of the
/// name.
#[must_use]
pub fn is_of(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut pos) = (0, 0);
    // Pattern position after the last star, and the name position up to which it matches.
    let mut star: Option<(usize, usize)> = None;
    while pos < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, pos));
            at += 1;
            continue;
        }
        if let Some(next) = one(pattern, at, name[pos]) {
            (at, pos) = (next, pos + 1);
            continue;
        }
        let Some((behind, taken)) = star else {
            return false;
        };
        star = Some((behind, taken + 1));
        (at, pos) = (behind, taken + 1);
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Whether a name has a sign with a meaning in patterns.
#[must_use]
pub fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|byte| b"*?[\\".contains(byte))
}

/// Matches one byte; returns the next position in the pattern.
fn one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match *pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => set(pattern, at, byte),
        b'\\' => {
            let literal = pattern.get(at + 1)?;
            (*literal == byte).then_some(at + 2)
        }
        literal => (literal == byte).then_some(at + 1),
    }
}

/// Matches a byte set; an unclosed bracket stands for itself.
fn set(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    let is_not = matches!(pattern.get(at + 1), Some(b'!' | b'^'));
    let first = at + 1 + usize::from(is_not);
    let inside = pattern.get(first..).unwrap_or_default();
    let end = inside.iter().skip(1).position(|byte| *byte == b']');
    let Some(end) = end.map(|end| end + 1) else {
        return (byte == b'[').then_some(at + 1);
    };
    let set = &inside[..end];
    let (mut is_in, mut index) = (false, 0);
    while index < set.len() {
        if set.get(index + 1) == Some(&b'-') && index + 2 < set.len() {
            is_in |= (set[index]..=set[index + 2]).contains(&byte);
            index += 3;
        } else {
            is_in |= set[index] == byte;
            index += 1;
        }
    }
    (is_in != is_not).then_some(first + end + 1)
}

#[cfg(test)]
mod tests {
    use super::{is_of, is_pattern};

    #[test]
    fn names_match_glob_patterns() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*.c", "a.c", true),
            ("*.c", "a.c.d", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
            ("?", "", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a", "[a", true),
            (r"\*", "*", true),
            (r"\*", "x", false),
            ("**", "x", true),
        ] {
            let found = is_of(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
        assert!(is_of(b"?\xff*", b"a\xff\xfe"));
        assert!(is_pattern(b"set-*") && !is_pattern(b"set-1"));
        let hard = [b"*a".repeat(20), b"b".to_vec()].concat();
        assert!(!is_of(&hard, &b"a".repeat(5_000)));
    }
}
