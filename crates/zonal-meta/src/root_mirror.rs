//! The mirror of the root: first-level directories and the root's attributes, as a server of a
//! zone's shard keeps them. It answers reads of the root's names where the root's shard does not.
//!
//! [`RootFetch`] is one round of questions that brings a mirror up to date. While nothing changes
//! it has two: for the head of the list of junctions, and for the root's attributes.
//!
//! *Invariants*:
//! 1. A mirror has the junctions of one version, or is of an earlier round.
//! 2. `confirmed` is the start of the last complete round: each later change may be missing.
//! 3. At most [`ROOT_MIRROR_NAMES_MAX`] names are kept, the first in the order of the paths.

use crate::acl::{ACCESS_NAME, Acl};
use crate::dentry::name_cookie;
use crate::permission::{EXEC, READ, allows};
use crate::scope_cache::acting_user;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use zonal_types::limits::xattr_flags::ACL_ACCESS;
use zonal_types::limits::{JUNCTIONS_LISTED_MAX, ROOT_MIRROR_NAMES_MAX};
use zonal_types::{
    Attr, Blob, Credentials, ErrorCode, FileKind, Holder, Ino, Instant, Name, unescaped,
};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{DirEntry, Entry, Junction, ManagerReply, ManagerRequest, MetaReply, MetaRequest};

/// Bits of a name's hash in a cookie, as the root's shard has them.
const HASH_BITS: u32 = 55;
/// Cookies of the names with one hash.
const CHAIN: u64 = 256;

/// A zone's copy of the root's first-level directories and attributes.
#[derive(Debug, Default)]
pub struct RootMirror {
    known: Option<KnownRoot>,
}

#[derive(Debug, Clone)]
struct KnownRoot {
    names: Arc<FirstLevelNames>,
    attr: Attr,
    /// Value of the root's access ACL.
    acl: Option<Blob>,
    confirmed: Instant,
}

/// The list of junctions of one version.
#[derive(Debug, Default)]
struct FirstLevelNames {
    version: u64,
    /// By cookie, as the root's shard lists them.
    listed: BTreeMap<u64, (Name, Ino)>,
}

impl FirstLevelNames {
    fn add(&mut self, name: Name, ino: Ino) {
        let mut cookie = name_cookie(name.as_bytes(), HASH_BITS);
        while self.listed.contains_key(&cookie) {
            cookie += 1;
        }
        self.listed.insert(cookie, (name, ino));
    }

    fn find(&self, name: &Name) -> Option<(u64, Ino)> {
        let cookie = name_cookie(name.as_bytes(), HASH_BITS);
        let mut chain = self.listed.range(cookie..cookie + CHAIN);
        let found = chain.find(|(_, (known, _))| known == name);
        found.map(|(cookie, (_, ino))| (*cookie, *ino))
    }
}

impl RootMirror {
    /// Number of names, for the gauge.
    #[must_use]
    pub fn names(&self) -> usize {
        self.known
            .as_ref()
            .map_or(0, |known| known.names.listed.len())
    }

    /// Time since the mirror was confirmed, ms; `None`: it knows nothing yet.
    #[must_use]
    pub fn age_ms(&self, now: Instant) -> Option<u64> {
        let known = self.known.as_ref()?;
        Some(now.ms_since(known.confirmed))
    }

    /// The first-level directory of this name.
    #[must_use]
    pub fn first_level(&self, name: &Name) -> Option<Ino> {
        self.known.as_ref()?.names.find(name).map(|(_, ino)| ino)
    }

