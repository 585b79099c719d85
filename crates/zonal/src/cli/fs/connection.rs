//! Connection of a `zonal fs` command: its user, its failures and their hints.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::console;
use crate::exit::{FAILED, Failure, INTERRUPTED, NOT_FOUND, UNREACHABLE, down_hint, with_causes};
use crate::mount::options::{MountSettings, transport};
use crate::mount::zone_detection;
use crate::placement_client::{PlacementClient, ServiceArgs};
use std::path::{Path, PathBuf};
use zonal_native::{
    ConnectError, ConnectOptions, Error, ErrorCode, Identity, Native, NodeId, Role, User,
};
use zonal_server::units::Millis;
use zonal_types::OneLine;
use zonal_types::limits::NAME_BYTES_MAX;
use zonal_zonemap::ZoneMap;

/// Arguments for connecting to a cell.
#[derive(Debug, clap::Args)]
pub struct AccessArgs {
    #[command(flatten)]
    cell: CellArgs,
    /// The zone that this machine is in: new first-level directories are homed there [default: as
    /// `zonal mount` finds it]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    zone: Option<u16>,
    /// Protection of TCP connections: tls, or plain, as for `zonal mount`
    #[arg(long, value_name = "tls|plain", default_value = "tls", value_parser = ["tls", "plain"])]
    transport: String,
    /// Time that a request waits for a server, such as "10 s" (1 s to 60 s) [default: 10 s]
    #[arg(long, value_name = "TIME")]
    deadline: Option<Millis>,
}

/// A connection and the user whose rights apply.
pub struct CellConnection {
    pub native: Native,
    pub user: User,
}

/// The user who runs this program.
fn caller() -> User {
    use rustix::process::{getegid, geteuid, getgroups, umask};
    // The umask can only be read by setting it; no other thread runs here.
    let mask = umask(rustix::fs::Mode::empty());
    umask(mask);
    let groups = getgroups().unwrap_or_default();
    let groups: Vec<u32> = groups
        .into_iter()
        .map(rustix::process::Gid::as_raw)
        .collect();
    User::new(geteuid().as_raw(), getegid().as_raw())
        .with_groups(&groups)
        .with_umask(mask.as_raw_mode())
}

/// The name that the sessions show to people.
fn name(doing: &str) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let name = format!("fs {doing} on {}", OneLine(&host));
    let end = name.floor_char_boundary(NAME_BYTES_MAX);
    name.get(..end).unwrap_or_default().to_owned()
}

impl AccessArgs {
    /// The cell, for calls to its servers.
    pub fn cell(&self) -> anyhow::Result<CellHandle> {
        self.cell.open()
    }

    /// The zone map, from the manager.
    pub fn map(&self) -> anyhow::Result<ZoneMap> {
        self.cell.open()?.map()
    }

    /// The placement service of the cell, where its address is known.
    pub fn placement(&self, args: &ServiceArgs) -> anyhow::Result<Option<PlacementClient>> {
        PlacementClient::of(&self.cell.open()?, args)
    }

    /// Connects; `doing` is the command's name for the sessions.
    pub fn connect(&self, doing: &str) -> anyhow::Result<CellConnection> {
        let cell = self.cell.open()?;
        let mut like_mount = MountSettings::new(String::new(), PathBuf::new());
        like_mount.zone = self.zone;
        let site = zone_detection::site(&like_mount, &cell)?;
        let mut options = ConnectOptions::new(site.zone)
            .at_node(site.node)
            .named(&name(doing));
        if let Some(deadline) = self.deadline {
            if !(1_000..=60_000).contains(&deadline.0) {
                let text = format!("--deadline {deadline} is not between 1 s and 60 s");
                return Err(Failure::new(2, text).into());
            }
            options = options.with_deadline_ms(deadline.0);
        }
        let identity = Identity::new(cell.id, Role::Client, NodeId(0), cell.credential.clone())
            .with_transport(transport(&self.transport).unwrap_or_default());
        let manager = cell.managers_text();
        let native = Native::connect(&manager, identity, options).map_err(|error| match error {
            ConnectError::Refused(code) => {
                failure(code, format!("the manager at {manager}: {code}"))
            }
            ConnectError::NoZone(_) => {
                Failure::new(2, error.to_string()).hint("`zonal zone-map show` lists the zones")
            }
            ConnectError::Threads(_) => Failure::new(FAILED, with_causes(&error)),
        })?;
        let user = caller();
        Ok(CellConnection { native, user })
    }
}

