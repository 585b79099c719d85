//! SEEK_DATA and SEEK_HOLE.
//!
//! The kernel may have bytes that a program stored into a mapping and that the mount does not know.
//! So before the mount reports a hole of a file with a writable mapping, the kernel writes and
//! drops its pages. Then the search is repeated. A thread of its own does that, because writing the
//! pages needs workers. The thread holds no lock that they need. The kernel holds the inode's lock,
//! which writing pages does not take.

use crate::background::SeekRequest;
use crate::conversions::errno;
use crate::fs::ZonalFs;
use crate::in_flight::KernelCall;
use zonal_fuse::{Context, ReplyLseek};
use zonal_native::block_on;
use zonal_types::{ErrorCode, Ino};

/// Whence of lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The offset, or the error.
type SeekResult = Result<u64, ErrorCode>;

impl ZonalFs {
    pub(crate) fn do_lseek(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        (offset, whence): (u64, u32),
        reply: ReplyLseek,
    ) {
        let call = self.begin(ctx);
        let for_data = match whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return reply.err(errno(ErrorCode::Invalid)),
        };
        let found = self.seek(&call, ino, offset, for_data);
        let Some(hole) = self.doubted(&call, ino, (offset, for_data), found) else {
            return answer(reply, found);
        };
        let seek = SeekRequest {
            ino,
            offset,
            for_data,
            found,
            hole,
            reply,
        };
        if let Err(seek) = self.signal.seek(seek) {
            answer(seek.reply, seek.found);
        }
    }

    fn seek(&self, call: &KernelCall<'_>, ino: Ino, offset: u64, for_data: bool) -> SeekResult {
        let file = self.file(ino)?;
        block_on(call.seek(&file, offset, for_data))
    }

    /// The hole found, or its rest, if the kernel may have bytes there.
    fn doubted(
        &self,
        call: &KernelCall<'_>,
        ino: Ino,
        (offset, for_data): (u64, bool),
        found: SeekResult,
    ) -> Option<(u64, u64)> {
        if !self.page_tails.may_be_dirty(ino) {
            return None;
        }
        let (from, next) = match (for_data, found) {
            (true, found) => (offset, found),
            (false, Ok(at)) => (at, self.seek(call, ino, at, true)),
            (false, Err(_)) => return None,
        };
        let to = match next {
            Ok(at) => at,
            Err(ErrorCode::NoDevice) => u64::MAX,
            Err(_) => return None,
        };
        (from < to).then_some((from, to))
    }

    /// Repeats the search after the pages of the hole are written.
    pub(crate) fn seek_again(&self, call: &KernelCall<'_>, seek: SeekRequest) {
        let SeekRequest { ino, hole, .. } = seek;
        self.drop_hole(ino, hole);
        let mut found = self.seek(call, ino, seek.offset, seek.for_data);
        if !seek.for_data && found != seek.found {
            // There were bytes. The next hole is reported when all pages behind are written.
            self.drop_hole(ino, (found.unwrap_or(hole.0), u64::MAX));
            found = self.seek(call, ino, seek.offset, false);
        }
        answer(seek.reply, found);
    }
}

fn answer(reply: ReplyLseek, found: SeekResult) {
    match found {
        Ok(at) => reply.offset(at),
        Err(code) => reply.err(errno(code)),
    }
}
