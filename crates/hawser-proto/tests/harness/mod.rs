//! Two ends of a session on virtual time over emulated links, joined as the daemon's data plane joins them, without encryption.
//!
//! Scope: both egresses and ingresses, the relays between them, real headers (every report and probe is emitted and parsed), two clocks that
//! disagree; packets that parity covers, and parity, with their bytes. Limitations: datagrams leave at once (no batches, no sockets), other inner payloads are labels.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use hawser_netem::{Capacity, Change, Jitter, Link, LinkConfig, Loss, QueueBound};
use hawser_proto::egress::{Body, Egress, PROBE_LEN, Transmit};
use hawser_proto::ingress::{Authentic, Event, Ingress};
use hawser_proto::path::{self, Probing, State};
use hawser_units::{Duration, Instant, PathId, Rate};
use hawser_wire::data::{Class, FEEDBACK_LEN, FRAMING, INNER_LEN, Inner, Kind, Outer};
use hawser_wire::inner::protocol;
use hawser_wire::offload::Offload;
use hawser_wire::parity::PARITY_LEN;

pub const CLIENT: usize = 0;
pub const HUB: usize = 1;
/// Bytes between an inner packet and its outer IP packet.
const OVERHEAD: u16 = 28 + FRAMING as u16;
/// How far the hub's clock is ahead.
const CLOCK_OFFSET: Duration = Duration::from_secs(5 * 3600);

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
    outer: Outer,
    inner: Inner,
    body: Vec<u8>,
    udp_len: usize,
    label: Option<Label>,
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
    pub egress: Egress<usize>,
    pub ingress: Ingress<Label>,
    clock: Duration,
    buffers: Vec<Option<Label>>,
    free: Vec<usize>,
    pub heard: BTreeMap<PathId, bool>,
    pub states: Vec<(Instant, PathId, State)>,
    pub sinks: BTreeMap<u16, Sink>,
    pub offered: BTreeMap<u16, u64>,
    pub refused: u64,
}

impl End {
    fn new(seed: u64, clock: Duration) -> Self {
        Self {
            egress: Egress::new(seed, START + clock),
            ingress: Ingress::default(),
            clock,
            buffers: Vec::new(),
            free: Vec::new(),
            heard: BTreeMap::new(),
            states: Vec::new(),
            sinks: BTreeMap::new(),
            offered: BTreeMap::new(),
            refused: 0,
        }
    }

    pub fn state(&self, path: u16) -> State {
        let mut paths = self.egress.paths();
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
        self.buffers.iter().flatten().count()
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
        let id = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(None);
            self.buffers.len() - 1
        });
        let offload = Offload {
            checksum_partial: true,
            segment: payload as u16,
        };
        let label = Label {
            marked: false,
            ..label
        };
        match self.egress.enqueue(&mut packet, offload, id, now + self.clock) {
            Ok(()) => {
                self.buffers[id] = Some(label);
                *self.offered.entry(label.flow).or_default() += u64::from(segments);
                true
            }
            Err(_) => {
                self.free.push(id);
                self.refused += u64::from(segments);
                false
            }
        }
    }

    fn give_back(&mut self, id: usize) {
        assert!(
            self.buffers[id].take().is_some(),
            "buffer {id} was given back twice"
        );
        self.free.push(id);
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

/// What an application does.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A transfer whose window halves at a loss, as TCP's.
    Bulk,
    /// Packets at a fixed rate, whatever happens.
    Open { mbps: f64, len: u64, kind: u8 },
}

#[derive(Debug)]
struct Application {
    from: usize,
    flow: u16,
    work: Work,
    start: Instant,
    stop: Instant,
    next: u64,
    at: Instant,
    window: f64,
    threshold: f64,
    newest: u64,
    holes: u64,
    recover: u64,
    heard: Instant,
}

/// The time at which a test begins; the clocks are not at their epoch.
pub const START: Instant = Instant::from_nanos(3_000_000_000);

pub struct World {
    pub now: Instant,
    pub ends: [End; 2],
    links: Vec<[Link<Datagram>; 2]>,
    /// By network: a larger IP packet vanishes.
    pub widths: Vec<u64>,
    applications: Vec<Application>,
    /// Inner packets lost by links, by receiving end.
    pub lost: [u64; 2],
    /// Both ends are of a version that does not know parity packets.
    pub is_older: bool,
    budgets: BTreeMap<PathId, (u64, u64)>,
    seen: BTreeMap<(usize, PathId), u64>,
    steps: u64,
}

