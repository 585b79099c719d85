//! The processes of nodes: keeper, server and mount of each, started and awaited.

use super::cell_folder::{self, KEY_FILE};
use super::namespaces;
use super::node_entry::{self, READY};
use super::plan::{NodePlace, TestbedPlan};
use super::state::{NodeKeeper, TestbedFolder};
use crate::cell::processes;
use crate::cell::{CellFolder, CellHandle};
use crate::exit::{FAILED, Failure, UNREACHABLE};
use anyhow::Context;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zonal_server::NodeConfig;

/// Time for all servers together to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of checks.
const LOOK: Duration = Duration::from_millis(20);
/// Mounts that are made at once.
const MOUNTING: usize = 4;

fn own_program() -> anyhow::Result<Command> {
    Ok(Command::new(
        std::env::current_exe().context("own executable")?,
    ))
}

/// A command of this program that becomes another one in a node. It must be spawned on a thread in
/// the node's network, so that `down` finds it from its first moment on.
fn in_node(folder: &TestbedFolder, node: NodePlace) -> anyhow::Result<Command> {
    let mut command = own_program()?;
    command.args(["testbed", "exec", "--dir"]).arg(folder.dir());
    command.arg(node.name()).arg("--");
    command.arg(std::env::current_exe().context("own executable")?);
    command.stdin(Stdio::null()).current_dir("/");
    Ok(command)
}

/// Starts the keeper of each node.
pub fn keep(plan: &TestbedPlan) -> anyhow::Result<BTreeMap<String, NodeKeeper>> {
    let keep_one = |node: NodePlace| {
        let name = node.name();
        let mut child = namespaces::inside(&plan.node(node), || {
            let mut command = own_program()?;
            command.args(["testbed", "keep"]).current_dir("/");
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            command.stderr(Stdio::piped());
            command.spawn().context("start a keeper")
        })?;
        let mut word = String::new();
        if let Some(pipe) = child.stdout.take() {
            BufReader::new(pipe).read_line(&mut word)?;
        }
        if word.trim_end() == READY {
            let pid = i32::try_from(child.id()).context("process id")?;
            return Ok((name, node_entry::keeper(pid)?));
        }
        let mut said = Vec::new();
        if let Some(mut pipe) = child.stderr.take() {
            let _ = std::io::Read::read_to_end(&mut pipe, &mut said);
        }
        let _ = child.wait();
        let said = String::from_utf8_lossy(&said);
        let text = format!("{name} has no mount namespace: {}", said.trim());
        let hint = "a testbed needs root with the right to make namespaces";
        Err(Failure::new(FAILED, text).hint(hint).into())
    };
    plan.places().into_iter().map(keep_one).collect()
}

/// A server that was started.
pub struct StartedServer {
    name: String,
    config: PathBuf,
    nodes: Vec<NodeConfig>,
    child: Child,
}

impl StartedServer {
    fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("wait")? {
            Some(status) => Err(processes::start_failure(
                &self.name,
                &self.config,
                status,
                0,
            )),
            None => Ok(()),
        }
    }
}

/// Starts the server of each node that has one.
pub fn start_servers(
    folder: &TestbedFolder,
    plan: &TestbedPlan,
    cell: &CellFolder,
) -> anyhow::Result<Vec<StartedServer>> {
    let start = |(name, nodes): (String, Vec<NodeConfig>)| {
        let place = plan.find_node(&name)?;
        let config = cell.config_path(&name);
        let log = processes::log_file(&config);
        let log = File::create(&log).with_context(|| log.display().to_string())?;
        let roles: Vec<&str> = nodes.iter().flat_map(NodeConfig::roles).collect();
        let mut command = in_node(folder, place)?;
        command.args(["server", "--config"]).arg(&config);
        command.args(["--roles", &roles.join(","), "--new-session"]);
        command.stdout(log.try_clone().context("log")?).stderr(log);
        let child = namespaces::inside(&plan.node(place), move || {
            command.spawn().with_context(|| format!("start {name}"))
        })?;
        Ok(StartedServer {
            name: place.name(),
            config,
            nodes,
            child,
        })
    };
    cell.servers()?.into_iter().map(start).collect()
}

/// Waits until every server answers in the first node's network, and the map has all targets.
/// `report` is called with the number of servers that answer.
pub fn await_servers(
    plan: &TestbedPlan,
    cell: &CellFolder,
    servers: &mut [StartedServer],
    report: &(dyn Fn(usize) + Sync),
) -> anyhow::Result<()> {
    let first = NodePlace { rack: 1, index: 1 };
    let deadline = Instant::now() + PATIENCE;
    let targets = servers.iter().flat_map(|server| &server.nodes);
    let targets = targets.filter(|node| node.storage_role.is_some()).count();
    let late = |name: &str, why: &str, config: &Path| {
        let log = processes::log_file(config);
        let text = format!(
            "{name} does not answer within {} s ({why}); the end of its log:\n  {}",
            PATIENCE.as_secs(),
            processes::tail(&log, 0)
        );
        Failure::new(UNREACHABLE, text)
    };
    namespaces::inside(&plan.node(first), || {
        let handle = CellHandle::of_folder(cell)?;
        for index in 0..servers.len() {
            loop {
                servers.iter_mut().try_for_each(StartedServer::check)?;
                let server = &servers[index];
                let probes = server.nodes.iter();
                let mut probes = probes.map(|node| handle.probe(node.advertise, node.node));
                let Some(error) = probes.find_map(Result::err) else {
                    break;
                };
                if Instant::now() > deadline {
                    return Err(late(&server.name, &error.to_string(), &server.config).into());
                }
                std::thread::sleep(LOOK);
            }
            report(index + 1);
        }
        while handle.map()?.targets.len() < targets {
            servers.iter_mut().try_for_each(StartedServer::check)?;
            if Instant::now() > deadline {
                let text = "not all targets joined the zone map";
                return Err(Failure::new(UNREACHABLE, text).into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    })
}

fn mount_one(
    folder: &TestbedFolder,
    plan: &TestbedPlan,
    managers: &str,
    node: NodePlace,
) -> anyhow::Result<()> {
    let cell = folder.cell();
    let mut command = in_node(folder, node)?;
    command.args(["mount", "--cell", managers]);
    command.arg("--key-file").arg(cell.join(KEY_FILE));
    command.args(["--zone", &node.rack.to_string(), "--transport", "plain"]);
    command
        .arg("--log")
        .arg(cell_folder::mount_log(&cell, node));
    command.arg(folder.mount());
    let output = namespaces::inside(&plan.node(node), move || {
        command.output().context("start a mount")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let text = format!("{} cannot mount the cell: {}", node.name(), said.trim());
    Err(Failure::new(FAILED, text).into())
}

/// Mounts the cell in each node. `managers`: as `--cell` takes them. `report` is called with the
/// number of mounts.
pub fn mount_all(
    folder: &TestbedFolder,
    plan: &TestbedPlan,
    managers: &str,
    report: &(dyn Fn(usize) + Sync),
) -> anyhow::Result<()> {
    let places = plan.places();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || -> anyhow::Result<()> {
        while let Some(node) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            mount_one(folder, plan, managers, *node)?;
            report(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..MOUNTING).map(|_| scope.spawn(work)).collect();
        let mut results = threads.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_panic| Err(Failure::new(FAILED, "mounting panicked").into()))
        });
        results.find(Result::is_err).unwrap_or(Ok(()))
    })
}
