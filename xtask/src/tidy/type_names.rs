//! Names of public types: each exists once in the workspace, or `xtask/shared-names.txt` gives the
//! reason.

use super::{File, Offence};
use std::collections::BTreeMap;

/// Names that may exist more than once: lines of `Name  # reason`.
#[derive(Debug, Default)]
pub struct Shared(Vec<String>);

impl Shared {
    /// Reads the list; a line without a reason is an error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim);
        let entries = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let names = entries.map(|line| match line.split_once('#') {
            Some((name, reason)) if !reason.trim().is_empty() => Ok(name.trim().to_owned()),
            _ => Err(format!("shared-names.txt: not `Name # reason`: {line}")),
        });
        names.collect::<Result<_, _>>().map(Self)
    }
}

/// Runs the rule.
pub fn check(files: &[File], shared: &Shared, offences: &mut Vec<Offence>) {
    let mut places: BTreeMap<&str, Vec<(&File, usize)>> = BTreeMap::new();
    for (name, file, number) in public_types(files) {
        places.entry(name).or_default().push((file, number));
    }
    for (name, places) in places {
        let is_shared = shared.0.iter().any(|shared| shared == name);
        let Some(((first, at), others)) = places.split_first() else {
            continue;
        };
        for (file, line) in others.iter().filter(|_| !is_shared) {
            let text = format!("`{name}` is also the name of a type in {}:{at}", first.path);
            offences.push(file.offence(*line, "type-name", text));
        }
    }
}

/// Each public type of the crates: its name, its file and its line.
pub fn public_types(files: &[File]) -> impl Iterator<Item = (&str, &File, usize)> {
    let libraries = files.iter().filter(|file| is_library(&file.path));
    libraries.flat_map(|file| {
        let lines = file.text.lines().zip(1..);
        lines.filter_map(move |(line, number)| Some((public_type(line)?, file, number)))
    })
}

fn is_library(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs")
}

/// The name of the public type that a line declares.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let mut words = rest.split(|c: char| !c.is_alphanumeric() && c != '_');
    // A name that a macro fills in is declared elsewhere.
    words.next().filter(|name| !name.is_empty())
}
