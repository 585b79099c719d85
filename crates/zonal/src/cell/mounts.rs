//! Records of mounts on this machine, so that `zonal down` finds those of a cell's folder, and the next mount of a cell ends the
//! sessions of those whose process was killed. `DIR/mounts/NAME.toml`; where the cell is named by an address, see `machine`.

use super::folder::{Folder, replace};
use super::{Cell, machine, processes};
use crate::out;
use anyhow::Context;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zonal_types::ZoneId;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where.
    pub path: PathBuf,
    /// The mount process.
    pub pid: i32,
    /// The zone it is near to.
    pub zone: u16,
    /// Its number as a client: names its sessions once the process is dead. 0: they are ended, or it is not known.
    #[serde(default)]
    pub client: u64,
    /// Where the process number means something: one start of one machine, one name space of processes.
    #[serde(default)]
    pub place: String,
    /// The manager of what is mounted. Empty: not known.
    #[serde(default)]
    pub manager: String,
}

/// See [`Record::place`]. Empty: not known.
fn place() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    match boot.trim() {
        "" => String::new(),
        boot => format!("{boot} {}", space.display()),
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

    /// Of this machine's mounts that name their cell by an address; none where there is no place for them.
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
        self.dir.join(format!("{}.toml", name(path)))
    }

    /// Notes a mount of this process. A folder of a cell has to know it for `zonal down`; elsewhere it only helps.
    pub fn add(&self, new: &New) -> anyhow::Result<()> {
        let written = self.write(&Record {
            path: new.path.clone(),
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            zone: new.zone.0,
            client: new.client,
            place: place(),
            manager: new.manager.to_string(),
        });
        match written {
            Err(error) if !self.is_of_cell => {
                out::note(format_args!("zonal: the mount is not recorded: {error:#}"));
                Ok(())
            }
            written => written,
        }
    }

    fn write(&self, record: &Record) -> anyhow::Result<()> {
        fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        let text = toml::to_string(record).context("mount record")?;
        replace(&self.file(&record.path), &text)
    }

    /// Notes that the sessions of a dead mount are ended. `zonal down` of its folder has it to take away still.
    pub fn note_ended(&self, record: &Record) -> anyhow::Result<()> {
        if !self.is_of_cell {
            self.remove(&record.path);
            return Ok(());
        }
        let mut record = record.clone();
        record.client = 0;
        self.write(&record)
    }

    /// Mounts of a cell whose process is known to be dead and left sessions behind. One of another machine may live.
    pub fn dead(&self, manager: SocketAddr) -> Vec<Record> {
        let here = place();
        let mut records = self.list_of(manager);
        records.retain(|record| {
            record.client != 0
                && !here.is_empty()
                && record.place == here
                && record.process().is_none()
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
    pub fn remove(&self, path: &Path) {
        // Another command may have done it.
        let _ = fs::remove_file(self.file(path));
    }

    /// Forgets a mount of this process.
    pub fn remove_own(&self, path: &Path) {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        if read(&self.file(path)).is_none_or(|record| record.pid == own) {
            self.remove(path);
        }
    }

    /// All mounts noted.
    pub fn list(&self) -> Vec<Record> {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return Vec::new();
        };
        let mut records: Vec<Record> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
            .filter_map(|path| read(&path))
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

fn read(path: &Path) -> Option<Record> {
    toml::from_str(&fs::read_to_string(path).ok()?).ok()
}

/// Where a mount of `path` in the background logs, of a cell named by its folder.
pub fn log_below(cell: &Folder, path: &Path) -> anyhow::Result<PathBuf> {
    log_in(&cell.dir.join("mounts"), path)
}

/// Where it logs, of a cell named by an address.
pub fn log_of_machine(path: &Path) -> anyhow::Result<PathBuf> {
    let folder = machine::logs().context("there is no home folder; name a file with --log")?;
    log_in(&folder, path)
}

fn log_in(folder: &Path, path: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    Ok(folder.join(format!("{}.log", name(path))))
}

/// Whether something of Zonal is mounted at exactly `path`.
pub fn is_mounted(path: &Path) -> bool {
    is_point(path, |kind| kind.starts_with("fuse.zonal"))
}

/// Whether something is mounted at exactly `path` that a mount would hide; an automount point waits for one.
pub fn is_occupied(path: &Path) -> bool {
    is_point(path, |kind| kind != "autofs")
}

fn is_point(path: &Path, is_meant: impl Fn(&str) -> bool) -> bool {
    let Ok(table) = fs::read_to_string("/proc/self/mounts") else {
        return false;
    };
    let wanted = escape(path);
    table.lines().any(|line| {
        let mut fields = line.split(' ');
        let (point, kind) = (fields.nth(1), fields.next());
        point == Some(&wanted) && kind.is_some_and(&is_meant)
    })
}

/// Whether the mount at `path` has lost its process.
pub fn is_dead(path: &Path) -> bool {
    rustix::fs::statfs(path).err() == Some(rustix::io::Errno::NOTCONN)
}

/// As /proc/mounts writes a path.
fn escape(path: &Path) -> String {
    let mut text = String::new();
    for letter in path.to_string_lossy().chars() {
        match letter {
            ' ' => text.push_str("\\040"),
            '\t' => text.push_str("\\011"),
            '\n' => text.push_str("\\012"),
            '\\' => text.push_str("\\134"),
            '#' => text.push_str("\\043"),
            other => text.push(other),
        }
    }
    text
}

impl Record {
    /// Its process, where it lives.
    pub fn process(&self) -> Option<Pid> {
        Pid::from_raw(self.pid).filter(|pid| processes::is_ours(*pid, &self.path))
    }

    /// Unmounts it and waits for its process to write what it has and end.
    pub fn unmount(&self, records: &Records) -> anyhow::Result<()> {
        if is_mounted(&self.path) {
            zonal_fuse::unmount(&self.path)
                .with_context(|| format!("unmount {}", self.path.display()))?;
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.process().is_some() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(pid) = self.process() {
            processes::stop(&[(pid, self.path.clone())], processes::is_ours)?;
        }
        records.remove(&self.path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    #[test]
    fn only_what_died_here_is_dead() {
        let dir = Scratch::new("mounts");
        let manager = "127.0.0.1:1".parse().unwrap();
        let record = |path: &str, pid: i32, client: u64, place: String| Record {
            path: path.into(),
            pid,
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
        }
    }

    #[test]
    fn names_differ_and_are_plain() {
        assert_ne!(name(Path::new("/a/b")), name(Path::new("/a-b")));
        let long = format!("/{}", "x".repeat(300));
        assert!(name(Path::new(&long)).len() < 100);
        assert!(name(Path::new("/mnt/My Files")).starts_with("mnt-My-Files-"));
    }

    #[test]
    fn mount_table_escapes() {
        assert_eq!(escape(Path::new("/a b")), "/a\\040b");
        assert!(!is_mounted(Path::new("/proc")));
        assert!(is_occupied(Path::new("/proc")));
        assert!(!is_occupied(Path::new("/proc/self")));
    }
}
