//! Output of ranks: whole lines with the number of their rank, or bytes as they come.
//!
//! A line longer than [`LINE_BYTES_MAX`] is broken there, so that a rank which writes no ends of
//! lines does not fill the memory.

use std::collections::BTreeMap;
use zonal_wire::OutputStream;

/// Longest line with a prefix.
pub const LINE_BYTES_MAX: usize = 65_536;

/// Unfinished lines of all ranks.
#[derive(Debug)]
pub struct RankLines {
    unfinished: BTreeMap<(u32, OutputStream), Vec<u8>>,
    /// Digits of the largest rank; `None`: output is passed on as it comes.
    digits: Option<usize>,
}

impl RankLines {
    /// Lines of a job of so many ranks.
    pub fn new(size: u32, with_prefix: bool) -> Self {
        let digits = size.saturating_sub(1).to_string().len();
        Self {
            unfinished: BTreeMap::new(),
            digits: with_prefix.then_some(digits),
        }
    }

    /// Takes output; returns the bytes to write now.
    pub fn add(&mut self, rank: u32, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
        let Some(digits) = self.digits else {
            return bytes.to_vec();
        };
        let line = self.unfinished.entry((rank, stream)).or_default();
        let mut out = Vec::with_capacity(bytes.len() + 64);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in part.chunks(LINE_BYTES_MAX) {
                if line.len() + piece.len() > LINE_BYTES_MAX {
                    finish(&mut out, (rank, digits), line);
                }
                line.extend_from_slice(piece);
            }
            if line.ends_with(b"\n") {
                line.pop();
                finish(&mut out, (rank, digits), line);
            }
        }
        out
    }

    /// The unfinished lines of a rank that has ended.
    pub fn end(&mut self, rank: u32, stream: OutputStream) -> Vec<u8> {
        let mut out = Vec::new();
        let line = self.unfinished.remove(&(rank, stream));
        if let (Some(mut line), Some(digits)) = (line, self.digits)
            && !line.is_empty()
        {
            finish(&mut out, (rank, digits), &mut line);
        }
        out
    }
}

fn finish(out: &mut Vec<u8>, (rank, digits): (u32, usize), line: &mut Vec<u8>) {
    out.extend_from_slice(format!("[{rank:>digits$}] ").as_bytes());
    out.append(line);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_are_whole_and_have_their_rank() {
        let mut lines = RankLines::new(11, true);
        let (out, err) = (OutputStream::Stdout, OutputStream::Stderr);
        assert_eq!(text(lines.add(3, out, b"be")), "");
        assert_eq!(text(lines.add(10, out, b"x\n\ny")), "[10] x\n[10] \n");
        assert_eq!(text(lines.add(3, err, b"error\n")), "[ 3] error\n");
        assert_eq!(text(lines.add(3, out, b"gun\n")), "[ 3] begun\n");
        assert_eq!(text(lines.end(10, out)), "[10] y\n");
        assert_eq!(text(lines.end(10, err)), "");
        assert_eq!(text(lines.end(3, out)), "");
    }

    #[test]
    fn endless_lines_are_broken_and_raw_output_is_passed_on() {
        let mut lines = RankLines::new(1, true);
        let flood = vec![b'x'; LINE_BYTES_MAX * 2 + 10];
        let out = lines.add(0, OutputStream::Stdout, &flood);
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 2);
        let rest = lines.end(0, OutputStream::Stdout);
        assert_eq!(text(rest), format!("[0] {}\n", "x".repeat(10)));
        let mut raw = RankLines::new(1, false);
        assert_eq!(raw.add(0, OutputStream::Stdout, b"a\0b"), b"a\0b");
        assert!(raw.end(0, OutputStream::Stdout).is_empty());
    }
}
