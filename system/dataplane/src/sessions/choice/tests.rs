//! Tests of two sessions of a client, with packets in the form of a TUN device.

use hawser_linux::direct::{Match, Protocol};
use hawser_proto::path::{Config, Probing};
use hawser_proto::tunnel::Role;
use hawser_units::{Duration, Instant, Net, PathId};
use hawser_wire::data::Kind;
use hawser_wire::frame::Format;
use hawser_wire::offload::VIRTIO_LEN;
use proptest::prelude::*;

use super::*;
use crate::lane::Lane;
use crate::sessions::{Accepted, Sessions};

const A: SessionId = SessionId(7);
const B: SessionId = SessionId(3);
const SYN: u8 = tcp_flag::SYN;
const ACK: u8 = tcp_flag::ACK;
const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn sessions(all: &[SessionId]) -> Sessions {
    let mut sessions = Sessions::new(
        Format::Ip,
        7,
        [crate::sessions::CAPACITY; 2]
            .map(crate::share::Share::whole)
            .into(),
        NOW,
    );
    for name in all {
        sessions.add(*name, Role::Client, &[], NOW);
    }
    sessions
}

/// Returns a packet of a protocol from a port, with these TCP flags.
fn packet(protocol: u8, port: u16, flags: u8) -> [u8; 40] {
    let mut packet = [0; 40];
    packet[0] = 0x45;
    packet[3] = 40;
    packet[9] = protocol;
    packet[12..20].copy_from_slice(&[100, 96, 0, 2, 203, 0, 113, 2]);
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet[23] = 80;
    packet[25] = 20;
    packet[32] = 0x50;
    packet[33] = flags;
    packet
}

/// Returns the session that sent a packet.
fn through(sessions: &mut Sessions, packet: [u8; 40]) -> Option<SessionId> {
    let held = |sessions: &Sessions| -> Vec<_> {
        let all = sessions.all.iter();
        all.map(|(name, session)| (*name, session.held)).collect()
    };
    let before = held(sessions);
    sessions.reading()[..VIRTIO_LEN].fill(0);
    sessions.reading()[VIRTIO_LEN..VIRTIO_LEN + 40].copy_from_slice(&packet);
    if sessions.accept(VIRTIO_LEN + 40, NOW) != Accepted::Queued {
        return None;
    }
    let after = held(sessions);
    let changed = before.iter().zip(&after).find(|(before, after)| before != after);
    changed.map(|(before, _)| before.0)
}

fn tcp(sessions: &mut Sessions, port: u16, flags: u8) -> Option<SessionId> {
    through(sessions, packet(protocol::TCP, port, flags))
}

fn udp(sessions: &mut Sessions, port: u16) -> Option<SessionId> {
    through(sessions, packet(protocol::UDP, port, 0))
}

/// Adds a path that has answered to a session.
fn connect(sessions: &mut Sessions, name: SessionId) {
    let path = PathId(0);
    sessions.with(name, |session| {
        let config = Config {
            id: path,
            probing: Probing::Eager,
            cap: None,
            mtu: 1500,
            overhead: 68,
        };
        session.tunnel.open_path(config, true, NOW);
        session
            .lanes
            .insert(path, Lane::new(None, None, 0, String::new()));
    });
    let mut token = None;
    let send = |_, _: &Lane, burst: &hawser_proto::tunnel::Burst<'_, _, _>, _: &[u8]| {
        for datagram in burst.datagrams().filter(|one| one.inner.kind == Kind::Probe) {
            let mut body = vec![0; datagram.body_len()];
            datagram.write_body(&[], &mut body);
            token = body.first_chunk().map(|token| u64::from_be_bytes(*token));
        }
    };
    sessions.service(|| NOW, send, |_| {});
    let token = token.expect("a new path is probed");
    sessions.with(name, |session| {
        session
            .tunnel
            .egress_mut()
            .handle_probe_reply(path, token, NOW + Duration::from_millis(10));
    });
}

#[test]
fn all_goes_through_the_first_until_it_is_said_otherwise() {
    let mut sessions = sessions(&[A, B]);
    assert_eq!(tcp(&mut sessions, 1, SYN), Some(A));
    assert_eq!(tcp(&mut sessions, 2, ACK), Some(A));
    assert_eq!(udp(&mut sessions, 3), Some(A));
    sessions.begin_with(A);
    sessions.begin_with(SessionId(99));
    assert_eq!(tcp(&mut sessions, 1, SYN), Some(A));
}

