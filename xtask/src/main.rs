//! Checks and chores of the repository: `cargo xtask tidy`.
//!
//! `tidy` holds the rules that neither the compiler nor clippy can hold: which crate may depend on
//! which, what the crates without I/O must not import, how long a file may be, which words we use.

mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command prints its result"
)]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["tidy"] => tidy_repository(&repository_root()),
        _ => Err("usage: cargo xtask tidy".to_owned()),
    };
    match outcome {
        Ok(offences) if offences.is_empty() => {
            println!("tidy: nothing to report");
            ExitCode::SUCCESS
        }
        Ok(offences) => {
            for offence in &offences {
                println!("{offence}");
            }
            eprintln!("tidy: {} offences", offences.len());
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

/// The folder above this crate's.
fn repository_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// All offences in the repository at `root`.
fn tidy_repository(root: &Path) -> Result<Vec<tidy::Offence>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root)
        .output()
        .map_err(|e| format!("starting cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let metadata = String::from_utf8_lossy(&output.stdout);
    tidy::check(root, &metadata)
}
