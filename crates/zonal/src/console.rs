//! Output of commands for people and scripts. All output goes through here, so foreign text is made
//! harmless in one place.
//!
//! Names of zones, clients and files, paths, and replies of servers are foreign text: anybody may
//! have chosen it. None of it reaches a terminal as control characters.
//!
//! | stream | rule |
//! | --- | --- |
//! | standard output | a line stays one line |
//! | standard error | lines after the first are indented, so none looks like our `Hint:` |
//! | JSON | unprintable letters become JSON's own escapes |
//!
//! A command continues when standard output cannot be written, since its work may matter more than
//! its output. The first failure is kept for [`finish`]. A closed pipe is no failure: later output
//! is dropped.

use std::fmt::Display;
use std::io::{Error, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use zonal_types::{EscapedName, OneLine, is_printable};

/// The first failure to write standard output.
static FAILURE: Mutex<Option<Error>> = Mutex::new(None);

/// Prints one line to standard output.
pub fn line(text: impl Display) {
    put(OneLine(&text.to_string()));
}

/// Prints lines that this program composed to standard output.
pub fn lines(text: &str) {
    text.split('\n').for_each(line);
}

/// Prints JSON to standard output, on one line or several.
pub fn json(value: impl Display) {
    put(escaped_json(&value.to_string()));
}

fn put(text: impl Display) {
    note_failure(writeln!(std::io::stdout().lock(), "{text}"));
}

/// Escapes unprintable letters in JSON. They only occur inside strings, so an escape is valid.
fn escaped_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter == '\n' || is_printable(letter) {
            out.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// Writes bytes to standard output unchanged.
pub fn raw(bytes: &[u8]) {
    note_failure(std::io::stdout().lock().write_all(bytes));
}

/// Notes the result of a library that wrote to standard output itself.
pub fn shown(written: std::io::Result<()>) {
    note_failure(written);
}

fn note_failure(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
    }
}

/// Whether all output was written.
///
/// # Errors
/// The first failure to write.
pub fn finish() -> std::io::Result<()> {
    note_failure(std::io::stdout().lock().flush());
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    failure.take().map_or(Ok(()), Err)
}

/// Prints a note to standard error; lines after the first are indented.
pub fn note(text: impl Display) {
    let text = harmless(&text.to_string());
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

fn harmless(text: &str) -> String {
    let mut lines = text.split('\n');
    let mut out = OneLine(lines.next().unwrap_or_default()).to_string();
    for line in lines {
        let indent = if line.is_empty() || line.starts_with("  ") {
            ""
        } else {
            "  "
        };
        out.push_str(&format!("\n{indent}{}", OneLine(line)));
    }
    out
}

/// Prints a table; columns are as wide as their widest cell, and the last is not padded.
pub fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut text = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            text.push_str(&format!("{cell:<width$}  "));
        }
        line(text.trim_end());
    }
}

/// A path in printable form: names in a cell may hold any bytes.
pub fn path(path: &Path) -> EscapedName<'_> {
    EscapedName(path.as_os_str().as_bytes())
}

/// A path for JSON: itself where it is UTF-8.
pub fn json_path(path: &Path) -> String {
    let text = path.to_str().map(str::to_owned);
    text.unwrap_or_else(|| self::path(path).to_string())
}

/// The time since a calendar time (seconds since 1970), for people: `5 min ago`.
pub fn ago(seconds: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    });
    let past = now.saturating_sub(seconds).max(0);
    match past {
        0..120 => format!("{past} s ago"),
        120..7200 => format!("{} min ago", past / 60),
        7200..172_800 => format!("{} h ago", past / 3600),
        _ => format!("{} days ago", past / 86_400),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn notes_have_no_control_characters() {
        let text = super::harmless("Größe \\ a\x1b[31m\tb\nHint: x\n  y\n\u{85}\u{202e}c");
        assert_eq!(
            text,
            "Größe \\ a\\x1b[31m\\x09b\n  Hint: x\n  y\n  \\xc2\\x85\\xe2\\x80\\xaec"
        );
    }

    #[test]
    fn json_escapes_unprintable_letters() {
        let text = "a\u{1b}\n\u{9b}\u{202e}\u{e0001}\u{1f600}ö";
        let value = serde_json::json!({ "key": text });
        for written in [value.to_string(), format!("{value:#}")] {
            let escaped = super::escaped_json(&written);
            let is_harmless = |letter| letter == '\n' || zonal_types::is_printable(letter);
            assert!(
                escaped.chars().all(is_harmless) && escaped.contains('ö'),
                "{escaped}"
            );
            let read: serde_json::Value = serde_json::from_str(&escaped).unwrap();
            assert_eq!(read, value);
        }
    }
}
