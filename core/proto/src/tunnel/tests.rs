//! Keys and relays of both halves, and a tunnel of two ends without a network between them.

use hawser_units::{Duration, Instant, Net, PathId, Rate};
use hawser_wire::data::{FRAMING, INNER_LEN, Inner, OUTER_LEN, Outer, TAG_LEN};
use hawser_wire::inner::{Ecn, fill_ipv4_checksum, protocol};
use hawser_wire::offload::Offload;

use super::keys::{MAX_FORGERIES, REKEY_AFTER, ReceivingKeys, Rekey, SMALL_PACKET, SendingKeys};
use super::*;
use crate::egress::Egress;
use crate::flow::Run;
use crate::path::{Config, State};

const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
const PATH: PathId = PathId(3);
const OVERHEAD: u16 = 28 + FRAMING as u16;

fn epochs(keys: &ReceivingKeys<()>) -> Vec<u8> {
    keys.all.iter().map(|key| key.epoch).collect()
}

#[test]
fn an_old_key_goes_after_a_minute_without_any_traffic() {
    let mut keys = ReceivingKeys::new();
    keys.install(0, (), BEGIN);
    assert_eq!(keys.due(), Some(Instant::FAR_FUTURE), "the only key stays");
    let rekeyed = BEGIN + Duration::from_secs(3_600);
    keys.install(1, (), rekeyed);
    assert_eq!(keys.due(), Some(rekeyed + OLD_KEY), "there is a timer for it");
    assert!(keys.of(0, rekeyed + OLD_KEY - Duration::from_nanos(1)).is_some());
    assert!(keys.of(0, rekeyed + OLD_KEY).is_none());
    keys.forget(rekeyed + OLD_KEY);
    assert_eq!(epochs(&keys), [1]);
}

#[test]
fn more_keys_in_a_minute_leave_no_more_than_three() {
    let mut keys = ReceivingKeys::new();
    for epoch in 0..=255 {
        keys.install(epoch, (), BEGIN);
        assert!(keys.all.len() <= 3);
    }
    keys.install(0, (), BEGIN);
    assert_eq!(epochs(&keys), [254, 255, 0]);
}

#[test]
fn a_new_key_is_asked_for_once_by_what_it_protected_on_all_paths() {
    let mut rekey = Rekey::default();
    assert!(!rekey.is_due(REKEY_AFTER - 1, 1500));
    assert!(rekey.is_due(1, 1400), "whatever the path");
    assert!(!rekey.is_due(1, 1500), "once");
    let mut rekey = Rekey::default();
    assert!(!rekey.is_due(REKEY_AFTER / 32 - 1, SMALL_PACKET + 1));
    assert!(rekey.is_due(1, 9000));
}

#[test]
fn a_key_under_which_too_much_was_forged_opens_no_more() {
    let mut keys = ReceivingKeys::new();
    keys.install(0, (), BEGIN);
    keys.of(0, BEGIN).expect("valid").forgeries = MAX_FORGERIES - 1;
    keys.of(0, BEGIN).expect("one more").forgeries += 1;
    assert!(keys.of(0, BEGIN).is_none());
    keys.install(1, (), BEGIN);
    assert!(keys.of(1, BEGIN).is_some());
}

#[test]
fn a_hub_uses_a_key_once_the_client_has_whatever_it_hears_of_first() {
    let current = |keys: &SendingKeys<()>| keys.current.as_ref().map(|(epoch, ())| *epoch);
    let first = || {
        let mut keys = SendingKeys::new();
        keys.install(Role::Hub, 0, ());
        assert_eq!(current(&keys), Some(0), "the first one at once");
        keys.confirm(0);
        keys
    };
    let mut keys = first();
    keys.install(Role::Hub, 1, ());
    assert_eq!(current(&keys), Some(0));
    keys.confirm(1);
    assert_eq!(current(&keys), Some(1));
    // The order was slower than the client's first packet.
    let mut keys = first();
    keys.confirm(1);
    keys.install(Role::Hub, 1, ());
    assert_eq!(current(&keys), Some(1));
    // A client is the first to use it.
    let mut keys = first();
    keys.install(Role::Client, 1, ());
    assert_eq!(current(&keys), Some(1));
}

/// A key that changes each byte, and knows its own datagrams by the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mask(u8);

impl Mask {
    fn tag(self, path: PathId, number: u64) -> [u8; TAG_LEN] {
        let mut tag = [self.0; TAG_LEN];
        tag[..8].copy_from_slice(&number.to_be_bytes());
        tag[8..10].copy_from_slice(&path.0.to_be_bytes());
        tag
    }
}

