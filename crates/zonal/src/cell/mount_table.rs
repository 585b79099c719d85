//! Mount points, from the kernel's mount table.

use rustix::io::Errno;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Whether a Zonal file system is mounted at exactly `path`.
pub fn is_mounted(path: &Path) -> bool {
    is_point(path, |kind| kind.starts_with("fuse.zonal"))
}

/// Whether a mount at exactly `path` would hide another one. An automount point does not count,
/// since it expects a mount.
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

/// Whether the process of the mount at `path` is dead, or dies during the check.
pub fn is_dead(path: &Path) -> bool {
    matches!(
        rustix::fs::statfs(path),
        Err(Errno::NOTCONN | Errno::CONNABORTED)
    )
}

/// The user who made the last Zonal mount at exactly `path`.
pub fn user(path: &Path) -> Option<u32> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    user_in(&table, path)
}

/// Finds that user in the text of /proc/self/mountinfo.
fn user_in(table: &str, path: &Path) -> Option<u32> {
    let wanted = escape(path);
    let mut of_path = table.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if mount.split(' ').nth(4)? != wanted || !kind.starts_with("fuse.zonal") {
            return None;
        }
        let options = kind.rsplit(' ').next()?;
        let user = options
            .split(',')
            .find_map(|word| word.strip_prefix("user_id="));
        user?.parse().ok()
    });
    of_path.next_back()
}

/// Mount points of Zonal file systems, each as often as there are mounts; the newest first.
pub fn zonal_points() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut points: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (point, kind) = (fields.nth(1)?, fields.next()?);
            kind.starts_with("fuse.zonal").then(|| unescape(point))
        })
        .collect();
    points.reverse();
    points
}

/// The path of a field of /proc/mounts.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        let code = code.filter(|_code| first == b'\\');
        bytes.push(code.unwrap_or(first));
        rest = code.and_then(|_code| after.get(3..)).unwrap_or(after);
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Escapes a path as /proc/mounts does.
pub fn escape(path: &Path) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_names_the_user_of_a_mount() {
        let table = "30 24 0:26 / /tmp/m rw,relatime - fuse.zonal /c rw,user_id=0,group_id=0\n\
                     31 24 0:27 / /tmp/m rw - fuse.zonal /user_id=7,a rw,user_id=1000,group_id=7,allow_other\n\
                     32 24 0:28 / /tmp/n rw - tmpfs tmpfs rw,user_id=5\n";
        assert_eq!(user_in(table, Path::new("/tmp/m")), Some(1000));
        assert_eq!(user_in(table, Path::new("/tmp/n")), None);
        assert_eq!(user_in(table, Path::new("/tmp")), None);
    }

    #[test]
    fn paths_are_escaped_as_in_the_mount_table() {
        assert_eq!(escape(Path::new("/a b")), "/a\\040b");
        let path = Path::new("/a b\\x#\n");
        assert_eq!(unescape(&escape(path)), path);
        assert!(!is_mounted(Path::new("/proc")));
        assert!(is_occupied(Path::new("/proc")));
        assert!(!is_occupied(Path::new("/proc/self")));
    }
}
