//! A target in use: the core on an engine and segments, driven as by its server.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]

use super::{GEOMETRY, SEGMENT};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use zonal_disk::Engine;
use zonal_disk::LogRoom;
use zonal_object::{
    Committed, Edit, EditStep, EffectRecord, ObjectId, StorageTarget, Truncation, WriteDecision,
    WriteRequest,
};
use zonal_offline::StoreSpec;
use zonal_types::ErrorCode;

/// A target in use.
pub struct OpenTarget {
    pub engine: Engine,
    pub target: StorageTarget,
    dir: PathBuf,
}

impl OpenTarget {
    pub fn open(spec: &StoreSpec) -> Result<Self, ErrorCode> {
        let mut notes = Vec::new();
        let engine = Engine::open(
            &spec.dir,
            &spec.identity,
            spec.config,
            &mut |record, _, _| {
                notes.push(record.note.clone());
                true
            },
        )?;
        let target = StorageTarget::open(GEOMETRY, &engine, notes.iter().map(Vec::as_slice))?;
        fs::create_dir_all(spec.dir.join("segments")).unwrap();
        Ok(Self {
            engine,
            target,
            dir: spec.dir.join("segments"),
        })
    }

    fn segment(&self, number: u32) -> File {
        let path = self.dir.join(format!("seg.{number:08}"));
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        file.set_len(SEGMENT).unwrap();
        file
    }

    fn append(&self, record: EffectRecord) {
        self.engine
            .append_with(record.changes, &record.note, LogRoom::Reserve)
            .unwrap();
    }

    pub fn write(&mut self, object: ObjectId, offset: u64, bytes: &[u8]) -> Result<(), ErrorCode> {
        let request = WriteRequest {
            attempt: zonal_object::ChangeAttempt::default(),
            object,
            truncation: Truncation::default(),
            ranges: &[(offset, bytes.len() as u32)],
        };
        let WriteDecision::Ready(mut plan) = self.target.plan_write(&self.engine, request)? else {
            return Err(ErrorCode::Invalid);
        };
        let writes: Vec<_> = plan.writes().collect();
        for write in writes {
            let file = self.segment(write.segment);
            file.write_all_at(&bytes[write.payload], write.offset)
                .unwrap();
        }
        plan.checksum(bytes);
        for _ in 0..100 {
            if let Some(read) = plan.old_blocks() {
                let mut buffer = vec![0; read.buffer_len()];
                for part in read.reads() {
                    self.segment(part.segment)
                        .read_exact_at(&mut buffer[part.buffer], part.offset)
                        .unwrap();
                }
                plan.supply(&mut buffer).map_err(|damage| damage.code())?;
                continue;
            }
            match self.target.commit_write(&self.engine, &mut plan, bytes)? {
                Committed::Done { record, .. } => {
                    self.append(record);
                    return Ok(());
                }
                Committed::Again => {}
            }
        }
        Err(ErrorCode::Io)
    }

    pub fn truncate(&mut self, object: ObjectId, truncation: Truncation) {
        let mut edit = Edit::truncate(object, truncation);
        loop {
            match self.target.edit_step(&self.engine, &mut edit).unwrap() {
                EditStep::Log { record, done } => {
                    self.append(record);
                    if done.is_some() {
                        return;
                    }
                }
                EditStep::Done(_) => return,
                EditStep::Read => panic!("nothing is to be read"),
            }
        }
    }

    pub fn read(&self, object: ObjectId, offset: u64, length: usize) -> Result<Vec<u8>, ErrorCode> {
        let truncation = Truncation::default();
        let plan = self
            .target
            .plan_read(&self.engine, object, truncation, offset, length)?;
        let mut buffer = vec![0; plan.buffer_len()];
        for part in plan.reads() {
            let path = self.dir.join(format!("seg.{:08}", part.segment));
            let file = File::open(path).map_err(|_| ErrorCode::Corrupt)?;
            file.read_exact_at(&mut buffer[part.buffer], part.offset)
                .map_err(|_| ErrorCode::Corrupt)?;
        }
        let range = plan.finish(&mut buffer).map_err(|damage| damage.code())?;
        Ok(buffer[range].to_vec())
    }

    pub fn checkpoint(&mut self) {
        let changes = self.target.freeze();
        self.engine.apply_unlogged(changes);
        self.engine.checkpoint(&mut || Ok(())).unwrap();
        self.target.checkpoint_done();
    }
}
