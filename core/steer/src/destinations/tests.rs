use super::*;

const HUB: NetworkId = NetworkId(251);
const CABLE: NetworkId = NetworkId(2);
const MODEM: NetworkId = NetworkId(3);
const NEAR: NetworkId = NetworkId(256);
const FAR: NetworkId = NetworkId(257);

/// A server, with the round trip and the rate of each route to it.
struct World {
    machine: Destinations,
    ways: BTreeMap<NetworkId, (Duration, f64)>,
    now: Instant,
    flows: Vec<(Flow, f64)>,
    keys: u64,
    past: BTreeMap<IpAddr, NetworkId>,
    /// Secondary hubs with their distances in ms, and each hub that had the session, the newest
    /// last.
    near: BTreeMap<NetworkId, Duration>,
    sessions: Vec<Option<NetworkId>>,
}

fn server() -> SocketAddr {
    "203.0.113.7:443".parse().unwrap()
}

impl World {
    /// Creates routes with their round trips in ms and rates in Mbit/s.
    fn new(ways: &[(NetworkId, u64, f64)]) -> Self {
        let mut machine = Destinations::new(HUB);
        machine.handle_routes(
            ways.iter()
                .map(|(id, _, rate)| {
                    let facts = RouteFacts {
                        carries: [true, true],
                        capacity: Some(Rate::from_bps((rate * 1e6) as u64)),
                        ..RouteFacts::default()
                    };
                    (*id, facts)
                })
                .collect(),
            Instant::ZERO,
        );
        let ways = ways
            .iter()
            .map(|(id, trip, rate)| (*id, (Duration::from_millis(*trip), rate * 125e3)));
        Self {
            machine,
            ways: ways.collect(),
            now: Instant::ZERO,
            flows: Vec::new(),
            keys: 0,
            past: BTreeMap::new(),
            near: BTreeMap::new(),
            sessions: Vec::new(),
        }
    }

    /// Adds secondary hubs: distance in ms, round trip to the destination through them, and rate.
    fn with_hubs(mut self, hubs: &[(NetworkId, u64, u64, f64)]) -> Self {
        for (id, away, trip, rate) in hubs {
            self.near.insert(*id, Duration::from_millis(*away));
            self.ways
                .insert(*id, (Duration::from_millis(*trip), rate * 125e3));
        }
        self.begin_session(None);
        self
    }

    fn begin_session(&mut self, hub: Option<NetworkId>) {
        let mut ways = self.machine.ways.clone();
        ways.retain(|id, _| ![NEAR, FAR].contains(id));
        for id in self.near.keys() {
            let facts = RouteFacts {
                carries: [Some(*id) == hub; 2],
                capacity: ways[&HUB].capacity,
                ..RouteFacts::default()
            };
            ways.insert(*id, facts);
        }
        self.machine.handle_routes(ways, self.now);
        self.sessions.push(hub);
    }

    fn open(&mut self, to: SocketAddr, bytes: f64) -> NetworkId {
        let way = self.past.get(&to.ip()).copied().unwrap_or(HUB);
        self.keys += 1;
        let flow = Flow {
            key: self.keys,
            to,
            way,
            counted: Default::default(),
            expects_answer: true,
        };
        self.flows.push((flow, bytes));
        way
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            let step = self.machine.interval(self.now);
            self.now += step;
            for (flow, left) in &mut self.flows {
                let Some((_, rate)) = self.ways.get(&flow.way) else {
                    continue;
                };
                if flow.counted[1].packets == 0 {
                    flow.counted[0] = Counted {
                        packets: 2,
                        bytes: 600,
                    };
                    flow.counted[1] = Counted {
                        packets: 1,
                        bytes: 60,
                    };
                }
                let bytes = (rate * step.as_secs_f64()).min(*left);
                *left -= bytes;
                let packets = (bytes / 1460.0).ceil() as u64;
                flow.counted[0].packets += packets / 2;
                flow.counted[0].bytes += packets / 2 * 52;
                flow.counted[1].packets += packets;
                flow.counted[1].bytes += bytes as u64 + 52 * packets;
            }
            self.machine
                .handle_flows(self.flows.iter().map(|(flow, _)| *flow), self.now);
            let hub = self.machine.choose_secondary(&self.near, self.now);
            if self.sessions.last().is_some_and(|last| *last != hub) {
                self.begin_session(hub);
            }
            while let Some(probe) = self.machine.poll_probe(self.now) {
                let took = self.ways.get(&probe.way).map(|(trip, _)| *trip);
                self.machine.handle_connect(probe, took, self.now);
            }
            while let Some(change) = self.machine.poll_event() {
                assert_eq!(self.past.get(&change.address).copied(), change.before);
                match change.past {
                    Some(past) => self.past.insert(change.address, past),
                    None => self.past.remove(&change.address),
                };
            }
            let listed: BTreeMap<_, _> = self.machine.past().collect();
            assert_eq!(listed, self.past, "events and state agree");
        }
    }

    /// Runs transfers of one size in sequence; returns the route of the last one.
    fn transfers(&mut self, count: u32, bytes: f64) -> NetworkId {
        let mut way = HUB;
        for _ in 0..count {
            way = self.open(server(), bytes);
            self.run(Duration::from_secs(2));
            self.flows.retain(|(_, left)| *left > 0.0);
        }
        way
    }
}

