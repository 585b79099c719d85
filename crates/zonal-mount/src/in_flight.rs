//! Operations in flight for callers in the kernel: the waiting thread of each, and its
//! cancellation.
//!
//! *Bound*: one per worker.

use crate::caller::is_dying;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_client::{Cancellation, ClientCall};
use zonal_native::RealNet;

/// Concurrent requests rarely share a part.
const PARTS: usize = 64;

struct InFlightOperation {
    /// The kernel's number of the request.
    unique: u64,
    /// The waiting thread; 0: none waits.
    tid: u32,
    cancellation: Cancellation,
}

/// Operations in flight.
pub struct OperationsInFlight {
    parts: [Mutex<Vec<InFlightOperation>>; PARTS],
}

impl Default for OperationsInFlight {
    fn default() -> Self {
        Self {
            parts: std::array::from_fn(|_part| Mutex::default()),
        }
    }
}

/// The client core at work for one operation.
pub type KernelCall<'a> = ClientCall<'a, RealNet>;

/// The operation of a kernel request.
pub struct KernelOperation<'a> {
    call: KernelCall<'a>,
    callers: &'a OperationsInFlight,
    unique: u64,
}

impl<'a> Deref for KernelOperation<'a> {
    type Target = KernelCall<'a>;

    fn deref(&self) -> &Self::Target {
        &self.call
    }
}

impl KernelOperation<'_> {
    /// Notes that the waiting thread does not wait any more, and may be gone.
    pub fn is_left(&self) {
        let mut part = self.callers.part_of(self.unique);
        if let Some(known) = part.iter_mut().find(|known| known.unique == self.unique) {
            known.tid = 0;
        }
    }
}

impl Drop for KernelOperation<'_> {
    fn drop(&mut self) {
        let mut part = self.callers.part_of(self.unique);
        if let Some(at) = part.iter().position(|known| known.unique == self.unique) {
            part.swap_remove(at);
        }
    }
}

impl OperationsInFlight {
    fn part_of(&self, unique: u64) -> MutexGuard<'_, Vec<InFlightOperation>> {
        // The kernel's numbers are even.
        let part = &self.parts[(unique / 2) as usize % PARTS];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the request `unique` of thread `tid` until the returned guard is dropped.
    pub fn begin<'a>(&'a self, call: KernelCall<'a>, unique: u64, tid: u32) -> KernelOperation<'a> {
        let cancellation = call.context().cancellation().clone();
        self.part_of(unique).push(InFlightOperation {
            unique,
            tid,
            cancellation,
        });
        let callers = self;
        KernelOperation {
            call,
            callers,
            unique,
        }
    }

    /// Cancels a request in flight.
    pub fn cancel(&self, unique: u64) {
        let part = self.part_of(unique);
        let known = part.iter().find(|known| known.unique == unique);
        let cancellation = known.map(|known| known.cancellation.clone());
        drop(part);
        if let Some(cancellation) = cancellation {
            cancellation.cancel();
        }
    }

    /// Cancels all requests in flight.
    pub fn cancel_all(&self) {
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let all: Vec<_> = part.iter().map(|one| one.cancellation.clone()).collect();
            drop(part);
            all.iter().for_each(Cancellation::cancel);
        }
    }

    /// Cancels a request in flight whose waiting thread is about to die.
    pub fn cancel_if_dying(&self, unique: u64) {
        let tid = {
            let part = self.part_of(unique);
            let known = part.iter().find(|known| known.unique == unique);
            known.map(|known| known.tid)
        };
        if tid.is_some_and(|tid| tid != 0 && is_dying(tid)) {
            self.cancel(unique);
        }
    }
}
