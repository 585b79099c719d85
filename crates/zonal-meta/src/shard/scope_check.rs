//! Scope check of a request before its operation: for which user it counts, whether it is refused,
//! and which inodes lie inside the client's path.
//!
//! docs/rfcs/2026-11-25-scopes.md has the table. The shard follows the path by names at each
//! request. For an inode named by number it follows back-links upwards until the path's directory.
//! An inode that is not found in this way does not exist for the client.

use super::MetaShard;
use crate::config::{Caller, Now};
use crate::inode::{FLAG_STRAYED, Inode};
use crate::open_files::{OpenClaims, OpenModes};
use crate::scope_cache::{
    Resolved, ScopeCache, VisibleTree, acting_user, is_for_readers, needs_open, opens_for_reading,
    opens_for_writing, reader_may_lock,
};
use crate::tx::Tx;
use std::borrow::Cow;
use zonal_types::{
    DataId, ErrorCode, FileKind, Holder, Ino, KvChange, KvRead, Name, Scope, SessionId,
};
use zonal_wire::meta::{BytesPlace, Entry, FileUse};
use zonal_wire::{MetaReply, MetaRequest};

/// Directories on the way up: far more than any tree is deep.
const DEPTH_MAX: usize = 65_536;

/// Position of an inode relative to the path's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Inside,
    Above,
    Outside,
}

