//! Jobs on threads of their own, because workers must not wait for pages.
//!
//! | thread | jobs |
//! | --- | --- |
//! | notifier | drops pages for workers; withdraws lock requests after signals |
//! | doubts | drops pages of files whose servers may not answer |
//! | seeks | repeats requests for holes |
//!
//! Bound: [`JOBS_MAX`] jobs wait; a caller that finds the queue full gets an error.

use super::invalidation::{drop_file, drop_range, lengthen};
use super::{MountSignal, lock};
use crate::fs::ZonalFs;
use crate::page_tails::StalePages;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use zonal_client::inode_cache::PendingPageVersion;
use zonal_fuse::{Notifier, ReplyEmpty, ReplyLseek};
use zonal_native::block_on;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::LockRange;

/// Most jobs in one queue.
pub const JOBS_MAX: usize = 65_536;
/// Most writes that wait for their pages to be dropped: fewer than the kernel's background
/// requests.
pub const HELD_MAX: usize = 96;

/// A withdrawn lock request, to be sent to its shard.
#[derive(Debug, Clone, Copy)]
pub struct LockCancel {
    /// The inode.
    pub ino: Ino,
    /// The requested range.
    pub range: LockRange,
}

/// The last byte of a file.
#[derive(Debug, Clone, Copy)]
pub struct LastByte {
    /// Offset.
    pub at: u64,
    /// The byte in the file.
    pub byte: [u8; 1],
}

type Then = Box<dyn FnOnce() + Send>;

enum Job {
    Drop {
        notifier: Notifier,
        ino: u64,
        /// The version that the pages show afterwards, if known. The last byte, where the kernel
        /// must learn the file's length.
        changed: Option<(PendingPageVersion, Option<LastByte>)>,
        then: Then,
    },
    DropRange {
        notifier: Notifier,
        ino: u64,
        pages: StalePages,
        then: Then,
    },
    Cancel(LockCancel),
    Interrupted(u64),
    Seek(SeekRequest),
}

/// A request for data or a hole, repeated after the kernel has written the pages of a hole.
pub struct SeekRequest {
    /// The inode.
    pub ino: Ino,
    /// Start of the search.
    pub offset: u64,
    /// Whether it looks for data; otherwise for a hole.
    pub for_data: bool,
    /// The first result.
    pub found: Result<u64, ErrorCode>,
    /// The hole: first byte, and the offset behind its last.
    pub hole: (u64, u64),
    /// The kernel's request.
    pub reply: ReplyLseek,
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    is_ended: bool,
}

/// A queue of jobs.
#[derive(Default)]
pub(super) struct Jobs {
    queue: Mutex<Queue>,
    has_jobs: Condvar,
}

impl Jobs {
    pub(super) fn end(&self) {
        lock(&self.queue).is_ended = true;
        self.has_jobs.notify_all();
    }
}

impl Jobs {
    /// Queues a job; returns it where the queue is full.
    fn offer(&self, job: Job) -> Result<(), Job> {
        let mut queue = lock(&self.queue);
        if queue.jobs.len() >= JOBS_MAX {
            return Err(job);
        }
        queue.jobs.push(job);
        drop(queue);
        self.has_jobs.notify_one();
        Ok(())
    }

    /// Queues a job; false where the queue is full.
    fn push(&self, job: Job) -> bool {
        self.offer(job).is_ok()
    }

    fn drop_then(&self, notifier: &Notifier, ino: u64, then: Then) {
        self.push(Job::Drop {
            notifier: notifier.clone(),
            ino,
            changed: None,
            then,
        });
    }
}

impl MountSignal {
    /// Jobs that wait for the notifier.
    pub fn queued(&self) -> usize {
        lock(&self.jobs.queue).jobs.len()
    }

    /// Drops an inode's pages soon.
    pub fn later(&self, notifier: &Notifier, ino: u64) {
        self.jobs.drop_then(notifier, ino, Box::new(|| {}));
    }

    /// Drops an inode's pages, then answers.
    pub fn answer_after_drop(
        &self,
        notifier: &Notifier,
        ino: u64,
        changed: (PendingPageVersion, Option<LastByte>),
        reply: ReplyEmpty,
    ) {
        self.jobs.push(Job::Drop {
            notifier: notifier.clone(),
            ino,
            changed: Some(changed),
            then: Box::new(move || reply.ok()),
        });
    }

    /// Drops pages of inodes that may be locked for long, and waits for it, at most `limit`.
    pub fn drop_within(&self, notifier: &Notifier, inodes: &[Ino], limit: Duration) {
        let (done, ended) = mpsc::channel::<()>();
        for ino in inodes {
            let done = done.clone();
            self.doubts
                .drop_then(notifier, ino.0, Box::new(move || drop(done)));
        }
        drop(done);
        // The channel closes when all are dropped, and at once where the queue is full.
        ended.recv_timeout(limit).ok();
    }

