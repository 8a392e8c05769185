//! Behaviours, every transition, and random operations on a radio that loses frames.

use hawser_wire::air::Beacon;
use proptest::prelude::*;

use super::*;

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

fn ip(address: u32) -> IpConfig {
    IpConfig {
        address,
        prefix: 24,
        gateway: 1,
        dns: Vec::new(),
    }
}

const A: StationId = StationId(1);
const B: StationId = StationId(2);

/// Two access points on different channels, both associated, `A` active.
struct Fixture {
    schedule: SlotSchedule<u32>,
    now: Instant,
    a: NetworkId,
    b: NetworkId,
    /// Frames in the radio, oldest first.
    radio: Vec<Outgoing<Frame<u32>>>,
    tuned: u16,
    returned: u64,
}

impl Fixture {
    fn new(config: Config) -> Self {
        let mut schedule = SlotSchedule::new(config, 1, at(0));
        let a = schedule.add(NetworkConfig::access_point(1, A, 1).ip(ip(10)), at(0));
        let b = schedule.add(NetworkConfig::access_point(2, B, 11).ip(ip(20)), at(0));
        Self {
            schedule,
            now: at(0),
            a,
            b,
            radio: Vec::new(),
            tuned: 1,
            returned: 0,
        }
    }

    fn joined(config: Config) -> Self {
        let mut fixture = Self::new(config);
        for _ in 0..2 {
            fixture.pass_until_switched();
            fixture.join();
        }
        fixture.pass_until_switched();
        fixture.answer_everything();
        fixture
    }

    fn join(&mut self) {
        self.answer_everything();
        let peer = self.schedule.network(self.schedule.active().unwrap()).unwrap();
        let peer = peer.config().peer;
        self.frame(peer, Frame::Authenticated);
        self.answer_everything();
        self.frame(peer, Frame::Associated { aid: 1 });
        self.answer_everything();
    }

    fn frame(&mut self, from: StationId, frame: Frame<u32>) {
        self.schedule.handle_frame(from, &frame, self.now);
        self.drain();
    }

    /// Checks that nothing is sent on a network that is not tuned.
    fn drain(&mut self) -> Vec<Event<u32>> {
        let mut events = Vec::new();
        while let Some(event) = self.schedule.poll_event() {
            if let Some(peer) = recalled(&event, &mut self.tuned) {
                self.take_back(peer);
            }
            events.push(event);
        }
        while let Some(frame) = self.schedule.poll_transmit() {
            let expected = match frame.to {
                Some(A) => 1,
                Some(B) => 11,
                _ => self.tuned,
            };
            assert_eq!(self.tuned, expected, "a frame for a network that is not tuned");
            self.radio.push(frame);
        }
        events
    }

    fn take_back(&mut self, peer: StationId) {
        let (taken, kept) = std::mem::take(&mut self.radio)
            .into_iter()
            .partition(|frame| frame.to == Some(peer));
        self.radio = kept;
        let taken: Vec<Outgoing<Frame<u32>>> = taken;
        self.returned += taken.len() as u64;
        self.schedule
            .handle_returned(peer, taken.into_iter().map(|frame| (frame.body, frame.len)));
    }

    /// The radio completes its oldest frame.
    fn finish(&mut self, acknowledged: bool) -> bool {
        if self.radio.is_empty() {
            return false;
        }
        let frame = self.radio.remove(0);
        self.schedule
            .handle_finished(frame.to, &frame.body, acknowledged, self.now);
        self.drain();
        true
    }

    fn answer_everything(&mut self) {
        self.drain();
        while self.finish(true) {}
    }

    fn pass(&mut self, us: u64) {
        self.now += Duration::from_micros(us);
        self.schedule.handle_timeout(self.now);
        self.drain();
    }

    /// Acknowledges all sent frames; ends the slot if necessary.
    fn pass_until_switched(&mut self) -> (NetworkId, Duration) {
        for _ in 0..100 {
            let (due, _) = self.schedule.poll_timeout().unwrap();
            self.now = self.now.max(due);
            self.schedule.handle_timeout(self.now);
            for event in self.drain() {
                if let Event::Switched { to, took } = event {
                    return (to, took);
                }
            }
            while self.finish(true) {}
        }
        panic!("it never switches");
    }

    fn state(&self, id: NetworkId) -> State {
        self.schedule.network(id).unwrap().state()
    }

