//! Costs of running a job in a zone: bytes that cross uplinks, weighted.
//!
//! A byte from zone `a` to zone `b` crosses both uplinks. It costs the mean of their weights. An
//! uplink of the usual rate weighs [`UPLINK_WEIGHT`], one of half the rate twice as much.

use std::collections::BTreeMap;
use zonal_types::ZoneId;

/// Weight of an uplink of the usual rate.
pub const UPLINK_WEIGHT: u32 = 1_000;

/// Cost of running in a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneCost {
    /// The zone.
    pub zone: ZoneId,
    /// Weighted bytes that cross uplinks.
    pub bytes: u64,
}

/// The weight of an uplink, from its rate and the usual rate; 0 where a rate is 0.
#[must_use]
pub fn uplink_weight(rate: u64, usual: u64) -> u32 {
    let weight = u128::from(UPLINK_WEIGHT) * u128::from(usual);
    let weight = weight.checked_div(u128::from(rate)).unwrap_or(0);
    u32::try_from(weight).unwrap_or(u32::MAX)
}

/// Costs of all zones of `weights`, in rising order of zones. Bytes in zones without a weight cross
/// an uplink of the usual rate.
#[must_use]
pub fn costs(bytes: &BTreeMap<ZoneId, u64>, weights: &[(ZoneId, u32)]) -> Vec<ZoneCost> {
    let by_zone: BTreeMap<ZoneId, u32> = match bytes.len() {
        0 => BTreeMap::new(),
        _ => weights
            .iter()
            .copied()
            .filter(|(zone, _)| bytes.contains_key(zone))
            .collect(),
    };
    let weight_of = |zone: ZoneId| by_zone.get(&zone).copied().unwrap_or(UPLINK_WEIGHT);
    let mut total = 0_u128;
    let mut weighted = 0_u128;
    for (zone, held) in bytes {
        total += u128::from(*held);
        weighted += u128::from(*held) * u128::from(weight_of(*zone));
    }
    let mut found: Vec<ZoneCost> = weights
        .iter()
        .map(|(zone, weight)| {
            let local = u128::from(bytes.get(zone).copied().unwrap_or(0));
            let weight = u128::from(*weight);
            let doubled = weighted - local * weight + (total - local) * weight;
            let cost = doubled / (2 * u128::from(UPLINK_WEIGHT));
            ZoneCost {
                zone: *zone,
                bytes: u64::try_from(cost).unwrap_or(u64::MAX),
            }
        })
        .collect();
    found.sort_unstable_by_key(|cost| cost.zone);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(of: &[(u16, u64)]) -> BTreeMap<ZoneId, u64> {
        of.iter()
            .map(|(zone, held)| (ZoneId(*zone), *held))
            .collect()
    }

    fn plain(bytes_by_zone: &[(u16, u64)], weights: &[(u16, u32)]) -> Vec<u64> {
        let weights: Vec<(ZoneId, u32)> = weights
            .iter()
            .map(|(zone, weight)| (ZoneId(*zone), *weight))
            .collect();
        costs(&bytes(bytes_by_zone), &weights)
            .iter()
            .map(|cost| cost.bytes)
            .collect()
    }

    #[test]
    fn bytes_in_the_zone_itself_cost_nothing() {
        let equal = [(1, 1_000), (2, 1_000), (3, 1_000)];
        assert_eq!(plain(&[(1, 60), (2, 40)], &equal), [40, 60, 100]);
        assert_eq!(plain(&[], &equal), [0, 0, 0]);
    }

    #[test]
    fn a_slow_uplink_makes_its_zone_dear() {
        let slow = [(1, 1_000), (2, 3_000), (3, 1_000)];
        // To zone 1: 40 bytes over weights 3,000 and 1,000.
        assert_eq!(plain(&[(1, 60), (2, 40)], &slow), [80, 120, 140]);
    }

    #[test]
    fn an_uplink_of_half_the_usual_rate_weighs_twice_as_much() {
        assert_eq!(uplink_weight(5, 10), 2_000);
        assert_eq!(uplink_weight(40, 10), 250);
        assert_eq!(uplink_weight(1, u64::MAX), u32::MAX);
        assert_eq!(uplink_weight(0, 10), 0);
    }

    #[test]
    fn huge_sums_saturate() {
        let all = plain(&[(1, u64::MAX), (2, u64::MAX)], &[(3, u32::MAX)]);
        assert_eq!(all, [u64::MAX]);
    }
}
