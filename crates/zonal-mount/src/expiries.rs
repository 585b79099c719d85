//! Name expiries: threads that serve no request make the kernel expire names. This table decides
//! when an event may be acknowledged.
//!
//! FUSE_NOTIFY_INVAL_ENTRY takes the directory's lock. The kernel holds it while this mount serves
//! a LOOKUP or READDIR there (shared), or changes the directory (exclusive). A look-up waits for no
//! acknowledgement. A change in D waits for the acknowledgements of other mounts, whose changes in
//! D wait for the acknowledgement of this one. If both waited for their own change first, each
//! would wait until the leases expire.
//!
//! *Rule*: an event about D is acknowledged when its names are expired. It is also acknowledged as
//! soon as a change that holds D's lock is in flight here ([`NameExpiries::change`] is called
//! before its request is sent). The expiry then follows when the lock is free.
//!
//! So no ring of waits arises: an acknowledgement waits only for threads that wait for a lock whose
//! holders wait for no acknowledgement. A removal or a rename also takes the lock of the directory
//! that it moves. So an event about a directory is also acknowledged while one is in flight in its
//! parent.
//!
//! The lock also shows when the kernel has taken over an answer. A new inode gets its attributes
//! under the lock of the directory in which it was found. So its attributes are dropped once more
//! behind that lock.
//!
//! One thread at a time works on a directory, and new work joins its waiting work. [`THREADS`]
//! directories whose locks are held for long delay the others. The longest lease ([`LONGEST`])
//! bounds a wait.

use crate::fs::ZonalFs;
use crate::name_cache::NameBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_fuse::ThreadNotifier;
use zonal_types::Ino;
use zonal_types::limits::{CACHE_GRACE_MS, CACHE_TERM_MS};

/// Threads that expire names.
pub const THREADS: usize = 8;
/// Time after which leases without an acknowledgement have expired.
const LONGEST: Duration = Duration::from_millis(CACHE_TERM_MS + CACHE_GRACE_MS);
/// Time in which the answer to a look-up may still be on its way into the kernel. Its name is
/// expired again after this time, before the acknowledgement.
const CROSSING: Duration = Duration::from_millis(1);
/// A name that no file has. Its expiry only waits for the directory's lock.
const NO_NAME: &[u8] = b"\x01zonal: the lock alone";

/// Work on one directory.
#[derive(Default)]
struct ExpiryWork {
    names: Vec<NameBytes>,
    /// Names whose answers may be on their way into the kernel.
    fresh: Vec<NameBytes>,
    /// Inodes found in the directory a moment ago, whose attributes are stale.
    inodes: Vec<Ino>,
}

#[derive(Default)]
struct State {
    work: BTreeMap<Ino, ExpiryWork>,
    /// Directories that a thread works on.
    running: BTreeSet<Ino>,
    /// The directory begun last.
    last: Ino,
    /// Own changes in flight, by the directory whose lock they hold.
    changes: BTreeMap<Ino, u32>,
    /// Those of them that also hold the lock of a directory in it.
    moves: BTreeMap<Ino, u32>,
    /// Number of waiting acknowledgements.
    waiting: u32,
    is_ended: bool,
}

impl State {
    /// The next directory with work that no thread has, in turn.
    fn next(&mut self) -> Option<(Ino, ExpiryWork)> {
        let behind = self
            .work
            .range((Bound::Excluded(self.last), Bound::Unbounded));
        let mut dirs = behind
            .chain(self.work.range(..=self.last))
            .map(|(dir, _)| *dir);
        let dir = dirs.find(|dir| !self.running.contains(dir))?;
        self.last = dir;
        self.running.insert(dir);
        self.work.remove(&dir).map(|work| (dir, work))
    }

    fn is_done(&self, dir: Ino) -> bool {
        !self.running.contains(&dir) && !self.work.contains_key(&dir)
    }
}

/// Pending expiries, and own changes in flight.
#[derive(Default)]
pub struct NameExpiries {
    state: Mutex<State>,
    has_work: Condvar,
    is_over: Condvar,
    events: AtomicU64,
    expired: AtomicU64,
    waited: AtomicU64,
}

/// An own change that holds the locks of directories; dropping it ends the change.
pub struct DirectoryChange<'a> {
    expiries: &'a NameExpiries,
    dirs: [Ino; 2],
    is_move: bool,
}

fn count(of: &mut BTreeMap<Ino, u32>, dir: Ino) {
    *of.entry(dir).or_default() += 1;
}

