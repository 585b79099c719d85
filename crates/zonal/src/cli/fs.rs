//! `zonal fs`: files of a cell without a mount, for machines that have no FUSE.

pub(super) mod cat_stat;
pub(super) mod connection;
pub(super) mod copy_work;
mod download;
mod du;
mod find;
mod get;
pub(super) mod listing;
mod local;
mod mkdir_mv_rm;
mod put;
mod upload;

/// Work with files of a cell without mounting it
///
/// PATH is a path in the cell, starting at its root. Programs on mounts see the same files at once,
/// under the same rules. Requests are made as the user who runs the command. Names that are not
/// UTF-8 are shown with `\xNN` for each invalid byte. --json prints one object a line.
#[derive(Debug, clap::Subcommand)]
pub enum Fs {
    Ls(listing::Ls),
    Cat(cat_stat::Cat),
    Put(put::Put),
    Get(get::Get),
    Mkdir(mkdir_mv_rm::MkdirPaths),
    Mv(mkdir_mv_rm::Mv),
    Rm(mkdir_mv_rm::Rm),
    Stat(cat_stat::Stat),
    Du(du::Du),
    Find(find::Find),
}

impl Fs {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Ls(command) => command.run(),
            Self::Cat(command) => command.run(),
            Self::Put(command) => command.run(),
            Self::Get(command) => command.run(),
            Self::Mkdir(command) => command.run(),
            Self::Mv(command) => command.run(),
            Self::Rm(command) => command.run(),
            Self::Stat(command) => command.run(),
            Self::Du(command) => command.run(),
            Self::Find(command) => command.run(),
        }
    }
}
