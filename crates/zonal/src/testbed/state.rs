//! The folder of a testbed and its state file.
//!
//! ```text
//! DIR/testbed.json   the state: id, shape, rates, keepers of nodes
//! DIR/cell/          the cell: configs, stores, credentials, logs (as `zonal up --dir` has them)
//! DIR/mnt            where each node, in its own mount namespace, has the cell mounted
//! DIR/lock           held by a command that changes the testbed
//! ```
//!
//! The state file is written before anything is made, and removed after everything is gone.

use super::conditions::StoredCondition;
use super::plan::{TestbedPlan, id_of};
use super::shape::{LinkRate, NODES_MAX, RACK_NODES_MAX, RACKS_MAX};
use crate::cell::CellFolder;
use crate::exit::{CONFIG, Failure, IN_USE, NOT_FOUND, REFUSED};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use zonal_disk::trusted_paths::{self, Folder, PathRefusal};

/// Default folder of a testbed.
pub const DEFAULT_DIR: &str = "/var/lib/zonal/testbed";
/// Name of the state file.
const STATE: &str = "testbed.json";
/// Folder of the cell.
const CELL: &str = "cell";
/// Mount point of the cell.
const MOUNT: &str = "mnt";
/// Lock of the folder; [`CellFolder::lock`] makes it.
const LOCK: &str = "lock";
/// Version of the state file.
const VERSION: u32 = 1;
/// Largest state file that is read, in bytes.
const STATE_MAX: u64 = 1 << 20;

/// The process that keeps a node's mount namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeKeeper {
    /// Its process id.
    pub pid: i32,
    /// Inode of its mount namespace, which tells it from a later process of the same id.
    pub mount_namespace: u64,
}

/// Contents of the state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestbedState {
    version: u32,
    /// The testbed's id.
    pub id: String,
    /// Number of racks.
    pub racks: u16,
    /// Nodes in each rack.
    pub nodes: u16,
    /// Nodes of each rack with a target.
    pub storage_nodes: u16,
    /// `up` has ended.
    pub is_complete: bool,
    /// `up` made the folder.
    pub made_dir: bool,
    /// `up` made the folder that nodes cover for their own sockets.
    pub made_sockets_folder: bool,
    /// Rate of each link.
    pub rates: BTreeMap<String, LinkRate>,
    /// Added delay and loss of links that have some.
    #[serde(default)]
    pub conditions: BTreeMap<String, StoredCondition>,
    /// Seed of the losses.
    #[serde(default)]
    pub loss_seed: u64,
    /// Keeper of each node.
    pub keepers: BTreeMap<String, NodeKeeper>,
}

/// The folder of a testbed.
#[derive(Debug)]
pub struct TestbedFolder {
    folder: Folder,
}

impl TestbedState {
    /// The state of a testbed of which nothing is made.
    pub fn new(plan: &TestbedPlan, storage_nodes: u16, rates: BTreeMap<String, LinkRate>) -> Self {
        Self {
            version: VERSION,
            id: plan.id.clone(),
            racks: plan.racks,
            nodes: plan.nodes,
            storage_nodes,
            is_complete: false,
            made_dir: false,
            made_sockets_folder: false,
            rates,
            conditions: BTreeMap::new(),
            loss_seed: 0,
            keepers: BTreeMap::new(),
        }
    }

    /// The plan that the testbed was made of.
    pub fn plan(&self) -> TestbedPlan {
        TestbedPlan {
            id: self.id.clone(),
            racks: self.racks,
            nodes: self.nodes,
        }
    }

    /// Whether all of it can be of a testbed.
    fn is_sound(&self) -> bool {
        let is_id = self.id.len() == 10 && self.id.bytes().all(|digit| digit.is_ascii_hexdigit());
        let is_shape = (1..=RACKS_MAX).contains(&self.racks)
            && (1..=RACK_NODES_MAX).contains(&self.nodes)
            && self.racks * self.nodes <= NODES_MAX;
        let links = if is_id && is_shape {
            self.plan().links()
        } else {
            Vec::new()
        };
        let has_rates = links.iter().all(|link| self.rates.contains_key(&link.name));
        self.version == VERSION && !links.is_empty() && has_rates
    }
}

