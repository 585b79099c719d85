//! `zonal layout set`: sets the layout that new files of directories get.

mod walk;

use crate::console;
use crate::exit::{FAILED, Failure, USAGE};
use crate::mount::attributes::{self, PathOrOpen};
use anyhow::Context;
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use walk::TreeCounts;
use zonal_server::units::ByteSize;
use zonal_types::limits::{STRIPE_UNIT_MAX, STRIPE_UNIT_MIN};

/// Links of a directory without directories below.
const LINKS_ALONE: u64 = 2;

/// Set the layout of new files of directories; existing files keep theirs (see `apply`)
///
/// A directory takes its parent's layout when it is made, and keeps it. Those that exist below the
/// named ones keep theirs without -r.
#[derive(Debug, clap::Args)]
pub struct SetLayout {
    /// Also the directories below, on the same file system; symbolic links are not followed
    #[arg(short, long)]
    recursive: bool,
    /// Bytes on one target before the next one: a power of two from 64 KiB to 64 MiB
    #[arg(long, visible_alias = "unit", value_name = "SIZE")]
    stripe_unit: Option<ByteSize>,
    /// Number of targets of a file, at most those of the zone; 0 or `all`: all of them
    #[arg(long, visible_alias = "count", value_name = "N", value_parser = count)]
    stripe_count: Option<u16>,
    /// Servers of new files: targets of the zone, targets of the whole cell, or one target of
    /// the node that creates the file
    #[arg(long, value_name = "SERVERS", value_parser = ["zone", "cell", "node"])]
    placement: Option<String>,
    /// Copies of a file's bytes, each on another node of the zone; reads go on where one is
    /// lost
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=3))]
    copies: Option<u16>,
    /// One more copy in another zone: a zone's number, `any`, or `none`; reads stay in the
    /// file's zone while it has the bytes
    #[arg(long, value_name = "ZONE", value_parser = also_zone)]
    also_zone: Option<String>,
    /// Inherit the layout of the parent directory again
    #[arg(
        long,
        conflicts_with_all = [
            "stripe_unit", "stripe_count", "placement", "copies", "also_zone",
        ]
    )]
    inherit: bool,
    /// Directories of a mounted cell
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

fn is_unit(bytes: u64) -> bool {
    let range = u64::from(STRIPE_UNIT_MIN)..=u64::from(STRIPE_UNIT_MAX);
    bytes.is_power_of_two() && range.contains(&bytes)
}

fn also_zone(text: &str) -> Result<String, String> {
    let is_zone = text.parse::<u32>().is_ok_and(|zone| zone > 0);
    match is_zone || matches!(text, "any" | "none") {
        true => Ok(text.to_owned()),
        false => Err("take the number of a zone, `any` or `none`".to_owned()),
    }
}

/// Says why the shard refuses a copy in another zone.
fn no_other_zone(error: anyhow::Error, zone: &str) -> anyhow::Error {
    match error.downcast_ref::<Errno>() {
        Some(&Errno::RANGE) => {
            let text = match zone {
                "any" => "no other zone has a target".to_owned(),
                zone => format!("zone {zone} is the directory's own, or has no target"),
            };
            Failure::new(USAGE, text)
                .hint("`zonal status` lists the zones and their targets")
                .into()
        }
        _ => error,
    }
}

fn count(text: &str) -> Result<u16, String> {
    if text == "all" {
        return Ok(0);
    }
    let number = text.parse();
    number.map_err(|_error| "take a number of targets, or `all`".to_owned())
}

/// The value of a layout's word `name=value`.
fn word(layout: &str, name: &str) -> Option<String> {
    let mut words = layout.split_ascii_whitespace();
    words.find_map(|word| {
        word.strip_prefix(name)?
            .strip_prefix('=')
            .map(str::to_owned)
    })
}

/// A number that the zone of a directory cannot serve.
struct Excess {
    asked: String,
    there: String,
    hint: String,
}

impl SetLayout {
    pub fn run(self) -> anyhow::Result<()> {
        self.check_usage()?;
        // Checks all paths before the first change, so that a refusal changes nothing.
        self.paths.iter().try_for_each(|path| self.check(path))?;
        for path in &self.paths {
            self.set(PathOrOpen::Named(path))
                .with_context(|| context(path))?;
        }
        match self.recursive {
            true => self.set_below(),
            false => {
                let mut paths = self.paths.iter();
                if paths.any(|path| has_directories(path)) {
                    console::note("directories below keep their own layout; -r sets theirs, too");
                }
                Ok(())
            }
        }
    }

    fn check_usage(&self) -> anyhow::Result<()> {
        let changes = self.stripe_unit.is_some()
            || self.stripe_count.is_some()
            || self.placement.is_some()
            || self.copies.is_some()
            || self.also_zone.is_some();
        if !changes && !self.inherit {
            let text = "nothing to set: give --stripe-unit, --stripe-count, --placement, \
                        --copies, --also-zone or --inherit";
            return Err(Failure::new(USAGE, text).into());
        }
        if let Some(unit) = self.stripe_unit.filter(|unit| !is_unit(unit.0)) {
            let text =
                format!("a stripe unit of {unit}: take a power of two from 64 KiB to 64 MiB");
            return Err(Failure::new(USAGE, text).into());
        }
        Ok(())
    }

