//! Making and opening files: one round trip, with layout, attributes and what the kernel may keep.

use crate::client::ClientCall;
use crate::file::tail_ownership::TailOwnership;
use crate::inode_cache::{PageInstant, PendingPageVersion};
use crate::names::{FoundEntry, LookupResult, NewFile, OpenedFile};
use crate::transport::net::Net;
use crate::transport::retry::late;
use std::sync::atomic::Ordering;
use zonal_types::{Credentials, ErrorCode, Ino, Name};
use zonal_wire::meta::flags::{self, O_TRUNC};
use zonal_wire::{MetaReply, MetaRequest};
impl<N: Net> ClientCall<'_, N> {
    pub(crate) fn create_request(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
        new: NewFile,
        open_flags: Option<u32>,
    ) -> MetaRequest {
        MetaRequest::Create {
            who: who.clone(),
            parent,
            name,
            kind: new.kind,
            mode: new.mode,
            umask: new.umask,
            zone: self.options.zone,
            node: self.options.node,
            open: open_flags.is_some(),
            open_flags: open_flags.unwrap_or(0),
            exclusive: open_flags.is_none_or(|open| open & flags::O_EXCL != 0),
        }
    }

    /// Makes and opens a file, or opens an existing one (unless `O_EXCL`).
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn create(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
        new: NewFile,
        open_flags: u32,
    ) -> Result<OpenedFile<N>, ErrorCode> {
        self.inode_cache.will_have(parent, &name);
        let request = self.create_request(who, parent, name, new, Some(open_flags));
        self.opening(parent, &request).await
    }

    /// Makes and opens a file without a name.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn tmpfile(
        &self,
        who: &Credentials,
        parent: Ino,
        (mode, umask): (u32, u32),
        exclusive: bool,
    ) -> Result<OpenedFile<N>, ErrorCode> {
        let zone = self.options.zone;
        let request = MetaRequest::Tmpfile {
            who: who.clone(),
            parent,
            mode,
            umask,
            zone,
            node: self.options.node,
            exclusive,
        };
        self.opening(parent, &request).await
    }

    /// Makes and opens a file without a name for the bytes of `ino`, with the layout that a new
    /// file of `dir` gets now.
    ///
    /// # Errors
    /// `Exists`: the file is striped so already. `Busy`: others have it open. `WouldBlock`: targets
    /// have yet to fill, move or delete some of it. Others of the shard.
    pub async fn begin_restripe(
        &self,
        who: &Credentials,
        ino: Ino,
        dir: Ino,
    ) -> Result<OpenedFile<N>, ErrorCode> {
        let who = who.clone();
        let request = MetaRequest::BeginRestripe { who, ino, dir };
        self.opening(ino, &request).await
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn open(
        &self,
        who: &Credentials,
        ino: Ino,
        open_flags: u32,
    ) -> Result<OpenedFile<N>, ErrorCode> {
        let request = MetaRequest::Open {
            who: who.clone(),
            ino,
            open_flags,
        };
        let file = self.file(ino);
        if let Some(file) = &file
            && open_flags & O_TRUNC != 0
        {
            self.truncation_begins(file).await?;
            let opened = self.opening(ino, &request).await;
            self.truncation_ends(file);
            return opened;
        }
        if let Some(file) = file {
            // This open must see own earlier writes.
            let is_clean = file.state().is_clean();
            if !is_clean {
                self.settle(&file).await?;
            }
        }
        self.opening(ino, &request).await
    }

    /// Finishes another client's unconfirmed truncation of the file that this request truncates.
    async fn finish_truncate_before(&self, request: &MetaRequest) -> Result<(), ErrorCode> {
        let ino = match request {
            MetaRequest::Open { ino, .. } | MetaRequest::BeginRestripe { ino, .. } => Some(*ino),
            MetaRequest::Create {
                who, parent, name, ..
            } => match self.lookup(who, *parent, name.clone()).await? {
                LookupResult::Found(found) => Some(found.attr.ino),
                LookupResult::Absent(_) => None,
            },
            _other => None,
        };
        match ino {
            Some(ino) => self.finish_others_truncate(ino).await,
            None => Ok(()),
        }
    }

    /// Handles a failed open that may have truncated a file which others here have open.
    fn doubt_truncation_by(&self, request: &MetaRequest, code: ErrorCode) {
        let files = match request {
            MetaRequest::Open {
                ino, open_flags, ..
            } if open_flags & O_TRUNC != 0 => self.file(*ino).into_iter().collect(),
            // The request does not tell which file has this name.
            MetaRequest::Create { open_flags, .. } if open_flags & O_TRUNC != 0 => self.all_files(),
            _truncates_nothing => Vec::new(),
        };
        for file in files {
            file.state().unsure_behind(code);
        }
    }

    async fn opening(&self, at: Ino, request: &MetaRequest) -> Result<OpenedFile<N>, ErrorCode> {
        let link = self.reach(at).await?;
        let asked = self.asking(&link);
        let pages_asked = self.inode_cache.page_versions().now();
        let truncations = self.truncations_by_name.load(Ordering::SeqCst);
        let deadline = self.deadline();
        let reply = loop {
            match self.meta(&link, request).await {
                // Others may truncate it repeatedly.
                Err(ErrorCode::TruncateUnconfirmed) if !self.is_over(deadline) => {
                    self.finish_truncate_before(request).await?;
                }
                Ok(reply) => break reply,
                Err(code) => {
                    self.doubt_truncation_by(request, late(code));
                    return Err(late(code));
                }
            }
        };
        let (mut entry, data, push, bytes) = match reply {
            MetaReply::Opened { entry, data, push } => (entry, data, push, None),
            MetaReply::OpenedSmall { entry, data, bytes } => (entry, data, false, Some(bytes.0)),
            _other => return Err(ErrorCode::Protocol),
        };
        self.inode_cache
            .note_renewed(self, &link, asked, at, &entry);
        let now = self.net.now();
        let granted = entry.attr_ms;
        self.limit_leases(&link, asked, &mut entry);
        let until = now.plus_ms(entry.attr_ms.into());
        let attr = entry.attr.ok_or(ErrorCode::Protocol)?;
        let file = self.open_file(&attr, data.clone());
        self.note_privileges(&file, &attr, (&link, asked, granted));
        if self.truncations_by_name.load(Ordering::SeqCst) != truncations {
            // A truncation by name may have come after the shard's answer.
            file.state().outdate();
        }
        if push || (attr.change == 1 && request.makes_file()) {
            file.state().tail_ownership = TailOwnership::Ours;
        }
        if let Some(bytes) = bytes
            && entry.attr_ms > 0
        {
            let version = (attr.change, until);
            let lease = (&*link, asked, entry.attr_ms);
            self.inode_cache
                .keep_bytes(self, lease, entry.ino, version, bytes);
        }
        let mut ready = self.know_sets(&data).await;
        if push && ready.is_ok() {
            ready = self.push_truncate(entry.ino, &data).await.map(drop);
            file.state().size = attr.size;
        }
        if let Err(code) = ready {
            self.release(entry.ino).await.ok();
            return Err(code);
        }
        let is_new = attr.change == 1 && request.makes_file();
        let (keep_pages, changed) =
            self.choose_pages((entry.ino, attr.change), pages_asked, is_new);
        let attr_ms = if push { 0 } else { entry.attr_ms };
        Ok(OpenedFile {
            found: FoundEntry {
                attr,
                entry_ms: entry.entry_ms,
                attr_ms,
            },
            file,
            keep_pages: keep_pages && !push,
            changed,
        })
    }

    /// Whether the kernel keeps its pages of a file at an open; else the version that it will show
    /// once it has dropped them. A file that the open made has no pages.
    fn choose_pages(
        &self,
        (ino, change): (Ino, u64),
        pages_asked: PageInstant,
        is_new: bool,
    ) -> (bool, Option<PendingPageVersion>) {
        let mut seen = self.inode_cache.page_versions();
        let keep_pages = seen.shows(ino, change, pages_asked);
        if keep_pages || is_new {
            seen.note(ino, change, pages_asked);
        }
        // The kernel drops its pages when it receives the answer. Another program here may act
        // before that.
        let drops = !keep_pages && !is_new;
        let changed = drops.then(|| PendingPageVersion::new(change, pages_asked));
        (keep_pages, changed)
    }
}
