//! Contents of a node's admin pages.

use crate::admin::{Admin, Token};
use crate::config::{AdminConfig, NodeConfig};
use crate::error::ServerError;
use crate::node::ServerNode;
use crate::placement_grpc::ServiceCalls;
use crate::placement_pages::PlacementPages;
use crate::placement_service::PlacementService;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use zonal_grpc::PlacementCallServer;
use zonal_net::ServerHandle;
use zonal_types::limits::REGION_BYTES_MAX;

/// Reads the token that requests for the pages must carry.
pub(super) fn read_token(config: &NodeConfig) -> Result<Option<Token>, ServerError> {
    let admin = config.admin.as_ref();
    let Some(path) = admin.and_then(|admin| admin.token_file.as_ref()) else {
        return Ok(None);
    };
    let token = Token::read(path).map_err(|source| ServerError::Token {
        path: path.clone(),
        source,
    })?;
    Ok(Some(token))
}

/// Binds the address of the admin pages, where there are any; they answer a moment later.
pub(super) fn listen_admin(config: &NodeConfig) -> Result<Option<TcpListener>, ServerError> {
    let Some(AdminConfig { listen, .. }) = config.admin else {
        return Ok(None);
    };
    let listener = TcpListener::bind(listen).map_err(|source| ServerError::Listen {
        address: listen,
        source,
    })?;
    Ok(Some(listener))
}

/// The admin pages, and gRPC beside them.
pub(super) struct AdminServers {
    pub(super) pages: Admin,
    _grpc: Option<PlacementCallServer>,
}

pub(super) fn start_admin(
    config: &NodeConfig,
    listener: Option<TcpListener>,
    node: &Arc<ServerNode>,
    server: &ServerHandle,
    token: Option<Token>,
) -> Result<Option<AdminServers>, ServerError> {
    let connections = Arc::clone(server.metrics());
    let connections_max = config.limits.connections as u64;
    let regions = Arc::clone(server.regions());
    node.metrics.add_gauges(Box::new(move || {
        let counters = connections.snapshot().into_iter();
        let bounds = [
            ("net_connections_max".to_owned(), connections_max),
            ("net_region_bytes".to_owned(), regions.bytes()),
            (
                "net_region_bytes_max".to_owned(),
                connections_max * REGION_BYTES_MAX,
            ),
        ];
        counters
            .map(|(name, value)| (format!("net_{name}"), value))
            .chain(bounds)
            .collect()
    }));
    if let Some(shard) = node.shard.clone() {
        let gauges = move || {
            shard
                .serving()
                .map_or_else(Vec::new, |shard| shard.gauges())
        };
        node.metrics.add_gauges(Box::new(gauges));
    }
    if let Some(storage) = node.storage.clone() {
        node.metrics.add_gauges(Box::new(move || storage.gauges()));
    }
    let control = Arc::clone(&node.control);
    node.metrics.add_gauges(Box::new(move || control.gauges()));
    let map = Arc::clone(&node.map);
    node.metrics.add_gauges(Box::new(move || {
        vec![("map_version".to_owned(), map.current().version.0)]
    }));
    let Some(listener) = listener else {
        return Ok(None);
    };
    let shown = config.clone();
    let source = Arc::clone(node);
    let status = Box::new(move || status(&shown, &source));
    let source = Arc::clone(node);
    let is_healthy = Box::new(move || source.is_healthy());
    let metrics = Arc::clone(&node.metrics);
    let address = listener.local_addr().unwrap_or(config.listen);
    let has_token = token.is_some();
    let pages = Admin::start(listener, token.clone(), metrics, status, is_healthy);
    let pages = pages.map_err(|source| ServerError::Listen { address, source })?;
    let mut grpc = None;
    if let Some(manager) = node.manager.clone() {
        let map = Arc::clone(&node.map);
        let service = PlacementService::new(map, manager, config.uplinks.clone(), has_token);
        let service = Arc::new(service);
        service.take_loads();
        pages.add_placement(PlacementPages::new(Arc::clone(&service)));
        if let Some(manager) = node.manager.clone() {
            let lines = move || {
                let leads = manager.serving();
                leads.map_or_else(String::new, |manager| manager.cell_health())
            };
            pages.add_cell_health(Box::new(lines));
        }
        if let Some(address) = config.admin.as_ref().and_then(|admin| admin.grpc) {
            grpc = Some(start_grpc(address, token, service)?);
        }
    }
    Ok(Some(AdminServers { pages, _grpc: grpc }))
}

/// Starts the placement service over gRPC.
fn start_grpc(
    address: SocketAddr,
    token: Option<Token>,
    service: Arc<PlacementService>,
) -> Result<PlacementCallServer, ServerError> {
    let listen = |source| ServerError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(listen)?;
    let authorize = move |said: &str| token.as_ref().is_none_or(|token| token.is_in(said));
    let calls = Arc::new(ServiceCalls::new(service));
    let started =
        PlacementCallServer::start(listener, Arc::new(authorize), calls).map_err(listen)?;
    tracing::info!(address = %started.address(), "the placement service answers over gRPC");
    Ok(started)
}

fn status(config: &NodeConfig, node: &ServerNode) -> serde_json::Value {
    let gauges: serde_json::Map<String, serde_json::Value> = node
        .metrics
        .gauges()
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .collect();
    let map = node.map.current();
    let zone = map.node(config.node).map_or(0, |known| known.zone.0);
    serde_json::json!({
        "cell": config.cell.to_string(),
        "node": config.node.0,
        "zone": zone,
        "roles": config.roles(),
        "address": config.advertise.to_string(),
        "pid": std::process::id(),
        "healthy": node.is_healthy(),
        "map_version": map.version.0,
        "resident_bytes": crate::metrics::resident_bytes(),
        "gauges": gauges,
    })
}
