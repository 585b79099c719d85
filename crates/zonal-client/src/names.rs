//! Names and attributes: one round trip each, except where an inode lies in another shard than its name.

use crate::client::Client;
use crate::file::File;
use crate::net::Net;
use crate::session::lock;
use std::sync::Arc;
use zonal_types::{Attr, Blob, Credentials, ErrorCode, FileData, FileKind, Ino, Name, ZoneId};
use zonal_wire::meta::flags;
use zonal_wire::{
    AttrChange, DirEntry, Entry, MetaReply, MetaRequest, NewKind, StorageReply, StorageRequest,
};

/// What a look-up found, with attributes.
#[derive(Debug, Clone)]
pub struct Found {
    /// Inode and attributes.
    pub attr: Attr,
    /// How long the name may be cached, ms.
    pub entry_ms: u32,
    /// How long the attributes may be cached, ms.
    pub attr_ms: u32,
}

/// A name that leads somewhere, or to nothing.
#[derive(Debug, Clone)]
pub enum Looked {
    /// There it is.
    Found(Found),
    /// Nothing; that may be cached this long, ms.
    Absent(u32),
}

/// An opened file.
pub struct Opened<N: Net> {
    /// What it is.
    pub found: Found,
    /// The file; call `release` once for each open.
    pub file: Arc<File<N>>,
    /// The kernel's pages of it are still right.
    pub keep_pages: bool,
}

/// What and how to create.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// Kind of inode.
    pub kind: NewKind,
    /// Permission bits.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
}

impl<N: Net> Client<N> {
    /// Looks a name up.
    ///
    /// # Errors
    /// As the shard answers; "no such name" is not an error.
    pub async fn lookup(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
    ) -> Result<Looked, ErrorCode> {
        let link = self.link_of(parent)?;
        let asked = self.asking(&link);
        match self
            .meta(
                &link,
                &MetaRequest::Lookup {
                    who: who.clone(),
                    parent,
                    name,
                },
            )
            .await
        {
            Ok(MetaReply::Entry { mut entry }) => {
                self.cut_entry(&link, asked, &mut entry);
                self.complete(entry).await.map(Looked::Found)
            }
            Ok(MetaReply::NoEntry { entry_ms }) => {
                Ok(Looked::Absent(self.cache_ms(&link, asked, entry_ms)))
            }
            Ok(_other) => Err(ErrorCode::Protocol),
            Err(ErrorCode::NotFound) => Ok(Looked::Absent(0)),
            Err(code) => Err(code),
        }
    }

    /// Fills in the attributes where another shard has the inode, and lays our own writes over them.
    async fn complete(&self, entry: Entry) -> Result<Found, ErrorCode> {
        match entry.attr {
            Some(attr) => {
                let (attr, attr_ms) = self.lay_own_writes(attr, entry.attr_ms);
                Ok(Found {
                    attr,
                    entry_ms: entry.entry_ms,
                    attr_ms,
                })
            }
            None => {
                let (attr, attr_ms) = self.getattr(entry.ino).await?;
                Ok(Found {
                    attr,
                    entry_ms: entry.entry_ms,
                    attr_ms,
                })
            }
        }
    }

