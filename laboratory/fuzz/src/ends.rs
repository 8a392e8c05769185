//! Both ends of a session, egress and ingress, with the network between them and a peer that holds
//! valid keys.
//!
//! The input is a list of steps of four bytes. Steps offer inner packets; deliver, lose, duplicate
//! or change packets in flight; create headers and bodies from the input's bytes; add and remove
//! paths; advance the time; and replace an end by a successor that continues from its checkpoint.
//! The invariants are in the model of `core/proto/tests/hostile`; this module adds the invariants
//! of a restart.

#[allow(dead_code, reason = "the tests of `hawser-proto` use all of it")]
#[path = "../../../core/proto/tests/hostile/node.rs"]
mod node;
#[allow(dead_code, reason = "the tests of `hawser-proto` use all of it")]
#[path = "../../../core/proto/tests/hostile/packet.rs"]
mod packet;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hawser_proto::checkpoint::{Receiving, Sending};
use hawser_proto::egress::Egress;
use hawser_proto::ingress::Ingress;
use hawser_proto::path;
use hawser_proto::scheduler;
use hawser_proto::tunnel::{self, Role};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::{Class, INNER_LEN, Inner, MAX_PACKET_NUMBER};
use hawser_wire::inner::protocol;

use node::{Node, OVERHEAD};
use packet::Packet;

/// Time at which the ends begin. Source: our choice, above zero, so that times before it can be
/// computed.
const START: Instant = Instant::from_nanos(3_000_000_000);
/// Seed of the ends' random numbers, which is constant so that only the input differs between runs.
/// Source: our choice, any number.
const SEED: u64 = 1;
/// Maximum number of steps of an input, which bounds its time. Source: our choice; more steps of an
/// input find less than more inputs.
const STEPS: usize = 500;
/// Maximum number of concurrent paths. Source: our choice; more paths meet no code that four do
/// not, and each costs time.
const PATHS: usize = 4;
/// Maximum number of packets in flight to one end; beyond it the oldest is lost. Source: our
/// choice, a bound on memory; some windows, so that losses and reordering occur.
const MAX_IN_FLIGHT: usize = 128;
/// Maximum number of wakes within a step: a wake without progress would repeat immediately. Source:
/// our choice, far more than the timers of a step; a smaller one fails for a step that only lasts
/// long.
const WAKES: usize = 20_000;

/// Runs the steps of an input.
pub(crate) fn ends(input: &[u8]) {
    let mut session = Session::new();
    let mut rest = input;
    for _ in 0..STEPS {
        let Some((step, behind)) = rest.split_first_chunk() else {
            break;
        };
        rest = session.step(*step, behind);
    }
    session.finish();
}

/// End of the session, with its invariants across replacements.
struct End {
    node: Node,
    role: Role,
    /// Set after a restart. The successor's model does not know which addresses are proven, so it
    /// is the model of an end that needs no proof.
    is_successor: bool,
    /// Packets in flight to this end.
    arriving: VecDeque<Packet>,
    accepted: BTreeSet<(PathId, u64)>,
    /// Newest packet number that this end used on each path.
    used: BTreeMap<PathId, u64>,
}

struct Session {
    ends: [End; 2],
    now: Instant,
    paths: Vec<PathId>,
    next_path: u16,
}

impl End {
    fn new(role: Role) -> Self {
        Self {
            node: Node::new(role, SEED, START),
            role,
            is_successor: false,
            arriving: VecDeque::new(),
            accepted: BTreeSet::new(),
            used: BTreeMap::new(),
        }
    }

    /// Executes all due actions. Returns the number of sent packets, which are added to `way`.
    fn act(&mut self, now: Instant, way: &mut VecDeque<Packet>) -> usize {
        self.node.flush(now);
        let sent = self.node.transmit(now);
        let count = sent.len();
        for packet in sent {
            let newest = self.used.entry(packet.path).or_default();
            assert!(
                packet.packet_number > *newest,
                "{:?} is used twice",
                packet.packet_number
            );
            *newest = packet.packet_number;
            way.push_back(packet);
        }
        way.drain(..way.len().saturating_sub(MAX_IN_FLIGHT));
        count
    }

