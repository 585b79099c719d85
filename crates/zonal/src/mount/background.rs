//! A mount in the background: the process that is started for it, and what that says before it is
//! left alone.
//!
//! This program starts itself with `--foreground --ready-on-stdout` and reads its standard output:
//! `note: TEXT` lines for whoever mounts, then `ready`; or why there is no mount, and perhaps a
//! last line `Hint: TEXT`.

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

/// Tells the starting process that the mount answers. It may be gone; the mount stays.
pub fn tell_ready() {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{READY}").and_then(|()| stdout.flush());
}

/// Tells the starting process what whoever mounts should know.
pub fn tell_note(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // One line: another one could say that the mount answers.
    let _ = writeln!(stdout, "{NOTE}{}", OneLine(text)).and_then(|()| stdout.flush());
}

/// Tells the starting process why there is no mount.
pub fn tell_failure(error: &anyhow::Error) {
    console::line(format_args!("{error:#}"));
    if let Some(hint) = crate::exit::hint(error) {
        console::line(format_args!("{HINT}{hint}"));
    }
}

/// Starts the process, with its log, and returns when the mount answers.
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
