//! Shared radio, two access points and a neighbour under random events of the air.

use std::collections::{BTreeSet, VecDeque};

use hawser_netem::air::{AccessPoint, AccessPointConfig};
use proptest::prelude::*;

use super::tests::recalled;
use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// The client has packets of a flow.
    Up(u8),
    /// Packets for the client arrive at an access point.
    Down {
        ap: usize,
        count: u8,
    },
    /// Result of the radio's oldest frame: whether it arrived, and whether its acknowledgement did.
    Sent {
        arrives: bool,
        is_acknowledged: bool,
    },
    /// Completion of an access point's oldest frame for the client.
    Answered {
        ap: usize,
        arrives: bool,
    },
    /// Reception of one of the beacons in flight, perhaps late, or its loss.
    Beacon {
        which: usize,
        arrives: bool,
    },
    /// Deauthentication by an access point, which the client may not receive.
    ThrowOut {
        ap: usize,
        is_heard: bool,
    },
    /// Switch of an access point to another channel after some beacons.
    Move {
        ap: usize,
        beacons: u8,
    },
    /// Removal of a network, and its addition as a new one.
    AddAnew(usize),
    Activate(usize),
    Weight(usize, u8),
    Wait(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let ap = || 0..2_usize;
    let often = || prop::bool::weighted(0.8);
    prop_oneof![
        4 => any::<u8>().prop_map(Op::Up),
        4 => (ap(), 1..8_u8).prop_map(|(ap, count)| Op::Down { ap, count }),
        12 => (often(), often()).prop_map(|(arrives, acked)| Op::Sent { arrives, is_acknowledged: arrives && acked }),
        10 => (ap(), often()).prop_map(|(ap, arrives)| Op::Answered { ap, arrives }),
        4 => (any::<usize>(), often()).prop_map(|(which, arrives)| Op::Beacon { which, arrives }),
        1 => (ap(), any::<bool>()).prop_map(|(ap, is_heard)| Op::ThrowOut { ap, is_heard }),
        1 => (ap(), 0..3_u8).prop_map(|(ap, beacons)| Op::Move { ap, beacons }),
        1 => (0..3_usize).prop_map(Op::AddAnew),
        1 => (0..3_usize).prop_map(Op::Activate),
        1 => (0..3_usize, 1..4_u8).prop_map(|(network, weight)| Op::Weight(network, weight)),
        6 => (0..40_000_u32).prop_map(Op::Wait),
        1 => (0..3_000_000_u32).prop_map(Op::Wait),
    ]
}

/// Access point, and its frames on the air.
struct Station {
    machine: AccessPoint<u32>,
    channel: u16,
    on_air: VecDeque<Outgoing<Frame<u32>>>,
    offered: u64,
    lost_on_air: u64,
}

struct World {
    schedule: SlotSchedule<u32>,
    /// Two access points and the neighbour.
    ids: [NetworkId; 3],
    stations: [Station; 2],
    /// Frames in the radio, oldest first.
    radio: VecDeque<Outgoing<Frame<u32>>>,
    /// Access point, channel of transmission, and frame.
    beacons: Vec<(usize, u16, Frame<u32>)>,
    tuned: u16,
    heard: u64,
    now: Instant,
}

