//! Programs that change files all the time, and know what must be in them.

use crate::cell::Cell;
use crate::copied_files::connect;
use crate::native_files::read;
use std::collections::BTreeMap;
use std::io::SeekFrom;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zonal_native::{Error, Native, OpenOptions, User};
use zonal_testkit::Rng;

/// Files of one program at most.
const FILES: u64 = 12;
/// Length of a file at most.
const LENGTH: u64 = 700_000;

/// Contents of a program's files, by path.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The work of one program.
pub struct Done {
    pub files: Files,
    pub changes: u64,
    pub longest: Duration,
}

/// Programs that run until they are told to end.
pub struct Programs {
    is_ending: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Done>>,
}

impl Programs {
    /// Starts so many in each of the directories, each with a client of its own.
    pub fn start(cell: &Cell, folders: &[&str], each: u64) -> Self {
        let is_ending = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for folder in folders {
            for _ in 0..each {
                let seed = threads.len() as u64 + 1;
                let native = connect(cell);
                let (prefix, ending) = (format!("{folder}/{seed}-"), Arc::clone(&is_ending));
                let program = move || run(&native, &prefix, seed, &ending);
                threads.push(std::thread::spawn(program));
            }
        }
        Self { is_ending, threads }
    }

    /// Ends them, and returns all that they wrote. Prints the longest time of a change.
    pub fn end(self) -> Files {
        self.is_ending.store(true, Ordering::Relaxed);
        let mut files = Files::new();
        let (mut changes, mut longest) = (0, Duration::ZERO);
        for thread in self.threads {
            let done = thread.join().unwrap();
            files.extend(done.files);
            changes += done.changes;
            longest = longest.max(done.longest);
        }
        println!(
            "{changes} changes, none failed; the longest took {:.1} s",
            longest.as_secs_f64()
        );
        assert!(changes > 0);
        files
    }
}

fn run(native: &Native, prefix: &str, seed: u64, is_ending: &AtomicBool) -> Done {
    let mut rng = Rng(seed);
    let mut done = Done {
        files: Files::new(),
        changes: 0,
        longest: Duration::ZERO,
    };
    while !is_ending.load(Ordering::Relaxed) {
        let path = format!("{prefix}{}", rng.below(FILES));
        let begun = Instant::now();
        let changed = change(native, &path, &mut done.files, &mut rng);
        changed.unwrap_or_else(|error| panic!("{path}, change {}: {error}", done.changes));
        done.longest = done.longest.max(begun.elapsed());
        done.changes += 1;
    }
    done
}

/// Makes, changes, reads or removes a file, durably.
fn change(native: &Native, path: &str, files: &mut Files, rng: &mut Rng) -> Result<(), Error> {
    let user = User::root();
    let Some(known) = files.get_mut(path) else {
        let bytes = some_bytes(rng, LENGTH);
        let options = OpenOptions::new().write(true).create_new(0o644);
        let file = native.open(&user, path, options)?;
        file.write(&bytes)?;
        file.fsync()?;
        file.close()?;
        files.insert(path.to_owned(), bytes);
        return Ok(());
    };
    let options = OpenOptions::new().write(true);
    // A file ends before it is too long to be read.
    let chosen = if known.len() > 2 << 20 {
        0
    } else {
        rng.below(8)
    };
    match chosen {
        0 => {
            native.unlink(&user, path)?;
            files.remove(path);
        }
        1 | 2 => {
            let bytes = some_bytes(rng, 100_000);
            let file = native.open(&user, path, options.append(true))?;
            file.write(&bytes)?;
            file.fsync()?;
            file.close()?;
            known.extend(bytes);
        }
        3 => {
            let size = rng.below(known.len() as u64 + 50_000);
            let file = native.open(&user, path, options)?;
            file.truncate(size)?;
            file.fsync()?;
            file.close()?;
            known.resize(usize::try_from(size).unwrap(), 0);
        }
        4 | 5 => {
            let bytes = some_bytes(rng, 200_000);
            let at = rng.below(known.len() as u64 + 1);
            let file = native.open(&user, path, options)?;
            file.seek(SeekFrom::Start(at))?;
            file.write(&bytes)?;
            file.fsync()?;
            file.close()?;
            let at = usize::try_from(at).unwrap();
            let end = at + bytes.len();
            known.resize(known.len().max(end), 0);
            known[at..end].copy_from_slice(&bytes);
        }
        _ => {
            let found = read(native, path)?;
            assert_same(path, &found, known);
        }
    }
    Ok(())
}

fn some_bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    let length = rng.below(most) + 1;
    rng.bytes(usize::try_from(length).unwrap())
}

fn assert_same(path: &str, found: &[u8], known: &[u8]) {
    let differs = found
        .iter()
        .zip(known)
        .position(|(one, other)| one != other);
    assert!(
        found == known,
        "{path}: {} bytes, written {}, the first other byte at {differs:?}",
        found.len(),
        known.len()
    );
}

/// Reads all files by clients of their own, each of which asks other copies first.
pub fn compare(cell: &Cell, files: &Files, clients: usize) {
    for _client in 0..clients {
        let native = connect(cell);
        for (path, known) in files {
            let found = read(&native, path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_same(path, &found, known);
        }
    }
}
