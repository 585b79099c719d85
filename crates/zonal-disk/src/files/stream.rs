//! Streams: the portable form in which stores leave a cell and come back. Bytes:
//! docs/on-disk-format.md, "Streams".
//!
//! A stream is a header, then frames, each with a checksum that also covers the frame before it,
//! then an end. Writers and readers define the contents of the frames. Damage, a missing, swapped
//! or foreign frame, and a truncated stream are `Corrupt`, with the offset.

use std::io::{self, Read, Write};

use crate::files::error::DiskError;

/// Version of header, frames and their contents.
pub const STREAM_VERSION: u32 = 1;
/// Most bytes in a frame.
pub const FRAME_BYTES_MAX: usize = 8 << 20;
const MAGIC: &[u8; 8] = b"ZONALSTR";
const HEADER: usize = 64;
const HEAD: usize = 12;
const END: u8 = 0xff;

/// The contents of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// The stores of a cell's shards and manager.
    Backup,
    /// Objects of a target.
    Objects,
}

impl StreamKind {
    fn number(self) -> u32 {
        match self {
            Self::Backup => 1,
            Self::Objects => 2,
        }
    }

    /// Its name, for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Backup => "a backup of metadata",
            Self::Objects => "objects of a target",
        }
    }
}

/// The header of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHeader {
    /// Its contents.
    pub kind: StreamKind,
    /// The cell of origin.
    pub cell: [u8; 16],
    /// The target of origin; `None` where there is none, or an older version wrote the stream.
    pub target: Option<u32>,
    /// Time of creation: seconds since 1970-01-01 UTC.
    pub made: i64,
}

impl StreamHeader {
    fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&STREAM_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.kind.number().to_le_bytes());
        out[16..32].copy_from_slice(&self.cell);
        out[32..40].copy_from_slice(&self.made.to_le_bytes());
        out[40..44].copy_from_slice(&self.target.unwrap_or(0).to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&out[..HEADER - 4]);
        out[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; HEADER]) -> Result<Self, DiskError> {
        let corrupt = |what: &str| DiskError::Corrupt(format!("stream: {what}"));
        let word = |at: usize| {
            let mut field = [0; 4];
            field.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(field)
        };
        if &bytes[..8] != MAGIC {
            return Err(corrupt("this is none (bad magic)"));
        }
        if word(8) != STREAM_VERSION {
            return Err(DiskError::WrongVersion {
                found: word(8),
                known: STREAM_VERSION,
            });
        }
        if crc_fast::crc32_iscsi(&bytes[..HEADER - 4]) != word(HEADER - 4) {
            return Err(corrupt("the header fails its checksum"));
        }
        let kind = match word(12) {
            1 => StreamKind::Backup,
            2 => StreamKind::Objects,
            _ => return Err(corrupt("of an unknown kind")),
        };
        let mut cell = [0; 16];
        cell.copy_from_slice(&bytes[16..32]);
        let mut made = [0; 8];
        made.copy_from_slice(&bytes[32..40]);
        Ok(Self {
            kind,
            cell,
            // No target has the number 0.
            target: Some(word(40)).filter(|target| *target != 0),
            made: i64::from_le_bytes(made),
        })
    }
}

fn sum(before: u32, kind: u8, payload: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&before.to_le_bytes());
    digest.update(&[kind]);
    digest.update(&(payload.len() as u64).to_le_bytes());
    digest.update(payload);
    // A 32-bit algorithm: the upper half is zero.
    u32::try_from(digest.finalize() & 0xffff_ffff).unwrap_or(0)
}

/// Writes a stream.
pub struct StreamWriter<W> {
    out: W,
    sum: u32,
    frames: u64,
    bytes: u64,
}

