//! Import of objects from a stream into a running target.
//!
//! The stream is read to its end before the first object is written, so a damaged or truncated
//! stream changes nothing. Ranges that the stream marks as damaged are not written: they read as
//! holes, and are reported.

use super::format::{DATA, LOST, Lost, OBJECT, OBJECT_END, ObjectEnd, ObjectStart, split_data};
use super::running_target::RunningTarget;
use super::source::ObjectSource;
use crate::atomic_file::open_regular;
use crate::exit::{FAILED, Failure, IN_USE, REFUSED};
use crate::progress::ProgressMeter;
use anyhow::Context;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use zonal_disk::stream::{Frame, StreamHeader, StreamKind, StreamReader};
use zonal_object::ObjectId;
use zonal_types::limits::STORAGE_IO_BYTES_MAX;
use zonal_types::{CellId, Codec, ErrorCode, TargetId};
use zonal_wire::{StorageReply, StorageRequest};

/// Totals of an import.
#[derive(Default)]
pub struct ImportSummary {
    pub objects: u64,
    pub data_bytes: u64,
    pub lost: Vec<(ObjectId, Lost)>,
    /// Objects whose file was removed since the export: the target considers them deleted, and they
    /// stay so.
    pub removed: Vec<ObjectId>,
}

struct Current {
    start: ObjectStart,
    data_bytes: u64,
    /// One past the last byte written.
    end: u64,
    is_removed: bool,
}

impl Current {
    fn id(&self) -> ObjectId {
        ObjectId {
            data_id: self.start.data_id,
            column: self.start.column,
        }
    }
}

/// Refuses objects of another target. Layouts name the target, so elsewhere nobody would find them,
/// and `zonal fsck` would report each as misplaced.
fn refuse_other_target(header: &StreamHeader, target: TargetId) -> anyhow::Result<()> {
    match header.target {
        Some(of) if of != target.0 => {
            let text = format!("the objects are of target {of}, not of target {target}");
            let hint = "nothing was changed; they are found on their own target only, so --force does not help";
            Err(Failure::new(REFUSED, text).hint(hint).into())
        }
        Some(_) => Ok(()),
        None => {
            crate::console::note("the file does not name its target; importing it into this one");
            Ok(())
        }
    }
}

fn open(path: &Path, cell: CellId) -> anyhow::Result<StreamReader<BufReader<File>>> {
    let file = open_regular(path)?;
    let reader = StreamReader::new(BufReader::with_capacity(1 << 20, file))
        .with_context(|| path.display().to_string())?;
    if reader.header().kind != StreamKind::Objects {
        let text = format!("{} holds {}", path.display(), reader.header().kind.name());
        return Err(Failure::new(REFUSED, text).into());
    }
    if reader.header().cell != cell.0 {
        let found = CellId(reader.header().cell);
        let text = format!("the objects are of cell {found}, not of {cell}");
        return Err(Failure::new(REFUSED, text)
            .hint("data ids mean nothing in another cell; nothing was touched")
            .into());
    }
    Ok(reader)
}