impl TestbedFolder {
    /// Opens a folder that may hold a testbed.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        match trusted_paths::open(dir) {
            Ok(folder) => Ok(Self { folder }),
            Err(error) if error.is_missing() => Err(none(dir).into()),
            Err(PathRefusal::Kind { .. }) => Err(none(dir).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the folder for a new testbed, made if missing; whether it was made.
    pub fn make(dir: &Path) -> anyhow::Result<(Self, bool)> {
        if dir.to_str().is_none_or(|text| text.contains('\n')) {
            let text = format!("{} is no plain text", crate::console::path(dir));
            return Err(Failure::new(REFUSED, text)
                .hint("name another folder with --dir")
                .into());
        }
        let is_new = !dir.exists();
        let folder = trusted_paths::make(dir)?;
        Ok((Self { folder }, is_new))
    }

    /// Path of the folder, absolute and without links.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// Folder of the cell.
    pub fn cell(&self) -> PathBuf {
        self.dir().join(CELL)
    }

    /// Mount point of the cell in each node.
    pub fn mount(&self) -> PathBuf {
        self.dir().join(MOUNT)
    }

    /// Waits for other commands on this testbed, and locks them out.
    pub fn lock(&self) -> anyhow::Result<File> {
        CellFolder::lock(self.dir())
    }

    /// Fails if the folder holds a testbed or anything else.
    pub fn require_empty(&self) -> anyhow::Result<()> {
        let dir = self.dir().display().to_string();
        let entries = std::fs::read_dir(self.dir()).with_context(|| dir.clone())?;
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names = names.filter(|name| name != LOCK && name != "lost+found");
        match names.next() {
            None => Ok(()),
            Some(_) if self.dir().join(STATE).exists() => {
                let text = format!("a testbed is in {dir}; nothing was changed");
                let hint = format!("`zonal testbed down --dir {dir}` removes it");
                Err(Failure::new(IN_USE, text).hint(hint).into())
            }
            Some(_) => {
                let text = format!("{dir} is not empty and no testbed; nothing was touched");
                let hint = "name an empty or new folder with --dir";
                Err(Failure::new(REFUSED, text).hint(hint).into())
            }
        }
    }

    /// The state, if there is a state file.
    pub fn find_state(&self) -> anyhow::Result<Option<TestbedState>> {
        let Some(text) = self.folder.text(STATE, STATE_MAX)? else {
            return Ok(None);
        };
        let bad = |why: String| {
            let path = self.dir().join(STATE);
            let text = format!("{}: {why}", path.display());
            Failure::new(CONFIG, text).hint("`zonal testbed down` removes the testbed still")
        };
        let state: TestbedState =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        if !state.is_sound() {
            return Err(bad("not the state of a testbed of this version".to_owned()).into());
        }
        Ok(Some(state))
    }

    /// The state of a testbed that is up.
    pub fn state(&self) -> anyhow::Result<TestbedState> {
        let state = self.find_state()?.ok_or_else(|| none(self.dir()))?;
        if state.is_complete {
            return Ok(state);
        }
        let text = format!("the testbed in {} is not complete", self.dir().display());
        let hint = "wait for `zonal testbed up`, or remove its rest by `zonal testbed down`";
        Err(Failure::new(NOT_FOUND, text).hint(hint).into())
    }

    /// Ids of testbeds that this folder can have.
    pub fn ids(&self) -> BTreeSet<String> {
        let state = self.find_state().ok().flatten();
        let ids = state.map(|state| state.id);
        ids.into_iter().chain([id_of(self.dir())]).collect()
    }

    /// Whether a state file, sound or not, is there.
    pub fn has_state(&self) -> bool {
        std::fs::symlink_metadata(self.dir().join(STATE)).is_ok()
    }

    /// Writes the state.
    pub fn save(&self, state: &TestbedState) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(state).context("state")? + "\n";
        let written = self.folder.replace(STATE, text.as_bytes(), 0o644);
        written.with_context(|| self.dir().join(STATE).display().to_string())
    }

