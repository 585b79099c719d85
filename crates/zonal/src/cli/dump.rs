//! `zonal dump`: prints any stored structure in readable form.

use crate::dump::{self, Prefix, Printer, StorePart};
use crate::exit::{FAILED, Failure};
use std::path::PathBuf;

/// Show stored data, decoded: a store's folder, one of its files, or a stream
///
/// Reads only. Reports each damaged place and continues behind it. Log, index and allocation of a
/// store can be read only while no process has the store open. Exits with 1 if anything is damaged.
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
    /// Largest number of lines for each part
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
            let text = format!("{damaged} of the items shown are damaged");
            return Err(Failure::new(FAILED, text)
                .hint("`zonal fsck` shows the consequences for files, and repairs as much as possible")
                .into());
        }
        Ok(())
    }
}