    fn receive(&mut self, packet: &Packet, now: Instant) {
        if !self.node.ingress.accepts(packet.path, packet.packet_number) {
            return;
        }
        let is_new = self.accepted.insert((packet.path, packet.packet_number));
        assert!(is_new, "{:?} takes {} again", packet.path, packet.packet_number);
        self.node.receive(packet, now);
        if self.is_successor && self.role == Role::Hub {
            self.node.heard(packet.path, packet.udp_len(), now);
        }
    }

    /// Creates a header and a body from the input's bytes, numbered after the newest packet that
    /// was sent or received on the path.
    fn forge(&mut self, path: PathId, jump: u8, bytes: &[u8], from: &Self) {
        let Some((inner, body)) = Inner::parse(bytes) else {
            return;
        };
        let sent = from.used.get(&path).copied().unwrap_or_default();
        let taken = self.accepted.range(..=(path, u64::MAX)).next_back();
        let taken = taken
            .filter(|(on, _)| *on == path)
            .map_or(0, |(_, packet_number)| *packet_number);
        let jump = match jump {
            0..0xf0 => u64::from(jump),
            0xf0..0xff => 1 << (jump - 0xe0),
            0xff => MAX_PACKET_NUMBER,
        };
        self.arriving.push_back(Packet {
            path,
            packet_number: (sent.max(taken) + 1 + jump).min(MAX_PACKET_NUMBER),
            inner,
            body: body.to_vec(),
        });
    }

    /// Replaces the end by a successor that continues from its checkpoint, which `what` and `value`
    /// damage.
    fn restart(&mut self, what: u8, value: u16, now: Instant) {
        let sound = (self.node.egress().checkpoint(), self.node.ingress.checkpoint());
        let old = std::mem::replace(&mut self.node, Node::new(Role::Client, SEED, now));
        old.end(now);
        for path in &sound.0.paths {
            self.node.open(PathId(path.id), now);
        }
        let mut damaged = sound.clone();
        damage(&mut damaged, what, value);
        let successor = self.successor(&damaged, now);
        let (egress, ingress) = successor
            .or_else(|| self.successor(&sound, now))
            .expect("what was written can be read");
        // The new model needs no proof: see `is_successor`.
        self.node.sending = tunnel::Sending::with(Role::Client, egress);
        self.node.ingress = ingress;
        self.is_successor = true;
    }

    fn successor(
        &self,
        (sending, receiving): &(Sending, Receiving),
        now: Instant,
    ) -> Option<(Egress<usize>, Ingress<u64>)> {
        let mut egress = Egress::restore(sending, SEED, now).ok()?;
        for path in &sending.paths {
            let config = path::Config {
                id: PathId(path.id),
                probing: self.role.probing(),
                cap: None,
                mtu: 1500,
                overhead: OVERHEAD,
            };
            egress.restore_path(config, path, true, now).ok()?;
        }
        Some((egress, Ingress::restore(receiving, now).ok()?))
    }
}

/// Changes a number that affects only speed.
fn damage((sending, receiving): &mut (Sending, Receiving), what: u8, value: u16) {
    let number = match value {
        0 => u64::MAX,
        _ => u64::from(value) << (value % 48),
    };
    let path = sending.paths.first_mut();
    let other = receiving.paths.first_mut();
    let (Some(path), Some(other)) = (path, other) else {
        return;
    };
    match what {
        0 => path.sent = number,
        1 => path.delivered = number,
        2 => path.reported_packets = number as u32,
        3 => path.outer_mtu = value,
        4 => path.round_trip_us = number as u32,
        5 => path.rate_bps = number,
        6 => path.is_active ^= true,
        7 => other.packets = number as u32,
        8 => other.bytes = number,
        9 => sending.peer_takes_parity ^= true,
        _ => {}
    }
}

impl Session {
    fn new() -> Self {
        let mut session = Self {
            ends: [End::new(Role::Client), End::new(Role::Hub)],
            now: START,
            paths: Vec::new(),
            next_path: 0,
        };
        session.open();
        session.open();
        session.settle();
        session
    }

    fn open(&mut self) {
        if self.paths.len() >= PATHS {
            return;
        }
        let id = PathId(self.next_path);
        self.next_path += 1;
        self.paths.push(id);
        for end in &mut self.ends {
            end.node.open(id, self.now);
        }
        // The called end learns the far address of a path from its first packet.
        self.ends[1].node.moved(id, self.now);
    }

