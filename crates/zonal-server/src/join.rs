//! Joining the cell: a node sends the manager its zone, address and stores, each with its start,
//! and gets the zone map.

use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::map_cache::MapCache;
use crate::node_clock;
use crate::peers::{PeerError, Peers};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zonal_basics::BackOff;
use zonal_types::ErrorCode;
use zonal_wire::{JoinTarget, ManagerReply, ManagerRequest, StoreStart};

/// Back-off between attempts, in milliseconds.
const PAUSE_MS: (u64, u64) = (50, 2_000);
/// Least time between two log lines.
const COMPLAIN: Duration = Duration::from_secs(10);

/// The join request of this node.
pub(crate) fn request(
    config: &NodeConfig,
    address: SocketAddr,
    target: Option<[u8; 16]>,
    starts: Vec<StoreStart>,
) -> ManagerRequest {
    let targets = config.storage_role.as_ref().zip(target);
    ManagerRequest::Join {
        node: config.node,
        zone: config.zone.number(),
        zone_name: config.zone.name().to_owned(),
        address: address.to_string(),
        meta: config.meta_role.is_some(),
        meta_zone: config.meta_zone,
        targets: targets
            .map(|(storage, uuid)| JoinTarget {
                target: storage.target,
                uuid,
                capacity: storage.capacity,
            })
            .into_iter()
            .collect(),
        starts,
    }
}

/// Joins; false where `stop` became true first.
///
/// # Errors
/// As [`ask`].
pub(crate) fn join(
    config: &NodeConfig,
    peers: &Peers,
    map: &MapCache,
    request: &ManagerRequest,
    stop: &mut dyn FnMut() -> bool,
) -> Result<bool, ServerError> {
    let Some(reply) = ask(config, (peers, map), request, stop)? else {
        return Ok(false);
    };
    let ManagerReply::At { version } = reply else {
        return Err(ServerError::JoinRefused {
            manager: config.managers_text(),
            code: ErrorCode::Protocol,
            detail: format!("the manager answers {}", reply.name()),
        });
    };
    let mut pause = BackOff::new(PAUSE_MS);
    map.refresh();
    while map.current().version < version {
        if stop() {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(pause.next_ms()));
        map.refresh();
    }
    Ok(true)
}

/// Repeats the request until the manager answers; `None` where `stop` became true first.
///
/// # Errors
/// `JoinRefused`, or an error that waiting cannot cure (key, cell, version).
fn ask(
    config: &NodeConfig,
    (peers, map): (&Peers, &MapCache),
    request: &ManagerRequest,
    stop: &mut dyn FnMut() -> bool,
) -> Result<Option<ManagerReply>, ServerError> {
    let mut pause = BackOff::new(PAUSE_MS);
    let mut complained: Option<Instant> = None;
    while !stop() {
        let known = map.current();
        let asked = node_clock::check(config.node, peers, &known);
        let joined = asked.unwrap_or_else(|| peers.manager(&known, request));
        let reason = match joined {
            Ok(ManagerReply::Failed { code, detail }) if is_final(code.0) => {
                return Err(ServerError::JoinRefused {
                    manager: config.managers_text(),
                    code: code.0,
                    detail,
                });
            }
            Ok(ManagerReply::Failed { detail, .. }) => {
                // One of several managers, which tells where the others are.
                map.refresh();
                detail
            }
            Ok(reply) => return Ok(Some(reply)),
            Err(PeerError::Net(error)) if !error.is_retryable() => return Err(error.into()),
            Err(error) => chain(&error),
        };
        if complained.is_none_or(|when| when.elapsed() >= COMPLAIN) {
            tracing::warn!(
                manager = config.managers_text(),
                reason,
                "waiting for the manager"
            );
            complained = Some(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(pause.next_ms()));
    }
    Ok(None)
}

fn is_final(code: ErrorCode) -> bool {
    !matches!(
        code,
        ErrorCode::NotReady
            | ErrorCode::Overloaded
            | ErrorCode::Io
            | ErrorCode::NoSpace
            | ErrorCode::NotOwner
    )
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
