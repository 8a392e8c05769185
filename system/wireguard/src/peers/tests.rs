//! Tests a hub's peers with the library's own state machine as the client, without sockets.

use std::net::Ipv4Addr;

use super::*;

const HUB: [u8; 4] = [100, 96, 0, 1];
const PHONE: [u8; 4] = [100, 96, 0, 7];
const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

/// A client and its address.
struct Phone {
    tunn: Tunn,
    key: WireGuardKey,
    at: Endpoint,
}

fn endpoint(port: u16) -> Endpoint {
    Endpoint {
        remote: SocketAddr::from(([192, 0, 2, 7], port)),
        local: None,
    }
}

/// Returns a UDP packet with arbitrary ports.
fn packet(from: [u8; 4], to: [u8; 4], payload: usize) -> Vec<u8> {
    let len = (20 + payload) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet.extend(from);
    packet.extend(to);
    packet.resize(usize::from(len), 0x5a);
    packet
}

fn config(key: WireGuardKey, inner: [u8; 4]) -> PeerConfig {
    PeerConfig {
        name: "phone".to_owned(),
        key,
        inner: vec![Ipv4Addr::from(inner).into()],
        limit: None,
    }
}

impl Phone {
    fn new(hub: &PrivateKey) -> Self {
        let key = PrivateKey::generate();
        let theirs = PublicKey::from(&hub.0);
        Self {
            key: key.public(),
            tunn: Tunn::new(key.0, theirs, None, None, 1, None),
            at: endpoint(1),
        }
    }

    /// Returns the datagram of a packet, or the initiation for which the packet waits.
    fn send(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut room = [0; SCRATCH];
        let TunnResult::WriteToNetwork(bytes) = self.tunn.encapsulate(packet, &mut room) else {
            panic!("nothing to send");
        };
        bytes.to_vec()
    }

    /// Processes a datagram. Returns the answers, and the packet.
    fn take(&mut self, datagram: &[u8]) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
        let (mut answers, mut input) = (Vec::new(), datagram);
        loop {
            let mut room = [0; SCRATCH];
            match self.tunn.decapsulate(None, input, &mut room) {
                TunnResult::WriteToNetwork(bytes) => answers.push(bytes.to_vec()),
                TunnResult::WriteToTunnelV4(packet, _) => return (answers, Some(packet.to_vec())),
                TunnResult::Done => return (answers, None),
                other @ (TunnResult::Err(_) | TunnResult::WriteToTunnelV6(..)) => panic!("{other:?}"),
            }
            input = &[];
        }
    }
}

/// A hub with one phone that has a session.
fn connected() -> (Peers, Phone) {
    let key = PrivateKey::generate();
    let (mut peers, mut phone) = (Peers::new(key.clone()), Phone::new(&key));
    peers.set(vec![config(phone.key, PHONE)]);
    let initiation = phone.send(&packet(PHONE, HUB, 9));
    let received = exchange(&mut peers, &mut phone, &initiation);
    assert_eq!(received, [packet(PHONE, HUB, 9)], "what waited for the handshake");
    (peers, phone)
}

/// Passes datagrams until neither side has one. Returns the packets that reach the hub.
fn exchange(peers: &mut Peers, phone: &mut Phone, first: &[u8]) -> Vec<Vec<u8>> {
    let (mut packets, mut waiting) = (Vec::new(), VecDeque::from([first.to_vec()]));
    while let Some(datagram) = waiting.pop_front() {
        packets.extend(take(peers, phone.at, &datagram).expect("accepted"));
        while let Some(transmit) = peers.poll_transmit() {
            assert_eq!(transmit.to, phone.at);
            waiting.extend(phone.take(&transmit.bytes).0);
        }
    }
    packets
}

fn take(peers: &mut Peers, from: Endpoint, datagram: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
    let mut room = [0; SCRATCH];
    let received = peers.handle_datagram(from, datagram, &mut room)?;
    Ok(received.map(|received| room[..received.len].to_vec()))
}

