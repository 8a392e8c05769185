//! Seeds of packets to a hub from members without Hawser.

use std::net::{Ipv4Addr, SocketAddrV4};

use hawser_wire::gre::Datagram;
use hawser_wire::inner::{Ecn, fill_ipv4_checksum, ones_sum};

use super::Seeds;

/// Returns datagrams with each field, and packets of GRE without a datagram.
pub(super) fn gre() -> Seeds {
    let datagram = Datagram {
        outer: (Ipv4Addr::new(198, 51, 100, 7), Ipv4Addr::new(203, 0, 113, 1)),
        key: None,
        source: SocketAddrV4::new(Ipv4Addr::new(192, 168, 1, 9), 40_000),
        destination: SocketAddrV4::new(Ipv4Addr::new(10, 47, 47, 1), 47_474),
        ecn: Ecn::Ect0,
        payload: b"sealed",
    };
    let packet = |datagram: Datagram<'_>| {
        let mut out = Vec::new();
        assert!(datagram.emit(&mut out));
        out
    };
    let plain = packet(datagram);
    let keyed = packet(Datagram {
        key: Some(7),
        ..datagram
    });
    // Packet with other flags followed by these fields.
    let with = |flags: u16, fields: &[u8]| {
        let mut out = [&plain[..20], &flags.to_be_bytes(), &[8, 0], fields, &plain[24..]].concat();
        let total = u16::try_from(out.len()).expect("short");
        out[2..4].copy_from_slice(&total.to_be_bytes());
        fill_ipv4_checksum(&mut out, 20);
        out
    };
    let mut summed = with(0xb000, &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 1, 0]);
    let sum = !ones_sum(&summed[20..], 0);
    summed[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut fragment = plain.clone();
    fragment[24 + 6] = 0x20;
    fill_ipv4_checksum(&mut fragment[24..], 20);
    let mut no_sum = plain.clone();
    no_sum[24 + 26..24 + 28].fill(0);
    let mut marked = plain.clone();
    marked[1] |= 3;
    let mut ethernet = plain.clone();
    ethernet[22..24].copy_from_slice(&[0x65, 0x58]);
    vec![
        ("cut", plain[..40].to_vec()),
        ("plain", plain.clone()),
        ("keyed", keyed),
        ("summed", summed),
        ("sequence", with(0x1000, &[0, 0, 0, 1])),
        ("routing", with(0x4000, &[0, 0, 0, 0])),
        ("pptp", with(0x2001, &[0, 0, 0, 0])),
        ("fragment", fragment),
        ("no-udp-sum", no_sum),
        ("marked", marked),
        ("ethernet", ethernet),
    ]
}
