//! The subject of a credential: its holder's identity in a cell, as a URI in the certificate's
//! subjectAltName (RFC 5280, 4.2.1.6).
//!
//! ```text
//! zonal://CELL/server/NODE[,NODE]...?roles=manager,meta,storage,agent
//! zonal://CELL/admin/NAME
//! zonal://CELL/client/NAME?path=/projects/a&read-only&uids=1000-1999&squash-root
//! ```
//! *Invariants*:
//! 1. A subject has one form only: parsing and printing gives the same text.
//! 2. An unknown part is refused, so that no restriction is overlooked.

use std::fmt::{self, Write};

use zonal_types::{CellId, Name, NodeId, Scope};

use crate::identity::Role;

/// Longest name of a client or an admin, in bytes.
pub const SUBJECT_NAME_BYTES_MAX: usize = 64;
/// Longest subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 4096;

/// Roles that a server's certificate allows. A node has at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerRoles {
    /// Manager: keeps the zone map and the root's shard.
    pub manager: bool,
    /// Meta: has a shard.
    pub meta: bool,
    /// Storage: has targets.
    pub storage: bool,
    /// Agent: runs commands of jobs.
    pub agent: bool,
}

impl ServerRoles {
    /// True where these roles include all of `needed`.
    #[must_use]
    pub fn include(self, needed: Self) -> bool {
        (self.manager || !needed.manager)
            && (self.meta || !needed.meta)
            && (self.storage || !needed.storage)
            && (self.agent || !needed.agent)
    }
}

/// The kinds of subjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectKind {
    /// The server of one or more nodes.
    Server {
        /// The nodes, in rising order.
        nodes: Vec<NodeId>,
        /// Their roles.
        roles: ServerRoles,
    },
    /// An administrator's commands.
    Admin {
        /// Name for lists and logs.
        name: String,
    },
    /// A client.
    Client {
        /// Name for lists and logs.
        name: String,
        /// Its restrictions.
        scope: Scope,
    },
}

/// Identity of a credential's holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The cell.
    pub cell: CellId,
    /// The holder.
    pub kind: SubjectKind,
}

/// Why a text is not a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the certificate's subject is not one of this program: {0}")]
pub struct SubjectError(&'static str);

impl Subject {
    /// Parses the URI.
    ///
    /// # Errors
    /// Where a part is missing, unknown, repeated, or out of range.
    pub fn parse(text: &str) -> Result<Self, SubjectError> {
        let bad = SubjectError;
        if text.len() > SUBJECT_BYTES_MAX {
            return Err(bad("too long"));
        }
        let rest = text.strip_prefix("zonal://").ok_or(bad("another scheme"))?;
        let (place, query) = rest
            .split_once('?')
            .map_or((rest, None), |(p, q)| (p, Some(q)));
        let mut parts = place.split('/');
        let (Some(cell), Some(kind), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad("not CELL/KIND/NAME"));
        };
        let cell: CellId = cell.parse().map_err(|_error| bad("no cell"))?;
        let kind = match kind {
            "server" => SubjectKind::Server {
                nodes: parse_nodes(name)?,
                roles: parse_roles(query)?,
            },
            "admin" if query.is_none() => SubjectKind::Admin {
                name: checked_name(name)?,
            },
            "client" => SubjectKind::Client {
                name: checked_name(name)?,
                scope: parse_scope(query)?,
            },
            _ => return Err(bad("an unknown kind")),
        };
        let subject = Self { cell, kind };
        if subject.to_string() != text {
            return Err(bad("not in its one form"));
        }
        Ok(subject)
    }

    /// True where the holder may present itself as `role` and node `node` on a connection.
    #[must_use]
    pub fn may_be(&self, role: Role, node: NodeId) -> bool {
        match &self.kind {
            SubjectKind::Server { nodes, .. } => role == Role::Server && nodes.contains(&node),
            SubjectKind::Admin { .. } => role != Role::Server && node == NodeId(0),
            SubjectKind::Client { .. } => role == Role::Client && node == NodeId(0),
        }
    }

    /// The scope of a client, if it has one.
    #[must_use]
    pub fn scope(&self) -> Option<&Scope> {
        match &self.kind {
            SubjectKind::Client { scope, .. } if !scope.is_whole() => Some(scope),
            _ => None,
        }
    }

    /// Roles of a server.
    #[must_use]
    pub fn roles(&self) -> ServerRoles {
        match &self.kind {
            SubjectKind::Server { roles, .. } => *roles,
            _ => ServerRoles::default(),
        }
    }
}

