//! Memory that a client lends to servers: a server reads it when the request arrives, not when it
//! was sent.
//!
//! A client may drop its memory while a request that names it is on its way, for example because
//! its caller was killed. No other use may overwrite the bytes until then. So a piece is free when
//! it has no user and no request names it.
//!
//! *Bound*: a client has as many pieces as it uses at a time and as requests name.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One piece of memory.
#[derive(Debug, Default)]
struct Piece {
    /// The bytes that servers see.
    bytes: Vec<u8>,
    /// The addresses of the user's copy, while there is a user.
    user: Option<Range<usize>>,
    /// Requests on their way that name the piece.
    readers: usize,
}

#[derive(Debug, Default)]
struct Pieces {
    all: BTreeMap<usize, Piece>,
    /// A planted bug: a piece is free as soon as its user has dropped it.
    forgets_readers: bool,
}

/// The memory of one client.
#[derive(Debug, Clone, Default)]
pub struct Lender(Arc<Mutex<Pieces>>);

/// A piece in use.
#[derive(Debug)]
pub struct LentPiece {
    lender: Lender,
    number: usize,
    bytes: Vec<u8>,
    is_changed: AtomicBool,
}

/// A range of a request's payload in lent memory.
#[derive(Debug)]
pub struct LentPart {
    lender: Lender,
    number: usize,
    at: usize,
    length: usize,
}

impl Lender {
    /// Makes the memory of a client; `forgets_readers` plants the bug.
    #[must_use]
    pub fn new(forgets_readers: bool) -> Self {
        let lender = Self::default();
        lender.lock().forgets_readers = forgets_readers;
        lender
    }

    fn lock(&self) -> MutexGuard<'_, Pieces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a piece of `length` bytes; it may still have earlier bytes.
    #[must_use]
    pub fn lend(&self, length: usize) -> LentPiece {
        let mut pieces = self.lock();
        let forgets = pieces.forgets_readers;
        let free = pieces
            .all
            .iter()
            .find(|(_, piece)| piece.user.is_none() && (forgets || piece.readers == 0));
        let number = free.map_or(pieces.all.len(), |(number, _)| *number);
        let piece = pieces.all.entry(number).or_default();
        piece.bytes.resize(length, 0);
        let bytes = piece.bytes.clone();
        let from = bytes.as_ptr() as usize;
        piece.user = Some(from..from + length);
        drop(pieces);
        LentPiece {
            lender: self.clone(),
            number,
            bytes,
            is_changed: AtomicBool::new(false),
        }
    }

    /// The range of lent memory with these bytes, if they lie in it. A server may read it later.
    #[must_use]
    pub fn name(&self, bytes: &[u8]) -> Option<LentPart> {
        let from = bytes.as_ptr() as usize;
        let mut pieces = self.lock();
        let lies_in = |piece: &Piece| {
            let user = piece.user.as_ref()?;
            (user.start <= from && from + bytes.len() <= user.end).then(|| from - user.start)
        };
        let (number, piece, at) = pieces
            .all
            .iter_mut()
            .find_map(|(number, piece)| lies_in(piece).map(|at| (*number, piece, at)))?;
        piece.readers += 1;
        Some(LentPart {
            lender: self.clone(),
            number,
            at,
            length: bytes.len(),
        })
    }
}

impl LentPiece {
    /// Copies the user's bytes to those that servers see.
    fn show(&self) {
        if self.is_changed.swap(false, Ordering::Relaxed)
            && let Some(piece) = self.lender.lock().all.get_mut(&self.number)
        {
            piece.bytes.copy_from_slice(&self.bytes);
        }
    }
}

impl Deref for LentPiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.show();
        &self.bytes
    }
}

impl DerefMut for LentPiece {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.is_changed.store(true, Ordering::Relaxed);
        &mut self.bytes
    }
}

impl Drop for LentPiece {
    fn drop(&mut self) {
        self.show();
        if let Some(piece) = self.lender.lock().all.get_mut(&self.number) {
            piece.user = None;
        }
    }
}

impl LentPart {
    /// Reads the present bytes into `out`; returns whether the user has dropped the piece.
    pub fn read(&self, out: &mut [u8]) -> bool {
        let pieces = self.lender.lock();
        let Some(piece) = pieces.all.get(&self.number) else {
            return true;
        };
        // Where the piece was used again with fewer bytes, only these are read.
        for (at, out) in out.iter_mut().enumerate().take(self.length) {
            *out = piece.bytes.get(self.at + at).copied().unwrap_or(0);
        }
        piece.user.is_none()
    }
}

impl Clone for LentPart {
    fn clone(&self) -> Self {
        if let Some(piece) = self.lender.lock().all.get_mut(&self.number) {
            piece.readers += 1;
        }
        Self {
            lender: self.lender.clone(),
            ..*self
        }
    }
}

impl Drop for LentPart {
    fn drop(&mut self) {
        if let Some(piece) = self.lender.lock().all.get_mut(&self.number) {
            piece.readers = piece.readers.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that a late server reads after the memory was dropped and other memory was
    /// written.
    fn read_late(forgets_readers: bool) -> (Vec<u8>, bool) {
        let lender = Lender::new(forgets_readers);
        let mut first = lender.lend(8);
        first.fill(1);
        let named = lender.name(&first[2..5]).expect("it lies there");
        let again = named.clone();
        drop(named);
        drop(first);
        let mut second = lender.lend(8);
        second.fill(2);
        assert!(lender.name(&second).is_some());
        let mut read = vec![9; 3];
        let is_late = again.read(&mut read);
        (read, is_late)
    }

    #[test]
    fn named_memory_is_not_used_again_before_its_request_arrives() {
        assert_eq!(read_late(false), (vec![1; 3], true));
        assert_eq!(read_late(true).0, [2; 3]);
        let lender = Lender::new(false);
        drop(lender.lend(8));
        assert_eq!(lender.lend(4).number, 0, "a free one is used again");
        assert!(lender.name(&[0; 3]).is_none());
    }
}
