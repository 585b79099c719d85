//! `zonal mount`: options of a mount.

use crate::cell::connection::CellArgs;
use crate::cell::folder;
use crate::exit::Failure;
use crate::mount::command;
use crate::mount::options::{MountSettings, transport};
use std::path::PathBuf;
use zonal_server::units::{ByteSize, Millis};
use zonal_types::limits::SECOND_COPY_MS_MAX;

/// Mount a cell
///
/// Returns when the mount answers; the mount continues in the background. For fstab and mount(8),
/// install a link to this program as /sbin/mount.zonal, then use `mount -t zonal DIR|ADDRESS PATH
/// -o zone=1`.
#[derive(Debug, clap::Args)]
pub struct Mount {
    #[command(flatten)]
    cell: CellArgs,
    /// Mount point
    path: PathBuf,
    /// The zone that this machine is in, where new first-level directories are homed [default: see
    /// below]
    ///
    /// Without --zone the mount takes the only zone. Of several it takes that of the subnet with an
    /// address of this machine, in the manager's table. Then it takes the first, if all nodes are
    /// on this machine. Otherwise it takes the zone of a node that has an address of this machine,
    /// or --zone is required.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    zone: Option<u16>,
    /// This machine's node of the cell [default: the one with a target and an address of this
    /// machine]
    ///
    /// New files of directories with the placement `node` lie on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    node: Option<u32>,
    /// Mount options, comma-separated: the words of mount(8), allow_other, noallow_other, and the
    /// long options of this command as NAME=VALUE
    ///
    /// Set by the kernel: ro, nosuid, nodev, noexec, sync, dirsync, noatime, nodiratime, lazytime,
    /// and their opposites. nosuid and nodev are the default, because a holder of the cell's key
    /// can make a set-uid program of root's. Ask for suid and dev by name; in fstab and for
    /// mount(8), which passes neither on, the words are allow_suid and allow_dev. user and users
    /// imply noexec, too. Access times follow relatime, even with strictatime; noatime and ro never
    /// update them. allow_other lets all users use the mount, subject to permissions; it is the
    /// default for mounts by root. An ordinary user's mount is theirs alone (noallow_other), unless
    /// /etc/fuse.conf has the line user_allow_other and they ask for it. Words for fstab and
    /// systemd (_netdev, nofail, noauto, x-*) are ignored; remount is refused: unmount, and mount
    /// again.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// Protection of TCP connections: tls, or plain, which is used if the server is configured so
    /// too. With plain both sides prove who they are, and then all data goes in the clear: for
    /// networks that nobody else can reach
    #[arg(long, value_name = "tls|plain", default_value = "tls", value_parser = ["tls", "plain"])]
    transport: String,
    /// Stay in the foreground
    #[arg(long, short)]
    foreground: bool,
    /// Keep the kernel from caching names and attributes
    #[arg(long)]
    no_cache: bool,
    /// Time to use cached names and attributes without asking, if nobody else writes there (0 s to
    /// 1 h) [default: 0 s: leases protect them]
    #[arg(long, value_name = "TIME")]
    cache_time: Option<Millis>,
    /// Most bytes of writes that are gathered and not yet sent; "0 B" sends each at once [default:
    /// 64 MiB]
    #[arg(long, value_name = "SIZE")]
    write_behind: Option<ByteSize>,
    /// Time that a request waits for a server before it fails, such as "10 s" (1 s to 60 s)
    /// [default: 10 s]
    #[arg(long, value_name = "TIME")]
    deadline: Option<Millis>,
    /// Wait for a server that does not answer as long as it takes, instead of an error at the
    /// deadline
    ///
    /// As a hard mount of NFS does. Killed processes end at once, and an unmount by force ends all.
    /// A process that exits with files open waits until the deadline. So does a caller in a PID
    /// namespace that the mount cannot see. Waiting requests keep the mount's workers (see
    /// --workers).
    #[arg(long)]
    wait: bool,
    /// How long a read of one copy waits before it asks a second copy, too, ms; 0: it never does (0
    /// to 500) [default: 50]
    ///
    /// The first reply counts (a hedged read). Lower: a slow disk delays fewer reads. Higher: fewer
    /// bytes are read twice. A copy without a reply for 500 ms is passed over in any case.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(..=SECOND_COPY_MS_MAX)
    )]
    second_copy_ms: Option<u64>,
    /// Log file of a mount in the background [default: below the cell's folder]
    ///
    /// For a cell named by an address the default is below /var/log/zonal for root, otherwise in
    /// $XDG_STATE_HOME/zonal or ~/.local/state/zonal.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Threads that serve the kernel (1 to 256) [default: 128]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// Source shown in the mount table
    #[arg(long, hide = true)]
    source: Option<String>,
    /// Report to the starting process on standard output when the mount answers
    #[arg(long, hide = true)]
    ready_on_stdout: bool,
}

impl Mount {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = match self.cell.named() {
            Some(cell) => cell.to_owned(),
            None => folder::default_dir().display().to_string(),
        };
        let mut options = MountSettings::new(cell, self.path);
        options.zone = self.zone;
        options.node = self.node;
        options.source = self.source;
        options.key_file = self.cell.key_file;
        options.transport = transport(&self.transport).unwrap_or_default();
        options.foreground = self.foreground;
        options.no_cache = self.no_cache;
        options.cache_time = self.cache_time;
        options.write_behind = self.write_behind;
        options.deadline = self.deadline;
        options.wait = self.wait;
        options.second_copy_ms = self.second_copy_ms;
        options.log = self.log;
        options.workers = self.workers;
        options.ready_on_stdout = self.ready_on_stdout;
        for option in &self.options {
            options.apply(option).map_err(Failure::from)?;
        }
        command::run(&options)
    }
}
