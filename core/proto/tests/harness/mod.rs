//! Two ends of a session on virtual time over emulated links, without encryption.
//!
//! Scope: the tunnels of both ends, real headers (every report and probe is emitted and parsed),
//! two clocks that disagree; packets that parity covers, and parity, with their bytes. Limitations:
//! datagrams leave at once (no batches, no sockets), other inner payloads are labels.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

mod application;

use std::collections::{BTreeMap, BTreeSet};

use hawser_netem::{Capacity, Change, Jitter, Link, LinkConfig, Loss, QueueBound};
use hawser_proto::egress::Egress;
use hawser_proto::flow::Run;
use hawser_proto::ingress::{Freshness, Ingress};
use hawser_proto::path::{self, State};
use hawser_proto::tunnel::{
    self, Arrival, Buffers, Handoff, Items, Opened, Receiving, RelayIntervals, Role, Sending, Source, Tunnel,
};
use hawser_units::{Duration, Instant, PathId, Rate};
use hawser_wire::data::{Class, FEEDBACK_LEN, FRAMING, Feedback, INNER_LEN, Inner, Kind, Outer};
use hawser_wire::inner::{Ecn, protocol};
use hawser_wire::offload::Offload;

use application::Application;
pub use application::Work;

pub const CLIENT: usize = 0;
pub const HUB: usize = 1;
/// Bytes between an inner packet and its outer IP packet.
const OVERHEAD: u16 = 28 + FRAMING as u16;
/// How far the hub's clock is ahead.
const CLOCK_OFFSET: Duration = Duration::from_secs(5 * 3600);

/// Time that a fragile network fails after a packet that is too large, as some modems do.
const HANGS_FOR: Duration = Duration::from_secs(60);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A label instead of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    pub flow: u16,
    pub number: u64,
    pub len: u64,
    pub since: Instant,
    /// What an inner acknowledgement says: packets received, and the newest.
    pub ack: Option<(u64, u64)>,
    pub marked: bool,
}

impl Label {
    /// The packet of a label that parity covers: its bytes say what the label says.
    fn packet(&self) -> Vec<u8> {
        let mut packet = packet(protocol::UDP, self.flow, self.len as usize);
        let at = packet.len() - 18;
        packet[at..at + 2].copy_from_slice(&self.flow.to_be_bytes());
        packet[at + 2..at + 10].copy_from_slice(&self.number.to_be_bytes());
        packet[at + 10..].copy_from_slice(&self.since.as_nanos().to_be_bytes());
        packet
    }

    fn read(packet: &[u8]) -> Option<Self> {
        let (_, tail) = packet.split_last_chunk::<18>()?;
        let u64_at = |at: usize| tail[at..at + 8].try_into().ok().map(u64::from_be_bytes);
        Some(Self {
            flow: u16::from_be_bytes([tail[0], tail[1]]),
            number: u64_at(2)?,
            len: packet.len() as u64,
            since: Instant::from_nanos(u64_at(10)?),
            ack: None,
            marked: false,
        })
    }
}

struct Datagram {
    opened: Opened,
    body: Vec<u8>,
    udp_len: usize,
    label: Option<Label>,
}

impl Datagram {
    /// Of a packet that is no inner one.
    const NO_LABEL: Label = Label {
        flow: 0,
        number: 0,
        len: 0,
        since: Instant::ZERO,
        ack: None,
        marked: false,
    };
}

/// Where datagrams come from: the client's address on a network, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way(u8);

impl Source for Way {
    fn overhead(&self) -> u16 {
        OVERHEAD
    }
}

impl Datagram {
    /// Makes a report that of a version which does not know parity packets.
    fn forget_parity(&mut self) {
        if self.opened.inner.kind != Kind::Feedback {
            return;
        }
        let mut report = Feedback::parse(&self.body).expect("a report");
        report.takes_parity = false;
        report.takes_fragments = false;
        let mut whole = [0; FEEDBACK_LEN];
        report.emit(&mut whole);
        self.body.copy_from_slice(&whole[..report.emitted_len()]);
    }
}

impl Items<Label> for Datagram {
    fn body(&self, _: &Label) -> &[u8] {
        &self.body
    }

    fn store(&mut self, packet: &[u8], _: &Inner) -> Option<Label> {
        Some(Label::read(packet).expect("was written"))
    }

    fn join(&mut self, packet: &[u8], _: &Inner, last: &Label) -> Option<Label> {
        assert_eq!(packet.len() as u64, last.len, "every piece of it has come");
        Some(*last)
    }

