//! The command line: one file for each subcommand; shared arguments are in `output_args`.

mod bench;
mod completions;
mod config;
mod down;
mod drain;
mod dump;
mod edit_args;
mod events;
mod files;
mod fs;
mod fsck;
mod jobs;
mod key;
mod key_revoke;
mod layout;
mod layout_apply;
mod layout_restripe;
mod layout_set;
mod locate;
mod man;
mod meta;
mod mkdir;
mod mount;
mod mount_guard;
mod node;
mod node_join;
mod output_args;
mod place;
mod rank;
mod rebalance;
mod recovery;
mod reference;
mod run;
mod scrub;
mod server;
mod session;
mod shard;
mod shard_add;
mod shard_move;
mod shard_recover;
mod shard_replace;
mod sim;
mod simulate;
mod status;
mod target;
mod target_remove;
mod testbed;
mod token;
mod top;
mod traffic_sum;
mod umount;
mod up;
mod zone;
mod zone_fail_over;
mod zone_map;

use clap::{Parser, Subcommand};

/// A zone-aware parallel file system: servers, mounts and tools in one program.
#[derive(Debug, Parser)]
#[command(
    name = "zonal",
    version,
    propagate_version = false,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Up),
    Down(down::Down),
    Status(status::Status),
    Top(top::Top),
    Events(events::Events),
    Recovery(recovery::Recovery),
    Files(files::Files),
    #[command(subcommand)]
    Node(node::NodeCommand),
    #[command(subcommand)]
    Token(token::TokenCommand),
    #[command(subcommand)]
    Zone(zone::ZoneCommand),
    #[command(subcommand)]
    Target(target::TargetCommand),
    Rebalance(rebalance::Rebalance),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Mkdir(mkdir::MkdirHomed),
    #[command(subcommand)]
    Layout(layout::LayoutCommand),
    Locate(locate::Locate),
    Place(place::PlaceJob),
    Jobs(jobs::Jobs),
    Run(run::RunJob),
    Rsh(run::RemoteShell),
    #[command(subcommand)]
    Meta(meta::Meta),
    #[command(subcommand)]
    ZoneMap(zone_map::ZoneMapCommand),
    #[command(subcommand)]
    Fs(fs::Fs),
    Fsck(fsck::Fsck),
    #[command(subcommand)]
    Scrub(scrub::ScrubCommand),
    #[command(subcommand)]
    Session(session::SessionCommand),
    #[command(subcommand)]
    Shard(shard::ShardCommand),
    #[command(subcommand)]
    Key(key::Key),
    Server(server::Server),
    Sim(sim::Sim),
    Simulate(simulate::Simulate),
    #[command(subcommand)]
    Testbed(testbed::TestbedCommand),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    #[command(subcommand)]
    Bench(bench::Bench),
    Dump(dump::Dump),
    Completions(completions::Completions),
    Man(man::Man),
    #[command(hide = true)]
    RankGuard(rank::RankGuard),
    #[command(hide = true)]
    RankProcess(rank::RankProcess),
    #[command(hide = true)]
    MountGuard(mount_guard::MountGuard),
    #[command(hide = true)]
    CliReference(reference::CliReference),
}

impl Cli {
    /// The exit code of failures without one of their own, and of failed standard output.
    pub fn failure_code(&self) -> u8 {
        match self.command {
            // Exit code 1 of fsck means that all findings were repaired.
            Command::Fsck(_) => crate::exit::NOT_CHECKED,
            _ => crate::exit::FAILED,
        }
    }

    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Up(command) => command.run(),
            Command::Down(command) => command.run(),
            Command::Status(command) => command.run(),
            Command::Top(command) => command.run(),
            Command::Events(command) => command.run(),
            Command::Recovery(command) => command.run(),
            Command::Files(command) => command.run(),
            Command::Node(command) => command.run(),
            Command::Token(command) => command.run(),
            Command::Zone(command) => command.run(),
            Command::Target(command) => command.run(),
            Command::Rebalance(command) => command.run(),
            Command::Mount(command) => command.run(),
            Command::Umount(command) => command.run(),
            Command::Mkdir(command) => command.run(),
            Command::Layout(command) => command.run(),
            Command::Locate(command) => command.run(),
            Command::Place(command) => command.run(),
            Command::Jobs(command) => command.run(),
            Command::Run(command) => command.run(),
            Command::Rsh(command) => command.run(),
            Command::Meta(command) => command.run(),
            Command::ZoneMap(command) => command.run(),
            Command::Fs(command) => command.run(),
            Command::Fsck(command) => command.run(),
            Command::Scrub(command) => command.run(),
            Command::Session(command) => command.run(),
            Command::Shard(command) => command.run(),
            Command::Key(command) => command.run(),
            Command::Server(command) => command.run(),
            Command::Sim(command) => command.run(),
            Command::Simulate(command) => command.run(),
            Command::Testbed(command) => command.run(),
            Command::Config(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Dump(command) => command.run(),
            Command::Completions(command) => command.run(),
            Command::Man(command) => command.run(),
            Command::RankGuard(command) => command.run(),
            Command::RankProcess(command) => command.run(),
            Command::MountGuard(command) => command.run(),
            Command::CliReference(command) => command.run(),
        }
    }
}