impl World {
    fn new(wake: Wake) -> Self {
        let config = Config {
            queue: 10,
            wake,
            ..Config::default()
        };
        let mut schedule = SlotSchedule::new(config, CHANNELS[0], Instant::ZERO);
        let ids =
            [0, 1, 2].map(|network| schedule.add(configured(network, CHANNELS[network]), Instant::ZERO));
        schedule.add(NetworkConfig::scan(CHANNELS.to_vec(), false), Instant::ZERO);
        let station = |channel| Station {
            machine: AccessPoint::new(
                AccessPointConfig {
                    kept: 4,
                    idle_limit: Duration::from_secs(2),
                    ..AccessPointConfig::default()
                },
                Instant::ZERO,
            ),
            channel,
            on_air: VecDeque::new(),
            offered: 0,
            lost_on_air: 0,
        };
        let mut world = Self {
            schedule,
            ids,
            stations: [station(CHANNELS[0]), station(CHANNELS[1])],
            radio: VecDeque::new(),
            beacons: Vec::new(),
            tuned: CHANNELS[0],
            heard: 0,
            now: Instant::ZERO,
        };
        world.pump();
        world
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Up(flow) => {
                let _ = self.schedule.handle_packet(u64::from(flow), 1, 100);
            }
            Op::Down { ap, count } => {
                for _ in 0..count {
                    let station = &mut self.stations[ap];
                    station.offered += 1;
                    let _ = station.machine.handle_packet(CLIENT, 1, 100, self.now);
                }
            }
            Op::Sent {
                arrives,
                is_acknowledged,
            } => {
                self.sent(arrives, is_acknowledged);
            }
            Op::Answered { ap, arrives } => {
                self.answered(ap, arrives);
            }
            Op::Beacon { which, arrives } => self.beacon(which, arrives),
            Op::ThrowOut { ap, is_heard } => {
                let station = &mut self.stations[ap];
                let _ = station
                    .machine
                    .handle_frame(CLIENT, &Frame::Deauthenticate, self.now);
                if is_heard {
                    self.hear(ap, &Frame::Deauthenticate);
                }
            }
            Op::Move { ap, beacons } => {
                let from = CHANNELS
                    .iter()
                    .position(|known| *known == self.stations[ap].channel);
                let to = CHANNELS[(from.unwrap_or(0) + 1) % CHANNELS.len()];
                self.stations[ap].machine.announce_move(to, beacons);
            }
            Op::AddAnew(network) => self.add_anew(network),
            Op::Activate(network) => self.schedule.activate(self.ids[network], self.now),
            Op::Weight(network, weight) => {
                self.schedule
                    .set_weight(self.ids[network], u32::from(weight), self.now);
            }
            Op::Wait(us) => self.wait(Duration::from_micros(u64::from(us))),
        }
        self.pump();
    }

    fn add_anew(&mut self, network: usize) {
        let id = self.ids[network];
        let channel = self.schedule.network(id).map(|known| known.config().channel);
        self.schedule.remove(id, self.now);
        self.ids[network] = self.schedule.add(
            configured(network, channel.unwrap_or(CHANNELS[network])),
            self.now,
        );
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let beacons = self.stations.iter().map(|station| station.machine.poll_timeout());
            let slot = self.schedule.poll_timeout().map(|(at, _)| at);
            let due = beacons.chain(slot).min().expect("beacons go on for ever");
            if due > end {
                break;
            }
            self.now = self.now.max(due);
            for station in &mut self.stations {
                station.machine.handle_timeout(self.now);
            }
            self.schedule.handle_timeout(self.now);
            self.pump();
        }
        self.now = end;
    }

    /// Returns whether the radio receives on this channel: not on others, and not while it retunes.
    fn is_with(&self, channel: u16) -> bool {
        self.tuned == channel && !matches!(self.schedule.phase, Phase::Tuning { .. })
    }

    fn hear(&mut self, ap: usize, frame: &Frame<u32>) -> bool {
        let is_heard = self.is_with(self.stations[ap].channel);
        if is_heard {
            self.heard += u64::from(frame.into_packet().is_some());
            self.schedule.handle_frame(peer(ap), frame, self.now);
        }
        is_heard
    }

    fn sent(&mut self, arrives: bool, is_acknowledged: bool) -> bool {
        let Some(frame) = self.radio.pop_front() else {
            return false;
        };
        let ap = self.stations.iter().enumerate();
        let ap = ap
            .map(|(ap, station)| (ap, station.channel))
            .find(|(ap, _)| frame.to == Some(peer(*ap)));
        let is_there = ap.is_none_or(|(_, channel)| channel == self.tuned);
        if let Some((ap, _)) = ap.filter(|_| arrives && is_there) {
            let machine = &mut self.stations[ap].machine;
            let _ = machine.handle_frame(CLIENT, &frame.body, self.now);
        }
        self.schedule
            .handle_finished(frame.to, &frame.body, is_acknowledged && is_there, self.now);
        true
    }

    fn answered(&mut self, ap: usize, arrives: bool) -> bool {
        let Some(frame) = self.stations[ap].on_air.pop_front() else {
            return false;
        };
        let is_heard = arrives && self.hear(ap, &frame.body);
        let is_packet = frame.body.into_packet().is_some();
        self.stations[ap].lost_on_air += u64::from(is_packet && !is_heard);
        true
    }

    fn beacon(&mut self, which: usize, arrives: bool) {
        if self.beacons.is_empty() {
            return;
        }
        let (ap, channel, frame) = self.beacons.swap_remove(which % self.beacons.len());
        if arrives && self.is_with(channel) {
            self.schedule.handle_frame(peer(ap), &frame, self.now);
        }
    }

    /// Executes the machine's outputs.
    fn pump(&mut self) {
        for ap in 0..self.stations.len() {
            self.pump_station(ap);
        }
        while let Some(event) = self.schedule.poll_event() {
            if let Some(peer) = recalled(&event, &mut self.tuned) {
                self.take_back(peer);
            }
        }
        while let Some(frame) = self.schedule.poll_transmit() {
            self.radio.push_back(frame);
        }
        self.check();
    }

    fn pump_station(&mut self, ap: usize) {
        let station = &mut self.stations[ap];
        if let Some(channel) = station.machine.poll_move() {
            station.channel = channel;
        }
        while let Some(frame) = station.machine.poll_transmit() {
            if let Frame::Beacon(_) = frame.body {
                self.beacons.push((ap, station.channel, frame.body));
            } else {
                station.on_air.push_back(frame);
            }
        }
        while station.machine.poll_recall().is_some() {
            let is_data = |frame: &Outgoing<Frame<u32>>| frame.body.into_packet().is_some();
            let (data, others) = std::mem::take(&mut station.on_air)
                .into_iter()
                .partition::<VecDeque<_>, _>(is_data);
            station.on_air = others;
            for frame in data {
                station
                    .machine
                    .keep(CLIENT, 1, frame.len - DATA_OVERHEAD, self.now);
            }
        }
        self.beacons.drain(..self.beacons.len().saturating_sub(8));
    }

    fn take_back(&mut self, peer: StationId) {
        let (taken, kept) = std::mem::take(&mut self.radio)
            .into_iter()
            .partition::<VecDeque<_>, _>(|frame| frame.to == Some(peer));
        self.radio = kept;
        self.schedule
            .handle_returned(peer, taken.into_iter().map(|frame| (frame.body, frame.len)));
    }

    fn check(&self) {
        let counters = self.schedule.counters();
        let known =
            counters.delivered + counters.given_up + counters.abandoned + self.schedule.pending() as u64;
        assert_eq!(
            counters.accepted, known,
            "a packet of the client is lost without being counted"
        );
        let (mut offered, mut known) = (0, self.heard);
        for station in &self.stations {
            let lost = station.machine.counters();
            let on_air = station.on_air.iter();
            let on_air = on_air.filter(|frame| frame.body.into_packet().is_some()).count();
            offered += station.offered;
            known += lost.unknown + lost.overflowed + lost.expired + lost.abandoned + station.lost_on_air;
            known += (station.machine.buffered(CLIENT) + on_air) as u64;
        }
        assert_eq!(
            offered, known,
            "a packet for the client is lost without being counted"
        );
        assert_eq!(counters.received, self.heard);
        for frame in &self.radio {
            let network = self.ids.iter().filter_map(|id| self.schedule.network(*id));
            let mut network = network.filter(|network| Some(network.config().peer) == frame.to);
            let channel = network.next().map(|network| network.config().channel);
            assert_eq!(
                Some(self.tuned),
                channel,
                "a frame for a network that is not tuned"
            );
        }
    }

    /// Ends all losses. Returns the networks that were served afterwards.
    fn settle(&mut self) -> BTreeSet<usize> {
        let mut served = BTreeSet::new();
        for _ in 0..4_000 {
            self.wait(Duration::from_millis(2));
            // Number of exchanges that fit in.
            for _ in 0..8 {
                while !self.beacons.is_empty() {
                    self.beacon(0, true);
                }
                self.pump();
                if !(self.sent(true, true) | self.answered(0, true) | self.answered(1, true)) {
                    break;
                }
                self.pump();
            }
            let is_served = |id: &NetworkId| {
                let network = self.schedule.network(*id);
                self.schedule.is_active(*id) && network.is_some_and(|network| network.state() == State::Awake)
            };
            served.extend(self.ids.iter().position(is_served));
        }
        served
    }
}

