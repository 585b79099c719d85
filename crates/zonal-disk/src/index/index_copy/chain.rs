//! Reads the copy's files: chains of consecutive records, and the entries in them.

use super::record::{self, HEADER, Header};
use crate::files::COPIES;
use crate::files::error::DiskError;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes read at once.
const WINDOW: usize = 1 << 20;
/// Most records of one file that are read: with nothing else in them, each takes 72 bytes.
const RECORDS_MAX: usize = 1 << 20;

/// The records of one file, in order.
#[derive(Debug)]
pub(crate) struct Chain {
    pub file: File,
    /// Position and header of each record.
    pub records: Vec<(u64, Header)>,
}

impl Chain {
    /// Reads the headers in `copy.N` of the folder; empty where there is no file.
    pub(crate) fn read(dir: &Path, number: usize, store: u64) -> io::Result<Option<Self>> {
        let file = match File::open(dir.join(COPIES[number % 2])) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_first =
            |header: &Header| header.store == store && header.cycle % 2 == number as u64 % 2;
        Self::of(file, &is_first).map(Some)
    }

    /// Reads the headers in a file whose first header satisfies `is_first`.
    pub(crate) fn of(file: File, is_first: &dyn Fn(&Header) -> bool) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut records: Vec<(u64, Header)> = Vec::new();
        let mut at = 0_u64;
        let mut bytes = [0; HEADER];
        while records.len() < RECORDS_MAX && at + HEADER as u64 <= length {
            file.read_exact_at(&mut bytes, at)?;
            let Some(header) = Header::decode(&bytes) else {
                break;
            };
            let end = at + HEADER as u64 + header.body;
            let follows = match records.last() {
                Some((_, last)) => {
                    !last.whole
                        && last.store == header.store
                        && last.cycle == header.cycle
                        && last.sequence + 1 == header.sequence
                }
                None => is_first(&header),
            };
            if !follows || end > length {
                break;
            }
            records.push((at, header));
            at = end;
        }
        Ok(Self { file, records })
    }

    /// Where the records end.
    pub(crate) fn end(&self) -> u64 {
        let last = self.records.last();
        last.map_or(0, |(at, header)| at + HEADER as u64 + header.body)
    }

    /// The last header; none where there is no record.
    pub(crate) fn last(&self) -> Option<&Header> {
        self.records.last().map(|(_, header)| header)
    }

    /// The key up to which the slice of a record goes.
    pub(crate) fn upto(&self, at: u64, header: &Header) -> io::Result<Vec<u8>> {
        let mut key = vec![0; header.upto as usize];
        let end = at + HEADER as u64 + header.body;
        self.file
            .read_exact_at(&mut key, end - u64::from(header.upto))?;
        Ok(key)
    }

    /// Whether the body behind a header is the one that was written there.
    pub(crate) fn is_intact(&self, at: u64, header: &Header) -> io::Result<bool> {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let mut window = vec![0; WINDOW];
        let (mut at, mut left) = (at + HEADER as u64, header.body);
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(WINDOW).min(WINDOW);
            let window = &mut window[..length];
            self.file.read_exact_at(window, at)?;
            digest.update(window);
            at += length as u64;
            left -= length as u64;
        }
        Ok(digest.finalize() == u64::from(header.crc))
    }

    /// Passes the entries of an intact record to `visit`: whether it is part of the slice, the key,
    /// the value (or none).
    ///
    /// # Errors
    /// `Corrupt` for bytes that this program does not write, `Io`, and errors of `visit`.
    pub(crate) fn entries(
        &self,
        at: u64,
        header: &Header,
        visit: &mut Visit<'_>,
    ) -> Result<(), DiskError> {
        let failed = |error| DiskError::io("read the copy of the index", error);
        let invalid = || DiskError::Corrupt("copy of the index: an entry".into());
        let body = Section {
            file: &self.file,
            at: at + HEADER as u64,
            left: header.body - u64::from(header.upto),
        };
        let mut left = body.left;
        let mut from = BufReader::with_capacity(WINDOW, body);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut number = 0;
        while left > 0 {
            let mut head = [0; 8];
            from.read_exact(&mut head).map_err(failed)?;
            let (key_bytes, value_bytes) = record::lengths(head).ok_or_else(invalid)?;
            let size = (head.len() + key_bytes + value_bytes.unwrap_or(0)) as u64;
            left = left.checked_sub(size).ok_or_else(invalid)?;
            key.resize(key_bytes, 0);
            from.read_exact(&mut key).map_err(failed)?;
            value.resize(value_bytes.unwrap_or(0), 0);
            from.read_exact(&mut value).map_err(failed)?;
            let found = value_bytes.map(|_| value.as_slice());
            visit(number < header.slice, &key, found)?;
            number = number.saturating_add(1);
        }
        Ok(())
    }
}

/// Takes an entry: whether it is part of the slice, the key, the value (or none).
type Visit<'a> = dyn FnMut(bool, &[u8], Option<&[u8]>) -> Result<(), DiskError> + 'a;

/// A part of a file.
struct Section<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = length.min(out.len());
        let read = self.file.read_at(&mut out[..length], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
