//! Both halves of a tunnel as one node: the daemon's own egress and ingress of each end, joined as its data plane joins them.
//!
//! Scope: real headers, reports, probes and parity, whose sizes count; clocks of the two ends that disagree; segmentation offload of the device
//! ([`super::offload`]). Limitations: nothing is encrypted, datagrams leave at once, the control channel is silent.
//!
//! ```text
//!   client --in--> [ egress ] ==(network: up)==> [ ingress ] --out--> server
//!   client <-out-- [ ingress ] <=(network: down)== [ egress ] <--in-- server
//! ```

use std::collections::VecDeque;

use hawser_netem::scenario::Coding;
use hawser_proto::egress::{Body as Sent, Egress, PROBE_LEN, Transmit};
use hawser_proto::ingress::{Authentic, Event, Ingress};
use hawser_proto::path::{self, Probing};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::compression::{Compressed, Contexts, Form};
use hawser_wire::data::{Class, FEEDBACK_LEN, FRAMING, Inner, Outer};
use hawser_wire::inner::protocol;
use hawser_wire::layer::{Layer, Pattern, Reading, Rule};
use hawser_wire::offload::Offload;
use hawser_wire::parity::PARITY_LEN;

use super::Hop;
use super::offload::{Large, cut};
use crate::engine::TimerId;
use crate::network::{Context, LinkId, Node};
use crate::packet::{Address, Body, Ecn, Packet};
use crate::tcp::QUIC_HEADER;

/// Packets kept for repair: as many as the daemon keeps for a session (`hawser-node/src/dataplane/sessions.rs`).
const KEPT_PACKETS: usize = 16_384;

/// The node: index 0 is the client's end, 1 the hub's.
pub(super) struct Tunnel {
    seed: u64,
    ends: Vec<End>,
    /// Links that lead away from each end, by path.
    away: [Vec<LinkId>; 2],
    /// Links that packets from each end come out of, by path.
    arrivals: [Vec<LinkId>; 2],
    /// The client's address on each path.
    outer: Vec<Address>,
    /// Of the videos that it carries.
    coding: Option<Coding>,
    /// Whether its networks have other users, so that packets say whom they are for.
    is_shared: bool,
    inner_in: Vec<LinkId>,
    inner_out: Vec<LinkId>,
    /// Datagrams on their way, by number; lost ones are forgotten after [`PATIENCE`].
    flying: VecDeque<Option<Box<Datagram>>>,
    first_flying: u32,
    out: Vec<Ordered>,
    scratch: Vec<u8>,
}

struct End {
    egress: Egress<usize>,
    ingress: Ingress<Ordered>,
    contexts: Contexts,
    clock: Duration,
    /// What came in at this instant and may still grow.
    entering: Option<Large>,
    buffers: Vec<Option<Large>>,
    free: Vec<usize>,
    heard: Vec<bool>,
    timer: TimerId,
    armed: Instant,
}

struct Datagram {
    outer: Outer,
    inner: Inner,
    body: Vec<u8>,
    udp_len: usize,
    packet: Option<Carried>,
    since: Instant,
}

impl Datagram {
    /// Packet `step` of a transmit, with `len` bytes behind its headers.
    fn new(transmit: &Transmit<usize>, step: u16, len: usize, now: Instant) -> Self {
        Self {
            outer: Outer {
                epoch: 0,
                index: u32::from(transmit.path.0),
                counter: transmit.counter + u64::from(step),
            },
            inner: transmit.body.header(step, now),
            body: Vec::new(),
            udp_len: len + FRAMING,
            packet: None,
            since: now,
        }
    }
}

/// An inner packet on its way.
#[derive(Clone, Copy, Debug)]
struct Carried {
    packet: Packet,
    /// How far it is behind its context, when it is compressed.
    back: u8,
}

/// One in order, with what its inner header said.
type Ordered = (Inner, Carried);