    fn is_served(&self, id: NetworkId) -> bool {
        self.schedule.active() == Some(id) && self.state(id) == State::Awake
    }

    fn sent(&self) -> Vec<Frame<u32>> {
        self.radio.iter().map(|frame| frame.body).collect()
    }
}

/// Tunes the radio as an event requests; returns the station whose frames the radio must give back,
/// if any.
pub(super) fn recalled<T>(event: &Event<T>, tuned: &mut u16) -> Option<StationId> {
    match event {
        Event::Recall(peer) => Some(*peer),
        Event::Tune { channel, leaving, .. } => {
            *tuned = *channel;
            *leaving
        }
        Event::Received { .. }
        | Event::Switched { .. }
        | Event::Associated(_)
        | Event::Deauthenticated(_)
        | Event::Found { .. } => None,
    }
}

#[test]
fn joins_once_and_wakes_from_then_on() {
    let mut fixture = Fixture::joined(Config::default());
    for _ in 0..6 {
        fixture.pass_until_switched();
        fixture.answer_everything();
    }
    assert_eq!(fixture.schedule.counters().associations, 2);
}

#[test]
fn announces_its_leave_before_it_retunes() {
    let mut fixture = Fixture::joined(Config::default());
    fixture.frame(A, Frame::Null { power_save: false });
    fixture.answer_everything();
    assert_eq!(fixture.state(fixture.a), State::Awake);
    fixture.pass(100_000);
    assert_eq!(fixture.sent(), [Frame::Null { power_save: true }]);
    assert_eq!(fixture.tuned, 1);
    fixture.finish(true);
    assert_eq!(fixture.tuned, 11);
    assert_eq!(fixture.state(fixture.a), State::Asleep);
}

#[test]
fn a_lost_farewell_is_repeated_and_then_let_be() {
    let mut fixture = Fixture::joined(Config::default());
    fixture.frame(A, Frame::Null { power_save: false });
    fixture.answer_everything();
    fixture.pass(100_000);
    fixture.finish(false);
    assert_eq!(fixture.sent(), [Frame::Null { power_save: true }]);
    fixture.finish(false);
    assert_eq!(fixture.tuned, 11);
    assert_eq!(fixture.schedule.counters().unannounced, 1);
}

#[test]
fn a_farewell_that_never_ends_is_cut_short() {
    let mut fixture = Fixture::joined(Config::default());
    fixture.frame(A, Frame::Null { power_save: false });
    fixture.answer_everything();
    fixture.pass(100_000);
    fixture.pass(10_000);
    fixture.pass(10_000);
    assert_eq!(fixture.tuned, 11);
}

#[test]
fn fetches_what_is_kept_one_by_one_then_ends_power_save() {
    let mut fixture = Fixture::joined(Config::default());
    fixture.pass_until_switched();
    fixture.answer_everything();
    fixture.pass_until_switched();
    assert_eq!(fixture.sent(), [Frame::PsPoll]);
    let peer = fixture
        .schedule
        .network(fixture.schedule.active().unwrap())
        .unwrap();
    let peer = peer.config().peer;
    fixture.finish(true);
    let kept = |more| Frame::Data {
        packet: 7,
        more,
        power_save: false,
    };
    fixture.frame(peer, kept(true));
    assert_eq!(fixture.sent(), [Frame::PsPoll]);
    fixture.finish(true);
    fixture.frame(peer, kept(false));
    assert_eq!(fixture.sent(), [Frame::Null { power_save: false }]);
}

#[test]
fn flows_stay_where_they_began_and_applications_may_choose() {
    let mut fixture = Fixture::joined(Config::default());
    let (a, b) = (fixture.a, fixture.b);
    assert_eq!(fixture.schedule.active(), Some(a));
    fixture.schedule.prefer(2, b);
    assert_eq!(fixture.schedule.handle_packet(1, 0, 100), Ok(a));
    assert_eq!(fixture.schedule.handle_packet(2, 0, 100), Ok(b));
    fixture.pass_until_switched();
    assert_eq!(fixture.schedule.handle_packet(1, 0, 100), Ok(a));
    assert_eq!(fixture.schedule.handle_packet(3, 0, 100), Ok(b));
}

