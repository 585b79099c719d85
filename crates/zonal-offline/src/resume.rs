//! Saves the state of a check of a stopped cell, so that the next check can resume after an
//! interruption. See docs/rfcs/2026-11-22-resumable-fsck.md.
//!
//! Invariants:
//! 1. Saved state is used only by a check of the very same stores, which are locked during the
//!    comparison ([`fingerprints`]).
//! 2. Saved state is used only after all of it was found whole ([`checksummed_file`]); otherwise
//!    all of it is removed.
//! 3. A saved file is written after everything that it names.
//! 4. Only files in a folder of the check itself are removed.

mod checksummed_file;
mod fingerprints;
mod store_frames;

use crate::error::OfflineError;
use crate::external_sort::Sorter;
use crate::facts::ShardContents;
use crate::scratch_folder::{self, LOCK};
use crate::store_scan::TargetContents;
use crc_fast::{CrcAlgorithm, checksum};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zonal_fsck::FindingKind;
use zonal_object::ObjectId;
use zonal_types::Codec;

pub(crate) use fingerprints::{Fingerprints, of_store};

/// The folder's name in the scratch folder.
pub const WORK_FOLDER: &str = "zonal-fsck.work";
/// Name of the file with the fingerprints of the stores.
const STORES: &str = "stores";
/// Prefix of a store's saved result; the store's name follows.
const PART: &str = "part.";
const FACTS: &str = "facts.";
const BLOCKS: &str = "blocks.";

/// How a check begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckStart {
    /// No saved state was found.
    New,
    /// The check resumes an interrupted one.
    GoesOn {
        /// Stores that the interrupted check had read.
        read: u64,
        /// Stores of the cell.
        stores: u64,
    },
    /// The saved state is unusable, for this reason: the check begins anew.
    Anew(String),
}

/// Facts of a shard, sorted but not joined yet.
pub(crate) struct Facts {
    pub facts: Sorter,
    pub told: Vec<FindingKind>,
    pub records: u64,
}

/// Progress of the comparison of a target's blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Compared {
    /// Number of compared blocks, in the order of the target's index.
    pub blocks: u64,
    /// The damaged ones among them.
    pub damaged: Vec<(ObjectId, u64)>,
}

/// Saved state of one store.
pub(crate) enum SavedPart {
    /// A shard's sorted facts.
    Facts(Facts),
    /// The contents of a shard, and the records read.
    Shard(Box<ShardContents>, u64),
    /// The contents of a target, and the records read.
    Target(TargetContents, u64),
    /// Progress of the comparison of a target's blocks.
    Compared(Compared),
}

/// The folder with the saved state, while a check uses it.
pub(crate) struct WorkFolder {
    dir: PathBuf,
    key: u64,
    kept: Mutex<BTreeMap<String, SavedPart>>,
    _lock: File,
}

