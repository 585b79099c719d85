//! Status of nodes, as `zonal status` and `zonal top` ask for it: all nodes in parallel, each
//! request with the deadline of the [`CellHandle`].
//!
//! A node that leaves one request without an answer is asked nothing more. So a silent node costs
//! one deadline.

use super::connection::CellHandle;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;
use zonal_basics::const_u32;
use zonal_net::{Address, NetError};
use zonal_types::limits::JUNCTIONS_LISTED_MAX;
use zonal_types::{Codec, Ino, NodeId, TargetId};
use zonal_wire::{
    AdminReply, AdminRequest, ClientTraffic, DirectoryTraffic, ManagerReply, ManagerRequest,
    MetaReply, MetaRequest, NodeActivity, Service, StorageReply, StorageRequest,
};
use zonal_zonemap::{Node, Shard, ZoneMap};

/// Space of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetCapacity {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub objects: u64,
}

/// The replies of one node.
#[derive(Debug, Clone, Default)]
pub struct NodeStatus {
    /// The node accepts clients that are configured to go in the clear.
    pub offers_plain: bool,
    /// It answered each request.
    pub answers: bool,
    /// It did not answer in time.
    pub is_silent: bool,
    /// The first problem found.
    pub error: Option<String>,
    pub inodes: Option<u64>,
    /// Its targets by the zone map, with the space of those that answer.
    pub targets: Vec<(TargetId, Option<TargetCapacity>)>,
    /// `None`: it did not tell.
    pub activity: Option<NodeActivity>,
    /// When it told its activity.
    pub told: Option<Instant>,
}

impl NodeStatus {
    /// A node that could not be asked.
    pub fn failed(error: &str) -> Self {
        Self {
            error: Some(error.to_owned()),
            ..Self::default()
        }
    }

    /// Bytes that clients exchanged with the node's targets.
    pub fn traffic(&self, node: &Node) -> ClientTraffic {
        let mut sum = ClientTraffic::default();
        for counts in self.activity.iter().flat_map(|activity| &activity.clients) {
            let (read, written) = match counts.zone == node.zone {
                true => (&mut sum.read_in_zone, &mut sum.written_in_zone),
                false => (&mut sum.read_cross_zone, &mut sum.written_cross_zone),
            };
            // The numbers come from servers.
            *read = read.saturating_add(counts.read);
            *written = written.saturating_add(counts.written);
        }
        sum
    }
}

/// Asks all nodes of the map, in its order, each on a connection of its own first.
pub fn look_at_all(cell: &CellHandle, map: &ZoneMap) -> Vec<NodeStatus> {
    in_parallel(map, |node| Probe::look_at(cell, map, node, true))
}

/// As [`look_at_all`], on kept connections, for commands that ask again and again. It does not tell
/// which nodes accept connections in the clear.
pub fn look_again(cell: &CellHandle, map: &ZoneMap) -> Vec<NodeStatus> {
    in_parallel(map, |node| Probe::look_at(cell, map, node, false))
}

fn in_parallel(map: &ZoneMap, ask: impl Fn(&Node) -> NodeStatus + Sync) -> Vec<NodeStatus> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let nodes = map.nodes.iter();
        let asking: Vec<_> = nodes.map(|node| scope.spawn(move || ask(node))).collect();
        let asked = asking.into_iter().map(|thread| {
            let status = thread.join();
            status.unwrap_or_else(|_panic| NodeStatus::failed("a probe panicked"))
        });
        asked.collect()
    })
}

/// One node that is being asked.
struct Probe<'a> {
    cell: &'a CellHandle,
    to: Address,
    status: NodeStatus,
}

impl<'a> Probe<'a> {
    fn look_at(cell: &'a CellHandle, map: &ZoneMap, node: &Node, is_first: bool) -> NodeStatus {
        let Ok(tcp) = node.address.parse() else {
            return NodeStatus::failed("its address cannot be read");
        };
        let mut probe = Self {
            cell,
            to: Address::new(tcp, node.id),
            status: NodeStatus {
                answers: true,
                ..NodeStatus::default()
            },
        };
        if is_first {
            probe.connect(tcp, node.id);
        }
        probe.ask_health();
        probe.ask_shard(map, node.id);
        let targets = map.targets.iter().filter(|target| target.node == node.id);
        for target in targets {
            let space = probe.ask_space(target.id);
            probe.status.targets.push((target.id, space));
        }
        probe.ask_activity();
        probe.status
    }

    /// Connects anew to learn whether the node answers.
    fn connect(&mut self, tcp: SocketAddr, node: NodeId) {
        match self.cell.probe(tcp, node) {
            Ok(peer) => self.status.offers_plain = peer.offers_plain,
            Err(error) => self.fail(&error.into()),
        }
    }

    /// Notes a request without an answer: the node is not asked again.
    fn fail(&mut self, error: &anyhow::Error) {
        self.status.answers = false;
        let causes = &mut error.chain();
        self.status.is_silent |= causes.any(|cause| {
            let error = cause.downcast_ref::<NetError>();
            matches!(error, Some(NetError::TimedOut { .. }))
        });
        self.note(error.to_string());
    }

