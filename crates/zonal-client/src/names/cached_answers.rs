//! Answers from the cache of inodes, for users whose right is certain without the shard.

use crate::cell::session::Link;
use crate::client::ClientCall;
use crate::inode_cache::LeasedLookup;
use crate::names::ListingPage;
use crate::transport::net::Net;
use zonal_types::limits::xattr_flags::ACL_ACCESS;
use zonal_types::{Attr, Credentials, FileKind, Ino, Name};
use zonal_wire::meta::Listing;
use zonal_wire::meta::flags::{R_OK, X_OK};

impl<N: Net> ClientCall<'_, N> {
    /// A look-up that leases answer.
    pub(crate) fn cached_lookup(
        &self,
        link: &Link,
        who: &Credentials,
        parent: Ino,
        name: &Name,
    ) -> Option<LeasedLookup> {
        if who.uid != 0 && !self.permits(link, who, parent, X_OK) {
            return None;
        }
        self.inode_cache.leased_name(self, link, parent, name)
    }

    /// A page of a listing that leases answer.
    pub(crate) fn cached_listing(
        &self,
        link: &Link,
        who: &Credentials,
        dir: Ino,
        part: ListingPage,
    ) -> Option<Listing> {
        if who.uid != 0 && !self.permits(link, who, dir, R_OK) {
            return None;
        }
        let from = (dir, part.cookie);
        self.inode_cache.leased_page(self, link, from, part.entries)
    }

    /// Whether leased attributes alone show that `who` has these permissions.
    pub(crate) fn permits(&self, link: &Link, who: &Credentials, ino: Ino, mask: u32) -> bool {
        let leased = self.inode_cache.leased_attr(self, link, ino);
        leased.is_some_and(|(attr, _ms)| mode_permits(&attr, who, mask))
    }
}

/// Whether mode bits let `who` do this; false where an ACL may decide.
fn mode_permits(attr: &Attr, who: &Credentials, mask: u32) -> bool {
    if who.uid == 0 {
        return attr.kind == FileKind::Directory || mask & X_OK == 0;
    }
    if attr.xattrs & ACL_ACCESS != 0 {
        return false;
    }
    let bits = if who.uid == attr.uid {
        attr.mode >> 6
    } else if who.in_group(attr.gid) {
        attr.mode >> 3
    } else {
        attr.mode
    };
    mask & !bits & 7 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode_cache::sample_directory;
    use zonal_wire::meta::flags::W_OK;

    #[test]
    fn mode_bits_decide_where_there_is_no_acl() {
        let mut attr = Attr {
            mode: 0o750,
            uid: 7,
            gid: 8,
            ..sample_directory(5, 1)
        };
        let user = |uid, gid| Credentials {
            uid,
            gid,
            groups: Vec::new(),
        };
        let permits = |attr: &Attr, uid, gid, mask| mode_permits(attr, &user(uid, gid), mask);
        assert!(permits(&attr, 7, 1, R_OK | W_OK | X_OK));
        assert!(permits(&attr, 9, 8, R_OK | X_OK) && !permits(&attr, 9, 8, W_OK));
        assert!(!permits(&attr, 9, 9, R_OK) && permits(&attr, 0, 0, W_OK));
        attr.xattrs = ACL_ACCESS;
        assert!(!permits(&attr, 7, 1, R_OK) && permits(&attr, 0, 0, R_OK));
        attr.kind = FileKind::File;
        assert!(!permits(&attr, 0, 0, X_OK));
    }
}
