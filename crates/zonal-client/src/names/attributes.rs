//! Attributes: values from the shard with this mount's unreported writes laid over them.

use crate::cell::session::Link;
use crate::client::ClientCall;
use crate::transport::net::Net;
use zonal_types::{Attr, Credentials, ErrorCode, FileData, FileKind, Ino};
use zonal_wire::meta::SetTime;
use zonal_wire::{AttrChange, MetaReply, MetaRequest};
impl<N: Net> ClientCall<'_, N> {
    /// Returns the attributes as this mount sees them, unreported writes included.
    pub(crate) fn lay_own_writes(&self, mut attr: Attr, attr_ms: u32) -> (Attr, u32) {
        self.inode_cache.lay_touch(&mut attr);
        if attr.kind != FileKind::File {
            self.inode_cache.removed_attributes().note(&attr);
            return (attr, attr_ms);
        }
        let Some(file) = self.file(attr.ino) else {
            return (attr, attr_ms);
        };
        let mut state = file.state();
        if state.is_doubted() {
            // A truncation without an answer may have removed unsent bytes. The shard's size is one
            // that the file had or has.
            return (attr, 0);
        }
        state.refresh(&attr, None);
        // An answer from before a report that was answered meanwhile: by it the kernel would
        // truncate its pages at the old size.
        let is_old = attr.change < state.change;
        if state.is_clean() && !is_old {
            return (attr, attr_ms);
        }
        attr.size = state.size;
        for report in state.report.iter().chain(&state.reporting) {
            attr.allocated = attr.allocated.saturating_add_signed(report.allocated_delta);
            if let Some(mtime) = report.mtime {
                attr.mtime = attr.mtime.max(mtime);
                attr.ctime = attr.ctime.max(mtime);
            }
        }
        if let Some(mtime) = state.append_buffer.mtime() {
            attr.mtime = attr.mtime.max(mtime);
            attr.ctime = attr.ctime.max(mtime);
        }
        let gathered = state.dirty.bytes() + state.append_buffer.bytes();
        let gathered = (gathered as u64).next_multiple_of(4096);
        attr.allocated = attr.allocated.saturating_add(gathered);
        (attr, 0)
    }

    /// Attributes of an inode and how long they may be cached, ms.
    ///
    /// # Errors
    /// `Stale` where the inode is gone.
    pub async fn getattr(&self, ino: Ino) -> Result<(Attr, u32), ErrorCode> {
        if let Some(file) = self.file(ino)
            && file.state().is_doubted()
        {
            self.refetch(&file).await?;
        }
        if let Some((attr, attr_ms)) = self.inode_cache.fresh(self, ino) {
            return Ok(self.lay_own_writes(attr, attr_ms));
        }
        let link = self.reach(ino).await?;
        if let Some((attr, attr_ms)) = self.inode_cache.leased_attr(self, &link, ino) {
            return Ok(self.lay_own_writes(attr, attr_ms));
        }
        if ino != Ino::ROOT {
            return self.fetch_attributes(&link, ino).await;
        }
        let ask = async |call: &Self| call.fetch_attributes(&link, ino).await;
        let ask_mirror = async |call: &Self, mirror: &Link| {
            let root = call.mirrored_root(mirror, &Credentials::root(), 0).await?;
            Ok(self.lay_own_writes(root.attr, 0))
        };
        self.read_root(ask, ask_mirror).await
    }

    /// Asks a shard for the attributes of an inode.
    async fn fetch_attributes(&self, link: &Link, ino: Ino) -> Result<(Attr, u32), ErrorCode> {
        let asked = self.asking(link);
        let of = (link, self.inode_cache.lease_request(self, link));
        let reply = match self
            .meta(link, &MetaRequest::GetAttr { ino, data: false })
            .await
        {
            Err(ErrorCode::Stale) => {
                return self
                    .ghost(ino)
                    .map(|attr| (attr, 0))
                    .ok_or(ErrorCode::Stale);
            }
            reply => reply?,
        };
        match reply {
            MetaReply::Attr { attr, attr_ms, .. } => {
                self.inode_cache.keep_attr(self, of, Ino(0), &attr, attr_ms);
                Ok(self.lay_own_writes(attr, self.kernel_ms(link, asked, attr_ms)))
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Last known attributes of a removed inode that is not a file.
    pub(crate) fn ghost(&self, ino: Ino) -> Option<Attr> {
        self.inode_cache.removed_attributes().get(ino)
    }

    /// Changes attributes of a removed inode that is not a file. Only this mount sees the change;
    /// the kernel has checked the permission.
    fn change_ghost(&self, ino: Ino, change: &AttrChange) -> Option<Attr> {
        let mut attr = self.ghost(ino)?;
        let now = self.net.wall();
        let time = |set: Option<SetTime>, old| match set {
            Some(SetTime::Now) => now,
            Some(SetTime::At { time }) => time,
            None => old,
        };
        attr.mode = change.mode.unwrap_or(attr.mode);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime = time(change.atime, attr.atime);
        attr.mtime = time(change.mtime, attr.mtime);
        attr.ctime = now;
        self.inode_cache.removed_attributes().note(&attr);
        Some(attr)
    }

    /// Checks permissions.
    ///
    /// # Errors
    /// `Access` where a permission is missing.
    pub async fn access(&self, who: &Credentials, ino: Ino, mask: u32) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        if self.permits(&link, who, ino, mask) {
            return Ok(());
        }
        let request = MetaRequest::Access {
            who: who.clone(),
            ino,
            mask,
        };
        if ino == Ino::ROOT {
            let ask = async |call: &Self| call.meta(&link, &request).await.map(|_done| ());
            let ask_mirror = async |call: &Self, mirror: &Link| {
                let root = call.mirrored_root(mirror, who, mask).await;
                root.map(|_may| ())
            };
            return self.read_root(ask, ask_mirror).await;
        }
        match self.meta(&link, &request).await {
            // The kernel has checked the permission by the attributes that it has.
            Err(ErrorCode::Stale) if self.ghost(ino).is_some() => Ok(()),
            answer => answer.map(|_done| ()),
        }
    }

    /// Changes attributes. Unreported writes are reported first, so that they do not overwrite a
    /// time that is set here.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn setattr(
        &self,
        who: &Credentials,
        ino: Ino,
        change: AttrChange,
    ) -> Result<(Attr, u32), ErrorCode> {
        self.settle_touch(ino).await;
        if let Some(file) = self.file(ino) {
            let _gate = self.wait_for(&file.gate).await?;
            self.settle_gated(&file).await?;
        }
        let link = self.reach(ino).await?;
        let request = MetaRequest::SetAttr {
            who: who.clone(),
            ino,
            change,
        };
        let reply = match self.meta(&link, &request).await {
            Err(ErrorCode::Stale) => {
                let changed = self.change_ghost(ino, &change);
                return changed.map(|attr| (attr, 0)).ok_or(ErrorCode::Stale);
            }
            reply => reply?,
        };
        self.note_own_change(ino, &reply);
        match reply {
            MetaReply::Attr { attr, .. } => {
                if attr.kind != FileKind::File {
                    self.inode_cache.removed_attributes().note(&attr);
                }
                Ok((attr, 0))
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Layout and size of a file.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn file_data(&self, ino: Ino) -> Result<(Attr, Option<FileData>), ErrorCode> {
        let link = self.reach(ino).await?;
        match self
            .meta(&link, &MetaRequest::GetAttr { ino, data: true })
            .await?
        {
            MetaReply::Attr { attr, data, .. } => Ok((self.lay_own_writes(attr, 0).0, data)),
            _other => Err(ErrorCode::Protocol),
        }
    }
}
