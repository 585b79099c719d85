//! The zone of a node, and the manager's table of subnets.
//!
//! A config gives the zone by its number (`zone`), by its name (`rack`), or not at all. Then the
//! manager finds it by the node's address, in the table `manager.subnets`.

use super::check::Source;
use super::raw::{RawManager, RawNode, RawSubnet};
use super::{ConfigError, NodeZone};
use toml::Spanned;
use zonal_types::limits::{NAME_BYTES_MAX, SUBNETS_MAX};
use zonal_types::{OneLine, ZoneId, is_title};
use zonal_zonemap::{Subnet, SubnetEntry, SubnetTable, SubnetTableError, ZoneReference};

impl Source<'_> {
    /// Where the zone of a node comes from.
    pub(super) fn zone(&self, raw: &RawNode) -> Result<NodeZone, ConfigError> {
        if let (Some(_), Some(_)) = (&raw.zone, &raw.rack) {
            return Err(self.together("`zone` and `rack` both name the node's zone: keep one"));
        }
        if let Some(rack) = &raw.rack {
            return Ok(NodeZone::Named(self.zone_name("rack", rack)?));
        }
        let Some(written) = &raw.zone else {
            return Ok(NodeZone::BySubnet);
        };
        let (at, zone) = (written.span().start, written.get_ref());
        if zone.id == 0 {
            return Err(self.range_error(at, "zone.id", &zone.id, "1 and up"));
        }
        if !is_title(&zone.name) {
            return Err(self.title_error("zone.name", at, &zone.name));
        }
        Ok(NodeZone::Given {
            zone: ZoneId(zone.id),
            name: zone.name.clone(),
        })
    }

    /// The table of subnets.
    pub(super) fn subnets(&self, raw: &RawManager) -> Result<SubnetTable, ConfigError> {
        let entries = raw.subnets.iter().map(|raw| self.subnet(raw));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let named = |index: usize| {
            let entry: &SubnetEntry = entries.get(index)?;
            let at = raw.subnets.get(index)?.cidr.span().start;
            let text = format!("{} of {}", entry.subnet, OneLine(&entry.zone.to_string()));
            Some((self.line(at), text))
        };
        SubnetTable::new(entries.clone()).map_err(|error| match error {
            SubnetTableError::Overlap { first, second } => {
                let (first_line, first) = named(first).unwrap_or_default();
                let (line, second) = named(second).unwrap_or_default();
                ConfigError::SubnetOverlap {
                    path: self.path.to_owned(),
                    line,
                    second,
                    first,
                    first_line,
                }
            }
            SubnetTableError::TooMany => {
                let last = raw.subnets.get(SUBNETS_MAX);
                let at = last.map_or(0, |subnet| subnet.cidr.span().start);
                let allowed = format!("at most {SUBNETS_MAX}");
                self.range_error(at, "manager.subnets", &entries.len(), allowed)
            }
        })
    }

    fn subnet(&self, raw: &RawSubnet) -> Result<SubnetEntry, ConfigError> {
        let at = raw.cidr.span().start;
        let text = raw.cidr.get_ref();
        let subnet = text.parse::<Subnet>().map_err(|error| {
            let allowed = error.to_string();
            self.range_error(at, "manager.subnets.cidr", &OneLine(text), allowed)
        })?;
        let zone = match (&raw.zone, &raw.rack) {
            (Some(zone), None) if *zone.get_ref() == 0 => {
                let at = zone.span().start;
                return Err(self.range_error(at, "manager.subnets.zone", &0, "1 and up"));
            }
            (Some(zone), None) => ZoneReference::Number(ZoneId(*zone.get_ref())),
            (None, Some(rack)) => {
                ZoneReference::Name(self.zone_name("manager.subnets.rack", rack)?)
            }
            (given, _) => {
                return Err(ConfigError::SubnetZone {
                    path: self.path.to_owned(),
                    line: self.line(at),
                    subnet: subnet.to_string(),
                    found: match given {
                        Some(_) => "both `zone` and `rack`",
                        None => "neither `zone` nor `rack`",
                    },
                });
            }
        };
        Ok(SubnetEntry { subnet, zone })
    }

    /// Checks the name of a zone that the manager finds by it.
    fn zone_name(&self, key: &'static str, name: &Spanned<String>) -> Result<String, ConfigError> {
        let (at, name) = (name.span().start, name.get_ref());
        if name.is_empty() || !is_title(name) {
            return Err(self.title_error(key, at, name));
        }
        Ok(name.clone())
    }

    fn title_error(&self, key: &'static str, at: usize, name: &str) -> ConfigError {
        let allowed = format!("letters that can be shown, {NAME_BYTES_MAX} bytes at most");
        let found = if name.is_empty() { "empty" } else { name };
        self.range_error(at, key, &OneLine(found), allowed)
    }
}
