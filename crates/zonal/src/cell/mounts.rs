//! Records of mounts on this machine, so that `zonal down` finds those of a cell's folder, and the
//! next mount of a cell ends the sessions of those whose process was killed.
//! `DIR/mounts/NAME.toml`; where the cell is named by an address, see `machine`.
//!
//! Several processes write them at once: a record is written whole, and who changes or takes away
//! one that it read earlier does so only where it is still of the same mount. A client's number is
//! all that its sessions are protected by: only the owner may read a record.

use super::folder::Folder;
use super::held::Held;
use super::processes::Started;
use super::{Cell, machine, points, processes};
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
pub struct Record {
    /// Where.
    pub path: PathBuf,
    /// The mount process.
    pub pid: i32,
    /// When it started, which tells it from others with its number: see [`Started::At`]. 0: not
    /// known.
    #[serde(default)]
    pub started: u64,
    /// The zone it is near to.
    pub zone: u16,
    /// Its number as a client: names its sessions once the process is dead. 0: they are ended, or
    /// it is not known.
    #[serde(default)]
    pub client: u64,
    /// Where the process number and its start mean something: one start of one machine, one name
    /// space of processes, one of time.
    #[serde(default)]
    pub place: String,
    /// The manager of what is mounted. Empty: not known.
    #[serde(default)]
    pub manager: String,
}

/// See [`Record::place`]. Empty: not known.
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
    // Different paths may look alike: the checksum tells them apart.
    let crc = zonal_wire::frame::crc32c(text.as_bytes());
    let kept: String = text.chars().rev().take(80).map(plain).collect();
    let kept: String = kept.chars().rev().collect();
    format!("{}-{crc:08x}", kept.trim_matches('-'))
}

fn file_name(path: &Path) -> String {
    format!("{}.toml", name(path))
}

/// More than any record has.
const RECORD_MAX: u64 = 64 << 10;

/// A mount of this process, to be noted.
#[derive(Debug, Clone)]
pub struct New {
    /// Where.
    pub path: PathBuf,
    /// The zone it is near to.
    pub zone: ZoneId,
    /// Its number as a client.
    pub client: u64,
    /// The manager of what is mounted.
    pub manager: SocketAddr,
}

/// A folder of records.
#[derive(Debug, Clone)]
pub struct Records {
    dir: PathBuf,
    is_of_cell: bool,
}

impl Records {
    /// Below the folder of a cell.
    pub fn below(cell: &Folder) -> Self {
        Self {
            dir: cell.dir.join("mounts"),
            is_of_cell: true,
        }
    }

    /// Of this machine's mounts that name their cell by an address; none where there is no place
    /// for them.
    pub fn of_machine() -> Option<Self> {
        machine::records().map(|dir| Self {
            dir,
            is_of_cell: false,
        })
    }

    /// Where mounts of a cell are noted.
    pub fn of_cell(cell: &Cell) -> Option<Self> {
        match &cell.folder {
            Some(folder) => Some(Self::below(folder)),
            None => Self::of_machine(),
        }
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.dir.join(file_name(path))
    }

    /// The record of a mount point.
    fn read(&self, path: &Path) -> Option<Record> {
        read(&trusted_paths::open(&self.dir).ok()?, &file_name(path))
    }

    /// Whether the folder of the cell holds them: it has to know of each mount for `zonal down`;
    /// elsewhere a record only helps.
    pub fn is_of_cell(&self) -> bool {
        self.is_of_cell
    }

    /// Notes a mount of this process.
    pub fn add(&self, new: &New) -> anyhow::Result<()> {
        let own = rustix::process::getpid();
        self.write(&Record {
            path: new.path.clone(),
            pid: own.as_raw_nonzero().get(),
            started: match processes::started(own) {
                Started::At(time) => time,
                Started::Gone | Started::Hidden => 0,
            },
            zone: new.zone.0,
            client: new.client,
            place: place(),
            manager: new.manager.to_string(),
        })
    }

