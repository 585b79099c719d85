//! The first process of a rank, before the command: it becomes the user and then the command.
//!
//! *Invariants*:
//! 1. Nothing that the asker chose has an effect before the user was changed: neither environment
//!    nor folder.
//! 2. The order is groups, group, user; afterwards no right to change them back is left.
//! 3. The process is alone in a new session, and dies with its guard.
//! 4. Nothing of the server's process reaches the command: see `inherited_state`.

use super::inherited_state::drop_inherited_state;
use super::rank_channel::{RankCommand, StandardStreams, own_channel, receive, send_status};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, Signal, Uid, set_parent_process_death_signal, setsid, umask};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use zonal_types::Credentials;
use zonal_wire::RankStatus;

/// The hidden subcommand that runs this.
pub const RANK_PROCESS: &str = "rank-process";

/// Exit codes of a shell: a command that cannot be run, and one that does not exist.
const CANNOT: u8 = 126;
const MISSING: u8 = 127;

fn not_started(doing: &str, error: &io::Error) -> RankStatus {
    let code = match error.kind() {
        ErrorKind::NotFound if doing.is_empty() => MISSING,
        _ => CANNOT,
    };
    let detail = match doing {
        "" => error.to_string(),
        doing => format!("{doing}: {error}"),
    };
    RankStatus::NotStarted { code, detail }
}

/// Becomes a user. The process has one thread, so what changes a thread changes the process.
fn become_user(user: &Credentials) -> Result<(), Errno> {
    let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    let gid = Gid::from_raw(user.gid);
    set_thread_res_gid(gid, gid, gid)?;
    let uid = Uid::from_raw(user.uid);
    set_thread_res_uid(uid, uid, uid)
}

/// Becomes the command; returns only where that failed.
fn become_command(
    channel: &UnixStream,
    rank: &RankCommand,
    [input, output, error]: StandardStreams,
) -> RankStatus {
    let command = &rank.command;
    let prepared = || -> Result<(), (&str, io::Error)> {
        setsid().map_err(|errno| ("new session", errno.into()))?;
        drop_inherited_state().map_err(|error| ("server's limits", error))?;
        umask(Mode::from_raw_mode(command.umask & 0o777));
        if rank.changes_user {
            become_user(&command.user).map_err(|errno| ("change the user", errno.into()))?;
        }
        // Changing the user takes the signal back, so it is set afterwards.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|errno| ("guard's death", errno.into()))?;
        if rank.no_new_privs {
            set_no_new_privs(true).map_err(|errno| ("no new rights", errno.into()))?;
        }
        // A guard that died before the signal was set has closed its end.
        let failed = |error| ("guard", error);
        channel.set_nonblocking(true).map_err(failed)?;
        if matches!((&*channel).read(&mut [0]), Ok(0)) {
            return Err(("guard", ErrorKind::BrokenPipe.into()));
        }
        channel.set_nonblocking(false).map_err(failed)?;
        std::env::set_current_dir(OsStr::from_bytes(&command.directory.0))
            .map_err(|error| ("enter the working directory", error))
    };
    if let Err((doing, error)) = prepared() {
        return not_started(doing, &error);
    }
    let mut words = command
        .arguments
        .iter()
        .map(|word| OsStr::from_bytes(&word.0));
    let mut program = Command::new(words.next().unwrap_or_default());
    program.args(words).env_clear();
    for variable in &command.environment {
        let at = variable.0.iter().position(|byte| *byte == b'=');
        let (name, value) = variable.0.split_at(at.unwrap_or(variable.0.len()));
        let value = value.get(1..).unwrap_or_default();
        program.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    }
    let failure = program.stdin(input).stdout(output).stderr(error).exec();
    not_started("", &failure)
}

/// Runs the subcommand; returns only where the command was not started.
///
/// # Errors
/// The channel fails.
pub fn run_rank_process() -> io::Result<()> {
    let channel = own_channel()?;
    let (command, streams) = receive(&channel)?;
    let failed = become_command(&channel, &command, streams);
    send_status(&channel, &failed)
}
