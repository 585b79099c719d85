//! Costs of running a job in each zone, for `zonal locate --matrix`.

use crate::cell::connection::CellArgs;
use crate::console;
use crate::placement_client::{PlacementClient, ServiceArgs};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use zonal_basics::byte_size;
use zonal_placement::{UPLINK_WEIGHT, costs};
use zonal_server::placement_service::job_nodes;
use zonal_types::ZoneId;

/// Paths with a column of their own in the table; the sum has one too.
const COLUMNS_MAX: usize = 8;

/// Zones in which jobs may run, with the weights of their uplinks.
pub struct ZoneCosts {
    weights: Vec<(ZoneId, u32)>,
}

impl ZoneCosts {
    /// Zones and weights from the placement service, or from the zone map with equal weights.
    pub fn of(cell: &CellArgs, service: &ServiceArgs) -> anyhow::Result<Self> {
        let cell = cell.open()?;
        let service = PlacementClient::of(&cell, service)?;
        let why = match service.as_ref().map(PlacementClient::zones) {
            Some(Ok(told)) => {
                let zones = told.zones.iter();
                let weights = zones.map(|zone| (ZoneId(zone.zone), zone.uplink_weight));
                return Ok(Self {
                    weights: weights.collect(),
                });
            }
            Some(Err(error)) if error.is_silent() => error.to_string(),
            Some(Err(error)) => return Err(error.failure().into()),
            None => "no address of the placement service is known (--service)".to_owned(),
        };
        console::note(format_args!("zonal: {why}; all uplinks weigh the same"));
        let nodes = job_nodes(&cell.map()?);
        let zones: BTreeSet<ZoneId> = nodes.iter().map(|(zone, _)| *zone).collect();
        let weights = zones.iter().map(|zone| (*zone, UPLINK_WEIGHT));
        Ok(Self {
            weights: weights.collect(),
        })
    }

    /// Adds `costs` to the object of a path.
    pub fn add_to(&self, value: &mut Value) {
        let costs = costs(&bytes(value), &self.weights);
        let costs = costs
            .iter()
            .map(|cost| (cost.zone.to_string(), Value::from(cost.bytes)));
        let costs = Map::from_iter(costs);
        if let Value::Object(fields) = value {
            fields.insert("costs".to_owned(), costs.into());
        }
    }

    /// A row for each zone; a column for each of the first paths, and one for the sum of all.
    pub fn rows(&self, found: &[Value]) -> Vec<Vec<String>> {
        let shown = found.get(..COLUMNS_MAX.min(found.len()));
        let shown = shown.unwrap_or_default();
        let mut header = vec!["JOB IN ZONE".to_owned()];
        let names = shown.iter();
        header.extend(names.map(|value| value["path"].as_str().unwrap_or_default().to_owned()));
        if found.len() != 1 {
            header.push("ALL".to_owned());
        }
        let mut rows = vec![header];
        for (zone, _) in &self.weights {
            let cost_of = |value: &Value| value["costs"][zone.to_string()].as_u64().unwrap_or(0);
            let mut row = vec![zone.to_string()];
            row.extend(shown.iter().map(|value| byte_size::rounded(cost_of(value))));
            if found.len() != 1 {
                let costs = found.iter().map(cost_of);
                let sum = costs.fold(0, u64::saturating_add);
                row.push(byte_size::rounded(sum));
            }
            rows.push(row);
        }
        rows
    }
}

/// Bytes of a path by zone.
fn bytes(value: &Value) -> BTreeMap<ZoneId, u64> {
    let parts = value["zones"].as_object().into_iter().flatten();
    parts
        .filter_map(|(zone, bytes)| Some((ZoneId(zone.parse().ok()?), bytes.as_u64()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_zone_has_a_row_with_the_cost_of_each_path() {
        let matrix = ZoneCosts {
            weights: vec![(ZoneId(1), 1_000), (ZoneId(2), 3_000)],
        };
        let mut found = vec![
            json!({"path": "/a", "zones": {"1": 1 << 20}}),
            json!({"path": "/b", "zones": {"2": 2 << 20, "odd": 1}}),
        ];
        found.iter_mut().for_each(|value| matrix.add_to(value));
        assert_eq!(found[0]["costs"], json!({"1": 0, "2": 2 << 20}));
        let rows = matrix.rows(&found);
        assert_eq!(rows[0], ["JOB IN ZONE", "/a", "/b", "ALL"]);
        assert_eq!(rows[1][0], "1");
        assert_eq!(rows[1][3], byte_size::rounded(4 << 20));
        assert_eq!(matrix.rows(&found[..1])[0], ["JOB IN ZONE", "/a"]);
    }
}