/// Writes the objects of the stream in `path` to the target. With `force`, overwrites objects that
/// exist.
pub fn import(
    remote: &RunningTarget<'_>,
    cell: CellId,
    path: &Path,
    force: bool,
    progress: &mut ProgressMeter,
) -> anyhow::Result<ImportSummary> {
    let shown = || path.display().to_string();
    let mut check = open(path, cell)?;
    refuse_other_target(check.header(), remote.target())?;
    while let Some(frame) = check.next_frame().with_context(shown)? {
        if !force && frame.kind == OBJECT {
            refuse_existing(remote, &decode(path, &frame)?)?;
        }
    }
    let mut reader = open(path, cell)?;
    let mut done = ImportSummary::default();
    let mut current: Option<Current> = None;
    while let Some(frame) = reader.next_frame().with_context(shown)? {
        match (frame.kind, &mut current) {
            (OBJECT, None) => {
                current = Some(Current {
                    start: decode(path, &frame)?,
                    data_bytes: 0,
                    end: 0,
                    is_removed: false,
                });
            }
            (DATA, Some(current)) => {
                let (offset, bytes) = split_data(&frame.payload).map_err(|_| odd(path, &frame))?;
                write(remote, current, offset, bytes)?;
            }
            (LOST, Some(current)) => done.lost.push((current.id(), decode(path, &frame)?)),
            (OBJECT_END, Some(ended)) => {
                let end: ObjectEnd = decode(path, &frame)?;
                if end.data_bytes != ended.data_bytes {
                    return Err(odd(path, &frame));
                }
                finish(remote, ended)?;
                if ended.is_removed {
                    done.removed.push(ended.id());
                } else {
                    done.objects += 1;
                    done.data_bytes += ended.data_bytes;
                }
                progress.at(done.objects, done.data_bytes);
                current = None;
            }
            _ => return Err(odd(path, &frame)),
        }
    }
    if current.is_some() {
        return Err(Failure::new(FAILED, format!("{}: an object without an end", shown())).into());
    }
    remote.sync()?;
    Ok(done)
}

fn odd(path: &Path, frame: &Frame) -> anyhow::Error {
    let text = format!(
        "{}: an unexpected frame at byte {}",
        path.display(),
        frame.offset
    );
    Failure::new(FAILED, text).into()
}

fn decode<T: Codec>(path: &Path, frame: &Frame) -> anyhow::Result<T> {
    T::from_bytes(&frame.payload).map_err(|_error| odd(path, frame))
}

fn refuse_existing(remote: &RunningTarget<'_>, start: &ObjectStart) -> anyhow::Result<()> {
    let object = ObjectId {
        data_id: start.data_id,
        column: start.column,
    };
    let request = StorageRequest::Stat {
        object: remote.object(object, 0, 0),
    };
    match remote.must(&request, &[])? {
        StorageReply::Stat {
            object_bytes: 0,
            allocated: 0,
            truncate_seq: 0,
        } => Ok(()),
        StorageReply::Stat { object_bytes, .. } => {
            let text = format!("object {object} is there already, {object_bytes} bytes");
            Err(Failure::new(IN_USE, text)
                .hint("nothing was changed; --force overwrites the existing objects")
                .into())
        }
        other => Err(anyhow::anyhow!("an unexpected reply: {other:?}")),
    }
}

fn write(
    remote: &RunningTarget<'_>,
    current: &mut Current,
    offset: u64,
    bytes: &[u8],
) -> anyhow::Result<()> {
    let (start, object) = (current.start, current.id());
    let mut at = offset;
    for part in bytes.chunks(STORAGE_IO_BYTES_MAX) {
        let request = StorageRequest::Write {
            object: remote.object(object, start.truncate_seq, start.object_bytes),
            offset: at,
            sync: false,
            expected_version: 0,
            txn: 0,
            snap_epoch: 0,
        };
        if current.is_removed {
            break;
        }
        match remote.ask(&request, part)? {
            Ok(_) => {}
            Err((ErrorCode::Stale, _)) => {
                current.is_removed = true;
                break;
            }
            Err((code, detail)) => {
                let refused = remote.refused(&request, code, &detail);
                return Err(refused).with_context(|| format!("object {object} at byte {at}"));
            }
        }
        at += part.len() as u64;
    }
    current.data_bytes += bytes.len() as u64;
    current.end = current.end.max(at);
    Ok(())
}

/// Completes an object. A hole at its end gets its last byte, which keeps the object's length. If
/// nothing was written, the target is told the last truncation.
fn finish(remote: &RunningTarget<'_>, current: &mut Current) -> anyhow::Result<()> {
    let (start, object) = (current.start, current.id());
    if current.end < start.object_bytes {
        let before = current.data_bytes;
        write(remote, current, start.object_bytes - 1, &[0])?;
        current.data_bytes = before;
    } else if current.end == 0 && start.truncate_seq > 0 && !current.is_removed {
        let object = remote.object(object, start.truncate_seq, start.object_bytes);
        remote.must(&StorageRequest::Truncate { object }, &[])?;
    }
    Ok(())
}
