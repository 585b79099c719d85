//! Extended attributes: the shard's, and a few that this mount answers.

use crate::caller::credentials;
use crate::fs::ZonalFs;
use zonal_fuse::Context;
use zonal_fuse::request::SetXattr;
use zonal_native::block_on;
use zonal_types::limits::xattr_flags::CAPABILITY_NAME;
use zonal_types::{ErrorCode, Ino};

/// Location of the inode's data as JSON. Read only.
pub const LOCATE: &[u8] = b"zonal.locate";
/// Gauges of the mount process as one line of JSON; the same on every inode. Read only.
pub const GAUGES: &[u8] = b"zonal.gauges";
/// An SELinux label. A kernel with SELinux answers by itself and asks no file system of this kind,
/// so callers have no use for labels. EOPNOTSUPP for an absent label makes `ls -l` ask for no other
/// file's; ENODATA would make it ask for each.
const SELINUX: &[u8] = b"security.selinux";
/// Set on a directory: makes a directory in it, with its home in a zone.
pub const MKDIR: &[u8] = b"zonal.mkdir";

impl ZonalFs {
    pub(crate) fn do_getxattr(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        name: &[u8],
    ) -> Result<Vec<u8>, ErrorCode> {
        match self.present_xattr(ctx, ino, name) {
            Err(ErrorCode::NoData) if name == SELINUX => Err(ErrorCode::NotSupported),
            outcome => outcome,
        }
    }

    fn present_xattr(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        name: &[u8],
    ) -> Result<Vec<u8>, ErrorCode> {
        if self.hints.is_absent(ino, name) {
            return Err(ErrorCode::NoData);
        }
        let call = self.begin(ctx);
        if name == LOCATE {
            return block_on(call.locate(ino)).map(|located| located.to_json().into_bytes());
        }
        if name == GAUGES {
            return Ok(self.gauges(ctx).into_bytes());
        }
        let who = credentials(ctx);
        let value = block_on(call.getxattr(&who, ino, name))?;
        if name == CAPABILITY_NAME
            && let Some(file) = self.client.file(ino)
        {
            // Own writes clear the capabilities once the shard hears of them.
            block_on(call.settle(&file))?;
            return block_on(call.getxattr(&who, ino, name));
        }
        Ok(value)
    }

    pub(crate) fn do_listxattr(&self, ctx: &Context<'_>, ino: Ino) -> Result<Vec<u8>, ErrorCode> {
        let call = self.begin(ctx);
        let names = block_on(call.listxattr(&credentials(ctx), ino))?;
        Ok(names
            .into_iter()
            .flat_map(|name| name.into_iter().chain([0]))
            .collect())
    }

    pub(crate) fn do_setxattr(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        set: &SetXattr<'_>,
    ) -> Result<(), ErrorCode> {
        let call = self.begin(ctx);
        let who = credentials(ctx);
        let _changing = self.expiries.change(ino);
        if set.name == MKDIR {
            return self.mkdir_by_text(&call, &who, ino, set.value);
        }
        let outcome = block_on(call.setxattr(&who, ino, set.name, set.value, set.flags));
        self.hints.forget(&[ino]);
        outcome
    }

    pub(crate) fn do_removexattr(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        name: &[u8],
    ) -> Result<(), ErrorCode> {
        let call = self.begin(ctx);
        let _changing = self.expiries.change(ino);
        let outcome = block_on(call.removexattr(&credentials(ctx), ino, name));
        self.hints.forget(&[ino]);
        match outcome {
            Err(ErrorCode::Access)
                if name == CAPABILITY_NAME && self.write_handles.has(ino, ctx.uid) =>
            {
                // Before a write through a handle that was opened when its user was allowed to
                // write.
                self.take_privileges(&call, ctx, &*self.file(ino)?)
            }
            done => done,
        }
    }
}
