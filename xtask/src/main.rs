//! Checks and chores of the repository: `cargo xtask tidy`, `cargo xtask fixture vX.Y.Z`.
//!
//! `tidy` enforces rules that neither the compiler nor clippy can: dependencies between crates,
//! imports of crates without I/O, lengths of files, words. `fixture` makes stores with a released
//! version, which later versions must read.

mod tidy;

use std::ffi::OsString;
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
        ["fixture", version] => return fixture(version),
        _ => Err("usage: cargo xtask tidy | fixture vX.Y.Z".to_owned()),
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

/// Builds the program and runs the example that makes a fixture with it.
fn fixture(version: &str) -> ExitCode {
    let runs = [
        &["build", "--package", "zonal"][..],
        &["run", "--package", "zonal", "--example", "fixture", version],
    ];
    let is_made = runs.iter().all(|arguments| {
        let mut command = Command::new(cargo());
        command.args(*arguments).current_dir(repository_root());
        command.status().is_ok_and(|status| status.success())
    });
    ExitCode::from(u8::from(!is_made))
}

/// The cargo that started this program.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The repository's root: the parent of this crate's folder.
fn repository_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Returns all offences in the repository at `root`.
fn tidy_repository(root: &Path) -> Result<Vec<tidy::Offence>, String> {
    let output = Command::new(cargo())
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
