//! Checks that are ended after some of their steps.

use super::TestCell;
use zonal_fsck::Finding;
use zonal_offline::{
    CheckOptions, CheckProgress, CheckReporter, CheckStart, CheckSummary, OfflineError, check,
};

/// Records the reports of a check, and ends it after a number of steps.
#[derive(Default)]
pub struct Ended {
    pub findings: Vec<(u32, Finding)>,
    pub begin: Option<CheckStart>,
    pub steps: u32,
    pub limit: Option<u32>,
}

impl CheckReporter for Ended {
    fn finding(&mut self, pass: u32, finding: &Finding) {
        self.findings.push((pass, finding.clone()));
    }
    fn progress(&mut self, _stage: CheckProgress) {}
    fn repaired(&mut self, _pass: u32, _changes: u64) {}
    fn begins(&mut self, begin: &CheckStart) {
        self.begin = Some(begin.clone());
    }
    fn goes_on(&mut self) -> bool {
        self.steps += 1;
        self.limit.is_none_or(|limit| self.steps < limit)
    }
}

/// Ends a check after `steps` steps. Returns whether it had not come to its end before.
pub fn interrupt(cell: &TestCell, options: &CheckOptions, steps: u32) -> bool {
    let mut told = Ended {
        limit: Some(steps),
        ..Ended::default()
    };
    match check(&cell.cell, options, &mut told) {
        Ok(_) => false,
        Err(OfflineError::Interrupted) => true,
        Err(error) => panic!("{error}"),
    }
}

pub fn whole(cell: &TestCell, options: &CheckOptions) -> (CheckSummary, Ended) {
    let mut told = Ended::default();
    let summary = check(&cell.cell, options, &mut told).unwrap();
    assert!(!options.scratch.exists(), "the folder stays");
    (summary, told)
}
