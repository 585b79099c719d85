//! Mounts the null file system until it is unmounted: `null PATH [workers] [valid-seconds]
//! [direct] [pin] [writeback]`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use zonal_fuse::SessionConfig;
use zonal_fuse::null::{NullOptions, mount};

#[expect(clippy::print_stderr, reason = "an example's way to report")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = args.first() else {
        eprintln!("usage: null PATH [workers] [valid-seconds] [direct] [pin] [writeback]");
        return ExitCode::FAILURE;
    };
    let number = |index: usize, default: u64| {
        args.get(index)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let valid = Duration::from_secs(number(2, 60));
    let options = NullOptions {
        entry_valid: valid,
        attr_valid: valid,
        direct_io: has("direct"),
        ..NullOptions::default()
    };
    let config = SessionConfig {
        workers: usize::try_from(number(1, 8)).unwrap_or(8),
        pin_workers: has("pin"),
        writeback_cache: has("writeback"),
        ..SessionConfig::default()
    };
    match mount(Path::new(path), options, &config) {
        Ok(session) => {
            session.wait();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("null: {error}");
            ExitCode::FAILURE
        }
    }
}
