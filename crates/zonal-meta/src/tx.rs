//! Transaction: one request's view of the store, with the changes that the request would make.
//! Nothing of it counts until the shard takes it over ([`Tx::finish`]). A request that must wait
//! first drops its transaction and runs again later.

use crate::config::{Now, ShardConfig};
use crate::dentry::{Dentry, name_cookie};
use crate::id_ranges::{Counter, IdRange, IdRanges};
use crate::inode::Inode;
use crate::inode_counts;
use crate::keys;
use crate::moves::Departure;
use crate::open_files::OpenFiles;
use crate::outcome::{Facts, JunctionChange, Question};
use crate::recent_removals::{RecentRemovals, RemovedInode};
use crate::shard_loads::ShardLoads;
use crate::spare_partitions::SparePartitions;
use crate::stripe_set_choice::StripeSetChooser;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use zonal_types::{
    Codec, DataId, ErrorCode, FileKind, Ino, KvChange, KvRead, MapVersion, Name, PartitionId,
    SessionId, ShardId, codec_struct,
};
use zonal_wire::MetaRequest;
use zonal_zonemap::ZoneMap;

codec_struct! {
    /// The stored value of an orphan.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OrphanRecord {
        /// Sessions that had it open when it lost its name.
        sessions: Vec<SessionId>,
    }
}

/// State outside of the store that an operation may read.
pub(crate) struct Env<'a> {
    pub config: &'a ShardConfig,
    pub map: &'a ZoneMap,
    pub partitions: &'a [PartitionId],
    pub opens: &'a OpenFiles,
    pub ids: &'a IdRanges,
    /// Recently removed inodes.
    pub recent: &'a RecentRemovals,
    /// Sessions that may hold files open that they have not reclaimed since our start.
    pub silent: &'a BTreeSet<SessionId>,
    pub live_inodes: u64,
    /// Number of first bytes that new files leave to the shard.
    pub inline_bytes: u32,
    pub sets: &'a StripeSetChooser,
    /// Files may lie in other zones.
    pub has_remote_data: bool,
    /// Loads of the zones' shards.
    pub loads: &'a ShardLoads,
    /// Partitions without inodes.
    pub spare: &'a SparePartitions,
    /// Partitions about which nothing is answered.
    pub frozen: &'a BTreeSet<PartitionId>,
    /// Partitions that are leaving: no first-level directory takes one.
    pub leaving: &'a BTreeMap<PartitionId, Departure>,
}

/// A change of state in memory, applied when the request counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemoryChange {
    Open(Ino),
    /// The session alone knows the bytes behind the end of a file that it has open; or it no longer
    /// does.
    Owned(Ino),
    Unowned(Ino),
    Orphaned(Ino, BTreeSet<SessionId>),
    Unorphaned(Ino),
    Ids(PartitionId, IdRange),
    /// A first-level directory takes a partition, or leaves it.
    PartitionTaken(PartitionId),
    PartitionLeft(PartitionId),
    /// So many inodes more, or less.
    Inodes(i64),
    InodeGone(Box<RemovedInode>),
    InodeBack(Ino),
    /// The file was truncated: places of appends behind its end are void.
    Truncated(Ino, u64),
    /// A file lies in another zone.
    RemoteData,
}

struct Cached {
    before: Option<Inode>,
    now: Option<Inode>,
}

/// An inode that a request changes.
#[derive(Debug, Clone)]
pub(crate) struct Changed {
    pub before: Inode,
    pub now: Option<Inode>,
}

/// The changes of a finished request.
pub(crate) struct Finished {
    pub effect: Vec<KvChange>,
    /// Inodes that existed before.
    pub inodes: Vec<Changed>,
    /// Directories whose entries change.
    pub directories: BTreeSet<Ino>,
    pub volatile: Vec<MemoryChange>,
    pub junctions: Vec<JunctionChange>,
    pub after: Vec<(ShardId, MetaRequest)>,
    pub call: Option<(ShardId, MetaRequest, Question)>,
}

pub(crate) struct Tx<'a> {
    pub env: Env<'a>,
    pub now: Now,
    pub session: SessionId,
    /// Identifies this request at other shards; 0 where it is not exactly-once.
    pub token: u64,
    /// The size that an ending append publishes, known when it counts.
    pub published: u64,
    pub facts: Facts,
    pub volatile: Vec<MemoryChange>,
    pub junctions: Vec<JunctionChange>,
    pub after: Vec<(ShardId, MetaRequest)>,
    /// The directory whose lease covers the cacheable parts of the reply.
    pub lease: Option<Ino>,
    /// Set by an operation that needs another shard's answer first; it then fails with any code.
    pub call: Option<(ShardId, MetaRequest, Question)>,
    kv: &'a dyn KvRead,
    raw: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    inodes: BTreeMap<Ino, Cached>,
    directories: BTreeSet<Ino>,
}

