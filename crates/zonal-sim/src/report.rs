//! The report of a run: a hash of all events, counts, and everything that is broken.

use crate::coverage::Coverage;
use crate::scenario::Scenario;
use crate::world::World;
use std::cell::Cell;
use zonal_types::Instant;

/// A running hash (FNV-1a) over all messages with their times; on demand it prints the messages,
/// too.
pub struct Trace {
    hash: Cell<u64>,
    is_printed: Cell<bool>,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            hash: Cell::new(0xcbf2_9ce4_8422_2325),
            is_printed: Cell::new(false),
        }
    }
}

impl Trace {
    /// Prints all later messages to standard error.
    pub fn print(&self) {
        self.is_printed.set(true);
    }

    /// Prints a text that is no message.
    #[expect(
        clippy::print_stderr,
        reason = "asked for by the person who looks for a bug"
    )]
    pub fn say(&self, now: Instant, what: &dyn Fn() -> String) {
        if self.is_printed.get() {
            let (ms, us) = (now.0 / 1_000_000, now.0 / 1_000 % 1_000);
            eprintln!("{ms}.{us:03} {}", what());
        }
    }

    /// Adds one delivered message.
    pub fn note(&self, now: Instant, from: &str, to: &str, body: &[u8], payload: &[u8]) {
        let mut hash = self.hash.get();
        let mut eat = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        eat(&now.0.to_le_bytes());
        eat(from.as_bytes());
        eat(to.as_bytes());
        eat(body);
        eat(&(payload.len() as u64).to_le_bytes());
        // A sample is enough to notice other data.
        payload.chunks(997).for_each(|chunk| eat(&chunk[..1]));
        self.hash.set(hash);
    }

    /// The hash so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash.get()
    }
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// The scenario.
    pub scenario: Scenario,
    /// Hash of all events.
    pub trace: u64,
    /// Messages sent.
    pub messages: u64,
    /// Operations of programs that ended.
    pub operations: u64,
    /// Faults and marks.
    pub coverage: Coverage,
    /// Simulated time that the run took, ms.
    pub simulated_ms: u64,
    /// Everything that is broken, with the number of the invariant.
    pub broken: Vec<String>,
}

impl RunReport {
    /// The report of a run that has not begun.
    #[must_use]
    pub fn new(seed: u64, scenario: Scenario) -> Self {
        Self {
            seed,
            scenario,
            trace: 0,
            messages: 0,
            operations: 0,
            coverage: Coverage::default(),
            simulated_ms: 0,
            broken: Vec::new(),
        }
    }

    /// Adds the results of a world at its end.
    pub fn take(&mut self, world: &World) {
        self.trace = world.network.trace.hash();
        self.messages = world.network.messages();
        self.operations = world.operation_count();
        self.coverage = world.network.coverage();
        self.simulated_ms = world.clock.now().0 / 1_000_000;
        self.broken = world.broken();
    }

    /// Whether nothing is broken.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.broken.is_empty()
    }
}

impl std::fmt::Display for RunReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "seed {} ({}): {} operations, {} messages, {} faults, {} ms simulated, trace {:016x}: {}",
            self.seed,
            self.scenario.name(),
            self.operations,
            self.messages,
            self.coverage.total(),
            self.simulated_ms,
            self.trace,
            if self.is_good() { "good" } else { "BROKEN" }
        )?;
        for broken in &self.broken {
            writeln!(f, "  {broken}")?;
        }
        Ok(())
    }
}
