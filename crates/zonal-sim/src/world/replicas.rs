//! The replicas of the cell's replicated shard.

use super::World;
use zonal_consensus::ReplicaId;

impl World {
    /// Shows the disks of replicas to the history of their group.
    pub(super) fn show_disks(&self) {
        for server in &self.servers {
            if let Some(disk) = &server.member {
                self.history.add_disk(server.replica_id(), disk.clone());
            }
        }
    }

    /// Indices of the servers with a replica.
    #[must_use]
    pub fn replica_indices(&self) -> Vec<usize> {
        let numbered = self.servers.iter().enumerate();
        numbered
            .filter(|(_, server)| server.member.is_some())
            .map(|(index, _)| index)
            .collect()
    }

    /// Whether all replicas vote, and know it. A group that grows may stand still after a loss of
    /// power, where the member that lost it alone knows the newest members.
    #[must_use]
    pub fn is_group_grown(&self) -> bool {
        let count = self.replica_indices().len();
        let mut disks = self
            .servers
            .iter()
            .filter_map(|server| server.member.as_ref());
        disks.all(|disk| disk.applied().members.voters.len() == count)
    }

    /// Whether the replicas lose nothing where this one loses its power.
    #[must_use]
    pub fn is_strong_without(&self, index: usize) -> bool {
        let server = self.servers.get(index);
        server.is_some_and(|server| self.history.is_strong_without(server.replica_id()))
    }

    /// Whether the replicated shard, if there is one, has a leader that serves, and all its
    /// replicas are level.
    #[must_use]
    pub fn are_replicas_level(&self) -> bool {
        let serving = self
            .servers
            .iter()
            .filter(|server| server.serves_as_leader());
        self.replica_indices().is_empty() || (serving.count() == 1 && self.history.is_level())
    }
}

impl super::servers::Server {
    pub(super) fn replica_id(&self) -> ReplicaId {
        ReplicaId(self.node.0.into())
    }

    fn serves_as_leader(&self) -> bool {
        let replica = self.replica.borrow();
        replica
            .as_ref()
            .is_some_and(|replica| replica.serving().is_some())
    }
}
