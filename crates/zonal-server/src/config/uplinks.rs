//! Config of the zones' uplinks: rates, by which the cost of bytes between zones is weighted.

use super::ConfigError;
use super::check::Source;
use super::raw::RawManager;
use crate::units::UplinkRate;
use std::collections::BTreeMap;
use zonal_placement::uplink_weight;
use zonal_types::{OneLine, ZoneId};
use zonal_zonemap::ZoneMap;

/// Zones with a rate of their own.
const UPLINKS_MAX: usize = 4_096;

/// Lowest and highest rate, in bits a second.
const RATES: (u64, u64) = (1_000_000, 100_000_000_000_000);

/// Rates of uplinks, in bits a second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UplinkRates {
    /// Of zones that have no rate of their own; 0: the highest of the others.
    usual: u64,
    /// By the zone's name or number.
    by_zone: BTreeMap<String, u64>,
}

impl UplinkRates {
    /// Weights of the zones of a map that have a rate of their own.
    #[must_use]
    pub fn weights(&self, map: &ZoneMap) -> Vec<(ZoneId, u32)> {
        let highest = self.by_zone.values().copied().max().unwrap_or(0);
        let usual = match self.usual {
            0 => highest,
            usual => usual,
        };
        let zones = map.zones.iter().filter_map(|zone| {
            let named = self.by_zone.get(&zone.name);
            let rate = named.or_else(|| self.by_zone.get(&zone.id.to_string()))?;
            Some((zone.id, uplink_weight(*rate, usual)))
        });
        zones.collect()
    }
}

impl Source<'_> {
    /// The rates of uplinks.
    pub(super) fn uplinks(&self, raw: &RawManager) -> Result<UplinkRates, ConfigError> {
        let checked = |key: &'static str, at: usize, rate: UplinkRate, of: &str| {
            let (least, most) = RATES;
            match (least..=most).contains(&rate.0) {
                true => Ok(rate.0),
                false => {
                    let found = format!("{rate}{of}");
                    let allowed = format!("{} to {}", UplinkRate(least), UplinkRate(most));
                    Err(self.range_error(at, key, &found, allowed))
                }
            }
        };
        let usual = match &raw.uplink_rate {
            Some(rate) => {
                let at = rate.span().start;
                checked("manager.uplink_rate", at, *rate.get_ref(), "")?
            }
            None => 0,
        };
        let mut by_zone = BTreeMap::new();
        for (zone, rate) in &raw.uplinks {
            let at = rate.span().start;
            let of = format!(" for zone {}", OneLine(zone));
            let rate = checked("manager.uplinks", at, *rate.get_ref(), &of)?;
            if by_zone.len() >= UPLINKS_MAX {
                let allowed = format!("at most {UPLINKS_MAX}");
                return Err(self.range_error(at, "manager.uplinks", &raw.uplinks.len(), allowed));
            }
            by_zone.insert(zone.clone(), rate);
        }
        Ok(UplinkRates { usual, by_zone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::CellId;

    #[test]
    fn weights_come_from_rates_by_name_or_number() {
        let mut map = ZoneMap::new(CellId([1; 16]));
        for (id, name) in [(1, "near"), (2, "far"), (3, "")] {
            let zone = zonal_zonemap::Zone {
                id: ZoneId(id),
                name: name.to_owned(),
                default_sets: Vec::new(),
            };
            map.zones.push(zone);
        }
        let mut rates = UplinkRates {
            usual: 0,
            by_zone: BTreeMap::from([("far".into(), 5), ("3".into(), 20), ("gone".into(), 1)]),
        };
        assert_eq!(
            rates.weights(&map),
            [(ZoneId(2), 4_000), (ZoneId(3), 1_000)]
        );
        rates.usual = 10;
        assert_eq!(rates.weights(&map), [(ZoneId(2), 2_000), (ZoneId(3), 500)]);
    }
}
