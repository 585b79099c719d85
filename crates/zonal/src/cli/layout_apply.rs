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
        let wanted = LayoutCopies::of(dir)?;
        if found.is_dir() {
            walk(path, found.dev(), recursive, &mut counts, &mut progress);
        } else {
            apply_to(path, &found, &wanted, &mut counts, &mut progress);
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

/// The copies of a file, or of new files of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LayoutCopies {
    /// Those in the file's own zone.
    of_zone: u16,
    /// The other zone with one more, or `any`.
    also_zone: Option<String>,
}

impl LayoutCopies {
    /// Those that the layout of a path names.
    fn of(path: &Path) -> anyhow::Result<Self> {
        let layout = attributes::get(path, attributes::LAYOUT)
            .with_context(|| format!("layout of {}", console::path(path)))?;
        Ok(Self::in_text(&layout))
    }

    fn in_text(layout: &str) -> Self {
        let word = |name| {
            let mut words = layout.split_ascii_whitespace();
            words.find_map(|word| word.strip_prefix(name))
        };
        let copies = word("redundancy=copies:").and_then(|copies| copies.parse().ok());
        let also_zone = word("also_zone=").filter(|zone| *zone != "none");
        Self {
            of_zone: copies.unwrap_or(1),
            also_zone: also_zone.map(str::to_owned),
        }
    }

    /// The layout to set for a file with these copies, so that it has all that are wanted, too.
    /// `None` where it has them.
    fn raised_to(&self, wanted: &Self) -> Option<String> {
        let of_zone = self.of_zone.max(wanted.of_zone);
        let also_zone = self.also_zone.as_ref().or(wanted.also_zone.as_ref());
        if of_zone == self.of_zone && also_zone == self.also_zone.as_ref() {
            return None;
        }
        let redundancy = match of_zone {
            1 => "none".to_owned(),
            copies => format!("copies:{copies}"),
        };
        let also_zone = also_zone.map_or("none", String::as_str);
        Some(format!("redundancy={redundancy} also_zone={also_zone}"))
    }
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
        let listed = LayoutCopies::of(&dir)
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
                Ok((path, found)) => apply_to(&path, &found, &wanted, counts, progress),
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
    wanted: &LayoutCopies,
    counts: &mut ApplyCounts,
    progress: &mut ProgressMeter,
) {
    if !found.is_file() {
        return;
    }
    let changed = LayoutCopies::of(path).and_then(|now| {
        let Some(value) = now.raised_to(wanted) else {
            return Ok(false);
        };
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
    fn a_file_is_given_what_it_lacks_and_keeps_what_it_has() {
        let of = LayoutCopies::in_text;
        let plain = of("unit=65536 count=0 redundancy=none also_zone=none zone=1");
        let two = of("redundancy=copies:2 also_zone=none");
        let also = of("redundancy=none also_zone=any");
        let in_third = of("redundancy=none also_zone=3");
        assert_eq!(of(""), plain);
        assert_eq!(plain.raised_to(&plain), None);
        assert_eq!(two.raised_to(&plain), None);
        let text =
            |redundancy: &str, zone| Some(format!("redundancy={redundancy} also_zone={zone}"));
        assert_eq!(plain.raised_to(&two), text("copies:2", "none"));
        assert_eq!(plain.raised_to(&also), text("none", "any"));
        assert_eq!(two.raised_to(&also), text("copies:2", "any"));
        assert_eq!(in_third.raised_to(&two), text("copies:2", "3"));
        assert_eq!(in_third.raised_to(&also), None);
    }
}