#[test]
fn no_flow_without_addresses() {
    let mut schedule: SlotSchedule<u32> = SlotSchedule::new(Config::default(), 1, at(0));
    let id = schedule.add(NetworkConfig::access_point(1, A, 1), at(0));
    assert_eq!(schedule.handle_packet(1, 5, 100), Err(5));
    assert_eq!(schedule.counters().unroutable, 1);
    schedule.set_ip(id, Some(ip(10)));
    assert_eq!(schedule.handle_packet(1, 5, 100), Ok(id));
}

#[test]
fn slots_last_as_their_weights_say() {
    let mut fixture = Fixture::joined(Config::default());
    fixture.schedule.set_weight(fixture.a, 9, fixture.now);
    let mut starts = Vec::new();
    for _ in 0..5 {
        fixture.pass_until_switched();
        starts.push(fixture.now);
    }
    let gaps: Vec<_> = starts.windows(2).map(|w| w[1].since(w[0]).as_millis()).collect();
    assert_eq!(gaps, [100, 900, 100, 900]);
}

#[test]
fn a_scanning_slot_goes_round_the_channels_and_reports_strangers() {
    let mut schedule: SlotSchedule<u32> = SlotSchedule::new(Config::default(), 1, at(0));
    schedule.add(NetworkConfig::scan(vec![1, 6, 11], false), at(0));
    let mut channels = Vec::new();
    let mut now = at(0);
    for _ in 0..40 {
        while let Some(event) = schedule.poll_event() {
            if let Event::Tune { channel, .. } = event {
                channels.push(channel);
            }
        }
        let Some((due, _)) = schedule.poll_timeout() else {
            break;
        };
        now = now.max(due);
        schedule.handle_timeout(now);
    }
    assert_eq!(channels[..4], [1, 6, 11, 1]);
    let beacon = Beacon {
        due: now,
        network: 4,
        traffic: 0,
        moves: None,
    };
    schedule.handle_frame(B, &Frame::Beacon(beacon), now);
    let events: Vec<_> = std::iter::from_fn(|| schedule.poll_event()).collect();
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Found { name: 4, peer: B, .. })),
        "{events:?}"
    );
}

#[test]
fn a_neighbour_needs_no_ceremony() {
    let mut schedule: SlotSchedule<u32> = SlotSchedule::new(Config::default(), 1, at(0));
    let id = schedule.add(NetworkConfig::ad_hoc(A, 6).ip(ip(10)), at(0));
    schedule.handle_timeout(at(10_000));
    assert_eq!(schedule.handle_packet(1, 5, 100), Ok(id));
    assert!(matches!(
        schedule.poll_transmit().map(|out| out.body),
        Some(Frame::Data { packet: 5, .. })
    ));
}

#[test]
fn a_relayed_network_is_put_to_sleep_once_its_station_has_joined() {
    let mut schedule: SlotSchedule<u32> = SlotSchedule::new(Config::default(), 1, at(0));
    let a = schedule.add(NetworkConfig::relayed(1, A, 1), at(0));
    schedule.add(NetworkConfig::relayed(2, B, 11), at(0));
    let mut now = at(0);
    // Acknowledges every sent frame until both slots have ended; returns the sent frames.
    let mut round = |schedule: &mut SlotSchedule<u32>| {
        let (mut sent, end) = (Vec::new(), now + Duration::from_millis(220));
        while now < end {
            now += Duration::from_micros(500);
            schedule.handle_timeout(now);
            while schedule.poll_event().is_some() {}
            while let Some(outgoing) = schedule.poll_transmit() {
                let channel = schedule.network(schedule.active().unwrap_or(a)).unwrap();
                assert_eq!(outgoing.to, Some(channel.config().peer));
                schedule.handle_finished(outgoing.to, &outgoing.body, true, now);
                if outgoing.to == Some(A) {
                    sent.push(outgoing.body);
                }
            }
        }
        sent
    };
    let data = |packet| Frame::Data {
        packet,
        more: false,
        power_save: false,
    };
    // Before the association, the station's frames pass, and no other frame is sent.
    schedule.handle_packet_on(a, 1, 30).unwrap();
    assert_eq!(round(&mut schedule), [data(1)]);
    schedule.set_association(a, Some(1));
    let said = round(&mut schedule);
    assert!(said.contains(&Frame::Null { power_save: true }), "{said:?}");
    schedule.handle_packet_on(a, 2, 30).unwrap();
    let said = round(&mut schedule);
    assert!(said.contains(&data(2)), "{said:?}");
    assert_eq!(schedule.counters().associations, 1);
    // Associated no longer, whether the station slept or not.
    schedule.set_association(a, None);
    schedule.handle_packet_on(a, 3, 30).unwrap();
    assert!(round(&mut schedule).contains(&data(3)));
    assert_eq!(round(&mut schedule), []);
}

