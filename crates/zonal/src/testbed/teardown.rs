//! Removal of a testbed, complete or not: processes, namespaces, files, in this order.
//!
//! The processes of a testbed are those in its network namespaces, with what `exec` started;
//! nothing else is killed. Each step may be repeated, so a `down` that was killed is run again.

use super::namespaces::{self, NamespaceIdentity, NamespaceProcess, ProcessKind};
use super::node_entry::SOCKETS;
use super::state::{self, TestbedFolder};
use crate::exit::{FAILED, Failure};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for programs to end by themselves, and then for mounts to write what they have.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time for killed processes to end: all, and those of one round.
const KILL_PATIENCE: Duration = Duration::from_secs(4);
const KILL_TIME: Duration = Duration::from_millis(200);
/// Time for the guard of a mount that is gone to end by itself.
const GUARD_TIME: Duration = Duration::from_millis(1500);

/// Counts of removed things.
#[derive(Debug, Default, Clone, Copy)]
pub struct TeardownCounts {
    /// Processes that ran.
    pub processes: usize,
    /// Network namespaces.
    pub namespaces: usize,
}

/// Sends a signal to some processes and waits for their end.
fn end(
    processes: &[NamespaceProcess],
    signal: Signal,
    patience: Duration,
    is_meant: impl Fn(ProcessKind) -> bool,
) {
    let meant = || processes.iter().filter(|process| is_meant(process.kind));
    meant().for_each(|process| process.handle.signal(signal));
    let deadline = Instant::now() + patience;
    for process in meant() {
        let left = deadline.saturating_duration_since(Instant::now());
        process.handle.ends_within(left);
    }
}

/// Ends all processes in the namespaces; returns how many there were.
fn end_processes(of: &BTreeSet<NamespaceIdentity>) -> anyhow::Result<usize> {
    let found = namespaces::processes_in(of);
    let count = found.len();
    // Programs first, so that mounts are not in use; a mount then flushes and unmounts.
    end(&found, Signal::TERM, PATIENCE, |kind| {
        kind == ProcessKind::Program
    });
    end(&found, Signal::TERM, PATIENCE, |kind| {
        kind == ProcessKind::Mount
    });
    // The stores are removed below, so servers need not end in order. A guard stays until its mount
    // is gone, as only it can free some; then it ends by itself.
    let deadline = Instant::now() + KILL_PATIENCE;
    loop {
        let left = namespaces::processes_in(of);
        let Some(first) = left.first() else {
            return Ok(count);
        };
        if left.iter().any(|left| left.kind != ProcessKind::Guard) {
            end(&left, Signal::KILL, KILL_TIME, |kind| {
                kind != ProcessKind::Guard
            });
        } else if !first.handle.ends_within(GUARD_TIME) {
            end(&left, Signal::KILL, KILL_TIME, |_| true);
        }
        if Instant::now() > deadline {
            return Err(survivors(&left));
        }
    }
}

fn survivors(left: &[NamespaceProcess]) -> anyhow::Error {
    let pids: Vec<String> = left
        .iter()
        .map(|left| left.handle.pid().as_raw_nonzero().to_string())
        .collect();
    let text = format!("processes survive SIGKILL: {}", pids.join(", "));
    let hint = "run `zonal testbed down` again when they have ended";
    Failure::new(FAILED, text).hint(hint).into()
}

/// The identities of network namespaces, but never that of this process or of the machine. Somebody
/// may have given it a name of a testbed's form.
fn without_machine(files: &[PathBuf]) -> BTreeSet<NamespaceIdentity> {
    let machine = ["/proc/self/ns/net", "/proc/1/ns/net"].map(Path::new);
    let machine = machine.map(namespaces::identity);
    let found = files.iter().filter_map(|file| namespaces::identity(file));
    found.filter(|id| !machine.contains(&Some(*id))).collect()
}

/// Removes all of a testbed, and checks that nothing is left. The caller holds the lock.
pub fn remove(folder: &TestbedFolder) -> anyhow::Result<TeardownCounts> {
    let ids = folder.ids();
    let existing = || -> Vec<String> {
        let names = ids.iter().flat_map(|id| namespaces::existing(id));
        names.collect()
    };
    let names = existing();
    if names.is_empty() && !folder.has_state() {
        return Err(state::none(folder.dir()).into());
    }
    let known = folder.find_state().ok().flatten();
    let files: Vec<PathBuf> = names.iter().map(|name| namespaces::path(name)).collect();
    let counts = TeardownCounts {
        processes: end_processes(&without_machine(&files))?,
        namespaces: names.len(),
    };
    names.iter().try_for_each(|name| namespaces::delete(name))?;
    let left = existing();
    if !left.is_empty() {
        let text = format!("network namespaces are left: {}", left.join(", "));
        return Err(Failure::new(FAILED, text)
            .hint("run `zonal testbed down` again")
            .into());
    }
    if known
        .as_ref()
        .is_some_and(|state| state.made_sockets_folder)
    {
        // Fails if a server of this machine uses it meanwhile.
        let _ = std::fs::remove_dir(SOCKETS);
    }
    folder.clear(known.is_some_and(|state| state.made_dir))?;
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_never_a_testbed() {
        let own = PathBuf::from("/proc/self/ns/net");
        assert!(namespaces::identity(&own).is_some());
        assert!(without_machine(&[own, PathBuf::from("/nowhere")]).is_empty());
    }
}
