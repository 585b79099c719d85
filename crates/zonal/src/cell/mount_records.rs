//! Records of mounts on this machine: `DIR/mounts/NAME.toml`, or a folder of `machine_folders` if
//! the cell is named by an address.
//!
//! `zonal down` finds the mounts of a cell's folder by them. The next mount of a cell ends the
//! sessions of mounts whose process was killed.
//!
//! Several processes write records at once. Each record is written whole. A process that changes or
//! removes a record it read earlier first checks that the record is still of the same mount. Only
//! the owner may read a record, because the client id in it is all that protects the client's
//! sessions.

use super::folder::CellFolder;
use super::process_handle::ProcessHandle;
use super::processes::StartTime;
use super::{CellHandle, machine_folders, mount_table, processes};
use anyhow::Context;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zonal_disk::trusted_paths;
use zonal_types::ZoneId;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRecord {
    /// Mount point.
    pub path: PathBuf,
    /// Process id of the mount.
    pub pid: i32,
    /// Start time of the process, which tells it from others with the same id: see
    /// [`StartTime::At`]. 0: unknown.
    #[serde(default)]
    pub started: u64,
    /// Zone of the mount.
    pub zone: u16,
    /// Client id of the mount, which names its sessions after the process died. 0: the sessions
    /// were ended, or the id is unknown.
    #[serde(default)]
    pub client: u64,
    /// Scope in which process id and start time are valid: one boot of one machine, one pid name
    /// space, one time name space.
    #[serde(default)]
    pub place: String,
    /// Address of the mounted cell's manager. Empty: unknown.
    #[serde(default)]
    pub manager: String,
}

/// The current [`MountRecord::place`]. Empty: unknown.
fn place() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = |kind| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
    match boot.trim() {
        "" => String::new(),
        boot => format!(
            "{boot} {} {}",
            space("pid").display(),
            space("time").display()
        ),
    }
}

/// A file name for a mount point.
fn name(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter
        } else {
            '-'
        }
    };
    // Different paths may give the same plain text; the checksum keeps the names apart.
    let crc = zonal_wire::frame::crc32c(text.as_bytes());
    let kept: String = text.chars().rev().take(80).map(plain).collect();
    let kept: String = kept.chars().rev().collect();
    format!("{}-{crc:08x}", kept.trim_matches('-'))
}

fn file_name(path: &Path) -> String {
    format!("{}.toml", name(path))
}

/// Largest record that is read, in bytes.
const RECORD_MAX: u64 = 64 << 10;

/// A mount of this process that is to be recorded.
#[derive(Debug, Clone)]
pub struct NewMount {
    /// Mount point.
    pub path: PathBuf,
    /// Zone of the mount.
    pub zone: ZoneId,
    /// Client id of the mount.
    pub client: u64,
    /// Address of the mounted cell's manager.
    pub manager: SocketAddr,
}

/// A folder of records.
#[derive(Debug, Clone)]
pub struct MountRecords {
    dir: PathBuf,
    is_of_cell: bool,
}

impl MountRecords {
    /// The records in the folder of a cell.
    pub fn below(cell: &CellFolder) -> Self {
        Self {
            dir: cell.dir.join("mounts"),
            is_of_cell: true,
        }
    }

    /// The records of this machine's mounts that name their cell by an address; `None` where no
    /// folder exists for them.
    pub fn of_machine() -> Option<Self> {
        machine_folders::records().map(|dir| Self {
            dir,
            is_of_cell: false,
        })
    }

    /// The records for a cell: in its folder, else this machine's.
    pub fn of_cell(cell: &CellHandle) -> Option<Self> {
        match &cell.folder {
            Some(folder) => Some(Self::below(folder)),
            None => Self::of_machine(),
        }
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.dir.join(file_name(path))
    }

    /// Reads the record of a mount point.
    fn read(&self, path: &Path) -> Option<MountRecord> {
        read(&trusted_paths::open(&self.dir).ok()?, &file_name(path))
    }

