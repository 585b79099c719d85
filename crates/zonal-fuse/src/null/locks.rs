//! Locks of the null file system: on whole files; the replies of waiters are parked.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use crate::fs::Context;
use crate::reply::ReplyEmpty;
use crate::request::Lock;
use crate::types::{FileLock, FuseLockKind};

/// Owner of a lock: flock and fcntl locks do not see each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    flock: bool,
    id: u64,
}

#[derive(Debug)]
struct Held {
    owner: Owner,
    kind: FuseLockKind,
    pid: u32,
}

#[derive(Debug)]
struct Waiter {
    lock: Held,
    reply: ReplyEmpty,
}

#[derive(Debug, Default)]
struct File {
    held: Vec<Held>,
    waiting: Vec<Waiter>,
}

impl File {
    fn conflict(&self, want: &Held) -> Option<&Held> {
        self.held.iter().find(|held| {
            held.owner.flock == want.owner.flock
                && held.owner.id != want.owner.id
                && (held.kind == FuseLockKind::Write || want.kind == FuseLockKind::Write)
        })
    }

    fn take(&mut self, lock: Held) {
        self.held.retain(|held| held.owner != lock.owner);
        if lock.kind != FuseLockKind::Unlock {
            self.held.push(lock);
        }
    }

    /// Removes the waiters that nothing blocks any more, in their order.
    fn grant(&mut self) -> Vec<ReplyEmpty> {
        let mut granted = Vec::new();
        let mut index = 0;
        while let Some(waiter) = self.waiting.get(index) {
            if self.conflict(&waiter.lock).is_some() {
                index += 1;
                continue;
            }
            let waiter = self.waiting.remove(index);
            self.take(waiter.lock);
            granted.push(waiter.reply);
        }
        granted
    }
}

/// All locks.
#[derive(Debug, Default)]
pub(super) struct Locks {
    files: Mutex<HashMap<u64, File>>,
}

fn wanted(lock: &Lock) -> Held {
    let owner = Owner {
        flock: lock.flock,
        id: lock.owner,
    };
    Held {
        owner,
        kind: lock.kind,
        pid: lock.pid,
    }
}

impl Locks {
    fn with<T>(&self, f: impl FnOnce(&mut HashMap<u64, File>) -> T) -> T {
        f(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn get(&self, ino: u64, lock: &Lock) -> FileLock {
        let want = wanted(lock);
        self.with(|files| {
            let held = files.get(&ino).and_then(|file| file.conflict(&want));
            let (kind, pid) = held.map_or((FuseLockKind::Unlock, 0), |held| (held.kind, held.pid));
            FileLock {
                start: 0,
                end: i64::MAX.unsigned_abs(),
                kind,
                pid,
            }
        })
    }

    /// Takes a lock, drops it, or (with `wait`) parks the reply.
    pub(super) fn set(
        &self,
        ctx: &Context<'_>,
        ino: u64,
        lock: &Lock,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let want = wanted(lock);
        let granted = self.with(|files| {
            let file = files.entry(ino).or_default();
            if lock.kind != FuseLockKind::Unlock && file.conflict(&want).is_some() {
                if !wait {
                    return Err((reply, Errno::AGAIN));
                }
                // Parked under the mutex that `interrupt` takes: either `interrupt` finds the
                // waiter, or its mark is seen here.
                if ctx.interrupted() {
                    return Err((reply, Errno::INTR));
                }
                file.waiting.push(Waiter { lock: want, reply });
                return Ok(Vec::new());
            }
            file.take(want);
            let mut granted = file.grant();
            granted.push(reply);
            Ok(granted)
        });
        match granted {
            Ok(granted) => granted.into_iter().for_each(ReplyEmpty::ok),
            Err((reply, error)) => reply.err(error),
        }
    }

    /// Drops all locks of an owner.
    pub(super) fn drop_owner(&self, ino: u64, flock: bool, id: u64) {
        let granted = self.with(|files| {
            let Some(file) = files.get_mut(&ino) else {
                return Vec::new();
            };
            file.held.retain(|held| held.owner != Owner { flock, id });
            let granted = file.grant();
            if file.held.is_empty() && file.waiting.is_empty() {
                files.remove(&ino);
            }
            granted
        });
        granted.into_iter().for_each(ReplyEmpty::ok);
    }

    pub(super) fn waiters(&self) -> usize {
        self.with(|files| files.values().map(|file| file.waiting.len()).sum())
    }

    /// Answers a parked request EINTR.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let reply = self.with(|files| {
            files.values_mut().find_map(|file| {
                let at = file
                    .waiting
                    .iter()
                    .position(|w| w.reply.unique() == unique)?;
                Some(file.waiting.remove(at).reply)
            })
        });
        reply.map(|reply| reply.err(Errno::INTR)).is_some()
    }
}
