//! `zonal mount` and `mount -t zonal`: checks the mount point, starts the background process, and
//! records the mount.

use super::options::MountSettings;
use super::zone_detection::MountSite;
use super::{background, client_mount};
use crate::cell::connection::CellArgs;
use crate::cell::{CellLocator, folder, mount_records, mount_table};
use crate::console;
use crate::exit::{Failure, IN_USE, NOT_FOUND, is_full};
use anyhow::Context;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Is notified when the mount answers.
#[derive(Debug)]
pub struct ReadyNotice {
    on_stdout: bool,
    record: mount_records::NewMount,
    records: Option<mount_records::MountRecords>,
    /// Lock of a mount in the foreground: no other process mounts there until the mount answers.
    mount_lock: Option<File>,
}

impl ReadyNotice {
    /// Records the mount, which answers now, and lets the starting process return.
    pub fn mounted(self) -> anyhow::Result<()> {
        if let Some(records) = &self.records
            && let Err(error) = records.add(&self.record)
        {
            // Someone who frees space on a full disk may need the mount.
            if records.is_of_cell() && !is_full(&error) {
                return Err(error);
            }
            self.tell(&format!("the mount is not recorded: {error:#}"));
        }
        if self.on_stdout {
            background::report_ready();
        }
        drop(self.mount_lock);
        Ok(())
    }

    /// Sends a note to the user who started the mount.
    pub(super) fn tell(&self, text: &str) {
        console::note(format_args!("zonal: {text}"));
        if self.on_stdout {
            background::report_note(text);
        }
    }
}

/// Mounts, in the background unless `options.foreground` is set.
pub fn run(options: &MountSettings) -> anyhow::Result<()> {
    // Held until the mount answers; a background process starts while its parent holds the lock.
    let mount_lock = (!options.ready_on_stdout).then(|| lock_mount_point(&options.path));
    let mount_lock = mount_lock.flatten();
    let options = prepared(options)?;
    if !options.foreground {
        return background::start(&options, open_log(&options)?);
    }
    if options.ready_on_stdout {
        // Leaves the starting process's terminal; fails if there is none.
        let _ = rustix::process::setsid();
    }
    let result = in_foreground(&options, mount_lock);
    if options.ready_on_stdout
        && let Err(error) = &result
    {
        // The starting process reads this if the mount never answered.
        background::report_failure(error);
    }
    result
}

/// Waits for other processes that mount at this path, and locks them out. A dead mount cannot be
/// locked.
fn lock_mount_point(path: &Path) -> Option<File> {
    if mount_table::is_mounted(path) {
        return None;
    }
    let point = File::open(path).ok()?;
    point.lock().ok()?;
    Some(point)
}

fn in_foreground(options: &MountSettings, mount_lock: Option<File>) -> anyhow::Result<()> {
    let args = CellArgs {
        cell: Some(options.cell.clone()),
        key_file: options.key_file.clone(),
    };
    let cell = args.open()?;
    let MountSite { zone, node, note } = super::zone_detection::site(options, &cell)?;
    super::stale_sessions::end_sessions(&cell);
    // 63 bits, since the record is TOML, whose numbers have a sign.
    let client = (getrandom::u64().context("random number")? >> 1).max(1);
    let records = mount_records::MountRecords::of_cell(&cell);
    let record = mount_records::NewMount {
        path: options.path.clone(),
        zone,
        client,
        manager: cell.first_manager(),
    };
    let ready = ReadyNotice {
        on_stdout: options.ready_on_stdout,
        record,
        records: records.clone(),
        mount_lock,
    };
    if let Some(text) = note {
        ready.tell(&text);
    }
    let result = client_mount::run(options, cell, (zone, node, client), ready);
    if let Some(records) = records {
        records.remove_own(&options.path);
    }
    result
}

/// Fails if the path is no possible mount point.
pub fn check_point(path: &Path) -> anyhow::Result<()> {
    let kind = std::fs::metadata(path).map_err(|error| {
        let text = format!("mount point {}: {error}", path.display());
        Failure::new(NOT_FOUND, text).hint("make the directory first")
    })?;
    if !kind.is_dir() {
        let text = format!("mount point {} is no directory", path.display());
        return Err(Failure::new(NOT_FOUND, text).into());
    }
    Ok(())
}

/// Checks the mount point and makes the paths absolute.
fn prepared(options: &MountSettings) -> anyhow::Result<MountSettings> {
    let mut options = options.clone();
    let path = std::path::absolute(&options.path).context("mount point")?;
    if mount_table::is_mounted(&path) {
        if !mount_table::is_dead(&path) {
            let text = format!("a cell is mounted on {} already", path.display());
            let hint = format!("zonal umount {}", path.display());
            return Err(Failure::new(IN_USE, text).hint(hint).into());
        }
        zonal_fuse::abort(&path)
            .with_context(|| format!("remove the dead mount on {}", path.display()))?;
    } else if mount_table::is_occupied(&path) {
        let text = format!("something else is mounted on {}", path.display());
        return Err(Failure::new(IN_USE, text)
            .hint("name an empty directory")
            .into());
    }
    check_point(&path)?;
    options.path = folder::absolute(&path)?;
    // The background process has another working directory.
    for file in [&mut options.key_file, &mut options.log] {
        *file = file.as_ref().map(std::path::absolute).transpose()?;
    }
    if !CellLocator::is_address(&options.cell) {
        let dir = folder::absolute(Path::new(&options.cell))?;
        let dir = dir.display().to_string();
        let given = std::mem::replace(&mut options.cell, dir);
        // The mount table shows the source as fstab has it, so that `mount -a` recognizes the
        // mount.
        if options.source.is_none() && Path::new(&given).is_absolute() {
            options.source = Some(given);
        }
    }
    Ok(options)
}

/// Opens the log of the background process. A failure to open the default log does not prevent the
/// mount.
fn open_log(options: &MountSettings) -> anyhow::Result<Option<File>> {
    let mut how = OpenOptions::new();
    how.create(true).append(true);
    if let Some(path) = &options.log {
        let file = how.open(path);
        return file.with_context(|| path.display().to_string()).map(Some);
    }
    // A symbolic link at the default path may be by someone who can write in the cell's folder.
    how.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    let open = |path: &PathBuf| {
        let file = how.open(path);
        file.with_context(|| path.display().to_string())
    };
    if let CellLocator::Folder(dir) = CellLocator::of(&options.cell)? {
        let path = mount_records::log_below(&folder::CellFolder::open(&dir)?, &options.path);
        return match path.and_then(|path| open(&path)) {
            Err(error) if is_full(&error) => Ok(no_log(&error)),
            opened => opened.map(Some),
        };
    }
    let opened = mount_records::log_of_machine(&options.path).and_then(|path| open(&path));
    Ok(opened.map_or_else(|error| no_log(&error), Some))
}

fn no_log(error: &anyhow::Error) -> Option<File> {
    console::note(format_args!("zonal: the mount does not log: {error:#}"));
    None
}
