//! Entry into a node: a process moves into the node's network and mount namespaces. Then it becomes
//! the wanted program, so that signals and exit code need no forwarding.
//!
//! The keeper is the process that a node's mount namespace begins with.

use super::cell_folder;
use super::namespaces;
use super::plan::NodePlace;
use super::state::{NodeKeeper, TestbedFolder, TestbedState};
use crate::cell::mount_table;
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND};
use anyhow::Context;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use zonal_net::CONDITION_VARIABLE;

/// Folder of a machine's sockets of servers and records of mounts. A node is a machine, so it has
/// one of its own. All nodes mount at the same path, and none may see another one's sockets.
pub const SOCKETS: &str = "/run/zonal";
/// The word of the keeper when the namespace is ready.
pub const READY: &str = "ready";

/// Runs as the keeper of a node: makes its mount namespace, says so, and lives until it is killed.
pub fn keep() -> anyhow::Result<()> {
    rustix::process::setsid().context("setsid")?;
    #[expect(
        deprecated,
        reason = "unsafe only for file descriptors, and those stay shared"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS).context("make a mount namespace")?;
    // Mounts of the node stay in it. Unmounts of the machine still arrive, so that a testbed keeps
    // no disk of the machine in use.
    let down = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", down).context("keep mounts in the node")?;
    for point in mount_table::zonal_points() {
        // A copy would keep a mount of the machine alive after its unmount.
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        rustix::mount::unmount(&point, flags).with_context(|| point.display().to_string())?;
    }
    mount("tmpfs", SOCKETS, "tmpfs", MountFlags::empty(), c"mode=0755").context(SOCKETS)?;
    console::line(READY);
    loop {
        std::thread::park();
    }
}

/// The mount namespace's file of a process.
fn mount_namespace(pid: i32) -> PathBuf {
    format!("/proc/{pid}/ns/mnt").into()
}

/// The keeper with this process id.
pub fn keeper(pid: i32) -> anyhow::Result<NodeKeeper> {
    let found = std::fs::metadata(mount_namespace(pid)).context("the node's keeper")?;
    Ok(NodeKeeper {
        pid,
        mount_namespace: found.ino(),
    })
}

/// Opens the mount namespace of a node, by its keeper or by another process in it.
fn open_mounts(state: &TestbedState, node: NodePlace) -> anyhow::Result<File> {
    let name = node.name();
    let gone = || {
        let text = format!("no process keeps the mounts of {name}");
        let hint = "they were killed; `zonal testbed down`, then `up`, makes the node anew";
        Failure::new(NOT_FOUND, text).hint(hint)
    };
    let keeper = state.keepers.get(&name).ok_or_else(gone)?;
    let open = |pid: i32| {
        let opened = File::open(mount_namespace(pid)).ok()?;
        let found = opened.metadata().ok()?;
        (found.ino() == keeper.mount_namespace).then_some(opened)
    };
    let namespace = namespaces::identity(&namespaces::path(&state.plan().node(node)));
    let others = || {
        let found = namespaces::processes_in(&namespace.into_iter().collect());
        let mut pids = found.iter().map(|found| found.handle.pid());
        pids.find_map(|pid| open(pid.as_raw_nonzero().get()))
    };
    open(keeper.pid)
        .or_else(others)
        .ok_or_else(|| gone().into())
}

/// Moves this process, which has one thread, into a node. Returns an error or, by way of the
/// program that it becomes, never.
pub fn become_program(
    folder: &TestbedFolder,
    state: &TestbedState,
    node: NodePlace,
    command: &[OsString],
) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().context("no command")?;
    let network = namespaces::path(&state.plan().node(node));
    let network = File::open(&network).with_context(|| network.display().to_string())?;
    let mounts = open_mounts(state, node)?;
    let place = std::env::current_dir();
    let enter = |file: &File, kind| move_into_link_name_space(file.as_fd(), Some(kind));
    enter(&network, LinkNameSpaceType::Network).context("enter the node's network")?;
    enter(&mounts, LinkNameSpaceType::Mount).context("enter the node's mounts")?;
    // Entering the mounts led to the root directory.
    let back = place.and_then(std::env::set_current_dir);
    back.or_else(|_gone| std::env::set_current_dir(Path::new("/")))
        .context("working directory")?;
    let conditions = cell_folder::condition_file(&folder.cell(), node);
    let error = Command::new(program)
        .args(arguments)
        .env("ZONAL_CELL", folder.cell())
        .env_remove("ZONAL_KEY_FILE")
        .env("ZONAL_NODE", node.name())
        .env(CONDITION_VARIABLE, conditions)
        .env("ZONAL_MOUNT", folder.mount())
        .exec();
    let text = format!("{}: {error}", console::path(Path::new(program)));
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => FAILED,
    };
    Err(Failure::new(code, text)
        .hint("the command runs with this machine's files")
        .into())
}
