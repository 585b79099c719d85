//! Requests of one client and file: in file order, a bounded number of them in flight.
//!
//! * A writer sends a stripe unit at a time, 1 MiB at most. With more than the client's window in
//!   flight it waits for the oldest request. At the end it has all servers of the file flush, as an
//!   fsync does.
//! * A reader is the kernel's read-ahead: a first window of two requests, then windows of
//!   [`READ_AHEAD_BYTES`]. The next one is asked for when the program reaches the newest.

use crate::transfers::Direction;
use std::collections::BTreeSet;
use zonal_client::WRITE_WINDOW_BYTES;

/// Most bytes of one request.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a window of the kernel's read-ahead, as a mount sets it.
pub const READ_AHEAD_BYTES: u64 = 4 << 20;
/// The first window, for a program that reads [`REQUEST_BYTES_MAX`] at a time.
const FIRST_READ_AHEAD_BYTES: u64 = 2 * REQUEST_BYTES_MAX;

/// The part of a file for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilePart {
    /// The server's node.
    pub(crate) node: usize,
    /// Bytes, [`REQUEST_BYTES_MAX`] at most; 0: the server flushes.
    pub(crate) bytes: u64,
}

/// The requests of one file.
#[derive(Debug)]
pub(crate) struct RequestWindow {
    direction: Direction,
    parts: Vec<FilePart>,
    /// Requests that move data; those behind them flush.
    with_data: usize,
    is_done: Vec<bool>,
    /// All before it are done.
    oldest: usize,
    /// The next to send.
    next: usize,
    /// A reader that is here asks for the next window.
    mark: usize,
}

impl RequestWindow {
    pub(crate) fn new(direction: Direction, mut parts: Vec<FilePart>) -> Self {
        let with_data = parts.len();
        if direction == Direction::Write {
            let nodes: BTreeSet<usize> = parts.iter().map(|part| part.node).collect();
            parts.extend(nodes.into_iter().map(|node| FilePart { node, bytes: 0 }));
        }
        Self {
            direction,
            with_data,
            is_done: vec![false; parts.len()],
            parts,
            oldest: 0,
            next: 0,
            mark: 0,
        }
    }

    pub(crate) fn part(&self, number: usize) -> FilePart {
        self.parts[number]
    }

    /// Notes that a request is done.
    pub(crate) fn done(&mut self, number: usize) {
        self.is_done[number] = true;
        self.pass_done();
    }

    fn pass_done(&mut self) {
        while self.is_done.get(self.oldest) == Some(&true) {
            self.oldest += 1;
        }
    }

    /// True when all requests are done.
    pub(crate) fn is_over(&self) -> bool {
        self.oldest == self.parts.len()
    }

    /// The next request that may be sent now.
    pub(crate) fn next_request(&mut self) -> Option<usize> {
        if self.next == self.parts.len() {
            return None;
        }
        let may_send = match self.direction {
            Direction::Write if self.next >= self.with_data => self.oldest >= self.with_data,
            Direction::Write => self.in_flight() <= WRITE_WINDOW_BYTES as u64,
            Direction::Read => self.is_read_ahead(),
        };
        may_send.then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Bytes from the oldest request on, those done behind it too.
    fn in_flight(&self) -> u64 {
        let sent = self.parts[self.oldest..self.next].iter();
        sent.map(|part| part.bytes).sum()
    }

    /// True where the read-ahead has asked for the next request. Moves the mark to the window in
    /// which it lies.
    fn is_read_ahead(&mut self) -> bool {
        let (begin, end) = self.read_ahead(self.mark);
        if self.next < end {
            return true;
        }
        // The first window's mark lies behind its first request, the others' at their start.
        let reached = if begin == 0 { 1 } else { begin };
        if self.oldest < reached {
            return false;
        }
        self.mark = end;
        true
    }

    /// First request of the window that begins at `begin`, and of the next one.
    fn read_ahead(&self, begin: usize) -> (usize, usize) {
        let most = if begin == 0 {
            FIRST_READ_AHEAD_BYTES
        } else {
            READ_AHEAD_BYTES
        };
        let (mut end, mut bytes) = (begin, 0);
        while end < self.parts.len() && bytes < most {
            bytes += self.parts[end].bytes;
            end += 1;
        }
        (begin, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(direction: Direction, requests: usize) -> RequestWindow {
        let part = FilePart {
            node: 0,
            bytes: REQUEST_BYTES_MAX,
        };
        RequestWindow::new(direction, vec![part; requests])
    }

    fn sent(window: &mut RequestWindow) -> Vec<usize> {
        std::iter::from_fn(|| window.next_request()).collect()
    }

    #[test]
    fn a_writer_waits_for_its_oldest_request() {
        let mut writer = window(Direction::Write, 8);
        // 4 MiB and one request more.
        assert_eq!(sent(&mut writer), [0, 1, 2, 3, 4]);
        writer.done(1);
        assert_eq!(sent(&mut writer), []);
        writer.done(0);
        assert_eq!(sent(&mut writer), [5, 6]);
        for number in 2..7 {
            writer.done(number);
        }
        assert_eq!(sent(&mut writer), [7]);
        writer.done(7);
        assert!(!writer.is_over());
        // The flush at the one server.
        assert_eq!(sent(&mut writer), [8]);
        writer.done(8);
        assert!(writer.is_over());
    }

    #[test]
    fn a_reader_asks_for_a_window_when_it_reaches_the_newest() {
        let mut reader = window(Direction::Read, 12);
        assert_eq!(sent(&mut reader), [0, 1]);
        reader.done(1);
        assert_eq!(sent(&mut reader), []);
        // It has read the first request, and stands at the second: the mark.
        reader.done(0);
        assert_eq!(sent(&mut reader), [2, 3, 4, 5, 6, 7, 8, 9]);
        for number in 2..6 {
            assert_eq!(sent(&mut reader), []);
            reader.done(number);
        }
        assert_eq!(sent(&mut reader), [10, 11]);
    }
}
