//! The kernel's read-ahead of a mount.
//!
//! INIT can only lower it below the kernel's default of 128 KiB. Raising it needs
//! /sys/class/bdi/MAJOR:MINOR/read_ahead_kb, which only root may write. Measured through a whole
//! cell on one machine: a cold stream at 4 MiB is 1.2 times one at 128 KiB; 8 MiB gains nothing.

use std::path::Path;

/// Sets the read-ahead of the mount at `path`, in bytes. Where this process may not, the kernel's
/// default stays.
pub(crate) fn set(path: &Path, bytes: u32) {
    let Some(device) = device_of(path) else {
        return;
    };
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&file, (bytes / 1024).to_string()) {
        tracing::debug!(%error, file, "the read-ahead stays at the kernel's default");
    }
}

/// `MAJOR:MINOR` of the topmost mount at `path`, from /proc/self/mountinfo. Asking the mount itself
/// would need a worker.
fn device_of(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    device_in(&table, path.to_str()?)
}

fn device_in(table: &str, path: &str) -> Option<String> {
    let escaped = path
        .replace('\\', "\\134")
        .replace(' ', "\\040")
        .replace('\t', "\\011")
        .replace('\n', "\\012");
    let device = |line: &str| {
        let mut fields = line.split(' ');
        let device = fields.nth(2)?;
        let point = fields.nth(1)?;
        (point == escaped).then(|| device.to_owned())
    };
    table.lines().filter_map(device).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_at_a_path_counts() {
        let table = "1 0 0:5 / /mnt/a rw - ext4 x rw\n2 0 0:39 / /mnt/a rw - fuse.zonal y rw\n3 0 0:40 / /mnt/a\\040b rw - t z rw\n";
        assert_eq!(device_in(table, "/mnt/a").as_deref(), Some("0:39"));
        assert_eq!(device_in(table, "/mnt/a b").as_deref(), Some("0:40"));
        assert_eq!(device_in(table, "/mnt"), None);
    }
}
