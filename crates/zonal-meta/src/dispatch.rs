//! Dispatch: runs the operation of a request.

use crate::op::new_inode::CreationSite;
use crate::op::{self, Result};
use crate::tx::Tx;
use zonal_types::ErrorCode;
use zonal_wire::{MetaReply, MetaRequest};

/// Runs an operation that needs only the store.
pub(crate) fn run(tx: &mut Tx<'_>, request: &MetaRequest) -> Result {
    match request {
        MetaRequest::Lookup { who, parent, name } => op::lookup::lookup(tx, who, *parent, name),
        MetaRequest::GetAttr { ino, data } => op::getattr::getattr(tx, *ino, *data),
        MetaRequest::Access { who, ino, mask } => op::access::access(tx, who, *ino, *mask),
        MetaRequest::ReadInline { ino } => op::inline_data::read(tx, *ino),
        MetaRequest::Readlink { ino } => op::readlink::readlink(tx, *ino),
        MetaRequest::ReadDir {
            who,
            dir,
            cookie,
            entries,
            plus,
        } => op::readdir::readdir(tx, who, *dir, *cookie, *entries, *plus),
        MetaRequest::ReadDirs { who, dirs, entries } => {
            op::readdir::readdirs(tx, who, dirs, *entries)
        }
        MetaRequest::GetXattr { who, ino, name } => op::xattr::get(tx, who, *ino, &name.0),
        MetaRequest::ListXattr { who, ino } => op::xattr::list(tx, who, *ino),
        MetaRequest::StatFs => op::statfs::statfs(tx),
        // The shell syncs its log before it sends the reply.
        MetaRequest::Sync => Ok(MetaReply::Synced {
            boot: tx.env.config.boot,
        }),
        MetaRequest::Parent { ino } => op::lookup::parent(tx, *ino),
        MetaRequest::CopiesOf { data_id } => op::stale_copies::file_with(tx, *data_id),
        MetaRequest::FileOf { data_id } => op::lookup::file_of(tx, *data_id),
        MetaRequest::FirstLevel { name } => op::lookup::first_level(tx, name),
        MetaRequest::HasEntry { ino } => op::lookup::has_entry(tx, *ino),
        _ => run_creation(tx, request),
    }
}

/// Runs an operation that makes an inode.
fn run_creation(tx: &mut Tx<'_>, request: &MetaRequest) -> Result {
    match request {
        MetaRequest::Create {
            who,
            parent,
            name,
            kind,
            mode,
            umask,
            zone,
            node,
            open,
            open_flags,
            exclusive,
        } => {
            let request = op::create::Create {
                parent: *parent,
                name,
                kind,
                mode: *mode,
                umask: *umask,
                site: CreationSite {
                    zone: *zone,
                    node: *node,
                },
                open: *open,
                open_flags: *open_flags,
                exclusive: *exclusive,
            };
            op::create::create(tx, who, &request)
        }
        MetaRequest::Mkdir {
            who,
            parent,
            name,
            mode,
            umask,
            zone,
        } => {
            let request = op::mkdir::Mkdir {
                parent: *parent,
                name,
                mode: *mode,
                umask: *umask,
                zone: *zone,
            };
            op::mkdir::mkdir(tx, who, &request)
        }
        MetaRequest::Tmpfile {
            who,
            parent,
            mode,
            umask,
            zone,
            node,
            exclusive,
        } => {
            let site = CreationSite {
                zone: *zone,
                node: *node,
            };
            op::tmpfile::tmpfile(tx, who, *parent, (*mode, *umask), site, *exclusive)
        }
        MetaRequest::BeginRestripe { who, ino, dir } => op::restripe::begin(tx, who, *ino, *dir),
        _ => run_change(tx, request),
    }
}

/// Runs a change of names, attributes and directories that exist.
fn run_change(tx: &mut Tx<'_>, request: &MetaRequest) -> Result {
    match request {
        MetaRequest::Unlink { who, parent, name } => op::unlink::unlink(tx, who, *parent, name),
        MetaRequest::Rmdir { who, parent, name } => op::rmdir::rmdir(tx, who, *parent, name),
        MetaRequest::Rename {
            who,
            parent,
            name,
            new_parent,
            new_name,
            flags,
        } => op::rename::rename(tx, who, (*parent, name), (*new_parent, new_name), *flags),
        MetaRequest::Link {
            who,
            ino,
            parent,
            name,
        } => op::link::link(tx, who, *ino, *parent, name),
        MetaRequest::Open {
            who,
            ino,
            open_flags,
        } => op::open::open(tx, who, *ino, *open_flags),
        MetaRequest::SetAttr { who, ino, change } => op::setattr::setattr(tx, who, *ino, change),
        MetaRequest::SetXattr {
            who,
            ino,
            name,
            value,
            flags,
        } => op::xattr::set(tx, who, *ino, &name.0, &value.0, *flags),
        MetaRequest::RemoveXattr { who, ino, name } => op::xattr::remove(tx, who, *ino, &name.0),
        MetaRequest::Touch { reads } => op::access_times::touch(tx, reads),
        MetaRequest::SetPolicy { who, dir, policy } => {
            op::policy::set_policy(tx, who, *dir, *policy)
        }
        _ => run_size(tx, request),
    }
}

