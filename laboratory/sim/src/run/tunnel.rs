//! Both halves of a tunnel as one node: the daemon's own egress and ingress of each end, joined as
//! in its data plane.
//!
//! Scope: real headers, reports, probes and parity, whose sizes count; different clocks at the two
//! ends; segmentation offload of the device ([`super::offload`]); ECN of outer packets (RFC 6040).
//! Limitations: no encryption, datagrams leave at once, no traffic of the control channel.
//!
//! ```text
//!   client --in--> [ egress ] ==(network: up)==> [ ingress ] --out--> server
//!   client <-out-- [ ingress ] <=(network: down)== [ egress ] <--in-- server
//! ```

mod datagrams;

use std::collections::VecDeque;

use hawser_netem::scenario::{Direction, Usage, Workload, layer_code_point};
use hawser_proto::egress::Egress;
use hawser_proto::path;
use hawser_proto::path::control::Control;
use hawser_proto::scheduler::default_of;
use hawser_proto::stream;
use hawser_proto::tunnel::{self, Arrival, Buffers, Handoff, Role};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::airtime::Airtime;
use hawser_wire::compression::{Compressed, Form};
use hawser_wire::data::{Class, Kind};
use hawser_wire::layer::{Layer, Pattern, Reading, Rule};
use hawser_wire::offload::Offload;
use hawser_wire::preference::Preference;

use super::Hop;
use super::air::Heard;
use super::log::Log;
use super::offload::Large;
use super::split::{HUB, Splits, Work};
use crate::engine::TimerId;
use crate::network::{Context, LinkId, Node};
use crate::packet::{Address, Body, Ecn, FlowId, Packet};
use crate::tcp;
use datagrams::{
    Arrived, DatagramSource, Flight, InnerPacket, Numbered, OVERHEAD, Ordered, Slots, Waiting, Written,
    placeholder, write_headers,
};

/// Size of the retransmission buffer in packets. Source: `RETRANSMISSION_BUFFERS` of
/// `system/dataplane/src/sessions.rs`.
const RETRANSMISSION_BUFFERS: usize = 16_384;

/// The node: index 0 is the client's end, 1 the hub's.
pub(super) struct Tunnel {
    seed: u64,
    ends: Vec<End>,
    /// Links on which each end sends, by path.
    away: [Vec<LinkId>; 2],
    /// Links that deliver packets from each end, by path.
    arrivals: [Vec<LinkId>; 2],
    /// The client's address on each path.
    outer: Vec<Address>,
    /// Set for each path with an address translator.
    translated: Vec<bool>,
    /// Layers of its traffic.
    layering: Option<Layering>,
    /// Schedulers by class, where the scenario names one.
    schedulers: Vec<(Class, String)>,
    control: Control,
    /// Set if the networks have other users, so that packets need destinations.
    is_shared: bool,
    inner_in: Vec<LinkId>,
    inner_out: Vec<LinkId>,
    /// Access point of each path whose airtime is considered.
    heard: Vec<Option<Heard>>,
    /// Time of the client's next airtime report, and the reports in flight to the hub.
    reports_at: Instant,
    told: VecDeque<(Instant, PathId, Option<Airtime>)>,
    /// Datagrams in flight; lost ones expire.
    flying: Numbered<Box<Flight>>,
    /// Packets whose bytes parity covers, the only ones that a receiver may rebuild.
    named: Numbered<Packet>,
    leaving: Vec<Flight>,
    scratch: Vec<u8>,
    /// The user's settings, by path.
    usages: Vec<Usage>,
    /// Connections that are split; `None` where TCP is transferred as packets.
    splits: Option<Splits>,
}

struct End {
    tunnel: tunnel::Tunnel<usize, Ordered, (), DatagramSource>,
    clock: Duration,
    /// Packet of this instant that offload may still extend.
    entering: Option<Large>,
    slots: Slots,
    timer: TimerId,
    armed: Instant,
}