    /// Whether the records are in the cell's folder. There a record is mandatory, since `zonal
    /// down` must find every mount; elsewhere it is optional.
    pub fn is_of_cell(&self) -> bool {
        self.is_of_cell
    }

    /// Records a mount of this process.
    pub fn add(&self, new: &NewMount) -> anyhow::Result<()> {
        let own = rustix::process::getpid();
        self.write(&MountRecord {
            path: new.path.clone(),
            pid: own.as_raw_nonzero().get(),
            started: match processes::started(own) {
                StartTime::At(time) => time,
                StartTime::Gone | StartTime::Hidden => 0,
            },
            zone: new.zone.0,
            client: new.client,
            place: place(),
            manager: new.manager.to_string(),
        })
    }

    fn write(&self, record: &MountRecord) -> anyhow::Result<()> {
        let folder = trusted_paths::make(&self.dir)?;
        let text = toml::to_string(record).context("mount record")?;
        let name = file_name(&record.path);
        // Each writer uses a temporary file of its own, and renames what it wrote itself.
        folder
            .replace(&name, text.as_bytes(), 0o600)
            .with_context(|| self.dir.join(name).display().to_string())
    }

    /// Locks the folder against other writers. Without a lock, the time between check and change is
    /// kept short.
    fn lock(&self) -> Option<File> {
        let dir = File::open(&self.dir).ok()?;
        dir.lock().ok()?;
        Some(dir)
    }

    /// Notes that the sessions of a dead mount were ended. A record in a cell's folder stays, since
    /// `zonal down` still has to unmount there.
    pub fn note_ended(&self, record: &MountRecord) -> anyhow::Result<()> {
        if !self.is_of_cell {
            self.remove(record);
            return Ok(());
        }
        let _lock = self.lock();
        if !self.is_current(record) {
            return Ok(());
        }
        let mut record = record.clone();
        record.client = 0;
        self.write(&record)
    }

    /// Removes records of dead mounts whose sessions were ended and whose mount point is free:
    /// nothing is left to clean up.
    pub fn remove_finished(&self) {
        let here = place();
        let gone = |record: &MountRecord| {
            record.client == 0
                && record.place == here
                && record.is_dead()
                && !mount_table::is_mounted(&record.path)
        };
        for record in self.list().iter().filter(|record| gone(record)) {
            self.remove(record);
        }
    }

    /// Whether the stored record of this path is still of the same mount.
    fn is_current(&self, record: &MountRecord) -> bool {
        let noted = self.read(&record.path);
        noted.is_some_and(|noted| (noted.pid, noted.client) == (record.pid, record.client))
    }

    /// Mounts of a cell whose process is known to be dead and whose sessions may exist. A mount
    /// recorded on another machine may live, so it is left out.
    pub fn dead(&self, manager: SocketAddr) -> Vec<MountRecord> {
        let here = place();
        let mut records = self.list_of(manager);
        records.retain(|record| {
            record.client != 0 && !here.is_empty() && record.place == here && record.is_dead()
        });
        records
    }

    /// All recorded mounts of a cell.
    fn list_of(&self, manager: SocketAddr) -> Vec<MountRecord> {
        let manager = manager.to_string();
        let mut records = self.list();
        records.retain(|record| self.is_of_cell || record.manager == manager);
        records
    }

    /// Removes the record of a mount, if it is still of that mount.
    pub fn remove(&self, record: &MountRecord) {
        let _lock = self.lock();
        if self.is_current(record) {
            // Another command may have removed it.
            let _ = fs::remove_file(self.file(&record.path));
        }
    }

    /// Removes the record of a mount of this process.
    pub fn remove_own(&self, path: &Path) {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let noted = self.read(path);
        if let Some(record) = noted.filter(|record| record.pid == own) {
            self.remove(&record);
        }
    }

    /// All recorded mounts.
    pub fn list(&self) -> Vec<MountRecord> {
        let Ok(folder) = trusted_paths::open(&self.dir) else {
            return Vec::new();
        };
        let entries = fs::read_dir(&self.dir).into_iter().flatten();
        let mut records: Vec<MountRecord> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| Path::new(name).extension().is_some_and(|ext| ext == "toml"))
            .filter_map(|name| read(&folder, &name))
            .collect();
        records.sort_by(|a, b| a.path.cmp(&b.path));
        records
    }
}

