//! Fuzz targets of binary parsers.

use hawser_netem::capture::{Capture, Flow, MAX_FLOWS};
use hawser_proto::client_filter::Policy;
use hawser_proto::fec::Decoder;
use hawser_units::{Duration, Instant, Sequence, is_private};
use hawser_wire::bundle;
use hawser_wire::compression::{Compressed, Contexts};
use hawser_wire::control::Message;
use hawser_wire::data::{FEEDBACK_LEN, Feedback, INNER_LEN, Inner, Kind, OUTER_LEN, Outer, is_data};
use hawser_wire::frame::{ETHERNET_LEN, Format};
use hawser_wire::gre;
use hawser_wire::inner::{self, Ecn};
use hawser_wire::layer::{self, Layer, Pattern, Reading, Rtp, Rule};
use hawser_wire::link_hello::LinkHello;
use hawser_wire::offload::{Coalescer, Join, Offload, Segmenter, VIRTIO_LEN};
use hawser_wire::opening::{Challenge, Opening};
use hawser_wire::parity::{PARITY_LEN, Parity, emit_symbol, parse_symbol, symbol_len};
use hawser_wire::peer::PeerMessage;
use hawser_wire::pool::PoolMessage;
use hawser_wire::upper_layer;

/// Parses a datagram as received from the network, and its decrypted parts.
pub(crate) fn data(input: &[u8]) {
    if let Some(outer) = Outer::parse(input) {
        assert!(is_data(input));
        let mut out = [0; OUTER_LEN];
        outer.emit(&mut out);
        assert_eq!(out, input[..OUTER_LEN]);
    }
    if let Some((inner, rest)) = Inner::parse(input) {
        let mut out = [0; INNER_LEN];
        inner.emit(&mut out);
        assert_eq!([&out[..], rest].concat(), input);
    }
    let bundled: Vec<_> = bundle::Packets::parse(input).collect();
    assert!(bundled.len() <= bundle::MAX_PACKETS);
    for packet in bundled {
        assert!(inner::parse(&packet).is_some());
    }
    if let Some(report) = Feedback::parse(input) {
        let mut out = [0; FEEDBACK_LEN];
        report.emit(&mut out);
        assert_eq!(Feedback::parse(&out), Some(report));
    }
}

/// Filters a packet of a client at the hub: the filter agrees with the scheduler's parser, and an
/// empty policy permits public addresses only.
pub(crate) fn filter(input: &[u8]) {
    let Some(packet) = upper_layer::parse(input) else {
        return;
    };
    if let Some(summary) = inner::parse(input) {
        let key = summary.key;
        assert_eq!((packet.source, packet.destination), (key.source, key.destination));
        if summary.has_transport() {
            assert_eq!(packet.ports, Some((key.source_port, key.destination_port)));
        }
    }
    if Policy::default().check(&packet).is_ok() {
        assert!(!is_private(packet.destination));
    }
}

/// Parses a capture that a scenario names, from either side of its first flow.
pub(crate) fn capture(input: &[u8]) {
    let capture = match Capture::parse(input, None) {
        Ok(capture) => capture,
        Err(error) => return assert_eq!(error.to_string().lines().count(), 1),
    };
    assert!((1..=MAX_FLOWS).contains(&capture.flows.len()));
    let span = capture.span();
    for flow in &capture.flows {
        assert!(!(flow.up.is_empty() && flow.down.is_empty()));
        for datagrams in [&flow.up, &flow.down] {
            assert!(datagrams.is_sorted_by_key(|datagram| datagram.at));
            assert!(datagrams.iter().all(|datagram| datagram.at <= span));
        }
    }
    let first = &capture.flows[0];
    if first.remote.ip() == first.local.ip() {
        return;
    }
    // From the other side there may be too many flows.
    if let Ok(other) = Capture::parse(input, Some(first.remote.ip())) {
        let is_reverse = |flow: &Flow| (flow.local, flow.remote) == (first.remote, first.local);
        assert!(other.flows.iter().any(is_reverse));
    }
}