impl MetaShard {
    /// The request as it counts, and the part of the tree that its client sees.
    ///
    /// # Errors
    /// The reason why the scope does not cover it.
    pub(super) fn restrict<'r>(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        scope: &Scope,
        request: &'r MetaRequest,
    ) -> Result<(Cow<'r, MetaRequest>, VisibleTree), ErrorCode> {
        let is_of_command = matches!(
            request,
            MetaRequest::BeginRestripe { .. } | MetaRequest::SwapBytes { .. }
        );
        if is_of_command {
            return Err(ErrorCode::NotPermitted);
        }
        let mut request = Cow::Borrowed(request);
        if let Some(who) = request.who()
            && let Some(counted) = acting_user(scope, who)?
            && let Some(who) = request.to_mut().who_mut()
        {
            *who = counted;
        }
        if scope.is_read_only {
            if !is_for_readers(&request) {
                return Err(ErrorCode::ReadOnly);
            }
            if let MetaRequest::Touch { .. } = &*request {
                request = Cow::Owned(MetaRequest::Touch { reads: Vec::new() });
            }
            if let MetaRequest::Reclaim { locks, .. } = &*request
                && !locks.iter().all(|(_ino, range)| reader_may_lock(range))
            {
                return Err(ErrorCode::ReadOnly);
            }
        }
        if let MetaRequest::Reclaim { locks, .. } = &*request
            && scope.limits_users()
            && !locks.is_empty()
            && !self.sessions.silent.contains(&caller.session)
        {
            // A session from after our start has none.
            return Err(ErrorCode::UnknownLease);
        }
        let mut sight = VisibleTree::default();
        if !scope.path.is_empty() {
            let mut scopes = std::mem::take(&mut self.scopes);
            let mut looking = ScopeLookup::new(self, &mut scopes, (kv, now, caller.session), scope);
            let found = looking.restrict_request(&mut request);
            self.scopes = scopes;
            sight = found?;
        }
        if let Some((ino, for_use)) = needs_open(&request)
            && !self.has_open(ino, caller.session, for_use, (scope, now))
        {
            return Err(ErrorCode::BadHandle);
        }
        Ok((request, sight))
    }

    /// True where a session has a file open for a use. A file truncated by its name a moment ago
    /// counts as open for writing. For a client that may not act for all users only opens by a
    /// user's request count. Opens reclaimed after a restart do not: that user's rights were never
    /// checked.
    fn has_open(
        &self,
        ino: Ino,
        session: SessionId,
        for_use: FileUse,
        (scope, now): (&Scope, Now),
    ) -> bool {
        let ways = self.opens.ways(ino, session);
        let is_open = ways.is_some_and(|OpenClaims { granted, told }| {
            let is_limited = scope.limits_users();
            let ways = if is_limited {
                granted
            } else {
                granted.or(told)
            };
            match for_use {
                FileUse::Look => !is_limited || ways.reads || ways.writes,
                FileUse::Read => ways.reads,
                FileUse::Write => ways.writes,
            }
        });
        is_open || (for_use != FileUse::Read && self.scopes.may_truncate(ino, session, now.instant))
    }

    /// The first name of a client's path, where the root shard has to be asked for it. The root
    /// shard itself has the entries.
    pub(super) fn unknown_first<'s>(&self, now: Now, scope: &'s Scope) -> Option<&'s Name> {
        let first = scope.path.first().filter(|_| !self.config.is_root())?;
        (!self.scopes.knows_first(first, now.instant)).then_some(first)
    }

    /// Answers a target: whether a client may use the bytes of a file, and where they are.
    ///
    /// # Errors
    /// `NotReady` where a session of the client has not reclaimed its state since our start.
    /// `NotOwner` where the data id belongs to another shard.
    pub fn may_use(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        holder: &Holder,
        data_id: DataId,
        for_use: FileUse,
    ) -> Result<Option<BytesPlace>, ErrorCode> {
        if self.partitions.binary_search(&data_id.partition()).is_err() {
            return Err(ErrorCode::NotOwner);
        }
        let Some(ino) = self.tx(kv, now, SessionId(0)).file_of(data_id)? else {
            return Ok(None);
        };
        let sessions: Vec<SessionId> = self.sessions.of_holder(&holder.subject).collect();
        // Every open came by way of the path, as did opens reclaimed after a restart. If the path
        // was forgotten since, the client's next request asks for it.
        let first = holder.scope.as_ref().and_then(|scope| scope.path.first());
        let is_unknown = |first| !self.config.is_root() && self.scopes.first(first).is_none();
        let is_unknown = first.is_some_and(is_unknown);
        let mut is_silent = false;
        for session in sessions {
            is_silent |= self.sessions.silent.contains(&session);
            let whole = Scope::default();
            let scope = holder.scope.as_ref().unwrap_or(&whole);
            if !self.has_open(ino, session, for_use, (scope, now)) {
                continue;
            }
            let Some(scope) = holder.scope.as_ref().filter(|scope| !scope.path.is_empty()) else {
                return self.place_of(kv, now, ino, data_id);
            };
            if is_unknown {
                is_silent = true;
                continue;
            }
            let mut scopes = std::mem::take(&mut self.scopes);
            let mut looking = ScopeLookup::new(self, &mut scopes, (kv, now, session), scope);
            let place = looking.place(ino);
            self.scopes = scopes;
            if place? == Place::Inside {
                return self.place_of(kv, now, ino, data_id);
            }
        }
        match is_silent {
            true => Err(ErrorCode::NotReady),
            false => Ok(None),
        }
    }

    /// Place of the bytes of a file with this number.
    fn place_of(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        ino: Ino,
        data_id: DataId,
    ) -> Result<Option<BytesPlace>, ErrorCode> {
        let Some(inode) = self.tx(kv, now, SessionId(0)).find(ino)? else {
            return Ok(None);
        };
        let truncate_seq = inode.truncate_seq;
        let mut components = inode.layout.components.into_iter();
        let component = components.find(|component| component.data_id == data_id);
        Ok(component.map(|component| BytesPlace {
            component,
            truncate_seq,
        }))
    }

    /// True where a reply under a directory's lease may be cached: a client gets no recalls from
    /// outside of its path.
    pub(super) fn may_cache(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        sight: VisibleTree,
        lease: Option<Ino>,
    ) -> bool {
        let (true, Some(directory)) = (sight.has_path, lease) else {
            return sight.may_cache;
        };
        let Some(top) = sight.dir.filter(|_top| sight.may_cache) else {
            return false;
        };
        let mut scopes = std::mem::take(&mut self.scopes);
        let mut tx = self.tx(kv, now, SessionId(0));
        let is_inside = lies_below(&mut tx, &mut scopes, directory, top);
        self.scopes = scopes;
        is_inside.unwrap_or(false)
    }

    /// Notes after a request that counts which files its client has reached, opened for writing,
    /// truncated.
    pub(super) fn note_scoped(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        (sight, effect): (VisibleTree, &[KvChange]),
        request: &MetaRequest,
        reply: &MetaReply,
    ) {
        let session = caller.session;
        let opened = match reply {
            MetaReply::Opened { entry, .. }
            | MetaReply::OpenedSmall { entry, .. }
            | MetaReply::MadeOpen { entry, .. } => Some(entry.ino),
            _ => None,
        };
        if let Some(ino) = opened {
            let (reads, writes) = match request {
                MetaRequest::Open { open_flags, .. } | MetaRequest::Create { open_flags, .. } => {
                    let writes = opens_for_writing(*open_flags);
                    (opens_for_reading(*open_flags), writes)
                }
                _ => (true, true),
            };
            self.opens.grant(ino, session, OpenModes { reads, writes });
        }
        if let (MetaRequest::Truncate { ino, .. }, MetaReply::Truncated { .. }) = (request, reply) {
            self.scopes.note_truncation(*ino, session, now.instant);
        }
        let Some(top) = sight.dir.filter(|_top| sight.has_path) else {
            return;
        };
        let entries: Vec<&Entry> = match reply {
            // By its number: an open file says nothing about its names.
            _opened if matches!(request, MetaRequest::Open { .. }) => Vec::new(),
            MetaReply::Entry { entry }
            | MetaReply::Made { entry, .. }
            | MetaReply::Opened { entry, .. }
            | MetaReply::OpenedSmall { entry, .. }
            | MetaReply::MadeOpen { entry, .. } => vec![entry],
            MetaReply::Dir { entries, .. } => entries.iter().map(|item| &item.entry).collect(),
            MetaReply::Dirs { listings } => {
                let items = listings.iter().flat_map(|listing| &listing.entries);
                items.map(|item| &item.entry).collect()
            }
            _ => Vec::new(),
        };
        let is_one = entries.len() == 1;
        for entry in entries {
            let Some(attr) = &entry.attr else { continue };
            if attr.kind == FileKind::Directory {
                continue;
            }
            // A listing of many entries is not worth a look at each. A client that needs a renamed
            // file looks it up again.
            let may_have_lost = is_one && effect.is_empty();
            if attr.nlink > 1 || (may_have_lost && self.has_strayed(kv, now, entry.ino)) {
                self.scopes.note_reached(entry.ino, top);
            }
        }
    }

    fn has_strayed(&self, kv: &dyn KvRead, now: Now, ino: Ino) -> bool {
        let inode = self.tx(kv, now, SessionId(0)).find(ino);
        inode.is_ok_and(|inode| inode.is_some_and(|inode| inode.has(FLAG_STRAYED)))
    }
}

