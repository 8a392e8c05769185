//! Writes the hand-made seeds of the fuzz corpus: `make corpus`.

mod captures;
mod gre;
mod machines;
mod packets;
mod pool;
mod strangers;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use hawser_config::identity::KeyHash;
use hawser_config::invitation::{HubAddress, Invitation, InvitedTo, Token};
use hawser_proto::fec::{Cover, Encoder};
use hawser_units::{Bytes, Duration, Instant, PathId, Rate, Sequence};
use hawser_wire::airtime::Airtime;
use hawser_wire::compression::{Compressed, Form};
use hawser_wire::control::{
    Cipher, CloseReason, Hello, KeyExpiry, Limit, Message, OtherHub, Refusal, Welcome,
};
use hawser_wire::data::{
    Class, FEEDBACK_LEN, Feedback, INNER_LEN, Inner, Kind, Marks, Missing, OUTER_LEN, Outer,
};
use hawser_wire::frame::Format;
use hawser_wire::inner::{fill_ipv4_checksum, protocol, tcp_flag};
use hawser_wire::link_hello::{Kind as HelloKind, LinkHello};
use hawser_wire::offload::VIRTIO_LEN;
use hawser_wire::opening::{Challenge, Opening, Step};
use hawser_wire::parity::PARITY_LEN;
use hawser_wire::peer::{Expect, PeerHello, PeerMessage, Unexpected};
use hawser_wire::preference::{Preference, Priority};
use machines::{checkpoint, ends, session, stream};
use packets::{ipv4, tcp_v4, tcp_v6, udp_v4};
use strangers::{air, capport, dns, nat64, portal};

/// Returns every message, a truncated one, and values out of range.
fn peer() -> Seeds {
    let v4: SocketAddr = ([192, 0, 2, 1], 61_000).into();
    let v6: SocketAddr = ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2], 4_443).into();
    let messages = [
        PeerMessage::Hello(PeerHello {
            version: 1,
            enrol_token: Some([7; 16]),
            name_hint: "laptop".to_owned(),
        }),
        PeerMessage::Welcome {
            port: 4_443,
            seen: v4,
        },
        PeerMessage::Refused(Refusal::NotEnrolled),
        PeerMessage::Expect(Expect {
            flow: 1,
            nonce: 2,
            protocol: protocol::TCP,
            near: v4,
            far: v4,
            numbers: Some((3, 4)),
        }),
        PeerMessage::Opened { nonce: 2, seen: v6 },
        PeerMessage::Unexpected {
            nonce: 2,
            reason: Unexpected::UnknownFlow,
        },
        PeerMessage::Order {
            flow: 1,
            generation: 5,
            is_switch: true,
            route: (v6, v6),
            keep: (v4, v4),
        },
        PeerMessage::Answer {
            flow: 1,
            generation: 5,
            is_switch: false,
        },
        PeerMessage::Forget { flow: 1 },
        PeerMessage::Relay {
            nonce: 9,
            protocol: protocol::UDP,
            to: v6,
        },
        PeerMessage::Relayed {
            nonce: 9,
            port: 61_001,
        },
        PeerMessage::Unrelay { nonce: 9 },
        PeerMessage::Claim {
            flow: 1,
            near: v4,
            far: v6,
        },
        PeerMessage::Proof { flow: 1, secret: 11 },
        PeerMessage::Proven { flow: 1 },
        PeerMessage::Unproven {
            flow: 1,
            reason: Unexpected::Busy,
        },
    ];
    let mut stream = Vec::new();
    let mut last = Vec::new();
    for message in &messages {
        last.clear();
        message.emit(&mut last);
        stream.extend_from_slice(&last);
    }
    let cut = stream[..stream.len() - 2].to_vec();
    vec![
        ("stream", stream),
        ("cut", cut),
        ("type", vec![0, 1, 99]),
        ("flag", vec![0, 10, 72, 0, 0, 0, 1, 0, 0, 0, 1, 2]),
        ("family", vec![0, 6, 69, 0, 0, 0, 1, 5]),
        ("trailing", vec![0, 6, 73, 0, 0, 0, 1, 7]),
        ("empty", vec![0, 0]),
    ]
}

