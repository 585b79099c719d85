//! Subnets, and the manager's table of them: an address in a subnet belongs to the subnet's zone.
//!
//! The table comes from the manager's config and is not stored. So its readers ask for it each time
//! they need it.
//!
//! *Invariants*:
//! 1. A subnet has no bits set behind its prefix, so that equal subnets are equal values.
//! 2. No two entries of a table overlap, unless they lead to the same zone.
//!
//! An IPv4 address in the form of IPv6 (`::ffff:10.1.0.1`) counts as the IPv4 address.

use crate::map::ZoneMap;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use zonal_types::ZoneId;
use zonal_types::limits::SUBNETS_MAX;
use zonal_wire::SubnetZone;

/// A range of addresses, as ADDRESS/PREFIX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subnet {
    address: IpAddr,
    prefix: u8,
}

/// Why a text is not a subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// It is not ADDRESS/PREFIX.
    #[error("an address and its prefix, such as 10.1.0.0/16 or fd00:1::/32")]
    Form,
    /// The prefix is longer than an address.
    #[error("a prefix of 0 to {max}")]
    Prefix {
        /// Bits of an address.
        max: u8,
    },
    /// Bits behind the prefix are set.
    #[error("{subnet}, without the bits behind its prefix")]
    HostBits {
        /// The subnet that has the address.
        subnet: Subnet,
    },
}

/// The address as a number, and its length in bits.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u32::from(address).into(), 32),
        IpAddr::V6(address) => (address.into(), 128),
    }
}

/// The number without the bits behind the prefix.
fn cut(number: u128, prefix: u8, length: u8) -> u128 {
    let host = u32::from(length.saturating_sub(prefix));
    let kept = number.checked_shr(host).unwrap_or(0);
    kept.checked_shl(host).unwrap_or(0)
}

impl Subnet {
    /// The subnet of this prefix that has the address.
    ///
    /// # Errors
    /// `Prefix` where it is longer than the address.
    pub fn around(address: IpAddr, prefix: u8) -> Result<Self, SubnetError> {
        let (number, length) = bits(address);
        if prefix > length {
            return Err(SubnetError::Prefix { max: length });
        }
        let first = cut(number, prefix, length);
        let address = match address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(u32::try_from(first).unwrap_or(u32::MAX))),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(first)),
        };
        Ok(Self { address, prefix })
    }

    /// True where the address lies in the subnet.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (number, length) = bits(address.to_canonical());
        let (first, own) = bits(self.address);
        length == own && cut(number, self.prefix, length) == first
    }

    /// True where an address lies in both subnets: then one subnet contains the other.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (number, length) = bits(self.address);
        let (others, own) = bits(other.address);
        let shorter = self.prefix.min(other.prefix);
        length == own && cut(number, shorter, length) == cut(others, shorter, length)
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let (address, prefix) = text.split_once('/').ok_or(SubnetError::Form)?;
        let address: IpAddr = address.parse().map_err(|_error| SubnetError::Form)?;
        // It could never contain an address, as those count as IPv4.
        if address.to_canonical() != address {
            return Err(SubnetError::Form);
        }
        let is_number = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            return Err(SubnetError::Form);
        }
        let prefix = prefix.parse().unwrap_or(u8::MAX);
        let subnet = Self::around(address, prefix)?;
        if subnet.address != address {
            return Err(SubnetError::HostBits { subnet });
        }
        Ok(subnet)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A zone as a config names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZoneReference {
    /// By its number.
    Number(ZoneId),
    /// By its name.
    Name(String),
}

impl fmt::Display for ZoneReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(zone) => write!(f, "zone {zone}"),
            Self::Name(name) => write!(f, "zone \"{name}\""),
        }
    }
}

/// A subnet with its zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetEntry {
    /// The subnet.
    pub subnet: Subnet,
    /// Its zone.
    pub zone: ZoneReference,
}

/// Why a table of subnets is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubnetTableError {
    /// An address would be in two zones.
    #[error("entries {first} and {second} overlap")]
    Overlap {
        /// Index of the entry that comes first.
        first: usize,
        /// Index of the other.
        second: usize,
    },
    /// The table has too many entries.
    #[error("more than {SUBNETS_MAX} subnets")]
    TooMany,
}

/// The table of subnets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubnetTable(Vec<SubnetEntry>);

/// Why the zone of a name is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZoneNameError {
    /// Two zones have it.
    #[error("zones {first} and {second} are both called \"{name}\"")]
    Twice {
        /// The name.
        name: String,
        /// A zone.
        first: ZoneId,
        /// Another.
        second: ZoneId,
    },
}

impl SubnetTable {
    /// Checks entries.
    ///
    /// # Errors
    /// Where two of different zones overlap, or there are too many.
    pub fn new(entries: Vec<SubnetEntry>) -> Result<Self, SubnetTableError> {
        if entries.len() > SUBNETS_MAX {
            return Err(SubnetTableError::TooMany);
        }
        for (second, entry) in entries.iter().enumerate() {
            let mut before = entries.iter().take(second);
            let clash = |other: &SubnetEntry| {
                other.zone != entry.zone && other.subnet.overlaps(&entry.subnet)
            };
            if let Some(first) = before.position(clash) {
                return Err(SubnetTableError::Overlap { first, second });
            }
        }
        Ok(Self(entries))
    }

    /// The entries, in the order of the config.
    #[must_use]
    pub fn entries(&self) -> &[SubnetEntry] {
        &self.0
    }

    /// The first entry with the address.
    #[must_use]
    pub fn entry_of(&self, address: IpAddr) -> Option<&SubnetEntry> {
        self.0.iter().find(|entry| entry.subnet.contains(address))
    }