    fn note(&mut self, problem: String) {
        self.status.error.get_or_insert(problem);
    }

    /// Sends a request, unless one was left without an answer. A failure is noted.
    fn call<T: Codec>(
        &mut self,
        service: Service,
        operation: &'static str,
        body: &[u8],
    ) -> Option<T> {
        if !self.status.answers {
            return None;
        }
        match self.cell.call(self.to, service, operation, body) {
            Ok(reply) => Some(reply),
            Err(error) => {
                self.fail(&error);
                None
            }
        }
    }

    fn admin(&mut self, request: &AdminRequest) -> Option<anyhow::Result<AdminReply>> {
        let reply = self.call(Service::Admin, request.name(), &request.to_bytes())?;
        Some(match reply {
            AdminReply::Failed { code, detail } => {
                let to = self.to;
                Err(anyhow::anyhow!("{to} refuses: {detail} ({})", code.0))
            }
            reply => Ok(reply),
        })
    }

    /// The problem that the node itself reports, which explains failures seen from here.
    fn ask_health(&mut self) {
        let problem = match self.admin(&AdminRequest::Health) {
            Some(Ok(AdminReply::Health { roles })) => {
                let mut roles = roles.into_iter();
                let Some(bad) = roles.find(|role| !role.serves || !role.trouble.is_empty()) else {
                    return;
                };
                let rest = match bad.serves {
                    true => "",
                    false => ", it does not serve",
                };
                format!("{}: {}{rest}", bad.role, bad.trouble)
            }
            Some(Ok(_)) => "an unexpected reply about its health".into(),
            Some(Err(refused)) => format!("{refused:#}"),
            None => return,
        };
        self.note(problem);
    }

    fn ask_shard(&mut self, map: &ZoneMap, node: NodeId) {
        let keeps = |shard: &Shard| shard.replicas.contains(&node);
        if !map.shards.iter().any(keeps) {
            return;
        }
        let request = MetaRequest::StatFs;
        match self.call(Service::Meta, request.name(), &request.to_bytes()) {
            Some(MetaReply::StatFs { inodes, .. }) => self.status.inodes = Some(inodes),
            Some(MetaReply::Failed { code }) => self.note(format!("shard: {}", code.0)),
            Some(MetaReply::NotLeader { .. }) | None => {}
            Some(_) => self.note("shard: an unexpected reply".into()),
        }
    }

    fn ask_space(&mut self, target: TargetId) -> Option<TargetCapacity> {
        let request = StorageRequest::StatFs { target };
        match self.call(Service::Storage, request.name(), &request.to_bytes())? {
            StorageReply::StatFs {
                total,
                free,
                objects,
            } => Some(TargetCapacity {
                total_bytes: total,
                free_bytes: free,
                objects,
            }),
            StorageReply::Failed { code, detail } => {
                self.note(format!("target {target}: {} {detail}", code.0));
                None
            }
            _ => None,
        }
    }

    fn ask_activity(&mut self) {
        if let Some(Ok(AdminReply::Activity { activity })) = self.admin(&AdminRequest::Activity) {
            self.status.activity = Some(activity);
            self.status.told = Some(Instant::now());
        }
    }
}

/// Bytes by first-level directory in the whole cell.
pub fn directory_sums(statuses: &[NodeStatus]) -> Vec<DirectoryTraffic> {
    let mut sums = BTreeMap::<Ino, ClientTraffic>::new();
    for activity in statuses
        .iter()
        .filter_map(|status| status.activity.as_ref())
    {
        for entry in &activity.directories {
            sums.entry(entry.dir).or_default().add(&entry.traffic);
        }
    }
    let sums = sums.into_iter();
    sums.map(|(dir, traffic)| DirectoryTraffic { dir, traffic })
        .collect()
}

/// Paths of first-level directories, as far as the manager tells them.
pub fn directory_paths(
    cell: &CellHandle,
    dirs: impl Iterator<Item = Ino>,
) -> BTreeMap<Ino, String> {
    let mut wanted: BTreeSet<Ino> = dirs.collect();
    let mut paths = BTreeMap::new();
    wanted.remove(&Ino(0));
    if wanted.remove(&Ino::ROOT) {
        paths.insert(Ino::ROOT, "/".to_owned());
    }
    let first_page = ManagerRequest::Junctions {
        after: None,
        entries: const { const_u32(JUNCTIONS_LISTED_MAX as u64) },
    };
    // One reply has all of them in most cells. The others are asked for one by one.
    let mut request = Some(first_page);
    while let Some(ask) = request
        && !wanted.is_empty()
        && let Ok(ManagerReply::Junctions { junctions, .. }) = cell.ask_manager(&ask)
    {
        for junction in junctions {
            if wanted.remove(&junction.ino) {
                paths.insert(junction.ino, junction.path);
            }
        }
        if let ManagerRequest::Junction { ino } = ask {
            // It is gone.
            wanted.remove(&ino);
        }
        let next = wanted.first().copied();
        request = next.map(|ino| ManagerRequest::Junction { ino });
    }
    paths
}
