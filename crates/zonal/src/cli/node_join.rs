//! `zonal node join`: makes a node of this machine with a join token.
//!
//! Folder, address and room on the disk are tried before the token is used up.

use super::token::JoinGrant;
use crate::console;
use crate::exit::{FAILED, Failure, IN_USE, REFUSED, UNREACHABLE, USAGE};
use anyhow::Context;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zonal_disk::trusted_paths::{self, Folder};
use zonal_net::{ClaimOutcome, JoinToken};
use zonal_server::NodeConfig;
use zonal_server::server::MissingStores;
use zonal_server::units::ByteSize;
use zonal_types::{Codec, TargetId};

/// Time for one manager to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ports that are tried where none is named.
const PORTS: std::ops::Range<u16> = 7100..7200;
/// Least capacity that is chosen without being named.
const CAPACITY_MIN: u64 = 1 << 30;

/// Make a node of this machine with a token (`zonal token create`)
///
/// Asks a manager that the token names for the node's number and credential, writes DIR/node.toml
/// and DIR/node.key, and formats the node's stores. The token is used up then.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("secret").required(true))]
pub struct JoinArgs {
    /// The token; other users of this machine may see the command line
    #[arg(long, value_name = "TOKEN", group = "secret")]
    token: Option<JoinToken>,
    /// File with the token
    #[arg(long, value_name = "FILE", group = "secret")]
    token_file: Option<PathBuf>,
    /// Folder of the node, empty or missing [default: /var/lib/zonal/node for root, ~/.zonal/node
    /// for others]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Address that the server listens on: IP:PORT, or IP for a free port [default: the address by
    /// which this machine reaches the manager]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Zone: number or name; a new name is a new zone [default: the token's]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Capacity of the target [default: nine tenths of the room on the disk of DIR]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,
    /// Take a free place among the replicas of the zone's metadata
    #[arg(long)]
    replicated: bool,
    /// Serve at once, until SIGTERM
    #[arg(long)]
    start: bool,
}

impl JoinArgs {
    pub fn run(self) -> anyhow::Result<()> {
        let token = self.token()?;
        let dir = self.dir.clone().unwrap_or_else(default_dir);
        let is_new = !dir.exists();
        let joined = self.join(&token, &dir);
        if joined.is_err() && is_new {
            // Only where it is empty: nothing is known of this node.
            std::fs::remove_dir(&dir).ok();
        }
        let (configs, told) = joined?;
        console::line(format_args!("{told}"));
        if self.start {
            return Ok(zonal_server::server::run(&configs, MissingStores::Refuse)?);
        }
        console::line(format_args!(
            "next: zonal server --config {}",
            console::path(&dir.join("node.toml"))
        ));
        Ok(())
    }

    /// Joins with the token, and makes the node in `dir`. Returns its configs, and a line for the
    /// terminal.
    fn join(&self, token: &JoinToken, dir: &Path) -> anyhow::Result<(Vec<NodeConfig>, String)> {
        let folder = trusted_paths::make(dir)?;
        let mut entries = std::fs::read_dir(dir).with_context(|| dir.display().to_string())?;
        if entries.next().is_some() {
            let text = format!("{} is not empty", dir.display());
            let failure = Failure::new(IN_USE, text);
            return Err(failure.hint("choose another folder with --dir").into());
        }
        let capacity = self.capacity(dir)?;
        let listen = self.address(token)?;
        let grant = claim(token)?;
        let config = self.config(&grant, listen, capacity);
        let path = write(&folder, &grant, &config)
            .with_context(|| format!("the token is used up; {} is not complete", dir.display()))?;
        let configs = NodeConfig::load(&path).map_err(zonal_server::ServerError::from)?;
        for config in &configs {
            zonal_server::server::format(config)?;
        }
        let told = format!(
            "node {} of cell {} at {listen}: {}",
            grant.node,
            grant.cell,
            console::path(&path)
        );
        Ok((configs, told))
    }

    fn token(&self) -> anyhow::Result<JoinToken> {
        if let Some(token) = &self.token {
            return Ok(token.clone());
        }
        let path = self.token_file.as_deref().unwrap_or(Path::new(""));
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let token = text.trim().parse::<JoinToken>();
        Ok(token.map_err(|error| Failure::new(USAGE, format!("{}: {error}", path.display())))?)
    }

    fn capacity(&self, dir: &Path) -> anyhow::Result<u64> {
        if let Some(capacity) = self.capacity {
            return Ok(capacity.0);
        }
        let space = rustix::fs::statvfs(dir).with_context(|| dir.display().to_string())?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        Ok((free / 10 * 9).max(CAPACITY_MIN) & !((1 << 20) - 1))
    }

