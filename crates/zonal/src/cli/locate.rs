//! `zonal locate`: where files are, by the extended attribute `zonal.locate`.

use crate::mount::attributes;
use crate::out;
use anyhow::Context;
use serde_json::Value;
use std::path::PathBuf;

/// Show the home zone, bytes per zone, and targets of files
#[derive(Debug, clap::Args)]
pub struct Locate {
    /// Files or directories of a mounted cell
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// As JSON: a list with one object a path
    #[arg(long)]
    json: bool,
}

impl Locate {
    pub fn run(self) -> anyhow::Result<()> {
        let mut found = Vec::new();
        for path in &self.paths {
            let text = attributes::get(path, attributes::LOCATE)
                .with_context(|| format!("locate {}", path.display()))?;
            let mut value: Value = serde_json::from_str(&text)
                .with_context(|| format!("what the mount says of {}", path.display()))?;
            if let Value::Object(fields) = &mut value {
                fields.insert("path".into(), path.to_string_lossy().into_owned().into());
            }
            found.push(value);
        }
        if self.json {
            out::line(format_args!("{:#}", Value::from(found)));
            return Ok(());
        }
        for value in found {
            print(&value);
        }
        Ok(())
    }
}

/// One line: the path, then each field as `name value`.
fn print(value: &Value) {
    let Value::Object(fields) = value else {
        out::line(value);
        return;
    };
    let path = fields
        .get("path")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let rest: Vec<String> = fields
        .iter()
        .filter(|(name, _)| *name != "path")
        .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
        .collect();
    out::line(format_args!("{path}: {}", rest.join(", ")));
}
