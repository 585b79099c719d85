//! The nodes of the null file system: a slab in shards, each behind a lock.
//!
//! No operation holds the locks of two shards at once, so no order is needed. Operations on two
//! nodes (create, remove, rename) are not atomic for observers; the kernel's directory locks hide
//! it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::types::{FuseAttr, FuseTimestamp};

/// Number of shards; a node's shard is its number modulo this.
const SHARDS: usize = 64;

/// The entries of a directory: by name, and by cookie in the order of creation.
#[derive(Debug, Default)]
pub(super) struct Directory {
    names: HashMap<Arc<[u8]>, (u64, u64)>,
    order: BTreeMap<u64, (Arc<[u8]>, u64, u32)>,
    next: u64,
    pub(super) parent: u64,
}

/// Lower cookies are "." and "..".
pub(super) const FIRST_COOKIE: u64 = 3;

impl Directory {
    pub(super) fn new(parent: u64) -> Self {
        Self {
            parent,
            next: FIRST_COOKIE,
            ..Self::default()
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).map(|&(ino, _)| ino)
    }

    /// Adds an entry; false where the name exists.
    pub(super) fn insert(&mut self, name: &[u8], ino: u64, mode: u32) -> bool {
        if self.names.contains_key(name) {
            return false;
        }
        let name: Arc<[u8]> = name.into();
        let cookie = self.next;
        self.next += 1;
        self.names.insert(name.clone(), (ino, cookie));
        self.order.insert(cookie, (name, ino, mode));
        true
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let (ino, cookie) = self.names.remove(name)?;
        self.order.remove(&cookie);
        Some(ino)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The entries after a cookie: cookie, name, inode, mode.
    pub(super) fn after(
        &self,
        cookie: u64,
    ) -> impl Iterator<Item = (u64, &Arc<[u8]>, u64, u32)> + '_ {
        self.order
            .range(cookie.saturating_add(1).max(FIRST_COOKIE)..)
            .map(|(&cookie, (name, ino, mode))| (cookie, name, *ino, *mode))
    }
}

/// Contents of a node besides its attributes.
#[derive(Debug)]
pub(super) enum Body {
    Directory(Directory),
    Symlink(Vec<u8>),
    Other,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) attr: FuseAttr,
    pub(super) body: Body,
}

impl Node {
    pub(super) fn directory(&mut self) -> Option<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }
}

/// Slots of nodes. Numbers are never reused, as the list of a shard only grows.
type Slab = Vec<Option<Box<Node>>>;

#[derive(Debug)]
pub(super) struct Tree {
    shards: Vec<RwLock<Slab>>,
    next: AtomicUsize,
}

impl Tree {
    pub(super) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::new(Vec::new())).collect();
        Self {
            shards,
            next: AtomicUsize::new(0),
        }
    }

    fn place(ino: u64) -> (usize, usize) {
        let number = usize::try_from(ino).unwrap_or(usize::MAX) - 1;
        (number % SHARDS, number / SHARDS)
    }

    fn read(&self, shard: usize) -> Option<RwLockReadGuard<'_, Slab>> {
        Some(
            self.shards
                .get(shard)?
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn write(&self, shard: usize) -> Option<RwLockWriteGuard<'_, Slab>> {
        Some(
            self.shards
                .get(shard)?
                .write()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Adds a node and numbers it; the first one is the root, 1.
    pub(super) fn add(&self, mut attr: FuseAttr, body: Body) -> FuseAttr {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        attr.ino = number as u64 + 1;
        let (shard, index) = Self::place(attr.ino);
        if let Some(mut slab) = self.write(shard) {
            if slab.len() <= index {
                slab.resize_with(index + 1, || None);
            }
            if let Some(place) = slab.get_mut(index) {
                *place = Some(Box::new(Node { attr, body }));
            }
        }
        attr
    }

    pub(super) fn with<T>(&self, ino: u64, f: impl FnOnce(&Node) -> T) -> Option<T> {
        let (shard, index) = Self::place(ino.max(1));
        let slab = self.read(shard)?;
        slab.get(index)?.as_deref().map(f)
    }

    pub(super) fn with_mut<T>(&self, ino: u64, f: impl FnOnce(&mut Node) -> T) -> Option<T> {
        let (shard, index) = Self::place(ino.max(1));
        let mut slab = self.write(shard)?;
        slab.get_mut(index)?.as_deref_mut().map(f)
    }

    pub(super) fn attr(&self, ino: u64) -> Option<FuseAttr> {
        self.with(ino, |node| node.attr)
    }

    /// Removes a node.
    pub(super) fn remove(&self, ino: u64) {
        let (shard, index) = Self::place(ino.max(1));
        if let Some(mut slab) = self.write(shard)
            && let Some(place) = slab.get_mut(index)
        {
            *place = None;
        }
    }
}

/// The present time.
pub(super) fn now() -> FuseTimestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let secs = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    FuseTimestamp {
        secs,
        nanos: since.subsec_nanos(),
    }
}
