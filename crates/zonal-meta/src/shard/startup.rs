//! Startup of a shard: formats a store, and loads the state in memory from one.

use super::MetaShard;
use crate::append::Tickets;
use crate::append::lent_ends::LentEnds;
use crate::config::ShardConfig;
use crate::deletions::Deletions;
use crate::events::EventQueues;
use crate::fences::Fencing;
use crate::id_ranges::IdRanges;
use crate::inode::Inode;
use crate::inode_counts;
use crate::inode_records;
use crate::keys;
use crate::leases::Leases;
use crate::moves::Moves;
use crate::open_files::OpenFiles;
use crate::recent_removals::RecentRemovals;
use crate::scope_cache::ScopeCache;
use crate::session::Sessions;
use crate::shard_loads::ShardLoads;
use crate::spare_partitions::SparePartitions;
use crate::stripe_set_choice::StripeSetChooser;
use crate::tx::OrphanRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zonal_types::limits::{CACHE_GRACE_MS, CACHE_TERM_MS};
use zonal_types::{
    Codec, ErrorCode, FileKind, Ino, Instant, KvChange, KvRead, PartitionId, SessionId, Timestamp,
};
use zonal_wire::DirectoryTrafficTable;
use zonal_zonemap::ZoneMap;

/// Version of the store's format record.
const STORE_FORMAT: u16 = 3;

impl ShardConfig {
    /// The change that writes the store's format record.
    fn format(&self) -> KvChange {
        let record = (STORE_FORMAT, (self.shard, self.hash_bits));
        KvChange::put(keys::format(), record.to_bytes())
    }
}

impl MetaShard {
    /// The changes that make an empty store a shard's store.
    #[must_use]
    pub fn format(config: &ShardConfig, wall: Timestamp) -> Vec<KvChange> {
        let mut changes = vec![config.format()];
        if config.is_root() {
            let kind = FileKind::Directory;
            let mut root = Inode::new(Ino::ROOT, kind, Ino::ROOT, config.zone, wall);
            root.mode = 0o755;
            root.uid = config.root_uid;
            root.gid = config.root_gid;
            changes.push(KvChange::put(keys::inode(Ino::ROOT), root.to_bytes()));
            let count = keys::inode_count(Ino::ROOT.partition());
            changes.push(KvChange::put(count, 1_u64.to_bytes()));
        }
        changes
    }

    /// Loads the shard from a formatted store. `map` must already name the shard's partitions.
    ///
    /// # Errors
    /// `WrongVersion` or `WrongTarget` where the store is not this shard's; else the store's error.
    pub fn load(
        config: ShardConfig,
        map: Arc<ZoneMap>,
        kv: &dyn KvRead,
        now: Instant,
    ) -> Result<Self, ErrorCode> {
        let bytes = kv.get(&keys::format())?.ok_or(ErrorCode::WrongVersion)?;
        let record = <(u16, (zonal_types::ShardId, u32))>::from_bytes(&bytes);
        let (format, (shard, hash_bits)) = record.map_err(|_error| ErrorCode::Corrupt)?;
        if format != STORE_FORMAT || hash_bits != config.hash_bits {
            return Err(ErrorCode::WrongVersion);
        }
        if shard != config.shard {
            return Err(ErrorCode::WrongTarget);
        }
        let partitions = map.partitions_of(config.shard);
        let sessions = Sessions::load(kv, now)?;
        let mut events = EventQueues::new();
        sessions.ids().for_each(|id| events.open(id));
        let mut opens = OpenFiles::default();
        opens.orphans = load_orphans(kv, &partitions)?;
        let loads = match config.is_root() {
            true => ShardLoads::load(kv)?,
            false => ShardLoads::default(),
        };
        let spare = match config.is_root() {
            true => SparePartitions::default(),
            false => SparePartitions::load(kv, &partitions)?,
        };
        let mut shard = Self {
            live_inodes: inode_counts::load(kv, &partitions)?,
            leases: Leases::new(now, sessions.silent.clone()),
            lock_grace_until: now.plus_ms(CACHE_TERM_MS + CACHE_GRACE_MS),
            config,
            map,
            partitions,
            opens,
            recent: RecentRemovals::default(),
            deletions: Deletions::default(),
            ids: IdRanges::default(),
            sessions,
            scopes: ScopeCache::default(),
            events,
            locks: crate::locks::LockTable::new(),
            tickets: Tickets::new(),
            ends: LentEnds::default(),
            waiting: BTreeMap::new(),
            asking: BTreeMap::new(),
            next_attempt: 1,
            doomed: BTreeSet::new(),
            late: BTreeSet::new(),
            has_lost_orphans: true,
            woken: BTreeSet::new(),
            recheck: false,
            fencing: Fencing::load(kv)?,
            sets: StripeSetChooser::default(),
            moves: Moves::load(kv)?,
            has_remote_data: kv.get(&keys::remote_data())?.is_some(),
            directories: DirectoryTrafficTable::default(),
            loads,
            spare,
        };
        shard.resume_ending(now);
        Ok(shard)
    }
}

fn load_orphans(
    kv: &dyn KvRead,
    partitions: &[PartitionId],
) -> Result<BTreeMap<Ino, BTreeSet<SessionId>>, ErrorCode> {
    let orphans = inode_records::all(kv, partitions, keys::TAG_ORPHAN)?.into_iter();
    Ok(orphans
        .map(|(ino, record): (Ino, OrphanRecord)| (ino, record.sessions.into_iter().collect()))
        .collect())
}
