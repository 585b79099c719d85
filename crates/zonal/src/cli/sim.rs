//! `zonal sim`: simulates a whole cell with faults, in one thread for each seed.

use crate::console;
use crate::exit::{FAILED, Failure};
use anyhow::bail;
use serde_json::json;
use std::time::{Duration, Instant};
use zonal_sim::coverage::FaultKind;
use zonal_sim::planted_bugs::PLANTS;
use zonal_sim::scenario::SCENARIOS;
use zonal_sim::{BatchSummary, Plant, RunOptions, RunReport, Scenario, run_batch};

/// Most broken seeds that the summary names.
const BAD_SHOWN: usize = 20;

/// Run a simulated cell with faults, seed after seed, and check its invariants
#[derive(Debug, clap::Args)]
pub struct Sim {
    /// Number of seeds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after this many minutes, if the seeds last that long
    #[arg(long)]
    minutes: Option<u64>,
    /// Steps of each program
    #[arg(long, default_value_t = 60)]
    steps: u64,
    /// Scenario: any, kill, together, callers, power, media, hostile, locks, fences, appends,
    /// replicas, maps, moves, copies, drains, zones, writers
    #[arg(long, default_value = "any")]
    scenario: String,
    /// Plant a known bug, which must be found (an unknown name lists them)
    #[arg(long)]
    plant: Option<String>,
    /// Stop at the first broken seed
    #[arg(long)]
    first: bool,
    /// Run without faults
    #[arg(long)]
    no_faults: bool,
    /// Report every seed, not only broken ones
    #[arg(long)]
    verbose: bool,
    /// Print every message to standard error
    #[arg(long)]
    log: bool,
    /// Cores to use
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// As JSON: one object a broken seed, then the summary
    #[arg(long)]
    json: bool,
}

impl Sim {
    pub fn run(self) -> anyhow::Result<()> {
        let options = self.options()?;
        let begun = Instant::now();
        let limit = self
            .minutes
            .map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
        let summary = run_batch(self.seed, self.seeds, options, self.threads, |report| {
            if self.verbose || !report.is_good() {
                self.tell(report);
            }
            let is_late = limit.is_some_and(|limit| begun.elapsed() >= limit);
            !is_late && (report.is_good() || !self.first)
        });
        self.summarize(&summary);
        if summary.bad.is_empty() {
            return Ok(());
        }
        bail!(Failure::new(
            FAILED,
            format!(
                "{} of {} seeds are broken",
                summary.bad.len(),
                summary.seeds
            )
        ))
    }

    fn options(&self) -> anyhow::Result<RunOptions> {
        let Some(scenario) = Scenario::named(&self.scenario) else {
            let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
            bail!(
                Failure::new(2, format!("unknown scenario {}", self.scenario))
                    .hint(format!("one of: {}", names.join(", ")))
            );
        };
        let plant = match &self.plant {
            None => Plant::None,
            Some(name) => match Plant::named(name) {
                Some(plant) => plant,
                None => {
                    let names: Vec<&str> = PLANTS.iter().map(|(name, _)| *name).collect();
                    bail!(
                        Failure::new(2, format!("unknown bug {name}"))
                            .hint(format!("one of: {}", names.join(", ")))
                    );
                }
            },
        };
        Ok(RunOptions {
            scenario,
            steps: self.steps,
            faults: !self.no_faults,
            plant,
            log: self.log,
        })
    }

    /// The command that runs this seed again.
    fn again(&self, seed: u64) -> String {
        let mut text = format!("zonal sim --seeds 1 --seed {seed}");
        if self.scenario != "any" {
            text.push_str(&format!(" --scenario {}", self.scenario));
        }
        if self.steps != 60 {
            text.push_str(&format!(" --steps {}", self.steps));
        }
        if let Some(plant) = &self.plant {
            text.push_str(&format!(" --plant {plant}"));
        }
        if self.no_faults {
            text.push_str(" --no-faults");
        }
        text
    }

    fn tell(&self, report: &RunReport) {
        let again = self.again(report.seed);
        if self.json {
            console::json(json!({
                "seed": report.seed,
                "scenario": report.scenario.name(),
                "good": report.is_good(),
                "broken": report.broken,
                "operations": report.operations,
                "messages": report.messages,
                "faults": report.coverage.total(),
                "simulated_ms": report.simulated_ms,
                "trace": format!("{:016x}", report.trace),
                "again": again,
            }));
            return;
        }
        console::lines(report.to_string().trim_end());
        if !report.is_good() {
            console::line(format_args!("  again: {again} --log"));
        }
    }

    fn summarize(&self, summary: &BatchSummary) {
        let coverage = &summary.coverage;
        let faults = FaultKind::ALL
            .iter()
            .map(|fault| (fault.name(), coverage.of(*fault)));
        if self.json {
            let faults: serde_json::Map<_, _> = faults
                .map(|(name, count)| (name.to_owned(), count.into()))
                .collect();
            console::json(json!({
                "seeds": summary.seeds,
                "bad": summary.bad,
                "operations": summary.operations,
                "messages": summary.messages,
                "simulated_ms": summary.simulated_ms,
                "scenarios": summary.scenarios,
                "faults": faults,
                "marks": coverage.marks,
                "marks_missing": summary.missing_marks(),
                "marks_kept": zonal_types::coverage_marks::are_kept(),
            }));
            return;
        }
        let scenarios: Vec<String> = summary
            .scenarios
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        console::line(format_args!(
            "{} seeds ({}): {} operations, {} messages, {:.1} simulated hours",
            summary.seeds,
            scenarios.join(", "),
            summary.operations,
            summary.messages,
            summary.simulated_ms as f64 / 3_600_000.0
        ));
        let faults: Vec<String> = faults
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        console::line(format_args!("faults: {}", faults.join(", ")));
        let known = zonal_types::coverage_marks::NAMES.len();
        if zonal_types::coverage_marks::are_kept() {
            console::line(format_args!(
                "marks: {} of {known} reached; not: {}",
                coverage.marks.len(),
                summary.missing_marks().join(" ")
            ));
        } else {
            console::line(
                "marks: not in this build (cargo build --release -p zonal --features marks)",
            );
        }
        let shown: Vec<String> = summary
            .bad
            .iter()
            .take(BAD_SHOWN)
            .map(u64::to_string)
            .collect();
        let good = summary.seeds - summary.bad.len() as u64;
        console::line(format_args!(
            "{good} of {} seeds good{}{}",
            summary.seeds,
            if shown.is_empty() { "" } else { "; broken: " },
            shown.join(" ")
        ));
    }
}
