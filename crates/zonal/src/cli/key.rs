//! `zonal key`: the authority of a cell, and the credentials that it makes.

use super::key_revoke::Revoke;
use crate::cell::CellLocator;
use crate::cell::connection::{CellArgs, CellHandle};
use crate::cell::folder::{CellFolder, default_dir};
use crate::cell::keyring::{
    AUTHORITY_FILE, COMMANDS, CredentialKind, IssuedLine, Keyring, serial_in, shown,
};
use crate::console;
use crate::exit::{CONFIG, DAMAGED_HINT, Failure, NOT_FOUND, REFUSED, USAGE};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use zonal_disk::trusted_paths;
use zonal_net::credential::CREDENTIAL_BYTES_MAX;
use zonal_net::{Credential, Serial, ServerRoles, SubjectKind};
use zonal_types::{CellId, NodeId, Scope};
use zonal_wire::{ManagerReply, ManagerRequest};

/// Make, list and revoke credentials
///
/// A credential is one file: a private key, and a certificate by the cell's authority that names
/// its holder. Each server, client and administrator has its own. `zonal up` makes those that a
/// cell on one machine needs.
#[derive(Debug, clap::Subcommand)]
pub enum Key {
    /// Make the authority of a new cell: DIR/authority.pem, which issues credentials
    ///
    /// Keep it off the servers: none of them needs it.
    Init {
        /// The folder; made if missing
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// The cell's id, 32 hexadecimal digits [default: a random one]
        #[arg(long, value_name = "ID")]
        cell_id: Option<CellId>,
    },
    /// Make a credential for a node, a client or an administrator
    Create(Create),
    /// List the credentials that an authority issued
    Ls {
        #[command(flatten)]
        cell: CellArgs,
        #[command(flatten)]
        authority: AuthorityArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the holder of a credential
    Show {
        /// The credential's file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke credentials: within 5 s no server serves their holders over TCP
    ///
    /// A Unix socket requires no credential: on a server's machine, mounts and commands of root and
    /// of the servers' user still work after a revocation.
    Revoke(Revoke),
}

/// Arguments that select an authority.
#[derive(Debug, Clone, clap::Args)]
pub struct AuthorityArgs {
    /// The authority's file [default: authority.pem in the cell's folder]
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("holder").required(true))]
pub struct Create {
    #[command(flatten)]
    cell: CellArgs,
    #[command(flatten)]
    authority: AuthorityArgs,
    /// The new file; only its owner can read it
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Validity in days
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=7300))]
    days: u64,
    /// For the server of this node; repeat for each node of one server
    #[arg(long, value_name = "N", group = "holder", requires = "roles", value_parser = clap::value_parser!(u32).range(1..))]
    node: Vec<u32>,
    /// Roles of the server: manager, meta, storage, agent
    #[arg(
        long,
        value_name = "ROLE,...",
        value_delimiter = ',',
        requires = "node"
    )]
    roles: Vec<String>,
    /// For an administrator's commands and mounts, which may do everything
    #[arg(long, value_name = "NAME", group = "holder")]
    admin: Option<String>,
    /// For a client: a mount
    #[arg(long, value_name = "NAME", group = "holder")]
    client: Option<String>,
    /// Restrict the client to this directory and everything below it
    #[arg(long, value_name = "/PATH", requires = "client")]
    path: Option<String>,
    /// Restrict the client to reading
    #[arg(long, requires = "client")]
    read_only: bool,
    /// Restrict the client to these user ids, such as 1000-1999
    #[arg(long, value_name = "A-B", requires = "client", value_parser = uid_range)]
    uid_range: Option<(u32, u32)>,
    /// Map root on the client to nobody (user id 65534)
    #[arg(long, requires = "client")]
    squash_root: bool,
}

fn uid_range(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| {
        let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_number| is_plain)
    };
    let range = text.split_once('-').and_then(|(first, last)| {
        let range = (number(first)?, number(last)?);
        (range.0 <= range.1).then_some(range)
    });
    range.ok_or_else(|| "a range of user ids, such as 1000-1999".to_owned())
}

impl Key {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Init { to, cell_id } => init(&to, cell_id),
            Self::Create(create) => create.run(),
            Self::Ls {
                cell,
                authority,
                json,
            } => list(&cell, &authority, json),
            Self::Show { file, json } => show(&file, json),
            Self::Revoke(revoke) => revoke.run(),
        }
    }
}

