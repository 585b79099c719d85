//! Programs that see the cell through a cache like the kernel's, kept under call-back leases, and
//! programs that lock.

use super::{SimClient, create, lookup, name, who};
use crate::checker::cache_coherence::{LockExclusion, Versions};
use crate::rng::SimRng;
use crate::world::World;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_client::{LockOutcome, PolledEvents};
use zonal_types::{ErrorCode, Ino, Instant, Timestamp};
use zonal_wire::{AttrChange, Event, LockKind, LockRange, SetTime};

/// How long a waiter relies on its place in the queue before it asks again, ns.
const ASK_AGAIN: u64 = 2_000_000_000;

/// The kernel's cache of the watched directory, and lock grants that arrived.
#[derive(Default)]
pub struct KernelCache {
    /// Modification time of an inode, and the time until which it is valid.
    attrs: RefCell<BTreeMap<Ino, (i64, Instant)>>,
    /// Whether a name exists, and the time until which this is valid.
    entries: RefCell<BTreeMap<(Ino, String), (bool, Instant)>>,
    granted: RefCell<BTreeMap<u64, ()>>,
    /// Look-ups that the cache answered.
    pub hits: Cell<u64>,
}

impl KernelCache {
    /// The shard granted a waiting lock request.
    pub fn grant(&self, waiter: u64) {
        self.granted.borrow_mut().insert(waiter, ());
    }

    /// Returns true once after a lock request was granted.
    #[must_use]
    pub fn take_granted(&self, waiter: u64) -> bool {
        self.granted.borrow_mut().remove(&waiter).is_some()
    }

    /// Acts on events, before they are acknowledged.
    pub fn take(&self, polled: &PolledEvents) {
        if polled.restarted {
            self.attrs.borrow_mut().clear();
            self.entries.borrow_mut().clear();
        }
        for event in &polled.events {
            match event {
                Event::Invalidate {
                    entries, inodes, ..
                } => {
                    let mut attrs = self.attrs.borrow_mut();
                    for ino in inodes {
                        attrs.remove(ino);
                    }
                    self.entries
                        .borrow_mut()
                        .retain(|(dir, _name), _| dir != entries);
                }
                Event::LockGranted { waiter, .. } => self.grant(*waiter),
                Event::RecallLease { .. }
                | Event::FileTruncated { .. }
                | Event::EndRecalled { .. } => {}
            }
        }
    }
}

/// A program's client, cache and files.
#[derive(Clone)]
pub struct CacheProgram {
    /// The world.
    pub world: Rc<World>,
    /// The client.
    pub client: Rc<SimClient>,
    /// Its cache.
    pub cache: Rc<KernelCache>,
    /// The directory of shared files.
    pub dir: Ino,
    /// The file whose time changes.
    pub file: Ino,
    /// Shared state of the programs.
    pub watched: Rc<WatchedState>,
    /// The process's name: its clock counts.
    pub name: String,
}

impl CacheProgram {
    fn now(&self) -> Instant {
        self.world.network.instant(&self.name)
    }
}

/// Shared state of the programs of one world.
#[derive(Default)]
pub struct WatchedState {
    times: Versions,
    names: Versions,
    lock: LockExclusion,
}

fn text(code: ErrorCode) -> String {
    code.to_string()
}

/// Changes the time of `file`, and makes and removes `flag`, in `dir`.
///
/// # Errors
/// An operation failed.
pub async fn change(stage: CacheProgram, mut rng: SimRng, rounds: u64) -> Result<(), String> {
    let CacheProgram {
        world,
        client,
        dir,
        file,
        watched,
        ..
    } = stage;
    for _ in 0..rounds {
        if rng.chance(500) {
            let version = watched.times.begun.get() + 1;
            watched.times.begun.set(version);
            let time = Timestamp {
                seconds: version as i64,
                nanos: 0,
            };
            let change = AttrChange {
                mtime: Some(SetTime::At { time }),
                ..AttrChange::default()
            };
            client
                .begin()
                .setattr(&who(), file, change)
                .await
                .map_err(text)?;
            watched.times.done.set(version);
        } else {
            let version = watched.names.begun.get() + 1;
            watched.names.begun.set(version);
            if version % 2 == 1 {
                let opened = create(&client, dir, "flag", true).await.map_err(text)?;
                watched.names.done.set(version);
                client
                    .begin()
                    .release(opened.file.ino)
                    .await
                    .map_err(text)?;
            } else {
                let flag = name("flag").map_err(text)?;
                client
                    .begin()
                    .unlink(&who(), dir, flag)
                    .await
                    .map_err(text)?;
                watched.names.done.set(version);
            }
        }
        world.count_operation();
        world.clock.sleep(rng.below(400_000_000)).await;
    }
    Ok(())
}