/// All folders that may hold records of a cell's mounts: the cell's and this machine's.
pub fn places(cell: &CellHandle) -> impl Iterator<Item = MountRecords> {
    let below = cell.folder.as_ref().map(MountRecords::below);
    below.into_iter().chain(MountRecords::of_machine())
}

/// All mounts of a cell that are recorded on this machine.
pub fn of(cell: &CellHandle) -> Vec<MountRecord> {
    places(cell)
        .flat_map(|records| records.list_of(cell.first_manager()))
        .collect()
}

fn read(folder: &trusted_paths::Folder, name: &str) -> Option<MountRecord> {
    let text = folder.text(name, RECORD_MAX).ok()??;
    toml::from_str(&text).ok()
}

/// Log file of a background mount at `path`, for a cell named by its folder.
pub fn log_below(cell: &CellFolder, path: &Path) -> anyhow::Result<PathBuf> {
    let folder = trusted_paths::make(&cell.dir.join("mounts"))?;
    Ok(folder.path().join(log_name(path)))
}

/// Log file of a background mount at `path`, for a cell named by an address.
pub fn log_of_machine(path: &Path) -> anyhow::Result<PathBuf> {
    let folder =
        machine_folders::logs().context("there is no home folder; name a file with --log")?;
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.join(log_name(path)))
}

fn log_name(path: &Path) -> String {
    format!("{}.log", name(path))
}

impl MountRecord {
    /// Whether the recorded process lives. In a forged record this may be a foreign process: see
    /// [`Self::process`].
    pub fn lives(&self) -> bool {
        Pid::from_raw(self.pid).is_some_and(|pid| match self.started {
            0 => {
                let arguments = processes::arguments_soon(pid);
                arguments.iter().any(|part| part == self.path.as_os_str())
            }
            time => processes::started(pid) == StartTime::At(time),
        })
    }

    /// The recorded process, if it lives and is a mount at this path.
    fn process(&self) -> Option<ProcessHandle> {
        let pid = Pid::from_raw(self.pid)?;
        let held = ProcessHandle::own(pid, |arguments| {
            processes::mounts(pid, arguments, &self.path)
        });
        held.filter(|_| self.lives())
    }