impl End {
    /// Returns whether the receiver has the headers of a packet, in front of it or in its context.
    fn has_headers(&mut self, (inner, inner_packet): &Ordered, scratch: &mut Vec<u8>) -> bool {
        match inner.form {
            Form::Whole => true,
            Form::Context => {
                write_headers(scratch, &inner_packet.packet);
                self.tunnel.restore(inner, scratch);
                true
            }
            Form::Compressed => {
                let compressed = Compressed {
                    back: inner_packet.back,
                    last_flags: 0,
                };
                let payload = match inner_packet.packet.body {
                    Body::Tcp(segment) => usize::from(segment.payload),
                    Body::Datagram(_) | Body::Tunnel(_) => 0,
                };
                self.tunnel.has_context(inner, compressed, payload)
            }
        }
    }
}

impl Tunnel {
    pub(super) fn new(seed: u64, layering: Option<Layering>, is_shared: bool) -> Self {
        Self {
            seed,
            ends: Vec::new(),
            away: [Vec::new(), Vec::new()],
            arrivals: [Vec::new(), Vec::new()],
            outer: Vec::new(),
            translated: Vec::new(),
            layering,
            schedulers: Vec::new(),
            control: Control::default(),
            is_shared,
            inner_in: Vec::new(),
            inner_out: Vec::new(),
            heard: Vec::new(),
            reports_at: Instant::ZERO,
            told: VecDeque::new(),
            flying: Numbered::new(),
            named: Numbered::new(),
            leaving: Vec::new(),
            scratch: Vec::new(),
            usages: Vec::new(),
            splits: None,
        }
    }

    /// Sets the user's settings of paths.
    pub(super) fn with_usages(self, usages: Vec<Usage>) -> Self {
        Self { usages, ..self }
    }

    /// Adds streams for the connections of [`Self::split`].
    pub(super) fn with_streams(self) -> Self {
        Self {
            splits: Some(Splits::default()),
            ..self
        }
    }

    /// Splits a connection at both ends.
    pub(super) fn split(
        &mut self,
        flow: FlowId,
        direction: Direction,
        connection: (tcp::Config, Option<u64>),
    ) {
        if let Some(splits) = &mut self.splits {
            splits.add(flow, direction, connection);
        }
    }

    /// Replaces the default schedulers.
    pub(super) fn with_schedulers(self, schedulers: Vec<(Class, String)>) -> Self {
        Self { schedulers, ..self }
    }

    /// Sets the congestion control of its paths.
    pub(super) fn with_control(self, control: Control) -> Self {
        Self { control, ..self }
    }

    /// Sets the links: those of each network, with the client's address there, and those from and
    /// to client and server.
    pub(super) fn attach(
        &mut self,
        hops: &[Hop],
        outer: Vec<Address>,
        inner_in: [LinkId; 2],
        inner_out: [LinkId; 2],
    ) {
        // The client's end sends up, the second link of each pair.
        self.away = [1, 0].map(|way| hops.iter().map(|hop| hop.sends[way]).collect());
        self.arrivals = [1, 0].map(|way| hops.iter().map(|hop| hop.arrives[way]).collect());
        self.outer = outer;
        self.translated = hops.iter().map(|hop| hop.is_translated).collect();
        self.inner_in = inner_in.to_vec();
        self.inner_out = inner_out.to_vec();
    }

    /// Makes both ends consider the airtime of access points that the client receives, by path.
    pub(super) fn attach_air(&mut self, heard: Vec<Option<Heard>>) {
        self.heard = heard;
    }

