//! Describes keys and values of a shard's store in words, for `zonal dump`. The zone map in the
//! root shard's store belongs to the manager and is not described here.

use crate::dentry::Dentry;
use crate::fences::FenceRecord;
use crate::inode::Inode;
use crate::keys;
use crate::session::{SessionRecord, SlotRecord};
use crate::tx::OrphanRecord;
use zonal_types::describe::{Described, Field};
use zonal_types::{Codec, Component, ErrorCode, Ino, Layout, Timestamp};

fn decode<T: Codec>(value: &[u8]) -> Result<T, ErrorCode> {
    T::from_bytes(value).map_err(|_error| ErrorCode::Corrupt)
}

/// Describes one entry of the store.
///
/// # Errors
/// `Corrupt` where key or value cannot be decoded.
pub fn entry(key: &[u8], value: &[u8]) -> Result<Described, ErrorCode> {
    let (partition, rest) = key.split_first_chunk::<4>().ok_or(ErrorCode::Corrupt)?;
    let partition = u32::from_be_bytes(*partition);
    let tag = *rest.first().ok_or(ErrorCode::Corrupt)?;
    if partition == keys::SHARD_PARTITION {
        return of_shard(tag, key, value);
    }
    let described = if tag == keys::TAG_IDS {
        let (reserved, _unused) = decode::<(u64, u64)>(value)?;
        Described::new("reserved inode numbers").with("first_free", reserved)
    } else if tag == keys::TAG_DATA_IDS {
        Described::new("reserved data ids").with("first_free", decode::<u64>(value)?)
    } else if tag == keys::TAG_JOINED {
        let with = keys::moved_partition(key).ok_or(ErrorCode::Corrupt)?;
        Described::new("joined partitions").with("with", with.0)
    } else if tag == keys::TAG_INODE_COUNT {
        Described::new("number of inodes").with("inodes", decode::<u64>(value)?)
    } else {
        of_ino(tag, key, value)?
    };
    Ok(described.with("partition", partition))
}

/// An entry about a move between shards.
fn of_move(tag: u8, key: &[u8], value: &[u8]) -> Result<Described, ErrorCode> {
    Ok(match tag {
        keys::TAG_OWNERSHIP => {
            Described::new("map of the last move").with("version", decode::<u64>(value)?)
        }
        keys::TAG_DEPARTURE => {
            let partition = keys::moved_partition(key).ok_or(ErrorCode::Corrupt)?;
            let known: crate::moves::Departure = decode(value)?;
            Described::new("partition that leaves")
                .with("partition", partition.0)
                .with("to", known.to.0)
                .with("stage", format!("{:?}", known.stage))
        }
        keys::TAG_ARRIVAL => {
            let partition = keys::moved_partition(key).ok_or(ErrorCode::Corrupt)?;
            let known: crate::moves::Arrival = decode(value)?;
            Described::new("partition that comes")
                .with("partition", partition.0)
                .with("from", known.from.0)
                .with("pages", known.pages)
                .with("stage", format!("{:?}", known.stage))
        }
        keys::TAG_MOVED_SESSION => {
            let id = keys::moved_session_of(key).ok_or(ErrorCode::Corrupt)?;
            let moved: crate::moves::MovedSession = decode(value)?;
            Described::new("session of a coming partition")
                .with("session", id.0)
                .with("client", moved.record.identity.client.0)
        }
        _ => return Err(ErrorCode::Corrupt),
    })
}

fn of_shard(tag: u8, key: &[u8], value: &[u8]) -> Result<Described, ErrorCode> {
    Ok(match tag {
        keys::TAG_FORMAT => {
            let (format, (shard, bits)) = decode::<(u16, (u32, u32))>(value)?;
            Described::new("format")
                .with("format", format)
                .with("shard", shard)
                .with("hash_bits", bits)
        }
        keys::TAG_IDS => {
            Described::new("reserved session numbers").with("first_free", decode::<u64>(value)?)
        }
        keys::TAG_SESSION => {
            let id = keys::ino_of(key).ok_or(ErrorCode::Corrupt)?;
            let record: SessionRecord = decode(value)?;
            Described::new("session")
                .with("session", id.0)
                .with("client", record.identity.client.0)
                .with("incarnation", record.identity.incarnation.0)
                .with("zone", record.zone.0)
                .with("name", record.name)
                .with("has_locked", record.has_locked)
        }
        keys::TAG_OWNERSHIP | keys::TAG_DEPARTURE | keys::TAG_ARRIVAL | keys::TAG_MOVED_SESSION => {
            of_move(tag, key, value)?
        }
        keys::TAG_FENCE => {
            let (client, holder) = keys::fence_of(key).ok_or(ErrorCode::Corrupt)?;
            let record: FenceRecord = decode(value)?;
            Described::new("fence that targets have to hear of")
                .with("client", client.0)
                .with("holder", holder.0)
                .with("lowest", record.lowest.0)
                .with("targets", record.targets.len() as u64)
        }
        keys::TAG_REMOTE_DATA => Described::new("files may lie in other zones"),
        keys::TAG_HOLDER => {
            let id = keys::ino_of(key).ok_or(ErrorCode::Corrupt)?;
            Described::new("holder of a session")
                .with("session", id.0)
                .with("subject", decode::<String>(value)?)
        }
        keys::TAG_SLOT => {
            let (session, slot) = keys::slot_of(key).ok_or(ErrorCode::Corrupt)?;
            let record: SlotRecord = decode(value)?;
            Described::new("last reply of a slot")
                .with("session", session.0)
                .with("slot", slot)
                .with("sequence", record.sequence)
                .with("reply", record.reply.name())
        }
        _ => return Err(ErrorCode::Corrupt),
    })
}