/// Checks the name of a client or an admin: letters, digits, `-`, `_`, `.`; the first is a letter
/// or a digit.
///
/// # Errors
/// Where it has other characters, or is longer than [`SUBJECT_NAME_BYTES_MAX`].
pub fn check_name(name: &str) -> Result<(), SubjectError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins || name.len() > SUBJECT_NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return Err(SubjectError(
            "a name has at most 64 letters, digits, -, _ and ., and begins with a letter or a digit",
        ));
    }
    Ok(())
}

fn checked_name(name: &str) -> Result<String, SubjectError> {
    check_name(name).map(|()| name.to_owned())
}

fn parse_nodes(text: &str) -> Result<Vec<NodeId>, SubjectError> {
    let bad = SubjectError("no rising numbers of nodes");
    let mut nodes = Vec::new();
    for number in text.split(',') {
        let node = number.parse().map_err(|_error| bad)?;
        if node == 0 || nodes.last().is_some_and(|NodeId(last)| *last >= node) {
            return Err(bad);
        }
        nodes.push(NodeId(node));
    }
    Ok(nodes)
}

fn parse_roles(query: Option<&str>) -> Result<ServerRoles, SubjectError> {
    let roles = query
        .and_then(|query| query.strip_prefix("roles="))
        .ok_or(SubjectError("no roles"))?;
    let mut found = ServerRoles::default();
    for role in roles.split(',') {
        match role {
            "manager" => found.manager = true,
            "meta" => found.meta = true,
            "storage" => found.storage = true,
            "agent" => found.agent = true,
            _ => return Err(SubjectError("an unknown role")),
        }
    }
    Ok(found)
}

fn parse_scope(query: Option<&str>) -> Result<Scope, SubjectError> {
    let mut scope = Scope::default();
    let Some(query) = query else {
        return Ok(scope);
    };
    for part in query.split('&') {
        match part.split_once('=').unwrap_or((part, "")) {
            ("path", path) => scope.path = parse_path(path)?,
            ("read-only", "") => scope.is_read_only = true,
            ("uids", range) => scope.uids = Some(parse_uids(range)?),
            ("squash-root", "") => scope.squashes_root = true,
            _ => return Err(SubjectError("an unknown restriction")),
        }
    }
    Ok(scope)
}

fn parse_path(path: &str) -> Result<Vec<Name>, SubjectError> {
    let bad = SubjectError("a path that no directory has");
    let names = path.strip_prefix('/').ok_or(bad)?.split('/');
    names
        .map(|name| Name::new(&decoded(name).ok_or(bad)?).map_err(|_error| bad))
        .collect()
}

fn parse_uids(range: &str) -> Result<(u32, u32), SubjectError> {
    let bad = SubjectError("no range of user ids");
    let (first, last) = range.split_once('-').ok_or(bad)?;
    let first = first.parse().map_err(|_error| bad)?;
    let last = last.parse().map_err(|_error| bad)?;
    if first > last {
        return Err(bad);
    }
    Ok((first, last))
}

/// Decodes percent-encoding (RFC 3986, 2.1).
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let high = digit(bytes.next()?)?;
            let low = digit(bytes.next()?)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    Some(out)
}

fn encode(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            f.write_char(char::from(*byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

impl fmt::Display for ServerRoles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.manager, "manager"),
            (self.meta, "meta"),
            (self.storage, "storage"),
            (self.agent, "agent"),
        ];
        let own: Vec<&str> = all
            .iter()
            .filter(|role| role.0)
            .map(|role| role.1)
            .collect();
        f.write_str(&own.join(","))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zonal://{}/", self.cell)?;
        match &self.kind {
            SubjectKind::Server { nodes, roles } => {
                let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
                write!(f, "server/{}?roles={roles}", numbers.join(","))
            }
            SubjectKind::Admin { name } => write!(f, "admin/{name}"),
            SubjectKind::Client { name, scope } => {
                write!(f, "client/{name}")?;
                write_scope(f, scope)
            }
        }
    }
}