fn init(to: &Path, cell: Option<CellId>) -> anyhow::Result<()> {
    let cell = match cell {
        Some(cell) => cell,
        None => {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes)
                .map_err(|error| anyhow::anyhow!("random bytes: {error}"))?;
            CellId(bytes)
        }
    };
    Keyring::make(trusted_paths::make(to)?, cell)?;
    let authority = to.join(AUTHORITY_FILE);
    console::line(format_args!("cell {cell}"));
    console::line(format_args!("authority {}", console::path(&authority)));
    console::line(format_args!(
        "next: zonal key create --authority {} --node 1 --roles manager --to node1.key",
        console::path(&authority)
    ));
    Ok(())
}

impl AuthorityArgs {
    pub(super) fn open(&self, cell: &CellArgs) -> anyhow::Result<Keyring> {
        if let Some(path) = &self.authority {
            return Keyring::open(path);
        }
        let dir = match cell.named().map(CellLocator::of).transpose()? {
            Some(CellLocator::Managers(_)) => {
                let text = "an address says nothing about where the authority is";
                return Err(Failure::new(2, text)
                    .hint("name it with --authority FILE")
                    .into());
            }
            Some(CellLocator::Folder(dir)) => dir,
            None => default_dir(),
        };
        let folder = CellFolder::open(&dir)?;
        Keyring::open(&folder.dir.join(AUTHORITY_FILE))
    }
}

impl Create {
    fn run(self) -> anyhow::Result<()> {
        let kind = self.kind()?;
        let keyring = self.authority.open(&self.cell)?;
        refuse_taken(&kind, &keyring)?;
        let term = Duration::from_secs(self.days * 24 * 3600);
        let line = keyring.issue(kind, term, &self.to)?;
        console::line(format_args!("{}", line.subject));
        console::line(format_args!(
            "serial {}, valid for {} days: {}",
            line.serial,
            self.days,
            console::path(&self.to)
        ));
        Ok(())
    }

    fn kind(&self) -> anyhow::Result<SubjectKind> {
        let named = |name: &String| {
            zonal_net::subject::check_name(name)
                .map(|()| name.clone())
                .map_err(|error| Failure::new(2, format!("{name}: {error}")))
        };
        let is_scoped =
            self.path.is_some() || self.read_only || self.uid_range.is_some() || self.squash_root;
        if is_scoped && self.client.is_none() {
            let text = "--path, --read-only, --uid-range and --squash-root are for --client";
            return Err(Failure::new(2, text)
                .hint("an administrator and a server have no scope")
                .into());
        }
        if !self.roles.is_empty() && self.node.is_empty() {
            let text = "--roles is for --node";
            return Err(Failure::new(2, text)
                .hint("name the node with --node N")
                .into());
        }
        if let Some(name) = &self.admin {
            return Ok(SubjectKind::Admin { name: named(name)? });
        }
        if let Some(name) = &self.client {
            let path = self.path.as_deref().unwrap_or("/");
            let path = Scope::parse_path(path)
                .map_err(|error| Failure::new(2, format!("--path {path}: {error}")))?;
            return Ok(SubjectKind::Client {
                name: named(name)?,
                scope: Scope {
                    path,
                    is_read_only: self.read_only,
                    uids: self.uid_range,
                    squashes_root: self.squash_root,
                },
            });
        }
        let roles = roles_of(&self.roles)?;
        let nodes: BTreeSet<NodeId> = self.node.iter().copied().map(NodeId).collect();
        Ok(SubjectKind::Server {
            nodes: nodes.into_iter().collect(),
            roles,
        })
    }
}

/// Parses the names of roles.
pub(super) fn roles_of(names: &[String]) -> anyhow::Result<ServerRoles> {
    let mut roles = ServerRoles::default();
    for role in names {
        match role.as_str() {
            "manager" => roles.manager = true,
            "meta" => roles.meta = true,
            "storage" => roles.storage = true,
            "agent" => roles.agent = true,
            other => {
                let text = format!("{other} is no role");
                return Err(Failure::new(USAGE, text)
                    .hint("roles are manager, meta, storage, agent")
                    .into());
            }
        }
    }
    Ok(roles)
}

