//! Scope of a client's credential: the part of the cell it covers, and the users it may speak for.
//!
//! *Invariants*: (1) a path is absolute, and each of its names is a valid [`Name`]; (2) an empty
//! scope covers everything.

use crate::ids::{ClientId, Incarnation};
use crate::name::Name;

/// Bytes of a scope's path.
const PATH_BYTES_MAX: usize = 1024;
/// Names of a scope's path.
const PATH_NAMES_MAX: usize = 32;

/// Restrictions of a client's credential. The default covers everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// Names from the root to the directory that the client sees as its root. Empty: the cell's
    /// root.
    pub path: Vec<Name>,
    /// The client may not change anything.
    pub is_read_only: bool,
    /// User ids that the client may speak for, first and last. `None`: all.
    pub uids: Option<(u32, u32)>,
    /// User id 0 counts as nobody.
    pub squashes_root: bool,
}

/// The proved identity of a connection; it owns the sessions that the connection opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The subject of the certificate.
    pub subject: String,
    /// The client's scope; `None`: no restriction.
    pub scope: Option<Scope>,
}

/// A subject as a number: 0 where the cell has no authority and nobody proves anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HolderNumber(pub u64);

impl HolderNumber {
    /// The number of a subject (FNV-1a). Stores keep it, so the function must never change.
    #[must_use]
    pub fn of(subject: Option<&str>) -> Self {
        let Some(subject) = subject else {
            return Self(0);
        };
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Self(subject.bytes().fold(0xcbf2_9ce4_8422_2325, mix).max(1))
    }
}

crate::codec_struct! {
    /// A fence: incarnations of a client that are over.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Fence {
        /// The client.
        client: ClientId,
        /// The holder that opened its session; 0: any.
        holder: HolderNumber,
        /// The lowest incarnation that is served.
        lowest: Incarnation,
    }
}

impl crate::codec::Codec for HolderNumber {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(from: &mut crate::codec::Reader<'_>) -> Result<Self, crate::codec::CodecError> {
        Ok(Self(u64::get(from)?))
    }
}

/// Why a path cannot be a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeError {
    /// The path does not begin with `/`.
    Relative,
    /// The path is too long, too deep, or has an invalid name.
    Path,
}

impl std::fmt::Display for ScopeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Relative => "the path of a scope is absolute, such as /projects/a",
            Self::Path => {
                "the path of a scope has at most 32 names and 1024 bytes, none of them empty, . or .."
            }
        })
    }
}

impl std::error::Error for ScopeError {}

impl Scope {
    /// True where the scope covers everything.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        *self == Self::default()
    }

    /// True where the client may not speak for all users: its report of open files is no proof that
    /// a user might open them.
    #[must_use]
    pub fn limits_users(&self) -> bool {
        self.uids.is_some() || self.squashes_root
    }

    /// Parses a path into names.
    ///
    /// # Errors
    /// See [`ScopeError`].
    pub fn parse_path(path: &str) -> Result<Vec<Name>, ScopeError> {
        let rest = path.strip_prefix('/').ok_or(ScopeError::Relative)?;
        if rest.is_empty() {
            return Ok(Vec::new());
        }
        if path.len() > PATH_BYTES_MAX || rest.split('/').count() > PATH_NAMES_MAX {
            return Err(ScopeError::Path);
        }
        rest.split('/')
            .map(|name| Name::new(name.as_bytes()).map_err(|_error| ScopeError::Path))
            .collect()
    }

    /// True where the client may speak for this user id.
    #[must_use]
    pub fn covers_uid(&self, uid: u32) -> bool {
        self.uids
            .is_none_or(|(first, last)| (first..=last).contains(&uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_and_plain() {
        assert_eq!(Scope::parse_path("/"), Ok(vec![]));
        assert_eq!(Scope::parse_path("/projects/a").map(|p| p.len()), Ok(2));
        assert_eq!(Scope::parse_path("projects"), Err(ScopeError::Relative));
        assert_eq!(Scope::parse_path(""), Err(ScopeError::Relative));
        let deep = "/a".repeat(33);
        let long = format!("/{}", "a/".repeat(600));
        for path in ["/a//b", "/a/", "/a/../b", "/./a", "/a\0b", &deep, &long] {
            assert_eq!(Scope::parse_path(path), Err(ScopeError::Path), "{path:?}");
        }
    }

    #[test]
    fn an_empty_scope_covers_everything() {
        assert!(Scope::default().is_whole());
        assert!(Scope::default().covers_uid(0));
        let some = Scope {
            uids: Some((1000, 1999)),
            ..Scope::default()
        };
        assert!(!some.is_whole());
        assert!(some.covers_uid(1000) && some.covers_uid(1999));
        assert!(!some.covers_uid(999) && !some.covers_uid(2000) && !some.covers_uid(0));
    }
}
