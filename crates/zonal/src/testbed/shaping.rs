//! Shaping of an interface by a token bucket (TBF), and the bytes that went through it.
//!
//! 1. The bucket is the interface's only scheduler, so it sees every frame that is sent. Its
//!    counters are of the frames on the wire. If a segment offload will make several frames of one
//!    buffer, the kernel adds the headers of each; the interface's own counters lack them.
//! 2. Each change is read back. A rule that the kernel refused, or took otherwise, is an error.

use super::iproute;
use super::plan::LinkEnd;
use super::shape::LinkRate;
use crate::exit::{FAILED, Failure};
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest queue of an interface, in bytes: about what a switch has for a port.
const QUEUE_MAX: u64 = 1 << 20;
/// Shortest queue, in bytes: two buffers of a segment offload.
const QUEUE_MIN: u64 = 128 << 10;
/// Smallest bucket, in bytes: two full frames.
const BURST_MIN: u64 = 4 << 10;

/// Bytes that may be sent at once: those of 10 ms. From 53 Mbit/s on this is more than a buffer of
/// a segment offload, so none needs to be cut up.
fn burst(rate: LinkRate) -> u64 {
    (rate.0 / 8 / 100).max(BURST_MIN)
}

/// Longest queue: 200 ms of the rate, within bounds.
fn queue(rate: LinkRate) -> u64 {
    (rate.0 / 8 / 5).clamp(QUEUE_MIN, QUEUE_MAX)
}

/// The `tc` command that shapes an interface; `verb` is `add` or `change`.
pub fn command(verb: &str, interface: &str, rate: LinkRate) -> String {
    format!(
        "qdisc {verb} dev {interface} root handle 1: tbf rate {}bit burst {} limit {}\n",
        rate.0,
        burst(rate),
        queue(rate)
    )
}

/// The shaping of one interface, as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapedPort {
    /// The rate.
    pub rate: LinkRate,
    /// Bytes of all frames that were sent.
    pub bytes: u64,
    /// Those frames: a buffer of a segment offload counts as the frames that it becomes.
    pub frames: u64,
    /// Frames that found the queue full.
    pub drops: u64,
}

/// The shaped interfaces of some namespaces, by namespace and interface.
#[derive(Debug, Default)]
pub struct ShapedPorts(BTreeMap<(String, String), ShapedPort>);

fn shaped(scheduler: &Value) -> Option<(String, ShapedPort)> {
    let is_bucket = scheduler["kind"] == "tbf" && scheduler["root"] == true;
    let bytes_a_second = scheduler["options"]["rate"].as_u64()?;
    let port = ShapedPort {
        rate: LinkRate(bytes_a_second.checked_mul(8)?),
        bytes: scheduler["bytes"].as_u64()?,
        frames: scheduler["packets"].as_u64()?,
        drops: scheduler["drops"].as_u64()?,
    };
    is_bucket.then_some((scheduler["dev"].as_str()?.to_owned(), port))
}

impl ShapedPorts {
    /// Reads the shaping of these namespaces.
    pub fn read(namespaces: &[String]) -> anyhow::Result<Self> {
        let mut all = BTreeMap::new();
        for namespace in namespaces {
            let found = iproute::tc_show(namespace)?;
            for (interface, port) in found.iter().filter_map(shaped) {
                all.insert((namespace.clone(), interface), port);
            }
        }
        Ok(Self(all))
    }

    /// The shaping of an interface; an error if it has none.
    pub fn of(&self, end: &LinkEnd) -> anyhow::Result<ShapedPort> {
        let key = (end.namespace.clone(), end.interface.clone());
        let found = self.0.get(&key).copied();
        found.ok_or_else(|| {
            let text = format!("{} in {} is not shaped", end.interface, end.namespace);
            Failure::new(FAILED, text).hint(REDO).into()
        })
    }

    /// Refuses an interface with another rate.
    pub fn require(&self, end: &LinkEnd, rate: LinkRate) -> anyhow::Result<()> {
        let found = self.of(end)?.rate;
        // The kernel counts in bytes a second.
        if found.0 / 8 == rate.0 / 8 {
            return Ok(());
        }
        let text = format!(
            "{} in {} has the rate {found}, not {rate}",
            end.interface, end.namespace
        );
        Err(Failure::new(FAILED, text).hint(REDO).into())
    }
}

/// The hint for an interface without its shaping.
const REDO: &str = "`zonal testbed rate LINK RATE` sets it again";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn buckets_and_queues_follow_the_rate_within_bounds() {
        for (mbit, bytes, limit) in [
            (1, 4 << 10, QUEUE_MIN),
            (20, 25_000, 500_000),
            (200, 250_000, QUEUE_MAX),
            (1000, 1_250_000, QUEUE_MAX),
        ] {
            let rate = LinkRate(mbit * 1_000_000);
            assert_eq!((burst(rate), queue(rate)), (bytes, limit), "{mbit}");
            // The model of data centres has the same ports.
            let bounds = zonal_flow::port_bounds(rate.0 as f64 / 8.0);
            assert_eq!(bounds, (bytes as f64, limit as f64), "{mbit}");
        }
    }

    #[test]
    fn only_a_root_bucket_counts_as_shaping() {
        let scheduler = |kind: &str, root: bool| {
            json!({"kind": kind, "dev": "eth0", "root": root, "bytes": 7, "packets": 2,
                   "drops": 1,
                   "options": {"rate": 25_000_000}})
        };
        let (dev, port) = shaped(&scheduler("tbf", true)).unwrap();
        assert_eq!((dev.as_str(), port.bytes, port.frames), ("eth0", 7, 2));
        assert_eq!(port.drops, 1);
        assert_eq!(port.rate, LinkRate(200_000_000));
        assert_eq!(shaped(&scheduler("tbf", false)), None);
        assert_eq!(shaped(&scheduler("noqueue", true)), None);
        assert_eq!(shaped(&json!({"kind": "noqueue"})), None);
    }

    #[test]
    fn an_interface_without_its_rate_is_an_error() {
        let end = |interface: &str| LinkEnd {
            namespace: "a".to_owned(),
            interface: interface.to_owned(),
            address: std::net::Ipv4Addr::LOCALHOST,
        };
        let port = ShapedPort {
            rate: LinkRate(8_000_000),
            bytes: 0,
            frames: 0,
            drops: 0,
        };
        let ports = ShapedPorts(BTreeMap::from([(("a".into(), "eth0".into()), port)]));
        ports.require(&end("eth0"), LinkRate(8_000_000)).unwrap();
        assert!(ports.require(&end("eth0"), LinkRate(9_000_000)).is_err());
        assert!(ports.require(&end("eth1"), LinkRate(8_000_000)).is_err());
    }
}