fn uncount(of: &mut BTreeMap<Ino, u32>, dir: Ino) {
    if let Some(changes) = of.get_mut(&dir) {
        *changes -= 1;
        if *changes == 0 {
            of.remove(&dir);
        }
    }
}

impl Drop for DirectoryChange<'_> {
    fn drop(&mut self) {
        let mut state = self.expiries.state();
        for dir in self.dirs {
            uncount(&mut state.changes, dir);
            if self.is_move {
                uncount(&mut state.moves, dir);
            }
        }
    }
}

impl NameExpiries {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request that changes `dir`. The kernel holds the directory's lock until the answer.
    #[must_use]
    pub fn change(&self, dir: Ino) -> DirectoryChange<'_> {
        self.begin([dir, dir], false)
    }

    /// Begins a request that removes or renames an entry, which may be a directory whose lock it
    /// then holds as well.
    #[must_use]
    pub fn move_between(&self, from: Ino, to: Ino) -> DirectoryChange<'_> {
        self.begin([from, to], true)
    }

    fn begin(&self, dirs: [Ino; 2], is_move: bool) -> DirectoryChange<'_> {
        let mut state = self.state();
        for dir in dirs {
            count(&mut state.changes, dir);
            if is_move {
                count(&mut state.moves, dir);
            }
        }
        if state.waiting > 0 {
            self.is_over.notify_all();
        }
        drop(state);
        DirectoryChange {
            expiries: self,
            dirs,
            is_move,
        }
    }

    /// Counts a received event.
    pub fn count_event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// Queues the expiry of names of a directory.
    pub fn expire(&self, dir: Ino, names: Vec<NameBytes>, fresh: Vec<NameBytes>) {
        self.add(dir, |work| {
            work.names.extend(names);
            work.fresh.extend(fresh);
        });
    }

    /// Queues a drop of an inode's attributes, after the kernel has taken over earlier answers in
    /// the directory.
    pub fn drop_behind(&self, dir: Ino, ino: Ino) {
        self.add(dir, |work| work.inodes.push(ino));
    }

    fn add(&self, dir: Ino, add: impl FnOnce(&mut ExpiryWork)) {
        let mut state = self.state();
        if !state.is_ended {
            add(state.work.entry(dir).or_default());
            drop(state);
            self.has_work.notify_one();
        }
    }

    /// Waits until an event about these directories may be acknowledged; false where the leases
    /// expired first. `above`: returns the parent of a directory.
    pub fn settle(&self, dirs: &[Ino], above: impl Fn(Ino) -> Option<Ino>) -> bool {
        let is_settled = |state: &State, dir: Ino| {
            let moves = |above: Ino| state.moves.contains_key(&above);
            state.is_ended
                || state.is_done(dir)
                || state.changes.contains_key(&dir)
                || above(dir).is_some_and(moves)
        };
        let until = Instant::now() + LONGEST;
        let mut has_waited = false;
        let mut state = self.state();
        state.waiting += 1;
        let is_settled = loop {
            if dirs.iter().all(|dir| is_settled(&state, *dir)) {
                break true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            has_waited = true;
            let woken = self.is_over.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.waiting -= 1;
        self.waited
            .fetch_add(u64::from(has_waited), Ordering::Relaxed);
        is_settled
    }

    /// Events received, names expired, acknowledgements that waited.
    #[must_use]
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        [
            ("events_total", load(&self.events)),
            ("expired_names_total", load(&self.expired)),
            ("waited_events_total", load(&self.waited)),
        ]
    }

    /// Ends [`run`].
    pub fn end(&self) {
        self.state().is_ended = true;
        self.has_work.notify_all();
        self.is_over.notify_all();
    }
}