/// Gives objects other places.
fn run_relocation(tx: &mut Tx<'_>, request: &MetaRequest) -> Result {
    let MetaRequest::RelocateObjects {
        target,
        after,
        unfinished,
        settled,
        plan,
    } = request
    else {
        return Err(ErrorCode::Invalid);
    };
    let target = (*target, *settled);
    op::relocations::relocate(tx, target, (*after, *unfinished), plan)
}

/// Runs a change of a file's size and data.
fn run_size(tx: &mut Tx<'_>, request: &MetaRequest) -> Result {
    match request {
        MetaRequest::Truncate {
            who,
            ino,
            size,
            by_handle,
            confirmed_seq,
            kill_suid,
        } => {
            let request = op::truncate::Truncate {
                ino: *ino,
                size: *size,
                by_handle: *by_handle,
                confirmed_seq: *confirmed_seq,
                kill_suid: *kill_suid,
            };
            op::truncate::truncate(tx, who, &request)
        }
        MetaRequest::ConfirmTruncate {
            ino,
            truncate_seq,
            allocated_delta,
        } => op::truncate::confirm(tx, *ino, *truncate_seq, *allocated_delta),
        MetaRequest::TakePrivileges { who, ino } => op::setattr::take_privileges(tx, who, *ino),
        MetaRequest::GiveUpPlace { ino, target } => op::stale_copies::give_up(tx, *ino, *target),
        MetaRequest::MarkStale { ino, targets } => op::stale_copies::mark(tx, *ino, targets),
        MetaRequest::MendCopy {
            ino,
            target,
            as_of,
            allocated_delta,
            relocated,
            full,
        } => {
            let (of, by) = ((*ino, *target), (*as_of, *full));
            op::stale_copies::mend(tx, of, by, *allocated_delta, relocated)
        }
        MetaRequest::RelocateObjects { .. } => run_relocation(tx, request),
        MetaRequest::SwapBytes { .. } => run_swap(tx, request),
        MetaRequest::DisownBehind { ino, reserves } => {
            op::truncate::disown_behind(tx, *ino, *reserves)
        }
        MetaRequest::ReportWrite {
            ino,
            size,
            truncate_seq,
            mtime,
            allocated_delta,
            kill_suid,
            inline,
            // The shell syncs its log before it sends the reply.
            sync: _,
        } => {
            let report = op::write_report::Report {
                size: *size,
                truncate_seq: *truncate_seq,
                mtime: *mtime,
                allocated_delta: *allocated_delta,
                kill_suid: *kill_suid,
                inline: op::inline_data::written(inline.as_ref()),
            };
            op::write_report::report_write(tx, *ino, &report)
        }
        _ => run_append_end(tx, request),
    }
}

/// Runs the swap of a file's bytes with those of its copy.
fn run_swap(tx: &mut Tx<'_>, request: &MetaRequest) -> Result {
    let MetaRequest::SwapBytes {
        who,
        ino,
        copy,
        change,
        boot,
    } = request
    else {
        return Err(ErrorCode::Invalid);
    };
    let copied = op::restripe::Copied {
        change: *change,
        boot: *boot,
    };
    op::restripe::swap(tx, who, (*ino, *copy), copied)
}

/// Runs the publication of an append.
fn run_append_end(tx: &mut Tx<'_>, request: &MetaRequest) -> Result {
    let MetaRequest::AppendEnd {
        ino,
        offset,
        mtime,
        reserved,
        length,
        allocated_delta,
        kill_suid,
        inline,
        ..
    } = request
    else {
        return run_first_level(tx, request);
    };
    // The rest of the place, where the file was truncated behind its beginning.
    let left = usize::try_from(tx.published.saturating_sub(*offset)).unwrap_or(usize::MAX);
    let inline = op::inline_data::written(inline.as_ref())
        .map(|(at, bytes)| (at, &bytes[..bytes.len().min(left)]));
    let report = op::write_report::Report {
        size: tx.published,
        // A truncation ends or shortens earlier tickets.
        truncate_seq: u64::MAX,
        mtime: (*length > 0).then_some(*mtime),
        allocated_delta: *allocated_delta,
        kill_suid: *kill_suid && *length > 0,
        inline: inline.filter(|(_at, bytes)| *length > 0 && !bytes.is_empty()),
    };
    op::append::end(tx, *ino, &report, *length == 0 && *reserved > 0)
}

/// Runs a step of another shard's change of a first-level directory.
fn run_first_level(tx: &mut Tx<'_>, request: &MetaRequest) -> Result {
    match request {
        MetaRequest::MakeDetachedDir {
            uid,
            gid,
            mode,
            default_acl,
            token,
        } => op::detached_directories::make_detached(
            tx,
            (*uid, *gid),
            *mode,
            default_acl.as_ref(),
            *token,
        ),
        MetaRequest::AttachDir { ino } => op::detached_directories::attach(tx, *ino),
        MetaRequest::DetachDir { ino } => op::detached_directories::detach_dir(tx, *ino),
        MetaRequest::DropDir { ino } => op::detached_directories::drop_dir(tx, *ino),
        MetaRequest::SettleDir {
            ino,
            since,
            has_entry,
        } => op::detached_directories::settle(tx, *ino, *since, *has_entry),
        MetaRequest::TakeLease { .. }
        | MetaRequest::RenewLeases { .. }
        | MetaRequest::ReturnLease { .. } => Err(ErrorCode::NotSupported),
        // The shard itself handles the rest: sessions, events, locks, closes, tickets.
        _ => Err(ErrorCode::Protocol),
    }
}
