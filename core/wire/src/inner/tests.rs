//! Tests of parsing and rewriting, and packets for the tests of other modules.

use proptest::prelude::*;

use super::checksum::checksum_field;
use super::*;

/// Builds a TCP packet over IPv4 with timestamps and complete checksums.
pub(crate) fn tcp_packet(sequence: u32, payload: &[u8], flags: u8) -> Vec<u8> {
    let total = 20 + 32 + payload.len();
    let mut p = vec![0u8; total];
    p[0] = 0x45;
    p[1] = 2;
    p[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    p[6] = 0x40;
    p[8] = 64;
    p[9] = protocol::TCP;
    p[12..16].copy_from_slice(&[10, 0, 0, 1]);
    p[16..20].copy_from_slice(&[10, 0, 0, 2]);
    p[20..22].copy_from_slice(&80u16.to_be_bytes());
    p[22..24].copy_from_slice(&40000u16.to_be_bytes());
    p[24..28].copy_from_slice(&sequence.to_be_bytes());
    p[32] = 8 << 4;
    p[33] = flags;
    p[40..44].copy_from_slice(&[1, 1, 8, 10]);
    p[52..].copy_from_slice(payload);
    fill_ipv4_checksum(&mut p, 20);
    complete_transport(&mut p);
    p
}

/// Builds a UDP packet over IPv6 with a complete checksum.
pub(crate) fn udp_packet(payload: &[u8]) -> Vec<u8> {
    let transport = (8 + payload.len()) as u16;
    let mut p = vec![0x60, 0, 0, 0];
    p.extend(transport.to_be_bytes());
    p.extend([protocol::UDP, 64]);
    p.extend([0xfd; 32]);
    for field in [40_000, 443, transport, 0] {
        p.extend(field.to_be_bytes());
    }
    p.extend(payload);
    complete_transport(&mut p);
    p
}

/// Completes the transport checksum in software.
pub(crate) fn complete_transport(p: &mut [u8]) {
    let s = parse(p).expect("valid");
    super::complete_transport(p, &s);
}

fn checksums_hold(p: &[u8]) -> bool {
    let s = parse(p).expect("valid");
    let at = usize::from(s.ip_len);
    let pseudo = pseudo_header_sum(p, s.key.protocol, p.len() - at);
    ones_sum(&p[..at], 0) == 0xffff && ones_sum(&p[at..], u32::from(pseudo)) == 0xffff
}

#[test]
fn a_complete_transport_checksum_is_known_from_a_partial_or_wrong_one() {
    for mut packet in [tcp_packet(7, b"hello", tcp_flag::PSH), udp_packet(b"hello")] {
        let summary = parse(&packet).expect("valid");
        super::complete_transport(&mut packet, &summary);
        assert!(is_transport_complete(&packet, &summary));
        assert!(packet[0] >> 4 == 6 || checksums_hold(&packet));
        *packet.last_mut().expect("a payload") ^= 1;
        assert!(!is_transport_complete(&packet, &summary));
        let field = checksum_field(&packet, &summary).expect("TCP or UDP");
        packet[field..field + 2].fill(0);
        assert!(!is_transport_complete(&packet, &summary));
    }
}

#[test]
fn finds_the_five_tuple() {
    let s = parse(&tcp_packet(7, b"hello", tcp_flag::PSH)).expect("valid");
    assert_eq!(
        (s.key.source_port, s.key.destination_port, s.headers_len),
        (80, 40000, 52)
    );
    assert_eq!(s.ecn, Ecn::Ect0);
}

#[test]
fn a_quic_connection_is_known_by_its_first_packet() {
    let signature = |payload: &[u8]| parse(&udp_packet(payload)).expect("valid").signature;
    let opens = |payload: &[u8]| signature(payload) == Some(Signature::Quic);
    assert!(opens(&[0xc3, 0, 0, 0, 1, 8]));
    assert!(opens(&[0xd0, 0x6b, 0x33, 0x43, 0xcf, 0]));
    assert!(opens(&[0x83, 0, 0, 0, 1, 20]), "the second bit is greased");
    assert!(!opens(&[0x43, 0, 0, 0, 1, 8]), "a short header");
    assert!(!opens(&[0xc3, 0, 0, 0, 0, 8]), "version negotiation");
    assert!(!opens(&[0xc3, 0, 0, 0, 1, 21]), "no such connection id");
    assert!(!opens(&[0xc3, 0, 0, 0, 1]));
    let tcp = tcp_packet(1, &[0xc3, 0, 0, 0, 1, 8], 0x10);
    assert_eq!(parse(&tcp).expect("valid").signature, None);
}

#[test]
fn wireguard_is_known_by_each_of_its_messages() {
    let is_known = |kind: u8, len: usize| {
        let mut payload = vec![0; len];
        payload[0] = kind;
        parse(&udp_packet(&payload)).expect("valid").signature == Some(Signature::WireGuard)
    };
    for (kind, len) in [(1, 148), (2, 92), (3, 64), (4, 32), (4, 1440)] {
        assert!(is_known(kind, len), "type {kind} of {len} bytes");
    }
    for (kind, len) in [(1, 147), (4, 16), (4, 33), (5, 32), (0, 148)] {
        assert!(!is_known(kind, len), "type {kind} of {len} bytes");
    }
}

#[test]
fn each_ping_and_each_quoted_flow_is_a_flow_of_its_own() {
    let icmp = |message: &[u8]| {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[9] = protocol::ICMP;
        packet.extend(message);
        let key = parse(&packet).expect("valid").key;
        (key.source_port, key.destination_port)
    };
    assert_eq!(icmp(&[8, 0, 0, 0, 0x12, 0x34, 0, 1]), (0x1234, 0));
    let mut quoted = vec![3, 3, 0, 0, 0, 0, 0, 0, 0x45];
    quoted.extend([0; 19]);
    quoted.extend([0x9c, 0x40, 0, 53, 0, 0, 0, 0]);
    assert_eq!(icmp(&quoted), (40_000, 53));
    for cut in 0..quoted.len() {
        let _ = icmp(&quoted[..cut]);
    }
    assert_eq!(icmp(&[9, 0, 0, 0, 0x12, 0x34, 0, 1]), (0, 0));
}

#[test]
fn marking_keeps_the_header_checksum_right() {
    let mut p = tcp_packet(7, b"hello", 0);
    set_ecn(&mut p, Ecn::Ce);
    assert!(checksums_hold(&p));
    assert_eq!(parse(&p).expect("valid").ecn, Ecn::Ce);
}

#[test]
fn clamps_only_a_larger_segment_size() {
    let mut p = tcp_packet(7, &[], tcp_flag::SYN);
    p[40..44].copy_from_slice(&[2, 4, 0x05, 0xb4]);
    complete_transport(&mut p);
    let s = parse(&p).expect("valid");
    assert!(!clamp_mss(&mut p, &s, 1500, true));
    assert!(clamp_mss(&mut p, &s, 1432, true));
    assert_eq!(&p[42..44], &1392u16.to_be_bytes());
    assert!(checksums_hold(&p));
}

#[test]
fn clamps_at_an_odd_offset() {
    let mut p = tcp_packet(7, &[], tcp_flag::SYN);
    p[40..46].copy_from_slice(&[1, 2, 4, 0x05, 0xb4, 0]);
    complete_transport(&mut p);
    let s = parse(&p).expect("valid");
    assert!(clamp_mss(&mut p, &s, 1300, true));
    assert!(checksums_hold(&p));
}

#[test]
fn reads_every_field_of_an_ipv6_packet() {
    let mut p = udp_packet(b"hello");
    p[0..2].copy_from_slice(&[0x6b, 0x95]);
    p[8] = 0x20;
    p[39] = 7;
    let s = parse(&p).expect("valid");
    assert_eq!((s.dscp, s.ecn), (0x2e, Ecn::Ect1));
    assert_eq!(
        s.key.source,
        "20fd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd"
            .parse::<IpAddr>()
            .unwrap()
    );
    assert_eq!(
        s.key.destination,
        "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd07"
            .parse::<IpAddr>()
            .unwrap()
    );
    assert_eq!(
        (s.key.protocol, s.key.source_port, s.key.destination_port),
        (protocol::UDP, 40_000, 443)
    );
    assert_eq!((s.ip_len, s.headers_len, s.tcp_flags), (40, 48, 0));
}

#[test]
fn reads_the_code_point_and_the_flags_of_an_ipv4_packet() {
    let mut p = tcp_packet(7, b"hello", tcp_flag::PSH | tcp_flag::FIN);
    p[1] = 0xb9;
    let s = parse(&p).expect("valid");
    assert_eq!((s.dscp, s.ecn, s.tcp_flags), (0x2e, Ecn::Ect1, 0x09));
    assert_eq!(s.ip_len, 20);
}

/// No fragment has ports, not even the first, so all fragments of a packet are in one flow.
#[test]
fn fragments_have_no_ports() {
    for (flags, is_fragment) in [
        ([0x20, 0], true),
        ([0, 1], true),
        ([0x40, 0], false),
        ([0x80, 0], false),
    ] {
        let mut p = tcp_packet(7, b"hello", 0x10);
        p[6..8].copy_from_slice(&flags);
        let s = parse(&p).expect("valid");
        let expected = if is_fragment { (0, 0, 20) } else { (80, 40_000, 52) };
        assert_eq!(
            (s.key.source_port, s.key.destination_port, s.headers_len),
            expected,
            "{flags:?}"
        );
    }
}

#[test]
fn headers_that_are_cut_short_or_too_short_are_refused() {
    let tcp = tcp_packet(7, &[], 0x10);
    assert!(parse(&tcp).is_some(), "headers alone are a packet");
    assert!((0..tcp.len()).all(|len| parse(&tcp[..len]).is_none()));
    let udp = udp_packet(&[]);
    assert!(parse(&udp).is_some());
    assert!((0..udp.len()).all(|len| parse(&udp[..len]).is_none()));
    let with = |at: usize, byte: u8| {
        let mut p = tcp.clone();
        p[at] = byte;
        parse(&p)
    };
    assert_eq!(with(0, 0x44), None, "an IP header of 16 bytes");
    assert_eq!(with(0, 0x55), None, "version 5");
    assert_eq!(with(32, 4 << 4), None, "a TCP header of 16 bytes");
    assert_eq!(with(32, 5 << 4).expect("20 bytes").headers_len, 40);
    // Other protocols need only the IP header.
    let mut other = tcp[..20].to_vec();
    other[9] = protocol::ICMP;
    assert_eq!(parse(&other).expect("valid").headers_len, 20);
    other[0] = 0x46;
    assert_eq!(parse(&other), None, "24 bytes of header, of which 20 are there");
    other.extend([0; 4]);
    assert_eq!(parse(&other).expect("valid").headers_len, 24);
}

#[test]
fn marking_an_ipv6_packet_changes_nothing_else() {
    let mut p = udp_packet(b"hello");
    p[0..4].copy_from_slice(&[0x6b, 0x9f, 0xff, 0xff]);
    for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        let mut marked = p.clone();
        set_ecn(&mut marked, ecn);
        assert_eq!(marked[1] & 0x30, ecn.bits() << 4);
        marked[1] |= 0x30;
        assert_eq!(marked[1], p[1] | 0x30);
        assert_eq!((&marked[..1], &marked[2..]), (&p[..1], &p[2..]));
    }
}

