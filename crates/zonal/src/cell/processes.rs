//! Processes that `zonal up` started, found by their pid file and command line.
//! [`super::process_handle`] lists the other conditions.

use super::folder;
use super::process_handle::ProcessHandle;
use crate::exit::{FAILED, Failure, IN_USE, is_full};
use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use zonal_disk::trusted_paths;

/// Time for a process to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for a killed process to end.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Time for a live process to get a command line at its exec; a kernel thread never gets one.
const EXEC_PATIENCE: Duration = Duration::from_secs(1);

/// Bytes at the end of a log that are searched for its last lines, and lines that are shown.
const TAIL_BYTES: u64 = 64 << 10;
const TAIL_LINES: usize = 8;

/// The server process of one node.
#[derive(Debug)]
pub struct ServerProcess {
    /// Name of the node.
    pub name: String,
    /// Config file of the node.
    pub config: PathBuf,
}

const LOG: &str = "log";
const PID: &str = "pid";
/// Name of the pid file while no process runs. The file keeps its block, so that the next start
/// needs no room on a full disk.
const NO_PID: &str = "pid.none";

fn pid_file(config: &Path) -> PathBuf {
    config.with_file_name(PID)
}

/// Writes the pid file, in the block of the previous one if there was one.
fn write_pid_file(folder: &trusted_paths::Folder, pid: u32) -> anyhow::Result<()> {
    // Constant length, so that the block is overwritten in place.
    let text = format!("{pid:<10}\n");
    if matches!(folder.file(PID), Ok(Some(_))) {
        // A pid file that cannot be renamed is replaced below.
        let _ = folder.rename(PID, NO_PID);
    }
    if folder.overwrite(NO_PID, text.as_bytes()).is_ok() && folder.rename(NO_PID, PID).is_ok() {
        return Ok(());
    }
    // No file may remain that names an earlier process.
    let _ = folder.unlink(NO_PID);
    let noted = folder.replace(PID, text.as_bytes(), 0o644);
    noted.with_context(|| folder.path().join(PID).display().to_string())
}

/// Log file of a node.
pub fn log_file(config: &Path) -> PathBuf {
    config.with_file_name(LOG)
}

/// The command line of the process `pid`; empty if there is none, or only a zombie.
pub fn arguments(pid: Pid) -> Vec<OsString> {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    if line.is_empty() {
        return Vec::new();
    }
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let parts = line.split(|byte| *byte == 0);
    parts.map(|part| OsStr::from_bytes(part).into()).collect()
}

/// The command line of a process that may just have started: the kernel shows it a moment after the
/// exec.
pub fn arguments_soon(pid: Pid) -> Vec<OsString> {
    let deadline = Instant::now() + EXEC_PATIENCE;
    loop {
        let found = arguments(pid);
        let lives = matches!(started(pid), StartTime::At(_));
        if !found.is_empty() || !lives || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Start time of a process, in clock ticks since boot; tells it from others with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartTime {
    /// The process lives and started at this time.
    At(u64),
    /// There is no process, or only a zombie.
    Gone,
    /// The process cannot be seen; perhaps it is hidden from this user.
    Hidden,
}

/// The start time of the process `pid`.
pub fn started(pid: Pid) -> StartTime {
    let Ok(text) = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) else {
        return match rustix::process::test_kill_process(pid) {
            Err(rustix::io::Errno::SRCH) => StartTime::Gone,
            _ => StartTime::Hidden,
        };
    };
    started_in(&text).unwrap_or(StartTime::Hidden)
}

/// Parses a line of /proc/PID/stat. The process's name, in parentheses, may hold spaces and
/// parentheses.
fn started_in(stat: &str) -> Option<StartTime> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return Some(StartTime::Gone);
    }
    // Field 22; the state is field 3.
    fields.nth(18)?.parse().ok().map(StartTime::At)
}

