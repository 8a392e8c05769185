//! Seeds of inner IP packets.

use std::net::Ipv6Addr;

use hawser_wire::inner::{fill_ipv4_checksum, protocol};

pub(super) fn ipv4(protocol: u8, payload: usize) -> Vec<u8> {
    let len = (20 + payload) as u16;
    let mut packet = vec![
        0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 100, 96, 0, 2, 203, 0, 113, 2,
    ];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    fill_ipv4_checksum(&mut packet, 20);
    packet
}

fn tcp(flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
    let mut segment = vec![
        0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0, flags, 0xff, 0xff, 0, 0, 0, 0,
    ];
    segment[12] = (((20 + options.len()) / 4) << 4) as u8;
    segment.extend_from_slice(options);
    segment.extend((0..payload).map(|n| n as u8));
    segment
}

pub(super) fn tcp_v4(flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
    let segment = tcp(flags, options, payload);
    [ipv4(protocol::TCP, segment.len()), segment].concat()
}

pub(super) fn tcp_v6(flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
    let segment = tcp(flags, options, payload);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((segment.len() as u16).to_be_bytes());
    packet.extend([protocol::TCP, 64]);
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    [packet, segment].concat()
}

pub(super) fn udp_v4(payload: usize) -> Vec<u8> {
    let len = (8 + payload) as u16;
    let mut packet = ipv4(protocol::UDP, usize::from(len));
    packet.extend([0x9c, 0x40, 0, 53]);
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend((0..payload).map(|n| n as u8));
    packet
}