/// Returns every step over TCP and UDP, IPv4 and IPv6, and an unrelated handshake.
fn opening() -> Seeds {
    let ends = |v6: bool| -> [SocketAddr; 2] {
        if v6 {
            [
                ([0xfd00, 0, 0, 0, 0, 0, 0, 1], 61_000).into(),
                ([0xfd00, 0, 0, 0, 0, 0, 0, 2], 4_443).into(),
            ]
        } else {
            [([10, 0, 0, 1], 61_000).into(), ([10, 0, 0, 2], 4_443).into()]
        }
    };
    let packet = |protocol, v6, step| {
        let [source, destination] = ends(v6);
        let opening = Opening {
            protocol,
            source,
            destination,
            step,
            nonce: 0x1234_5678,
            sequence: 1 << 28,
            acknowledged: 7,
        };
        opening.emit().expect("one family")
    };
    let challenge = |v6| {
        let [source, destination] = ends(v6);
        let (flow, secret) = (1, 0x0123_4567_89ab_cdef);
        let challenge = Challenge {
            source,
            destination,
            flow,
            secret,
        };
        challenge.emit().expect("one family")
    };
    let mut other = packet(protocol::TCP, false, Step::Accept);
    other[48] ^= 1;
    vec![
        ("challenge-v4", challenge(false)),
        ("challenge-v6", challenge(true)),
        ("ask-v4", packet(protocol::TCP, false, Step::Ask)),
        ("accept-v6", packet(protocol::TCP, true, Step::Accept)),
        ("confirm-v4", packet(protocol::TCP, false, Step::Confirm)),
        ("datagram-v4", packet(protocol::UDP, false, Step::Ask)),
        ("datagram-v6", packet(protocol::UDP, true, Step::Accept)),
        ("nobodys", other),
    ]
}

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let seeds = [
        ("data", data()),
        ("control", control()),
        ("peer", peer()),
        ("pool", pool::pool()),
        ("gre", gre::gre()),
        ("opening", opening()),
        ("inner", inner()),
        ("frame", frames()),
        ("layer", layer()),
        ("segment", segment()),
        ("coalesce", coalesce()),
        ("compression", compression()),
        ("parity", parity()),
        ("invitation", invitation()),
        ("scenario", scenario()),
        ("capture", captures::capture()),
        ("config", config()),
        ("session", session()),
        ("checkpoint", checkpoint()),
        ("stream", stream()),
        ("ends", ends()),
        ("dns", dns()),
        ("portal", portal()),
        ("capport", capport()),
        ("nat64", nat64()),
        ("air", air()),
    ];
    for (target, inputs) in seeds {
        let directory = root.join(target);
        std::fs::create_dir_all(&directory)?;
        for (name, input) in inputs {
            std::fs::write(directory.join(name), input)?;
        }
    }
    Ok(())
}