/// Reads both through the cache.
///
/// # Errors
/// An operation failed, or a value is stale.
pub async fn watch(stage: CacheProgram, mut rng: SimRng, rounds: u64) -> Result<(), String> {
    let CacheProgram {
        world,
        client,
        cache,
        dir,
        file,
        watched,
        ..
    } = stage.clone();
    for _ in 0..rounds {
        let now = stage.now();
        let broken = if rng.chance(500) {
            let done = watched.times.done.get();
            let known = cache.attrs.borrow().get(&file).copied();
            let seconds = if let Some((seconds, _until)) = known.filter(|(_, until)| now < *until) {
                cache.hits.set(cache.hits.get() + 1);
                seconds
            } else {
                let (attr, ms) = client.begin().getattr(file).await.map_err(text)?;
                let until = stage.now().plus_ms(u64::from(ms));
                cache
                    .attrs
                    .borrow_mut()
                    .insert(file, (attr.mtime.seconds, until));
                attr.mtime.seconds
            };
            // Before the first change the file has the time of its creation.
            watched.times.check(done, "a time", |version| {
                version == 0 || seconds == version as i64
            })
        } else {
            let done = watched.names.done.get();
            let key = (dir, "flag".to_owned());
            let known = cache.entries.borrow().get(&key).copied();
            let is_there = if let Some((is_there, _until)) = known.filter(|(_, until)| now < *until)
            {
                cache.hits.set(cache.hits.get() + 1);
                is_there
            } else {
                let looked = client
                    .begin()
                    .lookup(&who(), dir, name("flag").map_err(text)?)
                    .await;
                let (is_there, ms) = match looked.map_err(text)? {
                    zonal_client::names::LookupResult::Found(found) => (true, found.entry_ms),
                    zonal_client::names::LookupResult::Absent(ms) => (false, ms),
                };
                let until = stage.now().plus_ms(u64::from(ms));
                cache.entries.borrow_mut().insert(key, (is_there, until));
                is_there
            };
            watched
                .names
                .check(done, "a name", |version| is_there == (version % 2 == 1))
        };
        if let Some(broken) = broken {
            return Err(broken);
        }
        world.count_operation();
        world.clock.sleep(rng.below(150_000_000)).await;
    }
    Ok(())
}

/// Takes and releases a lock that all clients want.
///
/// # Errors
/// An operation failed, or there were two holders.
pub async fn lock_and_unlock(
    stage: CacheProgram,
    index: u64,
    mut rng: SimRng,
    rounds: u64,
) -> Result<(), String> {
    let CacheProgram {
        world,
        client,
        cache,
        dir,
        watched,
        ..
    } = stage;
    let found = lookup(&client, dir, "baton").await.map_err(text)?;
    let ino = found.ok_or("the lock file is gone")?.attr.ino;
    for round in 0..rounds {
        let range = LockRange {
            whole_file: false,
            owner: 7,
            handle: 0,
            number: 0,
            pid: 7,
            kind: LockKind::Exclusive,
            start: rng.below(10),
            end: 10 + rng.below(10),
        };
        let waiter = round + 1;
        loop {
            match client
                .begin()
                .lock(ino, range, Some(waiter))
                .await
                .map_err(text)?
            {
                LockOutcome::Granted { .. } => break,
                LockOutcome::Queued => {}
            }
            let until = Instant(world.clock.now().0 + ASK_AGAIN);
            while world.clock.now() < until && !cache.granted.borrow().contains_key(&waiter) {
                world.clock.sleep(1_000_000).await;
            }
            if cache.granted.borrow_mut().remove(&waiter).is_some() {
                client
                    .begin()
                    .lock_granted(ino, range)
                    .await
                    .map_err(text)?;
                break;
            }
        }
        let taken = watched.lock.take(index);
        world.clock.sleep(rng.below(50_000_000)).await;
        let given = watched.lock.give(index);
        if let Some(broken) = taken.or(given) {
            return Err(broken);
        }
        let all = LockRange {
            start: 0,
            end: u64::MAX,
            ..range
        };
        client.begin().unlock(ino, all).await.map_err(text)?;
        world.count_operation();
        world.clock.sleep(rng.below(50_000_000)).await;
    }
    Ok(())
}
