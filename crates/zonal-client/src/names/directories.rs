//! Directories: mkdir, rmdir, and listings with attributes in one round trip.

use crate::cell::session::{Link, RequestStart};
use crate::client::ClientCall;
use crate::inode_cache::ListingRequest;
use crate::names::{FoundEntry, LookupResult};
use crate::transport::net::Net;
use zonal_types::{Credentials, DataId, ErrorCode, Ino, Name, ZoneId};
use zonal_wire::meta::Listing;
use zonal_wire::{DirEntry, MetaReply, MetaRequest};

/// A request for a page of a directory listing.
#[derive(Debug, Clone, Copy)]
pub struct ListingPage {
    /// Cookie behind which the page begins; 0: from the first entry.
    pub cookie: u64,
    /// Most entries of the page.
    pub entries: u32,
    /// Whether the page has attributes.
    pub plus: bool,
    /// The kernel keeps the page: see `listing_left_ms`.
    pub is_kept: bool,
}

impl ListingPage {
    /// A page for a caller that keeps nothing.
    #[must_use]
    pub fn new(cookie: u64, entries: u32, plus: bool) -> Self {
        Self {
            cookie,
            entries,
            plus,
            is_kept: false,
        }
    }
}

/// Truncates a listing to `entries` entries.
fn first_of(mut listing: Listing, entries: u32) -> Listing {
    listing.end &= listing.entries.len() <= entries as usize;
    listing.entries.truncate(entries as usize);
    listing
}

