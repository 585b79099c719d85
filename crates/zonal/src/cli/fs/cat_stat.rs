//! `zonal fs cat` and `stat`.

use super::connection::{AccessArgs, CellConnection, Failures, about};
use crate::console;
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use zonal_native::{Attr, FileKind, OpenOptions, Timestamp};

/// Bytes in one read.
const STEP: usize = 4 << 20;

/// Print files
#[derive(Debug, clap::Args)]
pub struct Cat {
    #[command(flatten)]
    access: AccessArgs,
    /// Files
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl Cat {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.access.connect("cat")?;
        let mut failures = Failures::default();
        for path in &self.paths {
            match print(&cell, path) {
                Ok(true) => {}
                // The reader closed the pipe.
                Ok(false) => break,
                Err(error) => failures.add(error),
            }
        }
        cell.end(failures.finish())
    }
}

/// Prints a file; false once standard output accepts no more.
fn print(cell: &CellConnection, path: &Path) -> anyhow::Result<bool> {
    let opened = cell.native.open(&cell.user, path, OpenOptions::new());
    let file = opened.map_err(|error| about(error, "open", path))?;
    let mut buffer = vec![0; STEP];
    loop {
        let bytes = file
            .read(&mut buffer)
            .map_err(|error| about(error, "read", path))?;
        if bytes == 0 {
            return Ok(true);
        }
        let written = std::io::stdout().lock().write_all(&buffer[..bytes]);
        if written.is_err() {
            console::shown(written);
            return Ok(false);
        }
    }
}

/// Show attributes of files, and where their bytes are stored
#[derive(Debug, clap::Args)]
pub struct Stat {
    #[command(flatten)]
    access: AccessArgs,
    /// Show the target of a symbolic link
    #[arg(long, short = 'L')]
    dereference: bool,
    /// As JSON, one object a path
    #[arg(long)]
    json: bool,
    /// Paths
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl Stat {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.access.connect("stat")?;
        let mut failures = Failures::default();
        for path in &self.paths {
            if let Some(value) = failures.note(self.one(&cell, path)) {
                if self.json {
                    console::json(&value);
                } else {
                    print_stat(&value);
                }
            }
        }
        cell.end(failures.finish())
    }

    fn one(&self, cell: &CellConnection, path: &Path) -> anyhow::Result<Value> {
        let (native, user) = (&cell.native, &cell.user);
        let attr = match self.dereference {
            true => native.stat(user, path),
            false => native.lstat(user, path),
        };
        let attr = attr.map_err(|error| about(error, "stat", path))?;
        let mut fields = fields(path, &attr, self.json);
        fields.insert("ino".into(), attr.ino.0.into());
        for (name, time) in [
            ("atime", attr.atime),
            ("ctime", attr.ctime),
            ("btime", attr.btime),
        ] {
            put_time(&mut fields, name, time);
        }
        if attr.kind == FileKind::Symlink {
            let text = native.read_link(user, path);
            let text = text.map_err(|error| about(error, "read", path))?;
            fields.insert("target".into(), shown(&text, self.json).into());
            return Ok(fields.into());
        }
        if !self.dereference || attr.kind != FileKind::Symlink {
            let names = native.list_xattrs(user, path).unwrap_or_default();
            let names = names.iter().map(|name| Value::from(shown(name, self.json)));
            fields.insert("xattrs".into(), names.collect());
        }
        let located = native.locate(user, path);
        let located = located.map_err(|error| about(error, "locate", path))?;
        fields.insert("home_zone".into(), located.home.0.into());
        let zones = located.zones.iter();
        let zones: Map<String, Value> = zones
            .map(|(zone, bytes)| (zone.to_string(), (*bytes).into()))
            .collect();
        fields.insert("zones".into(), zones.into());
        let targets = located.targets.iter();
        let targets: Map<String, Value> = targets
            .map(|(target, bytes)| (target.to_string(), (*bytes).into()))
            .collect();
        fields.insert("targets".into(), targets.into());
        Ok(fields.into())
    }
}

fn print_stat(value: &Value) {
    let text = |field: &str| match &value[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let link = value["target"].as_str();
    let link = link.map_or(String::new(), |target| format!(" -> {target}"));
    console::line(format_args!("{}{link}", text("path")));
    console::line(format_args!(
        "  {}, {} bytes, {} allocated, links {}",
        text("type"),
        text("size"),
        text("allocated"),
        text("nlink")
    ));
    console::line(format_args!(
        "  mode {}, user {}, group {}, inode {}",
        text("mode"),
        text("uid"),
        text("gid"),
        text("ino")
    ));
    for (field, title) in [
        ("mtime", "modified"),
        ("atime", "accessed"),
        ("ctime", "changed"),
        ("btime", "made"),
    ] {
        let seconds = value[field].as_i64().unwrap_or_default();
        console::line(format_args!("  {title:<8} {}", date(seconds)));
    }
    if !value["home_zone"].is_null() {
        console::line(format_args!(
            "  home zone {}; bytes in zones {}; on targets {}",
            text("home_zone"),
            value["zones"],
            value["targets"]
        ));
    }
}

/// Formats the bytes of a name or text, for JSON or for people.
pub fn shown(bytes: &[u8], as_json: bool) -> String {
    let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
    match as_json {
        true => console::json_path(path),
        false => console::path(path).to_string(),
    }
}

fn put_time(fields: &mut Map<String, Value>, name: &str, time: Timestamp) {
    fields.insert(name.into(), time.seconds.into());
    fields.insert(format!("{name}_nanos"), time.nanos.into());
}

/// The fields of every path.
pub fn fields(path: &Path, attr: &Attr, as_json: bool) -> Map<String, Value> {
    let mut fields = Map::new();
    let path = shown(path.as_os_str().as_bytes(), as_json);
    fields.insert("path".into(), path.into());
    fields.insert("type".into(), kind(attr.kind).into());
    fields.insert("mode".into(), json!(format!("{:04o}", attr.mode)));
    for (name, value) in [
        ("nlink", u64::from(attr.nlink)),
        ("uid", attr.uid.into()),
        ("gid", attr.gid.into()),
        ("size", attr.size),
        ("allocated", attr.allocated),
    ] {
        fields.insert(name.into(), value.into());
    }
    put_time(&mut fields, "mtime", attr.mtime);
    fields
}

/// The word for a file kind.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
    }
}

/// Formats seconds since 1970 as a time in UTC: `2026-11-25 13:05:09`.
pub fn date(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1 March of year 0, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = year + era * 400 + next;
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}",
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn seconds_are_formatted_as_calendar_dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date(1_795_608_309), "2026-11-25 12:05:09");
        assert_eq!(date(-1), "1969-12-31 23:59:59");
    }
}
