//! Unauthenticated answers from networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hawser_config::Page;
use hawser_host::dns::answer::Question;
use hawser_host::portal::{Left, advertised, judge, read};
use hawser_steer::portal::Outcome;
use hawser_wire::nat64::{Announced, MAX_PREFIXES, Prefix, prefixes_of};

/// Question of the corpus: the address of `www.example.org`, with id 7.
pub const QUERY: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03org\0\0\x01\0\x01";

/// Expected page of the corpus: its address and the beginning of its text.
pub const PAGE: &str = "http://test.example/nm all is well";

/// Parses an answer of a network's resolver to [`QUERY`].
pub(crate) fn dns(input: &[u8]) {
    let mut query = QUERY.to_vec();
    let question = Question::parse(&query).expect("a question");
    let Some(answer) = question.read(input) else {
        return;
    };
    assert_eq!(answer.bytes, input);
    assert!(
        input[..2] == query[..2] && input[2] & 0x80 != 0,
        "an answer to it"
    );
    assert_eq!(input[4..6], [0, 1], "with the question and no other");
    let records = usize::from(u16::from_be_bytes([input[6], input[7]]));
    assert!(answer.addresses.len() <= records);
    // All parsed values occur in the input.
    let is_there = |bytes: &[u8]| input.windows(bytes.len()).any(|window| window == bytes);
    for (address, seconds) in &answer.addresses {
        assert!(match address {
            IpAddr::V4(v4) => is_there(&v4.octets()),
            IpAddr::V6(v6) => is_there(&v6.octets()),
        });
        assert!(is_there(&seconds.to_be_bytes()));
    }
    // The same answer to another question is rejected.
    query[1] = 8;
    let other = Question::parse(&query).expect("a question");
    assert!(other.read(input).is_none());
}

/// Parses a response in place of [`PAGE`].
pub(crate) fn portal(input: &[u8]) {
    let page: Page = PAGE.parse().expect("a page");
    let (outcome, login) = judge(input, &page);
    if let Some(login) = login {
        assert_eq!(outcome, Outcome::Other);
        assert_displayable(&login);
    }
    let mut longer = input.to_vec();
    longer.extend(b"<html>");
    // The read data may end anywhere, so a page with additional data is still the page.
    if outcome == Outcome::Page {
        assert_eq!(judge(&longer, &page), (outcome, None));
    }
}

/// Parses an answer of a network's captive portal API, and its address in a router advertisement.
pub(crate) fn capport(input: &[u8]) {
    if let Some(address) = advertised(input) {
        assert!(address.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(input.starts_with(address.as_bytes()) && !address.is_empty());
    }
    let Some(found) = read(input) else {
        return;
    };
    if let Some(login) = &found.login {
        assert_displayable(login);
    }
    // All parsed values occur in the input.
    for number in [found.left.seconds, found.left.bytes].into_iter().flatten() {
        let digits = number.to_string();
        let mut places = input.windows(digits.len());
        assert!(places.any(|place| place == digits.as_bytes()));
    }
    assert!(found.outcome == Outcome::Page || found.left == Left::default());
    // White space after the object is ignored; any other data makes the answer invalid.
    assert_eq!(read(&[input, b"\n"].concat()).as_ref(), Some(&found));
    assert_eq!(read(&[input, b"\nx"].concat()), None);
}

/// Parses the prefix of a translator in a router advertisement, and the prefixes in the addresses
/// of `ipv4only.arpa`, which have 16 bytes each.
pub(crate) fn nat64(input: &[u8]) {
    if let Some(announced) = Announced::parse(input) {
        assert_eq!(Announced::parse(&announced.emit()), Some(announced));
        assert_translates(announced.prefix);
    }
    let addresses = input.as_chunks().0.iter().copied().map(Ipv6Addr::from);
    let addresses: Vec<_> = addresses.collect();
    let found = prefixes_of(&addresses);
    assert!(found.len() <= MAX_PREFIXES);
    for prefix in found {
        assert_translates(prefix);
        // All parsed values occur in the input.
        let known = [170, 171].map(|last| Ipv4Addr::new(192, 0, 0, last));
        let mut embedded = addresses
            .iter()
            .filter_map(|address| prefix.embedded_in(*address));
        assert!(embedded.any(|v4| known.contains(&v4)));
    }
}

fn assert_translates(prefix: Prefix) {
    let host = Ipv4Addr::new(198, 51, 100, 7);
    let address = prefix.address_of(host).expect("a public address");
    assert_eq!(prefix.embedded_in(address), Some(host));
    assert!(!address.is_multicast() && !address.is_loopback() && !address.is_unicast_link_local());
}

fn assert_displayable(login: &str) {
    assert!(login.starts_with("http://") || login.starts_with("https://"));
    assert!(login.len() <= 200 && login.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(!login.contains(['\'', '"', '`', '$', '\\', ';', '<', '>', '|']));
}
