//! Whole files by the client library, without a mount.

use zonal_native::{Error, Native, OpenOptions, User};

const LENGTH_MAX: usize = 3 << 20;

/// Writes a file durably.
pub fn write(native: &Native, path: &str, bytes: &[u8]) {
    let options = OpenOptions::new().write(true).create(0o644);
    let file = native.open(&User::root(), path, options).unwrap();
    file.write(bytes).unwrap();
    file.fsync().unwrap();
    file.close().unwrap();
}

/// Reads a file of at most 3 MiB.
pub fn read(native: &Native, path: &str) -> Result<Vec<u8>, Error> {
    let file = native.open(&User::root(), path, OpenOptions::new())?;
    let mut all = vec![0; LENGTH_MAX];
    let mut length = 0;
    loop {
        match file.read(&mut all[length..])? {
            0 => break,
            got => length += got,
        }
    }
    all.truncate(length);
    Ok(all)
}