    /// The address to listen on, which was free a moment ago.
    fn address(&self, token: &JoinToken) -> anyhow::Result<SocketAddr> {
        let text = self.listen.as_deref();
        let fixed = text.and_then(|text| text.parse::<SocketAddr>().ok());
        if let Some(address) = fixed.filter(|address| address.port() != 0) {
            let free = TcpListener::bind(address).map(drop);
            free.map_err(|error| Failure::new(IN_USE, format!("{address}: {error}")))?;
            return Ok(address);
        }
        let ip = match text.map(|text| (text, text.parse::<IpAddr>())) {
            None => own_ip(token)?,
            Some((_, Ok(ip))) => ip,
            Some((text, Err(_))) => {
                let failure = Failure::new(USAGE, format!("--listen {text} is no address"));
                return Err(failure.hint("IP:PORT or IP").into());
            }
        };
        let mut addresses = PORTS.map(|port| SocketAddr::new(ip, port));
        let free = addresses.find(|address| TcpListener::bind(address).is_ok());
        free.ok_or_else(|| {
            let failure = Failure::new(IN_USE, format!("{ip} has no free port for a server"));
            failure
                .hint("name an address of this machine with --listen IP:PORT")
                .into()
        })
    }

    fn config(&self, grant: &JoinGrant, listen: SocketAddr, capacity: u64) -> String {
        let zone = self.zone.as_deref().unwrap_or(&grant.zone);
        let managers = toml::Value::from(grant.managers.clone());
        let mut text = format!(
            "# Written by `zonal node join`.\ncell = \"{}\"\nnode = {}\nlisten = \"{listen}\"\n\
             manager_addresses = {managers}\nkey_file = \"node.key\"\n",
            grant.cell, grant.node
        );
        // Writing to a String cannot fail.
        let _ = match zone.parse::<u16>() {
            _ if zone.is_empty() => Ok(()),
            Ok(number) => write!(text, "\n[zone]\nid = {number}\n"),
            Err(_name) => writeln!(text, "rack = {}", toml::Value::from(zone)),
        };
        for role in &grant.roles {
            let _ = match role.as_str() {
                "storage" if grant.target != TargetId(0) => {
                    let (target, capacity) = (grant.target, ByteSize(capacity));
                    write!(
                        text,
                        "\n[storage]\ntarget = {target}\ncapacity = \"{capacity}\"\n"
                    )
                }
                "meta" if self.replicated => write!(text, "\n[meta]\nreplicated = true\n"),
                role => write!(text, "\n[{role}]\n"),
            };
        }
        text
    }
}

fn default_dir() -> PathBuf {
    match std::env::var_os("HOME") {
        Some(home) if !rustix::process::geteuid().is_root() => {
            PathBuf::from(home).join(".zonal/node")
        }
        _ => PathBuf::from("/var/lib/zonal/node"),
    }
}

/// The address by which this machine reaches a manager. Connecting a UDP socket sends nothing.
fn own_ip(token: &JoinToken) -> anyhow::Result<IpAddr> {
    let of = |manager: SocketAddr| {
        let any = match manager.is_ipv4() {
            true => "0.0.0.0:0",
            false => "[::]:0",
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(manager)?;
        Ok::<IpAddr, std::io::Error>(socket.local_addr()?.ip())
    };
    let mut found = token.addresses().into_iter().map(of);
    let found = found.find_map(Result::ok);
    found.ok_or_else(|| {
        let failure = Failure::new(UNREACHABLE, "there is no route to a manager of the token");
        failure.hint("name the address with --listen").into()
    })
}

/// Claims the grant from the first manager that answers.
fn claim(token: &JoinToken) -> anyhow::Result<JoinGrant> {
    let mut last = Failure::new(UNREACHABLE, "the token names no manager");
    for manager in token.addresses() {
        let outcome = match token.claim_from(manager, PATIENCE) {
            Ok(outcome) => outcome,
            Err(error) => {
                last = Failure::new(UNREACHABLE, error.to_string());
                continue;
            }
        };
        let refused = |text: &str| {
            let failure = Failure::new(REFUSED, text);
            failure
                .hint("`zonal token create` makes another one")
                .into()
        };
        let sealed = match outcome {
            ClaimOutcome::Sealed { sealed } => sealed,
            ClaimOutcome::NotReady => {
                last = Failure::new(FAILED, format!("{manager} cannot answer now"));
                continue;
            }
            ClaimOutcome::Unknown => return Err(refused("the cell does not know this token")),
            ClaimOutcome::Used => return Err(refused("this token was used already")),
            ClaimOutcome::Expired => return Err(refused("this token has expired")),
        };
        let bytes = token.unseal(&sealed.0);
        let grant = bytes.and_then(|bytes| JoinGrant::from_bytes(&bytes).ok());
        return grant.ok_or_else(|| refused("the sealed credential is damaged"));
    }
    Err(last
        .hint("is a manager up, and reachable from here?")
        .into())
}

/// Writes credential and config; returns the config's path.
fn write(folder: &Folder, grant: &JoinGrant, config: &str) -> anyhow::Result<PathBuf> {
    use std::io::Write as _;
    let mut key = folder.create("node.key", 0o600)?;
    key.write_all(grant.credential.as_bytes())?;
    key.sync_all()?;
    folder.replace("node.toml", config.as_bytes(), 0o600)?;
    Ok(folder.path().join("node.toml"))
}
