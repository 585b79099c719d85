//! The format of a recording: the changes of one store's files, in order. See
//! `docs/rfcs/2026-11-22-recorder.md`.
//!
//! A header, then frames: `length u32` and `crc32c u32` of a body, the body. A body is `kind u8`,
//! then its fields. Integers are little-endian, a path is `length u16` and bytes. Events behind a
//! [`RecordedEvent::Begun`] are numbered by their place in the recording, from 0. Their
//! [`RecordedEvent::Ended`] has that number. Units: bytes.

use crate::files::error::DiskError;
use crate::files::identity::{StoreIdentity, StoreKind};

const MAGIC: &[u8; 8] = b"ZONALREC";
const VERSION: u32 = 1;
const HEADER: usize = 48;
const CRC_AT: usize = HEADER - 4;
/// Length and checksum before each body.
pub(crate) const FRAME: usize = 8;
/// Longest path.
const PATH_MAX: usize = 4096;

/// Why a recording has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The store was closed.
    Closed,
    /// The recording reached its bound; the store went on.
    Full,
}

/// An operation on the files of a store. Paths are below the store's folder; a file keeps its
/// number when it is renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedEvent<'a> {
    /// Events before this one describe files that existed and were durable when the recording
    /// began.
    Begun,
    /// A folder is made.
    MakeFolder {
        /// Its path.
        path: &'a str,
    },
    /// A file is created, or an existing file is replaced by an empty one.
    Create {
        /// The file's number from here on.
        file: u32,
        /// Its path.
        path: &'a str,
    },
    /// Bytes are written.
    Write {
        /// The file.
        file: u32,
        /// Where they begin.
        at: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A file gets another length.
    SetLen {
        /// The file.
        file: u32,
        /// The length.
        length: u64,
    },
    /// Space is allocated; a shorter file grows to `end`.
    Allocate {
        /// The file.
        file: u32,
        /// End of the space; it begins at 0.
        end: u64,
    },
    /// A file is flushed.
    Flush {
        /// The file.
        file: u32,
    },
    /// A file is renamed; a file that has the new name goes.
    Rename {
        /// The path before.
        from: &'a str,
        /// The path after.
        to: &'a str,
    },
    /// A name is removed.
    Remove {
        /// The path.
        path: &'a str,
    },
    /// The names in a folder are flushed.
    FlushNames {
        /// The folder; empty: the store's own.
        path: &'a str,
    },
    /// An earlier operation has ended.
    Ended {
        /// Number of its event.
        event: u64,
        /// Whether it succeeded.
        is_well: bool,
    },
    /// The end of the recording.
    End(Ending),
}

/// Bytes of the frame of an [`RecordedEvent::End`].
pub(crate) const END_FRAME: u64 = FRAME as u64 + 2;

/// The header of the recording of a store.
pub(crate) fn header(identity: &StoreIdentity) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&identity.kind.number().to_le_bytes());
    out[16..32].copy_from_slice(&identity.cell);
    out[32..36].copy_from_slice(&identity.id.to_le_bytes());
    let crc = crc_fast::crc32_iscsi(&out[..CRC_AT]);
    out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The frame of an event, without the bytes of a write, which follow it.
pub(crate) fn frame<'a>(event: &RecordedEvent<'a>) -> (Vec<u8>, &'a [u8]) {
    let mut out = vec![0; FRAME];
    let mut payload: &[u8] = &[];
    match *event {
        RecordedEvent::Begun => out.push(0),
        RecordedEvent::MakeFolder { path } => {
            out.push(1);
            put_path(&mut out, path);
        }
        RecordedEvent::Create { file, path } => {
            out.push(2);
            out.extend_from_slice(&file.to_le_bytes());
            put_path(&mut out, path);
        }
        RecordedEvent::Write { file, at, bytes } => {
            out.push(3);
            out.extend_from_slice(&file.to_le_bytes());
            out.extend_from_slice(&at.to_le_bytes());
            payload = bytes;
        }
        RecordedEvent::SetLen { file, length } => {
            out.push(4);
            out.extend_from_slice(&file.to_le_bytes());
            out.extend_from_slice(&length.to_le_bytes());
        }
        RecordedEvent::Allocate { file, end } => {
            out.push(5);
            out.extend_from_slice(&file.to_le_bytes());
            out.extend_from_slice(&end.to_le_bytes());
        }
        RecordedEvent::Flush { file } => {
            out.push(6);
            out.extend_from_slice(&file.to_le_bytes());
        }
        RecordedEvent::Rename { from, to } => {
            out.push(7);
            put_path(&mut out, from);
            put_path(&mut out, to);
        }
        RecordedEvent::Remove { path } => {
            out.push(8);
            put_path(&mut out, path);
        }
        RecordedEvent::FlushNames { path } => {
            out.push(9);
            put_path(&mut out, path);
        }
        RecordedEvent::Ended { event, is_well } => {
            out.push(10);
            out.extend_from_slice(&event.to_le_bytes());
            out.push(u8::from(is_well));
        }
        RecordedEvent::End(ending) => {
            out.push(11);
            out.push(match ending {
                Ending::Closed => 1,
                Ending::Full => 2,
            });
        }
    }
    let length = out.len() - FRAME + payload.len();
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_le_bytes());
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&out[FRAME..]);
    digest.update(payload);
    // A 32-bit algorithm: the upper half is zero.
    let crc = u32::try_from(digest.finalize() & 0xffff_ffff).unwrap_or(0);
    out[4..FRAME].copy_from_slice(&crc.to_le_bytes());
    (out, payload)
}