    fn write(&self, record: &Record) -> anyhow::Result<()> {
        let folder = trusted_paths::make(&self.dir)?;
        let text = toml::to_string(record).context("mount record")?;
        let name = file_name(&record.path);
        // Under a name of its own first, for each writer: each renames what it wrote itself.
        folder
            .replace(&name, text.as_bytes(), 0o600)
            .with_context(|| self.dir.join(name).display().to_string())
    }

    /// Keeps others from changing records. Where a folder cannot be locked, what is between a look
    /// and a change stays short.
    fn lock(&self) -> Option<File> {
        let dir = File::open(&self.dir).ok()?;
        dir.lock().ok()?;
        Some(dir)
    }

    /// Notes that the sessions of a dead mount are ended. `zonal down` of its folder has it to take
    /// away still.
    pub fn note_ended(&self, record: &Record) -> anyhow::Result<()> {
        if !self.is_of_cell {
            self.remove(record);
            return Ok(());
        }
        let _lock = self.lock();
        if !self.has(record) {
            return Ok(());
        }
        let mut record = record.clone();
        record.client = 0;
        self.write(&record)
    }

    /// Forgets mounts that are ended and gone from where they were: nothing is left to be taken
    /// away.
    pub fn forget_gone(&self) {
        let here = place();
        let gone = |record: &Record| {
            record.client == 0
                && record.place == here
                && record.is_dead()
                && !points::is_mounted(&record.path)
        };
        for record in self.list().iter().filter(|record| gone(record)) {
            self.remove(record);
        }
    }

    /// Whether what is noted of its path is still this mount.
    fn has(&self, record: &Record) -> bool {
        let noted = self.read(&record.path);
        noted.is_some_and(|noted| (noted.pid, noted.client) == (record.pid, record.client))
    }

    /// Mounts of a cell whose process is known to be dead and left sessions behind. One of another
    /// machine may live.
    pub fn dead(&self, manager: SocketAddr) -> Vec<Record> {
        let here = place();
        let mut records = self.list_of(manager);
        records.retain(|record| {
            record.client != 0 && !here.is_empty() && record.place == here && record.is_dead()
        });
        records
    }

    /// All mounts of a cell noted here.
    fn list_of(&self, manager: SocketAddr) -> Vec<Record> {
        let manager = manager.to_string();
        let mut records = self.list();
        records.retain(|record| self.is_of_cell || record.manager == manager);
        records
    }

    /// Forgets a mount.
    pub fn remove(&self, record: &Record) {
        let _lock = self.lock();
        if self.has(record) {
            // Another command may have done it.
            let _ = fs::remove_file(self.file(&record.path));
        }
    }

    /// Forgets a mount of this process.
    pub fn remove_own(&self, path: &Path) {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let noted = self.read(path);
        if let Some(record) = noted.filter(|record| record.pid == own) {
            self.remove(&record);
        }
    }

    /// All mounts noted.
    pub fn list(&self) -> Vec<Record> {
        let Ok(folder) = trusted_paths::open(&self.dir) else {
            return Vec::new();
        };
        let entries = fs::read_dir(&self.dir).into_iter().flatten();
        let mut records: Vec<Record> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| Path::new(name).extension().is_some_and(|ext| ext == "toml"))
            .filter_map(|name| read(&folder, &name))
            .collect();
        records.sort_by(|a, b| a.path.cmp(&b.path));
        records
    }
}

/// The places where mounts of a cell may be noted: its folder, and this machine's.
pub fn places(cell: &Cell) -> impl Iterator<Item = Records> {
    let below = cell.folder.as_ref().map(Records::below);
    below.into_iter().chain(Records::of_machine())
}

/// All mounts of a cell that are noted on this machine.
pub fn of(cell: &Cell) -> Vec<Record> {
    places(cell)
        .flat_map(|records| records.list_of(cell.manager))
        .collect()
}

fn read(folder: &trusted_paths::Folder, name: &str) -> Option<Record> {
    let text = folder.text(name, RECORD_MAX).ok()??;
    toml::from_str(&text).ok()
}

/// Where a mount of `path` in the background logs, of a cell named by its folder.
pub fn log_below(cell: &Folder, path: &Path) -> anyhow::Result<PathBuf> {
    let folder = trusted_paths::make(&cell.dir.join("mounts"))?;
    Ok(folder.path().join(log_name(path)))
}

