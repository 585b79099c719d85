//! Has the kernel expire names, on threads that serve no request, and tells when an event may be
//! acknowledged.
//!
//! FUSE_NOTIFY_INVAL_ENTRY takes the directory's lock, which the kernel holds while this mount
//! serves a LOOKUP or READDIR in it (shared) or changes it (alone). A look-up waits for nobody's
//! acknowledgement. A change does: of this mount's change in D for the other mounts'
//! acknowledgements, of theirs for this one's. If both waited for their own change, each would wait
//! for the other until the leases are over.
//!
//! *Rule*: an event about D is acknowledged when its names are expired, or as soon as a change that
//! holds D's lock is under way here ([`NameExpiries::change`] is called before its request is sent).
//! The expiry then follows when the lock is free. So nobody waits in a ring: whoever waits for an
//! acknowledgement waits for threads that wait for a lock of which no holder waits for an
//! acknowledgement. What a removal or a rename takes besides is the lock of the directory that it
//! moves: an event about a directory is also acknowledged while such a change is under way in the
//! one above.
//!
//! The lock also tells when the kernel has taken an answer over: an inode that is new to it gets
//! its attributes under the lock of the directory in which it was found. So its attributes are
//! dropped once more behind that lock.
//!
//! A directory is worked on by one thread at a time, and what comes meanwhile is added to what
//! waits: [`THREADS`] directories whose locks are held for long hold up the others. A wait is
//! bounded by the longest lease ([`LONGEST`]).

use crate::fs::ZonalFs;
use crate::name_cache::NameBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_fuse::LoneNotifier;
use zonal_types::Ino;
use zonal_types::limits::{CACHE_GRACE_MS, CACHE_TERM_MS};

/// Threads that expire names.
pub const THREADS: usize = 8;
/// When leases that are not acknowledged are over.
const LONGEST: Duration = Duration::from_millis(CACHE_TERM_MS + CACHE_GRACE_MS);
/// An answer of a look-up that is younger may still be on its way into the kernel: its name is
/// expired again after this time, before the acknowledgement.
const CROSSING: Duration = Duration::from_millis(1);
/// No name of a file: who expires it waits for the directory's lock.
const NO_NAME: &[u8] = b"\x01zonal: the lock alone";

/// What is to be done about one directory.
#[derive(Default)]
struct ExpiryWork {
    names: Vec<NameBytes>,
    /// Names whose answers may be on their way into the kernel.
    fresh: Vec<NameBytes>,
    /// Inodes that were found in it a moment ago, whose attributes are old.
    inodes: Vec<Ino>,
}

#[derive(Default)]
struct State {
    work: BTreeMap<Ino, ExpiryWork>,
    /// Directories that a thread works on.
    running: BTreeSet<Ino>,
    /// The directory that was begun last.
    last: Ino,
    /// Own changes under way, by the directory whose lock they hold.
    changes: BTreeMap<Ino, u32>,
    /// The same of those that hold the lock of something in it, too.
    moves: BTreeMap<Ino, u32>,
    /// Those who wait.
    waiting: u32,
    is_ended: bool,
}

impl State {
    /// The next directory with work that no thread has: each has its turn.
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

/// Expiries that are to be carried out, and own changes under way.
#[derive(Default)]
pub struct NameExpiries {
    state: Mutex<State>,
    has_work: Condvar,
    is_over: Condvar,
    events: AtomicU64,
    expired: AtomicU64,
    waited: AtomicU64,
}

/// An own change that holds the locks of directories, until it is dropped.
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

    /// A request of this mount is about to change `dir`, whose lock the kernel holds until it is
    /// answered.
    #[must_use]
    pub fn change(&self, dir: Ino) -> DirectoryChange<'_> {
        self.begin([dir, dir], false)
    }

    /// One that removes or renames what may be a directory, from the first to the second one: it
    /// holds the lock of that as well.
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

    /// An event was received.
    pub fn count_event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    /// Has names of a directory expired soon.
    pub fn expire(&self, dir: Ino, names: Vec<NameBytes>, fresh: Vec<NameBytes>) {
        self.add(dir, |work| {
            work.names.extend(names);
            work.fresh.extend(fresh);
        });
    }

    /// Has an inode's attributes dropped as soon as the kernel has taken over what was found in the
    /// directory before.
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

    /// Waits until an event about these directories may be acknowledged; false where the time was
    /// over before. `above`: the directory above one.
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

    /// Events received, names expired, acknowledgements that waited for that.
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
            // This thread needs no descriptor but that one.
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

fn carry_out(expiries: &NameExpiries, notifier: &LoneNotifier, dir: Ino, work: &ExpiryWork) {
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

/// A name that the kernel does not know is no error.
fn expire(notifier: &LoneNotifier, dir: Ino, name: &[u8]) {
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

    /// Waits for D's acknowledgement on a thread of its own, and tells how it went.
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
                // It holds the lock above, not the one of what lies in it.
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
    fn each_directory_has_its_turn() {
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
