//! Two ends of a session on virtual time over emulated links, without encryption.
//!
//! Scope: the tunnels of both ends, real headers (every report and probe is emitted and parsed),
//! two clocks that disagree; packets that parity covers, and parity, with their bytes. Limitations:
//! datagrams leave at once (no batches, no sockets), other inner payloads are labels.
#![allow(unreachable_pub, reason = "a module of a test program")]

mod application;
mod datagram;
mod end;
mod network;

use std::collections::{BTreeMap, BTreeSet};

use hawser_netem::{Change, Link};
use hawser_proto::egress::Egress;
use hawser_proto::ingress::{Freshness, Ingress};
use hawser_proto::path::State;
use hawser_proto::tunnel::{
    self, Arrival, Buffers, Handoff, Opened, Receiving, RelayIntervals, Sending, Tunnel,
};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::{Class, FRAMING, INNER_LEN, Inner, Kind, Outer};
use hawser_wire::inner::{Ecn, protocol};

use application::Application;
pub use application::Work;
pub use datagram::Label;
use datagram::{Datagram, Way};
pub use end::End;
use end::{ROLES, config};
pub use network::{Net, net};

pub const CLIENT: usize = 0;
pub const HUB: usize = 1;
/// Bytes between an inner packet and its outer IP packet.
const OVERHEAD: u16 = 28 + FRAMING as u16;
/// Offset of the hub's clock.
const CLOCK_OFFSET: Duration = Duration::from_secs(5 * 3600);

/// Time that a fragile network fails after a packet that is too large, as some modems do.
const HANGS_FOR: Duration = Duration::from_secs(60);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The time at which a test begins; the clocks are not at their epoch.
pub const START: Instant = Instant::from_nanos(3_000_000_000);

pub struct World {
    pub now: Instant,
    pub ends: [End; 2],
    links: Vec<[Link<Datagram>; 2]>,
    /// By network: maximum IP packet; larger ones are dropped.
    pub widths: Vec<u64>,
    /// By network: after a larger IP packet, no packet passes for [`HANGS_FOR`].
    pub fragile: Vec<Option<u64>>,
    /// By network: when it last failed for that reason, and how often.
    pub hung: Vec<(Instant, u32)>,
    applications: Vec<Application>,
    /// Inner packets lost by links, by receiving end.
    pub lost: [u64; 2],
    /// Lost packets, by flow and number; their retransmissions may have arrived.
    pub lost_labels: [BTreeSet<(u16, u64)>; 2],
    /// Both ends are of a version that does not know parity packets.
    pub is_older: bool,
    budgets: BTreeMap<PathId, (u64, u64)>,
    /// Current source of each network's datagrams.
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

    /// Ends the process of one end and starts the next one from a checkpoint, without a pause.
    /// Queued packets are lost.
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

    /// Closes a path at both ends: its network is removed, and the packets in flight are lost.
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

    /// Advances the time to `until` after the start.
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

    /// Sends the next burst of an end; returns false if there is none.
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

    /// Records that a link has lost a packet to an end.
    fn lose(&mut self, to: usize, label: Option<Label>) {
        self.lost[to] += u64::from(label.is_some());
        self.lost_labels[to].extend(label.map(|label| (label.flow, label.number)));
    }

    /// Packets and bytes that a path's link carried from one end.
    pub fn carried(&self, path: usize, from: usize) -> hawser_netem::Counters {
        self.links[path][from].counters()
    }
}
