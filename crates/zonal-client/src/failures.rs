//! Writes that failed after they had been accepted: a sequence, so that each open of the file is told of each failure once,
//! whatever others were told before (as errseq of Linux, lib/errseq.c).
//!
//! A failure that passes (a server that does not answer) is none: its bytes are gathered again, and only the call that waited
//! is told.

use zonal_types::ErrorCode;

/// Up to which failure somebody was told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told(u64);

/// The failures of one file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Failures {
    count: u64,
    last: Option<ErrorCode>,
    /// Somebody was told of the last one.
    is_known: bool,
    /// What calls of write were told: each failure by one of them.
    writers: Told,
    /// What those were told who have no open of their own.
    others: Told,
}

impl Failures {
    /// Bytes that were accepted are lost.
    pub(crate) fn note(&mut self, code: ErrorCode) {
        self.count += 1;
        self.last = Some(code);
        self.is_known = false;
    }

    /// Where a new open begins. What nobody was told of is news to it.
    pub(crate) fn sample(&self) -> Told {
        Told(self.count - u64::from(self.count > 0 && !self.is_known))
    }

    /// What happened since `told`, which stays: a close tells, and the next fsync tells again.
    pub(crate) fn since(&mut self, told: Told) -> Result<(), ErrorCode> {
        match self.last {
            Some(code) if self.count > told.0 => {
                self.is_known = true;
                Err(code)
            }
            _ => Ok(()),
        }
    }

    /// The same, and `told` knows of it from now on.
    pub(crate) fn tell(&mut self, told: &mut Told) -> Result<(), ErrorCode> {
        let since = self.since(*told);
        told.0 = self.count;
        since
    }

    /// Tells one call of write through an open that was told up to `told`. An fsync tells of it all the same.
    pub(crate) fn tell_writer(&mut self, told: Told) -> Result<(), ErrorCode> {
        let since = self.since(told.max(self.writers));
        self.writer_told();
        since
    }

    fn writer_told(&mut self) {
        self.writers = Told(self.count);
    }

    /// A call of write met the last one, and returns it.
    pub(crate) fn writer_met(&mut self) {
        self.is_known = true;
        self.writer_told();
    }

    /// Tells a caller that has no open of its own.
    pub(crate) fn tell_others(&mut self) -> Result<(), ErrorCode> {
        let mut told = self.others;
        let since = self.tell(&mut told);
        self.others = told;
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Result<(), ErrorCode> = Err(ErrorCode::NoSpace);

    #[test]
    fn each_open_is_told_once() {
        let mut failures = Failures::default();
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
        let mut failures = Failures::default();
        let mut told = failures.sample();
        failures.note(ErrorCode::NoSpace);
        assert_eq!(failures.since(told), FULL);
        assert_eq!(failures.since(told), FULL);
        assert_eq!(failures.tell_writer(told), FULL);
        assert_eq!(failures.tell_writer(told), Ok(()));
        assert_eq!(failures.tell_others(), FULL);
        assert_eq!(failures.tell_others(), Ok(()));
        assert_eq!(failures.tell(&mut told), FULL);
    }

    #[test]
    fn a_new_open_is_told_of_what_nobody_knows() {
        let mut failures = Failures::default();
        failures.note(ErrorCode::NoSpace);
        let mut opened = failures.sample();
        assert_eq!(failures.tell(&mut opened), FULL);
        let mut later = failures.sample();
        assert_eq!(failures.tell_writer(later), Ok(()), "not its own");
        assert_eq!(failures.tell(&mut later), Ok(()));
        failures.note(ErrorCode::NoSpace);
        assert_eq!(failures.tell(&mut opened), FULL);
        assert_eq!(failures.tell_writer(opened), Ok(()), "its fsync told");
        failures.note(ErrorCode::NoSpace);
        failures.writer_met();
        let mut later = failures.sample();
        assert_eq!(failures.tell(&mut later), Ok(()), "a call of write told");
        assert_eq!(failures.tell(&mut opened), FULL);
    }
}
