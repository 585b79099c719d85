//! Packs folders into one small file: the parts of each file that are not zero. Stores are mostly
//! zeros.
//!
//! Format: `ZPACK1\n`, then for each file its name, its length and its runs. All lengths are u64,
//! little-endian. A run has its offset, its length, whether all its bytes are equal (then one byte
//! follows), and its bytes.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(dead_code, reason = "each test uses its part")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"ZPACK1\n";
/// Equal bytes that are worth a run of their own.
const GAP: usize = 32;

/// Every file below `dir`, relative to it, in order.
fn files(dir: &Path, below: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir.join(below))
        .unwrap()
        .map(|entry| below.join(entry.unwrap().file_name()))
        .collect();
    entries.sort();
    for entry in entries {
        if dir.join(&entry).is_dir() {
            files(dir, &entry, out);
        } else {
            out.push(entry);
        }
    }
}

/// A part of a file that is not zeros.
struct Run {
    start: usize,
    end: usize,
    /// All its bytes are equal.
    is_fill: bool,
}

fn runs(bytes: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut start = 0;
    for alike in bytes.chunk_by(|a, b| a == b) {
        let end = start + alike.len();
        let is_fill = alike.len() >= GAP;
        match runs.last_mut() {
            _ if alike[0] == 0 => {}
            Some(last) if !is_fill && !last.is_fill && start - last.end < GAP => last.end = end,
            _ => runs.push(Run {
                start,
                end,
                is_fill,
            }),
        }
        start = end;
    }
    runs
}

/// Packs the files below `dir` for which `wanted` is true.
pub fn pack(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Vec<u8> {
    let mut list = Vec::new();
    files(dir, Path::new(""), &mut list);
    let mut out = MAGIC.to_vec();
    let put =
        |value: usize, out: &mut Vec<u8>| out.extend_from_slice(&(value as u64).to_le_bytes());
    for name in list.iter().filter(|name| wanted(name)) {
        let bytes = fs::read(dir.join(name)).unwrap();
        let text = name.to_str().unwrap();
        put(text.len(), &mut out);
        out.extend_from_slice(text.as_bytes());
        put(bytes.len(), &mut out);
        let runs = runs(&bytes);
        put(runs.len(), &mut out);
        for run in runs {
            put(run.start, &mut out);
            put(run.end - run.start, &mut out);
            out.push(u8::from(run.is_fill));
            let kept = if run.is_fill { run.start + 1 } else { run.end };
            out.extend_from_slice(&bytes[run.start..kept]);
        }
    }
    out
}

/// Makes the files of a pack below `dir`.
pub fn unpack(packed: &[u8], dir: &Path) {
    let mut rest = packed.strip_prefix(MAGIC).unwrap();
    while !rest.is_empty() {
        let length = number(&mut rest);
        let name = std::str::from_utf8(take(&mut rest, length)).unwrap();
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(&path).unwrap();
        file.set_len(number(&mut rest) as u64).unwrap();
        for _ in 0..number(&mut rest) {
            let (start, length) = (number(&mut rest), number(&mut rest));
            let bytes = match take(&mut rest, 1)[0] {
                0 => take(&mut rest, length).to_vec(),
                _ => take(&mut rest, 1).repeat(length),
            };
            file.write_all_at(&bytes, start as u64).unwrap();
        }
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, tail) = rest.split_at(count);
    *rest = tail;
    head
}

fn number(rest: &mut &[u8]) -> usize {
    u64::from_le_bytes(take(rest, 8).try_into().unwrap()) as usize
}
