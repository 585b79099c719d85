//! Recovery of a group that has lost its majority for good, from the store of one stopped server. A
//! command makes its replica the only member, and its log becomes the group's.
//!
//! Entries that only the lost replicas had are lost, though they may have been acknowledged. A file
//! in the store's folder keeps the record of it.

use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::stores;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use zonal_consensus::{EntryLog, Membership, ReplicaId};
use zonal_disk::{DiskError, Engine, ReplicaStore, StoreDir, StoreIdentity, StoreKind};
use zonal_types::NodeId;

/// Name of the file in a store's folder that keeps the record of recoveries, a line each.
pub const RECOVERIES_FILE: &str = "recoveries";

/// The store of a replica, opened while its server is stopped.
pub struct ReplicaRecovery {
    node: NodeId,
    dir: PathBuf,
    store: ReplicaStore,
    written: Option<SystemTime>,
}

/// The nodes of members.
fn nodes(members: &[ReplicaId]) -> Vec<NodeId> {
    let nodes = members.iter().filter_map(|one| u32::try_from(one.0).ok());
    nodes.map(NodeId).collect()
}

impl ReplicaRecovery {
    /// Opens the store of a node's replica; `None` where the node has none that is a member.
    ///
    /// # Errors
    /// The store cannot be opened, as while its server runs.
    pub fn open(config: &NodeConfig) -> Result<Option<Self>, ServerError> {
        let (dir, kind, bounds) = match (&config.manager_role, &config.meta_role) {
            (Some(bounds), _) => (config.manager_dir(), StoreKind::Manager, bounds),
            (None, Some(bounds)) => (config.meta_dir(), StoreKind::Shard, bounds),
            (None, None) => return Ok(None),
        };
        if !config.replicated {
            return Ok(None);
        }
        let identity = StoreIdentity {
            cell: config.cell.0,
            kind,
            id: config.node.0,
        };
        // Before the opening writes to it.
        let written = std::fs::metadata(dir.join("log"));
        let written = written.and_then(|log| log.modified()).ok();
        let open = || -> Result<Option<ReplicaStore>, DiskError> {
            let folder = StoreDir::plain(&dir);
            let mut found = Vec::new();
            let bounds = stores::engine_config(bounds);
            let engine = Engine::open_in(&folder, &identity, bounds, &mut |record, end, _| {
                if record.changes.is_empty() {
                    found.push((record.note.clone(), end));
                }
                true
            })?;
            if !ReplicaStore::is_member(&engine)? {
                return Ok(None);
            }
            ReplicaStore::over(Arc::new(engine), folder, found).map(Some)
        };
        let opened = open().map_err(|source| ServerError::Store {
            dir: dir.clone(),
            source,
        })?;
        Ok(opened.map(|store| Self {
            node: config.node,
            dir,
            store,
            written,
        }))
    }

    /// Nodes of the members that vote, and of those that learn.
    #[must_use]
    pub fn members(&self) -> (Vec<NodeId>, Vec<NodeId>) {
        let (_, members) = self.store.membership();
        (nodes(&members.voters), nodes(&members.learners))
    }

    /// The last entry of its log, and the last that it knows to be committed.
    #[must_use]
    pub fn entries(&self) -> (u64, u64) {
        (self.store.last().0, self.store.applied_entry().0.0)
    }

    /// When its log was written last.
    #[must_use]
    pub fn written(&self) -> Option<SystemTime> {
        self.written
    }

    /// The file of the record of recoveries.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.dir.join(RECOVERIES_FILE)
    }

    /// Writes the record down, then makes this replica the only member.
    ///
    /// # Errors
    /// The medium fails; the members are as before then.
    pub fn make_only_member(&self, line: &str) -> Result<(), ServerError> {
        let failed = |source| ServerError::Store {
            dir: self.dir.clone(),
            source,
        };
        let record = || -> std::io::Result<()> {
            let mut file = std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(self.record())?;
            writeln!(file, "{line}")?;
            file.sync_all()
        };
        record().map_err(|error| failed(DiskError::io("write the record of recoveries", error)))?;
        let own = ReplicaId(u64::from(self.node.0));
        let members = Membership::of_voters([own]);
        let set = || -> Result<(), DiskError> {
            // First: lost members that come back are refused from here on.
            self.store.begin_generation()?;
            self.store.note_members(self.store.last(), members)?;
            self.store.engine().checkpoint(&mut || Ok(()))
        };
        set().map_err(failed)
    }
}