#[test]
fn marking_an_ipv4_packet_keeps_its_code_point() {
    for (class, ecn) in [
        (0xb8, Ecn::Ce),
        (0xbb, Ecn::NotEct),
        (0xff, Ecn::Ect1),
        (0, Ecn::Ect0),
    ] {
        let mut p = tcp_packet(7, b"hello", 0x10);
        p[1] = class;
        fill_ipv4_checksum(&mut p, 20);
        set_ecn(&mut p, ecn);
        assert_eq!(p[1], class & 0xfc | ecn.bits());
        assert!(checksums_hold(&p));
    }
}

/// Reproduces the example sum of RFC 1071 section 3.
#[test]
fn sums_are_those_of_the_standard() {
    assert_eq!(
        ones_sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0),
        0xddf2
    );
    assert_eq!(
        ones_sum(&[0x00, 0x01, 0xf2], 0),
        0xf201,
        "an odd byte is the upper half of a word"
    );
    assert_eq!(ones_sum(&[0xff; 6], 1), 1, "the carry comes round");
    assert_eq!(ones_sum(&[0xff, 0xff], 0), 0xffff);
    // RFC 1624 section 4: the case in which the older equations were wrong.
    assert_eq!(checksum_update(0xdd2f, 0x5555, 0x3285), 0x0000);
    // The words of both addresses, the protocol and the length.
    let v4 = tcp_packet(1, &[], 0x10);
    assert_eq!(
        pseudo_header_sum(&v4, protocol::TCP, 32),
        0x0a00 + 1 + 0x0a00 + 2 + 6 + 32
    );
    assert_eq!(
        pseudo_header_sum(&udp_packet(&[0; 5]), protocol::UDP, 13),
        0xdfdf + 17 + 13
    );
}

