//! Write failures: writes that failed after they had been accepted. A sequence number lets each
//! open of the file get each failure once, independent of other opens (like errseq of Linux,
//! lib/errseq.c).
//!
//! A passing error (a server that does not answer) is not counted: its bytes are gathered again,
//! and only the waiting call gets the error.
//!
//! Lost locks are separate. Each open of that time gets the loss at its next fsync and its next
//! close, and at each write until one of them. The kernel may split a write into several requests.
//! Where only a later one fails, the program gets a short count and would write on.

use zonal_types::ErrorCode;

/// Failures reported to an open, and losses of locks reported by each kind of call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportedFailures {
    failures: u64,
    write: u64,
    fsync: u64,
    close: u64,
}

impl ReportedFailures {
    /// Everything that either of the two has reported.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            failures: self.failures.max(other.failures),
            write: self.write.max(other.write),
            fsync: self.fsync.max(other.fsync),
            close: self.close.max(other.close),
        }
    }
}

/// The failures of one file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WriteFailures {
    count: u64,
    last: Option<ErrorCode>,
    /// The last failure was reported to some caller.
    is_known: bool,
    /// Failures reported by writes: one write of all opens gets each.
    writers: u64,
    /// Failures reported to callers without an open of their own.
    others: u64,
    /// How often locks were lost.
    forfeits: u64,
}

impl WriteFailures {
    /// Notes that accepted bytes are lost.
    pub(crate) fn note(&mut self, code: ErrorCode) {
        self.count += 1;
        self.last = Some(code);
        self.is_known = false;
    }

    /// Notes that others have got locks which were held here.
    pub(crate) fn forfeit(&mut self) {
        self.forfeits += 1;
    }

    /// How often that was so.
    pub(crate) fn forfeits(&self) -> u64 {
        self.forfeits
    }

    /// The state of a new open, which also gets failures that nobody got.
    pub(crate) fn sample(&self) -> ReportedFailures {
        let forfeits = self.forfeits;
        ReportedFailures {
            failures: self.count - u64::from(self.count > 0 && !self.is_known),
            write: forfeits,
            fsync: forfeits,
            close: forfeits,
        }
    }

    fn since(&mut self, told: u64) -> Result<(), ErrorCode> {
        match self.last {
            Some(code) if self.count > told => {
                self.is_known = true;
                Err(code)
            }
            _ => Ok(()),
        }
    }

    fn locks_since(&self, told: &mut u64) -> Result<(), ErrorCode> {
        match self.forfeits > std::mem::replace(told, self.forfeits) {
            true => Err(ErrorCode::Io),
            false => Ok(()),
        }
    }

    /// Reports to a close; the next fsync reports failed writes again.
    pub(crate) fn tell_close(&mut self, told: &mut ReportedFailures) -> Result<(), ErrorCode> {
        let failed = self.since(told.failures);
        told.write = self.forfeits;
        self.locks_since(&mut told.close).and(failed)
    }

    /// Reports to an fsync.
    pub(crate) fn tell(&mut self, told: &mut ReportedFailures) -> Result<(), ErrorCode> {
        let failed = self.since(told.failures);
        told.failures = self.count;
        told.write = self.forfeits;
        self.locks_since(&mut told.fsync).and(failed)
    }

    /// Reports to a write: each failed write to one write of all opens. An fsync reports it all the
    /// same.
    pub(crate) fn tell_writer(&mut self, told: &mut ReportedFailures) -> Result<(), ErrorCode> {
        let failed = self.since(told.failures.max(self.writers));
        self.writer_told();
        match self.forfeits > told.write {
            true => Err(ErrorCode::Io),
            false => failed,
        }
    }

    fn writer_told(&mut self) {
        self.writers = self.count;
    }

    /// Notes that a write met the last failure and returns it.
    pub(crate) fn writer_met(&mut self) {
        self.is_known = true;
        self.writer_told();
    }

