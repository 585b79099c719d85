//! `zonal token`: join tokens, each for one new node.
//!
//! The command has the authority and issues the node's credential itself. It gives the manager the
//! credential sealed under the token's secret, which the manager does not have
//! (docs/rfcs/2026-11-26-tokens.md).

use super::key::{AuthorityArgs, ask, roles_of};
use crate::cell::connection::{CellArgs, CellHandle};
use crate::cell::keyring::{IssuedLine, Keyring};
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND, USAGE};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};
use zonal_basics::{from_hex, to_hex};
use zonal_net::join_token::proof_hash;
use zonal_net::{JoinToken, ServerRoles, Subject, SubjectKind};
use zonal_server::units::Millis;
use zonal_types::{Blob, CellId, Codec, NodeId, TargetId, codec_struct};
use zonal_wire::{JoinTokenStatus, JoinTokenTerms, ManagerReply, ManagerRequest};
use zonal_zonemap::ZoneMap;

/// Shortest and longest term of a token.
const TERM: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(7 * 24 * 3600);

codec_struct! {
    /// Everything that a new node needs, as it is sealed.
    pub struct JoinGrant {
        /// The cell.
        cell: CellId,
        /// The node.
        node: NodeId,
        /// Its target; 0: none.
        target: TargetId,
        /// Its roles.
        roles: Vec<String>,
        /// Its zone: a number or a name; empty: by its address.
        zone: String,
        /// Addresses of the managers.
        managers: Vec<String>,
        /// Its credential's file.
        credential: String,
    }
}

/// Make, list and revoke join tokens
///
/// With a token a new machine joins the cell by `zonal node join --token T`. It gets the node's
/// number, its credential and the managers' addresses. A token works once.
#[derive(Debug, clap::Subcommand)]
pub enum TokenCommand {
    /// Make a token for one new node; prints the token alone
    ///
    /// Run it where the authority is. Keep the token secret until it is used: its holder becomes
    /// this node.
    Create(CreateToken),
    /// List tokens: node, roles, end of the term, state
    Ls {
        #[command(flatten)]
        cell: CellArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token that was not used yet
    ///
    /// To end a node that has used its token, remove the node and revoke its credential.
    Revoke {
        #[command(flatten)]
        cell: CellArgs,
        /// The token's id, as `zonal token ls` shows it
        id: String,
    },
}

#[derive(Debug, clap::Args)]
pub struct CreateToken {
    #[command(flatten)]
    cell: CellArgs,
    #[command(flatten)]
    authority: AuthorityArgs,
    /// Roles of the node: meta, storage, agent
    #[arg(
        long,
        value_name = "ROLE,...",
        value_delimiter = ',',
        default_value = "storage"
    )]
    roles: Vec<String>,
    /// Zone of the node: number or name; a new name is a new zone [default: by its address]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Time in which the token must be used, from 1 min to 7 days
    #[arg(long, value_name = "TIME", default_value = "1 h")]
    ttl: Millis,
    /// Validity of the node's credential in days
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=7300))]
    days: u64,
    /// The node's number [default: the lowest above all that were given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    node: Option<u32>,
}

impl TokenCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Create(create) => create.run(),
            Self::Ls { cell, json } => list(&cell.open()?, json),
            Self::Revoke { cell, id } => revoke(&cell.open()?, &id),
        }
    }
}