impl End {
    /// Whether the receiver has the headers of a packet, in front of it or in its context.
    fn has_headers(&mut self, (inner, carried): &Ordered, scratch: &mut Vec<u8>) -> bool {
        match inner.form {
            Form::Whole => true,
            Form::Context => {
                write_headers(scratch, &carried.packet);
                self.contexts
                    .remember(inner.flow, inner.sequence, scratch, scratch.len());
                true
            }
            Form::Compressed => {
                let compressed = Compressed {
                    back: carried.back,
                    last_flags: 0,
                };
                let payload = match carried.packet.body {
                    Body::Tcp(segment) => usize::from(segment.payload),
                    Body::Datagram(_) | Body::Tunnel(_) => 0,
                };
                self.contexts
                    .rebuild(inner.flow, inner.sequence, compressed, payload)
                    .is_some()
            }
        }
    }
}

impl Tunnel {
    pub(super) fn new(seed: u64, coding: Option<Coding>, is_shared: bool) -> Self {
        Self {
            seed,
            ends: Vec::new(),
            away: [Vec::new(), Vec::new()],
            arrivals: [Vec::new(), Vec::new()],
            outer: Vec::new(),
            coding,
            is_shared,
            inner_in: Vec::new(),
            inner_out: Vec::new(),
            flying: VecDeque::new(),
            first_flying: 0,
            out: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Tells which links are which: those of each network, with the client's address there, and those from and to client and server.
    pub(super) fn attach(
        &mut self,
        hops: &[Hop],
        outer: Vec<Address>,
        inner_in: [LinkId; 2],
        inner_out: [LinkId; 2],
    ) {
        // The client's end sends up, which is second in each pair.
        self.away = [1, 0].map(|way| hops.iter().map(|hop| hop.sends[way]).collect());
        self.arrivals = [1, 0].map(|way| hops.iter().map(|hop| hop.arrives[way]).collect());
        self.outer = outer;
        self.inner_in = inner_in.to_vec();
        self.inner_out = inner_out.to_vec();
    }

    /// An inner packet enters at an end; what enters with it may be joined to it.
    fn enter(&mut self, at: usize, packet: Packet, context: &mut Context<'_>) {
        let end = &mut self.ends[at];
        if end
            .entering
            .as_mut()
            .is_some_and(|entering| entering.join(&packet))
        {
            return;
        }
        let before = end.entering.replace(Large::new(packet));
        match before {
            Some(large) => self.offer(at, large, context),
            None => {
                end.armed = context.now();
                context.arm(end.timer, end.armed);
            }
        }
    }

    fn offer(&mut self, at: usize, large: Large, context: &mut Context<'_>) {
        write_headers(&mut self.scratch, &large.packet);
        let end = &mut self.ends[at];
        let id = end.free.pop().unwrap_or_else(|| {
            end.buffers.push(None);
            end.buffers.len() - 1
        });
        let offload = Offload {
            checksum_partial: true,
            segment: large.segment,
        };
        let now = context.now() + end.clock;
        match end.egress.enqueue(&mut self.scratch, offload, id, now) {
            Ok(()) => end.buffers[id] = Some(large),
            // As in the daemon, the packet is lost and its sender notices.
            Err(_) => end.free.push(id),
        }
    }

    /// A datagram arrives at an end.
    fn arrive(&mut self, at: usize, path: usize, number: u32, context: &mut Context<'_>) {
        let index = number.wrapping_sub(self.first_flying) as usize;
        let Some(datagram) = self.flying.get_mut(index).and_then(Option::take) else {
            return;
        };
        let id = PathId(path as u16);
        let end = &mut self.ends[at];
        let now = context.now() + end.clock;
        if !end.ingress.accepts(id, datagram.outer.counter) {
            return;
        }
        let nothing = Carried {
            packet: placeholder(datagram.udp_len, context.now()),
            back: 0,
        };
        let authentic = Authentic {
            outer: datagram.outer,
            inner: datagram.inner,
            body: &datagram.body,
            udp_len: datagram.udp_len,
            ce: false,
            item: (datagram.inner, datagram.packet.unwrap_or(nothing)),
        };
        let _ = end.ingress.handle_packet(id, authentic, now, &mut self.out);
        while let Some(rebuilt) = self.ends[at].ingress.poll_rebuilt() {
            if let Some(carried) = self.named(&rebuilt.packet) {
                let inner = rebuilt.inner;
                let _ = self.ends[at]
                    .ingress
                    .handle_rebuilt(&inner, (inner, carried), now, &mut self.out);
            }
        }
        let end = &mut self.ends[at];
        if at == HUB {
            if !std::mem::replace(&mut end.heard[path], true) {
                end.egress.handle_moved(id, OVERHEAD, now);
            }
            end.egress.handle_heard(id, datagram.udp_len as u64, now);
        }
        self.flush(at, context);
        self.service(at, context);
    }

    /// Ends a batch of the receiving half, and passes on what it tells the sending half.
    fn flush(&mut self, at: usize, context: &mut Context<'_>) {
        let end = &mut self.ends[at];
        let now = context.now() + end.clock;
        end.ingress.flush(now, now, &mut self.out);
        while let Some(event) = end.ingress.poll_event() {
            match event {
                Event::Report(report) => end.egress.send_report(report),
                Event::Silence(report) => end.egress.send_silence(report),
                Event::Feedback(id, report) => end.egress.handle_feedback(id, &report, now),
                Event::Probe(id, token) => end.egress.handle_probe(id, token),
                Event::ProbeReply(id, token) => end.egress.handle_probe_reply(id, token, now),
            }
        }
        let mut leaving: Option<Large> = None;
        for ordered in self.out.drain(..) {
            if !end.has_headers(&ordered, &mut self.scratch) {
                continue;
            }
            let packet = ordered.1.packet;
            if !leaving.as_mut().is_some_and(|large| large.join(&packet))
                && let Some(before) = leaving.replace(Large::new(packet))
            {
                context.send(self.inner_out[at], before.packet);
            }
        }
        if let Some(last) = leaving {
            context.send(self.inner_out[at], last.packet);
        }
    }

    /// Lets the sending half send, and sets the end's timer.
    fn service(&mut self, at: usize, context: &mut Context<'_>) {
        if let Some(entered) = self.ends[at].entering.take() {
            self.offer(at, entered, context);
        }
        let now = context.now() + self.ends[at].clock;
        self.ends[at].egress.handle_timeout(now);
        while let Some(transmit) = self.ends[at].egress.poll_transmit(now) {
            self.send(at, &transmit, now, context);
        }
        let end = &mut self.ends[at];
        while let Some(id) = end.egress.poll_freed() {
            end.buffers[id] = None;
            end.free.push(id);
        }
        while end.egress.poll_change().is_some() {}
        let due = end
            .egress
            .poll_timeout(now)
            .min(end.ingress.poll_timeout().unwrap_or(Instant::FAR_FUTURE));
        if due == Instant::FAR_FUTURE {
            return;
        }
        let due = (due - end.clock).max(context.now() + LEAST_SLEEP);
        if due < end.armed || end.armed <= context.now() {
            end.armed = due;
            context.arm(end.timer, due);
        }
    }

    fn send(&mut self, at: usize, transmit: &Transmit<usize>, now: Instant, context: &mut Context<'_>) {
        let token = |token: u64, len: usize| {
            let mut body = token.to_be_bytes().to_vec();
            body.resize(len, 0);
            body
        };
        let body = match transmit.body {
            Sent::Packets {
                run,
                count,
                last,
                covered,
                ..
            } => {
                let end = &mut self.ends[at];
                let large = end.buffers[run.buffer].expect("a buffer is filled while it is sent");
                if last {
                    end.buffers[run.buffer] = None;
                    end.free.push(run.buffer);
                }
                let covered = covered && large.packet.size >= LEAST_NAMED && count == 1;
                for step in 0..count {
                    let index = run.next + step;
                    let mut packet = cut(&large.packet, index, run.cut.packet_len(), run.cut.len_of(index));
                    if run.mark && step == 0 {
                        packet.ecn = Ecn::Marked;
                    }
                    let carried = Carried {
                        packet,
                        back: run
                            .context
                            .map_or(0, |context| index.saturating_sub(context) as u8),
                    };
                    let mut datagram = Datagram::new(transmit, step, run.len_of(index), now);
                    datagram.packet = Some(carried);
                    if covered {
                        self.write_named(&large.packet);
                        self.ends[at].egress.cover(transmit, &self.scratch, now);
                        datagram.body.resize(run.len_of(index), 0);
                        run.emit(&self.scratch, index, &mut datagram.body);
                    }
                    self.put(at, transmit.path, datagram, context);
                }
                return;
            }
            Sent::Report(report) => {
                let mut body = [0; FEEDBACK_LEN];
                report.emit(&mut body);
                body[..report.emitted_len()].to_vec()
            }
            Sent::Probe(probe) => {
                let len = usize::from(probe.outer_len.saturating_sub(OVERHEAD));
                token(probe.token, len.max(PROBE_LEN))
            }
            Sent::Reply(reply) => token(reply, PROBE_LEN),
            Sent::Parity { parity, .. } => {
                let mut head = [0; PARITY_LEN];
                parity.emit(&mut head);
                [&head[..], self.ends[at].egress.symbol()].concat()
            }
        };
        let datagram = Datagram::new(transmit, 0, body.len(), now);
        self.put(at, transmit.path, Datagram { body, ..datagram }, context);
    }

    /// The bytes of a packet that parity covers: it has none, so they end in the number of the datagram that is about to carry it.
    fn write_named(&mut self, packet: &Packet) {
        write_headers(&mut self.scratch, packet);
        let number = self.first_flying.wrapping_add(self.flying.len() as u32);
        let tail = self.scratch.last_chunk_mut().expect("long enough to be named");
        *tail = number.to_be_bytes();
    }

    /// The packet of bytes that [`Self::write_named`] wrote, which was lost with its datagram.
    fn named(&self, bytes: &[u8]) -> Option<Carried> {
        let number = u32::from_be_bytes(*bytes.last_chunk()?);
        let index = number.wrapping_sub(self.first_flying) as usize;
        self.flying.get(index)?.as_ref()?.packet
    }

    /// Lets a datagram leave on a path.
    fn put(&mut self, at: usize, path: PathId, mut datagram: Datagram, context: &mut Context<'_>) {
        let number = self.first_flying.wrapping_add(self.flying.len() as u32);
        let path = usize::from(path.0);
        let frame = Packet {
            // Both ends are this node; on the air the way up has no addresses.
            destination: if at == HUB || self.is_shared {
                self.outer[path]
            } else {
                Address::default()
            },
            flow: datagram
                .packet
                .map_or_else(Default::default, |carried| carried.packet.flow),
            body: Body::Tunnel(number),
            ..placeholder(datagram.udp_len, context.now())
        };
        datagram.since = context.now();
        self.flying.push_back(Some(Box::new(datagram)));
        self.forget_lost(context.now());
        context.send(self.away[at][path], frame);
    }

    fn forget_lost(&mut self, now: Instant) {
        let is_over = |datagram: &Option<Box<Datagram>>| {
            datagram
                .as_ref()
                .is_none_or(|datagram| now.since(datagram.since) > PATIENCE)
        };
        while self.flying.front().is_some_and(is_over) {
            self.flying.pop_front();
            self.first_flying = self.first_flying.wrapping_add(1);
        }
    }
}

impl Node for Tunnel {
    fn handle_start(&mut self, context: &mut Context<'_>) {
        for (at, clock) in CLOCKS.into_iter().enumerate() {
            let now = context.now() + clock;
            let mut end = End {
                egress: Egress::new(self.seed.wrapping_add(at as u64), now),
                ingress: Ingress::default(),
                contexts: Contexts::default(),
                clock,
                entering: None,
                buffers: Vec::new(),
                free: Vec::new(),
                heard: vec![false; self.away[at].len()],
                timer: context.timer(at as u32),
                armed: Instant::FAR_FUTURE,
            };
            if let Some(coding) = self.coding {
                stripe(&mut end.egress, coding);
            }
            end.egress.keep_at_most(KEPT_PACKETS);
            for index in 0..self.away[at].len() {
                let id = PathId(index as u16);
                let config = path::Config {
                    id,
                    probing: [Probing::Eager, Probing::OnHearing][at],
                    cap: None,
                    mtu: MTU,
                    overhead: OVERHEAD,
                };
                end.egress.open_path(config, at != HUB, now);
                end.ingress.open_path(id, now);
            }
            self.ends.push(end);
        }
        for at in 0..self.ends.len() {
            self.service(at, context);
        }
    }

    fn handle_packet(&mut self, packet: Packet, link: LinkId, context: &mut Context<'_>) {
        if let Some(at) = self.inner_in.iter().position(|inner| *inner == link) {
            self.enter(at, packet, context);
            return;
        }
        let Body::Tunnel(number) = packet.body else { return };
        for from in 0..self.arrivals.len() {
            if let Some(path) = self.arrivals[from].iter().position(|arrival| *arrival == link) {
                self.arrive(1 - from, path, number, context);
                return;
            }
        }
    }

    fn handle_timer(&mut self, tag: u32, context: &mut Context<'_>) {
        let at = tag as usize;
        self.ends[at].armed = Instant::FAR_FUTURE;
        self.flush(at, context);
        self.service(at, context);
    }
}

/// Lets a coding's packets be known by their code points, and striped as suits it.
fn stripe(egress: &mut Egress<usize>, coding: Coding) {
    let rule = |layer| Rule {
        pattern: Pattern {
            dscp: Some(layer + 1),
            ..Pattern::default()
        },
        reading: Reading::Fixed(Layer(layer)),
    };
    egress.set_layer_rules((0..coding.layers()).map(rule).collect());
    let scheduler = match coding {
        Coding::Frames => "layer-priority",
        Coding::Descriptions(_) => "independent-path",
    };
    egress
        .set_scheduler(Class::Layered, scheduler)
        .expect("a scheduler of the list");
}

fn placeholder(udp_len: usize, now: Instant) -> Packet {
    Packet {
        source: Default::default(),
        destination: Default::default(),
        source_port: TUNNEL_PORT,
        destination_port: TUNNEL_PORT,
        flow: Default::default(),
        size: udp_len as u16 + UDP_AND_IP,
        ecn: Ecn::NotCapable,
        sent: now,
        body: Body::Tunnel(0),
    }
}

/// The headers that a flow table looks at, before as many zeros as the packet is long.
fn write_headers(bytes: &mut Vec<u8>, packet: &Packet) {
    bytes.clear();
    bytes.resize(usize::from(packet.size), 0);
    bytes[0] = 0x45;
    bytes[1] = match packet.ecn {
        Ecn::NotCapable => 0,
        Ecn::Capable => 2,
        Ecn::Marked => 3,
    };
    bytes[2..4].copy_from_slice(&packet.size.to_be_bytes());
    bytes[12..16].copy_from_slice(&(0x0a00_0000 + packet.source.0).to_be_bytes());
    bytes[16..20].copy_from_slice(&(0x0a00_0000 + packet.destination.0).to_be_bytes());
    bytes[20..22].copy_from_slice(&(FIRST_PORT + packet.source_port).to_be_bytes());
    bytes[22..24].copy_from_slice(&(FIRST_PORT + packet.destination_port).to_be_bytes());
    bytes[9] = protocol::UDP;
    if let Body::Datagram(datagram) = packet.body {
        bytes[1] |= (datagram.mark as u8) << 2;
    }
    if let Body::Tcp(segment) = packet.body {
        let header = (packet.size - 20).saturating_sub(segment.payload);
        if header + 20 == QUIC_HEADER {
            // Any packet may be a flow's first here, and so opens it.
            bytes[28..33].copy_from_slice(&[0xc0, 0, 0, 0, 1]);
            return;
        }
        bytes[9] = protocol::TCP;
        bytes[32] = ((header.clamp(20, 60) / 4) << 4) as u8;
        bytes[33] = segment.flags;
    }
}

const HUB: usize = 1;
/// The clocks of both ends disagree, as real ones do.
const CLOCKS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(5 * 3600)];
const UDP_AND_IP: u16 = 28;
/// Bytes between an inner packet and its outer IP packet.
const OVERHEAD: u16 = UDP_AND_IP + FRAMING as u16;
const MTU: u16 = 1500;
const TUNNEL_PORT: u16 = 4430;
const FIRST_PORT: u16 = 5201;
/// A packet that has room for a number behind its headers, IP bytes.
const LEAST_NAMED: u16 = 32;
/// Longer than any packet is on its way.
const PATIENCE: Duration = Duration::from_secs(20);
/// The finest timer of the daemon's event loop is coarser.
const LEAST_SLEEP: Duration = Duration::from_micros(1);