type Seeds = Vec<(&'static str, Vec<u8>)>;

fn data() -> Seeds {
    let mut datagram = vec![0; 64];
    let mut outer = [0; OUTER_LEN];
    Outer {
        epoch: 3,
        index: 0x1234_5678,
        packet_number: 99,
    }
    .emit(&mut outer);
    datagram[..OUTER_LEN].copy_from_slice(&outer);
    let mut header = [0; INNER_LEN];
    let inner = Inner {
        class: Class::Interactive,
        checksum_partial: true,
        form: Form::Context,
        flow: 7,
        sequence: Sequence(u32::MAX),
        sent_us: 123_456,
        ..Inner::plain(Kind::Packet)
    };
    inner.emit(&mut header);
    let mut report = [0; FEEDBACK_LEN];
    let mut missing = Missing::default();
    missing.push(7, 2);
    missing.push(1, 1);
    Feedback {
        path: PathId(1),
        highest: 1 << 40,
        packets: 9,
        bytes: 1 << 33,
        missing,
        takes_parity: true,
        marks: Some(Marks { ect: 8, ce: 1 }),
        ..Feedback::default()
    }
    .emit(&mut report);
    let feedback = Inner {
        kind: Kind::Feedback,
        ..inner
    };
    let mut feedback_header = [0; INNER_LEN];
    feedback.emit(&mut feedback_header);
    vec![
        ("datagram", datagram),
        ("packet", [&header[..], &tcp_v4(tcp_flag::PSH, &[], 20)].concat()),
        ("feedback", [&feedback_header[..], &report].concat()),
        ("report", report.to_vec()),
        ("quic", vec![0xc0; 40]),
    ]
}

/// Returns each kind of mark, as an inner packet and as the payload alone.
fn layer() -> Seeds {
    let payloads: [(&str, &str, &[u8]); 5] = [
        ("h264_fragment", "h264_fragment_alone", &[0x7c, 0x85, 1, 2, 3]),
        (
            "h264_aggregate",
            "h264_aggregate_alone",
            &[0x78, 0, 2, 0x67, 1, 0, 2, 0x68, 1],
        ),
        ("svc", "svc_alone", &[0x74, 0x80, 0x11, 0x07, 1, 2]),
        ("vp9", "vp9_alone", &[0xac, 0x85, 0x01, 0x24, 9, 9]),
        ("padded", "padded_alone", &[0x41, 0, 0, 3]),
    ];
    let packet = |name: &str, payload: &[u8]| {
        let first = if name == "padded" { 0xb1 } else { 0x80 };
        let mut datagram = vec![first, 0x80 | 96, 0, 7, 0, 0, 0, 9, 0, 0, 0, 5];
        if name == "padded" {
            datagram.extend([1, 2, 3, 4, 0xbe, 0xde, 0, 1, 9, 9, 9, 9]);
        }
        datagram.extend(payload);
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[1] = 34 << 2;
        packet[2..4].copy_from_slice(&(28 + datagram.len() as u16).to_be_bytes());
        packet[8] = 64;
        packet[9] = protocol::UDP;
        packet[20..24].copy_from_slice(&[0x13, 0x8c, 0x13, 0x8c]);
        packet[24..26].copy_from_slice(&(8 + datagram.len() as u16).to_be_bytes());
        fill_ipv4_checksum(&mut packet, 20);
        packet.extend(datagram);
        packet
    };
    payloads
        .into_iter()
        .flat_map(|(name, alone, payload)| [(name, packet(name, payload)), (alone, payload.to_vec())])
        .collect()
}

fn control() -> Seeds {
    let messages = [
        Message::Hello(Hello {
            version: 1,
            enrol_token: Some([7; 16]),
            resume: Some(9),
            prefers: Cipher::Aes256Gcm,
            format: Format::Ethernet,
            name_hint: "laptop".to_owned(),
        }),
        Message::Welcome(Welcome {
            session: 9,
            epoch: 1,
            inner_v4: (Ipv4Addr::new(100, 96, 0, 2), 16),
            inner_v6: Some((Ipv6Addr::LOCALHOST, 64)),
            dns: vec![
                IpAddr::V4(Ipv4Addr::new(192, 0, 2, 53)),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ],
            hub_mtu: 1432,
            cipher: Cipher::ChaCha20Poly1305,
        }),
        Message::Refused(Refusal::NotEnrolled),
        Message::PathOpen {
            path: 1,
            receive_index: 2,
        },
        Message::PathOpened {
            path: 1,
            receive_index: 3,
        },
        Message::SetScheduler {
            class: Class::Bulk,
            scheduler: "redundant".to_owned(),
        },
        Message::Cap {
            path: 1,
            rate_bps: 10_000_000,
        },
        Message::Airtime {
            path: 1,
            airtime: Some(Airtime {
                channel: 2437,
                others: 20,
                empty: Duration::from_micros(160),
                full: Duration::from_micros(390),
            }),
        },
        Message::Prefer {
            path: 1,
            preference: Preference {
                priority: Priority::Backup,
                takes_bulk: false,
            },
        },
        Message::Through {
            path: 1,
            member: [1; 10],
            taker: [2; 10],
        },
        Message::Receipt(Box::new(pool::receipt())),
        Message::Ping(5),
        Message::Pong(5),
        Message::RekeyWanted,
        Message::Leave,
        Message::Limit(Limit::Slowed {
            rate: Rate::from_bps(256_000),
            quota: Bytes(100_000_000_000),
        }),
        Message::OtherHub(OtherHub {
            index: 0,
            count: 1,
            key: [7; 32],
            endpoints: vec!["hub2.example.org:443".to_owned()],
        }),
        Message::Subnets(vec![
            "192.168.50.0/24".parse().expect("a subnet"),
            "fd00:50::/64".parse().expect("a subnet"),
        ]),
        Message::KeyExpires(Some(KeyExpiry(1_803_859_200))),
        Message::KeyExpires(None),
        Message::PathClose { path: 1 },
        Message::Close(CloseReason::Shutdown),
    ];
    let refusals = (0..=9).map(|code| frame(&[&[3, code]]));
    let closes = (0..=7).map(|code| frame(&[&[9, code]]));
    let reasons: Vec<_> = refusals.chain(closes).flatten().collect();
    let mut stream = Vec::new();
    messages.iter().for_each(|message| message.emit(&mut stream));
    let mut hello = Vec::new();
    messages[0].emit(&mut hello);
    let mut welcome = Vec::new();
    messages[1].emit(&mut welcome);
    vec![
        ("stream", stream),
        ("hello", hello),
        ("welcome", welcome),
        ("reasons", reasons),
        ("bare-hello", frame(&[&[1, 0, 1, 0, 0, 0]])),
        ("longest-text", frame(&[&[7, 0, 200], &[b'x'; 200]])),
        ("text-too-long", frame(&[&[7, 0, 201], &[b'x'; 201]])),
        ("text-not-utf8", frame(&[&[7, 0, 2, 0xc3, 0x28]])),
        ("class", frame(&[&[7, 9, 1, b'x']])),
        ("type", frame(&[&[0]])),
        ("later-type", frame(&[&[99]])),
        ("trailing", frame(&[&[12, 0]])),
        ("cut", frame(&[&[4, 0, 1]])),
        ("empty", vec![0, 0]),
        ("length", vec![0xff; 8]),
    ]
}

/// Returns the parts with a length prefix.
fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&(body.len() as u16).to_be_bytes()[..], &body].concat()
}

