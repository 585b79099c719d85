//! Threads that fill files of a target at the same time, as calls of its host block.

use super::host::TargetDisk;
use super::waited;
use std::thread;
use zonal_driver::at_once;
use zonal_driver::storage::{ResyncQueue, ResyncThreads, TargetDriver};

/// Threads of one round. They end with its queue.
pub(super) struct FillThreads;

impl ResyncThreads<TargetDisk> for FillThreads {
    async fn fill(&self, driver: &TargetDriver<TargetDisk>, queue: &ResyncQueue, threads: usize) {
        let work = || {
            if let Err(waits) = at_once(driver.resync_queued(queue)) {
                queue.fail(waited(waits));
            }
        };
        thread::scope(|scope| {
            // Where the system gives no thread, this one does its work.
            for _thread in 1..threads {
                let builder = thread::Builder::new().name("target-fill".to_owned());
                builder.spawn_scoped(scope, work).ok();
            }
            work();
        });
    }
}
