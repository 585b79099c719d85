//! `zonal mount`: options of a mount.

use crate::cell::connect::CellArgs;
use crate::cell::folder;
use crate::mount::command::{self, Options};
use std::path::PathBuf;
use zonal_server::units::{Millis, Size};

/// Mount a cell
///
/// Returns when the mount answers; it goes on in the background. With fstab and mount(8): install a link to this program
/// as /sbin/mount.zonal, then `mount -t zonal DIR|ADDRESS PATH -o zone=1`.
#[derive(Debug, clap::Args)]
pub struct Mount {
    #[command(flatten)]
    cell: CellArgs,
    /// Where
    path: PathBuf,
    /// The zone that this machine is in: new first-level directories are homed there
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    zone: u16,
    /// Mount options, comma-separated: ro, rw, suid, nosuid, dev, nodev, exec, noexec, allow_other, and the long options
    /// of this command as NAME=VALUE
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(long, short)]
    foreground: bool,
    /// Let the kernel cache no names and attributes
    #[arg(long)]
    no_cache: bool,
    /// Believe names and attributes for so long without asking, where nobody else writes what is mounted (0 s to 1 h)
    /// [default: 0 s, they are believed under leases that the cell calls back]
    #[arg(long, value_name = "TIME")]
    cache_time: Option<Millis>,
    /// Gather at most this much of writes that are not yet sent; "0 B" sends each at once [default: 64 MiB]
    #[arg(long, value_name = "SIZE")]
    write_behind: Option<Size>,
    /// How long a request waits for a server before the program gets an error, such as "10 s" (1 s to 60 s) [default:
    /// 10 s]
    #[arg(long, value_name = "TIME")]
    deadline: Option<Millis>,
    /// Where a mount in the background logs [default: below the cell's folder, else nowhere]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Threads that serve the kernel (1 to 256) [default: 16]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// Tell the starting process by standard output when the mount answers
    #[arg(long, hide = true)]
    ready_on_stdout: bool,
}

impl Mount {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = match self.cell.cell {
            Some(cell) => cell,
            None => folder::default_dir().display().to_string(),
        };
        let mut options = Options::new(cell, self.path);
        options.zone = self.zone;
        options.key_file = self.cell.key_file;
        options.foreground = self.foreground;
        options.no_cache = self.no_cache;
        options.cache_time = self.cache_time;
        options.write_behind = self.write_behind;
        options.deadline = self.deadline;
        options.log = self.log;
        options.workers = self.workers;
        options.ready_on_stdout = self.ready_on_stdout;
        for option in &self.options {
            options.apply(option)?;
        }
        command::run(&options)
    }
}
