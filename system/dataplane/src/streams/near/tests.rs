//! Tests of connections with packets as a TUN device delivers them.

use super::*;
use hawser_wire::inner::tcp_flag;
use hawser_wire::stream::StreamId;

const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
const LISTENER: u16 = 4_000;

fn name(number: u32) -> StreamName {
    (SessionId(1), StreamId::new(number).expect("a legal number"))
}

/// A packet after its virtio header, with a partial checksum.
fn packet(from: &str, to: &str, flags: u8) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) =
        (from.parse().expect("an address"), to.parse().expect("an address"));
    let mut packet = vec![0; VIRTIO_LEN + 40];
    packet[0] = 1;
    let ip = &mut packet[VIRTIO_LEN..];
    ip[0] = 0x45;
    ip[3] = 40;
    ip[9] = protocol::TCP;
    for (at, end) in [(12, from), (16, to)] {
        let IpAddr::V4(address) = end.ip() else {
            panic!("IPv4")
        };
        ip[at..at + 4].copy_from_slice(&address.octets());
    }
    ip[20..22].copy_from_slice(&from.port().to_be_bytes());
    ip[22..24].copy_from_slice(&to.port().to_be_bytes());
    (ip[32], ip[33]) = (5 << 4, flags);
    packet
}

fn ends(packet: &[u8]) -> (String, String) {
    let key = inner::parse(&packet[VIRTIO_LEN..]).expect("a packet").key;
    (
        SocketAddr::new(key.source, key.source_port).to_string(),
        SocketAddr::new(key.destination, key.destination_port).to_string(),
    )
}

const PROGRAM: &str = "100.96.0.2:40000";
const SERVER: &str = "203.0.113.2:443";

fn asked() -> (Near, Vec<u8>) {
    let mut near = Near::new(LISTENER, BEGIN);
    let mut syn = packet(PROGRAM, SERVER, tcp_flag::SYN);
    let Found::Asks(key, _) = near.handle_packet(&mut syn, BEGIN) else {
        panic!("a plain request");
    };
    assert!(near.hold(key, name(0), &syn, BEGIN));
    (near, syn)
}

#[test]
fn a_connection_is_answered_in_the_name_of_its_destination() {
    let (mut near, mut syn) = asked();
    assert_eq!(near.handle_packet(&mut syn, BEGIN), Found::Dropped, "it is held");
    let Answered::Back(given) = near.handle_answer(name(0), Outcome::Connected, BEGIN) else {
        panic!("the kernel is to answer");
    };
    let (alias, listener) = ends(&given);
    assert_eq!(listener, format!("100.96.0.2:{LISTENER}"));
    let from: SocketAddr = alias.parse().expect("an address");
    let mut answer = packet(&listener, &alias, tcp_flag::SYN | tcp_flag::ACK);
    assert_eq!(near.handle_packet(&mut answer, BEGIN), Found::Back);
    assert_eq!(ends(&answer), (SERVER.to_owned(), PROGRAM.to_owned()));
    let mut data = packet(PROGRAM, SERVER, tcp_flag::ACK);
    assert_eq!(near.handle_packet(&mut data, BEGIN), Found::Back);
    assert_eq!(ends(&data), (alias, listener));
    assert_eq!(near.handle_accepted(from), Some(name(0)));
    assert_eq!(near.handle_accepted(from), None, "once");
}

#[test]
fn a_refused_request_is_refused_here_or_left_to_packets() {
    for (outcome, is_packet) in [(Outcome::Forbidden, true), (Outcome::Exhausted, true)] {
        let (mut near, syn) = asked();
        let answered = near.handle_answer(name(0), outcome, BEGIN);
        assert_eq!(answered == Answered::Packet(syn), is_packet);
    }
    let (mut near, mut syn) = asked();
    near.handle_answer(name(0), Outcome::Forbidden, BEGIN);
    assert!(
        matches!(near.handle_packet(&mut syn, BEGIN), Found::Packet(Some(_))),
        "and so does the next"
    );
    let later = BEGIN + REFUSED;
    assert!(matches!(near.handle_packet(&mut syn, later), Found::Asks(..)));
    let (mut near, _) = asked();
    let Answered::Back(reset) = near.handle_answer(name(0), Outcome::Refused, BEGIN) else {
        panic!("a reset");
    };
    assert_eq!(ends(&reset), (SERVER.to_owned(), PROGRAM.to_owned()));
    assert_eq!(near.len(), 0);
    let (mut near, _) = asked();
    assert_eq!(
        near.handle_answer(name(0), Outcome::TimedOut, BEGIN),
        Answered::Nothing
    );
}

