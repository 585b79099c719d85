//! `zonal top`: what a cell does now.

use crate::cell::connection::CellArgs;
use crate::console;
use crate::top::document::document;
use crate::top::rates::CellRates;
use crate::top::sampler::{DEADLINE, Sampler};
use crate::top::view;
use std::time::{Duration, Instant};

/// Show what a cell does now: traffic between zones and of directories, slow operations
///
/// Asks all servers again and again, each request with a deadline of 1 s, and shows rates since the
/// last sample. A server that does not answer is shown as silent, and the others go on.
///
/// Keys: q ends it, tab and the left and right arrows choose a table, the up and down arrows scroll
/// it, p pauses. Red rows need attention: nodes that are not well, targets of which more than nine
/// tenths are used.
///
/// Bytes are payloads that clients exchanged with targets. Those of first-level directories are as
/// clients report them.
#[derive(Debug, clap::Args)]
pub struct Top {
    #[command(flatten)]
    cell: CellArgs,
    /// Time between samples, 1 to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// Print one JSON document: rates between two samples, the interval apart
    #[arg(long)]
    json: bool,
}

impl Top {
    pub fn run(self) -> anyhow::Result<()> {
        let interval = Duration::from_secs(self.interval);
        if !self.json {
            view::require_terminal()?;
        }
        let cell = self.cell.open()?.with_deadline(DEADLINE);
        let mut sampler = Sampler::new(cell)?;
        if !self.json {
            return view::run(sampler, interval);
        }
        let begun = Instant::now();
        let first = sampler.take();
        std::thread::sleep(interval.saturating_sub(begun.elapsed()));
        let between = begun.elapsed();
        let second = sampler.take();
        let rates = CellRates::between(Some(&first), &second);
        console::json(format_args!(
            "{:#}",
            document(&rates, between.as_secs_f64())
        ));
        Ok(())
    }
}
