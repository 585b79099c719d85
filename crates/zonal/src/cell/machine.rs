//! Folders of this machine for mounts that name their cell by an address, and so have no folder of a cell.
//!
//! ```text
//!           records                       logs
//! root      /run/zonal/mounts             /var/log/zonal
//! others    $XDG_RUNTIME_DIR/zonal/mounts $XDG_STATE_HOME/zonal, else ~/.local/state/zonal
//! ```
//!
//! Who has no $XDG_RUNTIME_DIR has records beside the logs: a record tells which start of the machine it is of.

use std::path::PathBuf;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder that a variable names; one that is not absolute counts as none.
fn named(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(variable)?);
    path.is_absolute().then_some(path)
}

/// Where mounts log.
pub fn logs() -> Option<PathBuf> {
    if is_root() {
        return Some("/var/log/zonal".into());
    }
    let state = named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")));
    Some(state?.join("zonal"))
}

/// Where mounts are recorded.
pub fn records() -> Option<PathBuf> {
    if is_root() {
        return Some("/run/zonal/mounts".into());
    }
    let base = named("XDG_RUNTIME_DIR").map(|dir| dir.join("zonal"));
    Some(base.or_else(logs)?.join("mounts"))
}
