//! Rules for Rust files: the head comment, the length, and items that cores must not use.

use super::{CORES, File, Offence};

/// The longest file, its tests included.
const MAX_LINES: usize = 800;

/// Paths that a core must not name, with the reason. The simulator drives cores with time and
/// messages of its own.
const FORBIDDEN: [(&str, &str); 12] = [
    (
        "Instant::now",
        "reads a clock: take the time as an argument",
    ),
    ("SystemTime", "reads a clock: take the time as an argument"),
    (
        "std::time::Instant",
        "reads a clock: use the type of zonal-types",
    ),
    ("std::fs", "opens files"),
    ("std::net", "opens sockets"),
    ("std::os::unix::net", "opens sockets"),
    ("std::thread", "starts threads"),
    ("thread::spawn", "starts threads"),
    ("thread::sleep", "sleeps"),
    ("std::process", "starts processes"),
    ("std::env", "reads the environment"),
    ("RandomState", "draws randomness"),
];

/// Parts of std that a core must not take in a grouped import.
const FORBIDDEN_MODULES: [&str; 5] = ["fs", "net", "thread", "process", "env"];

/// Runs the rules on one file.
pub fn check(file: &File, offences: &mut Vec<Offence>) {
    if !file.text.starts_with("//!") {
        offences.push(file.offence(1, "heading", "a file begins with `//!`: what it is for"));
    }
    let count = file.text.lines().count();
    if count > MAX_LINES {
        let text = format!("{count} lines, at most {MAX_LINES}: a file holds one concept");
        offences.push(file.offence(0, "length", text));
    }
    if is_test_file(&file.path) {
        return;
    }
    let code = without_tests(file);
    match crate_of(&file.path) {
        Some("zonal-sim") => hash_maps(file, &code, offences),
        Some(name) if CORES.contains(&name) => {
            forbidden(file, &code, offences);
            hash_maps(file, &code, offences);
        }
        _ => {}
    }
}

/// The name of the crate: `crates/NAME/...` gives NAME.
fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

/// Whether a whole file is test code.
pub(super) fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let folders = path.strip_suffix(name).unwrap_or(path);
    let in_folder = |f: &str| folders.split('/').any(|part| part == f);
    name == "tests.rs" || in_folder("tests") || in_folder("benches") || in_folder("examples")
}

/// The numbered lines of a file without its `#[cfg(test)]` modules. Relies on rustfmt: a test
/// module ends at the first closing brace with the indentation of its `mod`.
pub(super) fn without_tests(file: &File) -> Vec<(usize, &str)> {
    let mut lines = file
        .text
        .lines()
        .enumerate()
        .map(|(i, l)| (i + 1, l))
        .peekable();
    let mut kept = Vec::new();
    while let Some((number, line)) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push((number, line));
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        // Skips further attributes, then the item; a `mod tests;` ends at once.
        for (_, item) in lines.by_ref() {
            let text = item.trim();
            if text.starts_with("#[") || text.starts_with("//") {
                continue;
            }
            if text.ends_with('{') {
                let end = format!("{}}}", " ".repeat(indent));
                let _ = lines.by_ref().find(|(_, l)| *l == end);
            }
            break;
        }
    }
    kept
}

/// The part of a line before a comment. A `//` inside a string cuts too much, which can only hide
/// an offence.
pub(super) fn before_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

fn forbidden(file: &File, code: &[(usize, &str)], offences: &mut Vec<Offence>) {
    let mut group = false; // inside `use std::{ ... };`
    for &(number, line) in code {
        let text = before_comment(line);
        if let Some((name, why)) = FORBIDDEN.iter().find(|(name, _)| names(text, name)) {
            let text = format!("a core uses `{name}`: {why}");
            offences.push(file.offence(number, "core", text));
        }
        group |= text.contains("use std::{");
        if group {
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            for module in words.filter(|w| FORBIDDEN_MODULES.contains(w)) {
                let text = format!("a core imports `std::{module}`");
                offences.push(file.offence(number, "core", text));
            }
            group = !text.contains(';');
        }
    }
}

/// Whether `text` names `path`, not merely something that begins or ends like it.
fn names(text: &str, path: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(path).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + path.len()..].chars().next();
        !before.is_some_and(word) && !after.is_some_and(word)
    })
}

/// Rejects hash maps in cores, by whatever name. Their order is random, and nothing prevents code
/// from iterating over one.
fn hash_maps(file: &File, code: &[(usize, &str)], offences: &mut Vec<Offence>) {
    for &(number, line) in code {
        let text = before_comment(line);
        let kinds = ["HashMap", "HashSet", "hash_map", "hash_set"];
        if kinds.iter().any(|kind| names(text, kind)) {
            let text = "a hash map's order is random: a core uses a BTreeMap";
            offences.push(file.offence(number, "hash-map", text));
        }
    }
}