/// Where it logs, of a cell named by an address.
pub fn log_of_machine(path: &Path) -> anyhow::Result<PathBuf> {
    let folder = machine::logs().context("there is no home folder; name a file with --log")?;
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.join(log_name(path)))
}

fn log_name(path: &Path) -> String {
    format!("{}.log", name(path))
}

impl Record {
    /// Whether the process that it names lives. It may be another one where the record is forged:
    /// see [`Self::process`].
    pub fn lives(&self) -> bool {
        Pid::from_raw(self.pid).is_some_and(|pid| match self.started {
            0 => {
                let arguments = processes::arguments_soon(pid);
                arguments.iter().any(|part| part == self.path.as_os_str())
            }
            time => processes::started(pid) == Started::At(time),
        })
    }

    /// Its process, where that lives and is a mount there.
    fn process(&self) -> Option<Held> {
        let pid = Pid::from_raw(self.pid)?;
        let held = Held::own(pid, |arguments| {
            processes::mounts(pid, arguments, &self.path)
        });
        held.filter(|_| self.lives())
    }

    /// Whether its process is gone for certain, of a record of this place.
    fn is_dead(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return false;
        };
        match processes::started(pid) {
            Started::Gone => true,
            Started::Hidden => false,
            Started::At(_) => !self.lives(),
        }
    }

    /// Whether its process is a mount of a cell in another folder, of which this one is a copy.
    pub fn is_of_another(&self, folder: &Path) -> bool {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.lives()) else {
            return false;
        };
        let arguments = processes::arguments(pid);
        let mut values = arguments.iter().skip_while(|part| *part != "--cell");
        let Some(cell) = values.nth(1).map(Path::new) else {
            return false;
        };
        // A folder that was moved since is not where it was.
        let there = fs::canonicalize(cell);
        there.is_ok_and(|there| there.is_dir() && there != folder)
    }

    /// Unmounts it and waits for its process to write what it has and end.
    pub fn unmount(&self, records: &Records) -> anyhow::Result<()> {
        // Before it may end.
        let process = self.process();
        if points::is_mounted(&self.path) {
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
    fn only_what_died_here_is_dead() {
        let dir = Scratch::new("mounts");
        let manager = "127.0.0.1:1".parse().unwrap();
        let record = |path: &str, pid: i32, client: u64, place: String| Record {
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
            let records = Records {
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
            // "/ended" and, where its record was kept, "/dead": nothing is mounted there.
            records.forget_gone();
            let left: Vec<_> = records.list().into_iter().map(|left| left.path).collect();
            assert!(left.contains(&"/elsewhere".into()), "{left:?}");
            assert_eq!(left.len(), if is_of_cell { 1 } else { 2 }, "{left:?}");
        }
    }

    #[test]
    fn a_new_mount_is_not_taken_for_the_dead_one_of_its_path() {
        let dir = Scratch::new("mounts-new");
        let record = |pid: i32, client: u64| Record {
            path: "/point".into(),
            pid,
            started: 0,
            zone: 1,
            client,
            place: place(),
            manager: "127.0.0.1:1".to_owned(),
        };
        for is_of_cell in [true, false] {
            let records = Records {
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
    fn a_mount_lives_whatever_its_command_line_looks_like() {
        let dir = Scratch::new("mounts-live");
        let records = Records {
            dir: dir.join("records"),
            is_of_cell: false,
        };
        let manager = "127.0.0.1:1".parse().unwrap();
        let new = New {
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
        // Another process has the number since.
        found[0].started += 1;
        records.write(&found[0]).unwrap();
        assert_eq!(records.dead(manager).len(), 1);
    }

    #[test]
    fn names_differ_and_are_plain() {
        assert_ne!(name(Path::new("/a/b")), name(Path::new("/a-b")));
        let long = format!("/{}", "x".repeat(300));
        assert!(name(Path::new(&long)).len() < 100);
        assert!(name(Path::new("/mnt/My Files")).starts_with("mnt-My-Files-"));
    }
}