    fn free(&mut self, _: Label) {}
}

/// The labels of packets that wait to be sent, by buffer.
#[derive(Default)]
struct Lent {
    labels: Vec<Option<Label>>,
    free: Vec<usize>,
    scratch: Vec<u8>,
}

impl Lent {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.labels.push(None);
            self.labels.len() - 1
        })
    }

    fn label(&self, buffer: usize) -> Label {
        self.labels[buffer].expect("a buffer is filled while it is sent")
    }
}

impl Buffers<usize> for Lent {
    fn packet(&mut self, run: &Run<usize>) -> &[u8] {
        self.scratch = self.label(run.buffer).packet();
        self.scratch.resize(run.cut.total(), 0);
        &self.scratch
    }

    fn release(&mut self, id: usize) {
        assert!(
            self.labels[id].take().is_some(),
            "buffer {id} was given back twice"
        );
        self.free.push(id);
    }
}

/// One side of each end.
const ROLES: [Role; 2] = [Role::Client, Role::Hub];

fn config(at: usize, id: PathId, mtu: u16) -> path::Config {
    path::Config {
        id,
        probing: ROLES[at].probing(),
        cap: None,
        mtu,
        overhead: OVERHEAD,
    }
}

/// One network, the same both ways unless changed.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub mbps: f64,
    pub delay_ms: u64,
    pub jitter_us: u64,
    /// Jitter changes the order.
    pub shuffles: bool,
    pub loss: f64,
    pub queue_ms: u64,
    pub mtu: u64,
}

pub const fn net(mbps: f64, delay_ms: u64) -> Net {
    Net {
        mbps,
        delay_ms,
        jitter_us: 0,
        shuffles: false,
        loss: 0.0,
        queue_ms: 100,
        mtu: 1500,
    }
}

impl Net {
    fn link(&self) -> LinkConfig {
        LinkConfig {
            capacity: Capacity::Rate(Rate::from_bps((self.mbps * 1e6) as u64)),
            queue: QueueBound::Time(ms(self.queue_ms)),
            delay: ms(self.delay_ms),
            jitter: Jitter {
                sd: Duration::from_micros(self.jitter_us),
                reorder: self.shuffles,
            },
            loss: Loss::Uniform(self.loss),
            ..LinkConfig::default()
        }
    }
}

/// What one flow's receiver saw.
#[derive(Debug, Default)]
pub struct Sink {
    pub seen: BTreeSet<u64>,
    pub duplicates: u64,
    pub inversions: u64,
    pub newest: Option<u64>,
    pub marked: u64,
    /// Time, bytes and delay of each delivery.
    pub deliveries: Vec<(Instant, u64, Duration)>,
}

impl Sink {
    fn take(&mut self, label: &Label, now: Instant) {
        self.duplicates += u64::from(!self.seen.insert(label.number));
        self.inversions += u64::from(self.newest > Some(label.number));
        self.newest = self.newest.max(Some(label.number));
        self.marked += u64::from(label.marked);
        self.deliveries.push((now, label.len, now.since(label.since)));
    }

    /// Inner Mbit/s delivered between two times.
    pub fn mbps(&self, from: Duration, to: Duration) -> f64 {
        let within = self.within(from, to).map(|(_, len, _)| len).sum::<u64>();
        within as f64 * 8.0 / 1e6 / (to - from).as_secs_f64()
    }

    fn within(&self, from: Duration, to: Duration) -> impl Iterator<Item = &(Instant, u64, Duration)> {
        let range = START + from..START + to;
        self.deliveries
            .iter()
            .filter(move |(at, _, _)| range.contains(at))
    }

    /// The longest time without a delivery between two times.
    pub fn longest_gap(&self, from: Duration, to: Duration) -> Duration {
        let times = self.within(from, to).map(|(at, _, _)| *at).chain([START + to]);
        let mut last = START + from;
        let mut longest = Duration::ZERO;
        for at in times {
            longest = longest.max(at.since(last));
            last = at;
        }
        longest
    }

    /// The delay that a share of the packets of a time stayed below.
    pub fn delay(&self, share: f64, from: Duration, to: Duration) -> Duration {
        let mut delays: Vec<_> = self.within(from, to).map(|(_, _, delay)| *delay).collect();
        delays.sort();
        delays[((delays.len() - 1) as f64 * share) as usize]
    }
}

