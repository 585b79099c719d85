//! Options of a client.

use zonal_types::limits::{
    REQUEST_DEADLINE_MS, SECOND_COPY_MS, WRITE_BEHIND_AGE_MS, WRITE_BEHIND_BYTES_DEFAULT,
    WRITE_BEHIND_FILE_BYTES_MAX,
};
use zonal_types::{CellId, ClientId, NodeId, ZoneId};

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The cell, where it is known; all zeros: the client takes it from the first map.
    pub cell: CellId,
    /// Addresses of managers.
    pub managers: Vec<String>,
    /// The zone of the mount: home of directories that it makes in the root.
    pub zone: ZoneId,
    /// The node of the mount, on which files of directories with the placement `node` lie; 0: none.
    pub node: NodeId,
    /// Random number that names this client in the whole cell.
    pub client: ClientId,
    /// Name for people, in lists of sessions.
    pub name: String,
    /// Whether the mount lists directories as the superuser, after it has checked the right of the
    /// user. False where its credential does not let it act for root.
    pub lists_as_root: bool,
    /// Whether the kernel may cache names and attributes under leases.
    pub cache: bool,
    /// How long the kernel may trust names and attributes without a lease, ms, because nobody else
    /// writes the mounted tree. Normally 0.
    pub exclusive_ms: u32,
    /// Deadline of a request, retries included, ms.
    pub deadline_ms: u64,
    /// Whether an operation with a waiting caller goes on past its deadline, until a server answers
    /// or the caller is killed.
    pub waits: bool,
    /// How long a read waits for one copy before it asks another one, too, ms; 0: it never does.
    pub second_copy_ms: u64,
    /// Idle time after which the session at a shard ends where nothing is held there, ms.
    pub leave_idle_ms: u64,
    /// How long leases are renewed after their last use, ms. So long a session with leases does not
    /// end.
    pub keep_leases_ms: u64,
    /// How long one attempt waits for its reply, ms.
    pub attempt_ms: u64,
    /// Bound of gathered writes of the whole mount, bytes.
    pub write_behind_bytes: usize,
    /// Bound of gathered writes of one file, bytes.
    pub write_behind_file_bytes: usize,
    /// Age at which gathered writes are flushed, ms.
    pub write_behind_age_ms: u64,
}

/// Longer than any lease that a shard grants, ms.
const LEAVE_IDLE_MS: u64 = 60_000;
/// A quarter of an hour.
const KEEP_LEASES_MS: u64 = 900_000;

impl ClientOptions {
    /// Default options for a mount in `zone` whose manager listens at `manager`.
    #[must_use]
    pub fn new(manager: &str, zone: ZoneId, client: ClientId) -> Self {
        Self::of_managers(vec![manager.to_owned()], zone, client)
    }

    /// As [`Self::new`], where several managers are known.
    #[must_use]
    pub fn of_managers(managers: Vec<String>, zone: ZoneId, client: ClientId) -> Self {
        Self {
            cell: CellId::default(),
            managers,
            zone,
            node: NodeId(0),
            client,
            name: String::new(),
            lists_as_root: true,
            cache: true,
            exclusive_ms: 0,
            deadline_ms: REQUEST_DEADLINE_MS,
            waits: false,
            second_copy_ms: SECOND_COPY_MS,
            leave_idle_ms: LEAVE_IDLE_MS,
            keep_leases_ms: KEEP_LEASES_MS,
            attempt_ms: REQUEST_DEADLINE_MS,
            write_behind_bytes: WRITE_BEHIND_BYTES_DEFAULT,
            write_behind_file_bytes: WRITE_BEHIND_FILE_BYTES_MAX,
            write_behind_age_ms: WRITE_BEHIND_AGE_MS,
        }
    }

    /// Time after which a read asks another copy, too, ms; `None`: never.
    pub(crate) fn second_copy_after(&self) -> Option<u64> {
        (self.second_copy_ms > 0).then_some(self.second_copy_ms)
    }
}
