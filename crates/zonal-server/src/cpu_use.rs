//! CPU use of this machine: a thread measures it every [`PERIOD`], and reports it to the manager.
//!
//! The report is a hint for the choice of nodes for jobs. One that does not arrive is not repeated:
//! the next one is newer.

use crate::manager_link::ManagerLink;
use crate::periodic_thread::{Pauses, PeriodicThread};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use zonal_types::NodeId;
use zonal_wire::ManagerRequest;

/// Time over which the use is measured.
const PERIOD: Duration = Duration::from_secs(5);
/// The first measurement is short, so that the manager soon knows.
const FIRST: Duration = Duration::from_millis(500);
/// No measurement yet.
const UNKNOWN: u32 = u32::MAX;

/// The last measurement.
pub(crate) struct CpuUse(AtomicU32);

impl Default for CpuUse {
    fn default() -> Self {
        Self(AtomicU32::new(UNKNOWN))
    }
}

impl CpuUse {
    /// Used CPU in thousandths of all; `None`: not known yet.
    pub(crate) fn per_mille(&self) -> Option<u16> {
        u16::try_from(self.0.load(Ordering::Relaxed)).ok()
    }

    fn set(&self, per_mille: u16) {
        self.0.store(per_mille.into(), Ordering::Relaxed);
    }
}

/// Times of all processors together since the machine started, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTimes {
    idle: u64,
    all: u64,
}

impl CpuTimes {
    /// Reads the first line of /proc/stat.
    fn parse(stat: &str) -> Option<Self> {
        let words = stat.lines().next()?.strip_prefix("cpu ")?;
        let words = words.split_ascii_whitespace().map(|word| word.parse().ok());
        // user, nice, system, idle, iowait, irq, softirq, steal; the guests' times behind them are
        // in the first two already.
        let times: Option<Vec<u64>> = words.take(8).collect();
        let times = times?;
        let (idle, waiting) = (times.get(3)?, times.get(4)?);
        Some(Self {
            idle: idle.saturating_add(*waiting),
            all: times.iter().fold(0, |sum: u64, of| sum.saturating_add(*of)),
        })
    }

    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Used CPU since an earlier time, in thousandths; `None` where no time has passed.
    fn used_since(self, before: Self) -> Option<u16> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        // The kernel's waiting times may fall.
        let idle = self.idle.saturating_sub(before.idle).min(all);
        u16::try_from(u128::from(all - idle) * 1_000 / u128::from(all)).ok()
    }
}

/// Starts the thread; it reports where there is a manager to report to.
///
/// # Errors
/// Where the system refuses it.
pub(crate) fn start(
    cpu: Arc<CpuUse>,
    report: Option<(NodeId, ManagerLink)>,
) -> io::Result<PeriodicThread> {
    PeriodicThread::start("cpu-use", move |pauses| keep(&cpu, report.as_ref(), pauses))
}

fn keep(cpu: &CpuUse, report: Option<&(NodeId, ManagerLink)>, pauses: &Pauses) {
    let mut before = CpuTimes::now();
    let mut time = FIRST;
    while pauses.pause(time) {
        let now = CpuTimes::now();
        let used = now.zip(before);
        if let Some(cpu_per_mille) = used.and_then(|(now, before)| now.used_since(before)) {
            cpu.set(cpu_per_mille);
            if let Some((node, manager)) = report {
                let node = *node;
                manager.ask(ManagerRequest::ReportLoad {
                    node,
                    cpu_per_mille,
                });
            }
        }
        before = now.or(before);
        time = PERIOD;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_cpu_is_what_is_neither_idle_nor_waiting() {
        let before = "cpu  100 0 100 700 100 0 0 0 9 9\ncpu0 1 2 3\n";
        let before = CpuTimes::parse(before).unwrap();
        assert_eq!(
            before,
            CpuTimes {
                idle: 800,
                all: 1_000
            }
        );
        let after = |line| CpuTimes::parse(line).unwrap().used_since(before);
        assert_eq!(after("cpu  150 10 120 850 150 5 5 10 0 0"), Some(333));
        assert_eq!(after("cpu  200 0 200 700 100 0 0 0"), Some(1_000));
        assert_eq!(after("cpu  100 0 100 900 100 0 0 0"), Some(0));
        // A waiting time that fell.
        assert_eq!(after("cpu  200 0 100 750 50 0 0 0"), Some(1_000));
        assert_eq!(after("cpu  100 0 100 700 100 0 0 0"), None);
        for text in ["", "cpu0 1 2 3 4 5", "cpu  1 2 x 4 5", "cpu  1 2 3"] {
            assert_eq!(CpuTimes::parse(text), None, "{text}");
        }
        assert!(CpuTimes::now().is_some());
    }

    #[test]
    fn nothing_is_known_before_the_first_measurement() {
        let cpu = CpuUse::default();
        assert_eq!(cpu.per_mille(), None);
        cpu.set(1_000);
        assert_eq!(cpu.per_mille(), Some(1_000));
    }
}
