//! Extended attributes: the shard keeps them and checks permissions.

use crate::cell::session::Link;
use crate::client::ClientCall;
use crate::transport::net::Net;
use zonal_types::limits::xattr_flags::CAPABILITY_NAME;
use zonal_types::{Blob, Credentials, ErrorCode, Ino};
use zonal_wire::{MetaReply, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoData` where the inode has none of this name.
    pub async fn getxattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<Vec<u8>, ErrorCode> {
        let link = self.reach(ino).await?;
        let request = MetaRequest::GetXattr {
            who: who.clone(),
            ino,
            name: Blob(name.to_vec()),
        };
        let reply = match ino {
            Ino::ROOT => {
                let ask = async |call: &Self| call.meta(&link, &request).await;
                let ask_mirror = async |call: &Self, mirror: &Link| {
                    let root = call.mirrored_root(mirror, who, 0).await?;
                    root.xattr(name)
                        .map(|value| MetaReply::Text { text: Blob(value) })
                };
                self.read_root(ask, ask_mirror).await
            }
            _ => self.meta(&link, &request).await,
        };
        match reply {
            Ok(MetaReply::Text { text }) => Ok(text.0),
            Ok(_other) => Err(ErrorCode::Protocol),
            // The kernel asks for the ACL of a directory that a process stands in.
            Err(ErrorCode::Stale) if self.ghost(ino).is_some() => Err(ErrorCode::NoData),
            Err(code) => Err(code),
        }
    }

    /// Names of extended attributes.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn listxattr(&self, who: &Credentials, ino: Ino) -> Result<Vec<Vec<u8>>, ErrorCode> {
        let link = self.reach(ino).await?;
        let request = MetaRequest::ListXattr {
            who: who.clone(),
            ino,
        };
        let reply = match ino {
            Ino::ROOT => {
                let ask = async |call: &Self| call.meta(&link, &request).await;
                let ask_mirror = async |call: &Self, mirror: &Link| {
                    let root = call.mirrored_root(mirror, who, 0).await?;
                    let names = root.xattr_names()?.into_iter().map(Blob).collect();
                    Ok(MetaReply::Names { names })
                };
                self.read_root(ask, ask_mirror).await
            }
            _ => self.meta(&link, &request).await,
        };
        match reply {
            Ok(MetaReply::Names { names }) => Ok(names.into_iter().map(|name| name.0).collect()),
            Ok(_other) => Err(ErrorCode::Protocol),
            Err(ErrorCode::Stale) if self.ghost(ino).is_some() => Ok(Vec::new()),
            Err(code) => Err(code),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn setxattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        let request = MetaRequest::SetXattr {
            who: who.clone(),
            ino,
            name: Blob(name.to_vec()),
            value: Blob(value.to_vec()),
            flags,
        };
        let reply = self.meta(&link, &request).await?;
        self.note_own_change(ino, &reply);
        if name == CAPABILITY_NAME {
            // Replies to earlier requests do not contain it either.
            link.count_event();
            self.doubt_privileges(ino);
        }
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoData` where the inode has none of this name.
    pub async fn removexattr(
        &self,
        who: &Credentials,
        ino: Ino,
        name: &[u8],
    ) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        let request = MetaRequest::RemoveXattr {
            who: who.clone(),
            ino,
            name: Blob(name.to_vec()),
        };
        let reply = self.meta(&link, &request).await?;
        self.note_own_change(ino, &reply);
        Ok(())
    }
}
