//! The `zonal` command: one binary for servers, mounts and tools.
//!
//! A failure is printed with its causes and, where there is one, a `Hint:` line; [`exit`] has the
//! exit codes.
#![forbid(unsafe_code)]

mod atomic_file;
mod backup;
mod cell;
mod cli;
mod console;
mod dump;
mod exit;
mod mount;
mod placement_client;
mod progress;
mod running_cell;
mod testbed;
mod top;
mod transfer;

use clap::Parser;
use std::process::ExitCode;

/// Silences panics of the index's library, which panics on damaged bytes. Callers catch them and
/// report damage instead.
fn silence_guarded_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !zonal_disk::is_guarded() {
            usual(info);
        }
    }));
}

/// Turns core dumps off, since this process holds private keys. The limit is 1 byte: with 0 the
/// kernel still passes a dump to the program named in /proc/sys/kernel/core_pattern.
fn disable_core_dumps() {
    let least = rustix::process::Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    // Best effort: a hard limit of 0 cannot be raised to 1, and stays.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, least);
}

fn main() -> ExitCode {
    disable_core_dumps();
    silence_guarded_panics();
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if mount::helper::is_called(&arguments) {
        let result = mount::helper::run(&arguments);
        let code = result.err().map(|error| exit::report(&error, exit::FAILED));
        return code.map_or(ExitCode::SUCCESS, mount::helper::exit_code);
    }
    let mut otherwise = exit::FAILED;
    let result = match cli::Cli::try_parse_from(arguments) {
        Ok(cli) => {
            otherwise = cli.failure_code();
            cli.run()
        }
        Err(usage) if usage.use_stderr() => usage.exit(),
        // `--help` or `--version`.
        Err(shown) => {
            console::shown(shown.print());
            Ok(())
        }
    };
    let code = result.as_ref().err();
    let code = code.map(|error| ExitCode::from(exit::report(error, otherwise)));
    if let Err(error) = console::finish() {
        console::note(format_args!("zonal: standard output: {error}"));
        // The command's own failure says more than the failed output.
        return code.unwrap_or(ExitCode::from(otherwise));
    }
    code.unwrap_or(ExitCode::SUCCESS)
}