    /// Answers a request for the mirror; `None`: it is another request. `NotFound` says only that
    /// the mirror does not know.
    #[must_use]
    pub fn answer(
        &self,
        from: Option<&Holder>,
        request: &MetaRequest,
        now: Instant,
    ) -> Option<MetaReply> {
        let (who, mask) = match request {
            MetaRequest::MirroredRoot { who, mask } => (who, *mask),
            MetaRequest::MirroredName { who, .. } => (who, EXEC),
            MetaRequest::MirroredNames { who, .. } => (who, READ),
            _ => return None,
        };
        let answered = self.check(from, who, mask).map(|known| {
            let age_ms = now.ms_since(known.confirmed);
            // A client with a path sees only the directory that its path begins with.
            let scope = from.and_then(|from| from.scope.as_ref());
            let only = scope.and_then(|scope| scope.path.first());
            match request {
                MetaRequest::MirroredName { name, .. } if only.is_none_or(|only| only == name) => {
                    known.one(name, 0, age_ms)
                }
                MetaRequest::MirroredName { .. } => MetaReply::Failed {
                    code: ErrorNumber(ErrorCode::NotFound),
                },
                MetaRequest::MirroredNames {
                    cookie, entries, ..
                } => known.page(only, *cookie, *entries, age_ms),
                _ => MetaReply::MirroredRoot {
                    attr: known.attr,
                    acl: known.acl.clone(),
                    age_ms,
                },
            }
        });
        Some(answered.unwrap_or_else(|code| MetaReply::Failed {
            code: ErrorNumber(code),
        }))
    }

    /// The root, where a user may do this there.
    fn check(
        &self,
        from: Option<&Holder>,
        who: &Credentials,
        mask: u32,
    ) -> Result<&KnownRoot, ErrorCode> {
        let known = self.known.as_ref().ok_or(ErrorCode::NotFound)?;
        let mut who = Cow::Borrowed(who);
        if let Some(scope) = from.and_then(|from| from.scope.as_ref())
            && let Some(counted) = acting_user(scope, &who)?
        {
            who = Cow::Owned(counted);
        }
        let acl = match &known.acl {
            Some(acl) => Acl::parse(&acl.0)?,
            None => None,
        };
        let attr = &known.attr;
        let owner = (attr.uid, attr.gid);
        match allows(&who, attr.kind, attr.mode, owner, acl.as_ref(), mask) {
            true => Ok(known),
            false => Err(ErrorCode::Access),
        }
    }
}

impl KnownRoot {
    /// Up to `entries` directories behind `cookie`.
    fn page(&self, only: Option<&Name>, cookie: u64, entries: u32, age_ms: u64) -> MetaReply {
        if let Some(only) = only {
            return self.one(only, cookie, age_ms);
        }
        let limit = (entries as usize).min(JUNCTIONS_LISTED_MAX);
        let behind = self.names.listed.range(cookie.saturating_add(1)..);
        let found = behind.take(limit + 1);
        let mut found: Vec<DirEntry> = found
            .map(|(cookie, (name, ino))| entry_of(name, *ino, *cookie))
            .collect();
        let end = found.len() <= limit;
        found.truncate(limit);
        MetaReply::MirroredNames {
            entries: found,
            end,
            age_ms,
        }
    }

    /// The directory of this name, if it is behind `cookie`.
    fn one(&self, name: &Name, cookie: u64, age_ms: u64) -> MetaReply {
        let found = self.names.find(name).filter(|(at, _)| *at > cookie);
        MetaReply::MirroredNames {
            entries: found
                .into_iter()
                .map(|(cookie, ino)| entry_of(name, ino, cookie))
                .collect(),
            end: true,
            age_ms,
        }
    }
}

fn entry_of(name: &Name, ino: Ino, cookie: u64) -> DirEntry {
    DirEntry {
        name: name.clone(),
        cookie,
        entry: Entry {
            ino,
            kind: FileKind::Directory,
            attr: None,
            entry_ms: 0,
            attr_ms: 0,
        },
    }
}

/// A question of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootRequest {
    /// For the manager.
    Manager(ManagerRequest),
    /// For the root's shard.
    Shard(MetaRequest),
}

/// An answer to the question.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, which is taken at once"
)]
pub enum RootReply {
    /// Of the manager.
    Manager(ManagerReply),
    /// Of the root's shard.
    Shard(MetaReply),
}

/// A round of questions. Each answer leads to the next question, or to the end.
#[derive(Debug)]
pub struct RootFetch {
    begun: Instant,
    /// The state of the mirror before, or nothing.
    before: Option<KnownRoot>,
    /// The version that is being listed; `None`: the head is asked.
    listing: Option<u64>,
    after: Option<(String, Ino)>,
    /// A complete list.
    list: Option<Arc<FirstLevelNames>>,
    /// The listed part of it.
    part: FirstLevelNames,
    attr: Option<Attr>,
}

