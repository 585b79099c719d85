//! The `zonal` command: one binary for servers, mounts and tools.
//!
//! Errors are printed with their causes and, where there is one, a `Hint:` line; exit codes are in [`exit`].
#![forbid(unsafe_code)]

mod backup;
mod cell;
mod cli;
mod dump;
mod exit;
mod mount;
mod out;
mod progress;
mod running;
mod transfer;
mod whole;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let result = match mount::helper::parse(&arguments) {
        Some(arguments) => arguments.and_then(|options| mount::command::run(&options)),
        None => cli::Cli::parse_from(arguments).run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
