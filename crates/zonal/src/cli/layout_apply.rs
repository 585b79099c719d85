//! `zonal layout apply`: gives existing files the copies that new files of their directories get.

use crate::cli::output_args::ReportArgs;
use crate::console;
use crate::exit::{FAILED, Failure};
use crate::mount::attributes;
use crate::progress::ProgressMeter;
use anyhow::Context;
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files that an error names.
const NAMED: usize = 5;

/// Counts of a run.
#[derive(Default)]
struct ApplyCounts {
    changed: u64,
    bytes: u64,
    /// They have as many copies, or more.
    unchanged: u64,
    failed: Vec<String>,
    failures: u64,
}

/// Applies the layouts of directories to the files below these paths.
pub fn apply(paths: &[PathBuf], recursive: bool, telling: &ReportArgs) -> anyhow::Result<()> {
    let mut progress = telling.progress("files");
    let mut counts = ApplyCounts::default();
    for path in paths {
        let found = std::fs::symlink_metadata(path)
            .with_context(|| format!("cannot read {}", console::path(path)))?;
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let dir = match found.is_dir() {
            true => path.as_path(),
            false => parent.unwrap_or(Path::new(".")),
        };
        let wanted = copies_of(dir)?;
        if found.is_dir() {
            walk(path, found.dev(), recursive, &mut counts, &mut progress);
        } else {
            apply_to(path, &found, wanted, &mut counts, &mut progress);
        }
    }
    report(&counts, telling.json);
    match counts.failures {
        0 => Ok(()),
        files => {
            let named = counts.failed.join("; ");
            let text = format!("{files} files keep their copies: {named}");
            Err(Failure::new(FAILED, text)
                .hint("run the command again: files that have their copies are passed over")
                .into())
        }
    }
}

fn report(counts: &ApplyCounts, as_json: bool) {
    if as_json {
        let shown = json!({
            "changed": counts.changed,
            "bytes": counts.bytes,
            "unchanged": counts.unchanged,
            "failed": counts.failures,
        });
        return console::json(format_args!("{shown:#}"));
    }
    let (changed, unchanged) = (counts.changed, counts.unchanged);
    console::line(format_args!(
        "{changed} files get more copies, {unchanged} have as many"
    ));
    if changed > 0 {
        console::note("`zonal recovery --follow` shows when the copies are there");
    }
}

/// Copies that new files of a directory get.
fn copies_of(dir: &Path) -> anyhow::Result<u16> {
    let layout = attributes::get(dir, attributes::LAYOUT)
        .with_context(|| format!("layout of {}", console::path(dir)))?;
    Ok(copies_in(&layout))
}

/// The copies that a layout names.
fn copies_in(layout: &str) -> u16 {
    let mut words = layout.split_ascii_whitespace();
    let copies = words.find_map(|word| word.strip_prefix("redundancy=copies:")?.parse().ok());
    copies.unwrap_or(1)
}

/// Walks a directory, and with `recursive` those below it on the same file system.
fn walk(
    dir: &Path,
    device: u64,
    recursive: bool,
    counts: &mut ApplyCounts,
    progress: &mut ProgressMeter,
) {
    let mut left = vec![dir.to_path_buf()];
    while let Some(dir) = left.pop() {
        let listed = copies_of(&dir)
            .and_then(|wanted| Ok((wanted, std::fs::read_dir(&dir)?.collect::<Vec<_>>())));
        let (wanted, entries) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                note_failure(&dir, &error.to_string(), counts);
                continue;
            }
        };
        for entry in entries {
            let found = entry.and_then(|entry| {
                let path = entry.path();
                std::fs::symlink_metadata(&path).map(|found| (path, found))
            });
            match found {
                Ok((path, found)) if found.is_dir() => {
                    if recursive && found.dev() == device {
                        left.push(path);
                    }
                }
                Ok((path, found)) => apply_to(&path, &found, wanted, counts, progress),
                // Removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => note_failure(&dir, &error.to_string(), counts),
            }
        }
    }
}

fn apply_to(
    path: &Path,
    found: &std::fs::Metadata,
    wanted: u16,
    counts: &mut ApplyCounts,
    progress: &mut ProgressMeter,
) {
    if !found.is_file() {
        return;
    }
    let changed = attributes::get(path, attributes::LAYOUT).and_then(|now| {
        if copies_in(&now) >= wanted {
            return Ok(false);
        }
        let value = format!("redundancy=copies:{wanted}");
        attributes::set(path, attributes::LAYOUT, value.as_bytes())?;
        Ok(true)
    });
    match changed {
        Ok(true) => {
            counts.changed += 1;
            counts.bytes = counts.bytes.saturating_add(found.len());
        }
        Ok(false) => counts.unchanged += 1,
        Err(error) => note_failure(path, &error.to_string(), counts),
    }
    progress.at(counts.changed + counts.unchanged, counts.bytes);
}

fn note_failure(path: &Path, why: &str, counts: &mut ApplyCounts) {
    counts.failures += 1;
    if counts.failed.len() < NAMED {
        counts
            .failed
            .push(format!("{}: {why}", console::path(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_names_its_copies() {
        assert_eq!(
            copies_in("unit=65536 count=0 redundancy=copies:3 zone=1"),
            3
        );
        assert_eq!(copies_in("unit=65536 count=0 redundancy=none zone=1"), 1);
        assert_eq!(copies_in(""), 1);
    }
}