impl<W: Write> StreamWriter<W> {
    /// Begins a stream.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn new(mut out: W, header: &StreamHeader) -> Result<Self, DiskError> {
        let head = header.encode();
        out.write_all(&head)
            .map_err(|error| DiskError::io("write the stream", error))?;
        Ok(Self {
            out,
            sum: crc_fast::crc32_iscsi(&head),
            frames: 0,
            bytes: HEADER as u64,
        })
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// `TooBig` past [`FRAME_BYTES_MAX`]; when `out` fails.
    pub fn frame(&mut self, kind: u8, payload: &[u8]) -> Result<(), DiskError> {
        let too_big = || DiskError::TooBig {
            size: payload.len(),
            limit: FRAME_BYTES_MAX,
        };
        if payload.len() > FRAME_BYTES_MAX {
            return Err(too_big());
        }
        let length = u32::try_from(payload.len()).map_err(|_error| too_big())?;
        self.sum = sum(self.sum, kind, payload);
        let mut head = [0; HEAD];
        head[0] = kind;
        head[4..8].copy_from_slice(&length.to_le_bytes());
        head[8..].copy_from_slice(&self.sum.to_le_bytes());
        self.frames += 1;
        self.bytes += (HEAD + payload.len()) as u64;
        self.out
            .write_all(&head)
            .and_then(|()| self.out.write_all(payload))
            .map_err(|error| DiskError::io("write the stream", error))
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the stream and returns the writer below, which the caller makes durable.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn finish(mut self) -> Result<W, DiskError> {
        let frames = self.frames;
        self.frame(END, &frames.to_le_bytes())?;
        self.out
            .flush()
            .map_err(|error| DiskError::io("write the stream", error))?;
        Ok(self.out)
    }
}

/// A frame that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its kind, as defined by writer and reader.
    pub kind: u8,
    /// Its contents.
    pub payload: Vec<u8>,
    /// Its offset in the stream.
    pub offset: u64,
}

/// Reads a stream.
pub struct StreamReader<R> {
    from: R,
    header: StreamHeader,
    sum: u32,
    frames: u64,
    offset: u64,
    ended: bool,
}

impl<R: Read> StreamReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// `Corrupt`, `WrongVersion`, `Io`.
    pub fn new(mut from: R) -> Result<Self, DiskError> {
        let mut head = [0; HEADER];
        read_exact(&mut from, &mut head, 0)?;
        Ok(Self {
            header: StreamHeader::decode(&head)?,
            from,
            sum: crc_fast::crc32_iscsi(&head),
            frames: 0,
            offset: HEADER as u64,
            ended: false,
        })
    }

    /// The stream's header.
    #[must_use]
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// The next frame; `None` behind the last, once the end of the stream is verified.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DiskError> {
        if self.ended {
            return Ok(None);
        }
        let offset = self.offset;
        let corrupt = |what: &str| DiskError::Corrupt(format!("stream: {what}, at byte {offset}"));
        let mut head = [0; HEAD];
        read_exact(&mut self.from, &mut head, offset)?;
        let [kind, 0, 0, 0, a, b, c, d, e, f, g, h] = head else {
            return Err(corrupt("bad head of a frame"));
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(corrupt("a frame is too long"));
        }
        let mut payload = vec![0; length];
        read_exact(&mut self.from, &mut payload, offset + HEAD as u64)?;
        let sum = sum(self.sum, kind, &payload);
        if sum != u32::from_le_bytes([e, f, g, h]) {
            return Err(corrupt("a frame fails its checksum"));
        }
        self.sum = sum;
        self.offset += (HEAD + length) as u64;
        if kind != END {
            self.frames += 1;
            return Ok(Some(Frame {
                kind,
                payload,
                offset,
            }));
        }
        if payload != self.frames.to_le_bytes() {
            return Err(corrupt("frames are missing"));
        }
        if self
            .from
            .read(&mut [0])
            .map_err(|error| DiskError::io("read the stream", error))?
            > 0
        {
            return Err(corrupt("bytes behind the end"));
        }
        self.ended = true;
        Ok(None)
    }
}

fn read_exact(from: &mut impl Read, buffer: &mut [u8], offset: u64) -> Result<(), DiskError> {
    from.read_exact(buffer).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            DiskError::Corrupt(format!("stream: it was cut short, behind byte {offset}"))
        } else {
            DiskError::io("read the stream", error)
        }
    })
}