impl Seal for Mask {
    fn seal(&self, path: PathId, number: u64, datagram: &mut [u8]) {
        let (body, tag) = datagram[OUTER_LEN..]
            .split_last_chunk_mut::<TAG_LEN>()
            .expect("a tag");
        body.iter_mut().for_each(|byte| *byte ^= self.0);
        *tag = self.tag(path, number);
    }
}

impl Open for Mask {
    fn open<'a>(&self, path: PathId, number: u64, datagram: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let (body, tag) = datagram[OUTER_LEN..].split_last_chunk_mut::<TAG_LEN>()?;
        body.iter_mut().for_each(|byte| *byte ^= self.0);
        (*tag == self.tag(path, number)).then_some(body)
    }
}

/// An address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct From(u8);

impl Source for From {
    fn overhead(&self) -> u16 {
        OVERHEAD
    }
}

/// The buffers of a sending half, by number: each may be given back once.
#[derive(Default)]
struct Lent(Vec<Option<Vec<u8>>>);

impl Buffers<usize> for Lent {
    fn packet(&mut self, run: &Run<usize>) -> &[u8] {
        self.0[run.buffer].as_deref().expect("filled while it is sent")
    }

    fn release(&mut self, buffer: usize) {
        assert!(self.0[buffer].take().is_some(), "given back twice");
    }
}

/// The packets of a receiving half, by number.
#[derive(Default)]
struct Filed(Vec<Vec<u8>>);

impl Items<usize> for Filed {
    fn body(&self, item: &usize) -> &[u8] {
        &self.0[*item]
    }

    fn store(&mut self, packet: &[u8], _: &Inner) -> Option<usize> {
        self.0.push(packet.to_vec());
        Some(self.0.len() - 1)
    }

    fn join(&mut self, packet: &[u8], inner: &Inner, _: &usize) -> Option<usize> {
        self.store(packet, inner)
    }

    fn free(&mut self, _: usize) {}
}

/// One end, whose datagrams are real bytes.
struct End {
    tunnel: Tunnel<usize, usize, Mask, From>,
    lent: Lent,
    filed: Filed,
    headers: Vec<Inner>,
}

impl End {
    fn new(role: Role, addresses: Option<Vec<std::net::IpAddr>>, handoff: Handoff) -> Self {
        let sending = Sending::with(role, Egress::new(1, BEGIN));
        let receiving = Receiving::new(role, addresses, handoff.intervals);
        let mut tunnel = Tunnel::with(sending, receiving, handoff);
        let config = Config {
            id: PATH,
            probing: role.probing(),
            cap: None,
            mtu: 1500,
            overhead: OVERHEAD,
        };
        tunnel.open_path(config, role == Role::Client, BEGIN);
        tunnel.install(0, (Mask(0x11), Mask(0x11)), BEGIN);
        Self {
            tunnel,
            lent: Lent::default(),
            filed: Filed::default(),
            headers: Vec::new(),
        }
    }

    /// Offers one large packet that is cut into segments of `segment` bytes.
    fn offer(&mut self, packet: &[u8], segment: u16, now: Instant) {
        let mut packet = packet.to_vec();
        let offload = Offload {
            checksum_partial: true,
            segment,
        };
        self.tunnel
            .handle_inner(&mut packet, offload, self.lent.0.len(), now)
            .expect("it fits");
        self.lent.0.push(Some(packet));
    }

    /// Everything that leaves now.
    fn send(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        self.tunnel.end_batch(now);
        self.tunnel.handle_timeout(now);
        while let Some(burst) = self.tunnel.poll_burst(now, &mut self.lent) {
            let packet = burst
                .run()
                .map_or(&[][..], |run| self.lent.0[run.buffer].as_deref().expect("filled"));
            for datagram in burst.datagrams() {
                let mut bytes = vec![0; datagram.udp_len()];
                let key = burst.key().expect("a key");
                datagram.seal(burst.path(), 7, key, packet, &mut bytes);
                datagrams.push(bytes);
            }
        }
        datagrams
    }

    fn receive(&mut self, mut datagram: Vec<u8>, from: From, now: Instant) -> Result<Taken, Refusal> {
        let outer = Outer::parse(&datagram).ok_or(Refusal::Malformed)?;
        assert_eq!(outer.index, 7);
        let opened = self
            .tunnel
            .receiving_mut()
            .open(PATH, outer, &mut datagram, now)?;
        let end = datagram.len() - TAG_LEN;
        self.filed.0.push(datagram[OUTER_LEN + INNER_LEN..end].to_vec());
        self.headers.resize(self.filed.0.len(), opened.inner);
        let arrival = Arrival {
            path: PATH,
            opened,
            udp_len: datagram.len(),
            source: from,
            ecn: Ecn::NotEct,
            item: self.filed.0.len() - 1,
        };
        Ok(self.tunnel.handle_datagram(arrival, now, &mut self.filed))
    }

