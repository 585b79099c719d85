//! A thread that does something again and again, until it is dropped.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread; it ends when this is dropped.
pub(crate) struct PeriodicThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's pauses.
pub(crate) struct Pauses(Receiver<()>);

impl Pauses {
    /// Waits; false where the thread is to end.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        matches!(self.0.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }
}

impl PeriodicThread {
    /// Starts the thread. Its work returns once a pause says so.
    ///
    /// # Errors
    /// Where the system refuses it.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce(&Pauses) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || work(&Pauses(stopped)))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for PeriodicThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The hook has logged a panic already.
            let _ = thread.join();
        }
    }
}
