//! A file with a checksum: frames, each with its length, then a crc64 over all frames, the file's
//! name and the key of its origin.
//!
//! The file is written under another name and renamed, so that after a kill it is whole or absent.

use crc_fast::{CrcAlgorithm, Digest};
use std::fs::File;
use std::io::{BufReader, BufWriter, Error, ErrorKind, Read, Result, Seek, Take, Write};
use std::path::{Path, PathBuf};
use zonal_basics::to_usize;
use zonal_types::Codec;

/// Suffix of a file while it is written.
pub(super) const NEW: &str = ".new";
/// Bytes of the checksum.
const SUM_BYTES: u64 = 8;

/// Begins a checksum with the key and the name of the file.
fn digest(key: u64, name: &str) -> Digest {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&key.to_le_bytes());
    digest.update(name.as_bytes());
    digest
}

/// Writes a file.
pub(super) struct Writer {
    file: BufWriter<File>,
    digest: Digest,
    temp: PathBuf,
    path: PathBuf,
    buffer: Vec<u8>,
}

impl Writer {
    pub fn create(dir: &Path, name: &str, key: u64) -> Result<Self> {
        let temp = dir.join(format!("{name}{NEW}"));
        Ok(Self {
            file: BufWriter::new(File::create(&temp)?),
            digest: digest(key, name),
            temp,
            path: dir.join(name),
            buffer: Vec::new(),
        })
    }

    /// Adds a frame.
    pub fn put(&mut self, frame: &impl Codec) -> Result<()> {
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; 4]);
        frame.put(&mut self.buffer);
        let length = u32::try_from(self.buffer.len() - 4).map_err(|_| ErrorKind::InvalidInput)?;
        self.buffer[..4].copy_from_slice(&length.to_le_bytes());
        self.digest.update(&self.buffer);
        self.file.write_all(&self.buffer)
    }

    /// Writes the checksum and renames the file to its name.
    pub fn finish(mut self) -> Result<()> {
        self.file.write_all(&self.digest.finalize().to_le_bytes())?;
        self.file.flush()?;
        std::fs::rename(&self.temp, &self.path)
    }
}

/// Reads the frames of a whole file.
pub(super) struct Frames {
    file: Take<BufReader<File>>,
}

impl Frames {
    /// Opens a file. `InvalidData` where length or checksum differ from those written.
    pub fn open(dir: &Path, name: &str, key: u64) -> Result<Self> {
        let file = File::open(dir.join(name))?;
        let length = file.metadata()?.len().checked_sub(SUM_BYTES);
        let length = length.ok_or(ErrorKind::InvalidData)?;
        let mut file = BufReader::with_capacity(256 << 10, file);
        let mut digest = digest(key, name);
        let mut body = file.by_ref().take(length);
        let mut buffer = vec![0; 64 << 10];
        loop {
            match body.read(&mut buffer)? {
                0 => break,
                count => digest.update(&buffer[..count]),
            }
        }
        let mut sum = [0; to_usize(SUM_BYTES)];
        file.read_exact(&mut sum)?;
        if digest.finalize() != u64::from_le_bytes(sum) {
            return Err(ErrorKind::InvalidData.into());
        }
        file.rewind()?;
        Ok(Self {
            file: file.take(length),
        })
    }

    /// Returns the next frame.
    pub fn next<T: Codec>(&mut self) -> Result<Option<T>> {
        if self.file.limit() == 0 {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.file.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if u64::from(length) > self.file.limit() {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length as usize];
        self.file.read_exact(&mut bytes)?;
        let frame = T::from_bytes(&bytes);
        frame
            .map(Some)
            .map_err(|error| Error::new(ErrorKind::InvalidData, error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use zonal_testkit::Scratch;

    fn read(dir: &Path, name: &str, key: u64) -> Result<Vec<String>> {
        let mut frames = Frames::open(dir, name, key)?;
        let mut found = Vec::new();
        while let Some(text) = frames.next()? {
            found.push(text);
        }
        Ok(found)
    }

    #[test]
    fn what_was_written_comes_back_and_nothing_else() {
        let dir = Scratch::new("sealed");
        let mut writer = Writer::create(&dir, "one", 7).unwrap();
        let frames = vec!["first".to_owned(), String::new(), "third".to_owned()];
        frames.iter().for_each(|text| writer.put(text).unwrap());
        assert!(!dir.join("one").exists());
        writer.finish().unwrap();
        assert_eq!(read(&dir, "one", 7).unwrap(), frames);
        // Another key, or another name.
        assert!(read(&dir, "one", 8).is_err());
        std::fs::copy(dir.join("one"), dir.join("two")).unwrap();
        assert!(read(&dir, "two", 7).is_err());
        let whole = std::fs::read(dir.join("one")).unwrap();
        for at in 0..whole.len() {
            std::fs::write(dir.join("one"), &whole[..at]).unwrap();
            assert!(read(&dir, "one", 7).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                std::fs::write(dir.join("one"), &bytes).unwrap();
                assert!(read(&dir, "one", 7).is_err(), "bit {bit} of byte {at}");
            }
        }
        let mut longer = whole;
        longer.push(0);
        std::fs::write(dir.join("one"), longer).unwrap();
        assert!(read(&dir, "one", 7).is_err());
        std::fs::write(dir.join("one"), [0; 4096]).unwrap();
        assert!(read(&dir, "one", 7).is_err());
    }
}
