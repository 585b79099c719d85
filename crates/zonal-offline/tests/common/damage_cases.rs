//! Damages a store of a cell in one place at a time, checks and repairs the cell, and verifies what
//! is left.

use super::{Made, OpenTarget, TestCell, lookup, open_engine};
use std::collections::BTreeMap;
use std::path::PathBuf;
use zonal_disk::Engine;
use zonal_disk::LogRoom;
use zonal_meta::inode::Inode;
use zonal_meta::keys;
use zonal_testkit::Rng;
use zonal_types::{Ino, KvChange, KvRead};

pub type Saved = BTreeMap<PathBuf, Vec<u8>>;

/// A cell, with its files as they were before any damage.
pub struct Bench {
    pub cell: TestCell,
    pub saved: Saved,
}

impl Bench {
    pub fn new(name: &str) -> Self {
        let cell = TestCell::make(name, 160);
        // Moves all records into the indexes, so that each damage is a record of its own.
        for at in 0..2 {
            open_engine(cell.spec(at))
                .checkpoint(&mut || Ok(()))
                .unwrap();
        }
        let saved = cell.save();
        Self { cell, saved }
    }

    /// Changes one store, checks and repairs the cell. `suffering`: files that may be elsewhere or
    /// incomplete afterwards.
    pub fn try_damage(
        &self,
        context: &str,
        expected: &str,
        suffering: usize,
        at: usize,
        damage: &dyn Fn(&Engine) -> Vec<KvChange>,
    ) {
        self.put_in(context, at, damage);
        self.put_right(context, expected, suffering);
    }

    pub fn put_in(&self, context: &str, at: usize, damage: &dyn Fn(&Engine) -> Vec<KvChange>) {
        self.cell.restore(&self.saved);
        {
            let engine = open_engine(self.cell.spec(at));
            let changes = damage(&engine);
            assert!(!changes.is_empty(), "{context}: no damage");
            if at < 2 {
                engine.append_with(changes, &[], LogRoom::Normal).unwrap();
                engine.sync_all().unwrap();
            } else {
                // The records of a target carry notes: move them into the index, with what the log
                // says about them.
                drop(engine);
                let mut target = OpenTarget::open(self.cell.spec(at)).unwrap();
                target.checkpoint();
                target.engine.apply_unlogged(changes);
                target.engine.checkpoint(&mut || Ok(())).unwrap();
            }
        }
    }

    pub fn put_right(&self, context: &str, expected: &str, suffering: usize) {
        let (found, heard) = self.cell.fsck(false);
        assert!(
            found.found > 0,
            "{context}: not found: {:?}",
            heard.findings
        );
        assert!(
            heard.names().contains(&expected),
            "{context}: {:?}",
            heard.names()
        );
        let (repaired, more) = self.cell.fsck(true);
        assert_eq!(repaired.left, 0, "{context}: {:#?}", more.findings);
        let (again, told) = self.cell.fsck(false);
        assert_eq!(again.found, 0, "{context}: {:#?}", told.findings);
        let (_, other) = self.cell.verify(context);
        assert!(
            other <= suffering,
            "{context}: {other} files suffer\n{:#?}",
            heard.findings
        );
        self.cell.work(context);
    }

    pub fn file(&self, rng: &mut Rng) -> &Made {
        &self.cell.files[rng.index(self.cell.files.len())]
    }

    pub fn lost_found(&self, name: &str) -> Option<Ino> {
        let (root, shard) = (
            open_engine(self.cell.spec(0)),
            open_engine(self.cell.spec(1)),
        );
        lookup(&root, &shard, &format!("/lost+found-1/{name}"))
    }
}

/// Number of damages in a test; `ZONAL_DAMAGES` sets more.
pub fn damages(usual: u64) -> u64 {
    let wanted = std::env::var("ZONAL_DAMAGES").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Rounds of a list of planted records, each with other files: about as many damages as
/// [`damages`].
pub fn lists() -> u64 {
    const DAMAGES: u64 = 30;
    damages(1).div_ceil(DAMAGES)
}

pub fn inode(engine: &Engine, ino: Ino) -> Inode {
    Inode::decode(ino, &engine.get(&keys::inode(ino)).unwrap().unwrap()).unwrap()
}
