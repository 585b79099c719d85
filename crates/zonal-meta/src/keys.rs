//! Keys of the shard's store. All numbers are big-endian, so that keys sort by them.
//!
//! A key begins with the partition (u32) and a tag (u8). Keys of the shard as a whole have the
//! partition `u32::MAX`. docs/on-disk-format.md has the same table under "Shard".

use zonal_types::{ClientId, DataId, HolderNumber, Ino, PartitionId, SessionId};

/// The partition number of keys that belong to the whole shard.
pub const SHARD_PARTITION: u32 = u32::MAX;

/// Format of this store and the shard's identity.
pub const TAG_FORMAT: u8 = 0x00;
/// Reserved inode numbers of a partition, or session ids of the shard.
pub const TAG_IDS: u8 = 0x01;
/// Reserved data ids of a partition.
pub const TAG_DATA_IDS: u8 = 0x02;
/// Number of a partition's inodes.
pub const TAG_INODE_COUNT: u8 = 0x03;
/// Partition whose inodes have names in this one, or the reverse: neither moves alone.
pub const TAG_JOINED: u8 = 0x04;
/// Inode.
pub const TAG_INODE: u8 = 0x10;
/// First bytes of a file.
pub const TAG_INLINE: u8 = 0x18;
/// Data id, leading to its inode.
pub const TAG_DATA: u8 = 0x1c;
/// Directory entry.
pub const TAG_DENTRY: u8 = 0x20;
/// Extended attribute.
pub const TAG_XATTR: u8 = 0x30;
/// Inode without a name, held open.
pub const TAG_ORPHAN: u8 = 0x40;
/// Layout whose objects are to be deleted.
pub const TAG_DELETION: u8 = 0x50;
/// Directory inode whose entry in the root shard is not settled.
pub const TAG_DETACHED: u8 = 0x60;
/// File with stale copies.
pub const TAG_STALE: u8 = 0x64;
/// Behind all tags of a shard. In a manager's store the zone map follows.
pub const TAG_END: u8 = 0x80;
/// Session.
pub const TAG_SESSION: u8 = 0x70;
/// Last reply of a slot.
pub const TAG_SLOT: u8 = 0x71;
/// The subject to which a session belongs, where its client proved one.
pub const TAG_HOLDER: u8 = 0x72;
/// A client to be fenced at targets.
pub const TAG_FENCE: u8 = 0x73;
/// Partition that leaves the shard.
pub const TAG_DEPARTURE: u8 = 0x75;
/// Partition that comes to the shard.
pub const TAG_ARRIVAL: u8 = 0x76;
/// Session of the shard that a coming partition leaves.
pub const TAG_MOVED_SESSION: u8 = 0x77;
/// Version of the map that last gave the shard a partition of another shard, or took one.
pub const TAG_OWNERSHIP: u8 = 0x78;
/// Files of this shard may lie on targets of other zones.
pub const TAG_REMOTE_DATA: u8 = 0x74;

fn start(partition: u32, tag: u8, room: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(5 + room);
    key.extend_from_slice(&partition.to_be_bytes());
    key.push(tag);
    key
}

fn of_ino(ino: Ino, tag: u8, room: usize) -> Vec<u8> {
    let mut key = start(ino.partition().0, tag, 8 + room);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key
}

/// First key of a tag in a partition, and the first key behind the tag.
pub fn tag_range(partition: u32, tag: u8) -> (Vec<u8>, Vec<u8>) {
    (start(partition, tag, 0), start(partition, tag + 1, 0))
}

/// The store's format record.
pub fn format() -> Vec<u8> {
    start(SHARD_PARTITION, TAG_FORMAT, 0)
}

/// Reserved sequence numbers of a partition.
pub fn ids(partition: PartitionId) -> Vec<u8> {
    start(partition.0, TAG_IDS, 0)
}

/// Reserved data ids of a partition.
pub fn data_ids(partition: PartitionId) -> Vec<u8> {
    start(partition.0, TAG_DATA_IDS, 0)
}

