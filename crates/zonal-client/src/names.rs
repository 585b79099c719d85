//! Names: look-up, creation, rename, link, removal. Each takes one round trip, or two where the
//! inode lies in another shard than its name.

mod access_times;
mod attributes;
mod cached_answers;
mod directories;
mod events;
mod listed_attributes;
mod locate;
mod lock_retries;
mod locks;
mod open;
mod restripe;
mod root_names;
mod xattrs;

pub use directories::ListingPage;
pub use events::PolledEvents;
pub use locate::Located;
pub use locks::{LockOutcome, RequeuedLock};
pub use restripe::CopiedState;

use crate::cell::session::Link;
use crate::client::ClientCall;
use crate::file::File;
use crate::inode_cache::LeasedLookup;
use crate::transport::net::Net;
use std::sync::Arc;
use zonal_types::{Attr, Credentials, ErrorCode, FileKind, Ino, Name};
use zonal_wire::{Entry, MetaReply, MetaRequest, NewKind};

/// A name found, with attributes.
#[derive(Debug, Clone)]
pub struct FoundEntry {
    /// Inode and attributes.
    pub attr: Attr,
    /// How long the name may be cached, ms.
    pub entry_ms: u32,
    /// How long the attributes may be cached, ms.
    pub attr_ms: u32,
}

/// Result of a look-up.
#[derive(Debug, Clone)]
pub enum LookupResult {
    /// The name exists.
    Found(FoundEntry),
    /// The name does not exist; that may be cached for this long, ms.
    Absent(u32),
}

/// A name's entry, with or without attributes.
pub(crate) enum NamedEntry {
    /// The name exists.
    Entry(Entry),
    /// It does not exist; that may be cached for this long, ms.
    Absent(u32),
    /// It exists as far as the mirror of the root knows.
    Mirrored(Entry),
}

/// An opened file.
pub struct OpenedFile<N: Net> {
    /// Its entry.
    pub found: FoundEntry,
    /// The file; call `release` once for each open.
    pub file: Arc<File<N>>,
    /// The kernel's pages of the file are current.
    pub keep_pages: bool,
    /// The version that the kernel's pages show after the open has dropped the old ones; then call
    /// [`crate::Client::pages_dropped`].
    pub changed: Option<crate::inode_cache::PendingPageVersion>,
}

/// Parameters of a new inode.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// Kind of inode.
    pub kind: NewKind,
    /// Permission bits.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
}