pub struct End {
    tunnel: Tunnel<usize, Label, (), Way>,
    clock: Duration,
    lent: Lent,
    pub states: Vec<(Instant, PathId, State)>,
    pub sinks: BTreeMap<u16, Sink>,
    pub offered: BTreeMap<u16, u64>,
    pub refused: u64,
}

impl End {
    fn new(at: usize, seed: u64, clock: Duration) -> Self {
        Self {
            tunnel: Tunnel::new(ROLES[at], seed, Handoff::NONE, START + clock),
            clock,
            lent: Lent::default(),
            states: Vec::new(),
            sinks: BTreeMap::new(),
            offered: BTreeMap::new(),
            refused: 0,
        }
    }

    pub fn egress(&self) -> &Egress<usize> {
        self.tunnel.sending().egress()
    }

    pub fn egress_mut(&mut self) -> &mut Egress<usize> {
        self.tunnel.sending_mut().egress_mut()
    }

    pub fn ingress(&self) -> &Ingress<Label> {
        self.tunnel.receiving().ingress()
    }

    pub fn state(&self, path: u16) -> State {
        let mut paths = self.egress().paths();
        paths
            .find(|known| known.id == PathId(path))
            .expect("the path is open")
            .state()
    }

    /// When the path entered a state at or after a time.
    pub fn entered(&self, path: u16, state: State, after: Duration) -> Option<Duration> {
        self.states
            .iter()
            .find(|(at, id, to)| (*id, *to) == (PathId(path), state) && *at >= START + after)
            .map(|(at, _, _)| at.since(START))
    }

    /// Buffers that were lent to the egress and not given back.
    pub fn lent(&self) -> usize {
        self.lent.labels.iter().flatten().count()
    }

    pub fn sink(&self, flow: u16) -> &Sink {
        &self.sinks[&flow]
    }

    /// Offers `segments` packets of `len` bytes in one buffer.
    pub fn offer(&mut self, kind: u8, label: Label, segments: u16, now: Instant) -> bool {
        let headers = if kind == protocol::TCP { 40 } else { 28 };
        let payload = label.len as usize - headers;
        let mut packet = packet(kind, label.flow, headers + payload * usize::from(segments));
        if label.marked {
            packet[1] |= 2;
        }
        let id = self.lent.take();
        let offload = Offload {
            checksum_partial: true,
            segment: payload as u16,
        };
        let label = Label {
            marked: false,
            ..label
        };
        match self
            .tunnel
            .handle_inner(&mut packet, offload, id, now + self.clock)
        {
            Ok(()) => {
                self.lent.labels[id] = Some(label);
                *self.offered.entry(label.flow).or_default() += u64::from(segments);
                true
            }
            Err(_) => {
                self.lent.free.push(id);
                self.refused += u64::from(segments);
                false
            }
        }
    }
}

fn packet(kind: u8, flow: u16, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[9] = kind;
    packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
    packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
    packet[20..22].copy_from_slice(&flow.to_be_bytes());
    packet[22..24].copy_from_slice(&9_u16.to_be_bytes());
    if kind == protocol::TCP {
        packet[32] = 5 << 4;
        packet[33] = hawser_wire::inner::tcp_flag::PSH;
    }
    packet
}

/// The time at which a test begins; the clocks are not at their epoch.
pub const START: Instant = Instant::from_nanos(3_000_000_000);

pub struct World {
    pub now: Instant,
    pub ends: [End; 2],
    links: Vec<[Link<Datagram>; 2]>,
    /// By network: a larger IP packet vanishes.
    pub widths: Vec<u64>,
    /// By network: after a larger IP packet nothing passes for [`HANGS_FOR`].
    pub fragile: Vec<Option<u64>>,
    /// By network: when it last failed for that reason, and how often.
    pub hung: Vec<(Instant, u32)>,
    applications: Vec<Application>,
    /// Inner packets lost by links, by receiving end.
    pub lost: [u64; 2],
    /// Those of them that are named, by flow and number; what was sent again may have come.
    pub lost_labels: [BTreeSet<(u16, u64)>; 2],
    /// Both ends are of a version that does not know parity packets.
    pub is_older: bool,
    budgets: BTreeMap<PathId, (u64, u64)>,
    /// Where each network's datagrams come from now.
    ways: BTreeMap<PathId, Way>,
    seen: BTreeMap<(usize, PathId), u64>,
    steps: u64,
}