fn of_ino(tag: u8, key: &[u8], value: &[u8]) -> Result<Described, ErrorCode> {
    let ino = keys::ino_of(key).ok_or(ErrorCode::Corrupt)?;
    let named = |what| Described::new(what).with("ino", ino.0);
    Ok(match tag {
        keys::TAG_INODE => inode(&Inode::decode(ino, value)?),
        keys::TAG_INLINE => named("first bytes of a file").with("bytes", value),
        keys::TAG_DATA => {
            let id = keys::data_of(key).ok_or(ErrorCode::Corrupt)?;
            Described::new("file of a data id")
                .with("data_id", id.0)
                .with("ino", decode::<Ino>(value)?.0)
        }
        keys::TAG_DENTRY => {
            let dentry = Dentry::decode(value)?;
            let cookie = keys::dentry_cookie(key).ok_or(ErrorCode::Corrupt)?;
            let what = if dentry.is_mark() {
                "mark of a removed entry"
            } else {
                "entry"
            };
            Described::new(what)
                .with("directory", ino.0)
                .with("cookie", cookie)
                .with("ino", dentry.ino.0)
                .with("kind", format!("{:?}", dentry.kind))
                .with("chained", dentry.chained)
                .with("name", dentry.name.as_bytes())
        }
        keys::TAG_XATTR => named("extended attribute")
            .with("name", key.get(keys::XATTR_NAME_AT..).unwrap_or_default())
            .with("value", value),
        keys::TAG_ORPHAN => {
            let record: OrphanRecord = decode(value)?;
            let sessions: Field = record.sessions.iter().map(|session| session.0).collect();
            named("orphan").with("sessions", sessions)
        }
        keys::TAG_DELETION => {
            named("deletion to push").with("layout", layout(&decode::<Layout>(value)?))
        }
        keys::TAG_STALE => named("file with stale copies"),
        keys::TAG_DETACHED => {
            let (token, since) = decode::<(u64, Timestamp)>(value)?;
            named("first-level directory that is not settled")
                .with("token", token)
                .with("since", since)
        }
        _ => return Err(ErrorCode::Corrupt),
    })
}

fn inode(inode: &Inode) -> Described {
    let mut shown = Described::new("inode")
        .with("ino", inode.ino.0)
        .with("kind", format!("{:?}", inode.kind))
        .with("mode", format!("{:o}", inode.mode))
        .with("uid", inode.uid)
        .with("gid", inode.gid)
        .with("nlink", inode.nlink)
        .with("rdev", inode.rdev)
        .with("size", inode.size)
        .with("allocated", inode.allocated)
        .with("truncate_seq", inode.truncate_seq)
        .with("truncate_size", inode.truncate_size)
        .with("time_seq", inode.time_seq)
        .with("times_set", inode.times_set)
        .with("atime", inode.atime)
        .with("mtime", inode.mtime)
        .with("ctime", inode.ctime)
        .with("btime", inode.btime)
        .with("change", inode.change)
        .with("xattrs", inode.xattrs)
        .with("flags", inode.flags)
        .with("parent", inode.parent.0)
        .with("home", inode.home.0);
    if let Some(policy) = &inode.policy {
        let fields = vec![
            ("unit", Field::from(policy.unit)),
            ("count", Field::from(policy.count)),
        ];
        shown = shown.with("policy", fields);
    }
    if !inode.layout.components.is_empty() {
        shown = shown.with("layout", layout(&inode.layout));
    }
    if !inode.inline.0.is_empty() {
        shown = shown.with("inline", inode.inline.0.as_slice());
    }
    shown
}

/// The objects of a component that lie, or shall lie, in other slots than the computed ones.
fn relocations(component: &Component) -> Field {
    let records = component.relocations.iter().map(|record| {
        vec![
            ("object", Field::from(record.object.0)),
            ("set", Field::from(record.set.0)),
            ("slot", Field::from(record.slot)),
            ("state", Field::from(format!("{:?}", record.state))),
            ("as_of", Field::from(record.as_of.0)),
        ]
    });
    records.collect()
}

fn layout(layout: &Layout) -> Field {
    let components = layout.components.iter().map(|component| {
        let mut shown = vec![
            ("start", Field::from(component.start)),
            ("end", Field::from(component.end)),
            ("data_id", Field::from(component.data_id.0)),
            ("zone", Field::from(component.zone.0)),
            ("set", Field::from(component.set.0)),
            ("start_column", Field::from(component.start_column.0)),
            ("count", Field::from(component.count)),
            ("unit", Field::from(component.unit)),
            ("inline", Field::from(layout.inline_bytes())),
        ];
        if !component.relocations.is_empty() {
            shown.push(("relocations", relocations(component)));
        }
        shown
    });
    Field::Group(vec![
        ("generation", Field::from(layout.layout_gen.0)),
        ("components", components.collect()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::{GARBAGE, refused};

    #[test]
    fn garbage_is_an_error_and_never_a_panic() {
        let starts = [
            &[0, 0, 0, 3, 0x10][..],
            &[0, 0, 0, 3, 0x20],
            &[0, 0, 0, 3, 0x01],
            &[0, 0, 0, 3, 0x02],
            &[0, 0, 0, 3, 0x1c],
            &[0xff, 0xff, 0xff, 0xff, 0x71],
            &[0, 0, 0, 3, 0x50],
            &[],
        ];
        let count = refused(&starts, |key, value| entry(key, value).is_err());
        assert!(count > GARBAGE / 2, "{count}");
    }
}
