//! Files that are open to be executed.
//!
//! The kernel refuses to write a running program (ETXTBSY) when a handle for writing is opened, or
//! a size set. Where an open with O_TRUNC is one request (ATOMIC_O_TRUNC), it does so before that
//! request, too, but not where the handle is to read only: it looks after the open, when the
//! program is gone. So that one is refused here. The kernel holds a handle opened to be executed
//! for as long as it refuses. *Bound*: open handles. Per operation: nothing, but for those opens
//! and the ends of such handles.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zonal_types::Ino;

/// The kernel says that a program has ended, and that its handle is released, at about the same
/// time.
const RELEASED: Duration = Duration::from_millis(50);

/// How many handles to be executed each file has.
#[derive(Debug, Default)]
pub struct Executables {
    handles: Mutex<BTreeMap<Ino, u64>>,
    is_less: Condvar,
}

impl Executables {
    fn handles(&self) -> MutexGuard<'_, BTreeMap<Ino, u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub fn open(&self, ino: Ino) {
        *self.handles().entry(ino).or_default() += 1;
    }

    /// One less.
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

    /// Whether it is executed, also a moment from now.
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
            // Each waits for a while; however long this thread pauses before the next line, one of
            // them sees the end.
            let asked = scope.spawn(|| (0..200).any(|_| !executed.is_busy(one)));
            executed.close(one);
            assert_eq!(asked.join().ok(), Some(true), "it ended meanwhile");
        });
    }
}