#[test]
fn promotes_the_best_when_the_primary_is_lost() {
    let mut fixture = Fixture::joined(Config::default());
    let mut handoff = Handoff::new(HandoffConfig::default());
    let (a, b) = (fixture.a, fixture.b);
    handoff.set_role(a, Role::Primary, &mut fixture.schedule, fixture.now);
    handoff.set_role(b, Role::Candidate, &mut fixture.schedule, fixture.now);
    handoff.probed(b, 5e6, &mut fixture.schedule, fixture.now);
    assert_eq!(handoff.role(b), Some(Role::Secondary));
    assert_eq!(
        handoff.primary_failed(&mut fixture.schedule, fixture.now),
        Some(b)
    );
    assert_eq!(handoff.primary(), Some(b));
    fixture.answer_everything();
    let (active, took) = fixture.pass_until_switched();
    assert_eq!(active, b);
    assert!(took < Duration::from_millis(4), "{took:?}");
    assert!(fixture.schedule.network(a).is_none());
    let found = Event::Found {
        name: 1,
        peer: A,
        channel: 1,
    };
    handoff.handle_event(&found, &mut fixture.schedule, fixture.now);
    let again = *fixture.schedule.rotation().last().unwrap();
    assert_eq!(handoff.role(again), Some(Role::Candidate));
    handoff.probed(again, 10e3, &mut fixture.schedule, fixture.now);
    assert_eq!(handoff.role(again), None);
    assert!(fixture.schedule.network(again).is_none());
    handoff.handle_event(&found, &mut fixture.schedule, fixture.now);
    assert_eq!(fixture.schedule.rotation(), [b]);
}

#[test]
fn addresses_resolve_in_their_own_network_only() {
    let mut fixture = Fixture::joined(Config::default());
    let (a, b) = (fixture.a, fixture.b);
    fixture.schedule.network_mut(a).unwrap().learn_neighbour(1, 0xaa);
    let gateway = |id| fixture.schedule.network(id).unwrap().next_hop(0x0a00_0001);
    assert_eq!(gateway(a), Ok(0xaa));
    assert_eq!(gateway(b), Err(Some(1)));
    assert_eq!(fixture.schedule.network(a).unwrap().next_hop(99), Err(Some(99)));
}

/// Transitions of an active network: (state, frame, state after).
#[test]
fn every_transition() {
    use State::{Associating, Authenticating, Awake, Out, Waking};
    let associated = Frame::Associated { aid: 3 };
    let data = Frame::Data {
        packet: 1,
        more: false,
        power_save: false,
    };
    let table: [(State, Frame<u32>, State); 20] = [
        (Authenticating, Frame::Authenticated, Associating),
        (Authenticating, associated, Authenticating),
        (Authenticating, data, Authenticating),
        (Authenticating, Frame::Null { power_save: false }, Authenticating),
        (Authenticating, Frame::Deauthenticate, Authenticating),
        (Associating, Frame::Authenticated, Associating),
        (Associating, associated, Awake),
        (Associating, data, Associating),
        (Associating, Frame::Null { power_save: false }, Associating),
        (Associating, Frame::Deauthenticate, Authenticating),
        (Waking, Frame::Authenticated, Waking),
        (Waking, associated, Waking),
        (Waking, data, Waking),
        (Waking, Frame::Null { power_save: false }, Waking),
        (Waking, Frame::Deauthenticate, Authenticating),
        (Awake, Frame::Authenticated, Awake),
        (Awake, associated, Awake),
        (Awake, data, Awake),
        (Awake, Frame::Null { power_save: false }, Awake),
        (Awake, Frame::Deauthenticate, Authenticating),
    ];
    for (state, frame, after) in table {
        let mut fixture = Fixture::joined(Config::default());
        let id = fixture.schedule.active().unwrap();
        let peer = fixture.schedule.network(id).unwrap().config().peer;
        fixture.schedule.set_state(id, state, None);
        fixture.frame(peer, frame);
        assert_eq!(fixture.state(id), after, "{state:?} {frame:?}");
    }
    // An association step resumes at the next slot. Outside of a slot only deauthentication changes
    // the state.
    let mut fixture = Fixture::joined(Config::default());
    let asleep = fixture.b;
    fixture.frame(B, Frame::Authenticated);
    assert_eq!(fixture.state(asleep), State::Asleep);
    fixture.frame(B, Frame::Deauthenticate);
    assert_eq!(fixture.state(asleep), Out);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Packet(u8),
    Finish(bool),
    Wait(u32),
    Frame(bool, u8),
    Weight(bool, u8),
    Activate(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any::<u8>().prop_map(Op::Packet),
        8 => prop::bool::weighted(0.8).prop_map(Op::Finish),
        4 => (0_u32..30_000).prop_map(Op::Wait),
        4 => (any::<bool>(), 0_u8..9).prop_map(|(b, kind)| Op::Frame(b, kind)),
        1 => (any::<bool>(), 1_u8..10).prop_map(|(b, weight)| Op::Weight(b, weight)),
        1 => any::<bool>().prop_map(Op::Activate),
    ]
}