impl World {
    pub fn new(nets: &[Net], seed: u64) -> Self {
        let mut world = Self {
            now: START,
            ends: [End::new(seed, Duration::ZERO), End::new(seed + 1, CLOCK_OFFSET)],
            links: Vec::new(),
            widths: nets.iter().map(|net| net.mtu).collect(),
            applications: Vec::new(),
            lost: [0; 2],
            is_older: false,
            budgets: BTreeMap::new(),
            seen: BTreeMap::new(),
            steps: 0,
        };
        for (index, net) in nets.iter().enumerate() {
            let id = PathId(index as u16);
            let link = |way| Link::new(net.link(), seed * 100 + 2 * index as u64 + way, START);
            world.links.push([link(0), link(1)]);
            for (at, end) in world.ends.iter_mut().enumerate() {
                let probing = [Probing::Eager, Probing::OnHearing][at];
                let config = path::Config {
                    id,
                    probing,
                    cap: None,
                    mtu: net.mtu as u16,
                    overhead: OVERHEAD,
                };
                end.egress.open_path(config, at == CLIENT, START + end.clock);
                end.ingress.open_path(id, START + end.clock);
            }
        }
        world
    }

    /// Ends the process of one end and starts its successor from a checkpoint, both at this moment. What was queued is lost.
    pub fn restart(&mut self, at: usize) {
        let mut held = Vec::new();
        let end = &mut self.ends[at];
        let now = self.now + end.clock;
        end.ingress.drain(now, &mut held);
        self.deliver(at, &held);
        let end = &mut self.ends[at];
        let saved = (end.egress.checkpoint(), end.ingress.checkpoint());
        let text = serde_json::to_string(&saved).expect("it can be written");
        let (sending, receiving) = serde_json::from_str(&text).expect("it can be read");
        for buffer in end.egress.close() {
            end.give_back(buffer);
        }
        end.ingress = Ingress::restore(&receiving, now).expect("a sound checkpoint");
        end.egress = Egress::restore(&sending, 77, now).expect("a sound checkpoint");
        for saved in &sending.paths {
            let probing = [Probing::Eager, Probing::OnHearing][at];
            let config = path::Config {
                id: PathId(saved.id),
                probing,
                cap: None,
                mtu: self.widths[usize::from(saved.id)] as u16,
                overhead: OVERHEAD,
            };
            let restored = end.egress.restore_path(config, saved, true, now);
            restored.expect("a sound checkpoint");
        }
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
            end.egress.close_path(PathId(path), now);
            end.ingress.close_path(PathId(path));
        }
    }

    pub fn schedule(&mut self, scheduler: &str) {
        for end in &mut self.ends {
            for class in Class::ALL {
                end.egress
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

    fn end_timers(&self, at: usize) -> [Instant; 2] {
        let end = &self.ends[at];
        let local = |time: Instant| {
            if time == Instant::FAR_FUTURE {
                time
            } else {
                time - end.clock
            }
        };
        let now = self.now + end.clock;
        let ingress = end.ingress.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        [local(end.egress.poll_timeout(now)), local(ingress)]
    }

    fn who(&mut self) -> String {
        let links: Vec<_> = self.links.iter_mut().flatten().map(Link::poll_timeout).collect();
        format!(
            "{:?} {:?} {links:?}",
            self.end_timers(CLIENT),
            self.end_timers(HUB)
        )
    }

    fn next(&mut self) -> Instant {
        let links = self
            .links
            .iter_mut()
            .flatten()
            .filter_map(Link::poll_timeout)
            .min();
        let ends = [CLIENT, HUB].into_iter().flat_map(|at| self.end_timers(at));
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
                    self.lost[1 - way] += u64::from(lost.label.is_some());
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

    fn arrive(&mut self, at: usize, id: PathId, datagram: Datagram) {
        let end = &mut self.ends[at];
        let now = self.now + end.clock;
        assert!(
            end.ingress.accepts(id, datagram.outer.counter),
            "links do not duplicate"
        );
        let nothing = Label {
            flow: 0,
            number: 0,
            len: 0,
            since: self.now,
            ack: None,
            marked: false,
        };
        let mut out = Vec::new();
        let packet = Authentic {
            outer: datagram.outer,
            inner: datagram.inner,
            body: &datagram.body,
            udp_len: datagram.udp_len,
            ce: false,
            item: datagram.label.unwrap_or(nothing),
        };
        let (_, back) = end.ingress.handle_packet(id, packet, now, &mut out);
        assert!(back.is_some() || datagram.inner.kind == Kind::Packet);
        while let Some(rebuilt) = end.ingress.poll_rebuilt() {
            let label = Label::read(&rebuilt.packet).expect("was written");
            let _ = end.ingress.handle_rebuilt(&rebuilt.inner, label, now, &mut out);
        }
        if at == HUB {
            if end.heard.insert(id, true).is_none() {
                end.egress.handle_moved(id, OVERHEAD, now);
            }
            end.egress.handle_heard(id, datagram.udp_len as u64, now);
            self.budgets.entry(id).or_default().0 += datagram.udp_len as u64;
        }
        self.deliver(at, &out);
    }

    fn flush(&mut self, at: usize) {
        let end = &mut self.ends[at];
        let now = self.now + end.clock;
        let mut out = Vec::new();
        end.ingress.flush(now, now, &mut out);
        while let Some(event) = end.ingress.poll_event() {
            match event {
                Event::Report(report) => end.egress.send_report(report),
                Event::Silence(report) => end.egress.send_silence(report),
                Event::Feedback(id, report) => end.egress.handle_feedback(id, &report, now),
                Event::Probe(id, token) => end.egress.handle_probe(id, token),
                Event::ProbeReply(id, token) => end.egress.handle_probe_reply(id, token, now),
            }
        }
        self.deliver(at, &out);
    }

    fn deliver(&mut self, at: usize, labels: &[Label]) {
        for label in labels {
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
        self.acknowledge(at, labels);
    }

    /// Answers each batch of a transfer with one acknowledgement, through the tunnel.
    fn acknowledge(&mut self, at: usize, labels: &[Label]) {
        let Some(label) = labels.iter().rfind(|label| label.ack.is_none()) else {
            return;
        };
        let is_bulk = |a: &Application| a.flow == label.flow && matches!(a.work, Work::Bulk);
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
        self.ends[at].egress.handle_timeout(now);
        let mut count = 0;
        while let Some(transmit) = self.ends[at].egress.poll_transmit(now) {
            self.send(at, &transmit, now);
            count += 1;
            assert!(count < 100_000, "sends without end");
        }
        let end = &mut self.ends[at];
        while let Some(id) = end.egress.poll_freed() {
            end.give_back(id);
        }
        while let Some((id, state)) = end.egress.poll_change() {
            end.states.push((self.now, id, state));
        }
    }

    fn send(&mut self, at: usize, transmit: &Transmit<usize>, now: Instant) {
        let last = self.seen.entry((at, transmit.path)).or_default();
        assert!(transmit.counter > *last, "counters increase");
        let inner = transmit.body.header(0, now);
        let token = |token: u64, len: usize| {
            let mut body = token.to_be_bytes().to_vec();
            body.resize(len, 0);
            body
        };
        let body = match transmit.body {
            Body::Packets {
                run,
                count,
                last: freed,
                covered,
                ..
            } => {
                *last = transmit.counter + u64::from(count) - 1;
                let label = self.ends[at].buffers[run.buffer].expect("a buffer is filled while it is sent");
                for step in 0..count {
                    let inner = transmit.body.header(step, now);
                    let len = run.len_of(run.next + step);
                    let label = Label {
                        number: label.number + u64::from(run.next + step),
                        len: run.cut.len_of(run.next + step) as u64,
                        marked: run.mark && step == 0,
                        ..label
                    };
                    let counter = transmit.counter + u64::from(step);
                    let mut body = vec![0; if covered { len } else { 0 }];
                    if covered {
                        run.emit(&label.packet(), run.next + step, &mut body);
                    }
                    self.put(at, transmit.path, counter, inner, body, len, Some(label));
                }
                if covered {
                    self.ends[at].egress.cover(transmit, &label.packet(), now);
                }
                if freed {
                    self.ends[at].give_back(run.buffer);
                }
                return;
            }
            Body::Report(mut report) => {
                report.takes_parity &= !self.is_older;
                let mut body = [0; FEEDBACK_LEN];
                report.emit(&mut body);
                body[..report.emitted_len()].to_vec()
            }
            Body::Probe(probe) => {
                let len = usize::from(probe.outer_len.saturating_sub(OVERHEAD));
                token(probe.token, len.max(PROBE_LEN))
            }
            Body::Reply(reply) => token(reply, PROBE_LEN),
            Body::Parity { parity, .. } => {
                let mut head = [0; PARITY_LEN];
                parity.emit(&mut head);
                [&head[..], self.ends[at].egress.symbol()].concat()
            }
        };
        *last = transmit.counter;
        let len = body.len();
        self.put(at, transmit.path, transmit.counter, inner, body, len, None);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a datagram")]
    fn put(
        &mut self,
        at: usize,
        path: PathId,
        counter: u64,
        inner: Inner,
        body: Vec<u8>,
        len: usize,
        label: Option<Label>,
    ) {
        let mut header = [0; INNER_LEN];
        inner.emit(&mut header);
        assert_eq!(Inner::parse(&header).map(|(parsed, _)| parsed), Some(inner));
        let udp_len = len + FRAMING;
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
        let outer = Outer {
            epoch: 0,
            index: u32::from(path.0),
            counter,
        };
        let datagram = Datagram {
            outer,
            inner,
            body,
            udp_len,
            label,
        };
        if udp_len as u64 + 28 > self.widths[usize::from(path.0)] {
            self.lost[1 - at] += u64::from(datagram.label.is_some());
            return;
        }
        let link = &mut self.links[usize::from(path.0)][at];
        if let Some(lost) = link.handle_packet(datagram, udp_len as u64 + 28, self.now) {
            self.lost[1 - at] += u64::from(lost.label.is_some());
        }
    }

    /// Packets and bytes that a path's link carried from one end.
    pub fn carried(&self, path: usize, from: usize) -> hawser_netem::Counters {
        self.links[path][from].counters()
    }
}

impl Application {
    fn due(&self) -> Instant {
        let at = match self.work {
            Work::Bulk => self.at,
            Work::Open { .. } => self.at,
        };
        if at >= self.stop {
            Instant::FAR_FUTURE
        } else {
            at.max(self.start)
        }
    }

    fn in_flight(&self) -> f64 {
        (self.next - self.newest) as f64
    }

    /// Protocol, packet length and number of segments to offer now.
    fn poll(&mut self, now: Instant) -> Option<(u8, u64, u16)> {
        if now < self.start || now >= self.stop {
            return None;
        }
        match self.work {
            Work::Bulk => {
                if now.since(self.heard) > ms(400) {
                    // Everything is taken for lost, as after a retransmission timeout.
                    (self.newest, self.heard) = (self.next, now);
                    (self.threshold, self.window) = ((self.window / 2.0).max(2.0), 10.0);
                }
                self.at = self.heard + ms(400) + Duration::from_nanos(1);
                let room = (self.window - self.in_flight()).floor();
                let run = (self.window / 8.0).clamp(2.0, 44.0);
                (room >= run).then_some((protocol::TCP, 1200, run as u16))
            }
            Work::Open { mbps, len, kind } => {
                if now < self.at {
                    return None;
                }
                self.at += Duration::from_secs_f64(len as f64 * 8.0 / (mbps * 1e6));
                Some((kind, len, 1))
            }
        }
    }

    fn on_ack(&mut self, count: u64, newest: u64, now: Instant) {
        self.heard = now;
        let acknowledged = newest.saturating_sub(self.newest);
        self.newest = self.newest.max(newest);
        let holes = newest.saturating_sub(count);
        if holes > self.holes && newest > self.recover {
            self.window = (self.window * 0.7).max(4.0);
            self.threshold = self.window;
            self.recover = self.next;
        } else if self.window < self.threshold {
            self.window += acknowledged as f64;
        } else {
            self.window += 3.0 * acknowledged as f64 / self.window;
        }
        self.window = self.window.min(4_000.0);
        self.holes = self.holes.max(holes);
    }
}
