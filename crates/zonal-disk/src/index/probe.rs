//! Trial opening of an index: whether the library can open it, without changing the file. Its
//! writes stay in memory and are dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use zonal_basics::to_usize;

use redb::StorageBackend;

use crate::files::error::DiskError;
use crate::index::Index;
use crate::index::index_checksums::SumsStore;

const PAGE: u64 = 4096;
/// Most pages that an opening and a commit may write; more means that the index is not usable.
const PAGES_MAX: usize = 16_384;
const CACHE_BYTES: usize = 4 << 20;

#[derive(Default)]
struct Written {
    length: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

/// A file, and the bytes written over it in memory.
struct Above {
    file: File,
    written: Mutex<Written>,
}

impl fmt::Debug for Above {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Above")
    }
}

impl Above {
    fn page(&self, written: &Written, number: u64) -> io::Result<Vec<u8>> {
        if let Some(page) = written.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = vec![0; to_usize(PAGE)];
        let below = self.file.metadata()?.len();
        let at = number * PAGE;
        let length = usize::try_from(below.saturating_sub(at).min(PAGE)).unwrap_or(0);
        self.file.read_exact_at(&mut page[..length], at)?;
        Ok(page)
    }
}

impl StorageBackend for Above {
    fn len(&self) -> io::Result<u64> {
        Ok(self
            .written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if offset + out.len() as u64 > written.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let page = self.page(&written, at / PAGE)?;
            let start = usize::try_from(at % PAGE).unwrap_or(0);
            let step = (page.len() - start).min(out.len() - done);
            out[done..done + step].copy_from_slice(&page[start..start + step]);
            done += step;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.length = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let mut page = self.page(&written, at / PAGE)?;
            let start = usize::try_from(at % PAGE).unwrap_or(0);
            let step = (page.len() - start).min(data.len() - done);
            page[start..start + step].copy_from_slice(&data[done..done + step]);
            written.pages.insert(at / PAGE, page);
            if written.pages.len() > PAGES_MAX {
                return Err(io::Error::other("an opening writes too much"));
            }
            done += step;
        }
        Ok(())
    }
}

/// Checksums that are read and never written.
struct Sums(Option<File>);

impl SumsStore for Sums {
    fn load(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let file = self.0.as_ref();
        file.map_or(Ok(Vec::new()), |file| file.load(bytes_max))
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens the index at `index` with the checksums at `sums` as a server would, and commits. Only a
/// commit reads the library's record of free space.
///
/// # Errors
/// Those that a server would meet.
pub(crate) fn probe(index: &Path, sums: &Path) -> Result<(), DiskError> {
    let failed = |error| DiskError::io("index", error);
    let file = File::open(index).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let above = Above {
        file,
        written: Mutex::new(Written {
            length,
            pages: BTreeMap::new(),
        }),
    };
    let sums = Sums(File::open(sums).ok());
    let index = Index::open_summed(above, Box::new(sums), CACHE_BYTES)?;
    let progress = index.progress()?;
    index.commit(std::iter::empty(), &progress)
}
