//! Client bytes of targets, added up and shown: in-zone, cross-zone, and the in-zone ratio.

use serde_json::{Value, json};
use zonal_basics::byte_size;
use zonal_wire::ClientTraffic;

/// A sum over targets.
#[derive(Debug, Default)]
pub struct TrafficSum(pub ClientTraffic);

impl TrafficSum {
    pub fn add(&mut self, traffic: &ClientTraffic) {
        self.0.add(traffic);
    }

    /// Share of all bytes that stayed in their zone, 0 to 1; `None` where there were none.
    pub fn in_zone_ratio(&self) -> Option<f64> {
        let sum = &self.0;
        let inside = sum.read_in_zone as f64 + sum.written_in_zone as f64;
        let all = inside + sum.read_cross_zone as f64 + sum.written_cross_zone as f64;
        (all > 0.0).then(|| inside / all)
    }

    /// A row for people.
    pub fn row(&self, title: String) -> Vec<String> {
        let ratio = self.in_zone_ratio();
        let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
        vec![
            title,
            byte_size::rounded(self.0.read_in_zone),
            byte_size::rounded(self.0.read_cross_zone),
            byte_size::rounded(self.0.written_in_zone),
            byte_size::rounded(self.0.written_cross_zone),
            ratio,
        ]
    }

    pub fn json(&self) -> Value {
        json!({
            "read_in_zone_bytes": self.0.read_in_zone,
            "read_cross_zone_bytes": self.0.read_cross_zone,
            "written_in_zone_bytes": self.0.written_in_zone,
            "written_cross_zone_bytes": self.0.written_cross_zone,
            "in_zone_ratio": self.in_zone_ratio(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_over_reads_and_writes_of_all_targets() {
        let mut sum = TrafficSum::default();
        assert_eq!(sum.in_zone_ratio(), None);
        for _target in 0..2 {
            sum.add(&ClientTraffic {
                read_in_zone: 10,
                read_cross_zone: 20,
                written_in_zone: 20,
                written_cross_zone: 70,
            });
        }
        assert_eq!(sum.in_zone_ratio(), Some(0.25));
        assert_eq!(sum.0.written_cross_zone, 140);
    }
}
