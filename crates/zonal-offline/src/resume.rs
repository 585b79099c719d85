//! What an interrupted check of a stopped cell had come to, kept in a folder for the next one.
//! See docs/rfcs/2026-11-22-resumable-fsck.md.
//!
//! Invariants:
//! 1. Nothing kept is used but by a check of the very same stores, which are locked when they are
//!    compared ([`fingerprints`]).
//! 2. Nothing kept is used before all of it was found whole ([`checksummed_file`]); otherwise all of it is
//!    removed.
//! 3. A kept file is written when everything it names is.
//! 4. Only files in a folder of our own are removed.

mod checksummed_file;
mod fingerprints;
mod store_frames;

use crate::error::OfflineError;
use crate::external_sort::Sorter;
use crate::facts::ShardSeen;
use crate::scratch_folder::{self, LOCK};
use crate::store_scan::TargetSeen;
use crc_fast::{CrcAlgorithm, checksum};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zonal_fsck::FindingKind;
use zonal_object::ObjectId;
use zonal_types::Codec;

pub(crate) use fingerprints::{Prints, of_store};

/// The folder's name in the scratch folder.
pub const WORK_FOLDER: &str = "zonal-fsck.work";
/// For what the rest is valid.
const STORES: &str = "stores";
/// What is kept of a store; its name follows.
const PART: &str = "part.";
const FACTS: &str = "facts.";
const BLOCKS: &str = "blocks.";

/// How a check begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// Nothing was kept.
    New,
    /// An interrupted one goes on.
    GoesOn {
        /// Stores that it had read.
        read: u64,
        /// All stores.
        stores: u64,
    },
    /// What an interrupted one kept is of no use: why.
    Anew(String),
}

/// Facts of a shard that are sorted and not joined.
pub(crate) struct Facts {
    pub facts: Sorter,
    pub told: Vec<FindingKind>,
    pub records: u64,
}

/// How far the comparison of a target's blocks is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Compared {
    /// Blocks compared, in the order in which the target's index tells them.
    pub blocks: u64,
    /// Those of them that are damaged.
    pub damaged: Vec<(ObjectId, u64)>,
}

/// What was kept of one store.
pub(crate) enum Kept {
    /// A shard's facts.
    Facts(Facts),
    /// All that a shard says, and records read.
    Shard(Box<ShardSeen>, u64),
    /// All that a target says, and records read.
    Target(TargetSeen, u64),
    /// Of a target's blocks.
    Compared(Compared),
}

/// The folder, while a check uses it.
pub(crate) struct WorkFolder {
    dir: PathBuf,
    key: u64,
    kept: Mutex<BTreeMap<String, Kept>>,
    _lock: File,
}

impl WorkFolder {
    /// Takes the folder in the scratch folder `above`, with what an earlier check of the same
    /// stores left in it, unless this one is to be `fresh`. Names are those of the stores in it:
    /// true for targets.
    ///
    /// # Errors
    /// The scratch folder fails, or is somebody else's.
    pub fn open(
        above: &Path,
        fresh: bool,
        prints: &Prints,
        names: &BTreeMap<String, bool>,
    ) -> Result<(Self, Begin), OfflineError> {
        let dir = above.join(WORK_FOLDER);
        let failed = |source| OfflineError::Scratch {
            dir: dir.clone(),
            source,
        };
        let lock = scratch_folder::take(above, &dir).map_err(failed)?;
        let lock = lock.ok_or_else(|| OfflineError::ScratchInUse(dir.clone()))?;
        let mut folder = Self {
            key: checksum(CrcAlgorithm::Crc64Nvme, &prints.to_bytes()),
            kept: Mutex::default(),
            _lock: lock,
            dir: dir.clone(),
        };
        let found = if fresh {
            Found::Nothing
        } else {
            folder.find(prints, names).map_err(failed)?
        };
        let begin = match found {
            Found::Kept(kept) => {
                let is_read = |kept: &&Kept| matches!(kept, Kept::Shard(..) | Kept::Target(..));
                let read = kept.values().filter(is_read).count() as u64;
                let stores = prints.stores.len() as u64;
                let begin = if kept.is_empty() {
                    Begin::New
                } else {
                    Begin::GoesOn { read, stores }
                };
                folder.kept = Mutex::new(kept);
                return Ok((folder, begin));
            }
            Found::Nothing => Begin::New,
            Found::Useless(why) => Begin::Anew(why),
        };
        folder.empty().map_err(failed)?;
        folder.write(STORES, 0, |file| file.put(prints))?;
        Ok((folder, begin))
    }

    /// Where sorted runs belong.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Looks for what an earlier check left.
    fn find(&self, prints: &Prints, names: &BTreeMap<String, bool>) -> io::Result<Found> {
        let files = self.files()?;
        if !files.contains(STORES) {
            return Ok(Found::Nothing);
        }
        let damaged = Found::Useless("what it kept is damaged".into());
        let old =
            checksummed_file::Frames::open(&self.dir, STORES, 0).and_then(|mut file| file.next());
        let Ok(Some(old)) = old else {
            return Ok(damaged);
        };
        if let Some(why) = prints.difference(&old) {
            return Ok(Found::Useless(why));
        }
        Ok(self.load(&files, names).map_or(damaged, Found::Kept))
    }

