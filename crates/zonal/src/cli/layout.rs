//! `zonal layout`: how files are striped, by the extended attribute `zonal.layout`.

use crate::mount::attributes;
use crate::out;
use anyhow::Context;
use std::fmt::Write;
use std::path::PathBuf;
use zonal_server::units::Size;

/// Show or set how files are striped
#[derive(Debug, clap::Subcommand)]
pub enum Layout {
    /// Print the layout of files, or what new files of directories get
    Show {
        /// Files or directories of a mounted cell
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Set what new files below directories get; what exists stays as it is
    Set {
        /// Bytes on one target before the next one: a power of two from 64 KiB to 64 MiB
        #[arg(long, visible_alias = "unit", value_name = "SIZE")]
        stripe_unit: Option<Size>,
        /// Over how many targets a file goes; 0: all of the zone
        #[arg(long, visible_alias = "count", value_name = "N")]
        stripe_count: Option<u16>,
        /// Go back to what the parent directory says
        #[arg(long, conflicts_with_all = ["stripe_unit", "stripe_count"])]
        inherit: bool,
        /// Directories of a mounted cell
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

impl Layout {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Show { paths } => {
                for path in &paths {
                    let layout = attributes::get(path, attributes::LAYOUT)
                        .with_context(|| format!("layout of {}", path.display()))?;
                    out::line(format_args!("{}: {layout}", path.display()));
                }
                Ok(())
            }
            Self::Set {
                stripe_unit,
                stripe_count,
                inherit,
                paths,
            } => {
                let mut value = String::new();
                if let Some(unit) = stripe_unit {
                    // Writing to a String cannot fail.
                    let _ = write!(value, "unit={}", unit.0);
                }
                if let Some(count) = stripe_count {
                    let comma = if value.is_empty() { "" } else { "," };
                    let _ = write!(value, "{comma}count={count}");
                }
                if value.is_empty() && !inherit {
                    anyhow::bail!(
                        "nothing to set: give --stripe-unit, --stripe-count or --inherit"
                    );
                }
                for path in &paths {
                    let result = if inherit {
                        attributes::remove(path, attributes::LAYOUT)
                    } else {
                        attributes::set(path, attributes::LAYOUT, &value)
                    };
                    result.with_context(|| format!("layout of {}", path.display()))?;
                }
                Ok(())
            }
        }
    }
}
