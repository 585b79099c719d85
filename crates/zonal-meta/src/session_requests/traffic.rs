//! Reports of bytes that clients exchanged with targets, counted by first-level directory.
//!
//! Targets know no directories, so clients report by data id, and the shard follows the back-links
//! from the file. A file counts for the directory below which it is when the report comes; with
//! several links, for the directory of its back-link. The counts are for statistics alone: the
//! shard believes what clients report.

use super::failed;
use crate::config::Now;
use crate::inode::Inode;
use crate::outcome::Outcome;
use crate::shard::MetaShard;
use crate::tx::Tx;
use std::collections::BTreeMap;
use zonal_types::limits::TRAFFIC_REPORT_FILES_MAX;
use zonal_types::{DataId, ErrorCode, Ino, KvRead, SessionId};
use zonal_wire::{ClientTraffic, DirectoryTraffic, MetaReply};

/// Directories on a way to the root: a longer one is a loop in a damaged store.
const DEPTH_MAX: usize = 65_536;

/// First-level directories by directory, for one report; 0: the directory has no way to the root.
type KnownDirectories = BTreeMap<Ino, Ino>;

impl MetaShard {
    /// Counts a report, unless the session has sent it before, and replies with the first-level
    /// directories of its files.
    pub(super) fn report_traffic(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        number: u64,
        traffic: &[(DataId, ClientTraffic)],
    ) -> Outcome {
        if traffic.len() > TRAFFIC_REPORT_FILES_MAX {
            return self.reply(failed(ErrorCode::Invalid));
        }
        let mut tx = self.tx(kv, now, session);
        let mut known = KnownDirectories::new();
        let found: Vec<Ino> = traffic
            .iter()
            .map(|(data_id, _bytes)| {
                // A file that cannot be read counts with the others; who reads it hears why.
                let dir = first_level_of(&mut tx, &mut known, *data_id);
                dir.ok().flatten().unwrap_or(Ino(0))
            })
            .collect();
        drop(tx);
        if self.sessions.is_new_report(session, number) {
            for ((_data_id, bytes), dir) in traffic.iter().zip(&found) {
                self.directories.add(*dir, bytes);
            }
        }
        let dirs = traffic.iter().zip(found);
        let dirs = dirs.filter(|(_file, dir)| *dir != Ino(0));
        let dirs = dirs.map(|((data_id, _bytes), dir)| (*data_id, dir));
        self.reply(MetaReply::TrafficDirs {
            dirs: dirs.collect(),
        })
    }

    /// Bytes that clients reported, by first-level directory.
    #[must_use]
    pub fn directory_traffic(&self) -> Vec<DirectoryTraffic> {
        self.directories.list()
    }
}

/// The first-level directory of a file; the root for a file in it. `None`: the file is gone, or no
/// back-link leads to the root.
fn first_level_of(
    tx: &mut Tx<'_>,
    known: &mut KnownDirectories,
    data_id: DataId,
) -> Result<Option<Ino>, ErrorCode> {
    if !tx.is_ours(Ino(data_id.0)) {
        return Ok(None);
    }
    let Some(ino) = tx.file_of(data_id)? else {
        return Ok(None);
    };
    let Some(file) = tx.find(ino)? else {
        return Ok(None);
    };
    let (mut at, mut way) = (file.parent, Vec::new());
    let found = loop {
        if at == Ino::ROOT {
            break way.last().copied().unwrap_or(Ino::ROOT);
        }
        if let Some(found) = known.get(&at) {
            break *found;
        }
        if at == Ino(0) || !tx.is_ours(at) || way.len() >= DEPTH_MAX {
            break Ino(0);
        }
        let Some(dir) = tx.find(at)?.filter(Inode::is_dir) else {
            break Ino(0);
        };
        way.push(at);
        at = dir.parent;
    };
    known.extend(way.into_iter().map(|dir| (dir, found)));
    Ok((found != Ino(0)).then_some(found))
}
