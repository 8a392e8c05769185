//! Interactions of sessions, in virtual time: real queues and buffers, without a network.

use std::net::Ipv4Addr;

use hawser_proto::path::{Config, Probing};
use hawser_units::Duration;
use hawser_wire::data::{Feedback, Kind};

use super::*;

/// Sessions of a hub, each with an inner address by its number.
struct Hub {
    sessions: Sessions,
    now: Instant,
    /// Inner bytes sent by session.
    sent: BTreeMap<SessionId, u64>,
    /// Newest packet number and UDP payload bytes, by session.
    counters: BTreeMap<SessionId, (u64, u64)>,
    events: u64,
}

const PATH: PathId = PathId(0);

fn address(session: u64) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, (session >> 8) as u8, session as u8)
}

impl Hub {
    fn new(sessions: u64) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let mut hub = Self {
            sessions: Sessions::new(
                Format::Ip,
                7,
                [crate::sessions::CAPACITY; 2]
                    .map(crate::share::Share::whole)
                    .into(),
                now,
            ),
            now,
            sent: BTreeMap::new(),
            counters: BTreeMap::new(),
            events: 0,
        };
        for session in 1..=sessions {
            let inner = [IpAddr::V4(address(session))];
            hub.sessions.add(SessionId(session), Role::Hub, &inner, now);
        }
        hub
    }

    /// Connects a session's client: adds a path that has answered.
    fn connect(&mut self, session: u64) {
        let now = self.now;
        self.sessions.with(SessionId(session), |state| {
            let config = Config {
                id: PATH,
                probing: Probing::Eager,
                cap: None,
                mtu: 1500,
                overhead: 68,
            };
            state.tunnel.open_path(config, true, now);
            state.lanes.insert(PATH, Lane::new(None, None, 0, String::new()));
        });
        self.service(true);
    }

    /// Queues an IP packet of `len` bytes for a session.
    fn packet(&mut self, session: u64, port: u16, len: usize) -> Accepted {
        let packet = &mut self.sessions.reading()[..VIRTIO_LEN + len];
        packet.fill(0);
        let packet = &mut packet[VIRTIO_LEN..];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[9] = inner::protocol::UDP;
        packet[16..20].copy_from_slice(&address(session).octets());
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet[22..24].copy_from_slice(&9_u16.to_be_bytes());
        self.sessions.accept(VIRTIO_LEN + len, self.now)
    }

    /// Lets sessions send. If `answers` is set, sent packets are reported immediately and probes
    /// are answered.
    fn service(&mut self, answers: bool) {
        let now = self.now;
        let (mut replies, mut moved) = (Vec::new(), BTreeSet::new());
        let Self {
            sessions,
            sent,
            counters,
            events,
            ..
        } = self;
        sessions.service(
            || now,
            |name, _, burst, _| {
                let (packet_number, bytes) = counters.entry(name).or_default();
                for datagram in burst.datagrams() {
                    *packet_number = datagram.number;
                    *bytes += datagram.udp_len() as u64;
                    if datagram.segment().is_some() {
                        *sent.entry(name).or_default() += datagram.body_len() as u64;
                    }
                    if datagram.inner.kind == Kind::Probe {
                        let mut body = vec![0; datagram.body_len()];
                        datagram.write_body(&[], &mut body);
                        let token = body.first_chunk().expect("a token");
                        replies.push((name, u64::from_be_bytes(*token)));
                    }
                }
                moved.insert(name);
            },
            |_| *events += 1,
        );
        if !answers {
            return;
        }
        for (name, token) in replies {
            sessions.with(name, |session| {
                session.tunnel.egress_mut().handle_probe_reply(PATH, token, now)
            });
        }
        for name in moved {
            let (highest, bytes) = counters[&name];
            let report = Feedback {
                path: PATH,
                highest,
                packets: highest as u32,
                bytes,
                received_us: now.as_micros_wrapping(),
                ..Feedback::default()
            };
            sessions.with(name, |session| {
                session.tunnel.egress_mut().handle_feedback(PATH, &report, now)
            });
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.service(true);
    }

    fn of(&self, session: u64) -> &Session {
        &self.sessions.all[&SessionId(session)]
    }
}

/// Returns the bytes that eight clients receive in `seconds`, with 20 packets of 1,200 bytes per
/// second each, while `absent` sends packets to others every 100 ms.
fn eight_beside(hub: &mut Hub, seconds: u64, mut absent: impl FnMut(&mut Hub, u64)) -> u64 {
    for client in 1..=8 {
        hub.connect(client);
    }
    let before: u64 = hub.sent.values().sum();
    for step in 0..seconds * 10 {
        absent(hub, step);
        for client in 1..=8 {
            hub.packet(client, 1, 1_200);
            hub.packet(client, 2, 1_200);
        }
        hub.wait(Duration::from_millis(100));
    }
    hub.sent.values().sum::<u64>() - before
}

