//! Network namespaces of a testbed: made, entered, searched for processes, and deleted.
//!
//! They have the names that `ip netns` gives, so that its commands work on them too.

use super::{iproute, plan};
use crate::cell::ProcessHandle;
use crate::cell::processes;
use crate::exit::{FAILED, Failure, REFUSED};
use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folder with the names of network namespaces.
const FOLDER: &str = "/run/netns";

/// Identity of a namespace: device and inode of its file.
pub type NamespaceIdentity = (u64, u64);

/// File of a network namespace.
pub fn path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// The identity of a namespace's file.
pub fn identity(file: &Path) -> Option<NamespaceIdentity> {
    let found = fs::metadata(file).ok()?;
    Some((found.dev(), found.ino()))
}

/// Names of all network namespaces of the testbed `id`.
pub fn existing(id: &str) -> Vec<String> {
    let start = format!("{}{id}-", plan::PREFIX);
    let entries = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(&start)).collect();
    names.sort();
    names
}

/// Refuses a user who cannot make or enter namespaces.
pub fn require_root() -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let text = "a testbed needs the right to make namespaces";
    let hint = "run it as root; `zonal up` makes a cell without namespaces as any user";
    Err(Failure::new(REFUSED, text).hint(hint).into())
}

/// Makes a network namespace.
pub fn make(name: &str) -> anyhow::Result<()> {
    iproute::ip(&["netns", "add", name]).map(drop)
}

/// Deletes a network namespace with all its interfaces.
pub fn delete(name: &str) -> anyhow::Result<()> {
    let deleted = iproute::ip(&["netns", "delete", name]);
    if !path(name).exists() {
        return Ok(());
    }
    // A name without a namespace: this process was killed while it made it.
    fs::remove_file(path(name))
        .with_context(|| format!("{} cannot be removed", path(name).display()))
        .or(deleted.map(drop))
}

/// Runs `work` on a thread in a network namespace. Processes that it starts are born there.
pub fn inside<T: Send>(
    namespace: &str,
    work: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let file = path(namespace);
    let opened = File::open(&file).with_context(|| file.display().to_string())?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(opened.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("enter {namespace}"))?;
            work()
        });
        let joined = thread.join();
        joined.unwrap_or_else(|_panic| Err(Failure::new(FAILED, "a thread panicked").into()))
    })
}

/// The role of a process in a testbed, from its command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessKind {
    /// `zonal server`.
    Server,
    /// `zonal mount`.
    Mount,
    /// The guard of a mount.
    Guard,
    /// The process that keeps a node's mount namespace.
    Keeper,
    /// A program that `exec` started.
    Program,
}

/// A process in a namespace of a testbed.
#[derive(Debug)]
pub struct NamespaceProcess {
    /// The process.
    pub handle: ProcessHandle,
    /// Its network namespace.
    pub namespace: NamespaceIdentity,
    /// Its role.
    pub kind: ProcessKind,
}

fn kind(handle: &ProcessHandle) -> ProcessKind {
    let arguments = processes::arguments(handle.pid());
    let word = |index: usize| arguments.get(index).and_then(|word| word.to_str());
    if !handle.runs_this_program() {
        return ProcessKind::Program;
    }
    match (word(1), word(2)) {
        (Some("server"), _) => ProcessKind::Server,
        (Some("mount"), _) => ProcessKind::Mount,
        (Some("mount-guard"), _) => ProcessKind::Guard,
        (Some("testbed"), Some("keep")) => ProcessKind::Keeper,
        _ => ProcessKind::Program,
    }
}

/// All processes whose network namespace is one of these.
pub fn processes_in(namespaces: &BTreeSet<NamespaceIdentity>) -> Vec<NamespaceProcess> {
    let found = |pid| {
        let mut namespace = None;
        let handle = ProcessHandle::any(pid, |pid| {
            let file = format!("/proc/{}/ns/net", pid.as_raw_nonzero());
            namespace = identity(Path::new(&file)).filter(|found| namespaces.contains(found));
            namespace.is_some()
        })?;
        Some(NamespaceProcess {
            kind: kind(&handle),
            namespace: namespace?,
            handle,
        })
    };
    processes::all().filter_map(found).collect()
}