/// The number of a partition's inodes.
pub fn inode_count(partition: PartitionId) -> Vec<u8> {
    start(partition.0, TAG_INODE_COUNT, 0)
}

/// Mark that a file has stale copies.
pub fn stale(ino: Ino) -> Vec<u8> {
    of_ino(ino, TAG_STALE, 0)
}

/// Mark that two partitions are joined.
pub fn joined(partition: PartitionId, with: PartitionId) -> Vec<u8> {
    of_partition(partition.0, TAG_JOINED, with)
}

/// The note of a partition that leaves.
pub fn departure(partition: PartitionId) -> Vec<u8> {
    of_partition(SHARD_PARTITION, TAG_DEPARTURE, partition)
}

/// The note of a partition that comes.
pub fn arrival(partition: PartitionId) -> Vec<u8> {
    of_partition(SHARD_PARTITION, TAG_ARRIVAL, partition)
}

/// The version of the map that last gave the shard a partition of another shard, or took one.
pub fn ownership() -> Vec<u8> {
    start(SHARD_PARTITION, TAG_OWNERSHIP, 0)
}

fn of_partition(of: u32, tag: u8, partition: PartitionId) -> Vec<u8> {
    let mut key = start(of, tag, 4);
    key.extend_from_slice(&partition.0.to_be_bytes());
    key
}

/// The partition that the key of a note names.
pub fn moved_partition(key: &[u8]) -> Option<PartitionId> {
    let bytes = key.get(5..9)?;
    let partition = u32::from_be_bytes(bytes.try_into().ok()?);
    (key.len() == 9).then_some(PartitionId(partition))
}