fn inner() -> Seeds {
    let mss = [2, 4, 0x05, 0xb4, 1, 1, 4, 2, 1, 1, 1, 0];
    let mut fragment = udp_v4(100);
    fragment[6] = 0x20;
    fragment[7] = 9;
    let mut options = tcp_v4(tcp_flag::SYN, &mss, 0);
    options[20 + 12 + 8] = 0;
    vec![
        ("tcp-syn", tcp_v4(tcp_flag::SYN, &mss, 0)),
        ("tcp-bad-option", options),
        ("tcp-v6", tcp_v6(tcp_flag::SYN, &mss, 0)),
        ("udp", udp_v4(40)),
        ("fragment", fragment),
        (
            "icmp",
            [&ipv4(protocol::ICMP, 8)[..], &[8, 0, 0, 0, 0, 1, 0, 1]].concat(),
        ),
    ]
}

fn segment() -> Seeds {
    let seed = |header: [u8; 2], segment: u16, packet: Vec<u8>| {
        let mut input = vec![0x02, 0x58, header[0], header[1], 0, 0];
        input.extend(segment.to_ne_bytes());
        input.extend([0; 4]);
        input.extend(packet);
        input
    };
    vec![
        (
            "tcp-v4",
            seed(
                [1, 1],
                1380,
                tcp_v4(tcp_flag::PSH | tcp_flag::FIN, &[1; 12], 3000),
            ),
        ),
        ("tcp-v6", seed([1, 4], 100, tcp_v6(tcp_flag::CWR, &[1; 12], 1000))),
        ("udp", seed([1, 5], 200, udp_v4(1000))),
        ("whole", seed([0, 0], 0, udp_v4(1000))),
        ("contradiction", seed([1, 1], 1, ipv4(protocol::ICMP, 0))),
    ]
}

fn compression() -> Seeds {
    let train = |context: Vec<u8>| {
        let mut input = (context.len() as u16).to_be_bytes().to_vec();
        input.extend(context);
        for back in 1..4 {
            let last_flags = if back == 3 { tcp_flag::PSH } else { 0 };
            let head = Compressed { back, last_flags }.emit();
            input.extend((0x8000u16 | 101).to_be_bytes());
            input.push(head);
            input.extend([back; 100]);
        }
        input
    };
    vec![
        ("tcp-v4", train(tcp_v4(0, &[1; 12], 200))),
        ("tcp-v6", train(tcp_v6(0, &[1; 12], 200))),
        ("udp-v4", train(udp_v4(150))),
    ]
}

