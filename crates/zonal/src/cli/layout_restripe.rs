//! `zonal layout apply --restripe`: stripes existing files over the present stripe sets
//! (docs/rfcs/2026-11-27-restripe.md).
//!
//! One thread walks the directories of a mount; others copy files through a connection of their
//! own, without the mount. Files in use are tried again at the end.
//!
//! *Bounds*: one buffer of [`STEP`] for each copying thread, the write-behind of one client, and
//! [`LATER_MAX`] files to be tried again.

use crate::cli::fs::connection::{AccessArgs, CellConnection};
use crate::cli::fs::copy_work::{self, CopyWork, STEP};
use crate::cli::output_args::ReportArgs;
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND};
use crate::progress::ProgressMeter;
use anyhow::Context;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_native::{Ino, Restriped};

/// Files in use that are tried again.
const LATER_MAX: usize = 65_536;
/// How often files in use are tried again.
const ROUNDS: usize = 3;
/// Pause before that: mounts tell shards of closed files within a second.
const PAUSE: Duration = Duration::from_secs(2);
/// Step of the pause in which a signal is noticed.
const TICK: Duration = Duration::from_millis(100);
/// How often a path is compared with the cell, where it changes between two looks.
const LOOKS: usize = 5;

/// Arguments of a restripe.
#[derive(Debug, clap::Args)]
pub struct RestripeArgs {
    /// Stripe files anew over the present targets of their zone, as new files of their directories
    ///
    /// Each file is copied by this command and then swaps its bytes with the copy. Files that are
    /// open are passed over and named with -v. Needs the cell, see --cell
    #[arg(long)]
    pub restripe: bool,
    /// Files copied at a time with --restripe (1 to 16)
    #[arg(long, short, value_name = "N", default_value = "4", requires = "restripe", value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// Name each file that --restripe passes over, with the reason
    #[arg(long, short, requires = "restripe")]
    verbose: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// A file to be striped anew.
#[derive(Debug, Clone)]
struct RestripeJob {
    path: PathBuf,
    /// Its inode and that of the directory where it was found.
    inodes: (Ino, Ino),
}

/// Counts of a run.
#[derive(Default)]
struct RestripeCounts {
    moved: u64,
    /// Bytes that were copied.
    bytes: u64,
    current: u64,
    on_nodes: u64,
    unsettled: u64,
    in_use: u64,
    /// Files in use; those past the bound are only counted.
    later: Vec<RestripeJob>,
}

/// One run of the command.
struct Restripe<'a> {
    cell: &'a CellConnection,
    work: &'a CopyWork,
    verbose: bool,
    counts: Mutex<RestripeCounts>,
    progress: Mutex<ProgressMeter>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stripes the files below these paths anew.
pub fn restripe(
    paths: &[PathBuf],
    recursive: bool,
    args: &RestripeArgs,
    telling: &ReportArgs,
) -> anyhow::Result<()> {
    let cell = args.access.connect("restripe")?;
    let done = run(&cell, (paths, recursive), args, telling);
    cell.end(done)
}

fn run(
    cell: &CellConnection,
    (paths, recursive): (&[PathBuf], bool),
    args: &RestripeArgs,
    telling: &ReportArgs,
) -> anyhow::Result<()> {
    for path in paths {
        check_cell(cell, path)?;
    }
    let work = CopyWork::begin()?;
    let run = Restripe {
        cell,
        work: &work,
        verbose: args.verbose,
        counts: Mutex::default(),
        progress: Mutex::new(telling.progress("files")),
    };
    let feed = |feed: &dyn Fn(RestripeJob)| {
        let walk = TreeWalk::new(&work, recursive, feed);
        paths.iter().for_each(|path| walk.path(path));
    };
    copy_work::run(&work, args.jobs, feed, |job| run.one(job));
    for _round in 0..ROUNDS {
        if lock(&run.counts).later.is_empty() || !run.pauses() {
            break;
        }
        let later = std::mem::take(&mut lock(&run.counts).later);
        lock(&run.counts).in_use -= later.len() as u64;
        let feed = |feed: &dyn Fn(RestripeJob)| later.into_iter().for_each(feed);
        copy_work::run(&work, args.jobs, feed, |job| run.one(job));
    }
    let Restripe { counts, .. } = run;
    let counts = counts.into_inner().unwrap_or_else(PoisonError::into_inner);
    for job in counts.later.iter().filter(|_| args.verbose) {
        let path = console::path(&job.path);
        console::note(format_args!("{path}: is open, or was changed meanwhile"));
    }
    report(&counts, telling.json);
    work.finish(false)?;
    outcome(&counts)
}

/// Refuses a path that is not the same file in the cell.
fn check_cell(cell: &CellConnection, path: &Path) -> anyhow::Result<()> {
    for _look in 0..LOOKS {
        let found = std::fs::metadata(path);
        let found = found.with_context(|| format!("cannot read {}", console::path(path)))?;
        let known = cell.native.stat_ino(Ino(found.ino()));
        let is_same = known.is_ok_and(|known| {
            let [mtime, ctime] = [known.mtime, known.ctime].map(|time| {
                let nanos = i64::from(time.nanos);
                (time.seconds, nanos)
            });
            mtime == (found.mtime(), found.mtime_nsec())
                && ctime == (found.ctime(), found.ctime_nsec())
        });
        if is_same {
            return Ok(());
        }
    }
    let text = format!("{} is not in this cell", console::path(path));
    Err(Failure::new(NOT_FOUND, text)
        .hint("--cell names the cell that is mounted there")
        .into())
}

impl Restripe<'_> {
    /// Waits for closes; false: a signal ends the command.
    fn pauses(&self) -> bool {
        let until = Instant::now() + PAUSE;
        while Instant::now() < until {
            if self.work.check().is_err() {
                return false;
            }
            std::thread::sleep(TICK);
        }
        true
    }

