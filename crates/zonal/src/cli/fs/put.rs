//! `zonal fs put`: copies from this machine into the cell.

use super::connection::{AccessArgs, CellConnection, about};
use super::copy_work::{CopyArgs, CopyWork, run};
use super::listing::{join, last_name};
use super::mkdir_mv_rm::into_directory;
use super::upload::{Content, Upload, UploadJob};
use crate::console;
use crate::exit::Failure;
use std::path::{Path, PathBuf};

/// Copy files from this machine into the cell
///
/// Keeps modes, times, holes, extended attributes, symbolic links, and hard links among the copied
/// files; owners only if root copies. Existing files are replaced. Each file is written beside its
/// name as `.NAME.zonal-put.RANDOM`, made durable, and renamed: no name ever shows half a file.
#[derive(Debug, clap::Args)]
pub struct Put {
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    copying: CopyArgs,
    /// Files of this machine (- is standard input); the last path is a new name in the cell, or a
    /// directory there
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... PATH")]
    paths: Vec<PathBuf>,
}

impl Put {
    pub fn run(self) -> anyhow::Result<()> {
        let work = CopyWork::begin()?;
        let cell = self.access.connect("put")?;
        let outcome = self.copy(&cell, &work);
        // Makes names, modes and times durable.
        let synced = cell.native.sync_all();
        let outcome = outcome.and(synced.map_err(|error| about(error, "sync", Path::new("/"))));
        let finished = work.finish(self.copying.json);
        cell.end(finished.and(outcome))
    }

    fn copy(&self, cell: &CellConnection, work: &CopyWork) -> anyhow::Result<()> {
        let Some((to, sources)) = self.paths.split_last() else {
            return Ok(());
        };
        let into = into_directory(cell, to, sources.len())?;
        let putting = Upload::new(cell, work, self.copying.recursive);
        let place = |from: &Path| match (into, last_name(from)) {
            (true, Some(name)) => join(to, name),
            // The entries of the directory are copied, not the directory.
            _ => to.clone(),
        };
        if sources == [PathBuf::from("-")] {
            if into {
                let text = format!("{} is a directory", console::path(to));
                return Err(Failure::new(2, text).hint("name the new file").into());
            }
            putting.sender.file(&Content::Stdin, to)?;
            work.file_done();
            return Ok(());
        }
        let sender = &putting.sender;
        let feed = |feed: &dyn Fn(UploadJob)| {
            for from in sources {
                putting.walk(from, &place(from), feed);
            }
        };
        run(work, self.copying.jobs, feed, |job: UploadJob| {
            sender.file(&Content::Of(&job.from, &job.metadata), &job.to)
        });
        putting.finish();
        Ok(())
    }
}