#[test]
fn connections_go_on_in_another_session_with_their_hub() {
    const NEXT: SessionId = SessionId(9);
    let mut sessions = sessions(&[A, B]);
    sessions.begin_with(B);
    tcp(&mut sessions, 2, SYN);
    sessions.begin_with(A);
    tcp(&mut sessions, 3, SYN);
    sessions.begin_with(B);
    assert_eq!(tcp(&mut sessions, 1, ACK), Some(A));
    sessions.remove(A);
    // The flow of the packet is not known yet.
    assert_eq!(tcp(&mut sessions, 1, ACK), Some(B));
    sessions.add(NEXT, Role::Client, &[], NOW);
    sessions.go_on_with(NEXT);
    for (port, name) in [(1, NEXT), (2, B), (3, NEXT)] {
        assert_eq!(tcp(&mut sessions, port, ACK), Some(name), "{port}");
    }
    assert_eq!(tcp(&mut sessions, 4, SYN), Some(B));
    // A permanently removed session passes nothing to the next one.
    sessions.remove(NEXT);
    sessions.add(A, Role::Client, &[], NOW);
    sessions.begin_with(A);
    sessions.go_on_with(B);
    assert_eq!(tcp(&mut sessions, 3, ACK), Some(B));
    assert_eq!(tcp(&mut sessions, 5, SYN), Some(A));
}

#[test]
fn connections_stay_where_they_began_through_changes_to_and_fro() {
    let mut sessions = sessions(&[A, B]);
    tcp(&mut sessions, 1, SYN);
    sessions.begin_with(B);
    assert_eq!(tcp(&mut sessions, 2, SYN), Some(B));
    sessions.begin_with(A);
    assert_eq!(tcp(&mut sessions, 3, SYN), Some(A));
    for (port, its) in [(1, A), (2, B), (3, A), (4, A)] {
        assert_eq!(tcp(&mut sessions, port, ACK), Some(its), "port {port}");
    }
    // The same ports again are another connection.
    assert_eq!(tcp(&mut sessions, 2, SYN), Some(A));
    assert_eq!(tcp(&mut sessions, 2, ACK), Some(A));
}

#[test]
fn what_is_no_connection_stays_while_a_path_leads_there() {
    let mut sessions = sessions(&[A, B]);
    udp(&mut sessions, 1);
    sessions.begin_with(B);
    assert_eq!(udp(&mut sessions, 1), Some(B), "no path of the one before works");
    sessions.begin_with(A);
    connect(&mut sessions, A);
    udp(&mut sessions, 1);
    sessions.begin_with(B);
    assert_eq!(udp(&mut sessions, 1), Some(A));
    assert_eq!(udp(&mut sessions, 2), Some(B), "it has begun since");
}

/// Destination of all packets here.
const TO: [u8; 4] = [203, 0, 113, 2];
fn nets(all: &[(u8, bool)]) -> Destinations {
    let net = |(prefix, is_chosen): &(u8, bool)| rule(vec![Net::new(TO, *prefix)], *is_chosen);
    Destinations {
        rules: all.iter().map(net).collect(),
        ..Destinations::default()
    }
}

fn rule(to: Vec<Net>, is_chosen: bool) -> (Match, bool) {
    let flows = Match {
        to,
        ..Match::default()
    };
    (flows, is_chosen)
}

fn no_more() -> Destinations {
    Destinations::default()
}

#[test]
fn what_rules_choose_begins_in_the_other_session_while_a_path_of_it_works() {
    let mut sessions = sessions(&[A, B]);
    assert_eq!(tcp(&mut sessions, 1, SYN), Some(A));
    udp(&mut sessions, 1);
    sessions.set_destinations(B, &nets(&[(24, true)]));
    assert_eq!(
        tcp(&mut sessions, 2, SYN),
        Some(A),
        "nothing says that it would arrive"
    );
    assert_eq!(udp(&mut sessions, 2), Some(A));
    connect(&mut sessions, B);
    assert_eq!(tcp(&mut sessions, 3, SYN), Some(B));
    assert_eq!(udp(&mut sessions, 3), Some(B));
    assert_eq!(tcp(&mut sessions, 4, SYN | ACK), Some(A), "it came in");
    for (port, its) in [(1, A), (2, A), (3, B), (4, A)] {
        assert_eq!(tcp(&mut sessions, port, ACK), Some(its), "port {port}");
    }
    for (port, its) in [(1, A), (2, A), (3, B)] {
        assert_eq!(udp(&mut sessions, port), Some(its), "port {port}");
    }
    // The first network decides; existing connections remain.
    sessions.set_destinations(B, &nets(&[(32, false), (8, true)]));
    assert_eq!(tcp(&mut sessions, 5, SYN), Some(A));
    sessions.set_destinations(B, &no_more());
    assert_eq!(tcp(&mut sessions, 6, SYN), Some(A));
    assert_eq!(tcp(&mut sessions, 3, ACK), Some(B));
    let mut two = nets(&[(32, true)]);
    let elsewhere = rule(vec![Net::new([198, 51, 100, 0], 24)], true);
    two.rules.insert(0, elsewhere);
    sessions.set_destinations(B, &two);
    assert_eq!(tcp(&mut sessions, 7, SYN), Some(B));
}