    fn one(&self, job: RestripeJob) -> anyhow::Result<()> {
        let (native, user) = (&self.cell.native, &self.cell.user);
        let mut buffer = vec![0; STEP];
        let goes_on = |bytes| {
            self.work.moved(bytes);
            self.work.check().is_ok()
        };
        let done = native.restripe(user, job.inodes, &mut buffer, &goes_on);
        // A signal: the reason is told once, at the end.
        self.work.check()?;
        let done = done.map_err(|error| self.work.cell_error(error, "restripe", &job.path))?;
        let tell = |why: &str| {
            if self.verbose {
                console::note(format_args!("{}: {why}", console::path(&job.path)));
            }
        };
        let mut counts = lock(&self.counts);
        match done {
            Restriped::Moved(bytes) => {
                counts.moved += 1;
                counts.bytes = counts.bytes.saturating_add(bytes);
            }
            Restriped::Current => counts.current += 1,
            Restriped::OnNodes => {
                counts.on_nodes += 1;
                tell("new files of its directory lie on the node that makes them");
            }
            Restriped::Unsettled => {
                counts.unsettled += 1;
                tell("a target has yet to fill, move or delete some of it, or leaves");
            }
            Restriped::InUse => {
                counts.in_use += 1;
                if counts.later.len() < LATER_MAX {
                    counts.later.push(job);
                }
            }
        }
        let (moved, bytes) = (counts.moved, counts.bytes);
        drop(counts);
        lock(&self.progress).at(moved, bytes);
        Ok(())
    }
}

fn report(counts: &RestripeCounts, as_json: bool) {
    if as_json {
        let shown = json!({
            "restriped": counts.moved,
            "bytes": counts.bytes,
            "current": counts.current,
            "in_use": counts.in_use,
            "unsettled": counts.unsettled,
            "on_nodes": counts.on_nodes,
        });
        return console::json(format_args!("{shown:#}"));
    }
    let (moved, current) = (counts.moved, counts.current);
    let bytes = zonal_basics::byte_size::rounded(counts.bytes);
    console::line(format_args!(
        "{moved} files are striped anew ({bytes} copied), {current} were striped so already"
    ));
    let passed_over = [
        (counts.in_use, "are in use"),
        (counts.unsettled, "wait for targets"),
        (counts.on_nodes, "lie on the node that made them"),
    ];
    for (files, why) in passed_over.iter().filter(|(files, _)| *files > 0) {
        console::line(format_args!("{files} files {why}, and are as before"));
    }
}

/// The error where files have yet to be striped anew.
fn outcome(counts: &RestripeCounts) -> anyhow::Result<()> {
    match counts.in_use + counts.unsettled {
        0 => Ok(()),
        left => {
            let text = format!("{left} files have yet to be striped anew");
            let hint = "run the command again later; -v names them, and why";
            Err(Failure::new(FAILED, text).hint(hint).into())
        }
    }
}

/// A walk over the directories of a mount.
struct TreeWalk<'a> {
    work: &'a CopyWork,
    recursive: bool,
    feed: &'a dyn Fn(RestripeJob),
    /// Files with several names that were met.
    linked: RefCell<BTreeSet<u64>>,
}

impl<'a> TreeWalk<'a> {
    fn new(work: &'a CopyWork, recursive: bool, feed: &'a dyn Fn(RestripeJob)) -> Self {
        let linked = RefCell::default();
        Self {
            work,
            recursive,
            feed,
            linked,
        }
    }

    fn path(&self, path: &Path) {
        self.work.note(self.one_path(path));
    }

    fn one_path(&self, path: &Path) -> anyhow::Result<()> {
        let found = std::fs::symlink_metadata(path);
        let found = found.with_context(|| format!("cannot read {}", console::path(path)))?;
        if found.is_dir() {
            self.tree(path, &found);
            return Ok(());
        }
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = std::fs::metadata(parent.unwrap_or(Path::new(".")))?;
        self.file(path.to_owned(), &found, parent.ino());
        Ok(())
    }

    fn file(&self, path: PathBuf, found: &std::fs::Metadata, dir: u64) {
        let is_new = found.nlink() < 2 || self.linked.borrow_mut().insert(found.ino());
        if found.is_file() && is_new {
            let inodes = (Ino(found.ino()), Ino(dir));
            (self.feed)(RestripeJob { path, inodes });
        }
    }

    /// Walks a directory, and with `recursive` those below it on the same file system.
    fn tree(&self, dir: &Path, found: &std::fs::Metadata) {
        let device = found.dev();
        let mut left = vec![(dir.to_path_buf(), found.ino())];
        while let Some((dir, ino)) = left.pop() {
            let said = || format!("cannot list {}", console::path(&dir));
            let Some(entries) = self.work.note(std::fs::read_dir(&dir).with_context(said)) else {
                continue;
            };
            for entry in entries {
                if self.work.check().is_err() {
                    return;
                }
                let found = entry.and_then(|entry| {
                    let path = entry.path();
                    std::fs::symlink_metadata(&path).map(|found| (path, found))
                });
                match found {
                    Ok((path, found)) if found.is_dir() => {
                        if self.recursive && found.dev() == device {
                            left.push((path, found.ino()));
                        }
                    }
                    Ok((path, found)) => self.file(path, &found, ino),
                    // Removed meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => self.work.failed(anyhow::Error::new(error).context(said())),
                }
            }
        }
    }
}
