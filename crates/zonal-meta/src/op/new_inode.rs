//! New inodes of any type: owner, group, mode, ACLs, layout, number.

use super::Result;
use crate::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use crate::inode::Inode;
use crate::keys;
use crate::outcome::Question;
use crate::permission::{S_ISGID, S_IXGRP, is_root};
use crate::stripe_set_choice::{ChosenSet, SetChoice, choose_open, layout_over};
use crate::tx::{MemoryChange, Tx};
use zonal_basics::to_usize;
use zonal_types::limits::xattr_flags;
use zonal_types::{
    Codec, Credentials, DataId, ErrorCode, FileKind, Ino, Layout, NodeId, PartitionId, ShardId,
    StripePolicy, ZoneId,
};
use zonal_wire::MetaRequest;

/// Mode, group and ACLs of a new inode.
pub(crate) struct Rights {
    pub mode: u32,
    pub gid: u32,
    pub access: Option<Acl>,
    pub default: Option<Acl>,
}

/// Mode, group and ACLs of a new inode in `dir`.
pub(crate) fn rights(
    tx: &Tx<'_>,
    who: &Credentials,
    dir: &Inode,
    kind: FileKind,
    mode: u32,
    umask: u32,
) -> Result<Rights> {
    let default = match kind {
        FileKind::Symlink => None,
        _ => default_acl(tx, dir)?,
    };
    let mut gid = who.gid;
    let mut mode = mode & 0o7777;
    if dir.mode & S_ISGID != 0 {
        gid = dir.gid;
        let both = S_ISGID | S_IXGRP;
        if kind == FileKind::Directory {
            mode |= S_ISGID;
        } else if mode & both == both && !is_root(who) && !who.in_group(dir.gid) {
            mode &= !S_ISGID;
        }
    }
    Ok(with_default(kind, mode, umask, gid, default))
}

/// Applies a default ACL, or the umask where there is none.
pub(crate) fn with_default(
    kind: FileKind,
    mode: u32,
    umask: u32,
    gid: u32,
    default: Option<Acl>,
) -> Rights {
    if kind == FileKind::Symlink {
        return Rights {
            mode: 0o777,
            gid,
            access: None,
            default: None,
        };
    }
    let Some(default) = default else {
        return Rights {
            mode: mode & !(umask & 0o777),
            gid,
            access: None,
            default: None,
        };
    };
    let access = default.inherited(mode);
    Rights {
        mode: mode & 0o7000 | access.mode_bits(),
        gid,
        access: (!access.is_minimal()).then_some(access),
        default: (kind == FileKind::Directory).then_some(default),
    }
}

/// The default ACL of a directory.
pub(crate) fn default_acl(tx: &Tx<'_>, dir: &Inode) -> Result<Option<Acl>> {
    if dir.xattrs & xattr_flags::ACL_DEFAULT == 0 {
        return Ok(None);
    }
    match tx.get(&keys::xattr(dir.ino, DEFAULT_NAME))? {
        Some(bytes) => Acl::parse(&bytes).map_err(|_error| ErrorCode::Corrupt),
        None => Ok(None),
    }
}

/// Where a client creates an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CreationSite {
    /// The home of an inode in the root.
    pub(crate) zone: ZoneId,
    /// The client's node; 0: none.
    pub(crate) node: NodeId,
}

/// A new inode with its number, rights and layout, not saved yet.
pub(crate) fn inode(
    tx: &mut Tx<'_>,
    who: &Credentials,
    dir: &Inode,
    kind: FileKind,
    rights: &Rights,
    site: CreationSite,
) -> Result<Inode> {
    let partition = dir.ino.partition();
    let ino = tx.new_ino(partition)?;
    assert!(tx.is_ours(ino), "new inode {ino} belongs to another shard");
    let home = home_zone(tx, dir, site.zone)?;
    let mut inode = Inode::new(ino, kind, dir.ino, home, tx.now.wall);
    inode.uid = who.uid;
    inode.gid = rights.gid;
    inode.mode = rights.mode;
    set_acls(tx, &mut inode, rights);
    match kind {
        FileKind::File => {
            let data_id = tx.new_data_id(partition)?;
            inode.layout = layout(tx, home, site.node, dir.policy, data_id)?;
        }
        FileKind::Directory => inode.policy = dir.policy,
        _ => {}
    }
    Ok(inode)
}

