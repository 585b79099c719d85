//! Names of tests in the pages of docs: each test, check and command that a page names exists.
//!
//! `cargo test -p zonal-types --test limits_doc` compares the code with a page; this rule compares
//! the pages with the code:
//!
//! * `crate::file::test` (or `crate::file`) in docs/semantics.md and docs/semantics-details.md, and
//!   names of checks of a mount or a cell in their tables;
//! * `cargo test -p CRATE --test FILE FILTER` and `tests/....py ... --only PART,...` in every page.
//!
//! Pages below docs/rfcs describe the past and are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Offence};

/// The pages whose names of tests are compared with the code.
const SEMANTICS: [&str; 2] = ["docs/semantics.md", "docs/semantics-details.md"];

/// Scripts with checks, by the word that precedes a check's name in these pages.
const SCRIPTS: [(&str, &str); 13] = [
    ("two mounts", "tests/posix/two_mounts.py"),
    ("cell", "tests/cell/checks.py"),
    ("survival", "tests/cell/survival.py"),
    ("stopped", "tests/cell/stopped.py"),
    ("waiting", "tests/cell/waiting.py"),
    ("fsck", "tests/cell/fsck.py"),
    ("mounting", "tests/cell/mounting.py"),
    ("node numbers", "tests/cell/node_numbers.py"),
    ("zone detection", "tests/cell/zone_detection.py"),
    ("scopes", "tests/cell/scopes.py"),
    ("fs", "tests/cell/fs.py"),
    ("slow flush", "tests/cell/slow_flush.py"),
    ("", "tests/posix/semantics.py"),
];

/// Scripts whose checks need no word before them.
const PLAIN: [&str; 5] = [
    "tests/posix/semantics.py",
    "tests/posix/two_mounts.py",
    "tests/cell/media.py",
    "tests/cell/power_loss.py",
    "tests/cell/waiting.py",
];

/// Folders whose files register the checks of a script.
const AREAS: [(&str, &str); 2] = [
    ("tests/posix/areas/", "tests/posix/semantics.py"),
    ("tests/posix/between/", "tests/posix/two_mounts.py"),
];

/// The tests and checks in the repository.
struct Citable<'a> {
    /// The tests in each Rust file, by its path.
    tests: BTreeMap<&'a str, Vec<&'a str>>,
    /// The names of checks in each script, by its path.
    checks: BTreeMap<&'a str, BTreeSet<String>>,
}

/// Runs the rule.
pub fn check(files: &[File], offences: &mut Vec<Offence>) {
    let known = Citable::of(files);
    for file in files {
        let is_page = file.path.starts_with("docs/") && file.path.ends_with(".md");
        if !is_page || file.path.starts_with("docs/rfcs/") {
            continue;
        }
        for (index, line) in file.text.lines().enumerate() {
            let mut wrong = known.commands(line);
            if SEMANTICS.contains(&file.path.as_str()) {
                wrong.extend(known.names(line));
            }
            let told = |text| file.offence(index + 1, "named", text);
            offences.extend(wrong.into_iter().map(told));
        }
    }
}

impl<'a> Citable<'a> {
    fn of(files: &'a [File]) -> Self {
        let mut known = Self {
            tests: BTreeMap::new(),
            checks: BTreeMap::new(),
        };
        for file in files {
            if file.path.ends_with(".rs") {
                known.tests.insert(&file.path, tests(&file.text));
            } else if file.path.ends_with(".py") {
                let of = AREAS.iter().find(|(area, _)| file.path.starts_with(area));
                let script = of.map_or(file.path.as_str(), |(_, script)| script);
                let found = known.checks.entry(script).or_default();
                found.extend(checks(&file.text));
            }
        }
        known
    }

    /// The tests of a crate, with the paths of their files relative to its root.
    fn of_crate(&self, name: &str) -> impl Iterator<Item = (&str, &Vec<&'a str>)> {
        let root = match name {
            "xtask" => "xtask/".to_owned(),
            _ => format!("crates/{name}/"),
        };
        let all = self.tests.iter();
        all.filter_map(move |(path, tests)| Some((path.strip_prefix(&root)?, tests)))
    }

    /// Returns the errors in the commands of a line.
    fn commands(&self, line: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        for span in spans(line).map(|(_, span)| span) {
            if let Some((_, arguments)) = span.split_once("cargo test ") {
                wrong.extend(self.cargo_test(arguments).err());
            }
            let script = span.split(' ').find(|word| word.ends_with(".py"));
            if let (Some(script), Some((_, only))) = (script, span.split_once("--only ")) {
                let parts = only.split(' ').next().unwrap_or_default();
                wrong.extend(parts.split(',').filter_map(|part| self.only(script, part)));
            }
        }
        wrong
    }

