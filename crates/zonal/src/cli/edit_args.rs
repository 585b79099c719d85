//! Arguments of commands that edit the zone map: the cell, a preview, the expected map version.
//!
//! Each edit carries the map version that it was planned from. The manager refuses it where the map
//! has changed since. With `--expect` this is the version of an earlier preview.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::console;
use crate::exit::{Failure, REFUSED};
use zonal_server::units::ByteSize;
use zonal_types::MapVersion;
use zonal_zonemap::ZoneMap;

/// Arguments of an edit.
#[derive(Debug, clap::Args)]
pub struct EditArgs {
    #[command(flatten)]
    pub cell: CellArgs,
    /// Show the change and the map version to expect, and change nothing
    #[arg(long)]
    pub preview: bool,
    /// Change only a map of this version, as a preview showed it
    #[arg(long, value_name = "VERSION")]
    pub expect: Option<u64>,
    /// Bytes a second for the times in a preview
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "100 MiB",
        requires = "preview"
    )]
    rate: ByteSize,
}

impl EditArgs {
    /// Bytes a second for estimated times; at least one.
    pub fn rate(&self) -> u64 {
        self.rate.0.max(1)
    }

    /// Opens the cell and fetches its map, which must have the expected version.
    pub fn open(&self) -> anyhow::Result<(CellHandle, ZoneMap)> {
        let cell = self.cell.open()?;
        let map = cell.map()?;
        if let Some(expected) = self.expect.map(MapVersion)
            && map.version != expected
        {
            let now = map.version;
            let text = format!("the map is at version {now}, not {expected}: nothing was changed");
            let failure = Failure::new(REFUSED, text);
            return Err(failure
                .hint("look at the change with --preview again")
                .into());
        }
        Ok((cell, map))
    }

    /// With `--preview`: shows the lines of a change, how to make it, and returns true.
    pub fn previews(&self, map: &ZoneMap, lines: &[String]) -> bool {
        if self.preview {
            for line in lines {
                console::line(line);
            }
            console::line(format_args!(
                "map version {}: make this change with --expect {}",
                map.version, map.version
            ));
        }
        self.preview
    }
}
