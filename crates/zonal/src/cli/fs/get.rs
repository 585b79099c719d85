//! `zonal fs get`: copies from the cell onto this machine.

use super::connection::{AccessArgs, CellConnection, about_local};
use super::copy_work::{CopyArgs, CopyWork, run};
use super::download::{Download, DownloadJob};
use super::listing::{join, last_name};
use crate::console;
use crate::exit::Failure;
use std::path::{Path, PathBuf};

/// Copy files from the cell onto this machine
///
/// Keeps modes, times, holes, extended attributes, symbolic links, and hard links among the copied
/// files; owners only if root copies. Existing files are replaced. Each file is written beside its
/// name as `.NAME.zonal-get.RANDOM`, made durable, and renamed: no name ever shows half a file.
#[derive(Debug, clap::Args)]
pub struct Get {
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    copying: CopyArgs,
    /// Paths of the cell; the last path is a new name on this machine, or a directory there
    #[arg(required = true, num_args = 2.., value_name = "PATH... DESTINATION")]
    paths: Vec<PathBuf>,
}

impl Get {
    pub fn run(self) -> anyhow::Result<()> {
        let work = CopyWork::begin()?;
        let cell = self.access.connect("get")?;
        let outcome = self.copy(&cell, &work);
        let finished = work.finish(self.copying.json);
        cell.end(finished.and(outcome))
    }

    fn copy(&self, cell: &CellConnection, work: &CopyWork) -> anyhow::Result<()> {
        let Some((to, sources)) = self.paths.split_last() else {
            return Ok(());
        };
        let into = to.is_dir();
        if !into && sources.len() > 1 {
            let text = format!("{} is not a directory of this machine", console::path(to));
            return Err(Failure::new(2, text)
                .hint("several sources go into a directory: make it first")
                .into());
        }
        let getting = Download::new(cell, work, self.copying.recursive);
        let place = |from: &Path| match (into, last_name(from)) {
            (true, Some(name)) => join(to, name),
            // The entries of the directory are copied, not the directory.
            _ => to.clone(),
        };
        let receiver = &getting.receiver;
        let feed = |feed: &dyn Fn(DownloadJob)| {
            for from in sources {
                getting.walk(from, &place(from), feed);
            }
        };
        run(work, self.copying.jobs, feed, |job: DownloadJob| {
            receiver.file(&job)
        });
        getting.finish();
        sync(&place(sources.first().unwrap_or(to)))
    }
}

/// Makes names, modes and times durable.
fn sync(to: &Path) -> anyhow::Result<()> {
    let dir = match to.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    let synced = std::fs::File::open(dir)
        .and_then(|dir| rustix::fs::syncfs(dir).map_err(std::io::Error::from));
    synced.map_err(|error| about_local(&error, "sync", dir))
}