    /// Refuses anything but a directory, and numbers that its zone cannot serve.
    fn check(&self, path: &Path) -> anyhow::Result<()> {
        if std::fs::metadata(path).is_ok_and(|found| !found.is_dir()) {
            let text = format!("{} is not a directory", console::path(path));
            return Err(Failure::new(USAGE, text)
                .hint("`zonal layout apply` gives a file the copies of its directory's layout")
                .into());
        }
        let now = attributes::get(path, attributes::LAYOUT).with_context(|| context(path))?;
        match self.excess(&now) {
            None => Ok(()),
            Some(Excess { asked, there, hint }) => {
                let path = console::path(path);
                let text = format!("{asked} for {path}: its zone has {there}; nothing was changed");
                Err(Failure::new(USAGE, text).hint(hint).into())
            }
        }
    }

    /// A stripe count above the number of targets in the zone, or more copies than nodes with
    /// targets. The shard judges numbers for other servers than the present ones.
    fn excess(&self, now: &str) -> Option<Excess> {
        if self.placement.is_some() {
            return None;
        }
        let limit = |name: &str| word(now, name).and_then(|number| number.parse::<u16>().ok());
        match (self.stripe_count, limit("targets")) {
            (Some(count), Some(targets)) if count > targets => {
                return Some(Excess {
                    asked: format!("a stripe count of {count}"),
                    there: format!("{targets} targets"),
                    hint: format!(
                        "take 1 to {targets}, or `all`, which follows the number of targets in \
                         the zone"
                    ),
                });
            }
            _ => {}
        }
        match (self.copies, limit("nodes")) {
            (Some(copies), Some(nodes)) if copies > nodes => Some(Excess {
                asked: format!("{copies} copies"),
                there: format!("{nodes} nodes that store"),
                hint: format!("take 1 to {nodes}, or let more nodes join: `zonal node join`"),
            }),
            _ => None,
        }
    }

    /// The layout to set: the given values, and the directory's other ones.
    fn value(&self, now: &str) -> String {
        let redundancy = self.copies.map(|copies| match copies {
            1 => "none".to_owned(),
            copies => format!("copies:{copies}"),
        });
        let asked = [
            ("unit", self.stripe_unit.map(|unit| unit.0.to_string())),
            ("count", self.stripe_count.map(|count| count.to_string())),
            ("redundancy", redundancy),
            ("also_zone", self.also_zone.clone()),
            ("placement", self.placement.clone()),
        ];
        let words = asked.into_iter().filter_map(|(name, value)| {
            let value = value.or_else(|| word(now, name))?;
            Some(format!("{name}={value}"))
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Sets a directory's layout.
    fn set(&self, dir: PathOrOpen<'_>) -> anyhow::Result<()> {
        if self.inherit {
            return self.set_inherited(dir);
        }
        let now = dir.get(attributes::LAYOUT)?;
        if let Some(Excess { asked, there, .. }) = self.excess(&now) {
            anyhow::bail!("{asked}: its zone has {there}");
        }
        let set = dir.set(attributes::LAYOUT, self.value(&now).as_bytes());
        match &self.also_zone {
            Some(zone) => set.map_err(|error| no_other_zone(error, zone)),
            None => set,
        }
    }

    /// Gives a directory the layout that its parent has now.
    fn set_inherited(&self, dir: PathOrOpen<'_>) -> anyhow::Result<()> {
        match dir.try_remove(attributes::LAYOUT) {
            // It has the layout that its parent had once. Only one of its own can be removed.
            Err(Errno::NODATA) => {
                let now = dir.get(attributes::LAYOUT)?;
                dir.set(attributes::LAYOUT, self.value(&now).as_bytes())?;
                Ok(dir.try_remove(attributes::LAYOUT)?)
            }
            removed => Ok(removed?),
        }
    }

    /// Sets the layout of all directories below the named ones, which have it.
    fn set_below(&self) -> anyhow::Result<()> {
        let mut counts = TreeCounts::default();
        for path in &self.paths {
            walk::below(path, &|dir| self.set(PathOrOpen::Open(dir)), &mut counts);
        }
        let all = counts.done + self.paths.len() as u64;
        match all {
            1 => console::line("1 directory has the layout"),
            all => console::line(format_args!("{all} directories have the layout")),
        }
        match counts.failures {
            0 => Ok(()),
            failures => {
                let named = counts.failed.join("; ");
                let text = format!("{failures} directories failed: {named}");
                Err(Failure::new(FAILED, text)
                    .hint("the others are set; the command may be run again")
                    .into())
            }
        }
    }
}

fn context(path: &Path) -> String {
    format!("layout of {}", console::path(path))
}

/// Whether a directory has one below, by its link count.
fn has_directories(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.nlink() > LINKS_ALONE)
}