/// The packets here go to port 80.
#[test]
fn rules_go_by_protocol_and_port_too() {
    let mut sessions = sessions(&[A, B]);
    connect(&mut sessions, B);
    let all = |protocol, ports: &[(u16, u16)]| Match {
        protocol,
        ports: ports.to_vec(),
        ..Match::default()
    };
    let cases = [
        (all(Some(Protocol::Tcp), &[]), B, A),
        (all(Some(Protocol::Udp), &[]), A, B),
        (all(None, &[(1, 79), (81, 443)]), A, A),
        (all(None, &[(22, 22), (80, 80)]), B, B),
        (all(Some(Protocol::Tcp), &[(80, 81)]), B, A),
    ];
    for (at, (first, tcp_in, udp_in)) in cases.into_iter().enumerate() {
        let port = 10 + at as u16;
        let destinations = Destinations {
            rules: vec![(first.clone(), true), (Match::default(), false)],
            ..Destinations::default()
        };
        sessions.set_destinations(B, &destinations);
        assert_eq!(tcp(&mut sessions, port, SYN), Some(tcp_in), "{first:?}");
        assert_eq!(udp(&mut sessions, port), Some(udp_in), "{first:?}");
    }
}

#[test]
fn hosts_begin_there_too_unless_a_network_says_otherwise() {
    let mut sessions = sessions(&[A, B]);
    connect(&mut sessions, B);
    let with = |host: [u8; 4], all: &[(u8, bool)]| Destinations {
        hosts: [host.into()].into(),
        ..nets(all)
    };
    sessions.set_destinations(B, &with(TO, &[]));
    assert_eq!(tcp(&mut sessions, 1, SYN), Some(B));
    assert_eq!(udp(&mut sessions, 1), Some(B));
    sessions.set_destinations(B, &with([203, 0, 113, 3], &[]));
    assert_eq!(tcp(&mut sessions, 2, SYN), Some(A));
    sessions.set_destinations(B, &with(TO, &[(24, false)]));
    assert_eq!(tcp(&mut sessions, 3, SYN), Some(A));
}

#[test]
fn a_connection_that_is_placed_goes_there_whatever_its_destination() {
    let mut sessions = sessions(&[A, B]);
    connect(&mut sessions, B);
    let flow = |port| FlowKey {
        source: [100, 96, 0, 2].into(),
        destination: TO.into(),
        protocol: protocol::TCP,
        source_port: port,
        destination_port: 80,
    };
    sessions.set_destinations(B, &no_more());
    sessions.assign(B, flow(1));
    assert_eq!(tcp(&mut sessions, 1, SYN), Some(B));
    assert_eq!(tcp(&mut sessions, 1, SYN), Some(B), "the same once more");
    assert_eq!(tcp(&mut sessions, 2, SYN), Some(A));
    sessions.set_destinations(B, &nets(&[(32, true)]));
    sessions.assign(A, flow(3));
    assert_eq!(tcp(&mut sessions, 3, SYN), Some(A));
    assert_eq!(tcp(&mut sessions, 4, SYN), Some(B));
    for (port, its) in [(1, B), (2, A), (3, A), (4, B)] {
        assert_eq!(tcp(&mut sessions, port, ACK), Some(its), "port {port}");
    }
    // Only the newest assignments are stored.
    (0..MAX_PLACED).for_each(|port| sessions.assign(B, flow(100 + port as u16)));
    assert_eq!(tcp(&mut sessions, 3, SYN), Some(B));
}

#[test]
fn a_chosen_session_that_is_gone_leaves_all_to_the_one_in_use() {
    const NEXT: SessionId = SessionId(9);
    let all = nets(&[(24, true)]);
    let mut sessions = sessions(&[A, B]);
    tcp(&mut sessions, 1, SYN);
    connect(&mut sessions, B);
    sessions.set_destinations(B, &all);
    tcp(&mut sessions, 2, SYN);
    sessions.remove(B);
    assert_eq!(tcp(&mut sessions, 3, SYN), Some(A));
    // Its hub starts another session: connections that began there continue in it, newer ones do
    // not.
    sessions.add(NEXT, Role::Client, &[], NOW);
    sessions.go_on_with(NEXT);
    connect(&mut sessions, NEXT);
    assert_eq!(
        tcp(&mut sessions, 4, SYN),
        Some(A),
        "of the rules it has not heard yet"
    );
    sessions.set_destinations(NEXT, &all);
    assert_eq!(tcp(&mut sessions, 5, SYN), Some(NEXT));
    for (port, its) in [(1, A), (2, NEXT), (3, A), (4, A), (5, NEXT)] {
        assert_eq!(tcp(&mut sessions, port, ACK), Some(its), "port {port}");
    }
    // Another session replaces it, which may be with another hub.
    sessions.remove(NEXT);
    sessions.add(B, Role::Client, &[], NOW);
    connect(&mut sessions, B);
    sessions.set_destinations(B, &all);
    assert_eq!(tcp(&mut sessions, 6, SYN), Some(B));
    for (port, its) in [(1, A), (2, A), (5, A), (6, B)] {
        assert_eq!(tcp(&mut sessions, port, ACK), Some(its), "port {port}");
    }
    // It takes over: all flows begin there, and the rules end with the other session.
    sessions.begin_with(B);
    assert_eq!(tcp(&mut sessions, 7, SYN), Some(B));
    connect(&mut sessions, A);
    assert_eq!(tcp(&mut sessions, 8, SYN), Some(B));
    assert_eq!(tcp(&mut sessions, 1, ACK), Some(A));
}

