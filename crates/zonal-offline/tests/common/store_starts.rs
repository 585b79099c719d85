//! Starts of a cell's stores: the mark of the last start, in the manager's store and in the store's
//! own file.

use super::{TestCell, open_engine};
use std::fs;
use zonal_disk::StoreDir;
use zonal_disk::start_marks::{self, Starts, StoredMark};
use zonal_disk::store::load_identity;
use zonal_disk::{Engine, StoreKind};
use zonal_offline::StoreSpec;
use zonal_types::{Codec, KvChange, KvRead};

/// Key of the manager's record of a store. The manager has no record of its own store.
fn key(spec: &StoreSpec) -> Option<Vec<u8>> {
    let kind = match spec.identity.kind {
        StoreKind::Shard => 1,
        StoreKind::Target => 2,
        StoreKind::Manager => return None,
    };
    let mut key = vec![0xff, 0xff, 0xff, 0xff, 0xf1, kind];
    key.extend_from_slice(&spec.identity.id.to_be_bytes());
    Some(key)
}

impl TestCell {
    /// Records some starts of each store; returns the records for the manager's store.
    pub(super) fn fill_starts(&self) -> Vec<KvChange> {
        let mut changes = Vec::new();
        for (at, spec) in self.cell.stores.iter().enumerate() {
            let Some(key) = key(spec) else {
                continue;
            };
            let mark = StoredMark {
                number: 3 + at as u64,
                tag: 0x1234_5678_9abc_def0 + at as u64,
            };
            start_marks::taken(&StoreDir::plain(&spec.dir), mark).unwrap();
            let uuid = load_identity(&spec.dir).unwrap().unwrap().uuid;
            let value = (uuid, (mark.number, mark.tag)).to_bytes();
            changes.push(KvChange::put(key, value));
        }
        changes
    }

    /// Verifies that no store would be taken for a copy: its file has the mark in the manager's
    /// record, where there is one.
    pub(super) fn verify_starts(&self, manager: &Engine, context: &str) {
        for spec in &self.cell.stores {
            let known = key(spec).and_then(|key| manager.get(&key).unwrap());
            let Some(value) = known else {
                continue;
            };
            let (_, (number, tag)) = <([u8; 16], (u64, u64))>::from_bytes(&value).unwrap();
            let bytes = fs::read(spec.dir.join(start_marks::FILE_NAME)).unwrap();
            let file = Starts::decode(&bytes).expect(context);
            assert_eq!(file.taken, StoredMark { number, tag }, "{context}: starts");
        }
    }
}