    /// The table as the manager sends it, with the numbers of zones from the map.
    #[must_use]
    pub fn message(&self, map: &ZoneMap) -> Vec<SubnetZone> {
        let sent = |entry: &SubnetEntry| {
            let (zone, zone_name) = match &entry.zone {
                ZoneReference::Number(zone) => (*zone, String::new()),
                ZoneReference::Name(name) => {
                    let known = zone_named(map, name).ok().flatten();
                    (known.unwrap_or(ZoneId(0)), name.clone())
                }
            };
            SubnetZone {
                subnet: entry.subnet.to_string(),
                zone,
                zone_name,
            }
        };
        self.0.iter().map(sent).collect()
    }

    /// A number for a new zone of this name: the lowest that neither the map nor the table has.
    /// `zone7` gets 7, as zone 7 is called so by default.
    #[must_use]
    pub fn free_zone(&self, map: &ZoneMap, name: &str) -> Option<ZoneId> {
        let is_free = |zone: &ZoneId| zone.0 > 0 && map.zone(*zone).is_none();
        let own = name.strip_prefix("zone").and_then(|rest| rest.parse().ok());
        let own = own.map(ZoneId).filter(is_free);
        if let Some(own) = own.filter(|zone| name == format!("zone{zone}")) {
            return Some(own);
        }
        let is_named = |zone| {
            let mut named = self.0.iter();
            named.any(|entry| entry.zone == ZoneReference::Number(zone))
        };
        let mut all = (1..=u16::MAX).map(ZoneId);
        all.find(|zone| is_free(zone) && !is_named(*zone))
    }
}

/// The zone with this name; `None` where there is none yet.
///
/// # Errors
/// `Twice` where two zones have it.
pub fn zone_named(map: &ZoneMap, name: &str) -> Result<Option<ZoneId>, ZoneNameError> {
    let mut named = map.zones.iter().filter(|zone| zone.name == name);
    match (named.next(), named.next()) {
        (Some(first), Some(second)) => Err(ZoneNameError::Twice {
            name: name.to_owned(),
            first: first.id,
            second: second.id,
        }),
        (first, _) => Ok(first.map(|zone| zone.id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_subnet_contains_its_addresses_and_no_others() {
        let net = subnet("10.1.0.0/16");
        assert!(net.contains(ip("10.1.255.255")) && net.contains(ip("10.1.0.0")));
        assert!(net.contains(ip("::ffff:10.1.2.3")));
        assert!(!net.contains(ip("10.2.0.0")) && !net.contains(ip("fd00::1")));
        assert!(subnet("0.0.0.0/0").contains(ip("192.0.2.1")));
        assert!(!subnet("0.0.0.0/0").contains(ip("::1")));
        assert!(subnet("::/0").contains(ip("fd00::1")));
        assert!(!subnet("::/0").contains(ip("10.0.0.1")));
        assert!(subnet("fd00:1::/32").contains(ip("fd00:1:ffff::9")));
        assert!(!subnet("10.1.2.3/32").contains(ip("10.1.2.4")));
    }

    #[test]
    fn texts_that_are_no_subnets_are_refused_with_the_reason() {
        let error = |text: &str| text.parse::<Subnet>().unwrap_err();
        for text in [
            "",
            "10.1.0.0",
            "10.1.0.0/",
            "10.1.0.0/+8",
            "10.1.0.0/ 8",
            "host/8",
            "10.1/16",
            "::ffff:10.1.0.0/112",
        ] {
            assert_eq!(error(text), SubnetError::Form, "{text}");
        }
        assert_eq!(error("10.1.0.0/33"), SubnetError::Prefix { max: 32 });
        assert_eq!(error("10.1.0.0/999"), SubnetError::Prefix { max: 32 });
        assert_eq!(error("fd00::/129"), SubnetError::Prefix { max: 128 });
        let host = error("10.1.0.7/16").to_string();
        assert!(host.contains("10.1.0.0/16"), "{host}");
    }

    fn table(entries: &[(&str, u16)]) -> Result<SubnetTable, SubnetTableError> {
        let entry = |(text, zone): &(&str, u16)| SubnetEntry {
            subnet: subnet(text),
            zone: ZoneReference::Number(ZoneId(*zone)),
        };
        SubnetTable::new(entries.iter().map(entry).collect())
    }

    #[test]
    fn only_entries_of_different_zones_may_not_overlap() {
        let apart = [("10.1.0.0/16", 1), ("10.2.0.0/16", 2), ("::/0", 3)];
        assert!(table(&apart).is_ok());
        assert!(table(&[("10.1.0.0/16", 1), ("10.1.3.0/24", 1)]).is_ok());
        let clash = table(&[("10.1.0.0/16", 1), ("10.2.0.0/16", 2), ("10.0.0.0/8", 2)]);
        let (first, second) = (0, 2);
        assert_eq!(clash, Err(SubnetTableError::Overlap { first, second }));
    }

    #[test]
    fn a_new_zone_has_a_number_that_neither_map_nor_table_has() {
        let table = table(&[("10.1.0.0/16", 1), ("10.2.0.0/16", 3)]).unwrap();
        let map = ZoneMap::new(zonal_types::CellId([1; 16]));
        assert_eq!(table.free_zone(&map, "row"), Some(ZoneId(2)));
        assert_eq!(table.free_zone(&map, "zone7"), Some(ZoneId(7)));
        assert_eq!(table.free_zone(&map, "zone07"), Some(ZoneId(2)));
        assert_eq!(
            table.entry_of(ip("10.2.9.9")).unwrap().zone.to_string(),
            "zone 3"
        );
        assert!(table.entry_of(ip("10.3.0.1")).is_none());
    }
}
