//! Folders on this machine for mounts that name their cell by an address and so have no cell
//! folder.
//!
//! ```text
//!           records                       logs
//! root      /run/zonal/mounts             /var/log/zonal
//! others    $XDG_RUNTIME_DIR/zonal/mounts $XDG_STATE_HOME/zonal, else ~/.local/state/zonal
//! ```
//!
//! Without $XDG_RUNTIME_DIR, records go beside the logs; that is safe over a reboot, since a record
//! names the boot it belongs to.

use std::path::PathBuf;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The folder in an environment variable; a relative path counts as unset.
fn named(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(variable)?);
    path.is_absolute().then_some(path)
}

/// The user's home folder, from $HOME or /etc/passwd: mount(8) removes the environment when it
/// mounts for an ordinary user.
fn home() -> Option<PathBuf> {
    let listed = || {
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        home_in(&users, rustix::process::geteuid().as_raw())
    };
    named("HOME").or_else(listed)
}

fn home_in(users: &str, uid: u32) -> Option<PathBuf> {
    let uid = uid.to_string();
    let mut users = users.lines().map(|line| line.split(':'));
    let home = users.find_map(|mut user| (user.nth(2) == Some(&uid)).then(|| user.nth(2))?)?;
    Some(PathBuf::from(home)).filter(|home| home.is_absolute())
}

/// The folder for logs of mounts.
pub fn logs() -> Option<PathBuf> {
    if is_root() {
        return Some("/var/log/zonal".into());
    }
    let state = named("XDG_STATE_HOME").or_else(|| Some(home()?.join(".local/state")));
    Some(state?.join("zonal"))
}

/// The folder for records of mounts.
pub fn records() -> Option<PathBuf> {
    if is_root() {
        return Some("/run/zonal/mounts".into());
    }
    let base = named("XDG_RUNTIME_DIR").map(|dir| dir.join("zonal"));
    Some(base.or_else(logs)?.join("mounts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_users_has_homes() {
        let users = "admin:x:0:0:all:/admin:/bin/sh\nnobody:x:65534:65534:::\none:x:1000:1000::/users/one:/bin/sh\n";
        assert_eq!(home_in(users, 1000), Some("/users/one".into()));
        assert_eq!(home_in(users, 65_534), None);
        assert_eq!(home_in(users, 7), None);
    }
}
