//! Executables: files that are open to be executed.
//!
//! The kernel refuses writes to a running program (ETXTBSY) when a handle for writing is opened, or
//! a size set. An open with O_TRUNC is one request (ATOMIC_O_TRUNC). The kernel checks before the
//! request where the handle may write. For a read-only handle it checks only after the open, when
//! the program is already truncated. So the mount refuses that case.
//!
//! The kernel keeps a handle opened for execution exactly as long as it refuses writes. *Bound*:
//! open handles. Cost: only at those opens and at the ends of these handles.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zonal_types::Ino;

/// The kernel reports the end of a program and releases its handle within about this time.
const RELEASED: Duration = Duration::from_millis(50);

/// Number of handles for execution, by file.
#[derive(Debug, Default)]
pub struct Executables {
    handles: Mutex<BTreeMap<Ino, u64>>,
    is_less: Condvar,
}

impl Executables {
    fn handles(&self) -> MutexGuard<'_, BTreeMap<Ino, u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a handle.
    pub fn open(&self, ino: Ino) {
        *self.handles().entry(ino).or_default() += 1;
    }

    /// Ends a handle.
    pub fn close(&self, ino: Ino) {
        let mut handles = self.handles();
        let Some(count) = handles.get_mut(&ino) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            handles.remove(&ino);
            self.is_less.notify_all();
        }
    }

    /// Whether the file is executed, and still is a moment from now.
    #[must_use]
    pub fn is_busy(&self, ino: Ino) -> bool {
        let is_executed = |handles: &mut BTreeMap<Ino, u64>| handles.contains_key(&ino);
        let waited = self
            .is_less
            .wait_timeout_while(self.handles(), RELEASED, is_executed);
        let (handles, _) = waited.unwrap_or_else(PoisonError::into_inner);
        handles.contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_busy_until_its_last_handle_ends() {
        let executed = Executables::default();
        let (one, other) = (Ino(5), Ino(6));
        executed.open(one);
        executed.open(one);
        executed.close(one);
        executed.close(other);
        assert!(executed.is_busy(one) && !executed.is_busy(other));
        std::thread::scope(|scope| {
            // Each call waits for a while. One of them sees the end, however long this thread
            // pauses before the next line.
            let asked = scope.spawn(|| (0..200).any(|_| !executed.is_busy(one)));
            executed.close(one);
            assert_eq!(asked.join().ok(), Some(true), "it ended meanwhile");
        });
    }
}