fn peer(ap: usize) -> StationId {
    StationId(ap as u16 + 1)
}

fn configured(network: usize, channel: u16) -> NetworkConfig {
    let ip = IpConfig {
        address: 10,
        prefix: 24,
        gateway: 1,
        dns: Vec::new(),
    };
    if network < 2 {
        NetworkConfig::access_point(network as u32, peer(network), channel).ip(ip)
    } else {
        NetworkConfig::ad_hoc(peer(network), channel).ip(ip)
    }
}

/// Address of the radio. Source: our choice, any number that no access point has.
const CLIENT: StationId = StationId(9);
/// Channels of the access points and the neighbour, which do not overlap. Source: IEEE 802.11-2020
/// annex E.
const CHANNELS: [u16; 3] = [1, 11, 6];

proptest! {
    /// Checks that under any events every packet is accounted for, no frame in the radio is for a
    /// network that is not tuned, and no state is final.
    #[test]
    fn no_packet_is_lost_without_being_counted(ops in prop::collection::vec(op(), 1..250), null in any::<bool>()) {
        let mut world = World::new(if null { Wake::Null } else { Wake::PsPoll });
        for op in &ops {
            world.apply(op);
        }
        let served = world.settle();
        prop_assert_eq!(served.len(), 3, "a network is not served again");
        prop_assert_eq!((world.schedule.pending(), world.radio.len()), (0, 0));
        for station in &world.stations {
            prop_assert_eq!(station.machine.buffered(CLIENT), 0, "an access point still believes that the radio sleeps");
        }
    }
}