    /// Sends the client's airtime measurements to the hub, with the delay of a path.
    fn report_airtimes(&mut self, context: &Context<'_>) {
        let now = context.now();
        if self.heard.iter().all(Option::is_none) {
            return;
        }
        if self.reports_at <= now {
            self.reports_at = now + REPORT_INTERVAL;
            for (path, heard) in self.heard.iter().enumerate() {
                let Some(heard) = heard else { continue };
                let (path, airtime) = (PathId(path as u16), heard.airtime(now));
                let client = &mut self.ends[0];
                let egress = client.tunnel.sending_mut().egress_mut();
                egress.set_airtime(path, airtime, now + client.clock);
                self.told.push_back((now + CONTROL_DELAY, path, airtime));
            }
        }
        while let Some(&(at, path, airtime)) = self.told.front()
            && at <= now
        {
            self.told.pop_front();
            let hub = &mut self.ends[HUB];
            let egress = hub.tunnel.sending_mut().egress_mut();
            egress.set_airtime(path, airtime, now + hub.clock);
        }
    }

    /// Logs the state of the end that sends in a direction, at this time after the start.
    pub(super) fn sample(&self, direction: Direction, at: Duration, log: &mut Log) {
        let [client, hub] = self.ends.as_slice() else {
            return;
        };
        let (near, far) = match direction {
            Direction::Down => (hub, client),
            Direction::Up => (client, hub),
        };
        let receiver = far.tunnel.receiving().ingress();
        let seen = (receiver.buffered(), receiver.resequencer());
        log.sample(near.tunnel.sending().egress(), seen, at);
    }

