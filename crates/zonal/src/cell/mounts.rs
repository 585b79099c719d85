//! Records of a cell's mounts on this machine: `DIR/mounts/NAME.toml`, so that `zonal down` finds them.

use super::folder::{Folder, replace};
use super::processes;
use anyhow::Context;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

fn folder(cell: &Folder) -> PathBuf {
    cell.dir.join("mounts")
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

/// Where a background mount of `path` logs.
pub fn log_path(cell: &Folder, path: &Path) -> anyhow::Result<PathBuf> {
    let folder = folder(cell);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.join(name(path)).with_extension("log"))
}

/// Notes a mount of this process.
pub fn add(cell: &Folder, path: &Path, zone: u16, client: u64) -> anyhow::Result<()> {
    write(
        cell,
        &Record {
            path: path.to_owned(),
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            zone,
            client,
            place: place(),
        },
    )
}

fn write(cell: &Folder, record: &Record) -> anyhow::Result<()> {
    let folder = folder(cell);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let text = toml::to_string(record).context("mount record")?;
    replace(
        &folder.join(name(&record.path)).with_extension("toml"),
        &text,
    )
}

/// Notes that the sessions of a dead mount are ended.
pub fn note_ended(cell: &Folder, record: &Record) -> anyhow::Result<()> {
    let mut record = record.clone();
    record.client = 0;
    write(cell, &record)
}

/// Mounts whose process is known to be dead and left sessions behind. One of another machine may live.
pub fn dead(cell: &Folder) -> Vec<Record> {
    let here = place();
    let mut records = list(cell);
    records.retain(|record| {
        record.client != 0 && !here.is_empty() && record.place == here && record.process().is_none()
    });
    records
}

/// Forgets a mount.
pub fn remove(cell: &Folder, path: &Path) {
    // Another command may have done it.
    let _ = fs::remove_file(folder(cell).join(name(path)).with_extension("toml"));
}

/// All mounts noted.
pub fn list(cell: &Folder) -> Vec<Record> {
    let Ok(entries) = fs::read_dir(folder(cell)) else {
        return Vec::new();
    };
    let mut records: Vec<Record> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
        .filter_map(|path| toml::from_str(&fs::read_to_string(path).ok()?).ok())
        .collect();
    records.sort_by(|a, b| a.path.cmp(&b.path));
    records
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
    pub fn unmount(&self, cell: &Folder) -> anyhow::Result<()> {
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
        remove(cell, &self.path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::folder::CellFile;
    use zonal_testkit::Scratch;

    #[test]
    fn only_what_died_here_is_dead() {
        let dir = Scratch::new("mounts");
        let cell = Folder {
            dir: dir.to_path_buf(),
            file: CellFile {
                cell: String::new(),
                manager: "127.0.0.1:1".parse().unwrap(),
                key_file: None,
                nodes: Vec::new(),
            },
        };
        let record = |path: &str, pid: i32, client: u64, place: String| Record {
            path: path.into(),
            pid,
            zone: 1,
            client,
            place,
        };
        let own = i32::try_from(std::process::id()).unwrap();
        let argument = std::env::args().next().unwrap();
        for record in [
            record("/dead", i32::MAX, 5, place()),
            record("/ended", i32::MAX, 0, place()),
            record("/elsewhere", i32::MAX, 6, "another machine".to_owned()),
            record(&argument, own, 7, place()),
        ] {
            write(&cell, &record).unwrap();
        }
        let found = dead(&cell);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].path.as_path(), found[0].client),
            (Path::new("/dead"), 5)
        );
        note_ended(&cell, &found[0]).unwrap();
        assert!(dead(&cell).is_empty());
        assert_eq!(list(&cell).len(), 4);
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
