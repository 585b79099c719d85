//! Exit codes, hints, and the printed form of errors.

use crate::console;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use zonal_disk::DiskError;
use zonal_disk::trusted_paths::PathRefusal;
use zonal_net::NetError;
use zonal_server::ServerError;
use zonal_server::config::ConfigError;
use zonal_server::error::{store_exit_code, store_hint};

/// Any failure that has no code of its own.
pub const FAILED: u8 = 1;
/// The hint for a damaged file.
pub const DAMAGED_HINT: &str = "put back a copy of it";

/// Wrong usage; clap exits with it too.
pub const USAGE: u8 = 2;
/// A config is not valid.
pub const CONFIG: u8 = 3;
/// A server does not answer, or refuses this program.
pub const UNREACHABLE: u8 = 4;
/// A folder, store or file is refused as untrusted or foreign.
pub const REFUSED: u8 = 5;
/// A port, folder or mount point is in use.
pub const IN_USE: u8 = 6;
/// There is no cell, mount or file where one was named.
pub const NOT_FOUND: u8 = 7;

/// `zonal fsck` could not check, or could not print its findings.
pub const NOT_CHECKED: u8 = 8;

/// `zonal files` listed files.
pub const FILES_FOUND: u8 = 9;

/// A signal interrupted a copy, which cleaned up.
pub const INTERRUPTED: u8 = 130;

/// Every exit code with its meaning, for the command line reference.
pub const TABLE: &[(u8, &str)] = &[
    (0, "done"),
    (
        FAILED,
        "failed (also: `zonal status` found something that does not serve; standard output cannot be written)",
    ),
    (USAGE, "wrong usage"),
    (CONFIG, "a config is not valid"),
    (
        UNREACHABLE,
        "a server does not answer, or does not accept us (key, cell, version)",
    ),
    (
        REFUSED,
        "a folder, store or file is refused: another user's, writable by others, not a regular file, of another target, not formatted, not ours, another cell's, of another shape, or unknown to the manager",
    ),
    (IN_USE, "a port, folder or mount point is in use"),
    (NOT_FOUND, "no cell, mount or file where one was named"),
    (
        NOT_CHECKED,
        "`zonal fsck` could not check, or not print its findings (its 1: all findings were repaired; its 4: findings are left)",
    ),
    (
        FILES_FOUND,
        "`zonal files` listed files: lost, unavailable or endangered, or so with `--if-lost`",
    ),
    (
        INTERRUPTED,
        "`zonal fs put` or `get` was interrupted: unfinished files are removed, finished files stay",
    ),
];

/// An error with an exit code and perhaps a hint.
#[derive(Debug)]
pub struct Failure {
    text: String,
    code: u8,
    hint: Option<String>,
}

impl Failure {
    /// Makes an error with an exit code.
    pub fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code,
            hint: None,
        }
    }

    /// Adds a hint: what to do about the error.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// Exit code and hint of an error, from the first of its causes that has them.
fn code_and_hint(error: &anyhow::Error) -> (u8, Option<String>) {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return (failure.code, failure.hint.clone());
        }
        if let Some(error) = cause.downcast_ref::<ServerError>() {
            return (error.exit_code(), error.hint());
        }
        if let Some(error) = cause.downcast_ref::<PathRefusal>() {
            let code = match error {
                damaged if damaged.is_damage() => CONFIG,
                PathRefusal::Io { .. } => FAILED,
                _ => REFUSED,
            };
            let hint = error.is_damage().then(|| DAMAGED_HINT.to_owned());
            return (code, error.hint().or(hint));
        }
        if let Some(error) = cause.downcast_ref::<DiskError>() {
            return (store_exit_code(error), store_hint(error));
        }
        if let Some(error) = cause.downcast_ref::<ConfigError>() {
            let code = match error {
                ConfigError::Lookup { .. } => UNREACHABLE,
                _ => CONFIG,
            };
            return (code, Some(error.hint().to_owned()));
        }
        if let Some(error) = cause.downcast_ref::<NetError>() {
            return (UNREACHABLE, net_hint(error));
        }
        if let Some(error) = cause.downcast_ref::<zonal_fuse::MountError>() {
            return (FAILED, error.hint().map(str::to_owned));
        }
    }
    (FAILED, None)
}

/// The exit code of an error.
pub fn code(error: &anyhow::Error) -> u8 {
    code_and_hint(error).0
}

/// The hint of an error.
pub fn hint(error: &anyhow::Error) -> Option<String> {
    code_and_hint(error).1
}

/// Whether a full disk, or a quota, caused the error.
pub fn is_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        let kind = io.map(std::io::Error::kind);
        matches!(
            kind,
            Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
        )
    })
}

/// Whether the command named its cell by the manager's address. Process-wide, since a process runs
/// one command on one cell.
static IS_ADDRESS: AtomicBool = AtomicBool::new(false);

/// Selects hints for the operator of a cell that was not made by `zonal up`.
pub fn cell_has_no_folder() {
    IS_ADDRESS.store(true, Ordering::Relaxed);
}

/// The hint for a server that cannot be reached.
pub fn down_hint() -> &'static str {
    if IS_ADDRESS.load(Ordering::Relaxed) {
        "is the server running on its machine? see its unit and log (`systemctl status 'zonal@*'`); is the address right?"
    } else {
        "is the cell up? `zonal up` starts stopped servers"
    }
}

fn net_hint(error: &NetError) -> Option<String> {
    let hint = match error {
        NetError::Unreachable { .. } => down_hint(),
        NetError::TimedOut { .. } => "the server is there but does not answer: look at its log",
        NetError::Unauthenticated { .. } => {
            "name this machine's credential with --key-file; `zonal key create` makes one"
        }
        NetError::WrongCell { .. } => "another cell answers at that address: check --cell",
        NetError::WrongVersion { .. } => "use the same version of zonal everywhere",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Prints an error and returns its exit code: `otherwise` where the error has none of its own.
pub fn report(error: &anyhow::Error, otherwise: u8) -> u8 {
    let (code, hint) = code_and_hint(error);
    let own = error.chain().any(|cause| cause.is::<Failure>());
    let code = match code {
        FAILED if !own => otherwise,
        // `zonal fsck` uses the number 4 for something else.
        UNREACHABLE if !own && otherwise == NOT_CHECKED => otherwise,
        code => code,
    };
    console::note(format_args!("zonal: {}", with_causes(error.as_ref())));
    if let Some(hint) = hint {
        console::note(format_args!("Hint: {hint}"));
    }
    code
}

/// Formats an error and its causes on one line; text that a cause repeats is left out.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let part = inner.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = inner.source();
    }
    text
}
