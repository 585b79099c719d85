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

use zonal_types::limits::xattr_flags;
use zonal_types::{Attr, Instant};

/// Bits of a mode: set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

const FOR_EVER: Instant = Instant(u64::MAX);

/// Privileges in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrivilegeAnswer {
    Some,
    None,
    /// None, and the file has no name: nobody can open it to execute it or to set some.
    Never,
}

pub(crate) fn said(attr: &Attr) -> PrivilegeAnswer {
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
    pub(crate) fn are_none(&self, now: Instant) -> bool {
        now < self.none_until
    }

    /// Forgets that the file has none.
    pub(crate) fn doubt(&mut self) {
        self.none_until = Instant::default();
    }

    /// Notes an answer with the change counter `change`.
    pub(crate) fn note(&mut self, change: u64, said: PrivilegeAnswer, until: Instant) {
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
