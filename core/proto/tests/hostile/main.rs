//! Tests one end of a session, compared with a reference model, against a peer with valid keys that
//! sends arbitrary packets in any order.
//!
//! The invariants after each step are in [`node`]: no panic (with overflow checks), no packet
//! delivered twice or without being sent, no packet number used twice, at most three times the
//! received bytes sent to an unvalidated address, work in proportion to the input, and all state
//! within its bounds. Combinations of the peer's moves and path states are counted, printed and
//! asserted.
//!
//! `HAWSER_HOSTILE_SEQUENCES=100000 cargo test -p hawser-proto --release --test hostile` runs as
//! many sequences; `HAWSER_HOSTILE_SEED` is the first.

mod node;
mod packet;
mod peer;

use hawser_proto::path::State;
use hawser_proto::tunnel::Role;
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::inner::protocol;

use node::Node;
use packet::Packet;
use peer::{Lots, MOVES, Peer};

const START: Instant = Instant::from_nanos(3_000_000_000);
/// Steps of one sequence.
const STEPS: u64 = 250;
/// States of a path at the arrival of a packet.
const STATES: [&str; 5] = ["validating", "active", "suspect", "dead", "closed"];

/// Count of each move in each state.
type Coverage = [[u64; STATES.len()]; MOVES.len()];

fn place(state: Option<State>) -> usize {
    match state {
        Some(State::Validating) => 0,
        Some(State::Active) => 1,
        Some(State::Suspect) => 2,
        Some(State::Dead) => 3,
        None => 4,
    }
}

/// One node and its peer.
struct Attack {
    node: Node,
    peer: Peer,
    now: Instant,
    is_hub: bool,
    paths: Vec<PathId>,
    next_path: u16,
}

impl Attack {
    fn new(seed: u64) -> Self {
        let mut peer = Peer::new(seed);
        let is_hub = !peer.lots.one_in(3);
        let role = if is_hub { Role::Hub } else { Role::Client };
        let mut attack = Self {
            node: Node::new(role, seed, START),
            peer,
            now: START,
            is_hub,
            paths: Vec::new(),
            next_path: 0,
        };
        for _ in 0..=attack.peer.lots.below(3) {
            attack.open();
        }
        attack
    }

    fn open(&mut self) {
        let id = PathId(self.next_path);
        self.next_path += 1;
        self.node.open(id, self.now);
        if self.is_hub {
            self.node.moved(id, self.now);
        }
        self.paths.push(id);
    }

    /// Returns an open path, and occasionally one that is not.
    fn path(&mut self) -> PathId {
        let lots = &mut self.peer.lots;
        if self.paths.is_empty() || lots.one_in(12) {
            return PathId(lots.below(u64::from(self.next_path) + 1) as u16);
        }
        let at = self.peer.lots.below(self.paths.len() as u64) as usize;
        self.paths[at]
    }

    fn step(&mut self, coverage: &mut Coverage) {
        match self.peer.lots.below(104) {
            0..60 => {
                for _ in 0..=self.peer.lots.below(4) {
                    let path = self.path();
                    let (which, packet) = self.peer.next(path, self.now);
                    coverage[which][place(self.node.state(packet.path))] += 1;
                    self.node.receive(&packet, self.now);
                }
                self.node.flush(self.now);
            }
            60..75 => self.offer(),
            75..97 => self.wait(),
            97 => {
                let path = self.path();
                if self.node.state(path).is_some() {
                    self.node.moved(path, self.now);
                }
            }
            98 => {
                let path = self.path();
                self.paths.retain(|open| *open != path);
                self.node.close(path, self.now);
            }
            _ if self.paths.len() < 4 => self.open(),
            _ => {}
        }
        self.settle();
        self.node.check_work();
    }