    fn close(&mut self, id: PathId) {
        self.paths.retain(|path| *path != id);
        for end in &mut self.ends {
            end.node.close(id, self.now);
        }
    }

    /// Executes one step, and returns the rest of the bytes after it.
    fn step<'a>(&mut self, [what, a, b, c]: [u8; 4], behind: &'a [u8]) -> &'a [u8] {
        let path = self.paths.get(usize::from(b)).copied();
        let path = path.unwrap_or(PathId(u16::from(b)));
        let now = self.now;
        let [first, second] = &mut self.ends;
        let (end, far) = if what & 0x80 == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let place = usize::from(a).checked_rem(end.arriving.len());
        let mut rest = behind;
        match what & 0x0f {
            0 => {
                let kind = [protocol::TCP, protocol::UDP][usize::from(a & 1)];
                let len = 40 + usize::from(c) * 16;
                for _ in 0..=a >> 4 {
                    end.node.offer(kind, u16::from(b & 0x0f), len, 1_100, now);
                }
            }
            1 => {
                let count = end.arriving.len().min(usize::from(a) + 1);
                let arrived: Vec<_> = end.arriving.drain(..count).collect();
                arrived.iter().for_each(|packet| end.receive(packet, now));
            }
            2 => {
                if let Some(packet) = place.and_then(|place| end.arriving.remove(place)) {
                    end.receive(&packet, now);
                }
            }
            3 => {
                let packet = place.and_then(|place| end.arriving.get(place)).cloned();
                packet.iter().for_each(|packet| end.receive(packet, now));
            }
            4 => drop(place.and_then(|place| end.arriving.remove(place))),
            5 => {
                let packet = place.and_then(|place| end.arriving.get_mut(place));
                packet.into_iter().for_each(|packet| alter(packet, b, c));
            }
            6 => {
                let (bytes, others) = behind.split_at(behind.len().min(INNER_LEN + usize::from(c)));
                rest = others;
                end.forge(path, a, bytes, far);
            }
            7 => self.wait(Duration::from_micros(u64::from(a) * 50)),
            8 => self.wait(Duration::from_millis(u64::from(a))),
            // The machine was suspended.
            9 => self.now += Duration::from_millis(u64::from(a) * 500),
            10 => self.open(),
            11 => self.close(path),
            12 => end.node.moved(path, now),
            13 => end.restart(a, u16::from_be_bytes([b, c]), now),
            14 => {
                let names = scheduler::NAMES;
                let name = names[usize::from(a) % names.len()];
                let class = Class::ALL[usize::from(b) % Class::ALL.len()];
                let known = end.node.sending.egress_mut().set_scheduler(class, name);
                known.expect("it is one of the names");
            }
            _ => {
                for packet in end.arriving.drain(..).rev().collect::<Vec<_>>() {
                    end.receive(&packet, now);
                }
            }
        }
        self.settle();
        rest
    }

    /// Advances the time and executes all actions that become due.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        for round in 0.. {
            assert!(round < WAKES, "wakes without end");
            let due = self.due();
            if due > until {
                break;
            }
            self.now = self.now.max(due);
            self.settle();
        }
        self.now = until;
    }

    fn due(&self) -> Instant {
        let due = self.ends.each_ref().map(|end| end.node.due(self.now));
        due[0].min(due[1])
    }

    /// Runs both ends until no action is due.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 40, "spins at {:?}", self.now);
            let [first, second] = &mut self.ends;
            let sent = first.act(self.now, &mut second.arriving) + second.act(self.now, &mut first.arriving);
            if sent == 0 && self.due() > self.now {
                break;
            }
        }
        self.ends.iter().for_each(|end| end.node.check_work());
    }

    fn finish(self) {
        let now = self.now;
        self.ends.into_iter().for_each(|end| end.node.end(now));
    }
}

/// Changes a byte of a packet's header or body.
fn alter(packet: &mut Packet, place: u8, value: u8) {
    let place = usize::from(place);
    if let Some(byte) = place
        .checked_sub(INNER_LEN)
        .and_then(|at| packet.body.get_mut(at))
    {
        *byte = value;
        return;
    }
    let mut header = [0; INNER_LEN];
    packet.inner.emit(&mut header);
    header[place % INNER_LEN] = value;
    if let Some((inner, _)) = Inner::parse(&header) {
        packet.inner = inner;
    }
}