/// The look of one request at the tree.
struct ScopeLookup<'a> {
    tx: Tx<'a>,
    scopes: &'a mut ScopeCache,
    session: SessionId,
    resolved: Result<Resolved, ErrorCode>,
}

impl<'a> ScopeLookup<'a> {
    fn new(
        shard: &'a MetaShard,
        scopes: &'a mut ScopeCache,
        (kv, now, session): (&'a dyn KvRead, Now, SessionId),
        scope: &Scope,
    ) -> Self {
        let mut tx = shard.tx(kv, now, session);
        let resolved = resolve(&mut tx, scopes, scope);
        Self {
            tx,
            scopes,
            session,
            resolved,
        }
    }

    fn resolved(&self) -> Result<&Resolved, ErrorCode> {
        self.resolved.as_ref().map_err(|code| *code)
    }

    fn place(&mut self, ino: Ino) -> Result<Place, ErrorCode> {
        if self.resolved()?.next_name(ino).is_some() {
            return Ok(Place::Above);
        }
        let Some(top) = self.resolved()?.dir else {
            return match !ino.is_valid() || self.tx.is_ours(ino) {
                true => Ok(Place::Outside),
                false => Err(ErrorCode::NotOwner),
            };
        };
        match is_inside(&mut self.tx, self.scopes, self.session, ino, top)? {
            true => Ok(Place::Inside),
            false => Ok(Place::Outside),
        }
    }

    /// Requires an inode to be inside: it is used, changed or listed.
    fn require_inside(&mut self, ino: Ino) -> Result<(), ErrorCode> {
        match self.place(ino)? {
            Place::Inside => Ok(()),
            Place::Above => Err(ErrorCode::Access),
            Place::Outside => Err(ErrorCode::Stale),
        }
    }

    /// Requires an inode that gets one more name to be inside. A file that is only still open would
    /// come back for good.
    fn require_linkable(&mut self, ino: Ino) -> Result<(), ErrorCode> {
        self.require_inside(ino)?;
        let Some(top) = self.resolved()?.dir else {
            return Err(ErrorCode::Stale);
        };
        let inode = self.tx.inode_or_removed(ino)?;
        let is_named = inode.nlink == 0
            || self.scopes.was_reached(ino, top)
            || (!inode.has(FLAG_STRAYED)
                && lies_below(&mut self.tx, self.scopes, inode.parent, top)?);
        match is_named {
            true => Ok(()),
            false => Err(ErrorCode::Stale),
        }
    }

    /// Requires an inode that is only looked at to be visible; false: it is above the path.
    fn require_visible(&mut self, ino: Ino) -> Result<bool, ErrorCode> {
        match self.place(ino)? {
            Place::Inside => Ok(true),
            Place::Above => Ok(false),
            Place::Outside => Err(ErrorCode::Stale),
        }
    }

    /// Requires a directory to be inside that something moves to.
    fn require_destination(&mut self, dir: Ino) -> Result<(), ErrorCode> {
        match self.place(dir) {
            Ok(Place::Inside) => Ok(()),
            _ => Err(ErrorCode::CrossShard),
        }
    }

    fn keeps(&mut self, ino: Ino) -> bool {
        self.place(ino) == Ok(Place::Inside)
    }

    /// Refuses inodes outside of the path, and removes them from lists.
    #[expect(
        clippy::too_many_lines,
        reason = "a table: each request is named, so that a new one is judged too"
    )]
    fn restrict_request(
        &mut self,
        request: &mut Cow<'_, MetaRequest>,
    ) -> Result<VisibleTree, ErrorCode> {
        let mut may_cache = true;
        match &**request {
            MetaRequest::Lookup { parent, name, .. } => match self.place(*parent)? {
                Place::Inside => {}
                Place::Above if self.resolved()?.next_name(*parent) == Some(name) => {
                    may_cache = false;
                }
                Place::Above => return Err(ErrorCode::NotFound),
                Place::Outside => return Err(ErrorCode::Stale),
            },
            MetaRequest::GetAttr { ino, .. }
            | MetaRequest::Access { ino, .. }
            | MetaRequest::Parent { ino } => may_cache = self.require_visible(*ino)?,
            MetaRequest::GetXattr { ino, .. } if !self.require_visible(*ino)? => {
                return Err(ErrorCode::NoData);
            }
            MetaRequest::Rename {
                parent, new_parent, ..
            } => {
                self.require_inside(*parent)?;
                self.require_destination(*new_parent)?;
            }
            MetaRequest::Link { ino, parent, .. } => {
                self.require_linkable(*ino)?;
                self.require_destination(*parent)?;
            }
            MetaRequest::Readlink { ino }
            | MetaRequest::GetXattr { ino, .. }
            | MetaRequest::ListXattr { ino, .. }
            | MetaRequest::GetLock { ino, .. }
            | MetaRequest::ReadInline { ino }
            | MetaRequest::Open { ino, .. }
            | MetaRequest::SetAttr { ino, .. }
            | MetaRequest::Truncate { ino, .. }
            | MetaRequest::ConfirmTruncate { ino, .. }
            | MetaRequest::ReportWrite { ino, .. }
            | MetaRequest::AppendBegin { ino, .. }
            | MetaRequest::AppendEnd { ino, .. }
            | MetaRequest::LendEnd { ino }
            | MetaRequest::AppendAt { ino, .. }
            | MetaRequest::SetXattr { ino, .. }
            | MetaRequest::RemoveXattr { ino, .. }
            | MetaRequest::DisownBehind { ino, .. }
            | MetaRequest::MarkStale { ino, .. }
            | MetaRequest::GiveUpPlace { ino, .. }
            | MetaRequest::TakePrivileges { ino, .. }
            | MetaRequest::Lock { ino, .. }
            | MetaRequest::TakeLease { ino, .. }
            | MetaRequest::ReturnLease { ino, .. }
            | MetaRequest::ReadDir { dir: ino, .. }
            | MetaRequest::SetPolicy { dir: ino, .. }
            | MetaRequest::Create { parent: ino, .. }
            | MetaRequest::Mkdir { parent: ino, .. }
            | MetaRequest::Tmpfile { parent: ino, .. }
            | MetaRequest::Unlink { parent: ino, .. }
            | MetaRequest::Rmdir { parent: ino, .. } => self.require_inside(*ino)?,
            MetaRequest::ReadDirs { .. }
            | MetaRequest::Touch { .. }
            | MetaRequest::Reclaim { .. }
            | MetaRequest::ReclaimAppends { .. }
            | MetaRequest::ReportTraffic { .. }
            | MetaRequest::RenewLeases { .. } => self.lists(request)?,
            // About the session itself, not about the tree.
            MetaRequest::OpenSession { .. }
            | MetaRequest::PollEvents { .. }
            | MetaRequest::CloseSession
            | MetaRequest::EvictSession
            | MetaRequest::DropLeases
            | MetaRequest::StatFs
            | MetaRequest::Sync
            | MetaRequest::Close { .. }
            | MetaRequest::Unlock { .. }
            | MetaRequest::CancelLock { .. }
            | MetaRequest::ReleaseLocks { .. }
            | MetaRequest::GiveUpAppends { .. }
            | MetaRequest::ReturnEnds { .. } => {}
            // Sent by servers.
            MetaRequest::MakeDetachedDir { .. }
            | MetaRequest::AttachDir { .. }
            | MetaRequest::DetachDir { .. }
            | MetaRequest::DropDir { .. }
            | MetaRequest::HasEntry { .. }
            | MetaRequest::SettleDir { .. }
            | MetaRequest::HasOpen { .. }
            | MetaRequest::FencesOf { .. }
            | MetaRequest::StaleFiles { .. }
            | MetaRequest::MendCopy { .. }
            | MetaRequest::RelocateObjects { .. }
            | MetaRequest::CopiesOf { .. }
            | MetaRequest::OpenSets { .. }
            | MetaRequest::FirstLevel { .. }
            // Answered by the mirror, before the shard.
            | MetaRequest::MirroredRoot { .. }
            | MetaRequest::MirroredName { .. }
            | MetaRequest::MirroredNames { .. }
            // Sent by commands.
            | MetaRequest::BeginRestripe { .. }
            | MetaRequest::SwapBytes { .. }
            | MetaRequest::FileOf { .. }
            | MetaRequest::ReportShardLoad { .. }
            | MetaRequest::MorePartitions { .. }
            | MetaRequest::MovePartition { .. }
            | MetaRequest::GetMoves
            | MetaRequest::CancelMove { .. }
            | MetaRequest::MoveBegin { .. }
            | MetaRequest::MoveEntries { .. }
            | MetaRequest::MoveEnd { .. }
            | MetaRequest::MoveDropped { .. }
            | MetaRequest::GivePartition { .. }
            | MetaRequest::GetShardLoads => return Err(ErrorCode::NotPermitted),
        }
        Ok(VisibleTree {
            dir: self.resolved()?.dir,
            has_path: true,
            may_cache,
        })
    }

    fn lists(&mut self, request: &mut Cow<'_, MetaRequest>) -> Result<(), ErrorCode> {
        match request.to_mut() {
            MetaRequest::ReadDirs { dirs, .. } => {
                if let Some(first) = dirs.first() {
                    self.require_inside(*first)?;
                }
                dirs.retain(|dir| self.keeps(*dir));
            }
            MetaRequest::Touch { reads } => reads.retain(|(ino, _)| self.keeps(*ino)),
            MetaRequest::Reclaim { opens, locks } => {
                opens.retain(|ino| self.keeps(*ino));
                locks.retain(|(ino, _)| self.keeps(*ino));
            }
            MetaRequest::ReclaimAppends { appends } => appends.retain(|(ino, _)| self.keeps(*ino)),
            MetaRequest::ReportTraffic { traffic, .. } => traffic.retain(|(data_id, _)| {
                let file = self.tx.file_of(*data_id);
                file.is_ok_and(|file| file.is_some_and(|ino| self.keeps(ino)))
            }),
            MetaRequest::RenewLeases { leases } => leases.retain(|(ino, _)| self.keeps(*ino)),
            _ => {}
        }
        Ok(())
    }
}