/// Encodes a path; all paths are a store's own, and short.
fn put_path(out: &mut Vec<u8>, path: &str) {
    let bytes = path.as_bytes();
    let bytes = bytes.get(..PATH_MAX).unwrap_or(bytes);
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// A decoded recording.
#[derive(Debug, Clone)]
pub struct Recording<'a> {
    /// The recorded store.
    pub identity: StoreIdentity,
    /// Its events, each with the length of the recording behind it.
    pub events: Vec<(u64, RecordedEvent<'a>)>,
    /// Why it has ended; `None` where the process was killed, or the recording's disk failed.
    pub ending: Option<Ending>,
}

impl<'a> Recording<'a> {
    /// Decodes a recording. Leaves out an incomplete last event, as a kill leaves it.
    ///
    /// # Errors
    /// `WrongVersion`, `Corrupt`.
    pub fn read(bytes: &'a [u8]) -> Result<Self, DiskError> {
        let corrupt = |what: &str| DiskError::Corrupt(format!("recording: {what}"));
        let (head, mut rest) = bytes
            .split_at_checked(HEADER)
            .ok_or_else(|| corrupt("too short"))?;
        let identity = read_header(head)?;
        let mut events = Vec::new();
        let mut ending = None;
        while let Some(mut frame) = rest.get(..FRAME) {
            let length = take_u32(&mut frame).unwrap_or(0) as usize;
            let crc = take_u32(&mut frame).unwrap_or(0);
            let Some(body) = rest[FRAME..].get(..length) else {
                break;
            };
            if ending.is_some() {
                return Err(corrupt("something behind its end"));
            }
            if crc_fast::crc32_iscsi(body) != crc {
                return Err(corrupt("an event fails its checksum"));
            }
            rest = &rest[FRAME + length..];
            let event = event(body).ok_or_else(|| corrupt("an event of no known form"))?;
            if let RecordedEvent::End(why) = event {
                ending = Some(why);
            }
            events.push(((bytes.len() - rest.len()) as u64, event));
        }
        Ok(Self {
            identity,
            events,
            ending,
        })
    }
}

fn read_header(head: &[u8]) -> Result<StoreIdentity, DiskError> {
    let corrupt = |what: &str| DiskError::Corrupt(format!("recording: {what}"));
    let word = |at: usize| head.get(at..).and_then(|mut rest| take_u32(&mut rest));
    if head.get(..8) != Some(MAGIC) {
        return Err(corrupt("bad magic"));
    }
    let found = word(8).unwrap_or(0);
    if found != VERSION {
        return Err(DiskError::WrongVersion {
            found,
            known: VERSION,
        });
    }
    if word(CRC_AT) != head.get(..CRC_AT).map(crc_fast::crc32_iscsi) {
        return Err(corrupt("bad checksum"));
    }
    let kind = word(12).and_then(StoreKind::from_number);
    let cell = head.get(16..32).and_then(|cell| cell.try_into().ok());
    match (kind, cell, word(32)) {
        (Some(kind), Some(cell), Some(id)) => Ok(StoreIdentity { cell, kind, id }),
        _ => Err(corrupt("unknown kind of store")),
    }
}

/// Decodes an event from its body; `None` where the body is not exactly one event.
fn event(mut body: &[u8]) -> Option<RecordedEvent<'_>> {
    let rest = &mut body;
    let event = match take(rest, 1)?.first()? {
        0 => RecordedEvent::Begun,
        1 => RecordedEvent::MakeFolder {
            path: take_path(rest)?,
        },
        2 => RecordedEvent::Create {
            file: take_u32(rest)?,
            path: take_path(rest)?,
        },
        3 => {
            let (file, at) = (take_u32(rest)?, take_u64(rest)?);
            let bytes = std::mem::take(rest);
            at.checked_add(bytes.len() as u64)?;
            RecordedEvent::Write { file, at, bytes }
        }
        4 => RecordedEvent::SetLen {
            file: take_u32(rest)?,
            length: take_u64(rest)?,
        },
        5 => RecordedEvent::Allocate {
            file: take_u32(rest)?,
            end: take_u64(rest)?,
        },
        6 => RecordedEvent::Flush {
            file: take_u32(rest)?,
        },
        7 => RecordedEvent::Rename {
            from: take_path(rest)?,
            to: take_path(rest)?,
        },
        8 => RecordedEvent::Remove {
            path: take_path(rest)?,
        },
        9 => RecordedEvent::FlushNames {
            path: take_path(rest)?,
        },
        10 => RecordedEvent::Ended {
            event: take_u64(rest)?,
            is_well: flag(*take(rest, 1)?.first()?)?,
        },
        11 => RecordedEvent::End(match take(rest, 1)?.first()? {
            1 => Ending::Closed,
            2 => Ending::Full,
            _ => return None,
        }),
        _ => return None,
    };
    body.is_empty().then_some(event)
}

fn flag(byte: u8) -> Option<bool> {
    (byte < 2).then_some(byte == 1)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    Some(head)
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?))
}

/// Decodes a path that stays below the store's folder.
fn take_path<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?) as usize;
    let path = std::str::from_utf8(take(rest, length)?).ok()?;
    let is_plain = |name: &str| !["", ".", ".."].contains(&name) && !name.contains('\0');
    (path.is_empty() || path.split('/').all(is_plain)).then_some(path)
}
