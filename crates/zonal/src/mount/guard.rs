//! A process beside a mount, which ends the kernel's side of it where the mount's process is killed
//! and cannot end.
//!
//! The kernel ends a FUSE connection when its last descriptor is closed. A thread of the mount that
//! has the kernel drop pages sleeps inside of a call on that descriptor until nobody has them
//! locked, and no signal wakes it; who has them locked may wait for an answer of that very process.
//! While it lives it answers. If it is killed then, neither of them ends, nor does any other call
//! on the mount. So a child of it waits for its death, and where that is not over soon, aborts the
//! connection. It does nothing else, and ends with the mount.

use crate::exit::{FAILED, Failure};
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zonal_fuse::Abort;

/// The hidden subcommand that is this process.
pub const COMMAND: &str = "mount-guard";
/// What is killed has ended after this time, if it can.
const ENDS: Duration = Duration::from_secs(1);
/// From one look at it to the next.
const LOOK: Duration = Duration::from_millis(20);

/// Starts the process, from the thread with which the mount's process lives.
pub fn start(path: &Path) -> std::io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(std::process::id().to_string());
    command.arg(path);
    // Here, not there: nobody has heard of the mount yet, so its number is its own.
    match Abort::of(path) {
        Ok(abort) => command.stdin(abort.into_file()),
        Err(_denied) => command.stdin(Stdio::null()),
    };
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // Nobody waits for it: it ends after us.
    command.current_dir("/").spawn().map(drop)
}

/// Is that process, for the mount of process `mount` at `path`.
pub fn run(mount: u32, path: &Path) -> anyhow::Result<()> {
    let pid = i32::try_from(mount).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new(FAILED, format!("no process {mount}")))?;
    // Signals for the mount's group are for the mount.
    let all = [SIGUSR1, SIGTERM, SIGINT, SIGHUP, SIGQUIT];
    let mut signals = Signals::new(all).context("signals")?;
    set_parent_process_death_signal(Some(Signal::USR1)).context("parent's death")?;
    let given = std::io::stdin().as_fd().try_clone_to_owned();
    let abort = given.ok().and_then(|given| Abort::from_file(given.into()));
    let device = device(path);
    // Opened before it is known to live: of nobody else, however numbers are used again.
    let opened = pidfd_open(pid, PidfdFlags::empty()).ok();
    if getppid() == Some(pid) {
        signals.forever().find(|signal| *signal == SIGUSR1);
    }
    let begun = Instant::now();
    while begun.elapsed() < ENDS {
        if has_ended(mount, opened.as_ref()) {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    if let Some(abort) = abort {
        return abort.end().context("end the connection");
    }
    match device {
        Some(device) if self::device(path).as_ref() == Some(&device) => end(&device, path),
        _ => Ok(()),
    }
}

/// Ends the connection: by the kernel's file for that, which belongs to whoever mounted; where that
/// is not there, as root.
fn end(device: &str, path: &Path) -> anyhow::Result<()> {
    let (_major, minor) = device.split_once(':').unwrap_or_default();
    let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
    if std::fs::write(abort, "1").is_ok() {
        return Ok(());
    }
    zonal_fuse::end_connection(path).context("end the connection")
}

/// Whether nothing but the entry of a dead process is left, none of its threads.
fn has_ended(process: u32, opened: Option<&OwnedFd>) -> bool {
    if let Some(opened) = opened {
        let mut list = [PollFd::new(opened, PollFlags::IN)];
        return matches!(poll(&mut list, Some(&Timespec::default())), Ok(1..));
    }
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    threads.map_or(true, |threads| threads.count() <= 1)
}

/// The number of the file system mounted last at exactly `path`, as the kernel's table has it.
fn device(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let wanted = crate::cell::mount_table::escape(path);
    let mut of_path = table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (device, point) = (fields.nth(2)?, fields.nth(1)?);
        (point == wanted).then(|| device.to_owned())
    });
    of_path.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_has_a_number_and_a_process_ends() {
        assert!(device(Path::new("/proc")).is_some());
        assert_eq!(device(Path::new("/proc/self")), None);
        assert!(has_ended(u32::MAX, None));
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv().is_err());
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        for opened in [None, Some(&own)] {
            assert!(!has_ended(std::process::id(), opened), "it has two threads");
        }
        drop(end);
        assert!(other.join().is_ok());
    }
}
