//! Repairs after the comparison with other stores: files for bytes without an inode, sizes by the
//! targets, and directories on which two shards disagree. Copies that differ are noted.

use super::{Result, link, owner};
use crate::config::Now;
use crate::inode::Inode;
use crate::op::{inline_data, relocations};
use crate::shard::MetaShard;
use zonal_types::{
    Column, DataId, ErrorCode, FileKind, Ino, KvChange, KvRead, Layout, Name, PartitionId,
    SessionId,
};

/// A file made for bytes without an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptedFile {
    /// Their data id. The file gets a number of the same partition.
    pub data_id: DataId,
    /// Its name in `lost+found`.
    pub name: Name,
    /// The layout of the bytes.
    pub layout: Layout,
    /// Size in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// The last truncation that the targets know.
    pub truncate_seq: u64,
}

impl MetaShard {
    /// A directory for inodes without a name, and the changes that make it. The root shard makes
    /// its entry; until then it is a first-level directory without one.
    ///
    /// # Errors
    /// `NotOwner` in the root shard, where the root itself takes these inodes.
    pub fn make_lost_found(&self, kv: &dyn KvRead, now: Now) -> Result<(Ino, Vec<KvChange>)> {
        if self.config.is_root() {
            return Err(ErrorCode::NotOwner);
        }
        let mut tx = self.tx(kv, now, SessionId(0));
        let partition = self.partitions.first().ok_or(ErrorCode::NotOwner)?;
        let ino = tx.new_ino(*partition)?;
        let mut dir = Inode::new(
            ino,
            FileKind::Directory,
            Ino::ROOT,
            self.config.zone,
            now.wall,
        );
        dir.mode = 0o700;
        tx.save(dir);
        Ok((ino, tx.finish()?.effect))
    }

    /// Makes a file in `lost_found` for bytes that have no inode; no changes where they have one.
    ///
    /// # Errors
    /// `NotFound` where `lost_found` is no directory; else the error of `kv`.
    pub fn adopt(
        &self,
        kv: &dyn KvRead,
        now: Now,
        lost_found: Ino,
        found: &AdoptedFile,
    ) -> Result<Vec<KvChange>> {
        let mut tx = self.tx(kv, now, SessionId(0));
        let partition = found.data_id.partition();
        if !tx.is_ours(Ino(found.data_id.0)) || owner(&mut tx, found.data_id)?.is_some() {
            return Ok(Vec::new());
        }
        let dir = tx.directory(lost_found)?;
        let ino = tx.new_ino(partition)?;
        let mut inode = Inode::new(ino, FileKind::File, lost_found, dir.home, now.wall);
        inode.mode = 0o600;
        inode.layout = found.layout.clone();
        inode.size = found.size;
        inode.allocated = found.allocated;
        inode.truncate_seq = found.truncate_seq;
        inode.truncate_size = found.size;
        tx.save(inode);
        link(&mut tx, dir, &found.name, ino, FileKind::File)?;
        Ok(tx.finish()?.effect)
    }

    /// Sets an inode's size, bytes allocated at targets and truncation number to what the targets
    /// report.
    ///
    /// # Errors
    /// The error of `kv`.
    pub fn correct(
        &self,
        kv: &dyn KvRead,
        now: Now,
        ino: Ino,
        wanted: (Option<u64>, Option<u64>, Option<u64>),
    ) -> Result<Vec<KvChange>> {
        let mut tx = self.tx(kv, now, SessionId(0));
        if let Some(mut inode) = tx.find(ino)? {
            inode.size = wanted.0.unwrap_or(inode.size);
            if let Some(at_targets) = wanted.1 {
                let own = inline_data::stored(&tx, &inode)?.len();
                inode.allocated = at_targets.saturating_add(inline_data::allocated(own));
            }
            if let Some(seq) = wanted.2 {
                inode.truncate_seq = seq;
                inode.truncate_size = inode.size;
            }
            inline_data::truncate_to_fit(&mut tx, &mut inode)?;
            tx.save(inode);
        }
        Ok(tx.finish()?.effect)
    }

    /// Notes copies of a file as missing, so that their targets fill them again. `copies`: their
    /// objects, and the blocks of each. No changes where that is done already.
    ///
    /// # Errors
    /// `Io` where a column would keep no copy in service. `NoSpace` where the layout has no room
    /// for more records. `NotReady` for an unknown stripe set. Else the error of `kv`.
    pub fn refill_copies(
        &self,
        kv: &dyn KvRead,
        now: Now,
        (ino, data_id): (Ino, DataId),
        copies: &[(Column, u64)],
    ) -> Result<Vec<KvChange>> {
        let mut tx = self.tx(kv, now, SessionId(0));
        if let Some(mut inode) = tx.find(ino)?
            && relocations::refill(&mut inode, tx.env.map, data_id, copies)?
        {
            tx.save(inode);
        }
        Ok(tx.finish()?.effect)
    }

    /// Gives a first-level directory its entry in the root. Called on the root shard.
    ///
    /// # Errors
    /// `Exists` where the name is taken.
    pub fn add_first_level(
        &self,
        kv: &dyn KvRead,
        now: Now,
        name: &Name,
        ino: Ino,
    ) -> Result<Vec<KvChange>> {
        let mut tx = self.tx(kv, now, SessionId(0));
        let root = tx.directory(Ino::ROOT)?;
        if tx.lookup(Ino::ROOT, name)?.is_some() {
            return Err(ErrorCode::Exists);
        }
        link(&mut tx, root, name, ino, FileKind::Directory)?;
        Ok(tx.finish()?.effect)
    }

    /// The inode that a name in a directory of this shard leads to.
    ///
    /// # Errors
    /// The error of `kv`.
    pub fn find_entry(
        &self,
        kv: &dyn KvRead,
        now: Now,
        dir: Ino,
        name: &Name,
    ) -> Result<Option<Ino>> {
        let tx = self.tx(kv, now, SessionId(0));
        Ok(tx.lookup(dir, name)?.map(|(_, dentry)| dentry.ino))
    }

    /// The partitions of this shard.
    #[must_use]
    pub fn owned(&self) -> &[PartitionId] {
        &self.partitions
    }
}
