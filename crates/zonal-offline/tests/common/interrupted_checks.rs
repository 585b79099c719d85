//! Checks that are ended after some of their steps.

use super::TestCell;
use zonal_fsck::Finding;
use zonal_offline::{
    Begin, CheckOptions, CheckProgress, CheckReporter, CheckSummary, OfflineError, check,
};

/// What a check told, and after how many steps it is ended.
#[derive(Default)]
pub struct Ended {
    pub findings: Vec<(u32, Finding)>,
    pub begin: Option<Begin>,
    pub steps: u32,
    pub limit: Option<u32>,
}

impl CheckReporter for Ended {
    fn finding(&mut self, pass: u32, finding: &Finding) {
        self.findings.push((pass, finding.clone()));
    }
    fn progress(&mut self, _stage: CheckProgress) {}
    fn repaired(&mut self, _pass: u32, _changes: u64) {}
    fn begins(&mut self, begin: &Begin) {
        self.begin = Some(begin.clone());
    }
    fn goes_on(&mut self) -> bool {
        self.steps += 1;
        self.limit.is_none_or(|limit| self.steps < limit)
    }
}

/// Ends a check after so many steps; whether it was not through before.
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
