//! Findings and progress of a check, for people and as JSON.

use crate::console;
use serde_json::{Value, json};
use zonal_fsck::{ColumnCopy, Finding, FindingKind};
use zonal_offline::{CheckProgress, CheckReporter, CheckStart};

/// Prints findings and progress.
pub(super) struct FindingReporter {
    pub json: bool,
    pub progress: bool,
    pub repair: bool,
}

impl CheckReporter for FindingReporter {
    fn finding(&mut self, pass: u32, finding: &Finding) {
        if self.json {
            return console::json(to_json(pass, finding));
        }
        if pass > 1 {
            // A repair brought these findings to light; the totals count those that are left.
            return;
        }
        console::line(format_args!("{finding}"));
        console::line(format_args!(
            "    consequence: {}",
            finding.what.consequence()
        ));
        if !self.repair {
            console::line(format_args!("    repair: {}", finding.what.repair()));
        }
    }

    fn progress(&mut self, stage: CheckProgress) {
        if self.progress {
            let left = stage
                .left
                .map_or_else(String::new, |left| format!(", about {left} s left"));
            console::note(format_args!(
                "pass {}: {} records, {} a second{left}",
                stage.pass, stage.records, stage.rate
            ));
        }
    }

    fn repaired(&mut self, pass: u32, changes: u64) {
        if self.progress {
            console::note(format_args!("pass {pass}: {changes} repairs made"));
        }
    }

    fn begins(&mut self, begin: &CheckStart) {
        match begin {
            CheckStart::New => {}
            CheckStart::GoesOn { read, stores } => console::note(format_args!(
                "an interrupted check resumes: {read} of {stores} stores are read"
            )),
            CheckStart::Anew(why) => {
                console::note(format_args!("an interrupted check starts over: {why}"));
            }
        }
    }
}

fn to_json(pass: u32, finding: &Finding) -> Value {
    let mut value = json!({
        "pass": pass,
        "name": finding.what.name(),
        "place": finding.place.to_string(),
        "class": format!("{:?}", finding.what.class()).to_lowercase(),
        "text": finding.what.to_string(),
        "consequence": finding.what.consequence(),
        "repair": finding.what.repair(),
    });
    if let Some(path) = &finding.path {
        value["path"] = json!(path);
    }
    if let FindingKind::LostWithTarget { ranges, .. }
    | FindingKind::Damaged { ranges, .. }
    | FindingKind::KnownLost { ranges, .. } = &finding.what
    {
        value["ranges"] = json!(ranges.first);
        value["ranges_count"] = json!(ranges.count);
        value["bytes"] = json!(ranges.bytes);
    }
    if let FindingKind::CopiesDiffer {
        column,
        right,
        wrong,
        ..
    } = &finding.what
    {
        value["column"] = json!(column.0);
        value["right"] = targets_of(right);
        value["wrong"] = targets_of(wrong);
    }
    value
}

fn targets_of(copies: &[ColumnCopy]) -> Value {
    copies.iter().map(|copy| copy.target.0).collect()
}