impl RootFetch {
    /// Begins a round for a mirror.
    #[must_use]
    pub fn new(mirror: &RootMirror, now: Instant) -> Self {
        Self {
            begun: now,
            before: mirror.known.clone(),
            listing: None,
            after: None,
            list: None,
            part: FirstLevelNames::default(),
            attr: None,
        }
    }

    /// The next question.
    #[must_use]
    pub fn question(&self) -> RootRequest {
        let has_list = self.list.is_some();
        match (has_list, self.listing, self.attr) {
            (false, None, _) => RootRequest::Manager(ManagerRequest::Junctions {
                after: None,
                entries: 0,
            }),
            (false, Some(_), _) => RootRequest::Manager(ManagerRequest::Junctions {
                after: self.after.clone(),
                entries: u32::try_from(JUNCTIONS_LISTED_MAX).unwrap_or(u32::MAX),
            }),
            (true, _, None) => RootRequest::Shard(MetaRequest::GetAttr {
                ino: Ino::ROOT,
                data: false,
            }),
            (true, _, Some(_)) => RootRequest::Shard(MetaRequest::GetXattr {
                who: Credentials::root(),
                ino: Ino::ROOT,
                name: Blob(ACCESS_NAME.to_vec()),
            }),
        }
    }

    /// Takes the answer to [`Self::question`]; the mirror, once the round is complete.
    ///
    /// # Errors
    /// The round has failed, and the mirror stays as it was.
    pub fn take(&mut self, answer: RootReply) -> Result<Option<RootMirror>, ErrorCode> {
        match answer {
            RootReply::Manager(ManagerReply::Junctions {
                version,
                junctions,
                end,
                ..
            }) => self.take_page(version, junctions, end),
            RootReply::Shard(MetaReply::Attr { attr, .. }) => {
                self.attr = Some(attr);
                let before = self.before.as_ref();
                let same = before.filter(|before| before.attr.change == attr.change);
                match same {
                    Some(same) => Ok(self.complete(same.acl.clone())),
                    None if attr.xattrs & ACL_ACCESS == 0 => Ok(self.complete(None)),
                    None => Ok(None),
                }
            }
            RootReply::Shard(MetaReply::Text { text }) => Ok(self.complete(Some(text))),
            RootReply::Shard(MetaReply::Failed { code }) if code.0 == ErrorCode::NoData => {
                Ok(self.complete(None))
            }
            RootReply::Manager(ManagerReply::Failed { code, .. })
            | RootReply::Shard(MetaReply::Failed { code }) => Err(code.0),
            _ => Err(ErrorCode::Protocol),
        }
    }

    fn take_page(
        &mut self,
        version: u64,
        junctions: Vec<Junction>,
        end: bool,
    ) -> Result<Option<RootMirror>, ErrorCode> {
        let Some(listing) = self.listing else {
            self.listing = Some(version);
            let before = self.before.as_ref();
            let same = before.filter(|before| before.names.version == version);
            self.list = same.map(|same| Arc::clone(&same.names));
            self.part.version = version;
            return Ok(None);
        };
        if version != listing {
            // Changed meanwhile: the next round lists it anew.
            return Err(ErrorCode::NotReady);
        }
        self.after = junctions.last().map(|last| (last.path.clone(), last.ino));
        let room = ROOT_MIRROR_NAMES_MAX.saturating_sub(self.part.listed.len());
        let is_full = room <= junctions.len();
        let named = junctions.into_iter().filter_map(|junction| {
            let name = unescaped(junction.path.strip_prefix('/')?)?;
            Some((Name::new(&name).ok()?, junction.ino))
        });
        for (name, ino) in named.take(room) {
            self.part.add(name, ino);
        }
        if end || is_full || self.after.is_none() {
            self.list = Some(Arc::new(std::mem::take(&mut self.part)));
        }
        Ok(None)
    }

    fn complete(&mut self, acl: Option<Blob>) -> Option<RootMirror> {
        let (names, attr) = (self.list.take()?, self.attr.take()?);
        Some(RootMirror {
            known: Some(KnownRoot {
                names,
                attr,
                acl,
                confirmed: self.begun,
            }),
        })
    }
}

#[cfg(test)]
mod tests;
