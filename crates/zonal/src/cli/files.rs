//! `zonal files`: names files that are lost or endangered, or that a failure would take away.

mod listing;
mod loss_scope;
mod search;

use crate::cell::connection::CellArgs;
use crate::cli::output_args::ReportArgs;
use crate::exit::{FILES_FOUND, Failure, UNREACHABLE};
use listing::{FileCounts, FileListing};
use loss_scope::LossScope;
use search::ScanEnd;

/// List files that are lost or endangered, or that a failure would take away
///
/// Looks at all files of the cell through snapshots of its shards, beside running programs. A copy
/// of a column counts as whole where its target serves, and it misses no changes. Sizes are those
/// that shards know: a column that a file does not reach is not missed.
///
/// A file is `lost` where no target of the map has a whole copy of some column. It is `unavailable`
/// where only targets that are out or down have one, and `endangered` where fewer are whole than
/// the layout asks for.
///
/// Exit code: 0 if no file is listed, 9 if some are, 4 if a shard did not answer.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which")
    .args(["lost", "endangered", "if_lost"]).required(true).multiple(true)))]
pub struct Files {
    #[command(flatten)]
    cell: CellArgs,
    /// Lost and unavailable files, as they are found; the default with --if-lost
    #[arg(long, conflicts_with = "endangered")]
    lost: bool,
    /// Files with copies that lack a whole copy of some column, most endangered first
    #[arg(long)]
    endangered: bool,
    /// As if this target, or all targets of this node or zone, were lost too; may be repeated
    #[arg(long, value_name = "target:N|node:N|zone:N")]
    if_lost: Vec<LossScope>,
    #[command(flatten)]
    report: ReportArgs,
}

impl Files {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        let mut progress = self.report.progress("files");
        let mut listing = FileListing::new(&cell, self.endangered, self.report.json);
        let mut bytes = 0_u64;
        let end = search::search(&cell, &self.if_lost, &mut |inode, survival| {
            listing.take(inode, survival);
            bytes = bytes.saturating_add(inode.size);
            progress.at(listing.counts.looked_at, bytes);
        })?;
        let counts = listing.finish(&end);
        self.conclude(&counts, &end)
    }

    fn conclude(&self, counts: &FileCounts, end: &ScanEnd) -> anyhow::Result<()> {
        if !end.silent.is_empty() {
            let silent: Vec<String> = end.silent.iter().map(ToString::to_string).collect();
            let text = format!("no answer of shards {}", silent.join(", "));
            return Err(Failure::new(UNREACHABLE, text)
                .hint(
                    "their files are not judged; `zonal status` shows which servers do not answer",
                )
                .into());
        }
        let FileCounts {
            lost, unavailable, ..
        } = *counts;
        let (text, hint) = match (counts.found, self.endangered, self.if_lost.is_empty()) {
            (0, _, _) => return Ok(()),
            (found, true, true) => (
                format!("{found} files have fewer whole copies than they should"),
                "start servers that are down; `zonal recovery` shows targets that fill their copies",
            ),
            (found, true, false) => (
                format!("{found} files would have fewer whole copies than they should"),
                "this counts files that are endangered already",
            ),
            (_, false, true) => (
                format!("{lost} files are lost, {unavailable} are unavailable"),
                "unavailable files return with the servers of their targets; lost files have to be brought from elsewhere",
            ),
            (_, false, false) => (
                format!("{lost} files would be lost, {unavailable} would be unavailable"),
                "this counts files that are lost already; `zonal layout set --copies 2` gives new files copies",
            ),
        };
        Err(Failure::new(FILES_FOUND, text).hint(hint).into())
    }
}