    /// All that is kept; what nothing names is removed.
    fn load(
        &self,
        files: &BTreeSet<String>,
        names: &BTreeMap<String, bool>,
    ) -> io::Result<BTreeMap<String, Kept>> {
        let mut kept = BTreeMap::new();
        let mut needed = BTreeSet::from([STORES.to_owned()]);
        for (name, is_target) in names {
            // What was kept last counts.
            for kind in [PART, FACTS, BLOCKS] {
                let file = format!("{kind}{name}");
                if !files.contains(&file) || kept.contains_key(name) {
                    continue;
                }
                let (found, runs) =
                    store_frames::load(&self.dir, &file, self.key, kind, *is_target)?;
                needed.insert(file);
                needed.extend(runs);
                kept.insert(name.clone(), found);
            }
        }
        for file in files.difference(&needed) {
            fs::remove_file(self.dir.join(file))?;
        }
        Ok(kept)
    }

    /// What was kept of a store, once.
    pub fn take(&self, name: &str) -> Option<Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(name)
    }

    /// Keeps the sorted facts of a shard.
    pub fn keep_facts(&self, name: &str, facts: &mut Facts) -> Result<(), OfflineError> {
        let runs = facts.facts.keep()?;
        let (told, records) = (&facts.told, facts.records);
        self.write(&format!("{FACTS}{name}"), self.key, |file| {
            store_frames::put_facts(file, runs, records, told)
        })
    }

    /// Keeps what a shard says and what was told of it; its facts are not needed any more.
    pub fn keep_shard(
        &self,
        name: &str,
        seen: &mut ShardSeen,
        facts: Facts,
    ) -> Result<(), OfflineError> {
        let runs = seen.data.keep()?;
        let Facts {
            facts,
            told,
            records,
        } = facts;
        self.write(&format!("{PART}{name}"), self.key, |file| {
            store_frames::put_shard(file, runs, records, seen, &told)
        })?;
        // Best effort: what nothing names goes when the check goes on or ends.
        let _ = fs::remove_file(self.dir.join(format!("{FACTS}{name}")));
        facts.remove();
        Ok(())
    }

    /// Keeps what a target says and what was told of it.
    pub fn keep_target(
        &self,
        name: &str,
        seen: &mut TargetSeen,
        told: &[FindingKind],
        records: u64,
    ) -> Result<(), OfflineError> {
        let runs = seen.data.keep()?;
        self.write(&format!("{PART}{name}"), self.key, |file| {
            store_frames::put_target(file, runs, records, seen, told)
        })?;
        // Best effort, as above.
        let _ = fs::remove_file(self.dir.join(format!("{BLOCKS}{name}")));
        Ok(())
    }

    /// Keeps how far the comparison of a target's blocks is.
    pub fn keep_compared(&self, name: &str, compared: &Compared) -> Result<(), OfflineError> {
        self.write(&format!("{BLOCKS}{name}"), self.key, |file| {
            store_frames::put_compared(file, compared)
        })
    }

    /// Everything that was told of a store whose part is kept, in order.
    pub fn told(&self, name: &str, tell: &mut dyn FnMut(FindingKind)) -> Result<(), OfflineError> {
        let told = store_frames::told(&self.dir, &format!("{PART}{name}"), self.key, tell);
        told.map_err(|source| self.failed(source))
    }

    /// Removes the folder, with all that is kept.
    pub fn remove(self) -> Result<(), OfflineError> {
        self.empty().map_err(|source| self.failed(source))?;
        // Best effort: an empty folder is of no harm.
        let _ = fs::remove_file(self.dir.join(LOCK));
        let _ = fs::remove_dir(&self.dir);
        Ok(())
    }

    fn failed(&self, source: io::Error) -> OfflineError {
        OfflineError::Scratch {
            dir: self.dir.clone(),
            source,
        }
    }

    fn write(
        &self,
        name: &str,
        key: u64,
        fill: impl FnOnce(&mut checksummed_file::Writer) -> io::Result<()>,
    ) -> Result<(), OfflineError> {
        let write = || {
            let mut file = checksummed_file::Writer::create(&self.dir, name, key)?;
            fill(&mut file)?;
            file.finish()
        };
        write().map_err(|source| self.failed(source))
    }

    /// Names of its files, but the lock.
    fn files(&self) -> io::Result<BTreeSet<String>> {
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            // We make no other names, and nothing but files. A link that somebody put there since
            // is removed as a link.
            if let Ok(name) = entry.file_name().into_string()
                && (entry.file_type()?.is_file() || entry.file_type()?.is_symlink())
                && name != LOCK
            {
                files.insert(name);
            }
        }
        Ok(files)
    }

    /// Removes what is kept; first what says for which stores it is.
    fn empty(&self) -> io::Result<()> {
        let mut files = self.files()?;
        if files.remove(STORES) {
            fs::remove_file(self.dir.join(STORES))?;
        }
        files
            .into_iter()
            .try_for_each(|file| fs::remove_file(self.dir.join(file)))
    }
}

/// What an earlier check left.
enum Found {
    Nothing,
    Useless(String),
    Kept(BTreeMap<String, Kept>),
}
