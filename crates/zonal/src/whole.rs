//! Files that are written whole or not at all: under another name first.

use anyhow::Context;
use std::path::Path;

/// Lets `write` make a file beside `path`, which takes its name once it is whole.
pub fn write_whole<T>(
    path: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let written = write(partial);
    if written.is_err() {
        // Best effort: what failed is already being reported.
        let _ = std::fs::remove_file(partial);
    }
    let written = written?;
    std::fs::rename(partial, path).with_context(|| path.display().to_string())?;
    Ok(written)
}
