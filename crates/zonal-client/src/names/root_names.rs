//! Reads of the root's names where the root's shard gives no answer: they ask the mirror that the
//! shard of the client's zone has.
//!
//! * An answer of the mirror is not cached, neither here nor in the kernel. So names are fresh
//!   again with the first answer of the root's shard.
//! * A name that the mirror does not know may be new, a file or a symbolic link. Then the root's
//!   shard is asked once more, for the whole deadline.
//! * Changes never ask the mirror.

use crate::cell::session::Link;
use crate::client::ClientCall;
use crate::names::NamedEntry;
use crate::transport::net::Net;
use crate::transport::retry::is_passing;
use std::sync::Arc;
use zonal_types::limits::xattr_flags::ACL_ACCESS;
use zonal_types::{Attr, Blob, Credentials, ErrorCode, Ino, Name, ShardId};
use zonal_wire::meta::Listing;
use zonal_wire::{MetaReply, MetaRequest};

/// Name of the attribute with the access ACL.
const ACL_NAME: &[u8] = b"system.posix_acl_access";

/// The root as the mirror knows it.
pub(crate) struct MirroredRoot {
    pub(crate) attr: Attr,
    acl: Option<Blob>,
}

impl<N: Net> ClientCall<'_, N> {
    /// The shard of the client's zone, if it has one.
    fn mirror(&self) -> Option<Arc<Link>> {
        let map = self.map();
        let mut shards = map.shards.iter();
        let own = shards.find(|shard| shard.id != ShardId(0) && shard.zone == self.options.zone)?;
        Some(self.link(own.id))
    }

    /// Reads something of the root with `ask`, from its shard. Where that gives no answer soon,
    /// with `ask_mirror`, from the shard of the client's zone.
    pub(crate) async fn read_root<T>(
        &self,
        ask: impl AsyncFn(&Self) -> Result<T, ErrorCode>,
        ask_mirror: impl AsyncFn(&Self, &Link) -> Result<T, ErrorCode>,
    ) -> Result<T, ErrorCode> {
        let mirror = self.mirror().filter(|_| !self.context().is_brief());
        let Some(mirror) = mirror else {
            return ask(self).await;
        };
        let silence = &self.silent_servers.root;
        let ms = silence.patience_ms(self.net.now());
        if ms > 0 {
            match ask(&self.briefly(ms)).await {
                Err(code) if is_passing(code) => {}
                answer => return answer,
            }
            let root = self.link(ShardId(0));
            if let Some(server) = self.server_of(&root) {
                silence.begin(server, self.net.now());
            }
        }
        zonal_types::mark!(MirrorAsked);
        loop {
            match ask_mirror(&self.another().bounded(), &mirror).await {
                // It does not know, or is older than this client.
                Err(ErrorCode::NotFound | ErrorCode::Protocol) => return ask(self).await,
                Err(code) if is_passing(code) => {}
                answer => return answer,
            }
            if !self.context().is_endless() {
                return ask(self).await;
            }
            // Both are silent, and either may come back first.
            match ask(&self.another().bounded()).await {
                Err(code) if is_passing(code) => {}
                answer => return answer,
            }
        }
    }

    /// Looks a first-level directory up in the mirror.
    pub(crate) async fn mirrored_name(
        &self,
        mirror: &Link,
        who: &Credentials,
        name: &Name,
    ) -> Result<NamedEntry, ErrorCode> {
        let (who, name) = (who.clone(), name.clone());
        let request = MetaRequest::MirroredName { who, name };
        let MetaReply::MirroredNames { entries, .. } = self.meta(mirror, &request).await? else {
            return Err(ErrorCode::Protocol);
        };
        let found = entries.into_iter().next().ok_or(ErrorCode::NotFound)?;
        Ok(NamedEntry::Mirrored(found.entry))
    }

    /// A page of the first-level directories in the mirror.
    pub(crate) async fn mirrored_listing(
        &self,
        mirror: &Link,
        who: &Credentials,
        (cookie, entries): (u64, u32),
    ) -> Result<Listing, ErrorCode> {
        let who = who.clone();
        let request = MetaRequest::MirroredNames {
            who,
            cookie,
            entries,
        };
        let MetaReply::MirroredNames { entries, end, .. } = self.meta(mirror, &request).await?
        else {
            return Err(ErrorCode::Protocol);
        };
        Ok(Listing {
            dir: Ino::ROOT,
            entries,
            end,
            term_ms: 0,
        })
    }

    /// The root's attributes in the mirror, where `who` may do this in the root.
    pub(crate) async fn mirrored_root(
        &self,
        mirror: &Link,
        who: &Credentials,
        mask: u32,
    ) -> Result<MirroredRoot, ErrorCode> {
        let who = who.clone();
        let request = MetaRequest::MirroredRoot { who, mask };
        match self.meta(mirror, &request).await? {
            MetaReply::MirroredRoot { attr, acl, .. } => Ok(MirroredRoot { attr, acl }),
            _other => Err(ErrorCode::Protocol),
        }
    }
}

impl MirroredRoot {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoData` where the root has none of this name; `NotFound` where the mirror does not know.
    pub(crate) fn xattr(&self, name: &[u8]) -> Result<Vec<u8>, ErrorCode> {
        let acl = self.acl.as_ref().filter(|_| name == ACL_NAME);
        match acl {
            Some(acl) => Ok(acl.0.clone()),
            None if name == ACL_NAME || self.attr.xattrs & !ACL_ACCESS == 0 => {
                Err(ErrorCode::NoData)
            }
            None => Err(ErrorCode::NotFound),
        }
    }

    /// Names of extended attributes.
    ///
    /// # Errors
    /// `NotFound` where the mirror does not know.
    pub(crate) fn xattr_names(&self) -> Result<Vec<Vec<u8>>, ErrorCode> {
        match self.attr.xattrs & !ACL_ACCESS {
            0 => Ok(self.acl.iter().map(|_acl| ACL_NAME.to_vec()).collect()),
            _others => Err(ErrorCode::NotFound),
        }
    }
}