    /// Whether the recorded process has certainly ended; for records of the current place only.
    fn is_dead(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return false;
        };
        match processes::started(pid) {
            StartTime::Gone => true,
            StartTime::Hidden => false,
            StartTime::At(_) => !self.lives(),
        }
    }

    /// Whether the process mounts a cell in another folder, of which this folder is a copy.
    pub fn is_of_another(&self, folder: &Path) -> bool {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.lives()) else {
            return false;
        };
        let arguments = processes::arguments(pid);
        let mut values = arguments.iter().skip_while(|part| *part != "--cell");
        let Some(cell) = values.nth(1).map(Path::new) else {
            return false;
        };
        // A folder that was moved no longer resolves.
        let there = fs::canonicalize(cell);
        there.is_ok_and(|there| there.is_dir() && there != folder)
    }

    /// Unmounts and waits until the process has written its data and ended.
    pub fn unmount(&self, records: &MountRecords) -> anyhow::Result<()> {
        // Opened before the unmount, after which the process may end.
        let process = self.process();
        if mount_table::is_mounted(&self.path) {
            zonal_fuse::unmount(&self.path)
                .with_context(|| format!("unmount {}", self.path.display()))?;
        }
        if let Some(held) = process
            && !held.ends_within(Duration::from_secs(20))
        {
            processes::stop(&[(held, self.path.display().to_string())])?;
        }
        records.remove(self);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use zonal_testkit::Scratch;

    #[test]
    fn mounts_of_another_machine_do_not_count_as_dead() {
        let dir = Scratch::new("mounts");
        let manager = "127.0.0.1:1".parse().unwrap();
        let record = |path: &str, pid: i32, client: u64, place: String| MountRecord {
            path: path.into(),
            pid,
            started: 0,
            zone: 1,
            client,
            place,
            manager: "127.0.0.1:1".to_owned(),
        };
        let own = i32::try_from(std::process::id()).unwrap();
        let argument = std::env::args().next().unwrap();
        let mut elsewhere = record("/other-cell", i32::MAX, 8, place());
        elsewhere.manager = "127.0.0.1:2".to_owned();
        for is_of_cell in [true, false] {
            let records = MountRecords {
                dir: dir.join(is_of_cell.to_string()),
                is_of_cell,
            };
            for record in [
                record("/dead", i32::MAX, 5, place()),
                record("/ended", i32::MAX, 0, place()),
                record("/elsewhere", i32::MAX, 6, "another machine".to_owned()),
                record(&argument, own, 7, place()),
            ] {
                records.write(&record).unwrap();
            }
            if !is_of_cell {
                records.write(&elsewhere).unwrap();
            }
            let found = records.dead(manager);
            assert_eq!(found.len(), 1);
            assert_eq!(
                (found[0].path.as_path(), found[0].client),
                (Path::new("/dead"), 5)
            );
            records.note_ended(&found[0]).unwrap();
            assert!(records.dead(manager).is_empty());
            assert_eq!(records.list().len(), 4);
            records.remove_own(Path::new("/elsewhere"));
            records.remove_own(Path::new(&argument));
            assert_eq!(records.list().len(), 3, "only one is of this process");
            // "/ended" and, if its record was kept, "/dead": nothing is mounted there.
            records.remove_finished();
            let left: Vec<_> = records.list().into_iter().map(|left| left.path).collect();
            assert!(left.contains(&"/elsewhere".into()), "{left:?}");
            assert_eq!(left.len(), if is_of_cell { 1 } else { 2 }, "{left:?}");
        }
    }

    #[test]
    fn removing_a_dead_mounts_record_keeps_a_newer_one() {
        let dir = Scratch::new("mounts-new");
        let record = |pid: i32, client: u64| MountRecord {
            path: "/point".into(),
            pid,
            started: 0,
            zone: 1,
            client,
            place: place(),
            manager: "127.0.0.1:1".to_owned(),
        };
        for is_of_cell in [true, false] {
            let records = MountRecords {
                dir: dir.join(is_of_cell.to_string()),
                is_of_cell,
            };
            let (dead, new) = (record(i32::MAX, 5), record(i32::MAX, 6));
            records.write(&dead).unwrap();
            records.write(&new).unwrap();
            records.note_ended(&dead).unwrap();
            records.remove(&dead);
            assert_eq!(records.list(), std::slice::from_ref(&new));
            records.remove(&new);
            assert_eq!(records.list(), []);
        }
    }

    #[test]
    fn a_mount_is_known_as_alive_by_its_start_time() {
        let dir = Scratch::new("mounts-live");
        let records = MountRecords {
            dir: dir.join("records"),
            is_of_cell: false,
        };
        let manager = "127.0.0.1:1".parse().unwrap();
        let new = NewMount {
            path: "/not/on/our/command/line".into(),
            zone: ZoneId(1),
            client: 5,
            manager,
        };
        records.add(&new).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&records.dir), 0o700);
        assert_eq!(mode(&records.file(&new.path)), 0o600);
        assert!(records.dead(manager).is_empty());
        let mut found = records.list();
        assert!(found[0].lives());
        // Another process has reused the id.
        found[0].started += 1;
        records.write(&found[0]).unwrap();
        assert_eq!(records.dead(manager).len(), 1);
    }

    #[test]
    fn file_names_of_mount_points_are_distinct_and_plain() {
        assert_ne!(name(Path::new("/a/b")), name(Path::new("/a-b")));
        let long = format!("/{}", "x".repeat(300));
        assert!(name(Path::new(&long)).len() < 100);
        assert!(name(Path::new("/mnt/My Files")).starts_with("mnt-My-Files-"));
    }
}