    /// Removes everything that a testbed has in the folder: the state last of what a later `down`
    /// needs, then the lock, which the caller holds.
    pub fn clear(&self, removes_dir: bool) -> anyhow::Result<()> {
        for name in [CELL, MOUNT, STATE] {
            let removed = self.folder.remove(name);
            removed.with_context(|| self.dir().join(name).display().to_string())?;
        }
        let entries = std::fs::read_dir(self.dir())
            .into_iter()
            .flatten()
            .flatten();
        let left = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_temporary = |name: &String| {
            let rest = name.strip_prefix("testbed.json.");
            rest.is_some_and(|rest| rest.ends_with(".new"))
        };
        for name in left.filter(is_temporary) {
            let _ = self.folder.unlink(&name);
        }
        let _ = self.folder.unlink(LOCK);
        if removes_dir {
            let _ = std::fs::remove_dir(self.dir());
        }
        Ok(())
    }

    /// Removes the lock and, if nothing else is in it, the folder.
    pub fn clear_lock(&self) {
        let _ = self.folder.unlink(LOCK);
        let _ = std::fs::remove_dir(self.dir());
    }
}

/// The error for a folder without a testbed.
pub fn none(dir: &Path) -> Failure {
    let text = format!("no testbed in {}", dir.display());
    let hint = "make one with `zonal testbed up`, or name its folder with --dir";
    Failure::new(NOT_FOUND, text).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    fn state() -> TestbedState {
        let plan = TestbedPlan {
            id: "0123456789".to_owned(),
            racks: 2,
            nodes: 2,
        };
        let links = plan.links().into_iter();
        let rates = links.map(|link| (link.name, LinkRate(1_000_000))).collect();
        TestbedState::new(&plan, 2, rates)
    }

    #[test]
    fn the_state_is_read_as_it_was_written() {
        let scratch = Scratch::new("testbed-state");
        let (folder, is_new) = TestbedFolder::make(&scratch.join("new")).unwrap();
        assert!(is_new && folder.find_state().unwrap().is_none());
        folder.require_empty().unwrap();
        let mut state = state();
        folder.save(&state).unwrap();
        assert_eq!(folder.find_state().unwrap(), Some(state.clone()));
        assert!(folder.state().is_err(), "it is not complete");
        let error = folder.require_empty().unwrap_err();
        assert_eq!(crate::exit::code(&error), IN_USE);
        state.is_complete = true;
        folder.save(&state).unwrap();
        assert_eq!(folder.state().unwrap(), state);
        folder.clear(true).unwrap();
        assert!(!scratch.join("new").exists());
    }

    #[test]
    fn a_damaged_state_leaves_no_file_behind() {
        let scratch = Scratch::new("testbed-damaged");
        let (folder, _) = TestbedFolder::make(&scratch).unwrap();
        let _lock = folder.lock().unwrap();
        std::fs::write(scratch.join(STATE), "{ \"version\": ").unwrap();
        assert!(folder.find_state().is_err() && folder.has_state());
        folder.clear(false).unwrap();
        assert_eq!(std::fs::read_dir(&*scratch).unwrap().count(), 0);
    }

    #[test]
    fn a_state_that_no_testbed_has_is_refused() {
        let scratch = Scratch::new("testbed-unsound");
        let (folder, _) = TestbedFolder::make(&scratch).unwrap();
        let changes: [fn(&mut TestbedState); 5] = [
            |state| state.version = 0,
            |state| state.id = "../../etc".to_owned(),
            |state| state.racks = 0,
            |state| state.nodes = 99,
            |state| state.rates.clear(),
        ];
        for change in changes {
            let mut state = state();
            change(&mut state);
            folder.save(&state).unwrap();
            let error = folder.find_state().unwrap_err();
            assert_eq!(crate::exit::code(&error), CONFIG);
            assert!(folder.has_state() && folder.ids().len() == 1);
        }
        std::fs::write(scratch.join("mine"), "").unwrap();
        folder.clear(true).unwrap();
        let error = folder.require_empty().unwrap_err();
        assert_eq!(crate::exit::code(&error), REFUSED);
    }
}