    /// Offers a packet for the peer, from the TUN.
    fn offer(&mut self) {
        let lots = &mut self.peer.lots;
        for _ in 0..=lots.below(30) {
            let kind = [protocol::TCP, protocol::UDP][lots.below(2) as usize];
            let len = [60, 500, 1_200, 20_000][lots.below(4) as usize];
            let flow = lots.below(30) as u16;
            self.node.offer(kind, flow, len, 1_100, self.now);
        }
    }

    /// Advances the time, and executes due actions.
    fn wait(&mut self) {
        let lots = &mut self.peer.lots;
        let micros = match lots.below(100) {
            0..70 => lots.below(5_000),
            70..92 => lots.below(500_000),
            92..99 => lots.below(5_000_000),
            _ => lots.below(60_000_000),
        };
        let until = self.now + Duration::from_micros(micros);
        for round in 0.. {
            assert!(round < 100_000, "wakes without end");
            let due = self.node.due(self.now);
            if due > until {
                break;
            }
            self.now = self.now.max(due);
            self.node.flush(self.now);
            self.settle();
        }
        self.now = until;
        self.node.flush(self.now);
    }

    fn settle(&mut self) {
        for round in 0.. {
            let sent = self.node.transmit(self.now);
            sent.iter().for_each(|packet| self.peer.hear(packet));
            if sent.is_empty() && self.node.due(self.now) > self.now {
                return;
            }
            self.node.flush(self.now);
            assert!(round < 40, "spins at {:?}", self.now);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a test runs is no part of what it tests"
)]
fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

#[test]
fn whatever_a_peer_sends_the_model_holds() {
    let first = from_environment("HAWSER_HOSTILE_SEED", 1);
    let sequences = from_environment("HAWSER_HOSTILE_SEQUENCES", 300);
    let mut coverage = Coverage::default();
    for seed in first..first + sequences {
        let run = std::panic::catch_unwind(|| {
            let mut coverage = Coverage::default();
            let mut attack = Attack::new(seed);
            for _ in 0..STEPS {
                attack.step(&mut coverage);
            }
            attack.node.end(attack.now);
            coverage
        });
        let Ok(run) = run else {
            panic!("HAWSER_HOSTILE_SEED={seed} HAWSER_HOSTILE_SEQUENCES=1 does it again");
        };
        for (all, one) in coverage.iter_mut().flatten().zip(run.iter().flatten()) {
            *all += one;
        }
    }
    println!(
        "{:14} {}",
        "",
        STATES.map(|state| format!("{state:>11}")).concat()
    );
    for (which, states) in MOVES.iter().zip(&coverage) {
        println!(
            "{which:14} {}",
            states.map(|count| format!("{count:>11}")).concat()
        );
    }
    if sequences >= 100 {
        for (which, states) in MOVES.iter().zip(&coverage) {
            for (state, count) in STATES.iter().zip(states) {
                assert!(*count > 0, "\"{which}\" never met a path that is {state}");
            }
        }
    }
}

/// One processor that serves two sessions in order of arrival.
struct Processor {
    /// Time until which it is busy.
    free: Instant,
}

/// Time to receive or send a packet, and for one step of the work that is not in proportion to
/// packets. On two x86-64 cores a packet takes 0.7 us.
const PACKET: Duration = Duration::from_micros(1);
const STEP: Duration = Duration::from_nanos(20);

impl Processor {
    /// Makes a node process a packet, and returns the packets that it sends. `None` if the socket's
    /// buffer is full.
    fn serve(&mut self, node: &mut Node, packet: &Packet, now: Instant) -> Option<Vec<Packet>> {
        if self.free.since(now) > Duration::from_millis(20) {
            return None;
        }
        let steps = |node: &Node| node.ingress.steps() + node.egress().counters().steps;
        let before = steps(node);
        node.receive(packet, now);
        node.flush(now);
        let sent = node.transmit(now);
        let work = PACKET * (1 + sent.len() as u32) + STEP * (steps(node) - before) as u32;
        self.free = self.free.max(now) + work;
        Some(sent)
    }
}

/// Returns the bytes that an honest client receives in 300 ms of a transfer of 50 Mbit/s, while a
/// hostile one sends the packets of `attack` at 100 Mbit/s.
fn goodput(mut attack: impl FnMut(&mut Peer, u64, Instant) -> Option<Packet>) -> u64 {
    const PATH: PathId = PathId(0);
    let mut now = START;
    let mut hub = Node::new(Role::Hub, 1, now);
    let mut client = Node::new(Role::Client, 2, now);
    let mut target = Node::new(Role::Hub, 3, now);
    let mut peer = Peer::new(4);
    (peer.ends, peer.is_terse, peer.flows) = (false, true, 1 << 16);
    let mut processor = Processor { free: now };
    for node in [&mut hub, &mut client, &mut target] {
        node.open(PATH, now);
    }
    hub.moved(PATH, now);
    target.moved(PATH, now);
    // One-way delay of 10 ms.
    let (mut down, mut up) = (Vec::<(Instant, Packet)>::new(), Vec::<(Instant, Packet)>::new());
    let delay = Duration::from_millis(10);
    let mut owed = 0_u64;
    for step in 0..300_u64 {
        now = START + Duration::from_millis(step);
        for _ in 0..5 {
            hub.offer(protocol::TCP, 1, 1_200, 1_160, now);
            target.offer(protocol::TCP, 1, 60, 1_160, now);
        }
        let arrived: Vec<_> = up.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, packet) in arrived {
            let sent = processor.serve(&mut hub, &packet, now).unwrap_or_default();
            down.extend(sent.into_iter().map(|packet| (now + delay, packet)));
        }
        for packet in peer.courtesies(PATH, now) {
            for packet in processor.serve(&mut target, &packet, now).unwrap_or_default() {
                peer.hear(&packet);
            }
        }
        // 100 Mbit/s are 12,500 bytes in a millisecond.
        owed += 12_500;
        while let Some(packet) = attack(&mut peer, step, now) {
            owed = owed.saturating_sub(packet.udp_len() + 28);
            for packet in processor.serve(&mut target, &packet, now).unwrap_or_default() {
                peer.hear(&packet);
            }
            if owed == 0 {
                break;
            }
        }
        for packet in target.transmit(now) {
            peer.hear(&packet);
        }
        if processor.free <= now + Duration::from_millis(20) {
            let sent = hub.transmit(now);
            processor.free = processor.free.max(now) + PACKET * sent.len() as u32;
            down.extend(sent.into_iter().map(|packet| (now + delay, packet)));
        }
        let arrived: Vec<_> = down.extract_if(.., |(at, _)| *at <= now).collect();
        arrived.iter().for_each(|(_, packet)| client.receive(packet, now));
        client.flush(now);
        up.extend(
            client
                .transmit(now)
                .into_iter()
                .map(|packet| (now + delay, packet)),
        );
    }
    target.check_work();
    client.delivered.1
}

#[test]
fn an_honest_client_keeps_its_goodput_beside_a_hostile_one_at_full_rate() {
    let alone = goodput(|_, _, _| None);
    assert!(alone > 600_000, "{alone} bytes without anybody else");
    let random = goodput(|peer, _, now| Some(peer.next(PathId(0), now).1));
    // Use only one kind of move, and find the worst.
    let mut worst = (random, "any move");
    for (wanted, name) in MOVES.iter().enumerate() {
        let mut lots = Lots::new(wanted as u64);
        let bytes = goodput(|peer, _, now| {
            let tries = 1 + lots.below(2);
            (0..200 * tries)
                .map(|_| peer.next(PathId(0), now))
                .find(|(which, _)| *which == wanted)
                .map(|(_, packet)| packet)
        });
        println!("{name:14} {:.3}", bytes as f64 / alone as f64);
        worst = worst.min((bytes, name));
    }
    let (bytes, name) = worst;
    assert!(
        bytes as f64 >= 0.9 * alone as f64,
        "{bytes} of {alone} bytes beside \"{name}\""
    );
}
