//! Writes that failed after they had been accepted: a sequence, so that each open of the file is
//! told of each failure once, whatever others were told before (as errseq of Linux, lib/errseq.c).
//!
//! A failure that passes (a server that does not answer) is none: its bytes are gathered again, and
//! only the call that waited is told.
//!
//! Locks that were lost are another matter: each open of then is told by its next write, its next
//! fsync and its next close.

use zonal_types::ErrorCode;

/// Up to which failure an open was told, and of which losses of locks by which of its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportedFailures {
    failures: u64,
    write: u64,
    fsync: u64,
    close: u64,
}

impl ReportedFailures {
    /// It was told of what either of them says.
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
    /// Somebody was told of the last one.
    is_known: bool,
    /// What calls of write were told: each failure by one of them.
    writers: u64,
    /// What those were told who have no open of their own.
    others: u64,
    /// How often locks were lost.
    forfeits: u64,
}

impl WriteFailures {
    /// Bytes that were accepted are lost.
    pub(crate) fn note(&mut self, code: ErrorCode) {
        self.count += 1;
        self.last = Some(code);
        self.is_known = false;
    }

    /// Others have got locks that were held here.
    pub(crate) fn forfeit(&mut self) {
        self.forfeits += 1;
    }

    /// How often that was so.
    pub(crate) fn forfeits(&self) -> u64 {
        self.forfeits
    }

    /// Where a new open begins. What nobody was told of is news to it.
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

    /// Tells a close; of writes that failed the next fsync tells again.
    pub(crate) fn tell_close(&mut self, told: &mut ReportedFailures) -> Result<(), ErrorCode> {
        let failed = self.since(told.failures);
        self.locks_since(&mut told.close).and(failed)
    }

    /// Tells an fsync.
    pub(crate) fn tell(&mut self, told: &mut ReportedFailures) -> Result<(), ErrorCode> {
        let failed = self.since(told.failures);
        told.failures = self.count;
        self.locks_since(&mut told.fsync).and(failed)
    }

    /// Tells a call of write: of writes that failed one of those of all opens. An fsync tells of it
    /// all the same.
    pub(crate) fn tell_writer(&mut self, told: &mut ReportedFailures) -> Result<(), ErrorCode> {
        let failed = self.since(told.failures.max(self.writers));
        self.writer_told();
        self.locks_since(&mut told.write).and(failed)
    }

    fn writer_told(&mut self) {
        self.writers = self.count;
    }

    /// A call of write met the last one, and returns it.
    pub(crate) fn writer_met(&mut self) {
        self.is_known = true;
        self.writer_told();
    }

    /// Tells a caller that has no open of its own.
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
    fn each_open_is_told_once() {
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
    fn a_close_and_a_write_leave_it_to_fsync() {
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
    fn locks_that_were_lost_are_told_by_each_call_of_each_open_once() {
        const LOST: Result<(), ErrorCode> = Err(ErrorCode::Io);
        let mut failures = WriteFailures::default();
        let (mut first, mut second) = (failures.sample(), failures.sample());
        failures.forfeit();
        let mut later = failures.sample();
        for told in [&mut first, &mut second] {
            for expected in [LOST, Ok(())] {
                assert_eq!(failures.tell(told), expected);
                assert_eq!(failures.tell_writer(told), expected);
                assert_eq!(failures.tell_close(told), expected);
            }
        }
        assert_eq!(failures.tell_writer(&mut later), Ok(()));
        assert_eq!(failures.tell(&mut later), Ok(()));
        assert_eq!(failures.tell_close(&mut later), Ok(()));
        failures.forfeit();
        // Calls at once: what either was told is told.
        let mut copy = first;
        assert_eq!(failures.tell(&mut copy), LOST);
        assert_eq!(failures.tell_writer(&mut first), LOST);
        first = first.with(copy);
        assert_eq!(failures.tell(&mut first), Ok(()));
        assert_eq!(failures.tell_writer(&mut first), Ok(()));
        assert_eq!(failures.tell_close(&mut first), LOST);
    }

    #[test]
    fn a_new_open_is_told_of_what_nobody_knows() {
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