/// Stores the ACLs of a new inode.
pub(crate) fn set_acls(tx: &mut Tx<'_>, inode: &mut Inode, rights: &Rights) {
    if let Some(acl) = &rights.access {
        tx.put(keys::xattr(inode.ino, ACCESS_NAME), acl.to_bytes());
        inode.xattrs |= xattr_flags::ACL_ACCESS;
    }
    if let Some(acl) = &rights.default {
        tx.put(keys::xattr(inode.ino, DEFAULT_NAME), acl.to_bytes());
        inode.xattrs |= xattr_flags::ACL_DEFAULT;
    }
}

/// The partition of a new first-level directory: one without inodes. Where there is none, first-
/// level directories share the shard's partitions in turn. All that is below has the same.
pub(crate) fn partition_of_subtree(tx: &mut Tx<'_>) -> Result<PartitionId> {
    let leaving = tx.env.leaving;
    if let Some(spare) = tx.env.spare.find(tx.kv(), leaving)? {
        tx.volatile.push(MemoryChange::PartitionTaken(spare));
        return Ok(spare);
    }
    let partitions = tx.env.partitions.iter().copied();
    let stays = |partition: &PartitionId| !leaving.contains_key(partition);
    let partitions: Vec<PartitionId> = partitions.filter(stays).collect();
    if partitions.is_empty() {
        return Err(ErrorCode::NotOwner);
    }
    let turn = to_usize(tx.env.live_inodes % partitions.len() as u64);
    partitions.get(turn).copied().ok_or(ErrorCode::NotOwner)
}

/// Zone of a new inode in `dir`: the directory's. In the root it is the requested zone, if any.
pub(crate) fn home_zone(tx: &Tx<'_>, dir: &Inode, zone: ZoneId) -> Result<ZoneId> {
    if dir.ino != Ino::ROOT {
        return Ok(dir.home);
    }
    if zone == ZoneId(0) {
        return Ok(tx.env.config.zone);
    }
    match tx.env.map.zone(zone) {
        Some(_) => Ok(zone),
        None => Err(ErrorCode::Invalid),
    }
}

/// The layout of a new file with this data id.
pub(crate) fn layout(
    tx: &mut Tx<'_>,
    home: ZoneId,
    node: NodeId,
    policy: Option<StripePolicy>,
    data_id: DataId,
) -> Result<Layout> {
    let policy = policy.unwrap_or_default();
    let env = &tx.env;
    let now = tx.now.instant;
    let choice = env
        .sets
        .choose_for(env.map, &policy, (home, node), data_id, now);
    let choice = chosen(tx, choice)?;
    let also = also_set(tx, &policy, choice.zone, data_id)?;
    note_zone(tx, choice.zone);
    layout_over(
        tx.env.map,
        (&choice, also.as_ref()),
        &policy,
        data_id,
        tx.env.inline_bytes,
    )
}

/// The set for a file's copy in another zone than `own`, where the policy wants one and some zone
/// can take it.
pub(super) fn also_set(
    tx: &mut Tx<'_>,
    policy: &StripePolicy,
    own: ZoneId,
    data_id: DataId,
) -> Result<Option<ChosenSet>> {
    let (env, now) = (&tx.env, tx.now.instant);
    let also = env.sets.choose_also(env.map, policy, own, data_id, now);
    let also = also.map(|choice| chosen(tx, choice)).transpose()?;
    if let Some(also) = &also {
        note_zone(tx, also.zone);
    }
    Ok(also)
}

/// The chosen set. Where a set has to be opened first, the root's shard is asked.
fn chosen(tx: &mut Tx<'_>, choice: SetChoice) -> Result<ChosenSet> {
    match choice {
        SetChoice::Take(choice) => Ok(choice),
        SetChoice::Open(zone) => {
            let ask = MetaRequest::OpenSets { zone };
            Err(tx.ask(ShardId(0), ask, Question::Open(zone)))
        }
        SetChoice::Later => Err(ErrorCode::NotReady),
    }
}

/// Notes for good that the shard has files with bytes in other zones.
fn note_zone(tx: &mut Tx<'_>, zone: ZoneId) {
    if zone != tx.env.config.zone && !tx.env.has_remote_data {
        tx.put(keys::remote_data(), 1_u8.to_bytes());
        tx.volatile.push(MemoryChange::RemoteData);
    }
}

/// The layout for a repair, which can ask nobody: over a set that is open already.
pub(crate) fn layout_by_repair(tx: &Tx<'_>, home: ZoneId, data_id: DataId) -> Result<Layout> {
    match choose_open(tx.env.map, home, data_id) {
        Some(choice) => layout_over(
            tx.env.map,
            (&choice, None),
            &StripePolicy::default(),
            data_id,
            tx.env.inline_bytes,
        ),
        None => Err(ErrorCode::NoSpace),
    }
}