#[test]
fn what_is_unknown_goes_through_the_hub() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 10, 20.0)]);
    assert_eq!(world.open(server(), 1e5), HUB);
}

#[test]
fn small_transfers_take_the_shorter_way() {
    let mut world = World::new(&[(HUB, 50, 40.0), (CABLE, 10, 20.0), (MODEM, 30, 20.0)]);
    assert_eq!(world.transfers(4, 3e4), CABLE);
    let mut world = World::new(&[(HUB, 20, 40.0), (CABLE, 40, 20.0), (MODEM, 30, 20.0)]);
    assert_eq!(world.transfers(4, 3e4), HUB);
}

#[test]
fn large_ones_take_the_faster_way_once_both_have_been_seen() {
    let mut world = World::new(&[(HUB, 50, 40.0), (CABLE, 10, 20.0)]);
    assert_eq!(
        world.transfers(6, 5e6),
        HUB,
        "20 Mbit/s are slower, though nearer"
    );
    let known: Vec<_> = world.machine.known(server().ip()).collect();
    assert!(known.iter().all(|way| way.rate.is_some()), "{known:?}");
    let mut world = World::new(&[(HUB, 50, 10.0), (CABLE, 60, 40.0)]);
    assert_eq!(world.transfers(6, 5e6), CABLE);
}

#[test]
fn a_way_that_was_seen_to_be_slow_is_not_tried_for_what_is_large() {
    let mut world = World::new(&[(HUB, 50, 40.0), (MODEM, 10, 2.0)]);
    for _ in 0..3 {
        assert_eq!(world.transfers(1, 5e6), HUB);
    }
    let known: Vec<_> = world.machine.known(server().ip()).collect();
    assert!(
        known.iter().any(|way| way.way == MODEM && way.rate.is_none()),
        "{known:?}"
    );
    // A small transfer is tried there.
    let mut world = World::new(&[(HUB, 50, 40.0), (MODEM, 10, 2.0)]);
    assert_eq!(world.transfers(4, 1e4), MODEM);
}

#[test]
fn one_transfer_after_the_other_is_no_long_one() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 10, 20.0)]);
    for _ in 0..20 {
        world.open(server(), 4e4);
        world.run(Duration::from_millis(300));
        world.flows.retain(|(_, left)| *left > 0.0);
    }
    let size = world.machine.all[&server().ip()].size.unwrap();
    assert!((3e4..8e4).contains(&size), "{size}");
    assert_eq!(world.open(server(), 4e4), CABLE);
}

#[test]
fn flows_that_have_ended_do_not_hide_others() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 10, 20.0)]);
    for _ in 0..500 {
        world.open(server(), 4e4);
        world.run(Duration::from_millis(300));
    }
    let size = world.machine.all[&server().ip()].size.unwrap();
    assert!((3e4..8e4).contains(&size), "{size}");
}

#[test]
fn nearly_the_same_is_no_reason_to_change() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 49, 20.0)]);
    assert_eq!(world.transfers(4, 3e4), HUB);
}

#[test]
fn a_way_that_does_not_answer_is_left_alone_for_longer_each_time() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 10, 20.0)]);
    assert_eq!(world.transfers(4, 3e4), CABLE);
    // The route still answers probes of other destinations, but not this flow.
    world.ways.remove(&CABLE);
    assert_eq!(world.open(server(), 3e4), CABLE);
    world.run(Duration::from_secs(4));
    assert_eq!(world.open(server(), 3e4), HUB);
    let failed = world.machine.all[&server().ip()].known[&CABLE].failed;
    assert_eq!(failed.map(|(_, lasts)| lasts), Some(FAILED_FOR));
    world.flows.clear();
    world.open(server(), 3e4);
    world.run(Duration::from_secs(70));
    let failed = world.machine.all[&server().ip()].known[&CABLE].failed;
    assert_eq!(
        failed.map(|(_, lasts)| lasts),
        Some(FAILED_FOR * 2),
        "the next probe fails, too"
    );
}

#[test]
fn a_stall_counts_and_a_pause_of_the_application_does_not() {
    let rate = |asks: bool| {
        let mut machine = transfer::Transfers::default();
        let mut flow = Flow {
            key: 1,
            to: server(),
            way: CABLE,
            counted: Default::default(),
            expects_answer: true,
        };
        let mut rates = Vec::new();
        for look in 0..60_u64 {
            // Ten samples with data, then 2 s without.
            if look % 30 < 10 {
                flow.counted[1].packets += 100;
                flow.counted[1].bytes += 150_000;
                flow.counted[0].packets += 50;
                flow.counted[0].bytes += 50 * 52 + if asks && look % 30 == 0 { 5_000 } else { 0 };
            }
            let now = Instant::ZERO + Duration::from_millis(100 * look);
            rates.extend(
                machine
                    .sample(&[flow], now)
                    .done
                    .into_iter()
                    .filter_map(|done| done.rate)
                    .map(|(bytes, seconds)| bytes / seconds),
            );
        }
        rates.into_iter().fold(f64::INFINITY, f64::min)
    };
    assert!(rate(true) > 1.2e6, "{}", rate(true));
    assert!(rate(false) < 1.0e6, "{}", rate(false));
}

