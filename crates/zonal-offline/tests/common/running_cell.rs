//! A "running" cell: its stores are open in this process, and the test decides about changes
//! between two requests.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

use super::{GEOMETRY, OpenTarget, TestCell, open_engine};
use std::cell::Cell;
use std::time::Duration;
use zonal_disk::Engine;
use zonal_object::ids::BLOCK;
use zonal_object::{KnownObject, ObjectId, content_digest, index_walk};
use zonal_offline::running_cell::{ShardSnapshot, SnapshotPage, SnapshotSet};
use zonal_offline::{CheckSummary, OfflineError, RunningCell, RunningOptions, check_running};
use zonal_types::{Blob, Codec, KvRead, ShardId, TargetId};
use zonal_zonemap::ZoneMap;

/// Entries of one page: few, so that there are many pages.
const PAGE: usize = 13;

/// Changes that a test makes before snapshots are made for the nth time (counted from 1).
pub type Meanwhile<'a> = dyn Fn(&Open, u32) + 'a;

/// Engines of the stores.
pub struct Open {
    pub shards: [Engine; 2],
    pub targets: Vec<OpenTarget>,
}

pub struct Running<'a> {
    open: Open,
    meanwhile: &'a Meanwhile<'a>,
    fixed: Cell<u32>,
    /// Number of snapshots that vanish while they are read.
    dying: Cell<u32>,
}

struct View {
    shard: ShardId,
    view: zonal_disk::View,
    dies: bool,
    pages: Cell<u32>,
}

impl ShardSnapshot for View {
    fn shard(&self) -> ShardId {
        self.shard
    }

    fn page(&self, after: &[u8]) -> Result<SnapshotPage, OfflineError> {
        self.pages.set(self.pages.get() + 1);
        if self.dies && self.pages.get() > 2 {
            return Err(OfflineError::SnapshotGone(self.shard));
        }
        let mut start = after.to_vec();
        if !start.is_empty() {
            start.push(0);
        }
        let (mut entries, mut end) = (Vec::new(), true);
        self.view
            .scan(&start, &[0xff; 8], &mut |key, value| {
                if entries.len() >= PAGE {
                    end = false;
                    return false;
                }
                entries.push((Blob(key.to_vec()), Blob(value.to_vec())));
                true
            })
            .unwrap();
        Ok((entries, end))
    }
}

impl RunningCell for Running<'_> {
    fn map(&self) -> Result<ZoneMap, OfflineError> {
        Ok(ZoneMap::load(&self.open.shards[0]).unwrap().unwrap())
    }

    fn objects(
        &self,
        target: TargetId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<(Vec<KnownObject>, bool), OfflineError> {
        let open = &self.open.targets[target.0 as usize - 1];
        let engine = &open.engine;
        let (found, end) = index_walk::objects(engine, after, limit.min(PAGE)).unwrap();
        let known = found.into_iter().map(|listed| KnownObject {
            object: listed.object,
            bytes: listed.stat.object_bytes,
            blocks: listed.stat.allocated / BLOCK,
            lost: 0,
            truncate_seq: listed.stat.truncate_seq,
            deleting: false,
            order: listed.order,
            digest: {
                let pending = open.target.pending_contents(listed.object);
                content_digest(engine, listed.object, &pending).unwrap().0
            },
        });
        Ok((known.collect(), end))
    }

    fn fix(&self) -> Result<SnapshotSet<'_>, OfflineError> {
        self.fixed.set(self.fixed.get() + 1);
        (self.meanwhile)(&self.open, self.fixed.get());
        let dies = self.dying.get() > 0;
        self.dying.set(self.dying.get().saturating_sub(1));
        let view = |at: usize| {
            let view = View {
                shard: ShardId(at as u32),
                view: self.open.shards[at].view().unwrap(),
                dies,
                pages: Cell::new(0),
            };
            Box::new(view) as Box<dyn ShardSnapshot>
        };
        Ok(SnapshotSet {
            map: self.map()?,
            snapshots: vec![view(0), view(1)],
        })
    }
}

impl TestCell {
    /// Opens the stores for use.
    pub fn open(&self) -> Open {
        Open {
            shards: [open_engine(self.spec(0)), open_engine(self.spec(1))],
            targets: (2..5)
                .map(|at| OpenTarget::open(self.spec(at)).unwrap())
                .collect(),
        }
    }

    /// Checks the cell while it "runs". Snapshots vanish `dying` times.
    pub fn look(
        &self,
        dying: u32,
        meanwhile: &Meanwhile<'_>,
    ) -> Result<(CheckSummary, super::Heard), OfflineError> {
        let open = self.open();
        assert_eq!(open.targets.len(), self.map.targets.len(), "{GEOMETRY:?}");
        let running = Running {
            open,
            meanwhile,
            fixed: Cell::new(0),
            dying: Cell::new(dying),
        };
        let options = RunningOptions {
            scratch: self.dir.join("scratch"),
            quiet: Duration::from_millis(1),
        };
        let mut heard = super::Heard::default();
        let summary = check_running(&running, &options, &mut heard)?;
        Ok((summary, heard))
    }
}
