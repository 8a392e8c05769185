use proptest::prelude::*;

use super::*;

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect(text)
}

fn prefix(text: &str) -> Prefix {
    let net: Net = text.parse().expect(text);
    let core::net::IpAddr::V6(address) = net.address else {
        panic!("{text}");
    };
    Prefix::new(address, net.prefix).expect(text)
}

/// Addresses of the known name with that prefix.
fn known(text: &str) -> [Ipv6Addr; 2] {
    KNOWN_ADDRESSES.map(|v4| Ipv6Addr::from_bits(prefix(text).bits | embed(v4, prefix(text).length)))
}

/// The examples of RFC 6052 section 2.4.
#[test]
fn addresses_are_those_of_the_standard() {
    let host = Ipv4Addr::new(192, 0, 2, 33);
    for (network, address) in [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
    ] {
        let prefix = prefix(network);
        assert_eq!(prefix.address_of(host), Some(v6(address)), "{network}");
        assert_eq!(prefix.embedded_in(v6(address)), Some(host), "{network}");
        assert_eq!(prefix.to_string(), network);
    }
}

#[test]
fn a_prefix_is_one_that_a_translator_may_have() {
    let is_fit = |address: &str, length| Prefix::new(v6(address), length).is_some();
    assert!(is_fit("64:ff9b:1::", 48) && is_fit("64:ff9b:1:2::", 96) && is_fit("fd00:64::", 96));
    assert!(
        !is_fit("64:ff9b::", 64) && !is_fit("64:ff9b:2::", 96),
        "reserved for nothing"
    );
    for address in ["::", "::1", "::ffff:0:0", "fe80::", "ff02::1"] {
        assert!(
            LENGTHS.iter().all(|length| !is_fit(address, *length)),
            "{address}"
        );
    }
    assert!(!is_fit("2001:db8::", 33) && !is_fit("2001:db8::", 128) && !is_fit("2001:db8::", 200));
}

#[test]
fn a_port_is_reached_there_and_named_by_its_host() {
    let (prefix, own): (_, SocketAddr) = (prefix("64:ff9b::/96"), ([198, 51, 100, 1], 443).into());
    let there = prefix.translate(own).expect("an IPv4 host");
    assert_eq!(there.to_string(), "[64:ff9b::c633:6401]:443");
    assert_eq!(prefix.original(there), Some(own));
    assert_eq!((prefix.translate(there), prefix.original(own)), (None, None));
}

#[test]
fn a_translator_forwards_to_other_hosts_only() {
    let of = |network: &str, host: [u8; 4]| prefix(network).address_of(host.into());
    let private = [10, 0, 0, 1];
    assert_eq!(of("64:ff9b::/96", private), None, "RFC 6052 section 3.1");
    assert_eq!(of("fd00:64::/96", private), Some(v6("fd00:64::10.0.0.1")));
    for host in [[127, 0, 0, 1], [169, 254, 1, 1], [224, 0, 0, 1], [255; 4], [0; 4]] {
        assert_eq!(of("fd00:64::/96", host), None);
    }
}

#[test]
fn prefixes_are_found_by_the_position_of_a_known_address() {
    for text in [
        "2001:db8::/32",
        "2001:db8:122:344::/64",
        "64:ff9b::/96",
        "fd00:64::/96",
    ] {
        assert_eq!(prefixes_of(&known(text)), [prefix(text)], "{text}");
        assert_eq!(
            prefixes_of(&known(text)[1..]),
            [prefix(text)],
            "one address of {text}"
        );
    }
    let both = [known("64:ff9b::/96"), known("2001:db8::/32")].concat();
    assert_eq!(
        prefixes_of(&both),
        [prefix("64:ff9b::/96"), prefix("2001:db8::/32")]
    );
    assert_eq!(prefixes_of(&[v6("2001:db8::1"), v6("::ffff:192.0.0.170")]), []);
}

/// The prefix contains a known address itself: its length follows from the pair.
#[test]
fn both_addresses_decide_where_one_is_ambiguous() {
    let text = "2001:db8:c000:aa::/96";
    let both = known(text);
    assert_eq!(prefixes_of(&both), [prefix(text)]);
    assert_eq!(prefixes_of(&both[..1]), [], "one alone does not show its length");
}

#[test]
fn the_option_of_routers_has_a_scaled_lifetime_and_a_coded_length() {
    // Lifetime 1800 s, length 96.
    let value = [&[0x07, 0x08][..], &[0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    let announced = Announced::parse(&value).expect("a prefix");
    assert_eq!(announced.prefix, prefix("64:ff9b::/96"));
    assert_eq!(announced.lifetime, Duration::from_secs(1_800));
    // Length 64, withdrawn.
    let value = [&[0, 1, 0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2][..], &[0; 4]].concat();
    let announced = Announced::parse(&value).expect("a prefix");
    assert_eq!(announced.prefix, prefix("2001:db8:1:2::/64"));
    assert_eq!(announced.lifetime, Duration::ZERO);
    let longer = [&value[..], &[0; 8]].concat();
    for wrong in [
        &value[..13],
        &longer,
        &[0, 6, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0; 14],
    ] {
        assert_eq!(Announced::parse(wrong), None, "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn an_address_gives_back_what_was_embedded(bits: u128, place in 0..LENGTHS.len(), host: u32) {
        let network = Ipv6Addr::from_bits(bits >> 3 | 1 << 125);
        let prefix = Prefix::new(network, LENGTHS[place]).expect("global unicast");
        let host = Ipv4Addr::from_bits(host);
        if let Some(address) = prefix.address_of(host) {
            prop_assert_eq!(prefix.embedded_in(address), Some(host));
            let reserved = address.to_bits() >> 56 & 0xff;
            prop_assert!(LENGTHS[place] == 96 || reserved == 0);
        }
        let known = KNOWN_ADDRESSES.map(|v4| Ipv6Addr::from_bits(prefix.bits | embed(v4, prefix.length)));
        prop_assert_eq!(prefixes_of(&known), [prefix]);
    }

    #[test]
    fn any_answer_gives_few_prefixes(addresses in prop::collection::vec(any::<u128>(), 0..40)) {
        let addresses: Vec<_> = addresses.into_iter().map(Ipv6Addr::from_bits).collect();
        prop_assert!(prefixes_of(&addresses).len() <= MAX_PREFIXES);
    }

    #[test]
    fn an_option_that_is_read_is_written_alike(value in prop::collection::vec(any::<u8>(), 14)) {
        if let Some(announced) = Announced::parse(&value) {
            prop_assert_eq!(Announced::parse(&announced.emit()), Some(announced));
        }
    }
}
