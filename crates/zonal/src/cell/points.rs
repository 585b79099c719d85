//! Mount points, as the kernel's table has them.

use rustix::io::Errno;
use std::fs;
use std::path::Path;

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

/// Whether the mount at `path` has lost its process, or loses it while it is asked.
pub fn is_dead(path: &Path) -> bool {
    matches!(
        rustix::fs::statfs(path),
        Err(Errno::NOTCONN | Errno::CONNABORTED)
    )
}

/// As /proc/mounts writes a path.
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
    fn mount_table_escapes() {
        assert_eq!(escape(Path::new("/a b")), "/a\\040b");
        assert!(!is_mounted(Path::new("/proc")));
        assert!(is_occupied(Path::new("/proc")));
        assert!(!is_occupied(Path::new("/proc/self")));
    }
}