/// Returns flows whose first packet of each group is lost: groups of many packets, and copies.
fn parity() -> Seeds {
    let flow = |gap: Duration| {
        let entry = |flags: u8, place: u32, body: &[u8]| {
            let len = (body.len() as u16).to_be_bytes();
            [&[flags, place as u8][..], &len, body].concat()
        };
        let first = Sequence(u32::MAX - 100);
        let mut encoder = Encoder::default();
        let cover = Cover {
            loss: 0.02,
            path: PathId(1),
        };
        let mut input = entry(0xc0, 0, &[1, 1, 0, 0, 0, 0, 0]);
        for place in 0..40 {
            let now = Instant::from_nanos(1_000_000_000) + gap * place;
            let inner = Inner {
                class: Class::Realtime,
                unordered: true,
                sequence: first.add(place),
                ..Inner::plain(Kind::Packet)
            };
            let packet = udp_v4(20 + place as usize);
            encoder.plan(0, cover, 1, now);
            encoder.push(&inner, &packet, now);
            if place % 8 != 3 {
                input.extend(entry(0x40, place, &packet));
            }
            while let Some(outgoing) = encoder.pop() {
                let mut body = vec![0; PARITY_LEN];
                outgoing.parity.emit(body.first_chunk_mut().expect("as long"));
                body.extend(outgoing.symbol);
                let base = outgoing.inner.sequence.distance_from(first);
                input.extend(entry(0xc0, base.unsigned_abs(), &body));
            }
        }
        input
    };
    let many = flow(Duration::from_micros(2_400));
    let mut damaged = many.clone();
    damaged.iter_mut().step_by(97).for_each(|byte| *byte ^= 0x55);
    vec![
        ("groups", many),
        ("copies", flow(Duration::from_millis(20))),
        ("damaged", damaged),
    ]
}

fn coalesce() -> Seeds {
    let frame = |packets: &[Vec<u8>]| {
        let mut input = Vec::new();
        for packet in packets {
            input.extend((0x8000 | packet.len() as u16).to_be_bytes());
            input.extend(packet);
        }
        input
    };
    let follow = |mut packet: Vec<u8>, at: usize, n: u32| {
        let sequence = 1000 + n * 200;
        packet[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
        packet
    };
    let v4: Vec<_> = (0..4).map(|n| follow(tcp_v4(0, &[1; 12], 200), 20, n)).collect();
    let v6: Vec<_> = (0..4).map(|n| follow(tcp_v6(0, &[1; 12], 200), 40, n)).collect();
    let mixed = [
        v4[0].clone(),
        v4[1].clone(),
        v6[0].clone(),
        udp_v4(50),
        udp_v4(50),
        udp_v4(20),
        udp_v4(50),
    ];
    vec![
        ("tcp-v4", frame(&v4)),
        ("tcp-v6", frame(&v6)),
        ("mixed", frame(&mixed)),
    ]
}

/// Returns frames of a TAP device in all forms: whole, to be segmented, and as runs of segments.
fn frames() -> Seeds {
    let around = |tags: usize, ip: &[u8]| {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
        frame.extend(if ip[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] });
        frame.extend(ip);
        frame
    };
    let plain = |frame: Vec<u8>| [vec![0; VIRTIO_LEN], frame].concat();
    let mut large = ipv4(protocol::UDP, 1_472);
    large[6] = 0;
    fill_ipv4_checksum(&mut large, 20);
    large.resize(1_492, 7);
    let mut arp = around(0, &[0x45; 28]);
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut padded = around(0, &tcp_v4(tcp_flag::ACK, &[], 0));
    padded.extend([0; 6]);
    let mut within = [0; VIRTIO_LEN];
    within[0] = 1;
    within[6..8].copy_from_slice(&50_u16.to_ne_bytes());
    within[8..10].copy_from_slice(&6_u16.to_ne_bytes());
    let mut cut = vec![5, 0x84, 1, 1, 0, 0];
    cut.extend(500_u16.to_ne_bytes());
    cut.extend(38_u16.to_ne_bytes());
    cut.extend(16_u16.to_ne_bytes());
    let run: Vec<u8> = (0..4_u32)
        .flat_map(|n| {
            let mut frame = around(1, &tcp_v4(0, &[1; 12], 200));
            frame[42..46].copy_from_slice(&(1000 + n * 200).to_be_bytes());
            let head = (0x8000 | frame.len() as u16).to_be_bytes();
            [&head[..], &frame].concat()
        })
        .collect();
    vec![
        ("fragments", plain(around(0, &large))),
        (
            "vlan-v6",
            plain(around(1, &tcp_v6(tcp_flag::SYN, &[2, 4, 5, 0xb4], 0))),
        ),
        ("two-vlans", plain(around(2, &tcp_v4(0, &[], 1_400)))),
        ("arp", plain(arp)),
        ("padded", plain(padded)),
        ("tunnel", [&within[..], &around(0, &udp_v4(60))].concat()),
        ("cut", [cut, around(1, &tcp_v4(0, &[1; 12], 2_000))].concat()),
        ("run", run),
        (
            "hello",
            LinkHello {
                kind: HelloKind::Answer,
                port: 18_519,
                key: [7; 32],
            }
            .emit()
            .to_vec(),
        ),
    ]
}

