use proptest::prelude::*;

use super::*;
use crate::compression::{COMPRESSED_LEN, Compressed, Contexts};
use crate::inner::tests::{complete_transport, tcp_packet, udp_packet};
use crate::inner::{protocol, tcp_flag};
use crate::offload::{Coalescer, Join, Offload, Segmenter, VIRTIO_LEN};
use hawser_units::Sequence;

const TO: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FROM: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Builds a frame with an IP packet and tags of these VLANs.
fn frame(vlans: &[u16], ip: &[u8]) -> Vec<u8> {
    let mut frame = [TO, FROM].concat();
    for vlan in vlans {
        frame.extend(0x8100_u16.to_be_bytes());
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(if ip[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    });
    frame.extend(ip);
    frame
}

#[test]
fn the_flow_of_a_frame_is_that_of_its_ip_packet() {
    for ip in [tcp_packet(7, b"hello", tcp_flag::PSH), udp_packet(b"hello")] {
        let within = inner::parse(&ip).expect("valid");
        for (vlans, at) in [(&[][..], 14), (&[7], 18), (&[7, 8], 22)] {
            let summary = Format::Ethernet.parse(&frame(vlans, &ip)).expect("a frame");
            assert_eq!(summary.key, within.key);
            assert_eq!((summary.ip_at, summary.ip_len), (at, within.ip_len));
            assert_eq!(summary.headers_len, within.headers_len + at);
            assert_eq!(Format::Ethernet.ecn(&frame(vlans, &ip)), within.ecn);
        }
    }
}

#[test]
fn frames_without_ip_have_a_flow_of_their_vlan_and_type() {
    let arp = |vlans: &[u16]| {
        let mut arp = frame(vlans, &[0; 28]);
        let at = 12 + 4 * vlans.len();
        arp[at..at + 2].copy_from_slice(&[0x08, 0x06]);
        Format::Ethernet.parse(&arp).expect("a frame")
    };
    assert_eq!(arp(&[]).key.protocol, NOT_IP);
    assert_eq!(arp(&[]).key.destination_port, 0x0806);
    assert_eq!(arp(&[9]).key.source_port, 9);
    assert_ne!(arp(&[9]).key, arp(&[]).key);
    assert_eq!((arp(&[]).headers_len, arp(&[]).ip_len), (14, 0));
    assert!(!arp(&[]).has_transport());
    // An EtherType of IP without a valid IP packet: the frame is transferred unchanged.
    let broken = Format::Ethernet
        .parse(&frame(&[], &[0x45, 0, 0]))
        .expect("a frame");
    assert_eq!(broken.key.protocol, NOT_IP);
    assert_eq!(Format::Ethernet.parse(&[0; 13]), None);
    assert_eq!(Format::Ip.parse(&frame(&[], &tcp_packet(1, b"", 0))), None);
}

#[test]
fn padding_is_no_payload() {
    let ip = tcp_packet(7, b"", tcp_flag::ACK);
    let mut padded = frame(&[], &ip);
    let len = padded.len();
    padded.extend([0; 9]);
    let summary = Format::Ethernet.parse(&padded).expect("a frame");
    assert_eq!(Format::Ethernet.unpadded_len(&padded, &summary), len);
    let mut odd = padded.clone();
    odd[16..18].copy_from_slice(&[0, 3]);
    assert_eq!(Format::Ethernet.unpadded_len(&odd, &summary), odd.len());
    odd[16..18].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(Format::Ethernet.unpadded_len(&odd, &summary), odd.len());
}

#[test]
fn the_answer_to_a_large_frame_goes_back_in_its_vlan() {
    let large = frame(&[7], &udp_packet(&[0; 1400]));
    let answer = Format::Ethernet.too_large(&large, 1412).expect("an answer");
    assert_eq!((&answer[..6], &answer[6..12]), (&FROM[..], &TO[..]));
    assert_eq!(answer[12..18], large[12..18]);
    let mtu = [answer[18 + 44], answer[18 + 45], answer[18 + 46], answer[18 + 47]];
    assert_eq!(u32::from_be_bytes(mtu), 1412 - 18);
    let mut group = large.clone();
    group[0] |= 1;
    assert_eq!(Format::Ethernet.too_large(&group, 1412), None);
    let mut arp = large;
    arp[16] = 9;
    assert_eq!(Format::Ethernet.too_large(&arp, 1412), None);
}

#[test]
fn fragments_put_together_are_the_packet() {
    let mut ip = tcp_packet(7, &[9; 1400], tcp_flag::ACK);
    ip[6] = 0;
    inner::fill_ipv4_checksum(&mut ip, 20);
    let whole = frame(&[7], &ip);
    let fragments = Format::Ethernet.fragments(&whole, 800).expect("may be cut");
    assert!(fragments.len() == 2 && fragments.iter().all(|part| part.len() <= 800));
    let mut payload = Vec::new();
    for (n, part) in fragments.iter().enumerate() {
        assert_eq!(part[..18], whole[..18]);
        let head = &part[18..38];
        assert_eq!(inner::ones_sum(head, 0), 0xffff);
        let place = u16::from_be_bytes([head[6], head[7]]);
        assert_eq!(usize::from(place & OFFSET) * 8, payload.len());
        assert_eq!(place & MORE_FRAGMENTS != 0, n == 0);
        payload.extend_from_slice(&part[38..]);
    }
    assert_eq!(payload, ip[20..]);
    // A fragment may be fragmented again; its more-fragments flag stays set.
    let again = Format::Ethernet
        .fragments(&fragments[0], 500)
        .expect("may be cut");
    let last = again.last().expect("some");
    assert_ne!(u16::from_be_bytes([last[24], last[25]]) & MORE_FRAGMENTS, 0);
    ip[6] = 0x40;
    assert_eq!(Format::Ethernet.fragments(&frame(&[], &ip), 800), None);
    assert_eq!(
        Format::Ethernet.fragments(&frame(&[], &udp_packet(&[0; 900])), 800),
        None
    );
    assert_eq!(Format::Ethernet.fragments(&whole, 40), None);
}

/// Builds the virtio header of a packet with a partial checksum.
fn partial(start: u16, offset: u16) -> [u8; VIRTIO_LEN] {
    let mut header = [0; VIRTIO_LEN];
    header[0] = 1;
    header[6..8].copy_from_slice(&start.to_ne_bytes());
    header[8..10].copy_from_slice(&offset.to_ne_bytes());
    header
}

#[test]
fn a_checksum_inside_of_another_tunnel_is_completed() {
    let mut ip = udp_packet(b"hello");
    complete_transport(&mut ip);
    let good = frame(&[], &ip);
    let mut incomplete = good.clone();
    let pseudo = inner::pseudo_header_sum(&ip, protocol::UDP, ip.len() - 40);
    incomplete[60..62].copy_from_slice(&pseudo.to_be_bytes());
    // The packet's own checksum stays partial.
    let own = Offload::settle(&partial(54, 6), &mut incomplete, Format::Ethernet);
    assert!(own.is_some_and(|offload| offload.checksum_partial));
    // The same packet in a tunnel that the parser does not enter.
    let mut within = frame(&[], &[0; 4]);
    within.extend_from_slice(&incomplete);
    let settled = Offload::settle(&partial(18 + 54, 6), &mut within, Format::Ethernet);
    assert_eq!(settled, Some(Offload::default()));
    assert_eq!(within[18..], good);
    assert_eq!(
        Offload::settle(&partial(9000, 6), &mut within, Format::Ethernet),
        None
    );
    assert_eq!(
        Offload::settle(&partial(9, u16::MAX), &mut within, Format::Ethernet),
        None
    );
}

/// Virtio header, and the packet after it.
type Written = ([u8; VIRTIO_LEN], Vec<u8>);

/// Returns the segments of a packet, and the result of coalescing them.
fn travel(packet: &[u8], segment: u16) -> (Vec<Vec<u8>>, Vec<Written>) {
    let format = Format::Ethernet;
    let offload = Offload {
        checksum_partial: true,
        segment,
    };
    let summary = format.parse(packet).expect("a frame");
    let cut = Segmenter::new(packet, &summary, offload).expect("a plan");
    let mut contexts = Contexts::new(format);
    let mut arrived: Vec<Vec<u8>> = Vec::new();
    for index in 0..cut.count() {
        let mut whole = vec![0; cut.len_of(index)];
        cut.emit(packet, index, &mut whole);
        if index == 0 || index > 60 {
            contexts.remember(3, Sequence(u32::from(index)), &whole, whole.len());
        } else {
            let mut body = vec![0; cut.compressed_len(index)];
            cut.emit_compressed(packet, index, 0, &mut body);
            let compressed = Compressed::parse(body[0]).expect("valid");
            let payload = &body[COMPRESSED_LEN..];
            let rebuilt = contexts.rebuild(3, Sequence(u32::from(index)), compressed, payload.len());
            let headers = rebuilt.expect("its context came");
            assert_eq!([headers.bytes(), payload].concat(), whole, "segment {index}");
        }
        arrived.push(whole);
    }
    let mut coalescer = Coalescer::new(format, true);
    let (mut joined, mut pieces) = (Vec::new(), Vec::new());
    for packet in &arrived {
        loop {
            match coalescer.push(packet, packet.len(), true) {
                Join::Append(at) | Join::Open(at) => {
                    pieces.extend_from_slice(&packet[at..]);
                    break;
                }
                Join::Flush => {
                    let (virtio, headers) = coalescer.finish().expect("open");
                    joined.push((virtio, [headers, &std::mem::take(&mut pieces)].concat()));
                }
            }
        }
    }
    let (virtio, headers) = coalescer.finish().expect("open");
    joined.push((virtio, [headers, &pieces].concat()));
    (arrived, joined)
}

proptest! {
    #[test]
    fn frames_are_cut_compressed_and_joined_as_packets_are(
        payload in proptest::collection::vec(any::<u8>(), 1..6000), segment in 100u16..1400,
        vlans in proptest::collection::vec(1u16..4095, 0..3), udp: bool
    ) {
        let ip = if udp { udp_packet(&payload) } else { tcp_packet(9, &payload, tcp_flag::ACK) };
        let packet = frame(&vlans, &ip);
        let (segments, mut joined) = travel(&packet, segment);
        for segment in &segments {
            prop_assert_eq!(&segment[..14 + 4 * vlans.len()], &packet[..14 + 4 * vlans.len()]);
        }
        prop_assert_eq!(joined.len(), 1);
        let (virtio, mut whole) = joined.pop().expect("one");
        let at = 14 + 4 * vlans.len();
        let start = at + if udp { 40 } else { 20 };
        prop_assert_eq!(usize::from(u16::from_ne_bytes([virtio[6], virtio[7]])), start);
        complete_transport(&mut whole[at..]);
        prop_assert_eq!(whole, packet);
    }

    #[test]
    fn hostile_frames_never_panic(head in proptest::collection::vec(any::<u8>(), 12..13), tags in 0usize..4,
                                  kind in 0usize..4, rest in proptest::collection::vec(any::<u8>(), 0..120), mtu: u16) {
        let mut bytes = head;
        for _ in 0..tags { bytes.extend([0x81, 0, 0, 7]); }
        bytes.extend([[8, 0], [0x86, 0xdd], [8, 6], [0x88, 0xa8]][kind]);
        bytes.extend(rest);
        if let Some(version) = bytes.get_mut(14 + 4 * tags) { *version = (*version & 15) | [0x40, 0x60, 0, 0][kind]; }
        let format = Format::Ethernet;
        let summary = format.parse(&bytes).expect("long enough");
        prop_assert!(usize::from(summary.headers_len) <= bytes.len());
        prop_assert!(format.unpadded_len(&bytes, &summary) <= bytes.len());
        let _ = (format.ecn(&bytes), format.too_large(&bytes, mtu));
        if let Some(all) = format.fragments(&bytes, mtu) {
            prop_assert!(all.iter().all(|part| part.len() <= usize::from(mtu)));
        }
        let mut packet = bytes.clone();
        inner::clamp_mss(&mut packet, &summary, mtu, true);
        prop_assert_eq!(format.parse(&packet), Some(summary));
    }
}
