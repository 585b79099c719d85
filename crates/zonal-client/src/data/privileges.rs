//! Privileges: takes in answers about a file's set-id bits and capabilities, and clears them before
//! a write (`file/privileges.rs`, with its invariants).

use crate::cell::session::{Link, RequestStart};
use crate::client::{Client, ClientCall};
use crate::file::File;
use crate::file::privileges::{PrivilegeAnswer, said};
use crate::transport::net::Net;
use zonal_types::{Attr, Credentials, ErrorCode, Ino, Instant};
use zonal_wire::{MetaReply, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Notes an answer under the shard's grant.
    pub(crate) fn note_privileges(
        &self,
        file: &File<N>,
        attr: &Attr,
        (link, asked, granted_ms): (&Link, RequestStart, u32),
    ) {
        let mut state = file.state();
        // Under the lock: invariant 2.
        let left = self.granted_ms(link, asked, granted_ms);
        let until = self.net.now().plus_ms(left.into());
        state.privileges.note(attr.change, said(attr), until);
    }

    /// Notes the reply to an own change, for which no event comes. It grants nothing.
    pub(crate) fn note_own_privileges(&self, attr: &Attr) {
        if let Some(file) = self.file(attr.ino) {
            let mut state = file.state();
            state
                .privileges
                .note(attr.change, said(attr), Instant::default());
        }
    }

    /// Forgets the privileges of an inode after an event, or after an own change whose reply does
    /// not contain them.
    pub(crate) fn doubt_privileges(&self, ino: Ino) {
        if let Some(file) = self.file(ino) {
            file.state().privileges.doubt();
        }
    }
}

impl<N: Net> Client<N> {
    /// Whether the client knows that the file has no privileges.
    #[must_use]
    pub fn has_no_privileges(&self, file: &File<N>) -> bool {
        file.state().privileges.are_none(self.net.now())
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Clears set-id bits and capabilities before a write by `who`, who has no right to keep them,
    /// through an open file. True where the file had some.
    ///
    /// # Errors
    /// Those of the shard.
    pub async fn take_privileges(
        &self,
        who: &Credentials,
        file: &File<N>,
    ) -> Result<bool, ErrorCode> {
        let ino = file.ino;
        let link = self.reach(ino).await?;
        let asked = self.asking(&link);
        let request = MetaRequest::GetAttr { ino, data: false };
        let MetaReply::Attr { attr, attr_ms, .. } = self.meta(&link, &request).await? else {
            return Err(ErrorCode::Protocol);
        };
        self.note_privileges(file, &attr, (&link, asked, attr_ms));
        if said(&attr) != PrivilegeAnswer::Some {
            return Ok(false);
        }
        let who = who.clone();
        let request = MetaRequest::TakePrivileges { who, ino };
        let reply = self.meta(&link, &request).await?;
        self.note_own_change(ino, &reply);
        Ok(true)
    }
}