#[test]
fn packets_pass_in_both_directions_after_a_handshake() {
    let (mut peers, mut phone) = connected();
    let id = peers.peer_of(Ipv4Addr::from(PHONE).into()).expect("known");
    assert_eq!(peers.session(id), Some(phone.at));
    let answer = packet(HUB, PHONE, 1380);
    let mut room = vec![0; answer.len() + OVERHEAD];
    assert!(peers.seal(id, &answer, &mut room));
    assert_eq!(phone.take(&room).1, Some(answer));
    peers.handle_timeout(NOW);
    let status = peers.status(NOW);
    assert!(status[0].is_connected && status[0].handshake_age.is_some());
    assert_eq!(status[0].endpoint, Some(phone.at.remote));
    assert!(status[0].received_bytes > 0 && status[0].sent_bytes >= 1400 + OVERHEAD as u64);
}

#[test]
fn a_stranger_gets_no_answer() {
    let key = PrivateKey::generate();
    let (mut peers, mut stranger) = (Peers::new(key.clone()), Phone::new(&key));
    let initiation = stranger.send(&packet(PHONE, HUB, 9));
    let taken = take(&mut peers, stranger.at, &initiation);
    assert_eq!(taken, Err(Refusal::UnknownPeer));
    for malformed in [&[][..], &[1], &[0; 148], &[4, 0, 0, 0, 9], &[7; 2000]] {
        assert_eq!(take(&mut peers, stranger.at, malformed), Err(Refusal::Malformed));
    }
    let mut forged = initiation;
    forged[20] ^= 1;
    assert_eq!(take(&mut peers, stranger.at, &forged), Err(Refusal::Forged));
    assert_eq!(peers.poll_transmit(), None);
}

#[test]
fn changed_and_cut_datagrams_are_refused_at_every_byte() {
    let (mut peers, mut phone) = connected();
    let data = phone.send(&packet(PHONE, HUB, 9));
    let mut room = [0; SCRATCH];
    let TunnResult::WriteToNetwork(initiation) = phone.tunn.format_handshake_initiation(&mut room, true)
    else {
        panic!("no initiation");
    };
    // The last 16 bytes of an initiation are a proof of the address, which is not required here.
    for (datagram, checked) in [(&*data, data.len()), (&*initiation, initiation.len() - 16)] {
        for at in 0..datagram.len() {
            assert!(
                take(&mut peers, phone.at, &datagram[..at]).is_err(),
                "cut at {at}"
            );
        }
        for at in 0..checked {
            let mut changed = datagram.to_vec();
            changed[at] ^= 0x10;
            assert!(take(&mut peers, phone.at, &changed).is_err(), "changed at {at}");
        }
    }
    assert_eq!(peers.poll_transmit(), None);
    assert_eq!(take(&mut peers, phone.at, &data), Ok(Some(packet(PHONE, HUB, 9))));
}

#[test]
fn only_the_inner_address_of_a_peer_is_a_source() {
    let (mut peers, mut phone) = connected();
    let spoofed = phone.send(&packet([100, 96, 0, 8], HUB, 9));
    assert_eq!(take(&mut peers, phone.at, &spoofed), Err(Refusal::Spoofed));
    let own = phone.send(&packet(PHONE, HUB, 9));
    assert_eq!(take(&mut peers, phone.at, &own), Ok(Some(packet(PHONE, HUB, 9))));
    assert_eq!(take(&mut peers, phone.at, &own), Err(Refusal::Replayed));
    let mut forged = phone.send(&packet(PHONE, HUB, 9));
    *forged.last_mut().expect("a tag") ^= 1;
    assert_eq!(take(&mut peers, phone.at, &forged), Err(Refusal::Forged));
    // A packet number at the end of the range.
    let mut last = phone.send(&packet(PHONE, HUB, 9));
    last[8..16].fill(0xff);
    assert_eq!(take(&mut peers, phone.at, &last), Err(Refusal::Forged));
}

