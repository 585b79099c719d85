//! Words of public type names: `docs/glossary.md` defines each, or `xtask/plain-words.txt` lists it
//! as a word that needs no definition.
//!
//! Invariants:
//! 1. A term is a word in the first column of a table of the glossary whose head is `word`;
//!    brackets there do not count. Case does not count, nor singular and plural.
//! 2. The list holds no word that the glossary defines, and none that no public type uses.

use super::{File, Offence, type_names};
use std::collections::{BTreeMap, BTreeSet};

const GLOSSARY: &str = "docs/glossary.md";
const PLAIN_WORDS: &str = "xtask/plain-words.txt";
const RULE: &str = "type-word";

/// Runs the rule; a repository without a glossary has no terms.
pub fn check(files: &[File], offences: &mut Vec<Offence>) {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let terms = find(GLOSSARY).map_or_else(BTreeSet::new, |page| terms(&page.text));
    let plain_words = find(PLAIN_WORDS).map_or_else(Vec::new, |list| plain_words(&list.text));
    let plain: BTreeSet<&str> = plain_words.iter().map(|(word, _)| word.as_str()).collect();
    let mut used: BTreeMap<String, Vec<Offence>> = BTreeMap::new();
    for (name, file, line) in type_names::public_types(files) {
        for word in words(name) {
            let text = format!(
                "`{word}` of `{name}`: define it in {GLOSSARY}, or use the glossary's word for it"
            );
            let uses = used.entry(fold(word)).or_default();
            uses.push(file.offence(line, RULE, text));
        }
    }
    if let Some(list) = find(PLAIN_WORDS) {
        let mut seen = BTreeSet::new();
        for (word, line) in &plain_words {
            let text = if terms.contains(word) {
                format!("`{word}` is in {GLOSSARY}: remove it here")
            } else if !used.contains_key(word) {
                format!("`{word}` is in no name of a public type: remove it")
            } else if !seen.insert(word) {
                format!("`{word}` is listed twice: remove it")
            } else {
                continue;
            };
            offences.push(list.offence(*line, RULE, text));
        }
    }
    let unknown = used
        .into_iter()
        .filter(|(word, _)| !terms.contains(word) && !plain.contains(word.as_str()));
    offences.extend(unknown.flat_map(|(_, uses)| uses));
}

/// The folded words of the glossary's terms.
fn terms(page: &str) -> BTreeSet<String> {
    let mut terms = BTreeSet::new();
    let mut is_term_table = false;
    for line in page.lines() {
        let Some(row) = line.strip_prefix('|') else {
            is_term_table = false;
            continue;
        };
        let cell = row.split('|').next().unwrap_or_default().trim();
        if cell == "word" {
            is_term_table = true;
        } else if is_term_table {
            let term = without_brackets(cell);
            let parts = term.split(|c: char| !c.is_alphanumeric());
            terms.extend(parts.filter(|part| !part.is_empty()).map(fold));
        }
    }
    terms
}

/// The folded words of the list, each with its line.
fn plain_words(list: &str) -> Vec<(String, usize)> {
    let lines = list.lines().zip(1..).filter(|(l, _)| !l.starts_with('#'));
    lines
        .flat_map(|(l, number)| l.split_whitespace().map(move |word| (fold(word), number)))
        .collect()
}

fn without_brackets(text: &str) -> String {
    let mut depth = 0_usize;
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

/// The words of a name in camel case, without digits: `SplitMix64` is Split, Mix.
fn words(name: &str) -> Vec<&str> {
    let is_start = |(at, c): &(usize, char)| {
        let rest = name.get(at + c.len_utf8()..).unwrap_or_default();
        let before = name.get(..*at).unwrap_or_default();
        let is_behind_lower = before.ends_with(|b: char| !b.is_uppercase());
        *at == 0 || c.is_uppercase() && (is_behind_lower || rest.starts_with(char::is_lowercase))
    };
    let starts: Vec<usize> = name
        .char_indices()
        .filter(is_start)
        .map(|(at, _)| at)
        .chain([name.len()])
        .collect();
    starts
        .windows(2)
        .filter_map(|pair| match pair {
            [from, to] => name.get(*from..*to),
            _ => None,
        })
        .map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect()
}

/// A word in lower case and in the singular.
fn fold(word: &str) -> String {
    let lower = word.to_lowercase();
    if let Some(stem) = lower.strip_suffix("ies") {
        return format!("{stem}y");
    }
    match lower.strip_suffix('s') {
        Some(stem) if stem.len() > 2 && !stem.ends_with('s') => stem.to_owned(),
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::{File, check, fold, words};

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    const PAGE: &str = "# Glossary\n\n| word | meaning |\n| --- | --- |\n\
        | zone (of a cell) | a leaf switch |\n| stripe unit, lease | bytes |\n\n\
        | not | but |\n| --- | --- |\n| volume | target |\n";

    /// The offences of a crate with these types, as path and line.
    fn found(types: &str, list: &str) -> Vec<(String, usize)> {
        let files = [
            file("crates/zonal-net/src/a.rs", &format!("//! A.\n{types}")),
            file("docs/glossary.md", PAGE),
            file("xtask/plain-words.txt", list),
        ];
        let mut offences = Vec::new();
        check(&files, &mut offences);
        assert!(offences.iter().all(|o| o.rule == "type-word"));
        offences.into_iter().map(|o| (o.path, o.line)).collect()
    }

    #[test]
    fn names_of_terms_and_plain_words_are_clean() {
        let types = "pub struct ZoneMap;\npub enum StripeUnits {}\npub(crate) struct Odd;\n";
        assert_eq!(found(types, "# Words.\nMap\n"), []);
        assert_eq!(found("pub trait LeaseMaps {}\n", "Map\n"), []);
    }

    #[test]
    fn a_word_without_a_definition_is_reported() {
        let here = [("crates/zonal-net/src/a.rs".to_owned(), 2)];
        assert_eq!(found("pub struct ZoneRiddle;\n", ""), here);
        // Neither the brackets of a term nor the words not used define a word.
        assert_eq!(found("pub struct Cell;\n", ""), here);
        assert_eq!(found("pub struct Volume;\n", ""), here);
        let mut offences = Vec::new();
        let alone = [file("crates/zonal-net/src/a.rs", "pub struct Zone;\n")];
        check(&alone, &mut offences);
        assert_eq!(offences.len(), 1);
    }

    #[test]
    fn a_plain_word_that_is_unused_or_defined_or_repeated_is_reported() {
        let at = |line| [("xtask/plain-words.txt".to_owned(), line)];
        assert_eq!(found("pub struct Zone;\n", "# Words.\nMap\n"), at(2));
        assert_eq!(found("pub struct Zone;\n", "Zones\n"), at(1));
        assert_eq!(found("pub struct ZoneMap;\n", "Map\nMaps\n"), at(2));
    }

    #[test]
    fn names_are_split_and_folded() {
        assert_eq!(words("SplitMix64"), ["Split", "Mix"]);
        assert_eq!(words("IOQueue"), ["IO", "Queue"]);
        let folded = ["Entries", "Leases", "Status", "Access", "Fs"].map(fold);
        assert_eq!(folded, ["entry", "lease", "statu", "access", "fs"]);
    }
}