#[test]
fn strangers_reach_neither_the_listener_nor_a_program() {
    let (mut near, _) = asked();
    let mut foreign = packet("100.96.0.2:4000", "192.0.0.8:9", tcp_flag::ACK);
    assert_eq!(
        near.handle_packet(&mut foreign, BEGIN),
        Found::Dropped,
        "no such alias port"
    );
    let from: SocketAddr = "192.0.0.8:1024".parse().expect("an address");
    assert_eq!(near.handle_accepted(from), None, "not answered yet");
    near.handle_answer(name(0), Outcome::Connected, BEGIN);
    let other: SocketAddr = "203.0.113.9:1024".parse().expect("an address");
    assert_eq!(near.handle_accepted(other), None);
    assert!(is_forged(
        &packet("192.0.0.8:1024", "100.96.0.2:4000", 0)[VIRTIO_LEN..]
    ));
    assert!(!is_forged(&packet(SERVER, PROGRAM, 0)[VIRTIO_LEN..]));
}

#[test]
fn a_firewall_before_the_listener_leaves_connections_whole() {
    let (mut near, mut syn) = asked();
    near.handle_answer(name(0), Outcome::Connected, BEGIN);
    let later = BEGIN + Duration::from_secs(1);
    assert!(matches!(
        near.handle_packet(&mut syn, later),
        Found::Packet(Some(_))
    ));
    assert_eq!(near.sweep(later), [name(0)], "the hub's connection is given up");
    assert!(matches!(
        near.handle_packet(&mut syn, later + BLOCKED),
        Found::Asks(..)
    ));
}

#[test]
fn connections_that_are_over_are_forgotten_once_they_are_idle() {
    let (mut near, mut syn) = asked();
    near.handle_answer(name(0), Outcome::Connected, BEGIN);
    near.handle_closed(name(0));
    let mut last = packet(PROGRAM, SERVER, tcp_flag::ACK);
    assert_eq!(
        near.handle_packet(&mut last, BEGIN),
        Found::Back,
        "the last acknowledgement"
    );
    assert!(
        matches!(near.handle_packet(&mut syn, BEGIN), Found::Asks(..)),
        "the same port again"
    );
    let (mut near, _) = asked();
    near.handle_answer(name(0), Outcome::Connected, BEGIN);
    assert_eq!(
        near.sweep(BEGIN + CLOSING),
        [name(0)],
        "no program answered the kernel"
    );
    assert_eq!((near.len(), near.due()), (0, Instant::FAR_FUTURE));
    let (mut near, _) = asked();
    near.handle_session_closed(SessionId(1));
    assert_eq!(near.len(), 0);
}

/// Requests that the previous hub has not answered go to the next one; answered requests stay.
#[test]
fn what_another_session_has_not_answered_may_be_asked_again() {
    let (mut near, syn) = asked();
    assert!(near.take_asking_elsewhere(SessionId(1)).is_empty());
    assert_eq!(near.take_asking_elsewhere(SessionId(2)), [(name(0), syn.clone())]);
    assert_eq!(near.len(), 0);
    let mut again = syn;
    assert!(matches!(near.handle_packet(&mut again, BEGIN), Found::Asks(..)));
    let (mut near, _) = asked();
    near.handle_answer(name(0), Outcome::Connected, BEGIN);
    assert!(near.take_asking_elsewhere(SessionId(2)).is_empty());
    assert_eq!(near.len(), 1);
}