impl CellConnection {
    /// Closes the connection. The failure in `outcome` wins over one of the close.
    pub fn end(self, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
        let ended = self.native.close();
        outcome?;
        ended.map_err(|error| about(error, "flush", Path::new("/")))
    }
}

/// Whether requests about other files would fail too, each only after a deadline.
pub fn is_hopeless(code: ErrorCode) -> bool {
    is_silence(code) || code == ErrorCode::NoSpace
}

fn is_silence(code: ErrorCode) -> bool {
    use ErrorCode::{NotReady, Overloaded, TimedOut, Unreachable};
    matches!(code, NotReady | Overloaded | TimedOut | Unreachable)
}

/// Exit code and hint for an error code of the cell.
fn failure(code: ErrorCode, text: String) -> Failure {
    match code {
        ErrorCode::NotFound => Failure::new(NOT_FOUND, text),
        code if is_silence(code) => Failure::new(UNREACHABLE, text).hint(down_hint()),
        ErrorCode::Unauthenticated => Failure::new(UNREACHABLE, text).hint(
            "name this machine's credential with --key-file; `zonal key create` makes one",
        ),
        ErrorCode::WrongCell => Failure::new(UNREACHABLE, text)
            .hint("another cell answers at that address: check --cell"),
        ErrorCode::WrongVersion => {
            Failure::new(UNREACHABLE, text).hint("use the same version of zonal everywhere")
        }
        ErrorCode::NoSpace => Failure::new(FAILED, text)
            .hint("`zonal status` shows full targets and shards; no file was left under the name"),
        ErrorCode::CrossShard => Failure::new(FAILED, text).hint(
            "files cannot be renamed between first-level directories: copy by `zonal fs get` and `put`",
        ),
        ErrorCode::NotEmpty => Failure::new(FAILED, text).hint("-r removes everything below, too"),
        ErrorCode::Access | ErrorCode::NotPermitted => {
            let uid = rustix::process::geteuid().as_raw();
            let hint = format!("you ask as user id {uid}; `zonal fs stat` shows owner and mode");
            Failure::new(FAILED, text).hint(hint)
        }
        _ => Failure::new(FAILED, text),
    }
}

/// An error about a path of the cell, with its exit code.
pub fn about(error: Error, doing: &str, path: &Path) -> anyhow::Error {
    let text = format!("{doing} {}: {error}", console::path(path));
    match error.code() {
        Some(code) => failure(code, text).into(),
        None => Failure::new(FAILED, text).into(),
    }
}

/// An error about a path of this machine.
pub fn about_local(error: &std::io::Error, doing: &str, path: &Path) -> anyhow::Error {
    let text = format!("{doing} {} on this machine: {error}", console::path(path));
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(NOT_FOUND, text).into(),
        std::io::ErrorKind::StorageFull => Failure::new(FAILED, text)
            .hint("this machine's disk is full; nothing was left under the name")
            .into(),
        _ => Failure::new(FAILED, text).into(),
    }
}

/// The error of a command that a signal interrupted.
pub fn interrupted() -> anyhow::Error {
    let text = "interrupted: unfinished files are removed, finished files stay";
    Failure::new(INTERRUPTED, text).into()
}

/// Failures of several paths: each is printed, and a last line has the count.
#[derive(Default)]
pub struct Failures {
    first: Option<anyhow::Error>,
    count: u64,
}

impl Failures {
    /// Adds a failure and prints it, unless it may be the only one.
    pub fn add(&mut self, error: anyhow::Error) {
        self.count += 1;
        if self.count == 1 {
            self.first = Some(error);
            return;
        }
        if let Some(first) = self.first.as_ref().filter(|_| self.count == 2) {
            tell(first);
        }
        tell(&error);
    }

    /// Adds a failure, if there is one.
    pub fn note<T>(&mut self, outcome: anyhow::Result<T>) -> Option<T> {
        outcome.map_err(|error| self.add(error)).ok()
    }

    /// The error of the command; a single failure is returned as it is.
    pub fn finish(self) -> anyhow::Result<()> {
        match self.first {
            None => Ok(()),
            Some(error) if self.count == 1 => Err(error),
            Some(error) => {
                let text = format!("{} paths failed", self.count);
                Err(Failure::new(crate::exit::code(&error), text).into())
            }
        }
    }
}

fn tell(error: &anyhow::Error) {
    console::note(format_args!("zonal: {}", with_causes(error.as_ref())));
}
