//! The guard process of a mount: aborts the FUSE connection if the mount's process is killed and
//! cannot end.
//!
//! The kernel ends a FUSE connection when its last descriptor is closed. That fails in this
//! deadlock:
//!
//! 1. A thread of the mount asks the kernel to drop pages. It sleeps in that call, on the FUSE
//!    descriptor, until nobody has the pages locked; no signal wakes it.
//! 2. The process that has them locked waits for a reply of the mount. While the mount lives, it
//!    replies.
//! 3. The mount is killed. Now neither process ends, nor does any other call on the mount.
//!
//! So a child process waits for the mount's death and, if the mount has not ended soon after,
//! aborts the connection. It does nothing else, and ends with the mount.

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

/// The hidden subcommand that runs the guard.
pub const COMMAND: &str = "mount-guard";
/// Time for a killed process to end by itself.
const ENDS: Duration = Duration::from_secs(1);
/// Interval of checks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Starts the guard. The calling thread must live as long as the mount's process: its end would
/// count as the mount's death.
pub fn start(path: &Path) -> std::io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(std::process::id().to_string());
    command.arg(path);
    // Opened here, before the mount is announced: its number cannot have been reused yet.
    match Abort::of(path) {
        Ok(abort) => command.stdin(abort.into_file()),
        Err(_denied) => command.stdin(Stdio::null()),
    };
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // Never waited for, since it ends after this process.
    command.current_dir("/").spawn().map(drop)
}

/// Runs the guard for the mount of process `mount` at `path`.
pub fn run(mount: u32, path: &Path) -> anyhow::Result<()> {
    let pid = i32::try_from(mount).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new(FAILED, format!("no process {mount}")))?;
    // Signals to the mount's process group are for the mount, not the guard.
    let all = [SIGUSR1, SIGTERM, SIGINT, SIGHUP, SIGQUIT];
    let mut signals = Signals::new(all).context("signals")?;
    set_parent_process_death_signal(Some(Signal::USR1)).context("parent's death")?;
    let given = std::io::stdin().as_fd().try_clone_to_owned();
    let abort = given.ok().and_then(|given| Abort::from_file(given.into()));
    let device = device(path);
    // Opened before the check that the parent lives, so it is the parent's even if ids are reused.
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

/// Aborts the connection by the kernel's control file, which belongs to the mounting user; if it is
/// missing, as root.
fn end(device: &str, path: &Path) -> anyhow::Result<()> {
    let (_major, minor) = device.split_once(':').unwrap_or_default();
    let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
    if std::fs::write(abort, "1").is_ok() {
        return Ok(());
    }
    zonal_fuse::end_connection(path).context("end the connection")
}

/// Whether the process and all its threads have ended, perhaps except for a zombie.
fn has_ended(process: u32, opened: Option<&OwnedFd>) -> bool {
    if let Some(opened) = opened {
        let mut list = [PollFd::new(opened, PollFlags::IN)];
        return matches!(poll(&mut list, Some(&Timespec::default())), Ok(1..));
    }
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    threads.map_or(true, |threads| threads.count() <= 1)
}

/// Device number of the last mount at exactly `path`, from the kernel's mount table.
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
    fn the_guard_finds_devices_and_sees_processes_end() {
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
