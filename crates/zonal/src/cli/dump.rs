//! `zonal dump`: any stored structure in words.

use crate::dump::{self, Prefix, Printer, StorePart};
use crate::exit::{FAILED, Failure};
use std::path::PathBuf;

/// Show what is stored: a store's folder, one of its files, or a stream, decoded
///
/// Reads only, and shows damage where it meets it: each with its place, and the rest all the same.
/// Log, index and allocation of a store are read while no process has it open. Exits with 1 where
/// something is damaged.
#[derive(Debug, clap::Args)]
pub struct Dump {
    /// A store's folder; its `identity`, `starts`, `power`, `log`, `index.redb`, `index.sums`,
    /// `copy.0`, `copy.1` or a segment; a backup or exported objects
    path: PathBuf,
    /// Only this part of a store
    #[arg(long, value_enum)]
    part: Option<StorePart>,
    /// Only entries of the index whose keys begin with these bytes
    #[arg(long, value_name = "HEX")]
    prefix: Option<Prefix>,
    /// At most so many lines of each part
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

impl Dump {
    pub fn run(self) -> anyhow::Result<()> {
        let mut printer = Printer::new(self.json, self.limit);
        let prefix = self.prefix.map_or_else(Vec::new, |prefix| prefix.0);
        dump::path(&self.path, self.part, &prefix, &mut printer)?;
        let damaged = printer.damaged();
        if damaged > 0 {
            let text = format!("{damaged} of what was shown is damaged");
            return Err(Failure::new(FAILED, text)
                .hint("`zonal fsck` tells what that means for files, and repairs what can be repaired")
                .into());
        }
        Ok(())
    }
}
