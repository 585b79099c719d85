//! `zonal down`: stops what `zonal up` started.

use crate::cell::mount_records::MountRecords;
use crate::cell::processes::{self, ServerProcess};
use crate::cell::{CellFolder, CellHandle, folder};
use crate::console;
use crate::exit::{FAILED, Failure};
use std::path::PathBuf;

/// Unmount the cell's mounts on this machine and stop its servers; all stored data stays
///
/// Stops exactly the processes that `zonal up` started in this folder, even if the folder was moved
/// since. Exits with 1 if other processes still answer as servers of this cell.
#[derive(Debug, clap::Args)]
pub struct Down {
    /// Folder of the cell [default: as for `zonal up`]
    #[arg(long, visible_alias = "cell", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Down {
    pub fn run(self) -> anyhow::Result<()> {
        let folder = CellFolder::open(&folder::own_dir(self.dir.as_deref())?)?;
        let _lock = CellFolder::lock(&folder.dir)?;
        let mut unmounted = 0;
        let records = MountRecords::below(&folder);
        for record in records.list() {
            if record.is_of_another(&folder.dir) {
                console::note(format_args!(
                    "zonal: the mount at {} is of another cell's folder and stays",
                    console::path(&record.path)
                ));
                continue;
            }
            record.unmount(&records)?;
            unmounted += 1;
        }
        let nodes = folder.file.nodes.iter().map(|name| ServerProcess {
            name: name.clone(),
            config: folder.config_path(name),
        });
        let nodes: Vec<ServerProcess> = nodes.collect();
        let running: Vec<_> = nodes
            .iter()
            .filter_map(|process| Some((process.running()?, process.config.display().to_string())))
            .collect();
        processes::stop(&running)?;
        nodes.iter().for_each(ServerProcess::forget);
        console::line(format_args!(
            "unmounted {unmounted}, stopped {} of {} servers in {}",
            running.len(),
            nodes.len(),
            folder.dir.display()
        ));
        refuse_strangers(&folder)
    }
}

/// Fails if a process still answers as a node of this cell. It was not started in this folder, so
/// this command leaves it alone.
fn refuse_strangers(folder: &CellFolder) -> anyhow::Result<()> {
    let cell = CellHandle::of_folder(folder)?;
    let mut answering = Vec::new();
    for (name, nodes) in folder.servers()? {
        let mut nodes = nodes.iter();
        if let Some(node) = nodes.find(|node| cell.probe(node.advertise, node.node).is_ok()) {
            answering.push(format!("{name} at {}", node.advertise));
        }
    }
    if answering.is_empty() {
        // Removes sockets that killed servers left behind.
        zonal_net::unix_socket::forget(cell.id);
        return Ok(());
    }
    let text = format!(
        "{} of its servers still answer, by processes that were not started here: {}",
        answering.len(),
        answering.join(", ")
    );
    Err(Failure::new(FAILED, text)
        .hint("they may be of a copy of this folder, or run by `zonal server`; `ps -ef | grep 'zonal server'` shows them")
        .into())
}
