//! Privileges: set-id bits and capabilities of a file. A write by a user without the right to keep
//! them clears them, before anybody can execute the written bytes. A write sends no request where
//! the client knows that the file has none.
//!
//! *Invariants*
//!
//! 1. The knowledge holds under a grant of the shard. The shard delays a change of privileges until
//!    this client has acknowledged the event that ends the grant.
//! 2. The event is counted at its link before that. A grant is checked against the count under the
//!    file's lock.
//! 3. Of two answers the one with the later change counts.
//!
//! The write's own report clears the bits again, where another client set some between the check
//! and the arrival of the bytes.
//!
//! Cost per write: none under a grant ([`zonal_types::limits::CACHE_TERM_MS`]), which comes with
//! the open; otherwise one round trip per term. A file with several names gets no grant: each write
//! takes a round trip.

use crate::client::Client;
use crate::file::File;
use crate::net::Net;
use crate::operation::ClientCall;
use crate::session::{Link, RequestStart};
use zonal_types::limits::xattr_flags;
use zonal_types::{Attr, Credentials, ErrorCode, Ino, Instant};
use zonal_wire::{MetaReply, MetaRequest};

/// Bits of a mode: set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

const FOR_EVER: Instant = Instant(u64::MAX);

/// Privileges in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PrivilegeAnswer {
    Some,
    None,
    /// None, and the file has no name: nobody can open it to execute it or to set some.
    Never,
}

fn said(attr: &Attr) -> PrivilegeAnswer {
    let has_some = attr.mode & SET_ID != 0 || attr.xattrs & xattr_flags::CAPABILITY != 0;
    match (has_some, attr.nlink) {
        (true, _) => PrivilegeAnswer::Some,
        (false, 0) => PrivilegeAnswer::Never,
        (false, _) => PrivilegeAnswer::None,
    }
}

/// Known privileges of a file.
#[derive(Debug, Default)]
pub(crate) struct Privileges {
    /// The file has none until this time.
    none_until: Instant,
    /// Change counter of the latest answer.
    change: u64,
}

impl Privileges {
    fn are_none(&self, now: Instant) -> bool {
        now < self.none_until
    }

    /// Forgets that the file has none.
    pub(crate) fn doubt(&mut self) {
        self.none_until = Instant::default();
    }

    /// Notes an answer with the change counter `change`.
    fn note(&mut self, change: u64, said: PrivilegeAnswer, until: Instant) {
        if change < self.change {
            return;
        }
        self.change = change;
        match said {
            PrivilegeAnswer::Some => self.doubt(),
            PrivilegeAnswer::Never => self.none_until = FOR_EVER,
            // The file has a name again.
            PrivilegeAnswer::None if self.none_until == FOR_EVER => self.none_until = until,
            PrivilegeAnswer::None => self.none_until = self.none_until.max(until),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_privileges_while_the_latest_answer_says_so() {
        let mut known = Privileges::default();
        assert!(!known.are_none(Instant(0)));
        known.note(3, PrivilegeAnswer::None, Instant(9));
        assert!(known.are_none(Instant(8)) && !known.are_none(Instant(9)));
        known.note(5, PrivilegeAnswer::Some, Instant(20));
        assert!(!known.are_none(Instant(8)));
        known.note(4, PrivilegeAnswer::None, Instant(20));
        assert!(!known.are_none(Instant(8)), "an older answer");
        known.note(6, PrivilegeAnswer::None, Instant(20));
        assert!(known.are_none(Instant(19)));
        known.doubt();
        assert!(!known.are_none(Instant(8)));
        known.note(7, PrivilegeAnswer::Never, Instant(0));
        assert!(known.are_none(Instant(1 << 60)));
        known.note(8, PrivilegeAnswer::None, Instant(0));
        assert!(!known.are_none(Instant(8)), "it has a name now");
    }
}