    /// The packets that are delivered, whole.
    fn delivered(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Some(item) = self.tunnel.poll_inner() {
            let body = &self.filed.0[item];
            // Rebuilt and unbundled packets are complete.
            let whole = Inner::plain(hawser_wire::data::Kind::Packet);
            let inner = self.headers.get(item).copied().unwrap_or(whole);
            packets.push(match self.tunnel.restore(&inner, body) {
                Restored::Whole => body.clone(),
                Restored::Rebuilt(headers) => [headers.bytes(), &body[1..]].concat(),
                Restored::Lost => panic!("its context came before"),
            });
        }
        packets
    }
}

fn packet(kind: u8, len: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..len).map(|at| at as u8).collect();
    packet[..28].fill(0);
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[9] = kind;
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[20..24].copy_from_slice(&[1, 2, 3, 4]);
    if kind == protocol::TCP {
        packet[28..40].fill(0);
        packet[32] = 5 << 4;
    }
    packet
}

/// A client and a hub that have heard each other.
fn pair(handoff: Handoff) -> (End, End, Instant) {
    let mut client = End::new(Role::Client, None, handoff);
    let mut hub = End::new(Role::Hub, Some(vec![[10, 0, 0, 1].into()]), handoff);
    let mut now = BEGIN;
    for _ in 0..20 {
        for datagram in client.send(now) {
            hub.receive(datagram, From(1), now).expect("sound");
        }
        now += handoff.delay;
        for datagram in hub.send(now) {
            client.receive(datagram, From(9), now).expect("sound");
        }
        now += Duration::from_millis(10);
    }
    for end in [&client, &hub] {
        let states: Vec<_> = end.tunnel.sending().paths().map(|path| path.state()).collect();
        assert_eq!(states, [State::Active]);
    }
    (client, hub, now)
}

#[test]
fn what_goes_in_at_one_end_comes_out_at_the_other() {
    let (mut client, mut hub, now) = pair(Handoff::NONE);
    let large = packet(protocol::TCP, 40 + 3 * 1_000);
    let single = packet(protocol::UDP, 500);
    client.offer(&large, 1_000, now);
    client.offer(&single, 0, now);
    for datagram in client.send(now) {
        hub.receive(datagram, From(1), now).expect("sound");
    }
    hub.tunnel.end_batch(now);
    let delivered = hub.delivered();
    let payload: Vec<u8> = delivered
        .iter()
        .filter(|packet| packet[9] == protocol::TCP)
        .flat_map(|packet| packet[40..].to_vec())
        .collect();
    let udp: Vec<_> = delivered
        .iter()
        .filter(|packet| packet[9] == protocol::UDP)
        .collect();
    assert_eq!(udp.len(), 1);
    assert_eq!(udp[0][28..], single[28..]);
    assert_eq!(delivered.len(), 4);
    assert!(payload == large[40..], "all three segments, in order");
    // Buffers kept for retransmission are returned at the end of the session, each once.
    for buffer in client.tunnel.close(now) {
        client.lent.release(buffer);
    }
    assert!(client.lent.0.iter().all(Option::is_none));
}

/// A small UDP packet whose checksums and lengths are right, from an address.
fn small(last: u8, number: u8) -> Vec<u8> {
    let mut packet = packet(protocol::UDP, 68);
    packet[15] = last;
    packet[5] = number;
    packet[24..26].copy_from_slice(&48_u16.to_be_bytes());
    packet[67] = number;
    fill_ipv4_checksum(&mut packet, 20);
    packet
}

#[test]
fn packets_of_a_bundle_come_out_whole_and_only_from_the_peers_addresses() {
    let (mut client, mut hub, now) = pair(Handoff::NONE);
    let egress = client.tunnel.sending_mut().egress_mut();
    egress.set_slow_links(Rate::from_bps(28_000), now);
    for (last, expected) in [(1, 3), (7, 0)] {
        let packets: Vec<_> = (0..3).map(|number| small(last, number)).collect();
        for packet in &packets {
            client.offer(packet, 0, now);
        }
        let later = now + Duration::from_millis(400);
        let datagrams = client.send(later);
        let sizes: Vec<_> = datagrams.iter().map(Vec::len).collect();
        assert!(sizes.contains(&(FRAMING + 69 + 2 * 45)), "{sizes:?}");
        let mut spoofed = 0;
        for datagram in datagrams {
            spoofed += hub.receive(datagram, From(1), later).expect("sound").spoofed;
        }
        hub.tunnel.end_batch(later);
        let delivered = hub.delivered();
        assert!(delivered == packets[..expected], "{delivered:?}");
        assert_eq!(spoofed, 3 - expected as u64);
    }
    for buffer in client.tunnel.close(now) {
        client.lent.release(buffer);
    }
}