fn tokens(cell: &CellHandle, request: &ManagerRequest) -> anyhow::Result<Vec<JoinTokenStatus>> {
    match ask(cell, request)? {
        ManagerReply::JoinTokens { tokens } => Ok(tokens),
        other => {
            let text = format!("the manager answers {}", other.name());
            Err(Failure::new(FAILED, text).into())
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Numbers for a new node and its target: above those of the map, of all tokens and of all
/// credentials. Slots name targets that were drained and removed.
fn free_numbers(
    map: &ZoneMap,
    tokens: &[JoinTokenStatus],
    issued: &[IssuedLine],
) -> (NodeId, TargetId) {
    let subjects = issued
        .iter()
        .filter_map(|line| Subject::parse(&line.subject).ok());
    let certified = subjects.flat_map(|subject| match subject.kind {
        SubjectKind::Server { nodes, .. } => nodes,
        _ => Vec::new(),
    });
    let nodes = map.nodes.iter().map(|node| node.id);
    let promised = tokens.iter().map(|token| token.terms.node);
    let node = nodes.chain(promised).chain(certified).max();
    let targets = map.targets.iter().map(|target| target.id);
    let slots = map.sets.iter().flat_map(|set| &set.slots);
    let in_slots = slots.map(|slot| slot.target);
    let promised = tokens.iter().map(|token| token.terms.target);
    let target = targets.chain(in_slots).chain(promised).max();
    (
        NodeId(node.map_or(1, |node| node.0.saturating_add(1))),
        TargetId(target.map_or(1, |target| target.0.saturating_add(1))),
    )
}

impl CreateToken {
    fn run(self) -> anyhow::Result<()> {
        let roles = self.checked_roles()?;
        let ttl = self.ttl.duration();
        if !TERM.contains(&ttl) {
            let failure = Failure::new(USAGE, "--ttl is from 1 min to 7 days");
            return Err(failure.hint("such as --ttl '1 h'").into());
        }
        let keyring = self.authority.open(&self.cell)?;
        let cell = self.cell.open()?;
        let map = cell.map()?;
        let known = tokens(&cell, &ManagerRequest::JoinTokens)?;
        let (free, target) = free_numbers(&map, &known, &keyring.issued().unwrap_or_default());
        let node = self.node.map_or(free, NodeId);
        let target = match roles.storage {
            true => target,
            false => TargetId(0),
        };
        let managers: Vec<String> = match cell.folder {
            // The address by which this machine reaches it.
            None => cell.manager_list(),
            Some(_) => {
                let nodes = map.managers.iter().filter_map(|node| map.node(*node));
                nodes.map(|node| node.address.clone()).collect()
            }
        };
        let token = JoinToken::make(map.cell, &keyring.certificate()?, managers.clone())?;
        let grant = JoinGrant {
            cell: map.cell,
            node,
            target,
            roles: self.roles.clone(),
            zone: self.zone.clone().unwrap_or_default(),
            managers,
            credential: self.credential(&keyring, node, roles)?,
        };
        let sealed = token.seal(&grant.to_bytes());
        let sealed = sealed.ok_or_else(|| Failure::new(FAILED, "the token cannot be sealed"))?;
        let claim = token.claim();
        let terms = JoinTokenTerms {
            id: claim.id,
            expires: now() + ttl.as_secs(),
            node,
            target,
            roles: self.roles.join(","),
        };
        let request = ManagerRequest::AddJoinToken {
            terms,
            proof: proof_hash(&claim.proof),
            sealed: Blob(sealed),
        };
        tokens(&cell, &request)?;
        console::note(format_args!(
            "zonal: token {} is for node {node}; on its machine: zonal node join --token ...",
            to_hex(&claim.id)
        ));
        console::line(token.text());
        Ok(())
    }

    fn checked_roles(&self) -> anyhow::Result<ServerRoles> {
        let roles = roles_of(&self.roles)?;
        if roles.manager {
            let failure = Failure::new(USAGE, "a token gives no manager");
            return Err(failure.hint("roles are meta, storage, agent").into());
        }
        Ok(roles)
    }

    fn credential(
        &self,
        keyring: &Keyring,
        node: NodeId,
        roles: ServerRoles,
    ) -> anyhow::Result<String> {
        let nodes = vec![node];
        let term = Duration::from_secs(self.days * 24 * 3600);
        keyring.issue_text(SubjectKind::Server { nodes, roles }, term)
    }
}

fn state(token: &JoinTokenStatus, now: u64) -> &'static str {
    match token.is_used {
        true => "used",
        false if token.terms.expires <= now => "expired",
        false => "valid",
    }
}

fn list(cell: &CellHandle, as_json: bool) -> anyhow::Result<()> {
    let (known, now) = (tokens(cell, &ManagerRequest::JoinTokens)?, now());
    if as_json {
        let to_json = |token: &JoinTokenStatus| {
            json!({
                "id": to_hex(&token.terms.id),
                "node": token.terms.node.0,
                "target": Some(token.terms.target.0).filter(|target| *target != 0),
                "roles": token.terms.roles.split(',').collect::<Vec<_>>(),
                "expires": token.terms.expires,
                "state": state(token, now),
            })
        };
        let shown: Vec<Value> = known.iter().map(to_json).collect();
        let shown = json!({ "tokens": shown });
        console::json(format_args!("{shown:#}"));
        return Ok(());
    }
    let header = ["TOKEN", "NODE", "ROLES", "STATE", "MINUTES LEFT"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(known.iter().map(|token| {
        vec![
            to_hex(&token.terms.id),
            token.terms.node.to_string(),
            token.terms.roles.clone(),
            state(token, now).to_owned(),
            (token.terms.expires.saturating_sub(now) / 60).to_string(),
        ]
    }));
    console::table(&rows);
    Ok(())
}

fn revoke(cell: &CellHandle, id: &str) -> anyhow::Result<()> {
    let bytes = from_hex(id).ok();
    let bytes = bytes.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| {
        let failure = Failure::new(USAGE, format!("{id} is no id of a token"));
        failure.hint("`zonal token ls` shows the ids")
    })?;
    let removed = tokens(cell, &ManagerRequest::RemoveJoinToken { id: bytes })?;
    let Some(token) = removed.first() else {
        let failure = Failure::new(NOT_FOUND, format!("there is no token {id}"));
        return Err(failure.hint("`zonal token ls` shows the tokens").into());
    };
    let node = token.terms.node;
    match token.is_used {
        true => console::line(format_args!(
            "token {id} was used by node {node}; to end the node: zonal node remove {node}, zonal key revoke \"node {node}\""
        )),
        false => console::line(format_args!("token {id} for node {node} is revoked")),
    }
    Ok(())
}