/// Expires names until the end.
pub fn run(fs: &ZonalFs) {
    let expiries = &fs.expiries;
    let mut notifier = None;
    loop {
        let mut state = expiries.state();
        let (dir, work) = loop {
            if state.is_ended {
                return;
            }
            if let Some(next) = state.next() {
                break next;
            }
            let woken = expiries.has_work.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        if notifier.is_none() {
            // This thread needs only this descriptor.
            notifier = fs.notifier.get().map(|shared| shared.alone());
        }
        if let Some(notifier) = &notifier {
            carry_out(expiries, notifier, dir, &work);
        }
        let mut state = expiries.state();
        state.running.remove(&dir);
        let has_more = state.work.contains_key(&dir);
        if state.waiting > 0 {
            expiries.is_over.notify_all();
        }
        drop(state);
        if has_more {
            expiries.has_work.notify_one();
        }
    }
}

fn carry_out(expiries: &NameExpiries, notifier: &ThreadNotifier, dir: Ino, work: &ExpiryWork) {
    let expire = |names: &[NameBytes]| names.iter().for_each(|name| expire(notifier, dir, name));
    expire(&work.names);
    if !work.fresh.is_empty() {
        std::thread::sleep(CROSSING);
        expire(&work.fresh);
    }
    if !work.inodes.is_empty() {
        self::expire(notifier, dir, NO_NAME);
        for ino in &work.inodes {
            if let Err(error) = notifier.inval_attributes(ino.0) {
                tracing::debug!(%ino, %error, "the kernel refused to drop attributes");
            }
        }
    }
    let count = work.names.len() as u64;
    expiries.expired.fetch_add(count, Ordering::Relaxed);
}

/// Expires a name. A name that the kernel does not know is not an error.
fn expire(notifier: &ThreadNotifier, dir: Ino, name: &[u8]) {
    if let Err(error) = notifier.inval_entry(dir.0, name, true) {
        tracing::debug!(%dir, %error, "the kernel refused to expire a name");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const D: Ino = Ino(5);
    const ABOVE: Ino = Ino(4);

    fn above(dir: Ino) -> Option<Ino> {
        (dir == D).then_some(ABOVE)
    }

    /// Waits for D's acknowledgement on a thread of its own, and sends the outcome.
    fn settling(expiries: &Arc<NameExpiries>) -> std::sync::mpsc::Receiver<bool> {
        let (done, settled) = std::sync::mpsc::channel();
        let expiries = expiries.clone();
        std::thread::spawn(move || done.send(expiries.settle(&[D], above)));
        settled
    }

    fn work_of(expiries: &NameExpiries) -> (Ino, ExpiryWork) {
        expiries.state().next().unwrap()
    }

    #[test]
    fn an_acknowledgement_waits_for_the_expiry() {
        let expiries = Arc::new(NameExpiries::default());
        assert!(expiries.settle(&[D], above), "nothing to do");
        expiries.expire(D, vec![b"a".as_slice().into()], Vec::new());
        expiries.expire(D, vec![b"b".as_slice().into()], Vec::new());
        let settled = settling(&expiries);
        let short = Duration::from_millis(50);
        assert!(settled.recv_timeout(short).is_err());
        let (dir, work) = work_of(&expiries);
        assert_eq!((dir, work.names.len()), (D, 2));
        assert!(settled.recv_timeout(short).is_err(), "it is under way");
        expiries.expire(D, vec![b"c".as_slice().into()], Vec::new());
        assert!(expiries.state().next().is_none(), "one thread a directory");
        expiries.end();
        assert_eq!(settled.recv_timeout(LONGEST), Ok(true));
    }

    #[test]
    fn an_own_change_that_holds_the_lock_lets_it_go() {
        for case in 0..4 {
            let expiries = Arc::new(NameExpiries::default());
            expiries.expire(D, vec![b"a".as_slice().into()], Vec::new());
            let _running = work_of(&expiries);
            let before = match case {
                0 => Some(expiries.change(D)),
                // It holds the parent's lock, not the lock of the directory in it.
                1 => Some(expiries.change(ABOVE)),
                _ => None,
            };
            let settled = settling(&expiries);
            let is_free = settled.recv_timeout(Duration::from_millis(50));
            assert_eq!(is_free.is_ok(), case == 0, "case {case}");
            drop(before);
            let _change = match case {
                2 => expiries.move_between(Ino(77), ABOVE),
                _ => expiries.change(D),
            };
            if case != 0 {
                assert_eq!(settled.recv_timeout(LONGEST), Ok(true), "case {case}");
            }
        }
    }

    #[test]
    fn directories_are_served_in_turn() {
        let expiries = NameExpiries::default();
        let begin = |dir| expiries.expire(Ino(dir), vec![b"a".as_slice().into()], Vec::new());
        (1..4).for_each(begin);
        let order: Vec<u64> = (0..6)
            .map(|_| {
                let (dir, _work) = work_of(&expiries);
                expiries.state().running.remove(&dir);
                begin(dir.0);
                dir.0
            })
            .collect();
        assert_eq!(order, [1, 2, 3, 1, 2, 3]);
    }
}
