//! `zonal mount` and `mount -t zonal`: options, the process in the background, and its record.
//!
//! In the background: this program starts itself with `--foreground --ready-on-stdout` and reads one line from its
//! standard output: `ready`, or why there is no mount.

use super::client_mount;
use crate::cell::connect::CellArgs;
use crate::cell::{Folder, folder, mounts};
use crate::exit::{FAILED, Failure, IN_USE, NOT_FOUND};
use anyhow::Context;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zonal_server::units::{Millis, Size};

/// Everything that a mount can be told.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent options of mount(8)"
)]
pub struct Options {
    /// Folder or address of the cell.
    pub cell: String,
    /// Mount point.
    pub path: PathBuf,
    /// The zone that this machine is in.
    pub zone: u16,
    /// The cell key, where it is not the folder's.
    pub key_file: Option<PathBuf>,
    /// Stay in the foreground.
    pub foreground: bool,
    /// The kernel caches no names and attributes.
    pub no_cache: bool,
    /// For how long they are believed where nobody else writes.
    pub cache_time: Option<Millis>,
    /// Bound of gathered writes.
    pub write_behind: Option<Size>,
    /// How long a request waits for a server.
    pub deadline: Option<Millis>,
    /// Where the background process logs.
    pub log: Option<PathBuf>,
    /// Threads that serve the kernel.
    pub workers: Option<u16>,
    /// Report on standard output.
    pub ready_on_stdout: bool,
    /// Nothing can be changed through this mount.
    pub read_only: bool,
    /// Set-id bits mean nothing.
    pub nosuid: bool,
    /// Device files mean nothing.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// Others than the owner of the mount may use it.
    pub allow_other: bool,
}

impl Options {
    /// The defaults.
    pub fn new(cell: String, path: PathBuf) -> Self {
        Self {
            cell,
            path,
            zone: 1,
            key_file: None,
            foreground: false,
            no_cache: false,
            cache_time: None,
            write_behind: None,
            deadline: None,
            log: None,
            workers: None,
            ready_on_stdout: false,
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            allow_other: true,
        }
    }

    /// Applies one `-o` option. What only mount(8) and systemd understand is passed over.
    pub fn apply(&mut self, option: &str) -> anyhow::Result<()> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let bad = || Failure::new(2, format!("mount option {option}: bad value"));
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.nosuid = true,
            "suid" => self.nosuid = false,
            "nodev" => self.nodev = true,
            "dev" => self.nodev = false,
            "noexec" => self.noexec = true,
            "exec" => self.noexec = false,
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "no-cache" | "no_cache" => self.no_cache = true,
            "zone" => {
                self.zone = value
                    .parse()
                    .ok()
                    .filter(|zone| *zone > 0)
                    .ok_or_else(bad)?;
            }
            "key-file" | "key_file" => self.key_file = Some(value.into()),
            "log" => self.log = Some(value.into()),
            "workers" => {
                let workers = value
                    .parse()
                    .ok()
                    .filter(|workers| (1..=256).contains(workers));
                self.workers = Some(workers.ok_or_else(bad)?);
            }
            "write-behind" | "write_behind" => {
                self.write_behind = Some(value.parse().map_err(|_error| bad())?);
            }
            "cache-time" | "cache_time" => {
                self.cache_time = Some(value.parse().map_err(|_error| bad())?);
            }
            "deadline" => self.deadline = Some(value.parse().map_err(|_error| bad())?),
            "" | "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "_netdev"
            | "nofail" | "relatime" | "async" | "atime" | "diratime" => {}
            name if name.starts_with("x-") || name.starts_with("comment") => {}
            _ => {
                let text = format!("mount option {option} is unknown");
                return Err(Failure::new(2, text)
                    .hint("`zonal mount --help` lists options")
                    .into());
            }
        }
        Ok(())
    }

    /// The command line of the process in the background.
    fn arguments(&self) -> Vec<String> {
        let mut list = vec![
            "mount".to_owned(),
            "--cell".to_owned(),
            self.cell.clone(),
            self.path.display().to_string(),
            "--zone".to_owned(),
            self.zone.to_string(),
            "--foreground".to_owned(),
            "--ready-on-stdout".to_owned(),
        ];
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                list.extend([name.to_owned(), value]);
            }
        };
        option(
            "--key-file",
            self.key_file
                .as_ref()
                .map(|file| file.display().to_string()),
        );
        option(
            "--write-behind",
            self.write_behind.map(|size| size.to_string()),
        );
        option("--deadline", self.deadline.map(|time| time.to_string()));
        option("--cache-time", self.cache_time.map(|time| time.to_string()));
        option("--workers", self.workers.map(|workers| workers.to_string()));
        let words = [
            ("ro", self.read_only),
            ("nosuid", self.nosuid),
            ("nodev", self.nodev),
            ("noexec", self.noexec),
            ("no-cache", self.no_cache),
            ("noallow_other", !self.allow_other),
        ];
        let words: Vec<&str> = words
            .iter()
            .filter(|(_, on)| *on)
            .map(|(word, _)| *word)
            .collect();
        option("-o", (!words.is_empty()).then(|| words.join(",")));
        list
    }
}

/// To be told when the mount answers.
#[derive(Debug)]
pub struct Ready {
    on_stdout: bool,
    record: Option<(Folder, PathBuf, u16)>,
    client: u64,
}

