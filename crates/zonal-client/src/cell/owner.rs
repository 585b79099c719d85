//! The interface from sessions to the client that has them: the state that it holds at shards. It
//! hears when a session is lost or a shard has restarted.

use crate::cell::Cell;
use crate::cell::session::Link;
use crate::transport::net::Net;
use std::collections::BTreeSet;
use zonal_types::{Ino, ShardId};
use zonal_wire::{AppendPlace, LockRange};

/// The client whose sessions these are.
pub trait SessionOwner {
    /// Its transport.
    type Net: Net;

    /// The cell that it uses.
    fn cell(&self) -> &Cell<Self::Net>;

    /// Inodes that it has open at a shard, one for each open.
    fn opens_at(&self, shard: ShardId) -> Vec<Ino>;

    /// Locks that it holds at a shard.
    fn locks_at(&self, shard: ShardId) -> Vec<(Ino, LockRange)>;

    /// Shards at which it has files or locks.
    fn shards_held(&self) -> BTreeSet<ShardId>;

    /// Whether it has neither open or unwritten files nor locks at a shard.
    fn holds_nothing_at(&self, shard: ShardId) -> bool;

    /// The place to report to a restarted shard. A lent end is reported where it is now.
    fn place_to_tell(&self, append: (Ino, AppendPlace)) -> (Ino, AppendPlace);

    /// How often locks of a file were lost.
    fn forfeits_of(&self, ino: Ino) -> u64;

    /// Drops writes that were gathered under locks which others have got, and reports the loss to
    /// each open of the file.
    fn forfeit(&self, ino: Ino);

    /// Whether it keeps names or attributes under leases.
    fn caches_leases(&self) -> bool;

    /// Forgets everything cached under leases that a shard granted.
    fn forget_granted(&self);

    /// A session was lost: shards do not count this client as a holder of its open files.
    fn session_is_lost(&self);

    /// A shard was restarted: the earlier boot may not have reported a truncation by others.
    fn outdate_files_at(&self, link: &Link);
}
