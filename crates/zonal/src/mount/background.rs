//! A mount in the background: the start of its process, and the process's report until it is left
//! alone.
//!
//! The program starts itself with `--foreground --ready-on-stdout` and reads its standard output:
//!
//! | line | meaning |
//! | --- | --- |
//! | `note: TEXT` | a note for the user who mounts |
//! | `ready` | the mount answers |
//! | other text, then perhaps `Hint: TEXT` | the reason why there is no mount |

use super::options::MountSettings;
use crate::console;
use crate::exit::{FAILED, Failure};
use anyhow::Context;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use zonal_types::OneLine;

const READY: &str = "ready";
const NOTE: &str = "note: ";
const HINT: &str = "Hint: ";

/// Reports to the starting process that the mount answers. If that process is gone, the mount
/// stays.
pub fn report_ready() {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{READY}").and_then(|()| stdout.flush());
}

/// Sends a note for the user to the starting process.
pub fn report_note(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // One line only, since a second one could read `ready`.
    let _ = writeln!(stdout, "{NOTE}{}", OneLine(text)).and_then(|()| stdout.flush());
}

/// Reports the failure to mount to the starting process.
pub fn report_failure(error: &anyhow::Error) {
    console::line(format_args!("{error:#}"));
    if let Some(hint) = crate::exit::hint(error) {
        console::line(format_args!("{HINT}{hint}"));
    }
}

/// Starts the process with its log; returns when the mount answers.
pub fn start(options: &MountSettings, log: Option<File>) -> anyhow::Result<()> {
    let mut child = Command::new(std::env::current_exe().context("own executable")?)
        .args(options.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_or_else(Stdio::null, Stdio::from))
        .current_dir("/")
        .spawn()
        .context("start the mount process")?;
    let mut said = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if line == READY {
                return Ok(());
            }
            match line.strip_prefix(NOTE) {
                Some(note) => console::note(format_args!("zonal: {note}")),
                None => said.push(line),
            }
        }
    }
    let status = child.wait().context("wait for the mount process")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let hint = said.last().and_then(|line| line.strip_prefix(HINT));
    let hint = hint.map(str::to_owned);
    if hint.is_some() {
        said.pop();
    }
    if said.is_empty() {
        said.push(format!("the mount process ended ({status})"));
    }
    let code = code.filter(|code| *code > 0).unwrap_or(FAILED);
    let failure = Failure::new(code, said.join("\n"));
    Err(match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
    .into())
}