    /// Checks `-p CRATE --test FILE FILTER`: each file exists, and the filter selects a test.
    fn cargo_test(&self, arguments: &str) -> Result<(), String> {
        let (mut crates, mut files, mut filter) = (Vec::new(), Vec::new(), None);
        let mut words = arguments.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "-p" => crates.extend(words.next()),
                "--test" => files.extend(words.next()),
                "--" => break,
                flag if flag.starts_with('-') => {}
                name => filter = Some(name),
            }
        }
        let is_given = |path: &str| {
            let is_this = |file: &&str| path == format!("tests/{file}.rs");
            files.is_empty() || files.iter().any(is_this)
        };
        for name in crates.iter().filter(|name| is_word(name)) {
            let all: Vec<_> = self.of_crate(name).collect();
            for file in &files {
                let path = format!("tests/{file}.rs");
                if !all.iter().any(|(p, _)| *p == path) {
                    return Err(format!("`cargo test {arguments}`: no {path} in {name}"));
                }
            }
            let selects = |path: &str, test: &str| match filter {
                Some(part) => test.contains(part) || path.replace('/', "::").contains(part),
                None => true,
            };
            let mut given = all.iter().filter(|(path, _)| is_given(path));
            if !given.any(|(path, tests)| tests.iter().any(|test| selects(path, test))) {
                return Err(format!("`cargo test {arguments}` selects no test"));
            }
        }
        Ok(())
    }

    fn only(&self, script: &str, part: &str) -> Option<String> {
        let Some(checks) = self.checks.get(script) else {
            return Some(format!("there is no {script}"));
        };
        let is_there = !is_word(part) || checks.iter().any(|ident| ident.contains(part));
        (!is_there).then(|| format!("{script} has no check `{part}`"))
    }

    /// Returns the errors in the names of tests of a line of a page of [`SEMANTICS`].
    fn names(&self, line: &str) -> Vec<String> {
        let cell = match line.starts_with('|') {
            true => line.trim_end_matches([' ', '|']).rsplit('|').next(),
            false => None,
        };
        let of_table = |at: usize| cell.is_some_and(|cell| at >= line.rfind(cell).unwrap_or(0));
        let (mut wrong, mut script, mut before) = (Vec::new(), "", 0);
        for (at, span) in spans(line) {
            // The word before the first name of a list counts for the whole list.
            let between = &line[before..at - 1];
            if between != ", " || before == 0 {
                let of = |(word, _): &&(&str, &'static str)| {
                    !word.is_empty() && between.ends_with(&format!("{word}: "))
                };
                script = SCRIPTS.iter().find(of).map_or("", |(_, path)| *path);
            }
            before = at + span.len() + 1;
            if span.contains("::") && span != "crate::test" {
                wrong.extend(self.rust(span));
            } else if is_word(span) && (!script.is_empty() || of_table(at)) {
                let scripts = match script {
                    "" => &PLAIN[..],
                    _ => std::slice::from_ref(&script),
                };
                let has = |path: &&str| self.checks.get(path).is_some_and(|c| c.contains(span));
                if !scripts.iter().any(has) {
                    wrong.push(format!("no check `{span}` in {}", scripts.join(", ")));
                }
            }
        }
        wrong
    }

    /// Checks `crate::file::test` or `crate::file`; the file may be a folder of the module.
    fn rust(&self, span: &str) -> Option<String> {
        let mut parts = span.split("::");
        let (name, file) = (parts.next()?, parts.next()?);
        let test = parts.next();
        let is_meant = |path: &str| {
            let mut parts = path.trim_end_matches(".rs").split('/');
            parts.any(|part| part == file)
        };
        let mut meant = self.of_crate(name).filter(|(path, _)| is_meant(path));
        let has = |tests: &Vec<&str>| match test {
            Some(test) => tests.contains(&test),
            None => !tests.is_empty(),
        };
        let is_there = meant.any(|(_, tests)| has(tests));
        (!is_there).then(|| format!("there is no test `{span}`"))
    }
}

/// Whether the text is a name, not a placeholder such as ID or `...`.
fn is_word(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(is_part)
}

/// Returns each text in backquotes of a line, with its position.
fn spans(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let ticks: Vec<usize> = line.match_indices('`').map(|(at, _)| at).collect();
    let pairs: Vec<(usize, usize)> = ticks
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    pairs
        .into_iter()
        .map(|(from, to)| (from + 1, &line[from + 1..to]))
}

/// Names of the functions with the attribute `#[test]` in a Rust file.
fn tests(text: &str) -> Vec<&str> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            if is_test {
                found.extend(rest.split('(').next());
            }
            is_test = false;
        }
    }
    found
}

/// Names of the checks in a script.
fn checks(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let ident = |rest: &str| rest.split('"').next().unwrap_or_default().to_owned();
        if let Some(rest) = line.strip_prefix("@check(\"") {
            found.push(ident(rest));
        } else if let Some(rest) = line.strip_prefix("@for_kinds(\"") {
            let kinds = ["flock", "fcntl", "ofd"];
            found.extend(kinds.map(|kind| format!("{kind}-{}", ident(rest))));
        }
    }
    found
}
