//! The client as its sessions see it: state that it holds at shards and drops when they are lost.

use crate::cell::{Cell, Link, SessionOwner};
use crate::client::Client;
use crate::file::File;
use crate::file::tail_ownership::TailOwnership;
use crate::transport::mutex::lock;
use crate::transport::net::{ClientNotice, Net};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zonal_types::{ErrorCode, Ino, Instant, ShardId};
use zonal_wire::{AppendPlace, LockRange};

impl<N: Net> SessionOwner for Client<N> {
    type Net = N;

    fn cell(&self) -> &Cell<N> {
        self
    }

    fn opens_at(&self, shard: ShardId) -> Vec<Ino> {
        let map = self.map();
        let files = lock(&self.files);
        let at_shard = files.values().filter(|file| {
            map.shard_of(file.ino.partition())
                .is_some_and(|known| known.id == shard)
        });
        at_shard
            .flat_map(|file: &Arc<File<N>>| vec![file.ino; file.open_count()])
            .collect()
    }

    fn locks_at(&self, shard: ShardId) -> Vec<(Ino, LockRange)> {
        let map = self.map();
        lock(&self.locks).held.of_inodes(|ino| {
            map.shard_of(ino.partition())
                .is_some_and(|known| known.id == shard)
        })
    }

    fn shards_held(&self) -> BTreeSet<ShardId> {
        let map = self.map();
        let mut inos: BTreeSet<Ino> = lock(&self.files).keys().copied().collect();
        inos.extend(lock(&self.locks).inos());
        let shards = inos.iter().filter_map(|ino| map.shard_of(ino.partition()));
        shards.map(|shard| shard.id).collect()
    }

    fn holds_nothing_at(&self, shard: ShardId) -> bool {
        let map = self.map();
        let is_there = |ino: Ino| {
            let of = map.shard_of(ino.partition()).map(|shard| shard.id);
            of.is_none_or(|of| of == shard)
        };
        !lock(&self.files).keys().any(|ino| is_there(*ino))
            && !lock(&self.locks).inos().any(is_there)
    }

    fn place_to_tell(&self, (ino, place): (Ino, AppendPlace)) -> (Ino, AppendPlace) {
        let file = self.file(ino).filter(|_file| place.length == 0);
        let offset = file.map_or(place.offset, |file| file.state().published_end());
        (ino, AppendPlace { offset, ..place })
    }

    fn forfeits_of(&self, ino: Ino) -> u64 {
        let file = self.file(ino);
        file.map_or(0, |file| file.state().failures.forfeits())
    }

    fn forfeit(&self, ino: Ino) {
        lock(&self.locks).held.forget_inode(ino);
        self.net.tell(ClientNotice::Forfeited(ino));
        let Some(file) = self.file(ino) else {
            return;
        };
        let mut state = file.state();
        let gone = state.dirty.bytes();
        state.dirty.remove(0, u64::MAX);
        let gone = gone - state.dirty.bytes();
        if let Some(aside) = &mut state.aside {
            aside.forget();
        }
        state.failures.forfeit();
        if gone > 0 {
            state.failures.note(ErrorCode::Io);
        }
        drop(state);
        self.dirty_bytes.fetch_sub(gone, Ordering::Relaxed);
    }

    fn caches_leases(&self) -> bool {
        self.caches() && self.inode_cache.has_leased()
    }

    fn forget_granted(&self) {
        self.inode_cache.forget_granted();
        for file in self.all_files() {
            file.state().privileges.doubt();
        }
    }

    fn session_is_lost(&self) {
        for file in self.all_files() {
            let mut state = file.state();
            state.outdate();
            state.tail_ownership = TailOwnership::Unknown(Instant::default());
        }
    }

    fn outdate_files_at(&self, link: &Link) {
        for file in self.all_files() {
            if self
                .link_of(file.ino)
                .is_ok_and(|of| std::ptr::eq(&raw const *of, link))
            {
                file.state().outdate();
            }
        }
    }
}