impl World {
    pub fn new(nets: &[Net], seed: u64) -> Self {
        let mut world = Self {
            now: START,
            ends: [
                End::new(CLIENT, seed, Duration::ZERO),
                End::new(HUB, seed + 1, CLOCK_OFFSET),
            ],
            links: Vec::new(),
            widths: nets.iter().map(|net| net.mtu).collect(),
            fragile: vec![None; nets.len()],
            hung: vec![(Instant::ZERO, 0); nets.len()],
            applications: Vec::new(),
            lost: [0; 2],
            lost_labels: Default::default(),
            is_older: false,
            budgets: BTreeMap::new(),
            ways: BTreeMap::new(),
            seen: BTreeMap::new(),
            steps: 0,
        };
        for (index, net) in nets.iter().enumerate() {
            let id = PathId(index as u16);
            let link = |way| Link::new(net.link(), seed * 100 + 2 * index as u64 + way, START);
            world.links.push([link(0), link(1)]);
            for (at, end) in world.ends.iter_mut().enumerate() {
                let config = config(at, id, net.mtu as u16);
                end.tunnel.open_path(config, at == CLIENT, START + end.clock);
            }
        }
        world
    }

    /// Ends the process of one end and starts its successor from a checkpoint, both at this moment.
    /// What was queued is lost.
    pub fn restart(&mut self, at: usize) {
        let end = &mut self.ends[at];
        let now = self.now + end.clock;
        for buffer in end.tunnel.close(now) {
            end.lent.release(buffer);
        }
        self.deliver(at);
        let end = &mut self.ends[at];
        let saved = (end.egress().checkpoint(), end.ingress().checkpoint());
        let text = serde_json::to_string(&saved).expect("it can be written");
        let (sending, receiving) = serde_json::from_str(&text).expect("it can be read");
        let ingress = Ingress::restore(&receiving, now).expect("a sound checkpoint");
        let mut egress = Egress::restore(&sending, 77, now).expect("a sound checkpoint");
        let none = RelayIntervals::NONE;
        let mut receiving = Receiving::with(ROLES[at], None, none, ingress);
        for saved in &sending.paths {
            let mtu = self.widths[usize::from(saved.id)] as u16;
            let restored = egress.restore_path(config(at, PathId(saved.id), mtu), saved, true, now);
            restored.expect("a sound checkpoint");
            receiving.restore_path(PathId(saved.id), Some(Way::default()));
        }
        let sending = Sending::with(ROLES[at], egress);
        self.ends[at].tunnel = Tunnel::with(sending, receiving, Handoff::NONE);
    }

    /// Closes a path at both ends: its network is gone, and what is on its way there with it.
    pub fn close(&mut self, path: u16) {
        let state = Some(hawser_netem::State::Down);
        self.change(
            usize::from(path),
            None,
            &Change {
                state,
                ..Change::default()
            },
        );
        for end in &mut self.ends {
            let now = self.now + end.clock;
            end.tunnel.close_path(PathId(path), now);
        }
    }

    /// Gives the client another address on a network.
    pub fn move_client(&mut self, path: PathId) {
        self.ways.entry(path).or_default().0 += 1;
        let end = &mut self.ends[CLIENT];
        let now = self.now + end.clock;
        end.egress_mut().handle_moved(path, OVERHEAD, now);
    }

    pub fn schedule(&mut self, scheduler: &str) {
        for end in &mut self.ends {
            for class in Class::ALL {
                end.egress_mut()
                    .set_scheduler(class, scheduler)
                    .expect("a known scheduler");
            }
        }
    }

    pub fn start(&mut self, from: usize, flow: u16, work: Work, start: Duration, stop: Duration) {
        self.applications.push(Application {
            from,
            flow,
            work,
            start: START + start,
            stop: START + stop,
            next: 0,
            at: START + start,
            window: 10.0,
            threshold: 1e9,
            newest: 0,
            holes: 0,
            recover: 0,
            heard: START + start,
        });
    }

    /// Changes one network: both directions, or only that from one end.
    pub fn change(&mut self, path: usize, from: Option<usize>, change: &Change) {
        for (way, link) in self.links[path].iter_mut().enumerate() {
            if from.is_none_or(|from| from == way) {
                link.set(change.clone(), self.now);
            }
        }
    }

    /// Lets time pass until `until` after the start.
    pub fn run(&mut self, until: Duration) {
        let until = START + until;
        loop {
            self.turn();
            let next = self.next();
            if next > until {
                self.now = until;
                return;
            }
            if next > self.now {
                self.now = next;
                self.steps = 0;
            }
            self.steps += 1;
            if self.steps > 2_000 {
                panic!("spins at {:?}: {}", self.now.since(START), self.who());
            }
        }
    }

