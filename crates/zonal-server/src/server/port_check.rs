//! Port check: whether a node can listen and is the only one at its address. Done before its stores
//! are opened, as opening writes to them.

use super::identity;
use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::node_probe::{NodeProbe, ProbeResult};
use crate::stores;
use zonal_disk::StoreKind;
use zonal_disk::store::is_in_use;
use zonal_net::{Identity, ListenConfig, Listeners};

/// Listens for a moment. Where that fails, an error about the stores comes first: a store that is
/// not this node's, or that another process has open.
pub(super) fn check_ports(
    config: &NodeConfig,
    listen: &ListenConfig,
    me: &Identity,
    probe: &dyn NodeProbe,
) -> Result<(), ServerError> {
    // Without Unix sockets: they come and go with their folder, which other servers are about to
    // use.
    let listen = ListenConfig {
        has_unix: false,
        ..listen.clone()
    };
    let Err(taken) = Listeners::bind(&listen, me) else {
        return probe_advertised_address(config, probe);
    };
    let roles = [
        (config.manager_role.is_some(), StoreKind::Manager),
        (config.meta_role.is_some(), StoreKind::Shard),
        (config.storage_role.is_some(), StoreKind::Target),
    ];
    for (_, kind) in roles.into_iter().filter(|(has_role, _)| *has_role) {
        let (dir, id) = match (kind, &config.storage_role) {
            (StoreKind::Target, Some(storage)) => (config.target_dir(), storage.target.0),
            (StoreKind::Manager, _) => (config.manager_dir(), config.node.0),
            _ => (config.meta_dir(), config.node.0),
        };
        let mut expected = identity(config, kind);
        expected.id = id;
        stores::uuid(&dir, &expected)?;
        if is_in_use(&dir) {
            // Opening the store reports it.
            return Ok(());
        }
    }
    Err(taken.into())
}

/// Probes the node's advertised address, where this node does not listen yet. A copy of its folder
/// on another machine still has that address. It would join in place of the node, and no client
/// could reach it.
fn probe_advertised_address(config: &NodeConfig, probe: &dyn NodeProbe) -> Result<(), ServerError> {
    let found = match probe.probe(config.node, config.advertise, config.listen) {
        ProbeResult::Nobody => return Ok(()),
        ProbeResult::Holder => config.node,
        ProbeResult::Other(node) => node,
    };
    Err(ServerError::AddressTaken {
        node: config.node,
        advertise: config.advertise,
        listen: config.listen,
        found,
    })
}
