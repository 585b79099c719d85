//! Control socket: orders over a Unix socket; a line in, a line out, `ok ...` or `error ...`.
//!
//! | order | effect |
//! | --- | --- |
//! | `fail read\|write\|sync PART [FROM TO [TIMES]]` | EIO for paths with PART (`-`: all) |
//! | `flip PART OFFSET MASK [EVERY]` | reads flip these bits; each EVERY bytes on too |
//! | `clear` | no fail, no flip, no lie, no delay |
//! | `lie on\|off` | flushes do nothing |
//! | `slow MS` | a flush of a file takes MS |
//! | `slow-reads MS` | a read takes MS; reads overlap |
//! | `budget BYTES\|off` | ENOSPC from here on |
//! | `record` | remember everything from now on |
//! | `status` | `ok EVENTS PENDING READS WRITES SYNCS READS_AT_ONCE`, see below |
//! | `cut SEED UNIT` | power loss and return |
//! | `snapshot FOLDER SEED UNIT [EVENT]` | a state that a power loss may leave, in a new folder |
//!
//! READS_AT_ONCE is the most concurrent reads since `slow-reads`. A snapshot is of now, or of the
//! time after EVENT events.

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU64;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::crash_image::Choice;
use crate::disk::FaultDisk;
use crate::faults::{DiskFaultKind, Rule};

/// Longest order.
const LINE_MAX: u64 = 8192;

/// Answers orders, one connection after the other, until the socket fails.
pub fn serve(disk: &Arc<FaultDisk>, listener: &UnixListener) {
    for stream in listener.incoming().flatten() {
        // A client that disconnects does not end the loop.
        let _ = converse(disk, &stream);
    }
}

fn converse(disk: &FaultDisk, stream: &UnixStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(std::io::Read::take(stream, LINE_MAX));
    let mut out = stream;
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let answer = match order(disk, line.trim()) {
            Ok(text) => format!("ok {text}\n"),
            Err(text) => format!("error {text}\n"),
        };
        out.write_all(answer.as_bytes())?;
        line.clear();
    }
    Ok(())
}

fn number<T: std::str::FromStr>(text: Option<&&str>, what: &str) -> Result<T, String> {
    text.ok_or_else(|| format!("{what} is missing"))?
        .parse()
        .map_err(|_error| format!("{what} is not a number"))
}

/// The part of paths that an order names; empty where it names none.
fn path_part(word: Option<&&str>) -> String {
    match word {
        Some(&"-") | None => String::new(),
        Some(part) => (*part).to_owned(),
    }
}

/// The rule of `fail CALL [PART [FROM TO [TIMES]]]`.
fn failure_rule(words: &[&str]) -> Result<Rule, String> {
    let word = |index: usize| words.get(index);
    let call = match word(1) {
        Some(&"read") => DiskFaultKind::Read,
        Some(&"write") => DiskFaultKind::Write,
        Some(&"sync") => DiskFaultKind::Sync,
        other => return Err(format!("no call {}", other.unwrap_or(&""))),
    };
    let (from, to) = match word(3) {
        Some(_) => (number(word(3), "FROM")?, number(word(4), "TO")?),
        None => (0, u64::MAX),
    };
    Ok(Rule {
        call,
        part: path_part(word(2)),
        from,
        to,
        left: word(5).map(|_| number(word(5), "TIMES")).transpose()?,
    })
}

/// The rule of `flip PART OFFSET MASK [EVERY]`.
fn flip_rule(words: &[&str]) -> Result<Rule, String> {
    let word = |index: usize| words.get(index);
    let (from, mask) = (number(word(2), "OFFSET")?, number(word(3), "MASK")?);
    let every = word(4).map(|_| number::<NonZeroU64>(word(4), "EVERY"));
    let every = every.transpose()?.map_or(u64::MAX, NonZeroU64::get);
    Ok(Rule {
        call: DiskFaultKind::Flip { mask, every },
        part: path_part(word(1)),
        from,
        to: u64::MAX,
        left: None,
    })
}

/// Carries out one order.
///
/// # Errors
/// A message for the sender.
pub fn order(disk: &FaultDisk, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let word = |index: usize| words.get(index);
    let failed = |error: std::io::Error| error.to_string();
    match words.as_slice() {
        ["fail", _, ..] => {
            let rule = failure_rule(&words)?;
            disk.faults(|faults| faults.add(rule));
            Ok(String::new())
        }
        ["flip", _, _, _, ..] => {
            let rule = flip_rule(&words)?;
            disk.faults(|faults| faults.add(rule));
            Ok(String::new())
        }
        ["clear"] => {
            disk.faults(crate::faults::Faults::clear);
            Ok(String::new())
        }
        ["lie", state] => {
            disk.faults(|faults| faults.lie = *state == "on");
            Ok(String::new())
        }
        ["slow", _] => {
            let takes = Duration::from_millis(number::<u16>(word(1), "MS")?.into());
            disk.faults(|faults| faults.sync_takes = takes);
            Ok(String::new())
        }
        ["slow-reads", _] => {
            disk.slow_reads(Duration::from_millis(number::<u16>(word(1), "MS")?.into()));
            Ok(String::new())
        }
        ["budget", bytes] => {
            let budget = match *bytes {
                "off" => None,
                _ => Some(number(word(1), "BYTES")?),
            };
            disk.faults(|faults| faults.budget = budget);
            Ok(String::new())
        }
        ["record"] => Ok(disk.record().to_string()),
        ["status"] => {
            let ((events, pending), counts) = (disk.events(), disk.counts());
            let (reads, writes, syncs) = (counts.reads, counts.writes, counts.syncs);
            let at_once = counts.reads_at_once;
            Ok(format!(
                "{events} {pending} {reads} {writes} {syncs} {at_once}"
            ))
        }
        ["cut", _, _] => {
            let (seed, unit) = (number(word(1), "SEED")?, number(word(2), "UNIT")?);
            disk.cut(seed, unit).map_err(failed)?;
            Ok(String::new())
        }
        ["snapshot", folder, ..] => {
            let (seed, unit) = (number(word(2), "SEED")?, number(word(3), "UNIT")?);
            let events = match word(4) {
                Some(_) => number(word(4), "EVENT")?,
                None => usize::MAX,
            };
            let choice = Choice::of_seed(seed, unit, events);
            disk.snapshot(Path::new(folder), choice).map_err(failed)?;
            Ok(String::new())
        }
        _ => Err(format!("no order: {line}")),
    }
}