fn any_frame(kind: u8) -> Frame<u32> {
    match kind {
        0 => Frame::Authenticated,
        1 => Frame::Associated { aid: 1 },
        2 => Frame::Deauthenticate,
        3 => Frame::Null { power_save: false },
        4 | 5 => Frame::Data {
            packet: 0,
            more: kind == 4,
            power_save: false,
        },
        6 | 7 => Frame::Beacon(Beacon {
            network: 1,
            due: Instant::ZERO,
            traffic: if kind == 6 { 2 } else { 0 },
            moves: None,
        }),
        _ => Frame::ProbeResponse { network: 1 },
    }
}

proptest! {
    #[test]
    fn random_air_loses_nothing_uncounted_and_gets_stuck_nowhere(
        ops in prop::collection::vec(op(), 1..400),
        null in any::<bool>(),
    ) {
        let wake = if null { Wake::Null } else { Wake::PsPoll };
        let config = Config { queue: 10, wake, ..Config::default() };
        let mut fixture = Fixture::joined(config);
        for op in ops {
            match op {
                Op::Packet(flow) => {
                    let _ = fixture.schedule.handle_packet(u64::from(flow), 1, 100);
                }
                Op::Finish(acknowledged) => {
                    fixture.finish(acknowledged);
                }
                Op::Wait(us) => fixture.pass(u64::from(us)),
                Op::Frame(b, kind) => {
                    let (from, channel) = if b { (B, 11) } else { (A, 1) };
                    if fixture.tuned == channel {
                        fixture.frame(from, any_frame(kind));
                    }
                }
                Op::Weight(b, weight) => {
                    let id = if b { fixture.b } else { fixture.a };
                    fixture.schedule.set_weight(id, u32::from(weight), fixture.now);
                }
                Op::Activate(b) => {
                    let id = if b { fixture.b } else { fixture.a };
                    fixture.schedule.activate(id, fixture.now);
                }
            }
            fixture.drain();
            let counters = fixture.schedule.counters();
            let known = counters.delivered + counters.given_up + counters.abandoned;
            prop_assert_eq!(counters.accepted, known + fixture.schedule.pending() as u64);
        }
        // On a lossless channel every network is served again, and every packet is sent.
        let mut served = std::collections::BTreeSet::new();
        for _ in 0..400 {
            fixture.answer_everything();
            if let Some(id) = fixture.schedule.active() {
                let peer = fixture.schedule.network(id).unwrap().config().peer;
                match fixture.state(id) {
                    State::Authenticating => fixture.frame(peer, Frame::Authenticated),
                    State::Associating => fixture.frame(peer, Frame::Associated { aid: 1 }),
                    State::Waking => fixture.frame(peer, Frame::Null { power_save: false }),
                    State::Out | State::Asleep | State::Awake => {}
                }
                fixture.answer_everything();
                if fixture.is_served(id) {
                    served.insert(id);
                }
            }
            fixture.pass(5_000);
        }
        prop_assert_eq!(fixture.schedule.pending(), 0);
        prop_assert_eq!(served.len(), 2);
    }
}