/// Parses a stream of control messages.
pub(crate) fn control(input: &[u8]) {
    let mut rest = input;
    while let Ok(Some((message, taken))) = Message::parse(rest) {
        let mut out = Vec::new();
        message.emit(&mut out);
        assert_eq!(Message::parse(&out), Ok(Some((message, out.len()))));
        rest = &rest[taken..];
    }
}

/// Parses a stream of messages between hosts that migrate flows.
pub(crate) fn peer(input: &[u8]) {
    let mut rest = input;
    while let Ok(Some((message, taken))) = PeerMessage::parse(rest) {
        let mut out = Vec::new();
        message.emit(&mut out);
        assert_eq!(PeerMessage::parse(&out), Ok(Some((message, out.len()))));
        rest = &rest[taken..];
    }
}

/// Parses a stream of messages between neighbours.
pub(crate) fn pool(input: &[u8]) {
    let mut rest = input;
    while let Ok(Some((message, taken))) = PoolMessage::parse(rest) {
        let mut out = Vec::new();
        message.emit(&mut out);
        assert_eq!(PoolMessage::parse(&out), Ok(Some((message, out.len()))));
        rest = &rest[taken..];
    }
}

/// Parses a packet of GRE as received from a raw socket.
pub(crate) fn gre(input: &[u8]) {
    if let Ok(datagram) = gre::parse(input) {
        let mut out = Vec::new();
        // The new packet has no options and no padding, so it is no longer than the input.
        assert!(datagram.emit(&mut out) && out.len() <= input.len());
        assert_eq!(gre::parse(&out), Ok(datagram));
    }
}

/// Parses a packet that may open a route.
pub(crate) fn opening(input: &[u8]) {
    if let Some(challenge) = Challenge::parse(input) {
        let packet = challenge.emit().expect("addresses of one family");
        assert_eq!(Challenge::parse(&packet), Some(challenge));
        assert_eq!(Opening::parse(input), None);
    }
    if let Some(opening) = Opening::parse(input) {
        let packet = opening.emit().expect("what was read can be written");
        assert_eq!(Opening::parse(&packet), Some(opening));
    }
}

/// Parses an inner packet and applies all in-place changes.
pub(crate) fn inner(input: &[u8]) {
    let Some(summary) = inner::parse(input) else {
        return;
    };
    let (ip_len, headers_len) = (usize::from(summary.ip_len), usize::from(summary.headers_len));
    assert!(ip_len <= headers_len && headers_len <= input.len());
    for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        let mut packet = input.to_vec();
        inner::set_ecn(&mut packet, ecn);
        let marked = inner::parse(&packet).expect("stays a packet");
        assert_eq!(marked, inner::Summary { ecn, ..summary });
    }
    for mtu in [0, 576, 1280, u16::MAX] {
        for complete in [false, true] {
            let mut packet = input.to_vec();
            inner::clamp_mss(&mut packet, &summary, mtu, complete);
            assert_eq!(inner::parse(&packet), Some(summary));
        }
        if let Some(answer) = hawser_wire::icmp::too_large(input, mtu) {
            assert!(inner::parse(&answer).is_some());
        }
    }
}

/// Parses an inner packet of a layered stream, and the same bytes as a datagram and as a payload.
pub(crate) fn layer(input: &[u8]) {
    if let Some(rtp) = Rtp::parse(input) {
        let end = usize::from(rtp.payload_end);
        assert!(rtp.header_len <= rtp.payload_end && end <= input.len());
        assert_eq!(rtp.payload(input).len(), end - usize::from(rtp.header_len));
        for id in 0..=u8::MAX {
            assert!(
                rtp.extension(input, id)
                    .is_none_or(|data| data.len() < input.len())
            );
        }
    }
    let frame = layer::h264_frame(input).map(layer::Frame::layer);
    let layers = [frame, layer::svc_layer(input), layer::vp9_layer(input)];
    assert!(layers.into_iter().flatten().all(|layer| layer <= Layer::LAST));
    let Some(summary) = inner::parse(input) else {
        return;
    };
    let any = Pattern::default();
    let by_type = Pattern {
        payload_type: Some(96),
        ..any
    };
    for reading in [Reading::H264, Reading::Svc, Reading::Vp9] {
        let found = layer::layer_of(
            input,
            &summary,
            &[Rule {
                pattern: any,
                reading,
            }],
        );
        assert!(found.is_none_or(|layer| layer <= Layer::LAST));
        // A narrower pattern finds the same layer or none.
        let narrow = layer::layer_of(
            input,
            &summary,
            &[Rule {
                pattern: by_type,
                reading,
            }],
        );
        assert!(narrow.is_none() || narrow == found);
    }
}

