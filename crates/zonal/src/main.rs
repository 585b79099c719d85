//! The `zonal` command: one binary for servers, mounts and tools.
//!
//! Errors are printed with their causes and, where there is one, a `Hint:` line; exit codes are in
//! [`exit`].
#![forbid(unsafe_code)]

mod atomic_file;
mod backup;
mod cell;
mod cli;
mod console;
mod dump;
mod exit;
mod mount;
mod progress;
mod running_cell;
mod transfer;

use clap::Parser;
use std::process::ExitCode;

/// The library below an index panics on damaged bytes. That is caught and told as damage, so its
/// own words are not shown.
fn be_quiet_about_damage() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !zonal_disk::is_guarded() {
            usual(info);
        }
    }));
}

/// Keys are in our memory. 1 byte, not none: with none the kernel hands a dump to a program that
/// /proc/sys/kernel/core_pattern names.
fn leave_no_core_dumps() {
    let least = rustix::process::Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    // Where the limit is none at all, and may not be raised, it stays so.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, least);
}

fn main() -> ExitCode {
    leave_no_core_dumps();
    be_quiet_about_damage();
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
        // Help or version, as asked.
        Err(shown) => {
            console::shown(shown.print());
            Ok(())
        }
    };
    let code = result.as_ref().err();
    let code = code.map(|error| ExitCode::from(exit::report(error, otherwise)));
    if let Err(error) = console::finish() {
        console::note(format_args!("zonal: standard output: {error}"));
        // What failed before says more.
        return code.unwrap_or(ExitCode::from(otherwise));
    }
    code.unwrap_or(ExitCode::SUCCESS)
}