    fn end_timer(&self, at: usize) -> Instant {
        let end = &self.ends[at];
        match end.tunnel.poll_timeout(self.now + end.clock) {
            Instant::FAR_FUTURE => Instant::FAR_FUTURE,
            time => time - end.clock,
        }
    }

    fn who(&mut self) -> String {
        let links: Vec<_> = self.links.iter_mut().flatten().map(Link::poll_timeout).collect();
        format!("{:?} {:?} {links:?}", self.end_timer(CLIENT), self.end_timer(HUB))
    }

    fn next(&mut self) -> Instant {
        let links = self
            .links
            .iter_mut()
            .flatten()
            .filter_map(Link::poll_timeout)
            .min();
        let ends = [CLIENT, HUB].map(|at| self.end_timer(at));
        let applications = self.applications.iter().map(|application| application.due());
        links
            .into_iter()
            .chain(ends)
            .chain(applications)
            .min()
            .unwrap_or(Instant::FAR_FUTURE)
    }

    fn turn(&mut self) {
        for index in 0..self.links.len() {
            for way in [CLIENT, HUB] {
                while let Some(datagram) = self.links[index][way].poll_transmit(self.now) {
                    self.arrive(1 - way, PathId(index as u16), datagram);
                }
                while let Some(lost) = self.links[index][way].poll_lost() {
                    self.lose(1 - way, lost.label);
                }
            }
        }
        for at in [CLIENT, HUB] {
            self.flush(at);
        }
        self.work();
        for at in [CLIENT, HUB] {
            self.service(at);
        }
    }

    fn arrive(&mut self, at: usize, path: PathId, mut datagram: Datagram) {
        let end = &mut self.ends[at];
        let arrival = Arrival {
            path,
            opened: datagram.opened,
            udp_len: datagram.udp_len,
            source: *self.ways.entry(path).or_default(),
            ecn: Ecn::NotEct,
            item: datagram.label.unwrap_or(Datagram::NO_LABEL),
        };
        let taken = end
            .tunnel
            .handle_datagram(arrival, self.now + end.clock, &mut datagram);
        assert_ne!(taken.freshness, Freshness::Replayed, "links do not duplicate");
        if at == HUB {
            self.budgets.entry(path).or_default().0 += datagram.udp_len as u64;
        }
        self.deliver(at);
    }

    fn flush(&mut self, at: usize) {
        let end = &mut self.ends[at];
        end.tunnel.end_batch(self.now + end.clock);
        self.deliver(at);
    }

    fn deliver(&mut self, at: usize) {
        let tunnel = &mut self.ends[at].tunnel;
        let labels: Vec<_> = std::iter::from_fn(|| tunnel.poll_inner()).collect();
        for label in &labels {
            let sinks = &mut self.ends[at].sinks;
            match label.ack {
                Some((count, newest)) => {
                    let now = self.now;
                    let application = self.applications.iter_mut().find(|a| a.flow == label.flow);
                    application
                        .expect("acknowledges an application")
                        .on_ack(count, newest, now);
                }
                None => sinks.entry(label.flow).or_default().take(label, self.now),
            }
        }
        self.acknowledge(at, &labels);
    }

    /// Answers each batch of a transfer with one acknowledgement, through the tunnel.
    fn acknowledge(&mut self, at: usize, labels: &[Label]) {
        let Some(label) = labels.iter().rfind(|label| label.ack.is_none()) else {
            return;
        };
        let is_bulk = |a: &Application| a.flow == label.flow && matches!(a.work, Work::Bulk | Work::Whole(_));
        if !self.applications.iter().any(is_bulk) {
            return;
        }
        let sink = &self.ends[at].sinks[&label.flow];
        if sink.seen.len() % 2 == 1 && labels.len() == 1 {
            return;
        }
        let ack = Label {
            len: 52,
            since: self.now,
            ack: Some((sink.seen.len() as u64, sink.newest.unwrap_or_default() + 1)),
            ..*label
        };
        self.ends[at].offer(protocol::TCP, ack, 1, self.now);
    }

    fn work(&mut self) {
        for application in &mut self.applications {
            while let Some((kind, len, segments)) = application.poll(self.now) {
                let label = Label {
                    flow: application.flow,
                    number: application.next,
                    len,
                    since: self.now,
                    ack: None,
                    marked: false,
                };
                self.ends[application.from].offer(kind, label, segments, self.now);
                application.next += u64::from(segments);
            }
        }
    }