#[test]
fn the_segment_size_is_found_among_other_options() {
    // Options, the resulting size, and whether it was changed.
    let cases: [(&[u8], bool); 9] = [
        (&[2, 4, 5, 180, 1, 1, 1, 1], true),
        (&[1, 1, 1, 1, 2, 4, 5, 180], true),
        (&[3, 3, 7, 2, 4, 5, 180, 0], true),
        (&[5, 2, 1, 1, 2, 4, 5, 180], true),
        (&[0, 2, 4, 5, 180, 0, 0, 0], false),
        (&[3, 1, 2, 4, 5, 180, 1, 1], false),
        (&[8, 9, 2, 4, 5, 180, 1, 1], false),
        (&[2, 3, 5, 1, 1, 1, 1, 1], false),
        (&[1, 1, 1, 1, 1, 1, 1, 2], false),
    ];
    for (options, is_changed) in cases {
        let mut p = tcp_packet(7, &[], tcp_flag::SYN);
        p[32] = 7 << 4;
        p[40..48].copy_from_slice(options);
        complete_transport(&mut p);
        let before = p.clone();
        let s = parse(&p).expect("valid");
        assert_eq!(clamp_mss(&mut p, &s, 1280, true), is_changed, "{options:?}");
        assert!(checksums_hold(&p), "{options:?}");
        if !is_changed {
            assert_eq!(p, before, "{options:?}");
        }
        let size = p[40..48]
            .windows(4)
            .find(|bytes| bytes[..2] == [2, 4] && is_changed);
        if let Some(size) = size {
            assert_eq!(size[2..], 1240_u16.to_be_bytes());
        }
    }
}