#[test]
fn connections_of_the_hub_in_use_go_on_in_its_next_session() {
    const NEXT: SessionId = SessionId(9);
    let mut sessions = sessions(&[A, B]);
    connect(&mut sessions, B);
    sessions.set_destinations(B, &nets(&[(32, true)]));
    tcp(&mut sessions, 2, SYN);
    sessions.set_destinations(B, &no_more());
    tcp(&mut sessions, 3, SYN);
    sessions.remove(A);
    assert_eq!(tcp(&mut sessions, 4, SYN), Some(B), "it is all that there is");
    sessions.add(NEXT, Role::Client, &[], NOW);
    sessions.begin_with(NEXT);
    for (port, name) in [(1, NEXT), (2, B), (3, NEXT), (4, B)] {
        assert_eq!(tcp(&mut sessions, port, ACK), Some(name), "port {port}");
    }
    assert_eq!(tcp(&mut sessions, 5, SYN), Some(NEXT));
    // The other one takes over; the lost connections do not return.
    sessions.remove(NEXT);
    sessions.begin_with(B);
    for port in 1..6 {
        assert_eq!(tcp(&mut sessions, port, ACK), Some(B));
    }
}

#[test]
fn what_is_left_takes_all() {
    for gone in [A, B] {
        let mut sessions = sessions(&[A, B]);
        tcp(&mut sessions, 1, SYN);
        sessions.begin_with(B);
        tcp(&mut sessions, 2, SYN);
        sessions.remove(gone);
        let left = if gone == A { B } else { A };
        for port in [1, 2, 3] {
            assert_eq!(tcp(&mut sessions, port, ACK), Some(left));
        }
        sessions.remove(left);
        assert_eq!(tcp(&mut sessions, 1, SYN), None);
    }
}

#[test]
fn connections_that_are_remembered_are_bounded() {
    let mut sessions = sessions(&[A, B]);
    sessions.begin_with(B);
    let mut choice = std::mem::take(&mut sessions.choice);
    for address in 0..MAX as u32 + 10 {
        let mut packet = packet(protocol::TCP, 1, SYN);
        packet[16..20].copy_from_slice(&address.to_be_bytes());
        choice.of(&packet, &sessions.all);
    }
    assert!(choice.begun.len() <= MAX);
}

proptest! {
    /// For any sequence of changes, a packet uses an existing session, and a packet of a connection
    /// uses the session of its SYN while that exists.
    #[test]
    fn goes_where_it_began(steps in prop::collection::vec((0_u8..7, 0_u64..3, 0_u16..6), 1..200)) {
        let mut sessions = sessions(&[]);
        let mut began = std::collections::BTreeMap::new();
        for (what, which, port) in steps {
            let name = SessionId(which);
            match what {
                // A client has at most two concurrent sessions.
                0 if sessions.all.len() < 2 && !sessions.all.contains_key(&name) => {
                    sessions.add(name, Role::Client, &[], NOW);
                }
                1 => {
                    sessions.remove(name);
                    began.retain(|_, its| *its != name);
                }
                2 => sessions.begin_with(name),
                5 => sessions.set_destinations(name, &nets(&[(24, true)])),
                6 if sessions.all.get(&name).is_some_and(|one| one.lanes.is_empty()) => {
                    connect(&mut sessions, name);
                }
                3 => match tcp(&mut sessions, port, SYN) {
                    Some(its) => drop(began.insert(port, its)),
                    None => prop_assert!(sessions.all.is_empty()),
                },
                _ => {
                    let went = tcp(&mut sessions, port, ACK);
                    prop_assert_eq!(went.is_none(), sessions.all.is_empty());
                    if let Some(its) = began.get(&port) {
                        prop_assert_eq!(went, Some(*its));
                    }
                }
            }
        }
    }
}