impl WorkFolder {
    /// Opens the work folder in the scratch folder `above`, with the state that an interrupted
    /// check of the same stores saved, unless `fresh`. `names` are the stores of the cell: true for
    /// targets.
    ///
    /// # Errors
    /// The scratch folder fails, or belongs to somebody else.
    pub fn open(
        above: &Path,
        fresh: bool,
        prints: &Fingerprints,
        names: &BTreeMap<String, bool>,
    ) -> Result<(Self, CheckStart), OfflineError> {
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
            SavedState::Nothing
        } else {
            folder.find(prints, names).map_err(failed)?
        };
        let begin = match found {
            SavedState::Kept(kept) => {
                let is_read = |kept: &&SavedPart| {
                    matches!(kept, SavedPart::Shard(..) | SavedPart::Target(..))
                };
                let read = kept.values().filter(is_read).count() as u64;
                let stores = prints.stores.len() as u64;
                let begin = if kept.is_empty() {
                    CheckStart::New
                } else {
                    CheckStart::GoesOn { read, stores }
                };
                folder.kept = Mutex::new(kept);
                return Ok((folder, begin));
            }
            SavedState::Nothing => CheckStart::New,
            SavedState::Useless(why) => CheckStart::Anew(why),
        };
        folder.empty().map_err(failed)?;
        folder.write(STORES, 0, |file| file.put(prints))?;
        Ok((folder, begin))
    }

    /// The folder for sorted runs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Looks for the state of an interrupted check.
    fn find(
        &self,
        prints: &Fingerprints,
        names: &BTreeMap<String, bool>,
    ) -> io::Result<SavedState> {
        let files = self.files()?;
        if !files.contains(STORES) {
            return Ok(SavedState::Nothing);
        }
        let damaged = SavedState::Useless("its saved state is damaged".into());
        let old =
            checksummed_file::Frames::open(&self.dir, STORES, 0).and_then(|mut file| file.next());
        let Ok(Some(old)) = old else {
            return Ok(damaged);
        };
        if let Some(why) = prints.difference(&old) {
            return Ok(SavedState::Useless(why));
        }
        Ok(self.load(&files, names).map_or(damaged, SavedState::Kept))
    }

    /// Loads all saved state, and removes files that no part names.
    fn load(
        &self,
        files: &BTreeSet<String>,
        names: &BTreeMap<String, bool>,
    ) -> io::Result<BTreeMap<String, SavedPart>> {
        let mut kept = BTreeMap::new();
        let mut needed = BTreeSet::from([STORES.to_owned()]);
        for (name, is_target) in names {
            // The part that was saved last wins.
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

    /// Returns the saved state of a store; a second call returns `None`.
    pub fn take(&self, name: &str) -> Option<SavedPart> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(name)
    }

    /// Saves the sorted facts of a shard.
    pub fn keep_facts(&self, name: &str, facts: &mut Facts) -> Result<(), OfflineError> {
        let runs = facts.facts.keep()?;
        let (told, records) = (&facts.told, facts.records);
        self.write(&format!("{FACTS}{name}"), self.key, |file| {
            store_frames::put_facts(file, runs, records, told)
        })
    }

    /// Saves the contents and the findings of a shard; its facts are not needed any more.
    pub fn keep_shard(
        &self,
        name: &str,
        seen: &mut ShardContents,
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
        // Best effort: files that no part names are removed when the check resumes or ends.
        let _ = fs::remove_file(self.dir.join(format!("{FACTS}{name}")));
        facts.remove();
        Ok(())
    }

    /// Saves the contents and the findings of a target.
    pub fn keep_target(
        &self,
        name: &str,
        seen: &mut TargetContents,
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

    /// Saves the progress of the comparison of a target's blocks.
    pub fn keep_compared(&self, name: &str, compared: &Compared) -> Result<(), OfflineError> {
        self.write(&format!("{BLOCKS}{name}"), self.key, |file| {
            store_frames::put_compared(file, compared)
        })
    }

    /// Passes the findings of a store with a saved result to `tell`, in order.
    pub fn told(&self, name: &str, tell: &mut dyn FnMut(FindingKind)) -> Result<(), OfflineError> {
        let told = store_frames::told(&self.dir, &format!("{PART}{name}"), self.key, tell);
        told.map_err(|source| self.failed(source))
    }

    /// Removes the folder with all saved state.
    pub fn remove(self) -> Result<(), OfflineError> {
        self.empty().map_err(|source| self.failed(source))?;
        // Best effort: an empty folder does no harm.
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

    /// Names of the files in the folder, without the lock.
    fn files(&self) -> io::Result<BTreeSet<String>> {
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            // The check makes only plain files with valid names. A link that somebody added is
            // removed as a link.
            if let Ok(name) = entry.file_name().into_string()
                && (entry.file_type()?.is_file() || entry.file_type()?.is_symlink())
                && name != LOCK
            {
                files.insert(name);
            }
        }
        Ok(files)
    }

    /// Removes all saved state, the fingerprints of the stores first.
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

/// The state of an earlier check.
enum SavedState {
    Nothing,
    Useless(String),
    Kept(BTreeMap<String, SavedPart>),
}
