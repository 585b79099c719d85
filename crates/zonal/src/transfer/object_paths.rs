//! Paths of objects. The shard that gave a data id knows its inode, the inode its directory, and
//! the directory its names.

use crate::cell::connection::CellHandle;
use anyhow::Context;
use std::collections::BTreeMap;
use std::sync::Arc;
use zonal_client::names::ListingPage;
use zonal_client::{Client, ClientOptions};
use zonal_native::{RealNet, block_on};
use zonal_net::{Identity, Pool, PoolConfig, Role};
use zonal_types::limits::READDIR_ENTRIES_MAX;
use zonal_types::{ClientId, Credentials, DataId, ErrorCode, Ino, NodeId, ZoneId};

/// Most entries cached; when full, the cache is emptied.
const ENTRIES_MAX: usize = 1 << 20;
/// Most directories with a cached path; when full, the cache is emptied.
const DIRECTORIES_MAX: usize = 65_536;
/// Most levels of directories; a longer chain of parents is a cycle.
const DEPTH_MAX: usize = 2048;

/// Looks up paths in a running cell.
pub struct ObjectPaths {
    client: Client<RealNet>,
    who: Credentials,
    known: BTreeMap<Ino, BTreeMap<Ino, String>>,
    entries: usize,
    /// Paths of directories, for [`Self::path_in`].
    directories: BTreeMap<Ino, Option<String>>,
}

impl ObjectPaths {
    /// Connects as a client would.
    pub fn new(cell: &CellHandle) -> anyhow::Result<Self> {
        let identity = Identity::new(cell.id, Role::Tool, NodeId(0), cell.credential.clone());
        let pool = Arc::new(Pool::new(identity, PoolConfig::default()));
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| anyhow::anyhow!("random bytes: {error}"))?;
        let options = ClientOptions::of_managers(
            cell.manager_list(),
            ZoneId(1),
            ClientId(u64::from_le_bytes(random) | 1),
        );
        let client = block_on(Client::connect(RealNet::new(pool), options));
        Ok(Self {
            client: client.map_err(|code| anyhow::anyhow!("look paths up: {code}"))?,
            who: Credentials {
                uid: 0,
                gid: 0,
                groups: Vec::new(),
            },
            known: BTreeMap::new(),
            entries: 0,
            directories: BTreeMap::new(),
        })
    }

    /// A path below the cell's root of the file with this data id; `None` if it has none.
    pub fn path(&mut self, data: DataId) -> Option<String> {
        let ino = block_on(self.client.begin().file_of(data)).ok()?;
        self.path_of(ino)
    }

    /// A path below the cell's root of an inode; `None` if it has none.
    pub fn path_of(&mut self, mut ino: Ino) -> Option<String> {
        let mut parts = Vec::new();
        while ino != Ino::ROOT {
            if parts.len() > DEPTH_MAX {
                return None;
            }
            let parent = block_on(self.client.begin().parent(ino)).ok()?;
            parts.push(self.name_in(parent, ino)?);
            ino = parent;
        }
        parts.reverse();
        Some(format!("/{}", parts.join("/")))
    }

    /// As [`Self::path_of`], for an inode that is probably in this directory. The directory is
    /// looked up once for all its files.
    pub fn path_in(&mut self, dir: Ino, ino: Ino) -> Option<String> {
        let Some(name) = self.name_in(dir, ino) else {
            return self.path_of(ino);
        };
        if self.directories.len() >= DIRECTORIES_MAX {
            self.directories.clear();
        }
        let known = self.directories.get(&dir).cloned();
        let above = known.unwrap_or_else(|| self.path_of(dir));
        self.directories.insert(dir, above.clone());
        Some(format!("{}/{name}", above?.trim_end_matches('/')))
    }

    fn name_in(&mut self, dir: Ino, wanted: Ino) -> Option<String> {
        if !self.known.contains_key(&dir) {
            let names = self.list(dir).ok()?;
            if self.entries > ENTRIES_MAX {
                self.known.clear();
                self.entries = 0;
            }
            self.entries += names.len();
            self.known.insert(dir, names);
        }
        self.known.get(&dir)?.get(&wanted).cloned()
    }

    fn list(&self, dir: Ino) -> Result<BTreeMap<Ino, String>, ErrorCode> {
        let limit = u32::try_from(READDIR_ENTRIES_MAX).unwrap_or(u32::MAX);
        let (mut names, mut cookie) = (BTreeMap::new(), 0);
        loop {
            let call = self.client.begin();
            let listing = call.readdir(&self.who, dir, ListingPage::new(cookie, limit, false));
            let (entries, end) = block_on(listing)?;
            for entry in &entries {
                let name = entry.name.to_string();
                names.entry(entry.entry.ino).or_insert(name);
            }
            match entries.last() {
                Some(last) if !end => cookie = last.cookie,
                _ => return Ok(names),
            }
        }
    }

    /// Ends the session.
    pub fn close(self) -> anyhow::Result<()> {
        let closed = block_on(self.client.begin().close());
        closed
            .map_err(|code| anyhow::anyhow!("{code}"))
            .context("end the session")
    }
}