    /// Handles an inner packet that enters at an end; packets of the same instant may be joined to
    /// it.
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
        let id = end.slots.take();
        let offload = Offload {
            checksum_partial: true,
            segment: large.segment,
        };
        let now = context.now() + end.clock;
        match end.tunnel.handle_inner(&mut self.scratch, offload, id, now) {
            Ok(()) => end.slots.used[id] = Some(Waiting { large, name: None }),
            // As in the daemon, the packet is lost and its sender notices.
            Err(_) => end.slots.give_back(id),
        }
    }

    /// Handles a datagram that arrives at an end.
    fn arrive(&mut self, at: usize, (number, outer): (u32, &Packet), context: &mut Context<'_>) {
        let Some(mut flight) = self.flying.slot(number).and_then(Option::take) else {
            return;
        };
        // RFC 6040 section 4.2: a packet that is not ECN-capable is not marked.
        if let (Some(inner_packet), Ecn::Marked) = (&mut flight.packet, outer.ecn) {
            inner_packet.packet.ecn = outer.ecn;
        }
        let end = &mut self.ends[at];
        let now = context.now() + end.clock;
        let nothing = InnerPacket {
            packet: placeholder(flight.udp_len, context.now()),
            back: 0,
        };
        let arrival = Arrival {
            path: flight.path,
            opened: flight.opened,
            udp_len: flight.udp_len,
            source: DatagramSource {
                port: outer.source_port,
            },
            ecn: outer.ecn.into(),
            item: (flight.opened.inner, flight.packet.unwrap_or(nothing)),
        };
        let mut items = Arrived {
            body: &flight.body,
            named: &mut self.named,
        };
        end.tunnel.handle_datagram(arrival, now, &mut items);
        self.service(at, context);
    }

    /// Delivers an end's output, lets it send, and sets its timer.
    fn service(&mut self, at: usize, context: &mut Context<'_>) {
        let now = context.now() + self.ends[at].clock;
        if self.ends.len() > HUB {
            self.report_airtimes(context);
        }
        self.ends[at].tunnel.end_batch(now);
        self.deliver(at, context);
        if let Some(entered) = self.ends[at].entering.take() {
            self.offer(at, entered, context);
        }
        self.work_on_splits(at, context);
        self.ends[at].tunnel.handle_timeout(now);
        self.transmit(at, now, context);
        let end = &mut self.ends[at];
        while end.tunnel.poll_event().is_some() {}
        let due = end.tunnel.poll_timeout(now);
        let connections = self.splits.as_ref().and_then(|splits| splits.poll_timeout(at));
        let due = due.min(connections.map_or(Instant::FAR_FUTURE, |due| due + end.clock));
        if due == Instant::FAR_FUTURE {
            return;
        }
        let due = (due - end.clock).max(context.now() + MIN_SLEEP);
        if due < end.armed || end.armed <= context.now() {
            end.armed = due;
            context.arm(end.timer, due);
        }
    }

    /// Processes the split connections of an end.
    fn work_on_splits(&mut self, at: usize, context: &mut Context<'_>) {
        let Some(splits) = &mut self.splits else { return };
        let end = &mut self.ends[at];
        let out = self.inner_out[at];
        let mut work = Work {
            at,
            tunnel: &mut end.tunnel,
            clock: end.clock,
            now: context.now(),
        };
        splits.work(&mut work, |packet| context.send(out, packet));
    }

    /// Delivers packets in order, with neighbours joined.
    fn deliver(&mut self, at: usize, context: &mut Context<'_>) {
        let end = &mut self.ends[at];
        let mut leaving: Option<Large> = None;
        while let Some(ordered) = end.tunnel.poll_inner() {
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

    /// Sends the datagrams of an end.
    fn transmit(&mut self, at: usize, now: Instant, context: &mut Context<'_>) {
        loop {
            let end = &mut self.ends[at];
            let mut buffers = Written {
                slots: &mut end.slots,
                named: &mut self.named,
                scratch: &mut self.scratch,
                now: context.now(),
            };
            let Some(burst) = end.tunnel.poll_burst(now, &mut buffers) else {
                return;
            };
            for datagram in burst.datagrams() {
                let mut flight = Flight::new(&burst, &datagram, buffers.slots);
                // Parity may cover a packet of a realtime flow or one of its copies.
                let is_piece = datagram.inner.kind == Kind::Fragment;
                let bytes;
                if let Some(stream) = burst.stream() {
                    bytes = vec![0; (stream.range.end - stream.range.start) as usize];
                    flight.body.resize(datagram.body_len(), 0);
                    datagram.write_body(&bytes, &mut flight.body);
                } else if datagram.inner.class == Class::Realtime || flight.packet.is_none() || is_piece {
                    let packet = datagram.segment().map_or(&[][..], |(run, _)| buffers.packet(run));
                    flight.body.resize(datagram.body_len(), 0);
                    datagram.write_body(packet, &mut flight.body);
                }
                self.leaving.push(flight);
            }
            let mut leaving = std::mem::take(&mut self.leaving);
            for flight in leaving.drain(..) {
                self.put(at, flight, context);
            }
            self.leaving = leaving;
        }
    }

    /// Sends a datagram on its path.
    fn put(&mut self, at: usize, flight: Flight, context: &mut Context<'_>) {
        let path = usize::from(flight.path.0);
        let frame = Packet {
            // Both ends are this node; on 802.11 links, the way up has no addresses.
            destination: if at == HUB || self.is_shared {
                self.outer[path]
            } else {
                Address::default()
            },
            flow: flight
                .packet
                .map_or_else(Default::default, |inner_packet| inner_packet.packet.flow),
            ecn: flight.ecn,
            ..placeholder(flight.udp_len, context.now())
        };
        let number = self.flying.push(Box::new(flight), context.now());
        let mut frame = Packet {
            body: Body::Tunnel(number),
            ..frame
        };
        // A hub answers to the source of the newest datagram.
        if at == HUB
            && self.translated[path]
            && let Some(source) = self.ends[HUB].tunnel.receiving().source(PathId(path as u16))
        {
            frame.destination_port = source.port;
        }
        context.send(self.away[at][path], frame);
    }
}

impl Node for Tunnel {
    fn handle_start(&mut self, context: &mut Context<'_>) {
        for (at, clock) in CLOCKS.into_iter().enumerate() {
            let now = context.now() + clock;
            let role = [Role::Client, Role::Hub][at];
            let mut tunnel =
                tunnel::Tunnel::new(role, self.seed.wrapping_add(at as u64), Handoff::THREADS, now);
            let egress = tunnel.sending_mut().egress_mut();
            if let Some(layering) = self.layering {
                layering.apply(egress);
            }
            for (class, scheduler) in &self.schedulers {
                egress
                    .set_scheduler(*class, scheduler)
                    .expect("a scheduler of the list");
            }
            egress.set_control(self.control, now);
            egress.limit_retransmission_buffers(RETRANSMISSION_BUFFERS);
            if self.splits.is_some() {
                let ingress = tunnel.receiving_mut().ingress_mut();
                ingress.take_streams(stream::Config::default(), stream::Reserve::unbounded());
            }
            for index in 0..self.away[at].len() {
                let usage = self.usages.get(index).copied().unwrap_or_default();
                let config = path::Config {
                    id: PathId(index as u16),
                    probing: role.probing(),
                    cap: if at == HUB { usage.cap_down } else { usage.cap_up },
                    mtu: MTU,
                    overhead: OVERHEAD,
                };
                tunnel.open_path(config, role == Role::Client, now);
                let preference = Preference {
                    priority: usage.priority,
                    ..Preference::default()
                };
                let egress = tunnel.sending_mut().egress_mut();
                egress.set_preference(config.id, preference);
            }
            let end = End {
                tunnel,
                clock,
                entering: None,
                slots: Slots::default(),
                timer: context.timer(at as u32),
                armed: Instant::FAR_FUTURE,
            };
            self.ends.push(end);
        }
        for at in 0..self.ends.len() {
            self.service(at, context);
        }
    }

    fn handle_packet(&mut self, packet: Packet, link: LinkId, context: &mut Context<'_>) {
        if let Some(at) = self.inner_in.iter().position(|inner| *inner == link) {
            let is_split = |splits: &mut Splits| splits.handle_packet(at, &packet, context.now());
            if self.splits.as_mut().is_some_and(is_split) {
                self.service(at, context);
                return;
            }
            self.enter(at, packet, context);
            return;
        }
        let Body::Tunnel(number) = packet.body else { return };
        for from in 0..self.arrivals.len() {
            if self.arrivals[from].contains(&link) {
                self.arrive(1 - from, (number, &packet), context);
                return;
            }
        }
    }

    fn handle_timer(&mut self, tag: u32, context: &mut Context<'_>) {
        let at = tag as usize;
        self.ends[at].armed = Instant::FAR_FUTURE;
        self.service(at, context);
    }
}

/// Number of layers that a tunnel distinguishes, and their default scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layering {
    layers: u8,
    scheduler: &'static str,
}