/// Whether the process `pid` has a file below `folder` open. This finds our server even if the
/// folder was moved since its start.
fn holds(pid: Pid, folder: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())) else {
        return false;
    };
    let mut files = files.flatten();
    files.any(|file| fs::read_link(file.path()).is_ok_and(|path| path.starts_with(folder)))
}

/// The config on the command line of a server.
fn config_in(arguments: &[OsString]) -> Option<&Path> {
    let mut parts = arguments.iter();
    parts.find(|part| *part == "--config")?;
    parts.next().map(Path::new)
}

/// Whether `pid`, with this command line, serves the node with this config, which may have been
/// moved since its start.
fn serves(pid: Pid, arguments: &[OsString], config: &Path) -> bool {
    let is_server = arguments.get(1).is_some_and(|word| word == "server");
    let has = || arguments.iter().any(|part| Path::new(part) == config);
    let moved = || {
        config_in(arguments).is_some_and(|old| old.file_name() == config.file_name())
            && config.parent().is_some_and(|folder| holds(pid, folder))
    };
    is_server && (has() || moved())
}

/// Options of `zonal mount` that take a value.
const WITH_VALUE: &[&str] = &[
    "--cell",
    "--key-file",
    "--zone",
    "--node",
    "-o",
    "--transport",
    "--cache-time",
    "--write-behind",
    "--deadline",
    "--second-copy-ms",
    "--log",
    "--workers",
    "--source",
];

/// The positional arguments on a command line of `zonal mount`.
fn positional(arguments: &[OsString]) -> impl Iterator<Item = &OsString> {
    let mut is_value = false;
    let mut is_behind = false;
    arguments.iter().filter(move |argument| {
        if std::mem::take(&mut is_value) {
            return false;
        }
        if is_behind {
            return true;
        }
        is_behind = *argument == "--";
        is_value = WITH_VALUE.iter().any(|option| *argument == option);
        !argument.as_bytes().starts_with(b"-")
    })
}

/// Whether `pid`, with this command line, is the process of a mount at `path`: in the foreground,
/// as `zonal mount` starts it too.
pub fn mounts(pid: Pid, arguments: &[OsString], path: &Path) -> bool {
    let has = |wanted: &str| arguments.iter().skip(2).any(|argument| argument == wanted);
    let is_mount = arguments.get(1).is_some_and(|word| word == "mount");
    if !is_mount || !(has("--foreground") || has("-f")) {
        return false;
    }
    // Positional arguments only: the cell, say, is an option's value and no mount point.
    let named: Vec<&OsString> = positional(arguments.get(2..).unwrap_or_default()).collect();
    if named.iter().any(|argument| Path::new(argument) == path) {
        return true;
    }
    // A mount started by hand may name a path relative to its working directory.
    fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).is_ok_and(|cwd| {
        let seen = |argument: &OsString| {
            // Without a trailing slash, which would make the kernel ask the mount.
            let path = cwd.join(argument).components().collect::<PathBuf>();
            folder::absolute(&path).ok()
        };
        let mut named = named.iter().copied().filter_map(seen);
        named.any(|named| named == path)
    })
}

/// All processes that this user may see.
pub fn all() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    })
}

/// Reads the pid in a file.
pub fn read_pid(path: &Path) -> Option<Pid> {
    // Without O_NONBLOCK, opening a pipe would wait.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    Pid::from_raw(text.trim().parse().ok()?)
}

/// The last lines of a log after its first `from` bytes.
pub fn tail(log: &Path, from: u64) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes).map(|_| bytes)
    };
    // A log that cannot be read has no lines.
    let bytes = read().unwrap_or_else(|_error: std::io::Error| Vec::new());
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(TAIL_LINES)..].join("\n  ")
}

impl ServerProcess {
    /// The running process, if there is one.
    pub fn running(&self) -> Option<ProcessHandle> {
        let own =
            |pid: Pid| ProcessHandle::own(pid, |arguments| serves(pid, arguments, &self.config));
        let is_there = |name| fs::symlink_metadata(self.config.with_file_name(name)).is_ok();
        if is_there(PID) || is_there(NO_PID) {
            return own(read_pid(&pid_file(&self.config))?);
        }
        // Without a pid file: the process may have been started on a full disk.
        all()
            .filter(|pid| serves(*pid, &arguments(*pid), &self.config))
            .find_map(own)
    }