/// A session of the shard that a coming partition leaves.
pub fn moved_session(partition: PartitionId, id: SessionId) -> Vec<u8> {
    let mut key = of_partition(SHARD_PARTITION, TAG_MOVED_SESSION, partition);
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// The session of a key of [`moved_session`].
pub fn moved_session_of(key: &[u8]) -> Option<SessionId> {
    let bytes = key.get(9..17)?;
    let id = u64::from_be_bytes(bytes.try_into().ok()?);
    (key.len() == 17).then_some(SessionId(id))
}

/// All of a partition's: first key and the key behind the last.
pub fn moved_sessions(partition: PartitionId) -> (Vec<u8>, Vec<u8>) {
    let first = of_partition(SHARD_PARTITION, TAG_MOVED_SESSION, partition);
    let next = PartitionId(partition.0 + 1);
    (
        first,
        of_partition(SHARD_PARTITION, TAG_MOVED_SESSION, next),
    )
}

/// All keys of a partition: first key and the key behind the last.
pub fn partition_range(partition: PartitionId) -> (Vec<u8>, Vec<u8>) {
    let first = partition.0.to_be_bytes().to_vec();
    (first, (partition.0 + 1).to_be_bytes().to_vec())
}

/// Mark that files of this shard may lie on targets of other zones.
pub fn remote_data() -> Vec<u8> {
    start(SHARD_PARTITION, TAG_REMOTE_DATA, 0)
}

/// Reserved session ids.
pub fn session_ids() -> Vec<u8> {
    start(SHARD_PARTITION, TAG_IDS, 0)
}

/// An inode.
pub fn inode(ino: Ino) -> Vec<u8> {
    of_ino(ino, TAG_INODE, 0)
}

/// The first bytes of a file.
pub fn inline(ino: Ino) -> Vec<u8> {
    of_ino(ino, TAG_INLINE, 0)
}

/// Index key of a data id: leads to its inode.
pub fn data(id: DataId) -> Vec<u8> {
    of_ino(Ino(id.0), TAG_DATA, 0)
}

/// The data id of an index key.
pub fn data_of(key: &[u8]) -> Option<DataId> {
    let id = DataId(ino_of(key)?.0);
    (key == data(id) && id.is_valid()).then_some(id)
}

/// A directory entry.
pub fn dentry(dir: Ino, cookie: u64) -> Vec<u8> {
    let mut key = of_ino(dir, TAG_DENTRY, 8);
    key.extend_from_slice(&cookie.to_be_bytes());
    key
}

/// The cookie of a directory entry's key.
pub fn dentry_cookie(key: &[u8]) -> Option<u64> {
    let bytes = key.get(13..21)?;
    (key.len() == 21).then_some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// The directory of an entry's key, or the inode of an inode, orphan or deletion key.
pub fn ino_of(key: &[u8]) -> Option<Ino> {
    let bytes = key.get(5..13)?;
    Some(Ino(u64::from_be_bytes(bytes.try_into().ok()?)))
}

/// An extended attribute.
pub fn xattr(ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = of_ino(ino, TAG_XATTR, name.len());
    key.extend_from_slice(name);
    key
}

/// All extended attributes of an inode: first key and the key behind the last. Names follow 13
/// bytes.
pub fn xattrs(ino: Ino) -> (Vec<u8>, Vec<u8>) {
    let first = of_ino(ino, TAG_XATTR, 0);
    let mut end = start(ino.partition().0, TAG_XATTR, 8);
    end.extend_from_slice(&(ino.0 + 1).to_be_bytes());
    (first, end)
}

/// Bytes of an extended attribute's key before its name.
pub const XATTR_NAME_AT: usize = 13;

/// An orphan.
pub fn orphan(ino: Ino) -> Vec<u8> {
    of_ino(ino, TAG_ORPHAN, 0)
}

/// A deletion to push.
pub fn deletion(ino: Ino) -> Vec<u8> {
    of_ino(ino, TAG_DELETION, 0)
}

/// A directory that is not settled.
pub fn detached(ino: Ino) -> Vec<u8> {
    of_ino(ino, TAG_DETACHED, 0)
}

/// A session.
pub fn session(id: SessionId) -> Vec<u8> {
    let mut key = start(SHARD_PARTITION, TAG_SESSION, 8);
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// The subject of a session.
pub fn holder(id: SessionId) -> Vec<u8> {
    let mut key = start(SHARD_PARTITION, TAG_HOLDER, 8);
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

/// A fence that targets have to acknowledge.
pub fn fence(client: ClientId, of: HolderNumber) -> Vec<u8> {
    let mut key = start(SHARD_PARTITION, TAG_FENCE, 16);
    key.extend_from_slice(&client.0.to_be_bytes());
    key.extend_from_slice(&of.0.to_be_bytes());
    key
}

/// Client and holder of a fence's key.
pub fn fence_of(key: &[u8]) -> Option<(ClientId, HolderNumber)> {
    let client = u64::from_be_bytes(key.get(5..13)?.try_into().ok()?);
    let holder = u64::from_be_bytes(key.get(13..21)?.try_into().ok()?);
    (key.len() == 21).then_some((ClientId(client), HolderNumber(holder)))
}

/// A slot's last reply.
pub fn slot(id: SessionId, slot: u32) -> Vec<u8> {
    let mut key = start(SHARD_PARTITION, TAG_SLOT, 12);
    key.extend_from_slice(&id.0.to_be_bytes());
    key.extend_from_slice(&slot.to_be_bytes());
    key
}

/// Session and slot of a slot's key.
pub fn slot_of(key: &[u8]) -> Option<(SessionId, u32)> {
    let session = u64::from_be_bytes(key.get(5..13)?.try_into().ok()?);
    let slot = u32::from_be_bytes(key.get(13..17)?.try_into().ok()?);
    (key.len() == 17).then_some((SessionId(session), slot))
}

/// All entries of a directory: first key and the key behind the last.
pub fn dentries(dir: Ino) -> (Vec<u8>, Vec<u8>) {
    (dentry(dir, 0), dentry(dir, u64::MAX))
}