impl Layering {
    /// Returns the layers of a workload's packets, if any.
    pub(super) fn of(workload: &Workload) -> Option<Self> {
        let scheduler = if let Workload::Video { coding, .. } = workload {
            coding.scheduler()
        } else {
            default_of(Class::Layered)
        };
        let layers = workload.layers();
        (layers > 0).then_some(Self { layers, scheduler })
    }

    /// Sets the code points of the layers, and the scheduler for them.
    fn apply(self, egress: &mut Egress<usize>) {
        let rule = |layer| Rule {
            pattern: Pattern {
                dscp: Some(layer_code_point(layer)),
                ..Pattern::default()
            },
            reading: Reading::Fixed(Layer(layer)),
        };
        egress.set_layer_rules((0..self.layers).map(rule).collect());
        egress
            .set_scheduler(Class::Layered, self.scheduler)
            .expect("a scheduler of the list");
    }
}

/// Interval of the client's airtime reports, and their delay, slightly above that of most networks.
/// Source: docs/notebook/steering.md, "The optimum".
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const CONTROL_DELAY: Duration = Duration::from_millis(50);
/// Offsets of the clocks of both ends, which differ as real ones do. Source: our choice; any
/// difference finds code that takes one clock for the other.
const CLOCKS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(5 * 3600)];
/// Largest packet on a link (RFC 894).
const MTU: u16 = 1500;
/// Minimum sleep; the finest timer of the daemon's event loop is coarser. Source: our choice; zero
/// would repeat a machine that asks for the present time.
const MIN_SLEEP: Duration = Duration::from_micros(1);