    fn service(&mut self, at: usize) {
        let now = self.now + self.ends[at].clock;
        self.ends[at].tunnel.handle_timeout(now);
        let mut count = 0;
        while self.send(at, now) {
            count += 1;
            assert!(count < 100_000, "sends without end");
        }
        let end = &mut self.ends[at];
        while let Some(event) = end.tunnel.poll_event() {
            if let tunnel::Event::Path(id, state) = event {
                end.states.push((self.now, id, state));
            }
        }
    }

    /// Lets the next burst of an end leave; false when there is none.
    fn send(&mut self, at: usize, now: Instant) -> bool {
        let End { tunnel, lent, .. } = &mut self.ends[at];
        let Some(burst) = tunnel.poll_burst(now, lent) else {
            return false;
        };
        let path = burst.path();
        let mut leaving = Vec::new();
        for datagram in burst.datagrams() {
            let last = self.seen.entry((at, path)).or_default();
            assert!(datagram.number > *last, "packet numbers increase");
            *last = datagram.number;
            let label = datagram.segment().map(|(run, index)| {
                let label = lent.label(run.buffer);
                Label {
                    number: label.number + u64::from(index),
                    len: run.cut.len_of(index) as u64,
                    marked: run.mark && index == run.next,
                    ..label
                }
            });
            let mut body = Vec::new();
            // Parity may cover a packet of a realtime flow or one of its copies.
            let is_piece = datagram.inner.kind == Kind::Fragment;
            if datagram.inner.class == Class::Realtime || label.is_none() || is_piece {
                let packet = datagram.segment().map_or(&[][..], |(run, _)| lent.packet(run));
                body.resize(datagram.body_len(), 0);
                datagram.write_body(packet, &mut body);
            }
            let mut datagram = Datagram {
                opened: Opened {
                    outer: Outer {
                        epoch: 0,
                        index: u32::from(path.0),
                        packet_number: datagram.number,
                    },
                    inner: datagram.inner,
                },
                body,
                udp_len: datagram.udp_len(),
                label,
            };
            if self.is_older {
                datagram.forget_parity();
            }
            leaving.push(datagram);
        }
        for datagram in leaving {
            self.put(at, path, datagram);
        }
        true
    }

    fn put(&mut self, at: usize, path: PathId, datagram: Datagram) {
        let inner = datagram.opened.inner;
        let mut header = [0; INNER_LEN];
        inner.emit(&mut header);
        assert_eq!(Inner::parse(&header).map(|(parsed, _)| parsed), Some(inner));
        let udp_len = datagram.udp_len;
        if at == HUB {
            let (heard, sent) = self.budgets.entry(path).or_default();
            *sent += udp_len as u64;
            let proven = self.ends[HUB]
                .states
                .iter()
                .any(|(_, id, s)| (*id, *s) == (path, State::Active))
                || self.ends[HUB].state(path.0) == State::Active;
            assert!(
                proven || *sent <= 3 * *heard,
                "an unproven address got {sent} for {heard}"
            );
        }
        if self.is_hung(usize::from(path.0), udp_len as u64 + 28) {
            self.lose(1 - at, datagram.label);
            return;
        }
        if udp_len as u64 + 28 > self.widths[usize::from(path.0)] {
            self.lose(1 - at, datagram.label);
            return;
        }
        let link = &mut self.links[usize::from(path.0)][at];
        if let Some(lost) = link.handle_packet(datagram, udp_len as u64 + 28, self.now) {
            self.lose(1 - at, lost.label);
        }
    }

    /// Whether a fragile network has failed, or fails for this packet.
    fn is_hung(&mut self, network: usize, len: u64) -> bool {
        let (since, count) = &mut self.hung[network];
        if *count > 0 && self.now.since(*since) < HANGS_FOR {
            return true;
        }
        let fails = self.fragile[network].is_some_and(|most| len > most);
        if fails {
            (*since, *count) = (self.now, *count + 1);
        }
        fails
    }

    /// A link lost a packet on its way to an end.
    fn lose(&mut self, to: usize, label: Option<Label>) {
        self.lost[to] += u64::from(label.is_some());
        self.lost_labels[to].extend(label.map(|label| (label.flow, label.number)));
    }

    /// Packets and bytes that a path's link carried from one end.
    pub fn carried(&self, path: usize, from: usize) -> hawser_netem::Counters {
        self.links[path][from].counters()
    }
}