    /// Reports to a caller that has no open of its own.
    pub(crate) fn tell_others(&mut self) -> Result<(), ErrorCode> {
        let failed = self.since(self.others);
        self.others = self.count;
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Result<(), ErrorCode> = Err(ErrorCode::NoSpace);

    #[test]
    fn each_open_gets_a_failure_once() {
        let mut failures = WriteFailures::default();
        let (mut first, mut second) = (failures.sample(), failures.sample());
        failures.note(ErrorCode::NoSpace);
        assert_eq!(failures.tell(&mut first), FULL);
        assert_eq!(failures.tell(&mut first), Ok(()));
        assert_eq!(failures.tell(&mut second), FULL);
        failures.note(ErrorCode::Io);
        assert_eq!(failures.tell(&mut first), Err(ErrorCode::Io));
    }

    #[test]
    fn a_failure_reported_to_close_and_write_is_reported_to_fsync_again() {
        let mut failures = WriteFailures::default();
        let mut told = failures.sample();
        failures.note(ErrorCode::NoSpace);
        assert_eq!(failures.tell_close(&mut told), FULL);
        assert_eq!(failures.tell_close(&mut told), FULL);
        assert_eq!(failures.tell_writer(&mut told), FULL);
        assert_eq!(failures.tell_writer(&mut told), Ok(()));
        assert_eq!(failures.tell_others(), FULL);
        assert_eq!(failures.tell_others(), Ok(()));
        assert_eq!(failures.tell(&mut told), FULL);
    }

    #[test]
    fn a_lost_lock_is_reported_once_by_fsync_and_close_and_before_by_each_write() {
        const LOST: Result<(), ErrorCode> = Err(ErrorCode::Io);
        let mut failures = WriteFailures::default();
        let (mut first, mut second) = (failures.sample(), failures.sample());
        failures.forfeit();
        let mut later = failures.sample();
        for told in [&mut first, &mut second] {
            // The second request of a write that the kernel split, and the write after it.
            assert_eq!(failures.tell_writer(told), LOST);
            assert_eq!(failures.tell_writer(told), LOST);
            for expected in [LOST, Ok(())] {
                assert_eq!(failures.tell(told), expected);
                assert_eq!(failures.tell_writer(told), Ok(()));
                assert_eq!(failures.tell_close(told), expected);
            }
        }
        assert_eq!(failures.tell_writer(&mut later), Ok(()));
        assert_eq!(failures.tell(&mut later), Ok(()));
        assert_eq!(failures.tell_close(&mut later), Ok(()));
        failures.forfeit();
        // Concurrent calls: what either reported counts as reported.
        let mut copy = first;
        assert_eq!(failures.tell(&mut copy), LOST);
        assert_eq!(failures.tell_writer(&mut first), LOST);
        first = first.with(copy);
        assert_eq!(failures.tell(&mut first), Ok(()));
        assert_eq!(failures.tell_writer(&mut first), Ok(()));
        assert_eq!(failures.tell_close(&mut first), LOST);
    }

    #[test]
    fn a_new_open_gets_a_failure_that_nobody_got() {
        let mut failures = WriteFailures::default();
        failures.note(ErrorCode::NoSpace);
        let mut opened = failures.sample();
        assert_eq!(failures.tell(&mut opened), FULL);
        let mut later = failures.sample();
        assert_eq!(failures.tell_writer(&mut later), Ok(()), "not its own");
        assert_eq!(failures.tell(&mut later), Ok(()));
        failures.note(ErrorCode::NoSpace);
        assert_eq!(failures.tell(&mut opened), FULL);
        assert_eq!(failures.tell_writer(&mut opened), Ok(()), "its fsync told");
        failures.note(ErrorCode::NoSpace);
        failures.writer_met();
        let mut later = failures.sample();
        assert_eq!(failures.tell(&mut later), Ok(()), "a call of write told");
        assert_eq!(failures.tell(&mut opened), FULL);
    }
}
