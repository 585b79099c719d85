//! Restripe: copies a file's bytes into the layout that a new file gets now, and swaps both
//! (docs/rfcs/2026-11-27-restripe.md).
//!
//! The copy has no name. It goes with the session of a program that ends before the swap.

use super::{Native, ask};
use crate::error::Error;
use crate::file::{OpenFile, Whence};
use crate::open::OpenOptions;
use crate::user::User;
use zonal_client::names::CopiedState;
use zonal_types::{Attr, ErrorCode, Ino};

/// Outcome of a restripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restriped {
    /// The file has a new layout. So many bytes were copied.
    Moved(u64),
    /// It is striped as a new file would be.
    Current,
    /// New files of its directory lie on the node that makes them, so that none is striped.
    OnNodes,
    /// Others have it open, or it was changed meanwhile.
    InUse,
    /// Targets have yet to fill, move or delete some of it, or one of them leaves.
    Unsettled,
}

/// The outcome that a refusal of the shard stands for.
fn refused(code: ErrorCode) -> Result<Restriped, Error> {
    match code {
        ErrorCode::Exists => Ok(Restriped::Current),
        ErrorCode::NotSupported => Ok(Restriped::OnNodes),
        ErrorCode::Busy | ErrorCode::Stale => Ok(Restriped::InUse),
        ErrorCode::WouldBlock => Ok(Restriped::Unsettled),
        code => Err(code.into()),
    }
}

impl Native {
    /// The attributes of an inode.
    ///
    /// # Errors
    /// ESTALE where it is gone.
    pub fn stat_ino(&self, ino: Ino) -> Result<Attr, Error> {
        let call = self.inner.begin()?;
        let (attr, _ms) = ask(call.getattr(ino))?;
        Ok(attr)
    }

    /// Gives a file the layout that a new file of `dir` gets now, with its bytes and holes. Nothing
    /// else of it changes but its ctime. Space that is reserved and not written is not kept.
    ///
    /// `buffer`: memory for the copy; the client's write-behind takes its own. `goes_on` is told
    /// the bytes of each step; false: the copy is given up (EINTR).
    ///
    /// # Errors
    /// EPERM unless the user owns the file; EACCES where the user may not read it; ENOSPC; a server
    /// that does not answer. The file then keeps its layout.
    pub fn restripe(
        &self,
        user: &User,
        (ino, dir): (Ino, Ino),
        buffer: &mut [u8],
        goes_on: &dyn Fn(usize) -> bool,
    ) -> Result<Restriped, Error> {
        let (inner, who) = (&self.inner, user.credentials());
        let call = inner.begin()?;
        let opened = match ask(call.begin_restripe(who, ino, dir)) {
            Ok(opened) => opened,
            Err(Error::Cell(code)) => return refused(code),
            Err(error) => return Err(error),
        };
        let writing = OpenOptions::new().read(true).write(true);
        let copy = OpenFile::new(inner, user, writing, opened.file, false);
        let boot = ask(call.boot_of(ino))?;
        let source = match ask(call.open(who, ino, 0)) {
            Ok(source) => source,
            Err(Error::Cell(ErrorCode::Stale)) => return Ok(Restriped::InUse),
            Err(error) => return Err(error),
        };
        let attr = source.found.attr;
        let change = attr.change;
        let reading = OpenOptions::new().read(true).no_atime(true);
        let source = OpenFile::new(inner, user, reading, source.file, false);
        let bytes = copy_bytes((&source, &copy), &attr, buffer, goes_on)?;
        copy.fsync()?;
        let copied = CopiedState { change, boot };
        let swapped = ask(call.swap_bytes(who, (ino, copy.ino()), copied));
        match swapped {
            Ok(()) => {}
            Err(Error::Cell(code)) => return refused(code),
            Err(error) => return Err(error),
        }
        // The bytes are where they belong; the ends of the opens come with the session's.
        source.close().and(copy.close()).ok();
        Ok(Restriped::Moved(bytes))
    }
}

/// Copies what the targets have of a file, and no holes.
fn copy_bytes(
    (source, copy): (&OpenFile, &OpenFile),
    attr: &Attr,
    buffer: &mut [u8],
    goes_on: &dyn Fn(usize) -> bool,
) -> Result<u64, Error> {
    let (mut at, mut copied) = (source.inline_bytes(), 0);
    while at < attr.size {
        at = match source.find(at, Whence::Data) {
            Ok(data) => data.max(at),
            Err(Error::Cell(ErrorCode::NoDevice)) => break,
            Err(error) => return Err(error),
        };
        let end = source.find(at, Whence::Hole)?.min(attr.size);
        while at < end {
            let step = usize::try_from(end - at).unwrap_or(usize::MAX);
            let step = step.min(buffer.len());
            let part = buffer.get_mut(..step).unwrap_or_default();
            let bytes = source.pread(at, part)?;
            if bytes == 0 {
                // The file was truncated: the swap will be refused.
                return Ok(copied);
            }
            copy.pwrite(at, part.get(..bytes).unwrap_or_default())?;
            (at, copied) = (at + bytes as u64, copied + bytes as u64);
            if !goes_on(bytes) {
                return Err(ErrorCode::Interrupted.into());
            }
        }
    }
    Ok(copied)
}