#[test]
fn absent_clients_take_nothing_from_the_others_for_an_hour() {
    let alone = eight_beside(&mut Hub::new(8), 10, |_, _| {}) * 360;
    let mut hub = Hub::new(20);
    let beside = eight_beside(&mut hub, 3_600, |hub, step| {
        // One client is sent 50 packets per second, eleven others a ping each.
        for _ in 0..5 {
            hub.packet(9, 5, 60);
        }
        if step % 10 == 0 {
            (10..=20).for_each(|session| {
                hub.packet(session, 7, 84);
            });
        }
    });
    assert!(
        beside as f64 >= 0.9 * alone as f64,
        "{beside} of {alone} bytes beside absent clients"
    );
    let held = hub.sessions.buffered_bytes();
    assert!(held < 1 << 20, "{held} bytes are held for absent clients");
    let waiting = 3_600 * 50 - hub.of(9).tunnel.egress().counters().expired;
    assert!(
        (490..=510).contains(&waiting),
        "{waiting} packets of 50 a second wait"
    );
}

#[test]
fn a_flood_to_an_absent_client_drops_its_own_oldest_packets() {
    let mut hub = Hub::new(9);
    let alone = eight_beside(&mut Hub::new(8), 5, |_, _| {});
    let beside = eight_beside(&mut hub, 5, |hub, step| {
        // The load is 100,000 packets per second of many flows.
        for n in 0..10_000 {
            hub.packet(9, ((step * 10_000 + n) % 4_000) as u16, 1_400);
        }
    });
    assert!(beside as f64 >= 0.9 * alone as f64, "{beside} of {alone}");
    let absent = hub.of(9);
    assert!(
        absent.held <= QUOTA && absent.held > QUOTA - 4_096,
        "{}",
        absent.held
    );
    assert!(absent.tunnel.egress().counters().shed > 100_000);
    let (oldest, _) = absent
        .tunnel
        .egress()
        .flows()
        .oldest()
        .expect("its queue is full");
    assert!(
        hub.now.since(oldest) < Duration::from_secs(1),
        "the newest are kept"
    );
}

#[test]
fn when_all_buffers_are_in_use_whoever_holds_most_makes_room() {
    let mut hub = Hub::new(4);
    // Three absent clients need more than the available buffers; the third has the fewest.
    for n in 0..40_000 {
        hub.packet(1, n % 200, 1_400);
        hub.packet(2, n % 200, 1_400);
        if n % 10 == 0 {
            hub.packet(3, n % 200, 1_400);
        }
        hub.now += Duration::from_micros(10);
    }
    let few = hub.of(3).held;
    assert_eq!(few, 4_000 * 2_048, "who holds little keeps it");
    assert!(hub.of(1).tunnel.egress().counters().shed > 0 && hub.of(2).tunnel.egress().counters().shed > 0);
    hub.connect(4);
    for _ in 0..1_000 {
        assert_eq!(hub.packet(4, 1, 1_200), Accepted::Queued);
        hub.wait(Duration::from_millis(1));
    }
    assert!(hub.sent[&SessionId(4)] >= 900 * 1_200);
}

#[test]
fn an_absent_client_holds_nothing_after_ten_seconds_without_any_traffic() {
    let mut hub = Hub::new(1);
    for n in 0..1_000 {
        hub.packet(1, n, 1_000);
    }
    hub.service(false);
    assert!(hub.sessions.buffered_bytes() > 0);
    // Only timers run.
    let begin = hub.now;
    while hub.sessions.due() != Instant::FAR_FUTURE && hub.now.since(begin) < Duration::from_secs(600) {
        hub.now = hub.now.max(hub.sessions.due());
        hub.service(false);
    }
    assert_eq!(hub.sessions.buffered_bytes(), 0);
    assert_eq!(
        hub.of(1).tunnel.egress().flows().iter().count(),
        0,
        "flows are forgotten"
    );
    assert_eq!(hub.sessions.due(), Instant::FAR_FUTURE, "and the session sleeps");
}

#[test]
fn a_removed_session_gives_everything_back_and_takes_no_route_of_its_successor() {
    let mut hub = Hub::new(1);
    for n in 0..100 {
        hub.packet(1, n, 1_000);
    }
    let inner = [IpAddr::V4(address(1))];
    hub.sessions.add(SessionId(2), Role::Hub, &inner, hub.now);
    hub.sessions.remove(SessionId(1));
    assert_eq!(hub.sessions.buffered_bytes(), 0);
    assert_eq!(hub.packet(1, 1, 100), Accepted::Queued, "goes to the successor");
}