#[test]
fn an_authentic_packet_moves_the_endpoint_and_an_initiation_does_not() {
    let (mut peers, mut phone) = connected();
    let id = peers.peer_of(Ipv4Addr::from(PHONE).into()).expect("known");
    let mut forged = phone.send(&packet(PHONE, HUB, 9));
    *forged.last_mut().expect("a tag") ^= 1;
    let _ = take(&mut peers, endpoint(2), &forged);
    assert_eq!(peers.session(id), Some(endpoint(1)));
    let authentic = phone.send(&packet(PHONE, HUB, 9));
    let _ = take(&mut peers, endpoint(2), &authentic);
    assert_eq!(peers.session(id), Some(endpoint(2)));
    let mut room = [0; SCRATCH];
    let TunnResult::WriteToNetwork(initiation) = phone.tunn.format_handshake_initiation(&mut room, true)
    else {
        panic!("no initiation");
    };
    assert_eq!(take(&mut peers, endpoint(3), initiation), Ok(None));
    assert_eq!(peers.session(id), Some(endpoint(2)));
    assert_eq!(peers.poll_transmit().expect("a response").to, endpoint(3));
}

#[test]
fn a_revoked_peer_has_no_session_and_gets_none() {
    let (mut peers, mut phone) = connected();
    let id = peers.peer_of(Ipv4Addr::from(PHONE).into()).expect("known");
    // Another limit does not change the session.
    let limited = PeerConfig {
        limit: Some(Rate::from_mbps(1)),
        ..config(phone.key, PHONE)
    };
    peers.set(vec![limited]);
    assert!(peers.session(id).is_some());
    let late = phone.send(&packet(PHONE, HUB, 9));
    peers.set(vec![config(PrivateKey::generate().public(), [100, 96, 0, 9])]);
    assert_eq!(peers.peer_of(Ipv4Addr::from(PHONE).into()), None);
    assert_eq!(take(&mut peers, phone.at, &late), Err(Refusal::UnknownPeer));
    assert!(!peers.seal(id, &packet(HUB, PHONE, 9), &mut [0; 29 + OVERHEAD]));
    let mut room = [0; SCRATCH];
    let TunnResult::WriteToNetwork(initiation) = phone.tunn.format_handshake_initiation(&mut room, true)
    else {
        panic!("no initiation");
    };
    assert_eq!(take(&mut peers, phone.at, initiation), Err(Refusal::UnknownPeer));
}

#[test]
fn a_flood_of_handshakes_is_answered_with_cookies() {
    let key = PrivateKey::generate();
    let (mut peers, mut phone) = (Peers::new(key.clone()), Phone::new(&key));
    peers.set(vec![config(phone.key, PHONE)]);
    let initiation = phone.send(&packet(PHONE, HUB, 9));
    let mut cookies = 0;
    for _ in 0..2 * HANDSHAKES_PER_SECOND {
        let _ = take(&mut peers, phone.at, &initiation);
        let answers = std::iter::from_fn(|| peers.poll_transmit());
        // A cookie reply has type 3 (section 5.4.7).
        cookies += answers.filter(|transmit| transmit.bytes[0] == 3).count() as u64;
    }
    assert_eq!(cookies, HANDSHAKES_PER_SECOND);
}

#[test]
fn the_next_process_greets_a_client_that_does_not_know_of_it() {
    let key = PrivateKey::generate();
    let mut phone = Phone::new(&key);
    for _ in 0..2 {
        let mut peers = Peers::new(key.clone());
        peers.set(vec![config(phone.key, PHONE)]);
        let id = peers.peer_of(Ipv4Addr::from(PHONE).into()).expect("known");
        let waiting = packet(HUB, PHONE, 9);
        assert!(!peers.handle_waiting(id, &waiting), "its endpoint is unknown");
        peers.resume([(phone.key, phone.at.remote)]);
        assert!(peers.handle_waiting(id, &waiting));
        let greeting = peers.poll_transmit().expect("an initiation");
        let (answers, _) = phone.take(&greeting.bytes);
        for answer in answers {
            assert_eq!(take(&mut peers, phone.at, &answer), Ok(None));
        }
        assert!(peers.session(id).is_some());
        let mut packets = Vec::new();
        while let Some(transmit) = peers.poll_transmit() {
            packets.extend(phone.take(&transmit.bytes).1);
        }
        assert_eq!(packets, [waiting]);
    }
}
