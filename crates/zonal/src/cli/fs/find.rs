//! `zonal fs find`.

use super::cat_stat::fields;
use super::connection::{AccessArgs, CellConnection, Failures, about};
use super::listing::below;
use crate::console;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use zonal_basics::glob;
use zonal_native::{Attr, FileKind};
use zonal_server::units::ByteSize;

/// Find files in a tree
///
/// Prints the paths that satisfy all conditions, each directory before its entries. Symbolic links
/// are not followed.
#[derive(Debug, clap::Args)]
pub struct Find {
    #[command(flatten)]
    access: AccessArgs,
    /// Last name matches this pattern: *, ?, [a-z], [!a-z]
    #[arg(long, value_name = "PATTERN")]
    name: Option<OsString>,
    /// Type is file (f), directory (d), symbolic link (l), pipe (p), socket (s), block device (b)
    /// or character device (c)
    #[arg(long = "type", value_name = "f|d|l|p|s|b|c", value_parser = ["f", "d", "l", "p", "s", "b", "c"])]
    kind: Option<String>,
    /// Size is more than (+), less than (-) or exactly this many bytes, such as "+10 MiB"
    #[arg(long, value_name = "[+-]SIZE", allow_hyphen_values = true, value_parser = bound::<SizeOf>)]
    size: Option<Bound>,
    /// Modified more than (+), less than (-) or exactly this many days ago
    #[arg(long, value_name = "[+-]DAYS", allow_hyphen_values = true, value_parser = bound::<Days>)]
    mtime: Option<Bound>,
    /// Largest depth below the paths
    #[arg(long, value_name = "N")]
    max_depth: Option<usize>,
    /// End each path with a zero byte instead of a newline, and print its bytes unescaped
    #[arg(long, short = '0', conflicts_with = "json")]
    print0: bool,
    /// As JSON, one object a path
    #[arg(long)]
    json: bool,
    /// Paths to search
    #[arg(default_value = "/", value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// A bound: more than, less than, or exactly a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    More(u64),
    Less(u64),
    Just(u64),
}

impl Bound {
    fn holds(self, value: u64) -> bool {
        match self {
            Self::More(bound) => value > bound,
            Self::Less(bound) => value < bound,
            Self::Just(bound) => value == bound,
        }
    }
}

/// The unit of a bound.
trait Unit {
    fn number(text: &str) -> Result<u64, String>;
}

struct SizeOf;
struct Days;

impl Unit for SizeOf {
    fn number(text: &str) -> Result<u64, String> {
        if let Ok(bytes) = text.parse() {
            return Ok(bytes);
        }
        let size = text
            .parse::<ByteSize>()
            .map_err(|error| error.to_string())?;
        Ok(size.0)
    }
}

impl Unit for Days {
    fn number(text: &str) -> Result<u64, String> {
        text.parse().map_err(|_error| "a number of days".to_owned())
    }
}

fn bound<U: Unit>(text: &str) -> Result<Bound, String> {
    Ok(match text.as_bytes().first() {
        Some(b'+') => Bound::More(U::number(&text[1..])?),
        Some(b'-') => Bound::Less(U::number(&text[1..])?),
        _ => Bound::Just(U::number(text)?),
    })
}

fn letter(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "f",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::BlockDevice => "b",
        FileKind::CharDevice => "c",
    }
}

impl Find {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.access.connect("find")?;
        let mut failures = Failures::default();
        for path in &self.paths {
            let found = self.one(&cell, path, &mut failures);
            failures.note(found);
        }
        cell.end(failures.finish())
    }

    fn one(
        &self,
        cell: &CellConnection,
        path: &Path,
        failures: &mut Failures,
    ) -> anyhow::Result<()> {
        let found = cell.native.lstat(&cell.user, path);
        let attr = found.map_err(|error| about(error, "find", path))?;
        self.judge(path, &attr);
        if attr.kind != FileKind::Directory {
            return Ok(());
        }
        let depth = |path: &Path| path.components().count();
        let top = depth(path);
        if self.max_depth == Some(0) {
            return Ok(());
        }
        let mut visit = |path: &Path, attr: &Attr| {
            if self.max_depth.is_none_or(|most| depth(path) <= top + most) {
                self.judge(path, attr);
            }
            Ok(())
        };
        below(cell, path, self.max_depth != Some(1), failures, &mut visit)
    }

    fn judge(&self, path: &Path, attr: &Attr) {
        let name = path.file_name().unwrap_or(path.as_os_str());
        let pattern = self.name.as_ref().map(|pattern| pattern.as_bytes());
        let age = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let now = now.map_or(0, |since| since.as_secs());
            let then = u64::try_from(attr.mtime.seconds).unwrap_or(0);
            now.saturating_sub(then) / 86_400
        };
        let holds = pattern.is_none_or(|pattern| glob::is_of(pattern, name.as_bytes()))
            && self
                .kind
                .as_ref()
                .is_none_or(|kind| kind == letter(attr.kind))
            && self.size.is_none_or(|size| size.holds(attr.size))
            && self.mtime.is_none_or(|days| days.holds(age()));
        if !holds {
            return;
        }
        if self.json {
            console::json(serde_json::Value::from(fields(path, attr, true)));
        } else if self.print0 {
            console::raw(&[path.as_os_str().as_bytes(), b"\0"].concat());
        } else {
            console::line(console::path(path));
        }
    }
}