    /// Drops pages that may be locked while a caller waits, and waits for it, at most `limit`. True
    /// where it is done.
    #[must_use]
    pub fn drop_range_within(
        &self,
        notifier: &Notifier,
        ino: Ino,
        pages: StalePages,
        limit: Duration,
    ) -> bool {
        let (done, ended) = mpsc::channel::<()>();
        let is_taken = self.doubts.push(Job::DropRange {
            notifier: notifier.clone(),
            ino: ino.0,
            pages,
            then: Box::new(move || drop(done)),
        });
        let is_over = ended.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected);
        is_taken && is_over
    }

    /// Queues a search; returns it where the queue is full.
    pub fn seek(&self, seek: SeekRequest) -> Result<(), SeekRequest> {
        match self.seeks.offer(Job::Seek(seek)) {
            Err(Job::Seek(seek)) => Err(seek),
            _taken => Ok(()),
        }
    }

    /// Queues the withdrawal of a lock request; false where the queue is full.
    #[must_use]
    pub fn cancel(&self, cancel: LockCancel) -> bool {
        self.jobs.push(Job::Cancel(cancel))
    }

    /// Notes that a signal hit the caller of a request that a worker serves.
    pub fn interrupted(&self, unique: u64) {
        self.jobs.push(Job::Interrupted(unique));
    }
}

pub(super) fn run(fs: &ZonalFs, jobs: &Jobs) {
    loop {
        let ready = {
            let mut queue = lock(&jobs.queue);
            while queue.jobs.is_empty() {
                if queue.is_ended {
                    return;
                }
                let woken = jobs.has_jobs.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::take(&mut queue.jobs)
        };
        ready.into_iter().for_each(|job| run_job(fs, job));
    }
}

fn run_job(fs: &ZonalFs, job: Job) {
    match job {
        Job::Drop {
            notifier,
            ino,
            changed,
            then,
        } => {
            drop_file(fs, &notifier, ino);
            if let Some((changed, last)) = changed {
                fs.client.pages_dropped(Ino(ino), changed);
                last.iter()
                    .for_each(|last| lengthen(fs, &notifier, ino, last));
            }
            then();
        }
        Job::DropRange {
            notifier,
            ino,
            pages,
            then,
        } => {
            drop_range(fs, &notifier, ino, pages.from, pages.to);
            fs.page_tails.dropped(Ino(ino), pages);
            then();
        }
        Job::Cancel(cancel) => {
            let call = fs.client.background();
            block_on(call.send_taken_back(cancel.ino, cancel.range));
            fs.signal.wake();
        }
        Job::Seek(seek) => {
            fs.seek_again(&fs.client.background(), seek);
        }
        Job::Interrupted(unique) => fs.in_flight.cancel_if_dying(unique),
    }
}

impl ZonalFs {
    /// Calls `then`, which sends a size to the kernel, after every page is dropped that would show
    /// zeros under it.
    pub(crate) fn after_size(&self, ino: Ino, size: u64, then: impl FnOnce() + Send + 'static) {
        match self.page_tails.show(ino, size) {
            None => then(),
            Some(pages) => self.after_drop(ino, pages, then),
        }
    }

    /// Drops pages, then calls `then`, on another thread: a page that is being read waits for a
    /// worker. Where the queue is full the pages are dropped later.
    pub(crate) fn after_drop(
        &self,
        ino: Ino,
        pages: StalePages,
        then: impl FnOnce() + Send + 'static,
    ) {
        let Some(notifier) = self.notifier.get() else {
            return then();
        };
        let job = Job::DropRange {
            notifier: notifier.clone(),
            ino: ino.0,
            pages,
            then: Box::new(then),
        };
        if let Err(Job::DropRange { then, .. }) = self.signal.jobs.offer(job) {
            self.signal.later(notifier, ino.0);
            // No other thread will end the mask.
            self.page_tails.dropped(ino, pages);
            then();
        }
    }

    /// [`Self::after_drop`] for the answer to a write. Where too many wait, the answer goes first.
    /// An asynchronous write occupies one of the kernel's background requests until its answer. A
    /// dropped page may wait for a read that has no request yet.
    pub(crate) fn after_drop_of_write(
        &self,
        ino: Ino,
        pages: StalePages,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let held = self.signal.held.clone();
        let is_room = held.fetch_add(1, Ordering::Relaxed) < HELD_MAX;
        let answered = move || {
            held.fetch_sub(1, Ordering::Relaxed);
            answer();
        };
        if is_room {
            self.after_drop(ino, pages, answered);
        } else {
            answered();
            self.after_drop(ino, pages, || {});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_wire::LockKind;

    #[test]
    fn reads_get_background_requests_beside_writes_that_wait_for_pages() {
        let places = zonal_fuse::SessionConfig::default().max_background;
        assert!(usize::from(places) >= HELD_MAX + 32);
    }

    #[test]
    fn a_lock_that_finds_the_queue_full_is_not_forgotten() {
        let signal = MountSignal::default();
        let cancel = LockCancel {
            ino: Ino(5),
            range: LockRange {
                whole_file: true,
                owner: 1,
                handle: 1,
                number: 1,
                pid: 1,
                kind: LockKind::Exclusive,
                start: 0,
                end: u64::MAX,
            },
        };
        let taken = (0..=JOBS_MAX).filter(|_| signal.cancel(cancel)).count();
        assert_eq!(taken, JOBS_MAX);
        assert!(!signal.cancel(cancel), "its caller must wake housekeeping");
    }
}
