//! A process of this program, held by a pidfd, so that every check is about the process that gets
//! the signal.
//!
//! Process ids are reused, and the record of one may be old or forged. So a process is handled in
//! this order: open its pidfd, read its properties from /proc/PID, check that it still lives.
//! Everything read was then its own. A process is ours if all of this holds:
//!
//! 1. It runs as the expected user and has no other user's rights: real, effective and saved ids
//!    agree.
//! 2. It runs this program: the same file, or a file with this program's name or `zonal`. The name
//!    counts because an upgrade replaces the file and several builds may be installed. The kernel
//!    provides the path, not the process.
//! 3. Its command line fits its purpose: see [`super::processes`].

use super::processes::arguments_soon;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// File name of the installed program.
const PROGRAM: &[u8] = b"zonal";
/// The kernel's suffix to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// A process of this program that cannot be confused with a later one of the same id.
#[derive(Debug)]
pub struct ProcessHandle {
    pid: Pid,
    fd: OwnedFd,
}

impl ProcessHandle {
    /// Opens the process `pid` if it lives, is ours, runs as the user `uid`, and has a command line
    /// that satisfies `is_meant`.
    pub fn of(pid: Pid, uid: u32, is_meant: impl FnOnce(&[OsString]) -> bool) -> Option<Self> {
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let held = Self { pid, fd };
        // A kernel thread runs no program and never has a command line.
        fs::read_link(program(pid)).ok()?;
        // A process has a command line from its exec on; from then on its program is known too.
        let arguments = arguments_soon(pid);
        let is_ours = runs_as(pid, uid) && runs_this_program(pid) && is_meant(&arguments);
        (is_ours && held.lives()).then_some(held)
    }

    /// Like [`Self::of`] for a process of this user.
    pub fn own(pid: Pid, is_meant: impl FnOnce(&[OsString]) -> bool) -> Option<Self> {
        Self::of(pid, rustix::process::geteuid().as_raw(), is_meant)
    }

    /// Opens the process `pid` of any user and program if `is_meant`, which looks at /proc/PID.
    pub fn any(pid: Pid, is_meant: impl FnOnce(Pid) -> bool) -> Option<Self> {
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let held = Self { pid, fd };
        (is_meant(pid) && held.lives()).then_some(held)
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether the process runs this program or another build of it.
    pub fn runs_this_program(&self) -> bool {
        runs_this_program(self.pid)
    }

    /// Whether the process has not ended yet.
    pub fn lives(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Waits for the end of the process for at most `time`; returns whether it has ended.
    pub fn ends_within(&self, time: Duration) -> bool {
        let mut list = [PollFd::new(&self.fd, PollFlags::IN)];
        let time = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        // A wait that a signal interrupts counts as not ended.
        matches!(poll(&mut list, Some(&time)), Ok(1..))
    }

    /// Sends a signal; no error if the process ends first.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.fd, signal);
    }
}

fn program(pid: Pid) -> String {
    format!("/proc/{}/exe", pid.as_raw_nonzero())
}

/// Whether all user ids of the process are `uid`.
fn runs_as(pid: Pid, uid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    let status = status.unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let users: Vec<&str> = users.unwrap_or_default().split_whitespace().collect();
    let uid = uid.to_string();
    !users.is_empty() && users.iter().all(|user| *user == uid)
}

/// Whether the process runs this program or another build of it.
fn runs_this_program(pid: Pid) -> bool {
    let program = program(pid);
    let file = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    if let (Ok(its), Ok(own)) = (file(&program), file("/proc/self/exe"))
        && its == own
    {
        return true;
    }
    let Ok(its) = fs::read_link(&program) else {
        return false;
    };
    let own = fs::read_link("/proc/self/exe").unwrap_or_default();
    let its = name(&its);
    !its.is_empty() && (its == PROGRAM || its == name(&own))
}

/// The file name of a program, without the suffix of a deleted file.
fn name(path: &Path) -> &[u8] {
    let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
    name.strip_suffix(DELETED).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Sleeps if its arguments ask for it: run by other tests as a process of this program.
    #[test]
    #[ignore = "it is run by other tests"]
    fn sleeps() {
        if std::env::args().any(|argument| argument == "sleep-long") {
            std::thread::sleep(Duration::from_secs(600));
        }
    }

    /// Starts a process of this program with arguments.
    fn start(arguments: &[&str]) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "cell::process_handle::tests::sleeps",
            "--exact",
            "--ignored",
            "sleep-long",
        ]);
        command.args(arguments).stdout(std::process::Stdio::null());
        command.spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_handle_accepts_only_our_processes_and_signals_them() {
        let own = rustix::process::geteuid().as_raw();
        let mut child = start(&["/some/path"]);
        let pid = Pid::from_child(&child);
        let has = |argument: &'static str| {
            move |arguments: &[OsString]| arguments.iter().any(|part| part == argument)
        };
        assert!(ProcessHandle::own(pid, has("/some/other")).is_none());
        assert!(ProcessHandle::of(pid, own + 1, has("/some/path")).is_none());
        let held = ProcessHandle::own(pid, has("/some/path")).unwrap();
        assert!(held.lives() && !held.ends_within(Duration::from_millis(1)));
        held.signal(Signal::TERM);
        assert!(held.ends_within(Duration::from_secs(20)));
        child.wait().unwrap();
        held.signal(Signal::TERM);
        assert!(ProcessHandle::own(pid, |_| true).is_none());
        let other = Command::new("sleep").arg("600").spawn().unwrap();
        assert!(ProcessHandle::own(Pid::from_child(&other), has("600")).is_none());
        end(other);
    }

    #[test]
    fn a_process_can_be_opened_right_after_its_start() {
        for _ in 0..100 {
            let child = start(&["/some/path"]);
            let held = ProcessHandle::own(Pid::from_child(&child), |arguments| {
                arguments.iter().any(|part| part == "/some/path")
            });
            end(child);
            assert!(held.is_some());
        }
    }

    #[test]
    fn a_deleted_program_file_is_recognized_by_name() {
        assert_eq!(name(Path::new("/usr/bin/zonal (deleted)")), PROGRAM);
        assert_eq!(name(Path::new("/usr/bin/zonal")), PROGRAM);
        assert_eq!(name(Path::new("/usr/bin/zonal x")), b"zonal x");
        assert_eq!(name(Path::new("/")), b"");
    }
}
