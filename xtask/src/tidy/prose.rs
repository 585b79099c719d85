//! Rules of prose for comments and pages. CONTRIBUTING.md explains them with examples.
//!
//! Paths that `xtask/prose-left.txt` names are not held to the rules yet. The list only shrinks.

use super::{File, Offence};

/// The widest line of a comment or a page.
const COLUMNS: usize = 100;

/// The longest sentence of a comment, in words.
const WORDS: usize = 25;

/// The longest sentence of the shortest nine tenths in the pages, in words.
const PAGE_WORDS: usize = 28;

/// Words that make the reader look for their referent.
const VAGUE: [&str; 3] = ["that one", "such", "whoever"];

/// A comment, or a paragraph or list item of a page, joined into one line.
struct Paragraph {
    /// Number of its first line, from 1.
    line: usize,
    text: String,
}

/// Runs the rules on one file.
pub fn check(file: &File, left: &[String], offences: &mut Vec<Offence>) {
    if left.iter().any(|path| file.path.starts_with(path.as_str())) {
        return;
    }
    let is_rust = has_extension(file, "rs");
    if !is_rust && !is_page(file) {
        return;
    }
    for (line, text) in wide(file, is_rust) {
        let text = format!("{} columns, at most {COLUMNS}", text.chars().count());
        offences.push(file.offence(line, "columns", text));
    }
    let paragraphs = match is_rust {
        true => comments(&file.text),
        false => page(&file.text),
    };
    for paragraph in &paragraphs {
        for sentence in sentences(&paragraph.text) {
            judge(file, paragraph.line, &sentence, is_rust, offences);
        }
    }
}

/// Checks the lengths of sentences of all pages together.
pub fn check_pages(files: &[File], left: &[String], offences: &mut Vec<Offence>) {
    let is_left = |file: &&File| !left.iter().any(|path| file.path.starts_with(path.as_str()));
    let pages = files.iter().filter(|file| is_page(file)).filter(is_left);
    let mut lengths: Vec<usize> = pages
        .flat_map(|file| page(&file.text))
        .flat_map(|paragraph| sentences(&paragraph.text))
        .map(|sentence| length(&sentence))
        .collect();
    lengths.sort_unstable();
    let ninetieth = lengths.get(lengths.len() * 9 / 10).copied().unwrap_or(0);
    if ninetieth > PAGE_WORDS {
        offences.push(Offence {
            path: "docs".to_owned(),
            line: 0,
            rule: "sentences",
            text: format!(
                "one sentence of ten has {ninetieth} words or more: {PAGE_WORDS} at most"
            ),
        });
    }
}

fn judge(file: &File, line: usize, text: &str, is_comment: bool, offences: &mut Vec<Offence>) {
    let start: String = text.chars().take(50).collect();
    let words = length(text);
    if is_comment && words > WORDS {
        let text = format!("{words} words, at most {WORDS}: `{start}`");
        offences.push(file.offence(line, "sentence", text));
    }
    let first = text.split_whitespace().next().unwrap_or("");
    if ["What", "Who"].contains(&first) && !text.ends_with('?') {
        let text = format!("name the thing first: `{start}`");
        offences.push(file.offence(line, "subject", text));
    }
    let spaced = format!(
        " {} ",
        text.to_lowercase()
            .replace([',', '.', ':', ';', ')', '('], " ")
    );
    for word in VAGUE {
        let found = spaced
            .replace(" such as ", " ")
            .contains(&format!(" {word} "));
        if found {
            let text = format!("`{word}`: say what is meant: `{start}`");
            offences.push(file.offence(line, "vague", text));
        }
    }
}

fn has_extension(file: &File, extension: &str) -> bool {
    std::path::Path::new(&file.path)
        .extension()
        .is_some_and(|found| found == extension)
}

/// Pages that people read. Dated notes stay as they were written; the reference of commands is made
/// from their help.
fn is_page(file: &File) -> bool {
    let is_kept = file.path.starts_with("docs/rfcs/2") || file.path == "docs/cli-reference.md";
    has_extension(file, "md") && !is_kept
}