/// Segments a large packet from the TUN device: two bytes of MTU, a virtio header, the packet.
pub(crate) fn segment(input: &[u8]) {
    segment_as(Format::Ip, input);
}

fn segment_as(format: Format, input: &[u8]) {
    let Some((mtu, rest)) = input.split_first_chunk::<2>() else {
        return;
    };
    let Some((header, packet)) = rest.split_first_chunk::<VIRTIO_LEN>() else {
        return;
    };
    if packet.len() > 65_535 {
        return;
    }
    let (Some(offload), Some(summary)) = (Offload::parse(header), format.parse(packet)) else {
        return;
    };
    let Some(mut segmenter) = Segmenter::new(packet, &summary, offload) else {
        return;
    };
    segmenter.fit(u16::from_be_bytes(*mtu));
    let headers_len = usize::from(summary.headers_len);
    let mut total = headers_len;
    for index in 0..segmenter.count() {
        let mut out = vec![0; segmenter.len_of(index)];
        segmenter.emit(packet, index, &mut out);
        total += out.len() - headers_len;
    }
    assert_eq!(total, segmenter.total());
}

/// Decompresses contexts and compressed packets of a flow, each preceded by two bytes with a flag
/// and twelve bits of length.
pub(crate) fn compression(input: &[u8]) {
    compression_as(Format::Ip, input);
}

fn compression_as(format: Format, input: &[u8]) {
    let mut contexts = Contexts::new(format);
    let mut sequence = Sequence(u32::MAX);
    let mut rest = input;
    while let Some((head, tail)) = rest.split_first_chunk::<2>() {
        let head = u16::from_be_bytes(*head);
        let (packet, behind) = tail.split_at(tail.len().min(usize::from(head & 0x0fff)));
        rest = behind;
        sequence = sequence.add(1);
        if head & 0x8000 == 0 {
            contexts.remember(head >> 12, sequence, packet, packet.len());
            continue;
        }
        let Some((byte, payload)) = packet.split_first() else {
            continue;
        };
        let Some(compressed) = Compressed::parse(*byte) else {
            continue;
        };
        assert_eq!(compressed.emit(), *byte);
        let flow = head >> 12 & 7;
        if let Some(headers) = contexts.rebuild(flow, sequence, compressed, payload.len()) {
            let packet = [headers.bytes(), payload].concat();
            let summary = format.parse(&packet).expect("is a packet");
            assert_eq!(usize::from(summary.headers_len), headers.bytes().len());
        }
    }
}

/// Recovers packets of real-time flows from parity packets. Each is preceded by a byte of flags and
/// flow, a byte with its position, and two bytes of length.
pub(crate) fn parity(input: &[u8]) {
    let mut decoder = Decoder::default();
    let mut now = Instant::from_nanos(1);
    let mut rest = input;
    while let Some((&[head, place, l0, l1], tail)) = rest.split_first_chunk::<4>() {
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let (body, next) = tail.split_at(len.min(tail.len()));
        rest = next;
        now += Duration::from_millis(1);
        let inner = Inner {
            unordered: head & 0x40 != 0,
            retransmission: head & 0x20 != 0,
            flow: u16::from(head & 0x1f),
            sequence: Sequence(u32::MAX - 100).add(u32::from(place)),
            ..Inner::plain(Kind::Packet)
        };
        if head & 0x80 == 0 {
            decoder.handle_packet(&inner, body, now);
        } else if let Some((parity, symbol)) = Parity::parse(body) {
            let mut out = [0; PARITY_LEN];
            parity.emit(&mut out);
            assert_eq!([&out[..], symbol].concat(), body);
            if let Some((header, packet)) = parse_symbol(symbol) {
                let mut out = vec![0; symbol_len(packet.len())];
                emit_symbol(&header, packet, &mut out);
                assert_eq!(parse_symbol(&out), Some((header, packet)));
            }
            assert!(decoder.handle_parity(&inner, body, now));
        } else {
            assert!(!decoder.handle_parity(&inner, body, now));
        }
        while let Some(rebuilt) = decoder.poll_rebuilt() {
            assert!(inner::parse(&rebuilt.packet).is_some());
            let again = decoder.handle_packet(&rebuilt.inner, &rebuilt.packet, now);
            assert!(!again, "is delivered once");
        }
    }
}