#[test]
fn a_way_that_goes_takes_what_was_known_of_it_along() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 10, 20.0)]);
    world.transfers(4, 3e4);
    let hub = world.machine.ways[&HUB];
    world.machine.handle_routes([(HUB, hub)].into(), world.now);
    let change = world.machine.poll_event().unwrap();
    assert_eq!((change.past, change.before), (None, Some(CABLE)));
    assert_eq!(world.machine.known(server().ip()).count(), 1);
}

#[test]
fn destinations_are_bounded_and_forgotten() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 10, 20.0)]);
    world.transfers(4, 3e4);
    assert_eq!(world.past.len(), 1);
    for host in 0..2 * MAX as u32 {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + host);
        world.open((address, 443).into(), 1e3);
    }
    world.run(Duration::from_secs(1));
    assert_eq!(world.machine.len(), MAX);
    world.flows.clear();
    world.run(DESTINATION_LIFETIME + Duration::from_secs(1));
    assert!(world.machine.is_empty() && world.past.is_empty());
}

#[test]
fn few_probes_go_in_a_second() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 10, 20.0)]);
    for host in 0..100_u32 {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + host);
        world.open((address, 443).into(), 1e3);
    }
    let now = Instant::from_nanos(5_000_000_000);
    world
        .machine
        .handle_flows(world.flows.iter().map(|(flow, _)| *flow), now);
    let asked = std::iter::from_fn(|| world.machine.poll_probe(now)).count();
    assert_eq!(asked, PROBES_A_SECOND as usize);
}

#[test]
fn the_hub_that_promises_most_is_tried_first_and_the_best_one_stays() {
    // The near hub is far from the destination.
    let hubs = [(NEAR, 5, 70, 20.0), (FAR, 20, 25, 20.0)];
    let mut world = World::new(&[(HUB, 50, 20.0)]).with_hubs(&hubs);
    assert_eq!(world.transfers(20, 3e4), FAR);
    assert_eq!(world.sessions, [None, Some(NEAR), Some(FAR)]);
    // The hub disappears, and its flows with it.
    world.near.remove(&FAR);
    world.begin_session(None);
    world.transfers(2, 3e4);
    assert_eq!(world.transfers(2, 3e4), HUB);
}

#[test]
fn no_further_hub_is_used_that_cannot_be_nearer() {
    let hubs = [(NEAR, 49, 49, 20.0), (FAR, 80, 85, 20.0)];
    let mut world = World::new(&[(HUB, 50, 20.0)]).with_hubs(&hubs);
    assert_eq!(world.transfers(10, 3e4), HUB);
    assert_eq!(world.sessions, [None]);
    // Nor is a hub used if a network is nearer than the hub.
    let hubs = [(NEAR, 20, 25, 20.0)];
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 10, 20.0)]).with_hubs(&hubs);
    assert_eq!(world.transfers(10, 3e4), CABLE);
    assert_eq!(world.sessions.last(), Some(&None));
}

#[test]
fn a_hub_that_carries_more_is_used_for_what_is_large() {
    let hubs = [(NEAR, 40, 55, 40.0)];
    let mut world = World::new(&[(HUB, 50, 8.0)]).with_hubs(&hubs);
    assert_eq!(world.transfers(15, 3e6), NEAR);
}

#[test]
fn a_session_that_promises_nothing_any_more_ends_and_hubs_do_not_take_turns() {
    let hubs = [(NEAR, 5, 30, 20.0), (FAR, 5, 30, 20.0)];
    let mut world = World::new(&[(HUB, 50, 20.0)]).with_hubs(&hubs);
    world.transfers(500, 3e4);
    assert!((2..5).contains(&world.sessions.len()), "{:?}", world.sessions);
    // The destination moves next to the hub in use.
    world.ways.insert(HUB, (Duration::from_millis(4), 2.5e6));
    world.transfers(700, 3e4);
    assert_eq!(world.sessions.last(), Some(&None));
}

#[test]
fn the_first_slow_answer_of_a_way_does_not_decide() {
    let mut world = World::new(&[(HUB, 50, 20.0), (CABLE, 200, 20.0)]);
    world.open(server(), 3e4);
    world.run(Duration::from_millis(400));
    // The route was slow because it was idle.
    world.ways.insert(CABLE, (Duration::from_millis(10), 2.5e6));
    world.run(Duration::from_secs(4));
    world.flows.clear();
    assert_eq!(world.transfers(2, 3e4), CABLE);
}
