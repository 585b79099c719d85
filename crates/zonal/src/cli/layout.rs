//! `zonal layout`: shows and sets the striping of files, by the extended attribute `zonal.layout`.

use super::layout_apply;
use super::layout_restripe::{self, RestripeArgs};
use super::layout_set::SetLayout;
use super::output_args::ReportArgs;
use crate::console;
use crate::mount::attributes;
use anyhow::Context;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

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
    /// A directory takes its parent's layout when it is made, and keeps it. `zonal layout set -r`
    /// changes those that exist.
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
    Set(SetLayout),
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
            Self::Set(set) => set.run(),
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
