//! Rejected words (docs/glossary.md: one word, one meaning), notes to ourselves, and paths of one
//! machine.

use super::{File, Offence};

/// Rejected words, each with the glossary's word.
const REJECTED: [(&str, &str); 4] = [
    ("cluster", "cell"),
    ("volume", "target, or the name space"),
    ("brick", "target"),
    ("rack", "zone"),
];

/// Notes that belong into an issue. They are spelt in parts, since this file is checked as well.
const NOTES: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Prefixes of paths that exist on one machine only.
const MACHINE_PATHS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/tmp", "/t-"),
    concat!("/ho", "me/"),
];

/// Places where a rejected word is right: lines of `path-prefix word  # reason`.
#[derive(Debug, Default)]
pub struct Allowed(Vec<(String, String)>);

impl Allowed {
    /// Reads the list; a line without a reason is an error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for line in text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
        {
            let (entry, reason) = line.split_once('#').unwrap_or((line, ""));
            match entry.split_whitespace().collect::<Vec<_>>().as_slice() {
                [path, word] if !reason.trim().is_empty() => {
                    entries.push(((*path).to_owned(), (*word).to_owned()));
                }
                _ => {
                    return Err(format!(
                        "allowed-words.txt: not `path word # reason`: {line}"
                    ));
                }
            }
        }
        Ok(Self(entries))
    }

    fn has(&self, path: &str, word: &str) -> bool {
        self.0
            .iter()
            .any(|(prefix, w)| path.starts_with(prefix.as_str()) && (w == word || w == "*"))
    }
}

/// Runs the rule on one file.
pub fn check(file: &File, allowed: &Allowed, offences: &mut Vec<Offence>) {
    for (index, line) in file.text.lines().enumerate() {
        let number = index + 1;
        for word in words(line) {
            let lower = word.to_lowercase();
            let singular = lower.strip_suffix('s').unwrap_or(&lower);
            let rejected = REJECTED.iter().find(|(w, _)| *w == singular || *w == lower);
            if let Some((bad, better)) = rejected
                && !allowed.has(&file.path, bad)
            {
                let text = format!("`{word}`: say {better} (docs/glossary.md)");
                offences.push(file.offence(number, "word", text));
            }
            if NOTES.contains(&word) && !allowed.has(&file.path, word) {
                let text = format!("`{word}`: finish it, or write an issue");
                offences.push(file.offence(number, "note", text));
            }
        }
        if let Some(path) = MACHINE_PATHS.iter().find(|p| line.contains(**p))
            && !allowed.has(&file.path, path)
        {
            let text = format!("`{path}` is a path of one machine");
            offences.push(file.offence(number, "machine-path", text));
        }
    }
}

/// The words of a line, with identifiers split: `StorageRack_list` is Storage, Rack, list.
fn words(line: &str) -> Vec<&str> {
    let mut out = Vec::new();
    for run in line.split(|c: char| !c.is_alphanumeric()) {
        let mut start = 0;
        let chars: Vec<(usize, char)> = run.char_indices().collect();
        for pair in chars.windows(2) {
            let [(_, a), (at, b)] = pair else { continue };
            if a.is_lowercase() && b.is_uppercase() {
                out.push(&run[start..*at]);
                start = *at;
            }
        }
        if start < run.len() {
            out.push(&run[start..]);
        }
    }
    out
}
