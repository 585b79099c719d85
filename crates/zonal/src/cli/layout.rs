//! `zonal layout`: shows and sets the striping of files, by the extended attribute `zonal.layout`.

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
    /// Set the layout of new files below directories; existing files keep theirs
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
        /// Inherit the layout of the parent directory again
        #[arg(long, conflicts_with_all = ["stripe_unit", "stripe_count", "placement"])]
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
            Self::Set {
                stripe_unit,
                stripe_count,
                placement,
                inherit,
                paths,
            } => {
                let is_empty =
                    stripe_unit.is_none() && stripe_count.is_none() && placement.is_none();
                if is_empty && !inherit {
                    let text = "nothing to set: give --stripe-unit, --stripe-count, --placement or --inherit";
                    return Err(Failure::new(2, text).into());
                }
                if let Some(unit) = stripe_unit.filter(|unit| !is_unit(unit.0)) {
                    let text = format!(
                        "a stripe unit of {unit}: take a power of two from 64 KiB to 64 MiB"
                    );
                    return Err(Failure::new(2, text).into());
                }
                // Checks all paths before the first change, so that a refusal changes nothing. The
                // shard judges a count for other servers than the present ones.
                if let (Some(count), None) = (stripe_count, &placement) {
                    paths.iter().try_for_each(|path| fits(path, count))?;
                }
                for path in &paths {
                    let result = if inherit {
                        attributes::remove(path, attributes::LAYOUT)
                    } else {
                        change(path, stripe_unit, stripe_count, placement.clone())
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

/// Refuses a stripe count above the number of targets in the zone.
fn fits(path: &Path, count: u16) -> anyhow::Result<()> {
    let now = attributes::get(path, attributes::LAYOUT)
        .with_context(|| format!("layout of {}", console::path(path)))?;
    let targets = word(&now, "targets").and_then(|targets| targets.parse::<u16>().ok());
    match targets {
        Some(targets) if count > targets => {
            let text = format!(
                "a stripe count of {count} for {}: its zone has {targets} targets; nothing was changed",
                console::path(path)
            );
            let hint = format!(
                "take 1 to {targets}, or `all`, which follows the number of targets in the zone"
            );
            Err(Failure::new(2, text).hint(hint).into())
        }
        _ => Ok(()),
    }
}

/// Sets the given values and keeps the directory's other ones.
fn change(
    path: &Path,
    unit: Option<ByteSize>,
    count: Option<u16>,
    placement: Option<String>,
) -> anyhow::Result<()> {
    let now = attributes::get(path, attributes::LAYOUT)?;
    let unit = unit.map(|unit| unit.0.to_string());
    let unit = unit.or_else(|| word(&now, "unit"));
    let count = count.map(|count| count.to_string());
    let count = count.or_else(|| word(&now, "count"));
    let placement = placement.or_else(|| word(&now, "placement"));
    let words = [("unit", unit), ("count", count), ("placement", placement)].into_iter();
    let words = words.filter_map(|(name, value)| Some(format!("{name}={}", value?)));
    let value = words.collect::<Vec<_>>().join(" ");
    attributes::set(path, attributes::LAYOUT, value.as_bytes())
}