impl<N: Net> ClientCall<'_, N> {
    /// Looks a name up.
    ///
    /// # Errors
    /// Those of the shard; an absent name is not an error.
    pub async fn lookup(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
    ) -> Result<LookupResult, ErrorCode> {
        if let Some(ms) = self.inode_cache.known_absent(self, parent, &name) {
            return Ok(LookupResult::Absent(ms));
        }
        let link = self.reach(parent).await?;
        let found = match self.cached_lookup(&link, who, parent, &name) {
            Some(LeasedLookup::Found(entry)) => NamedEntry::Entry(entry),
            Some(LeasedLookup::Absent(ms)) => NamedEntry::Absent(ms),
            None if parent == Ino::ROOT => {
                let ask = async |call: &Self| call.look_up(&link, who, parent, &name).await;
                let ask_mirror =
                    async |call: &Self, mirror: &Link| call.mirrored_name(mirror, who, &name).await;
                self.read_root(ask, ask_mirror).await?
            }
            None => self.look_up(&link, who, parent, &name).await?,
        };
        match found {
            NamedEntry::Entry(entry) => self.complete(entry).await.map(LookupResult::Found),
            NamedEntry::Absent(ms) => Ok(LookupResult::Absent(ms)),
            NamedEntry::Mirrored(entry) => match self.complete(entry).await {
                // Removed since, and only the root's shard knows what has the name now.
                Err(ErrorCode::Stale) => Err(ErrorCode::TimedOut),
                found => found.map(LookupResult::Found),
            },
        }
    }

    /// Asks a shard for a name.
    async fn look_up(
        &self,
        link: &Link,
        who: &Credentials,
        parent: Ino,
        name: &Name,
    ) -> Result<NamedEntry, ErrorCode> {
        let asked = self.asking(link);
        let of = (link, self.inode_cache.lease_request(self, link));
        let request = MetaRequest::Lookup {
            who: who.clone(),
            parent,
            name: name.clone(),
        };
        match self.meta(link, &request).await {
            Ok(MetaReply::Entry { mut entry }) => {
                let kept = (Some(&entry), entry.entry_ms);
                self.inode_cache.keep_name(self, of, (parent, name), kept);
                self.limit_leases(link, asked, &mut entry);
                Ok(NamedEntry::Entry(entry))
            }
            Ok(MetaReply::NoEntry { entry_ms }) => {
                let kept = (None, entry_ms);
                self.inode_cache.keep_name(self, of, (parent, name), kept);
                Ok(NamedEntry::Absent(self.kernel_ms(link, asked, entry_ms)))
            }
            Ok(_other) => Err(ErrorCode::Protocol),
            Err(ErrorCode::NotFound) => Ok(NamedEntry::Absent(0)),
            Err(code) => Err(code),
        }
    }

    /// Fetches the attributes where another shard has the inode, and lays own writes over them.
    pub(crate) async fn complete(&self, entry: Entry) -> Result<FoundEntry, ErrorCode> {
        match entry.attr {
            Some(attr) => {
                let (attr, attr_ms) = self.lay_own_writes(attr, entry.attr_ms);
                Ok(FoundEntry {
                    attr,
                    entry_ms: entry.entry_ms,
                    attr_ms,
                })
            }
            None => {
                let (attr, attr_ms) = self.stat(entry.ino).await?;
                if attr.kind == FileKind::Directory && attr.nlink == 0 {
                    // Removed since the look-up. Only processes that already hold it see its last
                    // attributes.
                    return Err(ErrorCode::Stale);
                }
                Ok(FoundEntry {
                    attr,
                    entry_ms: entry.entry_ms,
                    attr_ms,
                })
            }
        }
    }

    /// The text of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` where the inode is not a symbolic link.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>, ErrorCode> {
        let link = self.reach(ino).await?;
        match self.meta(&link, &MetaRequest::Readlink { ino }).await? {
            MetaReply::Text { text } => Ok(text.0),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Makes an inode that is neither a directory nor opened.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn make(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
        new: NewFile,
    ) -> Result<FoundEntry, ErrorCode> {
        self.inode_cache.will_have(parent, &name);
        let request = self.create_request(who, parent, name, new, None);
        let link = self.reach(parent).await?;
        let asked = self.asking(&link);
        match self.meta(&link, &request).await? {
            MetaReply::Entry { mut entry }
            | MetaReply::Opened { mut entry, .. }
            | MetaReply::OpenedSmall { mut entry, .. } => {
                self.inode_cache
                    .note_renewed(self, &link, asked, parent, &entry);
                self.limit_leases(&link, asked, &mut entry);
                self.complete(entry).await
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Removes a name, unless it names a directory.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn unlink(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
    ) -> Result<(), ErrorCode> {
        let link = self.reach(parent).await?;
        let request = MetaRequest::Unlink {
            who: who.clone(),
            parent,
            name,
        };
        let reply = self.meta(&link, &request).await?;
        self.note_removed(&reply);
        Ok(())
    }

    /// Remembers the attributes of an inode that lost its last name.
    pub(crate) fn note_removed(&self, reply: &MetaReply) {
        if let MetaReply::Attr { attr, .. } = reply {
            self.inode_cache.forget_removed(attr);
        }
    }

    /// Renames within one shard.
    ///
    /// # Errors
    /// `CrossShard` where the names lie in different shards; those of the shard.
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
        let link = self.reach(parent).await?;
        self.inode_cache.will_have(new_parent, &new_name);
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
    /// `CrossShard` where the names lie in different shards; those of the shard.
    pub async fn hard_link(
        &self,
        who: &Credentials,
        ino: Ino,
        parent: Ino,
        name: Name,
    ) -> Result<FoundEntry, ErrorCode> {
        let map = self.map();
        let shard = map.shard_of(parent.partition()).map(|shard| shard.id);
        if map.shard_of(ino.partition()).map(|shard| shard.id) != shard {
            return Err(ErrorCode::CrossShard);
        }
        let link = self.reach(parent).await?;
        self.inode_cache.will_have(parent, &name);
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
        if let Some(attr) = &entry.attr {
            self.note_own_privileges(attr);
        }
        self.complete(entry).await
    }
}