    /// Attributes as this mount sees them: with what it wrote and did not report yet.
    fn lay_own_writes(&self, mut attr: Attr, attr_ms: u32) -> (Attr, u32) {
        if attr.kind != FileKind::File {
            return (attr, attr_ms);
        }
        let Some(file) = self.file(attr.ino) else {
            return (attr, attr_ms);
        };
        let mut state = file.state();
        state.refresh(&attr, None);
        if state.is_clean() {
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
        attr.allocated += (state.dirty.bytes() as u64).next_multiple_of(4096);
        (attr, 0)
    }

    /// Attributes of an inode and how long they may be cached.
    ///
    /// # Errors
    /// `Stale` where it is gone.
    pub async fn getattr(&self, ino: Ino) -> Result<(Attr, u32), ErrorCode> {
        let link = self.link_of(ino)?;
        let asked = self.asking(&link);
        let reply = match self
            .meta(&link, &MetaRequest::GetAttr { ino, data: false })
            .await
        {
            Err(ErrorCode::Stale) => {
                let ghost = lock(&self.ghosts).get(ino);
                return ghost.map(|attr| (attr, 0)).ok_or(ErrorCode::Stale);
            }
            reply => reply?,
        };
        match reply {
            MetaReply::Attr { attr, attr_ms, .. } => {
                Ok(self.lay_own_writes(attr, self.cache_ms(&link, asked, attr_ms)))
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Checks permissions.
    ///
    /// # Errors
    /// `Access` where they are missing.
    pub async fn access(&self, who: &Credentials, ino: Ino, mask: u32) -> Result<(), ErrorCode> {
        let link = self.link_of(ino)?;
        self.meta(
            &link,
            &MetaRequest::Access {
                who: who.clone(),
                ino,
                mask,
            },
        )
        .await
        .map(|_done| ())
    }

    /// The text of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` where it is none.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>, ErrorCode> {
        let link = self.link_of(ino)?;
        match self.meta(&link, &MetaRequest::Readlink { ino }).await? {
            MetaReply::Text { text } => Ok(text.0),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Changes attributes. Unreported writes are reported first, so that they do not undo a time that is set here.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn setattr(
        &self,
        who: &Credentials,
        ino: Ino,
        change: AttrChange,
    ) -> Result<(Attr, u32), ErrorCode> {
        if let Some(file) = self.file(ino) {
            let _gate = file.gate.lock().await;
            self.flush_gated(&file).await?;
        }
        let link = self.link_of(ino)?;
        let reply = self
            .meta(
                &link,
                &MetaRequest::SetAttr {
                    who: who.clone(),
                    ino,
                    change,
                },
            )
            .await?;
        self.note_own_change(ino, &reply);
        match reply {
            MetaReply::Attr { attr, .. } => Ok((attr, 0)),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Makes something that is not a directory and is not opened.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn make(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
        new: NewFile,
    ) -> Result<Found, ErrorCode> {
        let request = self.create_request(who, parent, name, new, None);
        let link = self.link_of(parent)?;
        let asked = self.asking(&link);
        match self.meta(&link, &request).await? {
            MetaReply::Entry { mut entry } | MetaReply::Opened { mut entry, .. } => {
                self.cut_entry(&link, asked, &mut entry);
                self.complete(entry).await
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    fn create_request(
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
            open: open_flags.is_some(),
            open_flags: open_flags.unwrap_or(0),
            exclusive: open_flags.is_none_or(|open| open & flags::O_EXCL != 0),
        }
    }

    /// Makes a file and opens it, or opens the one that is there (unless `O_EXCL`).
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn create(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
        new: NewFile,
        open_flags: u32,
    ) -> Result<Opened<N>, ErrorCode> {
        let request = self.create_request(who, parent, name, new, Some(open_flags));
        self.opening(parent, &request).await
    }

    /// Makes a file without a name and opens it.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn tmpfile(
        &self,
        who: &Credentials,
        parent: Ino,
        (mode, umask): (u32, u32),
        exclusive: bool,
    ) -> Result<Opened<N>, ErrorCode> {
        let zone = self.options.zone;
        let request = MetaRequest::Tmpfile {
            who: who.clone(),
            parent,
            mode,
            umask,
            zone,
            exclusive,
        };
        self.opening(parent, &request).await
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn open(
        &self,
        who: &Credentials,
        ino: Ino,
        open_flags: u32,
    ) -> Result<Opened<N>, ErrorCode> {
        if let Some(file) = self.file(ino) {
            // What was written here is part of what this open must see.
            let is_clean = file.state().is_clean();
            if !is_clean {
                self.flush(&file).await?;
            }
        }
        self.opening(
            ino,
            &MetaRequest::Open {
                who: who.clone(),
                ino,
                open_flags,
            },
        )
        .await
    }

    async fn opening(&self, at: Ino, request: &MetaRequest) -> Result<Opened<N>, ErrorCode> {
        let link = self.link_of(at)?;
        let asked = self.asking(&link);
        let reply = match self.meta(&link, request).await {
            Err(ErrorCode::TruncateUnconfirmed) => {
                if let MetaRequest::Open { ino, .. } = request {
                    self.finish_others_truncate(*ino).await?;
                }
                self.meta(&link, request).await?
            }
            other => other?,
        };
        let MetaReply::Opened {
            mut entry,
            data,
            push,
        } = reply
        else {
            return Err(ErrorCode::Protocol);
        };
        self.cut_entry(&link, asked, &mut entry);
        let attr = entry.attr.ok_or(ErrorCode::Protocol)?;
        let file = self.open_file(&attr, data.clone());
        if push {
            if let Err(code) = self.push_truncate(entry.ino, &data).await {
                self.release(entry.ino).await.ok();
                return Err(code);
            }
            file.state().size = attr.size;
        }
        let keep_pages = lock(&self.seen).note(entry.ino, attr.change) && !push;
        let attr_ms = if push { 0 } else { entry.attr_ms };
        Ok(Opened {
            found: Found {
                attr,
                entry_ms: entry.entry_ms,
                attr_ms,
            },
            file,
            keep_pages,
        })
    }

    /// Makes a directory; in the root, with its home in `zone` (`None`: the mount's).
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn mkdir(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
        (mode, umask): (u32, u32),
        zone: Option<ZoneId>,
    ) -> Result<Found, ErrorCode> {
        let zone = zone.unwrap_or(self.options.zone);
        let link = self.link_of(parent)?;
        let asked = self.asking(&link);
        let request = MetaRequest::Mkdir {
            who: who.clone(),
            parent,
            name,
            mode,
            umask,
            zone,
        };
        match self.meta(&link, &request).await? {
            MetaReply::Entry { mut entry } => {
                self.cut_entry(&link, asked, &mut entry);
                self.complete(entry).await
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn unlink(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
    ) -> Result<(), ErrorCode> {
        let link = self.link_of(parent)?;
        let request = MetaRequest::Unlink {
            who: who.clone(),
            parent,
            name,
        };
        let reply = self.meta(&link, &request).await?;
        self.note_removed(&reply);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn rmdir(&self, who: &Credentials, parent: Ino, name: Name) -> Result<(), ErrorCode> {
        let link = self.link_of(parent)?;
        // The root shard does not know the attributes of a zone's directory.
        let looked = if parent == Ino::ROOT {
            self.lookup(who, parent, name.clone()).await.ok()
        } else {
            None
        };
        let request = MetaRequest::Rmdir {
            who: who.clone(),
            parent,
            name,
        };
        let reply = self.meta(&link, &request).await?;
        if let Some(Looked::Found(found)) = looked {
            lock(&self.ghosts).add(&found.attr);
        }
        self.note_removed(&reply);
        Ok(())
    }

    /// Remembers what a removal tells of what lost its last name.
    fn note_removed(&self, reply: &MetaReply) {
        if let MetaReply::Attr { attr, .. } = reply {
            lock(&self.ghosts).add(attr);
        }
    }

    /// Renames. Both ends must lie in one shard.
    ///
    /// # Errors
    /// `CrossShard`, and as the shard answers.
    pub async fn rename(
        &self,
        who: &Credentials,
        (parent, name): (Ino, Name),
        (new_parent, new_name): (Ino, Name),
        flags: u32,
    ) -> Result<(), ErrorCode> {
        let map = self.map();
        let shard = map.shard_of(parent.partition()).map(|shard| shard.id);
        if map.shard_of(new_parent.partition()).map(|shard| shard.id) != shard {
            return Err(ErrorCode::CrossShard);
        }
        let link = self.link_of(parent)?;
        let request = MetaRequest::Rename {
            who: who.clone(),
            parent,
            name,
            new_parent,
            new_name,
            flags,
        };
        let reply = self.meta(&link, &request).await?;
        self.note_removed(&reply);
        Ok(())
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// `CrossShard`, and as the shard answers.
    pub async fn hard_link(
        &self,
        who: &Credentials,
        ino: Ino,
        parent: Ino,
        name: Name,
    ) -> Result<Found, ErrorCode> {
        let map = self.map();
        let shard = map.shard_of(parent.partition()).map(|shard| shard.id);
        if map.shard_of(ino.partition()).map(|shard| shard.id) != shard {
            return Err(ErrorCode::CrossShard);
        }
        let link = self.link_of(parent)?;
        let reply = self
            .meta(
                &link,
                &MetaRequest::Link {
                    who: who.clone(),
                    ino,
                    parent,
                    name,
                },
            )
            .await?;
        let MetaReply::Entry { mut entry } = reply else {
            return Err(ErrorCode::Protocol);
        };
        (entry.entry_ms, entry.attr_ms) = (0, 0);
        self.complete(entry).await
    }

    /// Entries of a directory behind `cookie`; true: nothing follows.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn readdir(
        &self,
        who: &Credentials,
        dir: Ino,
        cookie: u64,
        entries: u32,
        plus: bool,
    ) -> Result<(Vec<DirEntry>, bool), ErrorCode> {
        let link = self.link_of(dir)?;
        let asked = self.asking(&link);
        let request = MetaRequest::ReadDir {
            who: who.clone(),
            dir,
            cookie,
            entries,
            plus,
        };
        let MetaReply::Dir { mut entries, end } = self.meta(&link, &request).await? else {
            return Err(ErrorCode::Protocol);
        };
        if plus {
            for item in &mut entries {
                self.cut_entry(&link, asked, &mut item.entry);
                match item.entry.attr {
                    Some(attr) => {
                        let (attr, attr_ms) = self.lay_own_writes(attr, item.entry.attr_ms);
                        (item.entry.attr, item.entry.attr_ms) = (Some(attr), attr_ms);
                    }
                    None => {
                        // Another shard has it; without its attributes the entry is listed all the same.
                        if let Ok((attr, attr_ms)) = self.getattr(item.entry.ino).await {
                            (item.entry.attr, item.entry.attr_ms) = (Some(attr), attr_ms);
                        }
                    }
                }
            }
        }
        Ok((entries, end))
    }

    /// The directory above a directory.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn parent(&self, ino: Ino) -> Result<Ino, ErrorCode> {
        let link = self.link_of(ino)?;
        match self.meta(&link, &MetaRequest::Parent { ino }).await? {
            MetaReply::Parent { parent } => Ok(parent),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoData` where there is none.
    pub async fn getxattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<Vec<u8>, ErrorCode> {
        let link = self.link_of(ino)?;
        let request = MetaRequest::GetXattr {
            who: who.clone(),
            ino,
            name: Blob(name.to_vec()),
        };
        match self.meta(&link, &request).await? {
            MetaReply::Text { text } => Ok(text.0),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Names of extended attributes.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn listxattr(&self, who: &Credentials, ino: Ino) -> Result<Vec<Vec<u8>>, ErrorCode> {
        let link = self.link_of(ino)?;
        match self
            .meta(
                &link,
                &MetaRequest::ListXattr {
                    who: who.clone(),
                    ino,
                },
            )
            .await?
        {
            MetaReply::Names { names } => Ok(names.into_iter().map(|name| name.0).collect()),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn setxattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), ErrorCode> {
        let link = self.link_of(ino)?;
        let (name, value) = (Blob(name.to_vec()), Blob(value.to_vec()));
        let reply = self
            .meta(
                &link,
                &MetaRequest::SetXattr {
                    who: who.clone(),
                    ino,
                    name,
                    value,
                    flags,
                },
            )
            .await?;
        self.note_own_change(ino, &reply);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoData` where there is none.
    pub async fn removexattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<(), ErrorCode> {
        let link = self.link_of(ino)?;
        let request = MetaRequest::RemoveXattr {
            who: who.clone(),
            ino,
            name: Blob(name.to_vec()),
        };
        let reply = self.meta(&link, &request).await?;
        self.note_own_change(ino, &reply);
        Ok(())
    }

    /// Tells the shard that a file was read (it applies relatime).
    ///
    /// # Errors
    /// As the shard answers.
    pub async fn touch(&self, ino: Ino) -> Result<(), ErrorCode> {
        let link = self.link_of(ino)?;
        // An access time is no change of what the kernel's pages show.
        self.meta(&link, &MetaRequest::Touch { ino })
            .await
            .map(|_done| ())
    }

    /// Layout and size of a file.
    ///
    /// # Errors
    /// `IsDirectory` and the like where it has none.
    pub async fn file_data(&self, ino: Ino) -> Result<(Attr, Option<FileData>), ErrorCode> {
        let link = self.link_of(ino)?;
        match self
            .meta(&link, &MetaRequest::GetAttr { ino, data: true })
            .await?
        {
            MetaReply::Attr { attr, data, .. } => Ok((self.lay_own_writes(attr, 0).0, data)),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// (bytes in all, bytes free, inodes) of the cell. Servers that do not answer count as full.
    ///
    /// # Errors
    /// Never today; reserved.
    pub async fn statfs(&self) -> Result<(u64, u64, u64), ErrorCode> {
        let map = self.map();
        let mut started = Vec::new();
        for target in &map.targets {
            if let Some(node) = map.node(target.node) {
                let epoch = zonal_types::Epoch(0);
                let place = crate::storage::Place {
                    target: target.id,
                    address: node.address.clone(),
                    epoch,
                };
                let pending =
                    self.start_storage(&place, &StorageRequest::StatFs { target: target.id }, &[]);
                started.push((place, pending));
            }
        }
        let (mut total, mut free, mut inodes) = (0, 0, 0);
        for (place, pending) in started {
            if let Ok((
                StorageReply::StatFs {
                    total: all,
                    free: left,
                    ..
                },
                _,
            )) = self.storage_reply(&place, pending, None).await
            {
                total += all;
                free += left;
            }
        }
        for shard in &map.shards {
            if let Ok(MetaReply::StatFs { inodes: some }) =
                self.meta(&self.link(shard.id), &MetaRequest::StatFs).await
            {
                inodes += some;
            }
        }
        Ok((total, free, inodes))
    }
}
