//! `zonal layout apply`: gives existing files the copies that new files of their directories get.

use crate::cli::output_args::ReportArgs;
use crate::console;
use crate::exit::{FAILED, Failure};
use crate::mount::attributes;
use crate::progress::ProgressMeter;
use anyhow::Context;
use rustix::io::Errno;
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files that an error names.
const NAMED: usize = 5;

/// Counts of a run.
#[derive(Default)]
struct ApplyCounts {
    more: u64,
    fewer: u64,
    bytes: u64,
    /// They have as many copies, or are to have them.
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
            "changed": counts.changed(),
            "more": counts.more,
            "fewer": counts.fewer,
            "bytes": counts.bytes,
            "unchanged": counts.unchanged,
            "failed": counts.failures,
        });
        return console::json(format_args!("{shown:#}"));
    }
    let (more, fewer, unchanged) = (counts.more, counts.fewer, counts.unchanged);
    console::line(format_args!(
        "{more} files get more copies, {fewer} get fewer, {unchanged} have as many"
    ));
    if more > 0 {
        console::note("`zonal recovery --follow` shows when the copies are there");
    }
    if fewer > 0 {
        console::note("their targets free the space of the other copies within a minute");
    }
}

impl ApplyCounts {
    fn changed(&self) -> u64 {
        self.more + self.fewer
    }
}

/// The change of a file's copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyChange {
    None,
    More,
    Fewer,
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

    fn count(&self) -> u16 {
        self.of_zone + u16::from(self.also_zone.is_some())
    }

    /// The layout to set for a file with these copies, so that it has those that are wanted. A copy
    /// in another zone than the wanted one stays there. `None` where it has them.
    fn changed_to(&self, wanted: &Self) -> Option<(CopyChange, String)> {
        let also_zone = match &wanted.also_zone {
            Some(zone) => self.also_zone.as_ref().or(Some(zone)),
            None => None,
        };
        if wanted.of_zone == self.of_zone && also_zone == self.also_zone.as_ref() {
            return None;
        }
        let change = if wanted.count() > self.count() {
            CopyChange::More
        } else {
            CopyChange::Fewer
        };
        let redundancy = match wanted.of_zone {
            1 => "none".to_owned(),
            copies => format!("copies:{copies}"),
        };
        let also_zone = also_zone.map_or("none", String::as_str);
        let text = format!("redundancy={redundancy} also_zone={also_zone}");
        Some((change, text))
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
        let Some((change, value)) = now.changed_to(wanted) else {
            return Ok(CopyChange::None);
        };
        let set = attributes::try_set(path, attributes::LAYOUT, value.as_bytes());
        set.map_err(|error| anyhow::anyhow!(refusal(error)))?;
        Ok(change)
    });
    match &changed {
        Ok(CopyChange::None) => counts.unchanged += 1,
        Ok(CopyChange::More) => counts.more += 1,
        Ok(CopyChange::Fewer) => counts.fewer += 1,
        Err(error) => note_failure(path, &error.to_string(), counts),
    }
    if matches!(changed, Ok(CopyChange::More | CopyChange::Fewer)) {
        counts.bytes = counts.bytes.saturating_add(found.len());
    }
    progress.at(counts.changed() + counts.unchanged, counts.bytes);
}

/// The shard's refusal in words.
fn refusal(error: Errno) -> String {
    match error {
        Errno::BUSY => "its copies are being made or moved, or one that stays is away".into(),
        Errno::OPNOTSUPP => "no copy can go that is before one that stays, nor one while another \
                             one comes"
            .into(),
        Errno::RANGE => "too few nodes, or too wide for its copies at once".into(),
        other => other.to_string(),
    }
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
    fn a_file_gets_the_copies_of_its_directory() {
        let of = LayoutCopies::in_text;
        let plain = of("unit=65536 count=0 redundancy=none also_zone=none zone=1");
        let two = of("redundancy=copies:2 also_zone=none");
        let also = of("redundancy=none also_zone=any");
        let in_third = of("redundancy=none also_zone=3");
        assert_eq!(of(""), plain);
        assert_eq!(plain.changed_to(&plain), None);
        let text = |change, redundancy: &str, zone| {
            let text = format!("redundancy={redundancy} also_zone={zone}");
            Some((change, text))
        };
        use CopyChange::{Fewer, More};
        assert_eq!(two.changed_to(&plain), text(Fewer, "none", "none"));
        assert_eq!(plain.changed_to(&two), text(More, "copies:2", "none"));
        assert_eq!(plain.changed_to(&also), text(More, "none", "any"));
        assert_eq!(also.changed_to(&plain), text(Fewer, "none", "none"));
        assert_eq!(in_third.changed_to(&also), None);
        let both = of("redundancy=copies:2 also_zone=any");
        assert_eq!(in_third.changed_to(&both), text(More, "copies:2", "3"));
        // The shard refuses this: one goes, and another one comes.
        assert_eq!(two.changed_to(&also), text(Fewer, "none", "any"));
    }
}
