//! `zonal layout`: shows and sets the striping of files, by the extended attribute `zonal.layout`.

use super::layout_apply;
use super::layout_restripe::{self, RestripeArgs};
use super::output_args::ReportArgs;
use crate::console;
use crate::exit::Failure;
use crate::mount::attributes;
use anyhow::Context;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use zonal_server::units::ByteSize;
use zonal_types::limits::{STRIPE_UNIT_MAX, STRIPE_UNIT_MIN};

/// Show or set how files are striped
#[derive(Debug, clap::Subcommand)]
pub enum LayoutCommand {
    /// Print the layout of files, or for directories the layout of new files
    Show {
        /// Files or directories of a mounted cell
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// As JSON: a list with one object a path
        #[arg(long)]
        json: bool,
    },
    /// Give existing files as many copies as new files of their directories get
    ///
    /// Files stay in use; their targets make the copies, or delete them, in the background. A file
    /// with as many copies is passed over. Run it again after an interruption.
    ///
    /// With --restripe files are striped anew instead, over the targets that their zone has now.
    /// Those that are moved get all copies at once. A second run passes over what is done.
    Apply {
        /// Also the directories below, on the same file system
        #[arg(short, long)]
        recursive: bool,
        #[command(flatten)]
        restripe: RestripeArgs,
        #[command(flatten)]
        telling: ReportArgs,
        /// Files or directories of a mounted cell
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Set the layout of new files below directories; existing files keep theirs (see `apply`)
    Set {
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
    },
}

impl LayoutCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Show { paths, json } => show(&paths, json),
            Self::Apply {
                recursive,
                restripe,
                telling,
                paths,
            } => match restripe.restripe {
                true => layout_restripe::restripe(&paths, recursive, &restripe, &telling),
                false => layout_apply::apply(&paths, recursive, &telling),
            },
            Self::Set {
                stripe_unit,
                stripe_count,
                placement,
                copies,
                also_zone,
                inherit,
                paths,
            } => {
                let change = LayoutChange {
                    unit: stripe_unit,
                    count: stripe_count,
                    placement,
                    copies,
                    also_zone,
                };
                if change.is_empty() && !inherit {
                    let text = "nothing to set: give --stripe-unit, --stripe-count, --placement, \
                                --copies, --also-zone or --inherit";
                    return Err(Failure::new(2, text).into());
                }
                if let Some(unit) = stripe_unit.filter(|unit| !is_unit(unit.0)) {
                    let text = format!(
                        "a stripe unit of {unit}: take a power of two from 64 KiB to 64 MiB"
                    );
                    return Err(Failure::new(2, text).into());
                }
                // Checks all paths before the first change, so that a refusal changes nothing. The
                // shard judges numbers for other servers than the present ones.
                if change.placement.is_none() {
                    paths.iter().try_for_each(|path| change.check(path))?;
                }
                for path in &paths {
                    let result = if inherit {
                        attributes::remove(path, attributes::LAYOUT)
                    } else {
                        change.apply(path)
                    };
                    result.with_context(|| format!("layout of {}", console::path(path)))?;
                }
                Ok(())
            }
        }
    }
}

fn show(paths: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for path in paths {
        let layout = attributes::get(path, attributes::LAYOUT)
            .with_context(|| format!("layout of {}", console::path(path)))?;
        if json {
            found.push(to_json(path, &layout));
        } else {
            console::line(format_args!("{}: {layout}", console::path(path)));
        }
    }
    if json {
        console::json(format_args!("{:#}", Value::from(found)));
    }
    Ok(())
}

/// The words of a layout as JSON fields; numbers as numbers.
fn to_json(path: &Path, layout: &str) -> Value {
    let mut fields = Map::new();
    fields.insert("path".into(), console::json_path(path).into());
    for word in layout.split_ascii_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let value = match value.parse::<u64>() {
            Ok(number) => number.into(),
            Err(_) => value.into(),
        };
        fields.insert(name.to_owned(), value);
    }
    Value::Object(fields)
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
    match error.downcast_ref::<rustix::io::Errno>() {
        Some(&rustix::io::Errno::RANGE) => {
            let text = match zone {
                "any" => "no other zone has a target".to_owned(),
                zone => format!("zone {zone} is the directory's own, or has no target"),
            };
            Failure::new(2, text)
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

/// New values of a directory's layout.
struct LayoutChange {
    unit: Option<ByteSize>,
    count: Option<u16>,
    placement: Option<String>,
    copies: Option<u16>,
    also_zone: Option<String>,
}

impl LayoutChange {
    fn is_empty(&self) -> bool {
        self.unit.is_none()
            && self.count.is_none()
            && self.placement.is_none()
            && self.copies.is_none()
            && self.also_zone.is_none()
    }

    /// Refuses a stripe count above the number of targets in the zone, and more copies than nodes
    /// with targets.
    fn check(&self, path: &Path) -> anyhow::Result<()> {
        let now = attributes::get(path, attributes::LAYOUT)
            .with_context(|| format!("layout of {}", console::path(path)))?;
        let limit = |name: &str| word(&now, name).and_then(|number| number.parse::<u16>().ok());
        let refuse = |asked: String, there: String, hint: String| {
            let path = console::path(path);
            let text = format!("{asked} for {path}: its zone has {there}; nothing was changed");
            Err(Failure::new(2, text).hint(hint).into())
        };
        match (self.count, limit("targets")) {
            (Some(count), Some(targets)) if count > targets => {
                return refuse(
                    format!("a stripe count of {count}"),
                    format!("{targets} targets"),
                    format!(
                        "take 1 to {targets}, or `all`, which follows the number of targets in \
                         the zone"
                    ),
                );
            }
            _ => {}
        }
        match (self.copies, limit("nodes")) {
            (Some(copies), Some(nodes)) if copies > nodes => refuse(
                format!("{copies} copies"),
                format!("{nodes} nodes that store"),
                format!("take 1 to {nodes}, or let more nodes join: `zonal node join`"),
            ),
            _ => Ok(()),
        }
    }

    /// Sets the given values and keeps the directory's other ones.
    fn apply(&self, path: &Path) -> anyhow::Result<()> {
        let now = attributes::get(path, attributes::LAYOUT)?;
        let redundancy = self.copies.map(|copies| match copies {
            1 => "none".to_owned(),
            copies => format!("copies:{copies}"),
        });
        let asked = [
            ("unit", self.unit.map(|unit| unit.0.to_string())),
            ("count", self.count.map(|count| count.to_string())),
            ("redundancy", redundancy),
            ("also_zone", self.also_zone.clone()),
            ("placement", self.placement.clone()),
        ];
        let words = asked.into_iter().filter_map(|(name, value)| {
            let value = value.or_else(|| word(&now, name))?;
            Some(format!("{name}={value}"))
        });
        let value = words.collect::<Vec<_>>().join(" ");
        let set = attributes::set(path, attributes::LAYOUT, value.as_bytes());
        match &self.also_zone {
            Some(zone) => set.map_err(|error| no_other_zone(error, zone)),
            None => set,
        }
    }
}