impl<N: Net> ClientCall<'_, N> {
    /// Makes a directory. A first-level directory gets its home in `zone` (`None`: the mount's
    /// zone).
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn mkdir(
        &self,
        who: &Credentials,
        parent: Ino,
        name: Name,
        (mode, umask): (u32, u32),
        zone: Option<ZoneId>,
    ) -> Result<FoundEntry, ErrorCode> {
        let zone = zone.unwrap_or(self.options.zone);
        self.inode_cache.will_have(parent, &name);
        let link = self.reach(parent).await?;
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
                self.inode_cache
                    .note_renewed(self, &link, asked, parent, &entry);
                if let Some(attr) = &entry.attr {
                    self.inode_cache
                        .note_made(self, &link, asked, attr, entry.attr_ms);
                }
                self.limit_leases(&link, asked, &mut entry);
                self.complete(entry).await
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn rmdir(&self, who: &Credentials, parent: Ino, name: Name) -> Result<(), ErrorCode> {
        let link = self.reach(parent).await?;
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
        if let Some(LookupResult::Found(found)) = looked {
            self.inode_cache.forget_removed(&found.attr);
        }
        self.note_removed(&reply);
        Ok(())
    }

    /// Reads one page of a directory. Returns the entries, and whether the listing has ended.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn readdir(
        &self,
        who: &Credentials,
        dir: Ino,
        part: ListingPage,
    ) -> Result<(Vec<DirEntry>, bool), ErrorCode> {
        let link = self.reach(dir).await?;
        let of = (&*link, self.inode_cache.lease_request(self, &link));
        let (asked, listing) = match self.cached_listing(&link, who, dir, part) {
            Some(listing) => (Some(self.asking(&link)), listing),
            None => {
                let (asked, listing) = self.list_or_mirror(&link, who, dir, part).await?;
                if part.plus && asked.is_some() {
                    let page = (&*listing.entries, listing.end);
                    self.inode_cache
                        .keep_page(self, of, (dir, part.cookie), page);
                }
                (asked, listing)
            }
        };
        let ListingPage {
            cookie,
            plus,
            is_kept,
            ..
        } = part;
        let Listing {
            mut entries, end, ..
        } = listing;
        if self.lists_ahead(who, part) {
            self.inode_cache.note_beside(self, &entries);
        }
        // Other shards have these inodes. Without an answer the entry is listed without attributes.
        let others = entries.iter().filter(|item| item.entry.attr.is_none());
        let others = others.map(|item| item.entry.ino).filter(|_| plus);
        let mut elsewhere = self.listed_attributes(others.collect()).await;
        // Behind the last wait, so that a listing is not kept past an event.
        if let Some(asked) = asked
            && is_kept
            && cookie == 0
        {
            self.inode_cache
                .note_listed(self, &link, asked, dir, &entries);
        }
        for item in entries.iter_mut().filter(|_| plus) {
            if let Some(asked) = asked {
                self.limit_leases(&link, asked, &mut item.entry);
            }
            let own = item.entry.attr.map(|attr| {
                let attr_ms = item.entry.attr_ms;
                self.lay_own_writes(attr, attr_ms)
            });
            if let Some((attr, attr_ms)) = own.or_else(|| elsewhere.remove(&item.entry.ino)) {
                (item.entry.attr, item.entry.attr_ms) = (Some(attr), attr_ms);
            }
        }
        Ok((entries, end))
    }

    /// As [`Self::list`], or from the mirror of the root: then it was not asked for at the shard,
    /// and nothing of it may be cached.
    async fn list_or_mirror(
        &self,
        link: &Link,
        who: &Credentials,
        dir: Ino,
        part: ListingPage,
    ) -> Result<(Option<RequestStart>, Listing), ErrorCode> {
        let ask = async |call: &Self| {
            let (asked, listing) = call.list(link, who, dir, part).await?;
            Ok((Some(asked), listing))
        };
        if dir != Ino::ROOT {
            return ask(self).await;
        }
        let ask_mirror = async |call: &Self, mirror: &Link| {
            let page = (part.cookie, part.entries);
            let listing = call.mirrored_listing(mirror, who, page).await?;
            Ok((None, listing))
        };
        self.read_root(ask, ask_mirror).await
    }

    /// Gets a page from the prefetched listings or from the shard.
    async fn list(
        &self,
        link: &Link,
        who: &Credentials,
        dir: Ino,
        part: ListingPage,
    ) -> Result<(RequestStart, Listing), ErrorCode> {
        let ListingPage {
            cookie,
            entries,
            plus,
            ..
        } = part;
        let mut asking = ListingRequest::alone(self.asking(link));
        if cookie == 0 && self.lists_ahead(who, part) {
            match self
                .inode_cache
                .begin_listing(self, link, asking.asked, dir)
            {
                Ok((asked, listing)) => return Ok((asked, first_of(listing, entries))),
                Err(together) => asking = together,
            }
        }
        let who = who.clone();
        if asking.beside.is_empty() {
            let request = MetaRequest::ReadDir {
                who,
                dir,
                cookie,
                entries,
                plus,
            };
            let MetaReply::Dir { entries, end } = self.meta(link, &request).await? else {
                return Err(ErrorCode::Protocol);
            };
            let listing = Listing {
                dir,
                entries,
                end,
                term_ms: 0,
            };
            return Ok((asking.asked, listing));
        }
        let dirs = std::iter::once(dir).chain(asking.beside.iter().copied());
        let dirs = dirs.collect();
        let request = MetaRequest::ReadDirs { who, dirs, entries };
        let MetaReply::Dirs { listings } = self.meta(link, &request).await? else {
            return Err(ErrorCode::Protocol);
        };
        let mut listings = listings.into_iter();
        let first = listings.next().filter(|listing| listing.dir == dir);
        let first = first.ok_or(ErrorCode::Protocol)?;
        self.inode_cache
            .keep_listings(self, link, &asking, listings, entries);
        Ok((asking.asked, first))
    }

    /// Whether this page may use prefetch. Only the superuser may read every sibling directory. A
    /// mount lists as the superuser after it has checked the right of the user at opendir. Nothing
    /// is kept without leases.
    fn lists_ahead(&self, who: &Credentials, part: ListingPage) -> bool {
        part.plus && self.caches() && *who == Credentials::root()
    }

    /// The file that has the bytes of a data id. For commands.
    ///
    /// # Errors
    /// `Stale` where no file has them; those of the shard.
    pub async fn file_of(&self, data_id: DataId) -> Result<Ino, ErrorCode> {
        let link = self.reach_partition(data_id.partition()).await?;
        match self.meta(&link, &MetaRequest::FileOf { data_id }).await? {
            MetaReply::File { ino } => Ok(ino),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// The parent directory of a directory.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn parent(&self, ino: Ino) -> Result<Ino, ErrorCode> {
        if ino == Ino::ROOT {
            return Ok(Ino::ROOT);
        }
        let link = self.reach(ino).await?;
        match self.meta(&link, &MetaRequest::Parent { ino }).await? {
            MetaReply::Parent { parent } => Ok(parent),
            _other => Err(ErrorCode::Protocol),
        }
    }
}
