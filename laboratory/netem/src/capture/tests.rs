use std::net::Ipv6Addr;
use std::path::Path;

use hawser_wire::inner::fill_ipv4_checksum;

use super::*;
use crate::sender::Sender as _;
use hawser_units::Instant;

/// Link types. Source: the registry of tcpdump.org.
const ETHERNET: u16 = 1;
const RAW: u16 = 101;
const SLL2: u16 = 276;
/// Start of every capture here. Source: an arbitrary time in 2023. Units: seconds since 1970.
const START: u64 = 1_700_000_000;
/// Addresses of the call. Source: RFC 1918 and RFC 5737.
const LOCAL: [u8; 4] = [192, 168, 1, 5];
const REMOTE: [u8; 4] = [203, 0, 113, 7];

/// Returns the headers of a datagram from port 5004 to port 5004.
fn datagram(from: [u8; 4], to: [u8; 4], payload: u16) -> Vec<u8> {
    let mut packet = vec![0; 28];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(28 + payload).to_be_bytes());
    packet[8..10].copy_from_slice(&[64, protocol::UDP]);
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    packet[20..24].copy_from_slice(&[5004_u16.to_be_bytes(), 5004_u16.to_be_bytes()].concat());
    packet[24..26].copy_from_slice(&(8 + payload).to_be_bytes());
    fill_ipv4_checksum(&mut packet, 20);
    packet
}

fn up(payload: u16) -> Vec<u8> {
    datagram(LOCAL, REMOTE, payload)
}

fn down(payload: u16) -> Vec<u8> {
    datagram(REMOTE, LOCAL, payload)
}

