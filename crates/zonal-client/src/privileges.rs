//! Set-id bits and capabilities of a file, which a write by one who has no right to keep them
//! takes: before anybody executes with them what was written. A write asks for nothing where it is
//! known that there are none.
//!
//! *Invariants*: (1) it is known under a grant of the shard only, whose change waits until this
//! client has acknowledged the event that ends what is known here; (2) the event is counted at its
//! link before that, and a grant is checked against the count under the file's lock; (3) of two
//! answers the one with the later change counts.
//!
//! The write's own report takes the bits again, where another client gave some between the question
//! and its bytes' arrival.
//!
//! Per write: nothing; one round trip a grant's term ([`zonal_types::limits::CACHE_TERM_MS`]),
//! which an open brings along; one a write to a file with several names, whose attributes nobody
//! grants.

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

/// What an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PrivilegeAnswer {
    Some,
    None,
    /// None, and the file has no name: nobody opens it any more, to execute it or to give it some.
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

/// What is known of a file.
#[derive(Debug, Default)]
pub(crate) struct Privileges {
    /// Until then it has none.
    none_until: Instant,
    /// Change counter of the answer that says so.
    change: u64,
}

impl Privileges {
    fn are_none(&self, now: Instant) -> bool {
        now < self.none_until
    }

    /// They may be others than was known.
    pub(crate) fn doubt(&mut self) {
        self.none_until = Instant::default();
    }

    /// `change`: its counter in the answer.
    fn note(&mut self, change: u64, said: PrivilegeAnswer, until: Instant) {
        if change < self.change {
            return;
        }
        self.change = change;
        match said {
            PrivilegeAnswer::Some => self.doubt(),
            PrivilegeAnswer::Never => self.none_until = FOR_EVER,
            // It has been given a name.
            PrivilegeAnswer::None if self.none_until == FOR_EVER => self.none_until = until,
            PrivilegeAnswer::None => self.none_until = self.none_until.max(until),
        }
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Takes over what an answer says, with the time that the shard granted.
    pub(crate) fn note_privileges(
        &self,
        file: &File<N>,
        attr: &Attr,
        (link, asked, granted_ms): (&Link, RequestStart, u32),
    ) {
        let mut state = file.state();
        // Under the lock: see (2) at the head.
        let left = self.granted_ms(link, asked, granted_ms);
        let until = self.net.now().plus_ms(left.into());
        state.privileges.note(attr.change, said(attr), until);
    }

    /// The same of a reply to a change of our own, of which no event comes. It grants nothing.
    pub(crate) fn note_own_privileges(&self, attr: &Attr) {
        if let Some(file) = self.file(attr.ino) {
            let mut state = file.state();
            state
                .privileges
                .note(attr.change, said(attr), Instant::default());
        }
    }

    /// An event named the inode, or a change of our own whose reply does not tell what it has then.
    pub(crate) fn doubt_privileges(&self, ino: Ino) {
        if let Some(file) = self.file(ino) {
            file.state().privileges.doubt();
        }
    }
}

impl<N: Net> Client<N> {
    /// Whether it is known that a write takes nothing.
    #[must_use]
    pub fn has_no_privileges(&self, file: &File<N>) -> bool {
        file.state().privileges.are_none(self.net.now())
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Before a write by `who`, who has no right to keep them, through an open file: takes set-id
    /// bits and capabilities. True where there were some.
    ///
    /// # Errors
    /// As the shard answers.
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
    fn there_are_none_for_as_long_as_the_latest_answer_says() {
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
