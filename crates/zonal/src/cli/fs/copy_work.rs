//! Shared parts of `put` and `get`: parallel copies, totals, interruption by a signal, temporary
//! names.
//!
//! A file is written under a temporary name beside its own, made durable, and renamed. So every
//! reader sees the old file or the new one. A command killed with -9 leaves a name like
//! `.NAME.zonal-put.0123456789abcdef`.

use super::connection::{Failures, about, interrupted};
use crate::exit::{FAILED, Failure, INTERRUPTED};
use crate::progress::ProgressMeter;
use anyhow::Context;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zonal_native::{Error, ErrorCode};
use zonal_types::limits::NAME_BYTES_MAX;

/// Bytes in one read or write.
pub const STEP: usize = 4 << 20;
/// Interval of progress output.
const TICK: Duration = Duration::from_millis(200);

/// Arguments of a copy.
#[derive(Debug, Clone, clap::Args)]
pub struct CopyArgs {
    /// Copy directories with everything below them
    #[arg(long, short)]
    pub recursive: bool,
    /// Number of files copied at a time (1 to 64)
    #[arg(long, short, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
    /// Print totals of the copy as JSON at the end
    #[arg(long)]
    pub json: bool,
}

/// State of a copy, shared by its threads.
pub struct CopyWork {
    files: AtomicU64,
    bytes: AtomicU64,
    directories: AtomicU64,
    others: AtomicU64,
    is_signalled: Arc<AtomicBool>,
    is_hopeless: AtomicBool,
    failures: Mutex<Failures>,
}

impl CopyWork {
    /// Starts a copy. A first signal makes it stop and clean up; a second one ends the process.
    pub fn begin() -> anyhow::Result<Self> {
        let is_signalled = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(
                signal,
                INTERRUPTED.into(),
                is_signalled.clone(),
            )
            .and_then(|_| signal_hook::flag::register(signal, is_signalled.clone()))
            .context("signals")?;
        }
        Ok(Self {
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            others: AtomicU64::new(0),
            is_signalled,
            is_hopeless: AtomicBool::new(false),
            failures: Mutex::default(),
        })
    }

    /// Fails if the copy shall stop.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.is_signalled.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        if self.is_hopeless.load(Ordering::Relaxed) {
            let text = "the remaining files are not copied, because of an earlier failure";
            return Err(Failure::new(FAILED, text).into());
        }
        Ok(())
    }

    /// Takes note of an error code from the cell; stops the copy if all other files would fail too.
    pub fn note_code(&self, code: Option<ErrorCode>) {
        if code.is_some_and(super::connection::is_hopeless) {
            self.is_hopeless.store(true, Ordering::Relaxed);
        }
    }

    /// Turns an error of the cell about a path into one for people, and takes note of its code.
    pub fn cell_error(&self, error: Error, doing: &str, path: &Path) -> anyhow::Error {
        self.note_code(error.code());
        about(error, doing, path)
    }

    /// Adds the failure of one path; other paths continue.
    pub fn failed(&self, error: anyhow::Error) {
        let failures = self.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner).add(error);
    }

    /// Adds a failure, if there is one.
    pub fn note<T>(&self, outcome: anyhow::Result<T>) -> Option<T> {
        outcome.map_err(|error| self.failed(error)).ok()
    }

    pub fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn file_done(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub fn directory_done(&self) {
        self.directories.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a copied link or pipe.
    pub fn other_done(&self) {
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    /// Prints the totals and returns the outcome of the copy.
    pub fn finish(self, as_json: bool) -> anyhow::Result<()> {
        if as_json {
            crate::console::json(json!({
                "files": self.files.load(Ordering::Relaxed),
                "bytes": self.bytes.load(Ordering::Relaxed),
                "directories": self.directories.load(Ordering::Relaxed),
                "links_and_pipes": self.others.load(Ordering::Relaxed),
            }));
        }
        if self.is_signalled.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        let failures = self.failures.into_inner();
        failures.unwrap_or_else(PoisonError::into_inner).finish()
    }

    fn show_progress(&self, is_over: &mpsc::Receiver<()>) {
        let mut progress = ProgressMeter::new("files", true);
        while is_over.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout) {
            let (files, bytes) = (&self.files, &self.bytes);
            progress.at(files.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
        }
    }
}

/// Runs `copy` for each job of `feed`, in `jobs` threads. A failure is noted and the other jobs
/// continue.
pub fn run<J: Send>(
    work: &CopyWork,
    jobs: u8,
    feed: impl FnOnce(&dyn Fn(J)),
    copy: impl Fn(J) -> anyhow::Result<()> + Sync,
) {
    let (queue, jobs_left) = mpsc::sync_channel::<J>(usize::from(jobs) * 2);
    let jobs_left = Mutex::new(jobs_left);
    let (over, is_over) = mpsc::channel();
    std::thread::scope(|scope| {
        if std::io::stderr().is_terminal() {
            scope.spawn(move || work.show_progress(&is_over));
        }
        let workers: Vec<_> = (0..jobs)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let next = jobs_left.lock();
                        let next = next.unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(job) = next else { return };
                        if work.check().is_ok() && work.note(copy(job)).is_some() {
                            work.file_done();
                        }
                    }
                })
            })
            .collect();
        feed(&|job| offer(&queue, job));
        drop(queue);
        for worker in workers {
            let _ = worker.join();
        }
        drop(over);
    });
}

fn offer<J>(queue: &SyncSender<J>, job: J) {
    // Workers receive until the queue is closed, so a send cannot fail.
    let _ = queue.send(job);
}

/// A temporary name beside `path` for an incomplete file.
pub fn temporary_path(path: &Path, word: &str) -> anyhow::Result<PathBuf> {
    let name = path.file_name();
    let name = name.with_context(|| format!("{} has no name", crate::console::path(path)))?;
    let random = getrandom::u64().context("random number")?;
    let end = format!(".zonal-{word}.{random:016x}");
    let kept = NAME_BYTES_MAX - 1 - end.len();
    let name = name.as_bytes();
    let name = name.get(..name.len().min(kept)).unwrap_or_default();
    let bytes = [b".", name, end.as_bytes()].concat();
    Ok(path.with_file_name(std::ffi::OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_in_the_same_directory_and_not_too_long() {
        let path = Path::new("/a").join("n".repeat(255));
        let long = temporary_path(&path, "put").unwrap();
        assert_eq!(long.parent(), Some(Path::new("/a")));
        assert_eq!(long.file_name().unwrap().len(), 255);
        let short = temporary_path(Path::new("f"), "get").unwrap();
        assert!(short.to_str().unwrap().starts_with(".f.zonal-get."));
    }

    #[test]
    fn a_failed_job_does_not_stop_other_jobs() {
        let work = CopyWork::begin().unwrap();
        let feed = |put: &dyn Fn(u32)| (0..100).for_each(put);
        run(&work, 4, feed, |n| match n % 10 {
            0 => Err(anyhow::anyhow!("{n}")),
            _ => Ok(()),
        });
        assert_eq!(work.files.load(Ordering::Relaxed), 90);
        assert!(work.finish(false).is_err());
    }
}