impl Ready {
    /// The mount answers: notes it and lets the starting process go.
    pub fn mounted(&self) -> anyhow::Result<()> {
        if let Some((folder, path, zone)) = &self.record {
            mounts::add(folder, path, *zone, self.client)?;
        }
        if self.on_stdout {
            // The starting process may be gone; the mount stays.
            let mut stdout = std::io::stdout().lock();
            let _ = stdout.write_all(b"ready\n").and_then(|()| stdout.flush());
        }
        Ok(())
    }
}

/// Mounts, in the background unless told otherwise.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let options = prepared(options)?;
    if !options.foreground {
        return in_background(&options);
    }
    let args = CellArgs {
        cell: Some(options.cell.clone()),
        key_file: options.key_file.clone(),
    };
    if options.ready_on_stdout {
        // Of the starting process's terminal; it fails where there is none to leave.
        let _ = rustix::process::setsid();
    }
    let result = args.open().and_then(|cell| {
        let folder = cell.folder.clone();
        if let Some(folder) = &folder {
            super::dead::end_sessions(folder, &cell);
        }
        // 63 bits: the record is TOML, whose numbers have a sign.
        let client = getrandom::u64().context("random number")? >> 1;
        let ready = Ready {
            client,
            on_stdout: options.ready_on_stdout,
            record: folder
                .clone()
                .map(|folder| (folder, options.path.clone(), options.zone)),
        };
        let result = client_mount::run(&options, cell, client, ready);
        if let Some(folder) = folder {
            mounts::remove(&folder, &options.path);
        }
        result
    });
    if options.ready_on_stdout
        && let Err(error) = &result
    {
        // Read by the starting process, if the mount never answered.
        crate::out::line(format_args!("{error:#}"));
    }
    result
}

/// With absolute paths, after a look at the mount point.
fn prepared(options: &Options) -> anyhow::Result<Options> {
    let mut options = options.clone();
    let path = std::path::absolute(&options.path).context("mount point")?;
    if mounts::is_mounted(&path) {
        if !mounts::is_dead(&path) {
            let text = format!("a cell is mounted on {} already", path.display());
            let hint = format!("zonal umount {}", path.display());
            return Err(Failure::new(IN_USE, text).hint(hint).into());
        }
        zonal_fuse::unmount(&path)
            .with_context(|| format!("take away the dead mount on {}", path.display()))?;
    } else if mounts::is_occupied(&path) {
        let text = format!("something else is mounted on {}", path.display());
        return Err(Failure::new(IN_USE, text)
            .hint("name an empty directory")
            .into());
    }
    let kind = std::fs::metadata(&path).map_err(|error| {
        Failure::new(
            NOT_FOUND,
            format!("mount point {}: {error}", path.display()),
        )
        .hint("make the directory first")
    })?;
    if !kind.is_dir() {
        return Err(Failure::new(
            NOT_FOUND,
            format!("mount point {} is no directory", path.display()),
        )
        .into());
    }
    options.path = folder::absolute(&path)?;
    if options.cell.parse::<std::net::SocketAddr>().is_err() {
        options.cell = folder::absolute(Path::new(&options.cell))?
            .display()
            .to_string();
    }
    Ok(options)
}

fn open_log(options: &Options) -> anyhow::Result<Option<File>> {
    let path = match (&options.log, options.cell.parse::<std::net::SocketAddr>()) {
        (Some(path), _) => path.clone(),
        (None, Ok(_)) => return Ok(None),
        (None, Err(_)) => {
            mounts::log_path(&Folder::open(Path::new(&options.cell))?, &options.path)?
        }
    };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.map(Some).with_context(|| path.display().to_string())
}

fn in_background(options: &Options) -> anyhow::Result<()> {
    let log = open_log(options)?;
    let mut child = Command::new(std::env::current_exe().context("own executable")?)
        .args(options.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_or_else(Stdio::null, Stdio::from))
        .current_dir("/")
        .spawn()
        .context("start the mount process")?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        let mut byte = [0];
        while !said.ends_with(b"ready\n") {
            match pipe.read(&mut byte) {
                Ok(1) => said.push(byte[0]),
                _ => break,
            }
        }
    }
    if said.ends_with(b"ready\n") {
        return Ok(());
    }
    let status = child.wait().context("wait for the mount process")?;
    let code = status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code > 0);
    let text = String::from_utf8_lossy(&said).trim().to_owned();
    let text = if text.is_empty() {
        format!("the mount process ended ({status})")
    } else {
        text
    };
    let failure = Failure::new(code.unwrap_or(FAILED), text);
    Err(match code {
        Some(4) => failure.hint("is the cell up? `zonal up` starts what is down"),
        _ => failure,
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fstab_are_understood() {
        let mut options = Options::new("/cell".into(), "/mnt".into());
        for option in
            "rw,nosuid,zone=2,workers=3,write-behind=1MiB,deadline=3s,_netdev,x-systemd.automount"
                .split(',')
        {
            options.apply(option).unwrap();
        }
        assert_eq!((options.zone, options.workers), (2, Some(3)));
        assert!(options.nosuid && !options.read_only);
        assert!(options.apply("zone=0").is_err());
        assert!(options.apply("sync-everything").is_err());
        let line = options.arguments().join(" ");
        assert!(
            line.contains("--zone 2") && line.ends_with("-o nosuid"),
            "{line}"
        );
    }
}