impl<'a> Tx<'a> {
    pub fn new(env: Env<'a>, kv: &'a dyn KvRead, now: Now, session: SessionId) -> Self {
        Self {
            env,
            now,
            session,
            token: 0,
            published: 0,
            facts: Facts::default(),
            volatile: Vec::new(),
            junctions: Vec::new(),
            after: Vec::new(),
            lease: None,
            call: None,
            kv,
            raw: BTreeMap::new(),
            inodes: BTreeMap::new(),
            directories: BTreeSet::new(),
        }
    }

    /// The version of the shard's map.
    pub fn map_version(&self) -> MapVersion {
        self.env.map.version
    }

    /// The store as it was before the request.
    pub fn kv(&self) -> &'a dyn KvRead {
        self.kv
    }

    // --- plain keys ---

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        match self.raw.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.kv.get(key),
        }
    }

    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.raw.insert(key, Some(value));
    }

    pub fn remove(&mut self, key: Vec<u8>) {
        self.raw.insert(key, None);
    }

    /// All keys and values of a range that is known to be small.
    pub fn range(&self, start: &[u8], end: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, ErrorCode> {
        let mut found = BTreeMap::new();
        self.kv.scan(start, end, &mut |key, value| {
            found.insert(key.to_vec(), value.to_vec());
            true
        })?;
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        for (key, value) in self.raw.range::<[u8], _>(bounds) {
            match value {
                Some(value) => found.insert(key.clone(), value.clone()),
                None => found.remove(key),
            };
        }
        Ok(found)
    }

    // --- inodes ---

    /// True where the inode's partition is ours.
    pub fn is_ours(&self, ino: Ino) -> bool {
        ino.is_valid() && self.env.partitions.binary_search(&ino.partition()).is_ok()
    }

    /// The inode, if it exists here.
    pub fn find(&mut self, ino: Ino) -> Result<Option<Inode>, ErrorCode> {
        if let Some(cached) = self.inodes.get(&ino) {
            return Ok(cached.now.clone());
        }
        let inode = match self.kv.get(&keys::inode(ino))? {
            Some(bytes) => Some(Inode::decode(ino, &bytes)?),
            None => None,
        };
        let cached = Cached {
            before: inode.clone(),
            now: inode.clone(),
        };
        self.inodes.insert(ino, cached);
        Ok(inode)
    }

    /// The inode that a request names. `NotOwner` where its partition belongs to another shard,
    /// `NotReady` where it is about to, `Stale` where it is gone.
    pub fn inode(&mut self, ino: Ino) -> Result<Inode, ErrorCode> {
        if !ino.is_valid() {
            return Err(ErrorCode::Stale);
        }
        if !self.is_ours(ino) {
            return Err(ErrorCode::NotOwner);
        }
        if self.env.frozen.contains(&ino.partition()) {
            return Err(ErrorCode::NotReady);
        }
        self.find(ino)?.ok_or(ErrorCode::Stale)
    }

    /// As [`Self::inode`], for reading only: also finds a recently removed inode.
    pub fn inode_or_removed(&mut self, ino: Ino) -> Result<Inode, ErrorCode> {
        match self.inode(ino) {
            Err(ErrorCode::Stale) => {
                let kept = self.env.recent.get(ino).ok_or(ErrorCode::Stale)?;
                Ok(kept.inode.clone())
            }
            other => other,
        }
    }

    /// The directory that a request names. A removed one has no entries and takes none: `NotFound`.
    pub fn directory(&mut self, ino: Ino) -> Result<Inode, ErrorCode> {
        match self.inode(ino) {
            Ok(inode) if inode.is_dir() => Ok(inode),
            Ok(_) => Err(ErrorCode::NotDirectory),
            Err(ErrorCode::Stale) => Err(ErrorCode::NotFound),
            Err(code) => Err(code),
        }
    }

    /// The inode of an entry that we found: it must exist.
    pub fn target(&mut self, ino: Ino) -> Result<Inode, ErrorCode> {
        self.find(ino)?.ok_or(ErrorCode::Corrupt)
    }

    pub fn save(&mut self, inode: Inode) {
        let cached = self.inodes.entry(inode.ino).or_insert(Cached {
            before: None,
            now: None,
        });
        cached.now = Some(inode);
    }

    pub fn erase(&mut self, ino: Ino) {
        if let Some(cached) = self.inodes.get_mut(&ino) {
            cached.now = None;
        }
    }

    // --- entries ---

    /// The entry with this name and its cookie. One key read, except for names that share a hash.
    pub fn lookup(&self, dir: Ino, name: &Name) -> Result<Option<(u64, Dentry)>, ErrorCode> {
        let first = name_cookie(name.as_bytes(), self.env.config.hash_bits);
        let Some(bytes) = self.get(&keys::dentry(dir, first))? else {
            return Ok(None);
        };
        let dentry = Dentry::decode(&bytes)?;
        if !dentry.is_mark() && dentry.name == *name {
            return Ok(Some((first, dentry)));
        }
        if !dentry.chained {
            return Ok(None);
        }
        let chain = self.chain(dir, first)?;
        let found = chain
            .into_iter()
            .find(|(_, dentry)| !dentry.is_mark() && dentry.name == *name);
        Ok(found)
    }

    fn chain(&self, dir: Ino, first: u64) -> Result<Vec<(u64, Dentry)>, ErrorCode> {
        let range = self.range(
            &keys::dentry(dir, first),
            &keys::dentry(dir, first.saturating_add(256)),
        )?;
        range
            .iter()
            .map(|(key, value)| {
                let cookie = keys::dentry_cookie(key).ok_or(ErrorCode::Corrupt)?;
                Ok((cookie, Dentry::decode(value)?))
            })
            .collect()
    }

    /// Adds an entry; the name is known to be absent.
    pub fn add_entry(
        &mut self,
        dir: Ino,
        name: &Name,
        ino: Ino,
        kind: FileKind,
    ) -> Result<(), ErrorCode> {
        self.directories.insert(dir);
        self.join(dir, ino)?;
        let first = name_cookie(name.as_bytes(), self.env.config.hash_bits);
        let mut new = Dentry {
            ino,
            kind,
            chained: false,
            name: name.clone(),
        };
        let first_key = keys::dentry(dir, first);
        let Some(bytes) = self.get(&first_key)? else {
            self.put(first_key, new.to_bytes());
            return Ok(());
        };
        let mut head = Dentry::decode(&bytes)?;
        if head.is_mark() {
            new.chained = head.chained;
            self.put(first_key, new.to_bytes());
            return Ok(());
        }
        let taken: BTreeSet<u64> = self
            .chain(dir, first)?
            .iter()
            .map(|place| place.0)
            .collect();
        let free = (first..first + 256).find(|cookie| !taken.contains(cookie));
        let free = free.ok_or(ErrorCode::NoSpace)?;
        assert_eq!(free & !0xff, first, "an entry lies outside of its chain");
        if !head.chained {
            head.chained = true;
            self.put(first_key, head.to_bytes());
        }
        self.put(keys::dentry(dir, free), new.to_bytes());
        Ok(())
    }

    /// Makes an entry lead elsewhere; its cookie stays.
    pub fn set_entry(&mut self, dir: Ino, cookie: u64, dentry: &Dentry) -> Result<(), ErrorCode> {
        self.directories.insert(dir);
        self.join(dir, dentry.ino)?;
        self.put(keys::dentry(dir, cookie), dentry.to_bytes());
        Ok(())
    }

    /// Notes where a name leads from one partition into another: neither moves alone.
    fn join(&mut self, dir: Ino, ino: Ino) -> Result<(), ErrorCode> {
        let (above, below) = (dir.partition(), ino.partition());
        let is_first_level = dir == Ino::ROOT;
        if above == below || is_first_level || self.get(&keys::joined(above, below))?.is_some() {
            return Ok(());
        }
        self.put(keys::joined(above, below), Vec::new());
        self.put(keys::joined(below, above), Vec::new());
        Ok(())
    }

    /// Removes an entry that `lookup` found.
    pub fn remove_entry(&mut self, dir: Ino, cookie: u64) -> Result<(), ErrorCode> {
        self.directories.insert(dir);
        let first = cookie & !0xff;
        let key = keys::dentry(dir, cookie);
        let is_chained = match self.get(&keys::dentry(dir, first))? {
            Some(bytes) => Dentry::decode(&bytes)?.chained,
            None => false,
        };
        if !is_chained {
            self.remove(key);
            return Ok(());
        }
        let others = self.chain(dir, first)?;
        let has_others = others
            .iter()
            .any(|(other, dentry)| *other != cookie && !dentry.is_mark());
        if !has_others {
            self.remove(key);
            self.remove(keys::dentry(dir, first));
        } else if cookie == first {
            let mark = Dentry {
                ino: Ino(0),
                kind: FileKind::File,
                chained: true,
                name: Name::new(b"-")?,
            };
            self.put(key, mark.to_bytes());
        } else {
            self.remove(key);
        }
        Ok(())
    }

    // --- numbers ---

    /// A new inode number in this partition.
    pub fn new_ino(&mut self, partition: PartitionId) -> Result<Ino, ErrorCode> {
        let sequence = self.new_number(Counter::Inodes, partition)?;
        Ok(Ino::new(partition, sequence))
    }

    /// A new data id, of the partition of its inode: both stay at one shard when the partition
    /// moves.
    pub fn new_data_id(&mut self, partition: PartitionId) -> Result<DataId, ErrorCode> {
        let sequence = self.new_number(Counter::Data, partition)?;
        Ok(DataId::new(partition, sequence))
    }

    /// A new number. Ranges are reserved durably, so that a crash never gives a number twice.
    fn new_number(&mut self, counter: Counter, partition: PartitionId) -> Result<u64, ErrorCode> {
        let staged = self.volatile.iter().rev().find_map(|change| match change {
            MemoryChange::Ids(of, range) if *of == partition && range.counts(counter) => {
                Some(*range)
            }
            _ => None,
        });
        let mut range = match staged.or_else(|| self.env.ids.get(counter, partition)) {
            Some(range) => range,
            None => IdRanges::load(self.kv, counter, partition)?,
        };
        let (sequence, reserved) = range.take()?;
        if reserved {
            let key = counter.key(partition);
            self.put(key, range.record());
        }
        self.volatile.push(MemoryChange::Ids(partition, range));
        Ok(sequence)
    }

    /// The inode that has the bytes of a data id, by the store before the request.
    pub fn file_of(&self, id: DataId) -> Result<Option<Ino>, ErrorCode> {
        let found = self.kv.get(&keys::data(id))?;
        let found = found.map(|bytes| Ino::from_bytes(&bytes)).transpose();
        found.map_err(|_error| ErrorCode::Corrupt)
    }

    // --- other shards ---

    /// Asks another shard; the operation ends here and runs again with the answer.
    pub fn ask(&mut self, shard: ShardId, request: MetaRequest, question: Question) -> ErrorCode {
        self.call = Some((shard, request, question));
        ErrorCode::NotReady
    }

    /// The shard that owns an inode of another shard.
    pub fn shard_of(&self, ino: Ino) -> Result<ShardId, ErrorCode> {
        let shard = self.env.map.shard_of(ino.partition());
        match shard {
            Some(shard) if shard.id != self.env.config.shard => Ok(shard.id),
            _ => Err(ErrorCode::NotOwner),
        }
    }

    /// All changes, in key order. The keys from data ids to inodes follow the layouts.
    pub fn finish(mut self) -> Result<Finished, ErrorCode> {
        self.count_inodes()?;
        let mut raw = self.raw;
        let mut inodes = Vec::new();
        let mut indexed = Vec::new();
        for (ino, cached) in self.inodes {
            if cached.before == cached.now {
                continue;
            }
            let (before, now) = (&cached.before, &cached.now);
            if data_of(before) != data_of(now) {
                for id in data_of(before) {
                    raw.insert(keys::data(id), None);
                }
                let now = data_of(now).into_iter();
                indexed.extend(now.map(|id| (keys::data(id), Some(ino.to_bytes()))));
            }
            if is_unfinished(before) != is_unfinished(now) {
                let mark = is_unfinished(now).then(Vec::new);
                raw.insert(keys::stale(ino), mark);
            }
            raw.insert(keys::inode(ino), cached.now.as_ref().map(Codec::to_bytes));
            if let Some(before) = cached.before {
                inodes.push(Changed {
                    before,
                    now: cached.now,
                });
            }
        }
        // Last: one inode may lose a data id that another inode gets.
        raw.extend(indexed);
        let effect = raw.into_iter().map(|(key, value)| KvChange { key, value });
        Ok(Finished {
            effect: effect.collect(),
            inodes,
            directories: self.directories,
            volatile: self.volatile,
            junctions: self.junctions,
            after: self.after,
            call: self.call,
        })
    }

    /// Stores how many inodes the partitions have after this request.
    fn count_inodes(&mut self) -> Result<(), ErrorCode> {
        let mut changes: BTreeMap<PartitionId, i64> = BTreeMap::new();
        for (ino, cached) in &self.inodes {
            let change = i64::from(cached.now.is_some()) - i64::from(cached.before.is_some());
            if change != 0 {
                *changes.entry(ino.partition()).or_default() += change;
            }
        }
        for (partition, change) in changes.into_iter().filter(|(_, change)| *change != 0) {
            let key = keys::inode_count(partition);
            let value = inode_counts::changed(self.get(&key)?.as_deref(), change)?;
            self.put(key, value);
            self.volatile.push(MemoryChange::Inodes(change));
        }
        Ok(())
    }
}

/// True where a target has yet to fill something of the file.
fn is_unfinished(inode: &Option<Inode>) -> bool {
    inode
        .as_ref()
        .is_some_and(|inode| inode.layout.is_unfinished())
}

/// The data ids of an inode.
fn data_of(inode: &Option<Inode>) -> Vec<DataId> {
    let layout = inode.as_ref().map(|inode| &inode.layout);
    layout.map_or_else(Vec::new, |layout| layout.data_ids().collect())
}
