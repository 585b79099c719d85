//! `zonal bench`: helpers for benchmarks.

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::PathBuf;
use std::time::Duration;
use zonal_fuse::SessionConfig;
use zonal_fuse::null::{NullOptions, mount};

/// Things to measure against
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Mount a file system that answers from memory and keeps no data: the upper bound for any
    /// other; ends when unmounted
    NullMount {
        /// Mount point
        path: PathBuf,
        /// Stay in the foreground (it always does)
        #[arg(long, short)]
        foreground: bool,
        /// Threads that serve the kernel
        #[arg(long)]
        workers: Option<u16>,
    },
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        let Self::NullMount { path, workers, .. } = self;
        let mut config = SessionConfig::default();
        if let Some(workers) = workers {
            config.workers = usize::from(workers);
        }
        let session = mount(&path, NullOptions::default(), &config).context("null-mount")?;
        let point = session.path().to_owned();
        let mut signals =
            signal_hook::iterator::Signals::new([SIGTERM, SIGINT]).context("signals")?;
        let handle = signals.handle();
        let watcher = std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                // An earlier unmount is no error.
                let _ = zonal_fuse::abort(&point);
            }
        });
        while !session.is_ended() {
            std::thread::sleep(Duration::from_millis(50));
        }
        session.wait();
        handle.close();
        // The panic hook has already printed a panic of this thread.
        let _ = watcher.join();
        Ok(())
    }
}