#[test]
fn what_is_not_the_peers_is_refused_with_its_reason() {
    let (mut client, mut hub, now) = pair(Handoff::NONE);
    client.offer(&packet(protocol::UDP, 200), 0, now);
    let datagram = client.send(now).pop().expect("a packet");
    let mut forged = datagram.clone();
    *forged.last_mut().expect("a tag") ^= 1;
    assert_eq!(hub.receive(forged, From(1), now), Err(Refusal::Forged));
    let mut other_epoch = datagram.clone();
    let outer = Outer::parse(&datagram).expect("its header");
    Outer { epoch: 1, ..outer }.emit(other_epoch.first_chunk_mut().expect("its header"));
    assert_eq!(hub.receive(other_epoch, From(1), now), Err(Refusal::NoKey));
    assert!(hub.receive(datagram.clone(), From(1), now).is_ok());
    assert_eq!(hub.receive(datagram, From(1), now), Err(Refusal::Replayed));
    let mut spoofed = packet(protocol::UDP, 200);
    spoofed[15] = 7;
    client.offer(&spoofed, 0, now);
    let datagram = client.send(now).pop().expect("a packet");
    assert_eq!(hub.receive(datagram, From(1), now), Err(Refusal::Spoofed));
    let subnet = |last| Net::new([10, 0, 0, last], 32);
    hub.tunnel.set_subnets(vec![subnet(8), subnet(7)]);
    client.offer(&spoofed, 0, now);
    let datagram = client.send(now).pop().expect("a packet");
    assert!(
        hub.receive(datagram, From(1), now).is_ok(),
        "of a subnet of the client"
    );
    hub.tunnel.set_subnets(vec![subnet(8)]);
    client.offer(&spoofed, 0, now);
    let datagram = client.send(now).pop().expect("a packet");
    assert_eq!(hub.receive(datagram, From(1), now), Err(Refusal::Spoofed));
}

/// When a hub answers a packet, from its arrival on.
fn answers_after(handoff: Handoff) -> Duration {
    let (mut client, mut hub, mut now) = pair(handoff);
    // Send the remaining packets of the opening first.
    for _ in 0..200 {
        now += Duration::from_millis(1);
        hub.send(now);
    }
    client.offer(&packet(protocol::UDP, 200), 0, now);
    for datagram in client.send(now) {
        hub.receive(datagram, From(1), now).expect("sound");
    }
    let mut at = now;
    while hub.send(at).is_empty() {
        let due = hub.tunnel.poll_timeout(at);
        assert!(
            due > at && due < now + Duration::from_secs(1),
            "it neither spins nor sleeps"
        );
        at = due;
    }
    at.since(now)
}

#[test]
fn relays_take_as_long_as_the_hand_off() {
    let delay = Duration::from_micros(80);
    let delayed = Handoff {
        delay,
        ..Handoff::NONE
    };
    assert_eq!(answers_after(delayed), answers_after(Handoff::NONE) + delay);
}

#[test]
fn an_address_is_told_until_it_is_taken_and_no_more_often_than_its_interval() {
    let (mut client, _, mut now) = pair(Handoff::NONE);
    let mut receiving = Receiving::new(Role::Hub, None, RelayIntervals::THREADS);
    receiving.open_path(PATH, now);
    receiving.install(0, Mask(0x11), now);
    let mut filed = Filed::default();
    let (mut told, mut out) = (Vec::new(), Vec::new());
    // The client changes between two addresses with each packet, for a second.
    for step in 0..100_u8 {
        client.offer(&packet(protocol::UDP, 100), 0, now);
        for mut datagram in client.send(now) {
            let outer = Outer::parse(&datagram).expect("its header");
            let opened = receiving.open(PATH, outer, &mut datagram, now).expect("sound");
            filed.0.push(datagram);
            let arrival = Arrival {
                path: PATH,
                opened,
                udp_len: 100,
                source: From(step % 2),
                ecn: Ecn::NotEct,
                item: filed.0.len() - 1,
            };
            receiving.handle_packet(arrival, now, &mut filed, &mut out);
        }
        // The first ten offers are not taken.
        receiving.relay(now, |relay| {
            let is_taken = step >= 10;
            if let Relay::Moved { .. } = relay
                && is_taken
            {
                told.push(now);
            }
            is_taken
        });
        assert!(step > 10 || receiving.has_untold() == (step < 10), "step {step}");
        now += Duration::from_millis(10);
    }
    assert!((3..=10).contains(&told.len()), "{} times", told.len());
    let is_apart = |pair: &[Instant]| pair[1].since(pair[0]) >= RelayIntervals::THREADS.moved;
    assert!(told.windows(2).all(is_apart));
}
