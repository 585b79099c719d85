//! Faults: the calls that fail, and how.

use rustix::io::Errno;
use std::time::Duration;

/// The calls that a rule affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFaultKind {
    /// Reads fail.
    Read,
    /// Writes and allocations fail.
    Write,
    /// Flushes fail.
    Sync,
    /// Reads return flipped bits: in the first byte of the rule, and in every `every`th byte from
    /// there on.
    Flip {
        /// Mask of the flipped bits.
        mask: u8,
        /// Not 0; past the end of any file: only the first byte.
        every: u64,
    },
}

/// One fault.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The calls that it affects.
    pub call: DiskFaultKind,
    /// Part of the path below the root; empty for all files.
    pub part: String,
    /// First byte.
    pub from: u64,
    /// One past the last byte.
    pub to: u64,
    /// How often it still applies; `None`: for ever.
    pub left: Option<u64>,
}

/// All faults.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Vec<Rule>,
    /// Flushes are acknowledged, but nothing becomes durable.
    pub lie: bool,
    /// How long a flush of a file takes.
    pub sync_takes: Duration,
    /// How long a read takes.
    pub read_takes: Duration,
    /// Most bytes of all files together.
    pub budget: Option<u64>,
}

impl Faults {
    /// Adds a rule.
    pub fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Removes rules, lies and delays; the budget stays.
    pub fn clear(&mut self) {
        self.rules.clear();
        self.lie = false;
        self.sync_takes = Duration::ZERO;
        self.read_takes = Duration::ZERO;
    }

    fn strikes(&mut self, call: DiskFaultKind, path: &str, from: u64, to: u64) -> bool {
        let found = self.rules.iter_mut().find(|rule| {
            rule.call == call
                && path.contains(&rule.part)
                && rule.from < to.max(from + 1)
                && from < rule.to
                && rule.left != Some(0)
        });
        if let Some(left) = found.as_ref().and_then(|rule| rule.left) {
            if let Some(rule) = found {
                rule.left = Some(left - 1);
            }
            return true;
        }
        found.is_some()
    }

    /// Checks for a fault of a call on `from..to` of a file.
    ///
    /// # Errors
    /// EIO where a rule applies.
    pub fn check(
        &mut self,
        call: DiskFaultKind,
        path: &str,
        from: u64,
        to: u64,
    ) -> Result<(), Errno> {
        if self.strikes(call, path, from, to) {
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// Flips bits in bytes that were read at `from`.
    pub fn flip(&mut self, path: &str, from: u64, bytes: &mut [u8]) {
        for rule in &self.rules {
            let DiskFaultKind::Flip { mask, every } = rule.call else {
                continue;
            };
            if !path.contains(&rule.part) {
                continue;
            }
            // How far behind `from` the first flipped byte is, then each next one.
            let passed = from.saturating_sub(rule.from).div_ceil(every);
            let mut at = (rule.from.saturating_add(passed.saturating_mul(every))) - from;
            while let Some(byte) = usize::try_from(at).ok().and_then(|at| bytes.get_mut(at)) {
                *byte ^= mask;
                at = at.saturating_add(every);
            }
        }
    }
}
