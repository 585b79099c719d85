//! Properties of subnets.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use proptest::prelude::*;
use std::net::IpAddr;
use zonal_zonemap::Subnet;

/// An address with a prefix that fits.
fn around() -> impl Strategy<Value = (IpAddr, Subnet)> {
    let four = (any::<[u8; 4]>(), 0..=32u8).prop_map(|(bytes, prefix)| (bytes.into(), prefix));
    let six = (any::<[u8; 16]>(), 0..=128u8).prop_map(|(bytes, prefix)| (bytes.into(), prefix));
    let both = prop_oneof![four, six];
    let real = both.prop_filter("IPv4 in IPv6", |(ip, _): &(IpAddr, u8)| {
        ip.to_canonical() == *ip
    });
    real.prop_map(|(ip, prefix)| (ip, Subnet::around(ip, prefix).unwrap()))
}

proptest! {
    #[test]
    fn a_subnet_has_the_address_that_it_is_around((ip, subnet) in around()) {
        prop_assert!(subnet.contains(ip));
        prop_assert!(subnet.overlaps(&subnet));
    }

    #[test]
    fn a_subnet_is_read_as_it_was_written((_, subnet) in around()) {
        prop_assert_eq!(subnet.to_string().parse::<Subnet>().unwrap(), subnet);
    }

    #[test]
    fn subnets_overlap_where_one_has_an_address_of_the_other(
        (ip, one) in around(),
        (_, other) in around(),
    ) {
        prop_assert_eq!(one.overlaps(&other), other.overlaps(&one));
        if other.contains(ip) {
            prop_assert!(one.overlaps(&other));
        }
    }

    #[test]
    fn subnets_around_one_address_overlap(
        bytes in any::<[u8; 4]>(),
        (one, other) in (0..=32u8, 0..=32u8),
    ) {
        let around = |prefix| Subnet::around(bytes.into(), prefix).unwrap();
        prop_assert!(around(one).overlaps(&around(other)));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[0-9a-f.:/]{0,40}") {
        let _ = text.parse::<Subnet>();
    }
}