fn invitation() -> Seeds {
    let address = |host: &str| HubAddress {
        host: host.to_owned(),
        port: 443,
    };
    let invitation = Invitation {
        hub: InvitedTo {
            endpoints: vec![
                address("hub.example.org"),
                address("192.0.2.1"),
                address("2001:db8::1"),
            ],
            key: KeyHash([0x5a; 32]),
        },
        others: Vec::new(),
        name: "alice".to_owned(),
        token: Token([0xa5; 16]),
    };
    let line = invitation.to_string();
    let six = Invitation {
        hub: InvitedTo {
            endpoints: vec![address("2001:db8::1"), address("::ffff:192.0.2.1")],
            key: KeyHash([0x5a; 32]),
        },
        ..invitation.clone()
    };
    let many = Invitation {
        hub: InvitedTo {
            endpoints: (0..60)
                .map(|n| address(&format!("hub-{n}.example.org")))
                .collect(),
            key: KeyHash([0x5a; 32]),
        },
        name: "a-name_that-is-as-long-as-it-may".to_owned(),
        ..invitation.clone()
    };
    let other = |number: u8| InvitedTo {
        endpoints: vec![address(&format!("hub-{number}.example.org"))],
        key: KeyHash([number; 32]),
    };
    let fleet = Invitation {
        others: vec![other(1), other(2)],
        ..invitation.clone()
    };
    let fleet = fleet.to_string();
    let head = line.len() - line.rsplit('/').next().map_or(0, str::len);
    let blob = line[head..].to_owned();
    vec![
        ("ipv6", six.to_string().into()),
        ("many", many.to_string().into()),
        (
            "fleet-short",
            fleet.replacen("+hub-2.example.org:443", "", 1).into(),
        ),
        ("fleet-one-more", fleet.replacen('+', "+a:1+", 1).into()),
        ("fleet", fleet.into()),
        ("spaces", format!(" \t{line}\r\n").into()),
        ("broken-line", line.replace("/alice/", "/alice/\n").into()),
        ("quoted", format!("'{line}'").into()),
        ("port-0", line.replacen(":443", ":0", 1).into()),
        ("port-large", line.replacen(":443", ":65536", 1).into()),
        ("no-port", line.replacen(":443", "", 1).into()),
        ("open-bracket", line.replacen("hub.", "[hub.", 1).into()),
        ("no-endpoint", format!("hawser:///alice/{blob}").into()),
        ("name-climbs", format!("hawser://hub:1/../{blob}").into()),
        ("version", format!("{}B{}", &line[..head], &blob[1..]).into()),
        ("padded", format!("{line}==").into()),
        ("another-scheme", line.replace("hawser:", "https:").into()),
        ("scheme-alone", b"hawser://".to_vec()),
        ("short", line[..line.len() - 20].into()),
        ("mistyped", line.replace("alice", "alise").into()),
        ("good", line.into()),
        ("umlaut", "hawser://h\u{fc}b:443/alice/AQ\u{fc}".into()),
    ]
}

fn scenario() -> Seeds {
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/");
    let read = |name: &str| std::fs::read(format!("{scenarios}{name}")).expect("a scenario of the project");
    vec![
        ("blackhole", read("blackhole.toml")),
        ("unshaped", read("unshaped-two-veth.toml")),
        ("four", read("sum-8-4-2-1.toml")),
        ("mahimahi", b"1\n3\n3\n7\n".to_vec()),
        ("csv", b"0.0,125000\n0.1,250000\n".to_vec()),
    ]
}

fn config() -> Seeds {
    vec![
        ("empty", Vec::new()),
        ("client", CLIENT.into()),
        ("hub", HUB.into()),
        ("unit", b"[networks.lte]\ncap_down = 10\n".to_vec()),
        ("unknown", b"incldue = [\"wl*\"]\n".to_vec()),
        ("syntax", b"listen = \"[::]:443\nmtu =".to_vec()),
    ]
}

const CLIENT: &str = "include = [\"wl*\", \"eth?\"]\nexclude = [\"docker*\"]\n\n[networks.wwan0]\ncap_down = \"10mbit\"\n\n\
                      [schedulers]\nbulk = \"earliest-delivery\"\ninteractive = \"redundant\"\n";

const HUB: &str = "listen = \"[::]:443\"\nendpoints = [\"hub.example.org:443\"]\npool = \"100.96.0.0/16\"\n\
                   pool6 = \"fd00:1::/64\"\nnat = true\n";