/// Returns a file of packets with their times since [`START`] in milliseconds, little endian with
/// microseconds.
fn pcap(link: u16, packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut file = [0xa1b2_c3d4_u32.to_le_bytes(), [2, 0, 4, 0]].concat();
    file.extend([0; 8]);
    file.extend(65_535_u32.to_le_bytes());
    file.extend(u32::from(link).to_le_bytes());
    for (ms, packet) in packets {
        let micros = START * 1_000_000 + ms * 1_000;
        let len = packet.len() as u32;
        for word in [(micros / 1_000_000) as u32, (micros % 1_000_000) as u32, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

fn raw(packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    pcap(RAW, packets)
}

fn parse(bytes: &[u8]) -> Capture {
    Capture::parse(bytes, None).expect("a capture")
}

fn refused(bytes: &[u8]) -> String {
    let error = Capture::parse(bytes, None)
        .expect_err("must be refused")
        .to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

/// Returns times in milliseconds and sizes.
fn list(datagrams: &[Datagram]) -> Vec<(u128, u16)> {
    datagrams
        .iter()
        .map(|one| (one.at.as_millis(), one.size))
        .collect()
}

/// A call of 4 s: 50 datagrams per second in each direction with 160 bytes of voice behind 12 bytes
/// of RTP, captured on Ethernet with headers only.
fn call() -> Vec<u8> {
    let frame = |packet: Vec<u8>| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &packet].concat();
    let packets =
        (0..200).flat_map(|number| [(number * 20, frame(up(172))), (number * 20, frame(down(172)))]);
    pcap(ETHERNET, &packets.collect::<Vec<_>>())
}

/// `HAWSER_WRITE_CAPTURE=1` writes the file again.
#[test]
fn the_committed_call_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/call.pcap");
    if std::env::var_os("HAWSER_WRITE_CAPTURE").is_some() {
        std::fs::write(&path, call()).expect("the file can be written");
    }
    assert_eq!(std::fs::read(&path).expect("it is committed"), call());
    let capture = parse(&call());
    assert_eq!((capture.datagrams(), capture.span().as_millis()), (400, 3_980));
    assert_eq!(capture.omitted, None);
    let [flow] = capture.flows.as_slice() else {
        panic!("{:?}", capture.flows)
    };
    assert_eq!(
        (flow.local, flow.remote),
        ((LOCAL, 5004).into(), (REMOTE, 5004).into())
    );
    assert_eq!((flow.up.len(), &flow.up), (200, &flow.down));
    assert_eq!(list(&flow.up[..3]), [(0, 172), (20, 172), (40, 172)]);
}

#[test]
fn the_source_of_the_first_datagram_is_local_unless_another_address_is_given() {
    let file = raw(&[(0, down(100)), (5, up(200))]);
    let flow = &parse(&file).flows[0];
    assert_eq!(flow.local.ip(), IpAddr::from(REMOTE));
    let local = IpAddr::from(LOCAL);
    let flow = &Capture::parse(&file, Some(local)).expect("a capture").flows[0];
    assert_eq!(
        (list(&flow.up), list(&flow.down)),
        (vec![(5, 200)], vec![(0, 100)])
    );
    let other = IpAddr::from([10, 0, 0, 1]);
    let error = Capture::parse(&file, Some(other)).expect_err("it is not in the file");
    assert_eq!(
        error.to_string(),
        "no UDP datagram has the local address 10.0.0.1; the first is from 203.0.113.7 to 192.168.1.5"
    );
}

#[test]
fn datagrams_are_sorted_by_time_and_what_is_not_replayed_is_counted() {
    let mut tcp = up(20);
    tcp[9] = protocol::TCP;
    let mut fragment = up(20);
    fragment[6] = 0x20;
    let group = datagram(LOCAL, [224, 0, 0, 251], 40);
    let elsewhere = datagram([192, 168, 1, 9], REMOTE, 40);
    let tcp = [&tcp[..], &[0x50; 20]].concat();
    let file = raw(&[
        (30, up(3)),
        (10, up(1)),
        (20, tcp),
        (20, fragment),
        (20, group),
        (20, elsewhere),
        (20, vec![0x45, 0]),
        (20, up(2)),
    ]);
    let capture = parse(&file);
    assert_eq!(list(&capture.flows[0].up), [(0, 1), (10, 2), (20, 3)]);
    assert_eq!(
        capture.omitted.as_deref(),
        Some(
            "5 of 8 packets are not replayed: 1 TCP, 1 fragments, 1 multicast or broadcast, 1 of other addresses, 1 \
             neither UDP nor TCP"
        )
    );
}

#[test]
fn both_byte_orders_and_nanoseconds_are_read() {
    let words = |words: [u32; 4]| words.map(u32::to_be_bytes).concat();
    let mut file = [0xa1b2_3c4d_u32.to_be_bytes(), [0, 2, 0, 4]].concat();
    file.extend(words([0, 0, 65_535, RAW.into()]));
    for (nanos, packet) in [(0, up(50)), (1_500, down(60))] {
        file.extend(words([7, nanos, packet.len() as u32, packet.len() as u32]));
        file.extend(packet);
    }
    let flow = &parse(&file).flows[0];
    assert_eq!((flow.up[0].size, flow.down[0].at.as_nanos()), (50, 1_500));
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = (padded as u32 + 12).to_le_bytes();
    let mut block = [kind.to_le_bytes(), length].concat();
    block.extend(body);
    block.resize(padded + 8, 0);
    block.extend(length);
    block
}

/// Returns a pcapng file of two interfaces: raw IP with microseconds, Linux's "any" with units of
/// 2^-10 s.
fn pcapng(packets: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let interface = |link: u16, options: &[u8]| {
        let head = [link.to_le_bytes(), [0, 0], [0, 0], [0, 0]].concat();
        block(1, &[&head[..], options].concat())
    };
    let resolution = [9, 0, 1, 0, 0x80 | 10, 0, 0, 0, 0, 0, 0, 0];
    let mut file = [
        block(0x0a0d_0d0a, &section),
        interface(RAW, &[]),
        interface(SLL2, &resolution),
    ]
    .concat();
    for (interface, time, packet) in packets {
        let len = packet.len() as u32;
        let head = [*interface, 0, *time, len, len].map(u32::to_le_bytes).concat();
        file.extend(block(6, &[&head[..], packet].concat()));
    }
    // A packet without a time.
    file.extend(block(3, &[&28_u32.to_le_bytes()[..], &up(9)].concat()));
    file
}

#[test]
fn pcapng_has_interfaces_with_links_and_clocks_of_their_own() {
    let any = |packet: Vec<u8>| [&[8, 0][..], &[0; 18], &packet].concat();
    let file = pcapng(&[
        (0, 1_000_000, up(70)),
        (1, 1_024 + 512, any(down(80))),
        (0, 1_250_000, up(90)),
    ]);
    let capture = parse(&file);
    let flow = &capture.flows[0];
    assert_eq!(list(&flow.up), [(0, 70), (250, 90)]);
    assert_eq!(list(&flow.down), [(500, 80)]);
    assert_eq!(
        capture.omitted.as_deref(),
        Some("1 of 4 packets are not replayed: 1 neither UDP nor TCP")
    );
    let unknown = pcapng(&[(0, 0, up(70)), (7, 0, up(70))]);
    let omitted = parse(&unknown).omitted.expect("the rest is omitted");
    assert!(omitted.starts_with("the file is damaged at byte"), "{omitted}");
}

#[test]
fn blocks_without_packets_are_skipped() {
    let packets = pcapng(&[(0, 0, up(70))]);
    // Names (4), secrets (10), process information, and an unknown kind.
    let others = [4, 10, 0x8000_0001, 99]
        .map(|kind| block(kind, &[0xff; 8]))
        .concat();
    assert_eq!(parse(&[&packets[..], &others, &others].concat()), parse(&packets));
    let short = [0x8000_0001_u32.to_le_bytes(), 8_u32.to_le_bytes(), [0; 4]].concat();
    let omitted = parse(&[&packets[..], &short].concat()).omitted;
    let at = format!("the file is damaged at byte {}", packets.len());
    assert!(omitted.is_some_and(|omitted| omitted.contains(&at)));
    let mut huge = block(99, &vec![0; 16 << 20]);
    huge.truncate((16 << 20) + 1);
    let omitted = parse(&[&packets[..], &huge].concat()).omitted;
    assert!(omitted.is_some_and(|omitted| omitted.contains(&at)));
}

#[test]
fn ipv6_datagrams_form_flows() {
    let mut packet = vec![0; 48];
    packet[0] = 0x60;
    packet[6] = protocol::UDP;
    packet[8..24].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
    packet[40..48].copy_from_slice(&[0, 1, 0, 2, 0, 28, 0, 0]);
    let flow = &parse(&raw(&[(0, packet)])).flows[0];
    assert_eq!(flow.local, "[::1]:1".parse().expect("an address"));
    assert_eq!((flow.remote.port(), list(&flow.up)), (2, vec![(0, 20)]));
}

#[test]
fn a_truncated_file_is_used_up_to_its_last_whole_packet() {
    // The last block of pcapng here is no datagram.
    for (whole, expected) in [
        (raw(&[(0, up(1)), (1, down(2)), (2, up(3))]), 2),
        (
            pcapng(&[(0, 0, up(1)), (0, 1_000, down(2)), (0, 2_000, up(3))]),
            3,
        ),
    ] {
        let mut used = Vec::new();
        for len in 0..whole.len() {
            if let Ok(capture) = Capture::parse(&whole[..len], None) {
                used.push(capture.datagrams());
            }
        }
        assert!(used.is_sorted(), "{used:?}");
        assert_eq!((used.first(), used.last()), (Some(&1), Some(&expected)));
    }
    let file = raw(&[(0, up(1)), (1, down(2)), (2, up(3))]);
    assert_eq!(
        parse(&file[..file.len() - 1]).omitted.as_deref(),
        Some("the file ends within a packet, the 2 before it are used")
    );
}

#[test]
fn a_file_without_datagrams_is_refused_with_its_content() {
    assert_eq!(
        refused(b"time,bytes\n"),
        "it is neither pcap nor pcapng; write it with tcpdump -w or Wireshark"
    );
    assert_eq!(refused(&[]), refused(b"time,bytes\n"));
    assert_eq!(refused(&raw(&[])), "there is no UDP datagram in its 0 packets");
    let arp = [&[2; 12][..], &[8, 6, 0, 1]].concat();
    assert_eq!(
        refused(&pcap(ETHERNET, &[(0, arp)])),
        "there is no UDP datagram in its 1 packets: 1 neither UDP nor TCP"
    );
    assert_eq!(
        refused(&pcap(127, &[(0, up(1))])),
        "there is no UDP datagram in its 1 packets: 1 of link type 127, which is not supported"
    );
}

#[test]
fn flows_sizes_and_times_are_bounded() {
    let to = |host: u8| datagram(LOCAL, [203, 0, 113, host], 10);
    let flows = |count: u8| raw(&(0..count).map(|host| (0, to(host))).collect::<Vec<_>>());
    assert_eq!(parse(&flows(32)).flows.len(), MAX_FLOWS);
    assert!(refused(&flows(33)).starts_with("it has more than 32 UDP flows"));
    assert_eq!(parse(&raw(&[(0, up(1472))])).flows[0].up[0].size, 1472);
    let joined = refused(&raw(&[(0, up(1)), (0, up(1473))]));
    assert!(
        joined.starts_with("its packet 2 is a datagram of 1473 bytes, at most 1472 fit a packet"),
        "{joined}"
    );
    let day = 24 * 3_600 * 1_000;
    assert_eq!(parse(&raw(&[(0, up(1)), (day, up(1))])).span(), MAX_SPAN);
    assert!(refused(&raw(&[(0, up(1)), (day + 1, up(1))])).contains("more than a day"));
}

#[test]
fn no_single_wrong_byte_is_more_than_an_error() {
    let any = [&[8, 0][..], &[0; 18], &down(80)].concat();
    for file in [
        raw(&[(0, up(100)), (7, down(100))]),
        pcapng(&[(0, 5, up(70)), (1, 9, any)]),
    ] {
        for at in 0..file.len() {
            for wrong in [0, 1, 0x0a, 0x7f, 0x80, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = wrong;
                if let Ok(capture) = Capture::parse(&damaged, None) {
                    assert!((1..=3).contains(&capture.datagrams()), "{at} {wrong}");
                }
            }
        }
    }
}

#[test]
fn a_replay_repeats_its_track_until_the_end_of_the_run() {
    let at = |ms| Duration::from_millis(ms);
    let track = Track {
        origin: Origin {
            file: "a.pcap".to_owned(),
            flow: "a > b".to_owned(),
            direction: "up",
            omitted: None,
        },
        datagrams: [(0, 100), (30, 200)]
            .map(|(ms, size)| Datagram { at: at(ms), size })
            .to_vec(),
        start: at(1_000),
        repeat: 3,
        period: at(50),
    };
    let start = Instant::ZERO + at(7_000);
    let mut replay = Replay::new(track.into(), (start, start + at(1_130)));
    let mut sent = Vec::new();
    while let Some(due) = replay.poll_timeout() {
        assert!(replay.poll_transmit(due - at(1)).is_none());
        let part = replay.poll_transmit(due).expect("it is due");
        sent.push((due.since(start).as_millis(), part.number, part.bytes));
    }
    let expected = [
        (1_000, 0, 100),
        (1_030, 1, 200),
        (1_050, 2, 100),
        (1_080, 3, 200),
        (1_100, 4, 100),
    ];
    assert_eq!(sent, expected, "the last one would be sent at the end");
    let counts = [0, 1_000, 1_001, 1_081, 1_130, 9_000].map(|ms| replay.count_before(start + at(ms)));
    assert_eq!(counts, [0, 0, 1, 4, 5, 5]);
}