#[test]
fn a_segment_size_that_fits_is_let_be_and_a_partial_checksum_too() {
    let mut p = tcp_packet(7, &[], tcp_flag::SYN | tcp_flag::ACK);
    p[40..44].copy_from_slice(&[2, 4, 0x05, 0xb4]);
    let s = parse(&p).expect("valid");
    assert!(!clamp_mss(&mut p, &s, 1500, false), "1460 bytes fit exactly");
    let sum = [p[36], p[37]];
    assert!(clamp_mss(&mut p, &s, 1499, false));
    assert_eq!(p[42..44], 1459_u16.to_be_bytes());
    assert_eq!([p[36], p[37]], sum);
    let mut later = tcp_packet(7, &[], tcp_flag::ACK);
    later[40..44].copy_from_slice(&[2, 4, 0x05, 0xb4]);
    let s = parse(&later).expect("valid");
    assert!(!clamp_mss(&mut later, &s, 1280, true), "only a SYN announces");
}

#[test]
fn ecn_exit_follows_the_table() {
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    let table = [
        (NotEct, NotEct, Some(NotEct)),
        (NotEct, Ect0, Some(NotEct)),
        (NotEct, Ect1, Some(NotEct)),
        (NotEct, Ce, None),
        (Ect0, NotEct, Some(Ect0)),
        (Ect0, Ect0, Some(Ect0)),
        (Ect0, Ect1, Some(Ect1)),
        (Ect0, Ce, Some(Ce)),
        (Ect1, NotEct, Some(Ect1)),
        (Ect1, Ect0, Some(Ect1)),
        (Ect1, Ect1, Some(Ect1)),
        (Ect1, Ce, Some(Ce)),
        (Ce, NotEct, Some(Ce)),
        (Ce, Ect0, Some(Ce)),
        (Ce, Ect1, Some(Ce)),
        (Ce, Ce, Some(Ce)),
    ];
    for (inner, outer, exit) in table {
        assert_eq!(ecn_at_exit(inner, outer), exit, "inner {inner:?} outer {outer:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_parse_or_not_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        if let Some(s) = parse(&bytes) {
            prop_assert!(usize::from(s.headers_len) <= bytes.len());
            let mut copy = bytes.clone();
            clamp_mss(&mut copy, &s, 1000, true);
        }
    }
}