/// Coalesces packets for the TUN device, each preceded by two bytes with a flag and twelve bits of
/// length.
pub(crate) fn coalesce(input: &[u8]) {
    coalesce_as(Format::Ip, input);
}

fn coalesce_as(format: Format, input: &[u8]) {
    let mut coalescer = Coalescer::new(format, true);
    let (mut rest, mut pieces, mut written) = (input, 0, 0);
    let mut taken = 0;
    while let Some((head, tail)) = rest.split_first_chunk::<2>() {
        let head = u16::from_be_bytes(*head);
        let (packet, next) = tail.split_at(usize::from(head & 0xfff).min(tail.len()));
        rest = next;
        // The data plane rejects data that is not an inner packet before this step.
        let Some(summary) = format.parse(packet) else {
            continue;
        };
        let mut join = coalescer.push(packet, packet.len(), head & 0x8000 != 0);
        if join == Join::Flush {
            written += flush(&mut coalescer, &mut pieces);
            join = coalescer.push(packet, packet.len(), head & 0x8000 != 0);
        }
        match join {
            Join::Append(offset) => {
                pieces += packet.len() - offset;
                taken += packet.len() - usize::from(summary.headers_len);
            }
            Join::Open(offset) => {
                pieces += packet.len() - offset;
                taken += packet.len();
            }
            Join::Flush => unreachable!("nothing is open"),
        }
    }
    written += flush(&mut coalescer, &mut pieces);
    assert_eq!(written, taken);
}

/// Writes all open packets. Returns the number of written bytes.
fn flush(coalescer: &mut Coalescer, pieces: &mut usize) -> usize {
    let payload = core::mem::take(pieces);
    match coalescer.finish() {
        Some((_, headers)) => {
            assert!(headers.len() + payload <= 65_535);
            headers.len() + payload
        }
        None => 0,
    }
}

/// Parses a bridged frame with the virtio header of a TAP device, applies all changes to frames,
/// and those of packets to frames.
pub(crate) fn frame(input: &[u8]) {
    let format = Format::Ethernet;
    if let Some(hello) = LinkHello::parse(input) {
        assert_eq!(hello.emit(), input);
    }
    segment_as(format, input);
    compression_as(format, input);
    coalesce_as(format, input);
    let Some((header, packet)) = input.split_first_chunk::<VIRTIO_LEN>() else {
        return;
    };
    let mut settled = packet.to_vec();
    let offload = Offload::settle(header, &mut settled, format);
    let Some(summary) = format.parse(packet) else {
        assert!(packet.len() < ETHERNET_LEN);
        return;
    };
    assert!(usize::from(summary.headers_len) <= packet.len());
    assert!(summary.transport_at() <= usize::from(summary.headers_len));
    let len = format.unpadded_len(packet, &summary);
    assert!(len <= packet.len());
    assert_eq!(format.ecn(packet), format.ecn(&packet[..len]));
    if offload.is_some_and(|offload| offload.checksum_partial) {
        assert_eq!(settled, packet, "it is completed elsewhere");
    }
    for mtu in [0, 576, 1_412, u16::MAX] {
        if let Some(answer) = format.too_large(packet, mtu) {
            let back = format.parse(&answer).expect("is a frame");
            assert_eq!(back.ip_at, summary.ip_at);
        }
        let fragments = format.fragments(packet, mtu).unwrap_or_default();
        assert!(
            fragments
                .iter()
                .all(|fragment| fragment.len() <= usize::from(mtu))
        );
    }
}