/// Follows a path by its names, as far as they lead at this shard.
fn resolve(tx: &mut Tx<'_>, scopes: &mut ScopeCache, scope: &Scope) -> Result<Resolved, ErrorCode> {
    let mut resolved = Resolved::default();
    let (mut at, names) = match scope.path.split_first() {
        Some(_) if tx.env.config.is_root() => (Ino::ROOT, &scope.path[..]),
        Some((first, rest)) => match scopes.first(first) {
            Some(ino) if tx.is_ours(ino) => (ino, rest),
            _ => return Ok(resolved),
        },
        None => return Ok(resolved),
    };
    for name in names {
        resolved.above.push((at, name.clone()));
        match tx.lookup(at, name)? {
            Some((_, found)) if found.kind == FileKind::Directory && tx.is_ours(found.ino) => {
                at = found.ino;
            }
            _ => return Ok(resolved),
        }
    }
    resolved.dir = Some(at);
    Ok(resolved)
}

/// True where an inode is the directory `top` or below it, as far as its number tells.
fn is_inside(
    tx: &mut Tx<'_>,
    scopes: &mut ScopeCache,
    session: SessionId,
    ino: Ino,
    top: Ino,
) -> Result<bool, ErrorCode> {
    let inode = match tx.inode_or_removed(ino) {
        Ok(inode) => inode,
        Err(ErrorCode::Stale) => return Ok(false),
        Err(code) => return Err(code),
    };
    if inode.is_dir() {
        return lies_below(tx, scopes, ino, top);
    }
    let has_strayed = inode.has(FLAG_STRAYED);
    if !has_strayed && lies_below(tx, scopes, inode.parent, top)? {
        return Ok(true);
    }
    // It has another name inside, or had one when the session opened it.
    let may_be_elsewhere = inode.nlink != 1 || has_strayed;
    let is_known = tx.env.opens.count(ino, session) > 0 || scopes.was_reached(ino, top);
    Ok(may_be_elsewhere && is_known)
}

/// True where a directory is `top` or below it.
fn lies_below(
    tx: &mut Tx<'_>,
    scopes: &mut ScopeCache,
    dir: Ino,
    top: Ino,
) -> Result<bool, ErrorCode> {
    let (mut at, mut way) = (dir, Vec::new());
    while !scopes.is_inside(at, top) {
        if at == Ino::ROOT || at == Ino(0) || !tx.is_ours(at) || way.len() >= DEPTH_MAX {
            return Ok(false);
        }
        let Some(found) = tx.find(at)?.filter(Inode::is_dir) else {
            return Ok(false);
        };
        way.push(at);
        at = found.parent;
    }
    scopes.note_inside(&way, top);
    Ok(true)
}
