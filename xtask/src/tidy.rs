//! The rules of `tidy`, run over every text file of the repository.
//!
//! Invariant: each rule has a test that plants its offence and sees it reported.

mod cited_tests;
mod dependencies;
mod layers;
mod prose;
mod source;
mod type_names;
mod type_words;
mod words;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

/// One place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offence {
    /// Path from the repository's root, with `/`.
    pub path: String,
    /// Line, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// Name of the rule.
    pub rule: &'static str,
    /// The offence, and how to mend it.
    pub text: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: [{}] {}",
            self.path, self.line, self.rule, self.text
        )
    }
}

/// A text file of the repository.
#[derive(Debug)]
pub struct File {
    /// Path from the repository's root, with `/`.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl File {
    fn offence(&self, line: usize, rule: &'static str, text: impl Into<String>) -> Offence {
        Offence {
            path: self.path.clone(),
            line,
            rule,
            text: text.into(),
        }
    }
}

/// Crates that do no I/O, in the order of their tiers.
const CORES: [&str; 13] = [
    "zonal-basics",
    "zonal-types",
    "zonal-wire",
    "zonal-layout",
    "zonal-placement",
    "zonal-consensus",
    "zonal-zonemap",
    "zonal-meta",
    "zonal-object",
    "zonal-client",
    "zonal-fsck",
    "zonal-driver",
    "zonal-flow",
];

/// Folders without files of this project.
const SKIPPED_FOLDERS: [&str; 5] = ["target", ".git", ".zonal", "__pycache__", "node_modules"];

/// Files whose words are not this project's: licences, generated lists, and the `.git` file of a
/// second work tree.
const SKIPPED_FILES: [&str; 3] = ["LICENSE", "Cargo.lock", ".git"];

/// Runs every rule; `metadata` is what `cargo metadata --no-deps` prints.
pub fn check(root: &Path, metadata: &str) -> Result<Vec<Offence>, String> {
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    let allowed = words::Allowed::parse(
        &std::fs::read_to_string(root.join("xtask/allowed-words.txt")).unwrap_or_default(),
    )?;
    let list = |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_default();
    let left = prose_left(&list("xtask/prose-left.txt"));
    let shared = type_names::Shared::parse(&list("xtask/shared-names.txt"))?;
    let mut offences = dependencies::check(metadata)?;
    for file in &files {
        words::check(file, &allowed, &mut offences);
        prose::check(file, &left, &mut offences);
        if Path::new(&file.path).extension().is_some_and(|e| e == "rs") {
            source::check(file, &mut offences);
        }
    }
    cited_tests::check(&files, &mut offences);
    layers::check(&files, &mut offences);
    prose::check_pages(&files, &left, &mut offences);
    type_names::check(&files, &shared, &mut offences);
    type_words::check(&files, &mut offences);
    offences.sort();
    Ok(offences)
}

/// Reads the prefixes of paths that are not held to the rules of prose yet.
fn prose_left(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    let paths = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    paths.map(str::to_owned).collect()
}

/// Reads every text file below `folder`.
fn collect(root: &Path, folder: &Path, files: &mut Vec<File>) -> Result<(), String> {
    let listing = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = listing.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                collect(root, &path, files)?;
            }
        } else if !SKIPPED_FILES.contains(&name.as_str()) {
            let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            // A file that is not text (golden vectors, a fuzzer's corpus) has no words.
            if let Ok(text) = String::from_utf8(bytes) {
                let path = path.strip_prefix(root).unwrap_or(&path);
                files.push(File {
                    path: path.to_string_lossy().into_owned(),
                    text,
                });
            }
        }
    }
    Ok(())
}