/// Refuses a name that looks like a serial number, or that a holder of another kind has: `zonal key
/// revoke` takes names and serial numbers.
fn refuse_taken(kind: &SubjectKind, keyring: &Keyring) -> anyhow::Result<()> {
    let (name, own) = match kind {
        SubjectKind::Client { name, .. } => (name, CredentialKind::Client),
        SubjectKind::Admin { name } => (name, CredentialKind::Admin),
        SubjectKind::Server { .. } => return Ok(()),
    };
    if serial_in(name).is_some() {
        let text = format!("{name} looks like a serial number");
        let failure = Failure::new(USAGE, text);
        return Err(failure.hint("name it otherwise").into());
    }
    let is_commands = own == CredentialKind::Client && name == COMMANDS;
    // A damaged list prevents no new credential.
    let issued = keyring.issued().unwrap_or_default();
    let other = issued
        .iter()
        .find(|line| line.name() == *name && line.kind() != Some(own));
    let taken = other.and_then(IssuedLine::kind);
    if let Some(kind) = taken.or(is_commands.then_some(CredentialKind::Admin)) {
        let text = format!("{name} is the name of {kind} of this cell");
        let failure = Failure::new(USAGE, text);
        return Err(failure.hint("name it otherwise").into());
    }
    Ok(())
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Serial numbers that the manager has revoked; `None` if it cannot be reached.
fn revoked_serials(cell: &CellArgs) -> Option<BTreeSet<Serial>> {
    let cell = cell.open().ok()?;
    match ask(&cell, &ManagerRequest::GetRevoked { have: 0 }).ok()? {
        ManagerReply::Revoked { serials, .. } => Some(serials.into_iter().map(Serial).collect()),
        _ => None,
    }
}

pub(super) fn ask(cell: &CellHandle, request: &ManagerRequest) -> anyhow::Result<ManagerReply> {
    match cell.ask_manager(request)? {
        ManagerReply::Failed { detail, .. } => {
            Err(Failure::new(REFUSED, format!("the manager refuses: {detail}")).into())
        }
        reply => Ok(reply),
    }
}

fn list(cell: &CellArgs, authority: &AuthorityArgs, as_json: bool) -> anyhow::Result<()> {
    let keyring = authority.open(cell)?;
    let (issued, now) = (keyring.issued()?, now());
    let revoked = revoked_serials(cell);
    let state = |line: &IssuedLine| {
        let is_revoked = line.number().zip(revoked.as_ref());
        match is_revoked.map(|(serial, revoked)| revoked.contains(&serial)) {
            Some(true) => "revoked",
            _ if line.expires <= now => "expired",
            Some(false) => "valid",
            None => "not known",
        }
    };
    let days_left = |line: &IssuedLine| line.expires.saturating_sub(now) / (24 * 3600);
    if as_json {
        let list: Vec<_> = issued
            .iter()
            .map(|line| {
                json!({
                    "serial": line.serial,
                    "subject": line.subject,
                    "expires": line.expires,
                    "state": state(line),
                })
            })
            .collect();
        let cell = keyring.cell().to_string();
        console::json(format_args!(
            "{:#}",
            json!({ "cell": cell, "credentials": list })
        ));
        return Ok(());
    }
    let header = ["SERIAL", "NAME", "STATE", "DAYS LEFT", "SUBJECT"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(issued.iter().map(|line| {
        vec![
            line.serial.clone(),
            line.name(),
            state(line).to_owned(),
            days_left(line).to_string(),
            line.subject.clone(),
        ]
    }));
    console::table(&rows);
    if revoked.is_none() {
        console::note("zonal: the manager does not answer, so revocations are unknown");
    }
    Ok(())
}

fn show(file: &Path, as_json: bool) -> anyhow::Result<()> {
    let pem = trusted_paths::secret(file, CREDENTIAL_BYTES_MAX as u64).map_err(|error| {
        let failure = Failure::new(
            if error.is_missing() {
                NOT_FOUND
            } else {
                REFUSED
            },
            error.to_string(),
        );
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    let bad = |error| Failure::new(CONFIG, format!("{}: {error}", file.display()));
    let credential = Credential::from_pem(&pem);
    let credential = credential.map_err(|error| bad(error).hint(DAMAGED_HINT))?;
    let problem = credential.check_now().err().map(|error| error.to_string());
    let (subject, serial) = (credential.subject().to_string(), shown(credential.serial()));
    if as_json {
        let value = json!({ "subject": subject, "serial": serial, "valid": problem.is_none() });
        console::json(format_args!("{value:#}"));
    } else {
        console::line(format_args!("{subject}"));
        console::line(format_args!("serial {serial}"));
    }
    match problem {
        Some(problem) => Err(Failure::new(CONFIG, problem)
            .hint("`zonal key create` makes a new one; is this machine's clock right?")
            .into()),
        None => Ok(()),
    }
}
