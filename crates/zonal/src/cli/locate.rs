//! `zonal locate`: shows where files are stored, by the extended attribute `zonal.locate`.

mod matrix;
mod walk;

use crate::cell::connection::CellArgs;
use crate::console;
use crate::exit::{FAILED, Failure, with_causes};
use crate::mount::attributes;
use crate::placement_client::ServiceArgs;
use crate::progress::ProgressMeter;
use anyhow::Context;
use serde_json::Value;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use zonal_basics::byte_size;

use matrix::ZoneCosts;
use walk::TreeTotals;

/// Show the home zone, bytes per zone, and targets of files
///
/// For a directory: its home zone, and with --recursive the totals of all files below it.
#[derive(Debug, clap::Args)]
pub struct Locate {
    /// Files or directories of a mounted cell
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Add up all files below directories; a file with several names counts with each of them
    #[arg(long, short)]
    recursive: bool,
    /// Show the cost of a job in each zone: bytes over uplinks, weighted by their rates. The cell
    /// is that of --cell; the weights are those of the placement service, and equal without it
    #[arg(long)]
    matrix: bool,
    #[command(flatten)]
    cell: CellArgs,
    #[command(flatten)]
    service: ServiceArgs,
    /// As JSON: a list with one object a path
    #[arg(long)]
    json: bool,
}

impl Locate {
    pub fn run(self) -> anyhow::Result<()> {
        let mut found = Vec::new();
        let mut failures = 0;
        let mut progress = ProgressMeter::new("files", std::io::stderr().is_terminal());
        for path in &self.paths {
            match self.one(path, &mut progress) {
                Ok((value, failed)) => {
                    found.push(value);
                    failures += failed;
                }
                // A single path's own error is complete.
                Err(error) if self.paths.len() == 1 => return Err(error),
                Err(error) => {
                    console::note(format_args!("zonal: {}", with_causes(error.as_ref())));
                    failures += 1;
                }
            }
        }
        let matrix = match self.matrix && !found.is_empty() {
            true => Some(ZoneCosts::of(&self.cell, &self.service)?),
            false => None,
        };
        if let Some(matrix) = &matrix {
            found.iter_mut().for_each(|value| matrix.add_to(value));
        }
        if self.json {
            console::json(format_args!("{:#}", Value::from(found)));
        } else {
            found.iter().for_each(print);
            if let Some(matrix) = &matrix {
                console::table(&matrix.rows(&found));
            }
        }
        if failures > 0 {
            let text = format!("{failures} files or directories could not be read");
            return Err(Failure::new(FAILED, text).into());
        }
        Ok(())
    }

    /// The output for a path, and the number of failures below it.
    fn one(&self, path: &Path, progress: &mut ProgressMeter) -> anyhow::Result<(Value, u64)> {
        let text = attributes::get(path, attributes::LOCATE)
            .with_context(|| format!("locate {}", console::path(path)))?;
        let mut value: Value = serde_json::from_str(&text)
            .with_context(|| format!("the mount's reply about {}", console::path(path)))?;
        let mut failures = 0;
        if let Value::Object(fields) = &mut value {
            let shown = if self.json {
                console::json_path(path)
            } else {
                console::path(path).to_string()
            };
            fields.insert("path".into(), shown.into());
            if self.recursive && path.is_dir() {
                let below = TreeTotals::of(path, progress)?;
                below.add_to(fields);
                failures = below.failures();
            }
        }
        Ok((value, failures))
    }
}

/// `PATH: home zone 1; bytes in zones 1: 96.0 MiB; on targets 1: 32.0 MiB, ...`
fn print(value: &Value) {
    let path = value["path"].as_str().unwrap_or_default();
    let mut text = format!("{path}: home zone {}", value["home_zone"]);
    if let (Some(files), Some(directories)) =
        (value["files"].as_u64(), value["directories"].as_u64())
    {
        text.push_str(&format!("; files {files}, directories {directories} below"));
    }
    for (field, title) in [("zones", "bytes in zones"), ("targets", "on targets")] {
        let Some(parts) = value[field].as_object().filter(|parts| !parts.is_empty()) else {
            continue;
        };
        let mut parts: Vec<(u64, u64)> = parts
            .iter()
            .filter_map(|(id, bytes)| Some((id.parse().ok()?, bytes.as_u64()?)))
            .collect();
        parts.sort_unstable();
        let shown: Vec<String> = parts
            .iter()
            .map(|(id, bytes)| format!("{id}: {}", byte_size::rounded(*bytes)))
            .collect();
        text.push_str(&format!("; {title} {}", shown.join(", ")));
    }
    console::line(text);
}