fn wide(file: &File, is_rust: bool) -> Vec<(usize, &str)> {
    let mut is_fenced = false;
    let numbered = file.text.lines().zip(1..);
    numbered
        .filter(|(line, _)| {
            let text = line.trim_start();
            is_fenced ^= text.trim_start_matches(['/', '!', ' ']).starts_with("```");
            let is_prose = match is_rust {
                true => text.starts_with("//"),
                false => !is_fenced && !text.starts_with('|'),
            };
            // One long word, such as an address, cannot be wrapped.
            is_prose && line.chars().count() > COLUMNS && text.split_whitespace().count() > 2
        })
        .map(|(line, number)| (number, line))
        .collect()
}

/// Paragraphs of the comments of Rust code.
fn comments(text: &str) -> Vec<Paragraph> {
    let mut before = "";
    let lines = text.lines().zip(1..).flat_map(|(line, number)| {
        let line = line.trim_start();
        let comment = line
            .strip_prefix("//")
            .map(|rest| rest.trim_start_matches(['/', '!']));
        let kind = line.strip_suffix(comment.unwrap_or(line)).unwrap_or("");
        let is_other = std::mem::replace(&mut before, kind) != kind;
        is_other
            .then_some((number, None))
            .into_iter()
            .chain([(number, comment)])
    });
    paragraphs(lines)
}

/// Paragraphs of a page.
fn page(text: &str) -> Vec<Paragraph> {
    let lines = text
        .lines()
        .zip(1..)
        .map(|(line, number)| (number, Some(line)));
    paragraphs(lines)
}

/// Joins lines into paragraphs; `None` ends one. Code, tables and headings have no sentences.
fn paragraphs<'a>(lines: impl Iterator<Item = (usize, Option<&'a str>)>) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let (mut is_fenced, mut is_open) = (false, false);
    for (number, line) in lines {
        let text = line.unwrap_or("").trim();
        if line.is_none() {
            is_fenced = false;
        }
        if text.starts_with("```") {
            is_fenced = !is_fenced;
            is_open = false;
            continue;
        }
        let is_code = line.is_some_and(|line| line.starts_with("    ")) && !is_open;
        if is_fenced || is_code || text.is_empty() || text.starts_with(['|', '#', '<']) {
            is_open = false;
            continue;
        }
        let item = item_of(text);
        match found.last_mut() {
            Some(last) if is_open && item.is_none() => {
                last.text.push(' ');
                last.text.push_str(text);
            }
            _ => found.push(Paragraph {
                line: number,
                text: item.unwrap_or(text).to_owned(),
            }),
        }
        is_open = true;
    }
    found
}

/// The text of a list item.
fn item_of(text: &str) -> Option<&str> {
    let numbered = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = numbered
        .strip_prefix(". ")
        .filter(|rest| rest.len() + 2 < text.len());
    let marked = text.strip_prefix("* ").or_else(|| text.strip_prefix("- "));
    marked.or(numbered)
}

/// Splits a paragraph into sentences, at a stop followed by a space. Code in backticks is one word.
fn sentences(text: &str) -> Vec<String> {
    let mut plain = String::new();
    for (part, index) in text.split('`').zip(0..) {
        plain.push_str(if index % 2 == 0 { part } else { "code" });
    }
    let mut found = Vec::new();
    let mut sentence = String::new();
    for word in plain.split_whitespace() {
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        let bare = word.trim_end_matches([')', '"', '*', ']']);
        let is_short_form = ["e.g.", "i.e.", "etc.", "vs.", "cf."].contains(&bare);
        if bare.ends_with(['.', '!', '?']) && !is_short_form {
            found.push(std::mem::take(&mut sentence));
        }
    }
    if !sentence.is_empty() {
        found.push(sentence);
    }
    found
}

fn length(sentence: &str) -> usize {
    let has_letter = |word: &&str| word.chars().any(char::is_alphanumeric);
    sentence.split_whitespace().filter(has_letter).count()
}