    /// The config's path when the process started, if the config was moved since.
    pub fn moved_from(&self) -> Option<PathBuf> {
        let arguments = arguments(self.running()?.pid());
        let config = config_in(&arguments);
        config.filter(|old| *old != self.config).map(PathBuf::from)
    }

    /// Starts the process in a session of its own and appends its output to the node's log. Returns
    /// the process and the log's length before it.
    pub fn start(&self, roles: &str) -> anyhow::Result<(Child, u64)> {
        let folder = self.config.parent().context("a config without a folder")?;
        let folder = trusted_paths::open(folder)?;
        let log = match folder.append(LOG).map_err(anyhow::Error::from) {
            Err(error) if is_full(&error) => {
                self.tell(&error, "it starts without a log");
                File::options().write(true).open("/dev/null")?
            }
            log => log?,
        };
        let log_from = log.metadata().map_or(0, |log| log.len());
        let mut child = Command::new(std::env::current_exe().context("own executable")?)
            .args(["server", "--config"])
            .arg(&self.config)
            .args(["--roles", roles, "--new-session"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("log")?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", self.name))?;
        match write_pid_file(&folder, child.id()) {
            Ok(()) => {}
            // Someone who frees space may need the server; `zonal down` finds it by its command
            // line.
            Err(error) if is_full(&error) => self.tell(&error, "it runs without its pid file"),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        }
        Ok((child, log_from))
    }

    fn tell(&self, error: &anyhow::Error, what: &str) {
        crate::console::note(format_args!("zonal: {}: {what}: {error:#}", self.name));
    }

    /// Marks the pid file as that of no process.
    pub fn forget(&self) {
        let file = pid_file(&self.config);
        // The pid file may never have been written.
        let _ = fs::rename(&file, file.with_file_name(NO_PID));
    }
}

/// The error for a server that ended right after its start, with the end of its log after the first
/// `log_from` bytes.
pub fn start_failure(
    name: &str,
    config: &Path,
    status: ExitStatus,
    log_from: u64,
) -> anyhow::Error {
    let log = log_file(config);
    let code = match status.code() {
        Some(6) => IN_USE,
        Some(code) => u8::try_from(code).unwrap_or(FAILED).max(1),
        None => FAILED,
    };
    Failure::new(
        code,
        format!(
            "{name} ended at once ({status}); the end of its log:\n  {}",
            tail(&log, log_from)
        ),
    )
    .hint(format!("all of it is in {}", log.display()))
    .into()
}

/// Ends processes, each with a name for messages: sends SIGTERM to all, waits, kills those left.
pub fn stop(processes: &[(ProcessHandle, String)]) -> anyhow::Result<()> {
    for (held, _) in processes {
        held.signal(Signal::TERM);
    }
    let deadline = Instant::now() + PATIENCE;
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut stubborn: Vec<&(ProcessHandle, String)> = processes.iter().collect();
    stubborn.retain(|(held, _)| !held.ends_within(left()));
    for (held, name) in &stubborn {
        crate::console::note(format_args!("{name} does not end; killing it"));
        held.signal(Signal::KILL);
    }
    let deadline = Instant::now() + KILL_PATIENCE;
    let left = || deadline.saturating_duration_since(Instant::now());
    if stubborn.iter().any(|(held, _)| !held.ends_within(left())) {
        return Err(Failure::new(FAILED, "a process survives SIGKILL").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_identifies_a_process() {
        let stat = |state: &str| {
            format!(
                "7 (a) S (b c) {state} 1 7 7 0 -1 4194304 90 0 0 0 0 0 0 0 20 0 1 0 123456 8192 0\n"
            )
        };
        assert_eq!(started_in(&stat("S")), Some(StartTime::At(123_456)));
        assert_eq!(started_in(&stat("Z")), Some(StartTime::Gone));
        assert_eq!(started_in("7 (a"), None);

        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let first = started(pid);
        assert!(matches!(first, StartTime::At(_)), "{first:?}");
        assert_eq!(started(pid), first);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(started(pid), StartTime::Gone);
    }

    #[test]
    fn a_pid_file_is_overwritten_on_a_full_disk() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = zonal_testkit::Scratch::new("full-disk");
        let dir = scratch.join("disk");
        fs::create_dir(&dir).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k,mode=0700", "none"])
            .arg(&dir)
            .status();
        if !mounted.unwrap().success() {
            return zonal_testkit::skip_mount(&"no tmpfs");
        }
        let fill = || fs::write(dir.join("filler"), vec![0; 1 << 20]).unwrap_err();
        let process = ServerProcess {
            name: "meta1".to_owned(),
            config: dir.join("node.toml"),
        };
        let noted = || read_pid(&dir.join(PID)).map(|pid| pid.as_raw_nonzero().get());
        let folder = trusted_paths::open(&dir).unwrap();
        fill();
        let full = write_pid_file(&folder, 4_294_967).unwrap_err();
        assert!(is_full(&full), "{full:#}");
        fs::remove_file(dir.join("filler")).unwrap();
        write_pid_file(&folder, 4_294_967).unwrap();
        fill();
        assert_eq!(noted(), Some(4_294_967));
        // The state after a kill.
        write_pid_file(&folder, 7).unwrap();
        assert_eq!(noted(), Some(7));
        process.forget();
        assert_eq!(noted(), None);
        write_pid_file(&folder, 123_456).unwrap();
        assert_eq!(noted(), Some(123_456));
        drop(folder);
        assert!(Command::new("umount").arg(&dir).status().unwrap().success());
    }

    #[test]
    fn all_mount_options_with_values_are_listed() {
        use clap::CommandFactory;
        let mount = crate::cli::Cli::command();
        let mount = mount.find_subcommand("mount").unwrap();
        let with_value = mount
            .get_arguments()
            .filter(|option| !option.is_positional() && option.get_action().takes_values());
        for option in with_value {
            let long = option.get_long().map(|long| format!("--{long}"));
            let short = option.get_short().map(|short| format!("-{short}"));
            for name in long.into_iter().chain(short) {
                assert!(WITH_VALUE.contains(&name.as_str()), "{name}");
            }
        }
    }

    #[test]
    fn command_lines_identify_servers_and_mounts() {
        let line = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let own = rustix::process::getpid();
        let config = Path::new("/cell/meta1/node.toml");
        for (text, is_it) in [
            (
                "zonal server --config /cell/meta1/node.toml --roles meta",
                true,
            ),
            (
                "zonal server --config /a --config /cell/meta1/node.toml",
                true,
            ),
            ("zonal server --config /cell/meta2/node.toml", false),
            ("zonal dump server --config /cell/meta1/node.toml", false),
            ("/cell/meta1/node.toml", false),
        ] {
            assert_eq!(serves(own, &line(text), config), is_it, "{text}");
        }
        let path = Path::new("/nowhere/point");
        for (text, is_it) in [
            ("zonal mount --cell /c /nowhere/point --foreground", true),
            ("zonal mount -f /nowhere/../nowhere/point/", false),
            ("zonal mount -f /nowhere/point/", true),
            ("zonal mount /nowhere/point", false),
            ("zonal umount -f /nowhere/point", false),
            ("zonal mount -f /nowhere/other", false),
            ("zonal mount -f --cell /nowhere/point /m", false),
            ("zonal mount --cell=/nowhere/point /m -f", false),
            ("zonal mount /m --log /nowhere/point -f", false),
            ("zonal mount -f --cell /c -- /nowhere/point", true),
        ] {
            assert_eq!(mounts(own, &line(text), path), is_it, "{text}");
        }
    }
}