fn write_scope(f: &mut fmt::Formatter<'_>, scope: &Scope) -> fmt::Result {
    let mut separator = '?';
    let mut next = |f: &mut fmt::Formatter<'_>| {
        let now = std::mem::replace(&mut separator, '&');
        f.write_char(now)
    };
    if !scope.path.is_empty() {
        next(f)?;
        f.write_str("path=")?;
        for name in &scope.path {
            f.write_char('/')?;
            encode(f, name.as_bytes())?;
        }
    }
    if scope.is_read_only {
        next(f)?;
        f.write_str("read-only")?;
    }
    if let Some((first, last)) = scope.uids {
        next(f)?;
        write!(f, "uids={first}-{last}")?;
    }
    if scope.squashes_root {
        next(f)?;
        f.write_str("squash-root")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: &str = "000102030405060708090a0b0c0d0e0f";

    fn parse(rest: &str) -> Result<Subject, SubjectError> {
        Subject::parse(&format!("zonal://{CELL}/{rest}"))
    }

    #[test]
    fn subjects_round_trip() {
        for text in [
            "server/7?roles=manager,meta",
            "server/1?roles=storage",
            "server/1?roles=storage,agent",
            "server/9?roles=agent",
            "server/1,2,30?roles=manager,meta,storage",
            "admin/operator",
            "client/ci",
            "client/a.b-c_1?path=/projects/a%20b&read-only&uids=1000-1999&squash-root",
            "client/x?uids=0-4294967295",
        ] {
            let subject = parse(text).unwrap();
            assert_eq!(subject.to_string(), format!("zonal://{CELL}/{text}"));
        }
    }

    #[test]
    fn unknown_parts_of_a_subject_are_refused() {
        for text in [
            "server/0?roles=meta",
            "server/07?roles=meta",
            "server/?roles=meta",
            "server/2,1?roles=meta",
            "server/1,1?roles=meta",
            "server/1,?roles=meta",
            "server/1",
            "server/1?roles=",
            "server/1?roles=meta,manager",
            "server/1?roles=meta&x",
            "admin/",
            "admin/a?read-only",
            "admin/a b",
            "admin/-a",
            "client/a?",
            "client/a?path=",
            "client/a?path=/",
            "client/a?path=/..",
            "client/a?path=/a%2fb",
            "client/a?path=/%zz",
            "client/a?path=x",
            "client/a?read-only=1",
            "client/a?read-only&read-only",
            "client/a?read-only&path=/a",
            "client/a?uids=2-1",
            "client/a?uids=1",
            "client/a?new-restriction",
            "client/a/b",
            "root/a",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(Subject::parse("https://example.org/").is_err());
        let long = "x".repeat(65);
        assert!(parse(&format!("client/{long}")).is_err());
    }

    #[test]
    fn a_holder_claims_its_own_role_and_node_only() {
        let server = parse("server/7,9?roles=storage").unwrap();
        assert!(server.may_be(Role::Server, NodeId(7)) && server.may_be(Role::Server, NodeId(9)));
        assert!(!server.may_be(Role::Server, NodeId(8)));
        assert!(!server.may_be(Role::Client, NodeId(0)) && !server.may_be(Role::Tool, NodeId(7)));
        let admin = parse("admin/a").unwrap();
        assert!(admin.may_be(Role::Tool, NodeId(0)) && admin.may_be(Role::Client, NodeId(0)));
        assert!(!admin.may_be(Role::Server, NodeId(1)) && !admin.may_be(Role::Tool, NodeId(1)));
        let client = parse("client/a?read-only").unwrap();
        assert!(client.may_be(Role::Client, NodeId(0)));
        assert!(!client.may_be(Role::Tool, NodeId(0)) && !client.may_be(Role::Server, NodeId(1)));
        assert!(client.scope().is_some() && admin.scope().is_none());
    }
}
