//! Both halves of a tunnel as one node: the daemon's own egress and ingress of each end, joined as
//! its data plane joins them.
//!
//! Scope: real headers, reports, probes and parity, whose sizes count; clocks of the two ends that
//! disagree; segmentation offload of the device ([`super::offload`]); ECN of outer packets
//! (RFC 6040). Limitations: nothing is encrypted, datagrams leave at once, the control channel is
//! silent.
//!
//! ```text
//!   client --in--> [ egress ] ==(network: up)==> [ ingress ] --out--> server
//!   client <-out-- [ ingress ] <=(network: down)== [ egress ] <--in-- server
//! ```

use std::collections::VecDeque;

use hawser_netem::scenario::{Direction, Usage, Workload, layer_code_point};
use hawser_proto::egress::Egress;
use hawser_proto::flow::Run;
use hawser_proto::path;
use hawser_proto::path::control::Control;
use hawser_proto::scheduler::default_of;
use hawser_proto::stream;
use hawser_proto::tunnel::{self, Arrival, Buffers, Burst, Datagram, Handoff, Items, Opened, Role, Source};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::airtime::Airtime;
use hawser_wire::compression::{Compressed, Form};
use hawser_wire::data::{Class, FRAMING, Inner, Kind, Outer};
use hawser_wire::inner::{fill_ipv4_checksum, protocol};
use hawser_wire::layer::{Layer, Pattern, Reading, Rule};
use hawser_wire::offload::Offload;
use hawser_wire::preference::Preference;

use super::Hop;
use super::air::Heard;
use super::log::Log;
use super::offload::{Large, cut};
use super::split::{FIRST_PORT, HUB, Splits, Work};
use crate::engine::TimerId;
use crate::network::{Context, LinkId, Node};
use crate::packet::{Address, Body, Ecn, FlowId, Packet};
use crate::tcp::{self, QUIC_HEADER};

/// Packets kept for retransmission: as many as the daemon keeps for a session
/// (`system/dataplane/src/sessions.rs`).
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
    /// True for each path with a translator of addresses.
    translated: Vec<bool>,
    /// Of what it carries.
    layering: Option<Layering>,
    /// By class, where the scenario names one.
    schedulers: Vec<(Class, String)>,
    control: Control,
    /// Whether its networks have other users, so that packets say whom they are for.
    is_shared: bool,
    inner_in: Vec<LinkId>,
    inner_out: Vec<LinkId>,
    /// By path: the access point whose air is reckoned with.
    heard: Vec<Option<Heard>>,
    /// When the client tells of it next, and what is on its way to the hub.
    tells_at: Instant,
    told: VecDeque<(Instant, PathId, Option<Airtime>)>,
    /// Datagrams on their way; lost ones are forgotten.
    flying: Numbered<Box<Flight>>,
    /// Packets whose bytes parity covers, which are all that a receiver rebuilds.
    named: Numbered<Packet>,
    leaving: Vec<Flight>,
    scratch: Vec<u8>,
    /// The user's settings, by path.
    usages: Vec<Usage>,
    /// Connections that are split; `None` where TCP is transferred as packets.
    splits: Option<Splits>,
}

struct End {
    tunnel: tunnel::Tunnel<usize, Ordered, (), Way>,
    clock: Duration,
    /// What came in at this instant and may still grow.
    entering: Option<Large>,
    slots: Slots,
    timer: TimerId,
    armed: Instant,
}

/// A datagram on its way.
struct Flight {
    path: PathId,
    opened: Opened,
    /// Its bytes, where its receiver looks at them.
    body: Vec<u8>,
    udp_len: usize,
    /// The ECN bits of its outer packet.
    ecn: Ecn,
    packet: Option<Carried>,
}

impl Flight {
    fn new(burst: &Burst<'_, usize, ()>, datagram: &Datagram<'_, usize>, slots: &mut Slots) -> Self {
        let outer = Outer {
            epoch: 0,
            index: u32::from(burst.path().0),
            packet_number: datagram.number,
        };
        let packet = datagram.segment().map(|(run, index)| {
            let large = slots.waiting(run.buffer).large;
            let mut packet = cut(&large.packet, index, run.cut.packet_len(), run.cut.len_of(index));
            if run.mark && index == run.next {
                packet.ecn = Ecn::Marked;
            }
            let back = run
                .context
                .map_or(0, |context| index.saturating_sub(context) as u8);
            Carried { packet, back }
        });
        let inner = packet.map_or(Ecn::NotCapable, |carried| carried.packet.ecn);
        Self {
            path: burst.path(),
            opened: Opened {
                outer,
                inner: datagram.inner,
            },
            body: Vec::new(),
            udp_len: datagram.udp_len(),
            ecn: burst.outer_ecn(inner.into()).into(),
            packet,
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

/// Origin of datagrams on a path, whose port a translator may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    port: u16,
}

impl Source for Way {
    fn overhead(&self) -> u16 {
        OVERHEAD
    }
}

/// Things that are found by their number, and forgotten after [`TIMEOUT`] if nobody takes them.
struct Numbered<V> {
    values: VecDeque<(Instant, Option<V>)>,
    first: u32,
}

impl<V> Numbered<V> {
    fn new() -> Self {
        Self {
            values: VecDeque::new(),
            // No bytes that nobody wrote are a number.
            first: 1,
        }
    }

    fn push(&mut self, value: V, now: Instant) -> u32 {
        let is_over = |(since, value): &(Instant, Option<V>)| value.is_none() || now.since(*since) > TIMEOUT;
        while self.values.front().is_some_and(is_over) {
            self.values.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        self.values.push_back((now, Some(value)));
        self.first.wrapping_add(self.values.len() as u32 - 1)
    }

    fn slot(&mut self, number: u32) -> Option<&mut Option<V>> {
        let index = number.wrapping_sub(self.first) as usize;
        self.values.get_mut(index).map(|(_, value)| value)
    }
}

/// Inner packets that wait to be sent, by buffer.
#[derive(Default)]
struct Slots {
    used: Vec<Option<Waiting>>,
    free: Vec<usize>,
}

struct Waiting {
    large: Large,
    /// Its name in [`Tunnel::named`], once its bytes were asked for.
    name: Option<u32>,
}

impl Slots {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.used.push(None);
            self.used.len() - 1
        })
    }

    fn waiting(&mut self, id: usize) -> &mut Waiting {
        self.used[id]
            .as_mut()
            .expect("a buffer is filled while it is sent")
    }

    fn give_back(&mut self, id: usize) {
        self.used[id] = None;
        self.free.push(id);
    }
}

/// What the sending half sees of the packets: their headers, zeros, and a name at the end by which
/// the packet is found again when parity brings its bytes back.
struct Written<'a> {
    slots: &'a mut Slots,
    named: &'a mut Numbered<Packet>,
    scratch: &'a mut Vec<u8>,
    now: Instant,
}

impl Buffers<usize> for Written<'_> {
    fn packet(&mut self, run: &Run<usize>) -> &[u8] {
        let waiting = self.slots.waiting(run.buffer);
        let packet = waiting.large.packet;
        write_headers(self.scratch, &packet);
        if packet.size >= LEAST_NAMED {
            let name = *waiting
                .name
                .get_or_insert_with(|| self.named.push(packet, self.now));
            let tail = self.scratch.last_chunk_mut().expect("long enough to be named");
            *tail = name.to_be_bytes();
        }
        self.scratch
    }

    fn release(&mut self, id: usize) {
        self.slots.give_back(id);
    }
}

/// What the receiving half sees of a datagram.
struct Arrived<'a> {
    body: &'a [u8],
    named: &'a mut Numbered<Packet>,
}

impl Items<Ordered> for Arrived<'_> {
    fn body(&self, _: &Ordered) -> &[u8] {
        self.body
    }

    fn store(&mut self, bytes: &[u8], inner: &Inner) -> Option<Ordered> {
        let name = u32::from_be_bytes(*bytes.last_chunk()?);
        let mut packet = (*self.named.slot(name)?)?;
        if usize::from(packet.size) != bytes.len() {
            return None;
        }
        if bytes[1] & 3 == 3 {
            packet.ecn = Ecn::Marked;
        }
        Some((*inner, Carried { packet, back: 0 }))
    }

    fn join(&mut self, _: &[u8], inner: &Inner, (_, carried): &Ordered) -> Option<Ordered> {
        // Each piece names the whole packet.
        Some((*inner, Carried { back: 0, ..*carried }))
    }

    fn free(&mut self, _: Ordered) {}
}

impl End {
    /// Whether the receiver has the headers of a packet, in front of it or in its context.
    fn has_headers(&mut self, (inner, carried): &Ordered, scratch: &mut Vec<u8>) -> bool {
        match inner.form {
            Form::Whole => true,
            Form::Context => {
                write_headers(scratch, &carried.packet);
                self.tunnel.restore(inner, scratch);
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
            tells_at: Instant::ZERO,
            told: VecDeque::new(),
            flying: Numbered::new(),
            named: Numbered::new(),
            leaving: Vec::new(),
            scratch: Vec::new(),
            usages: Vec::new(),
            splits: None,
        }
    }

    /// Gives paths these settings of the user.
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

    /// With these schedulers in place of the defaults.
    pub(super) fn with_schedulers(self, schedulers: Vec<(Class, String)>) -> Self {
        Self { schedulers, ..self }
    }

    /// With this congestion control of its paths.
    pub(super) fn with_control(self, control: Control) -> Self {
        Self { control, ..self }
    }

    /// Tells which links are which: those of each network, with the client's address there, and
    /// those from and to client and server.
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
        self.translated = hops.iter().map(|hop| hop.is_translated).collect();
        self.inner_in = inner_in.to_vec();
        self.inner_out = inner_out.to_vec();
    }

    /// Lets both ends reckon with the air of access points that the client hears, by path.
    pub(super) fn attach_air(&mut self, heard: Vec<Option<Heard>>) {
        self.heard = heard;
    }

    /// The client measures what packets take of the air, and tells the hub: the control channel has
    /// the delay of a path.
    fn tell_airtimes(&mut self, context: &Context<'_>) {
        let now = context.now();
        if self.heard.iter().all(Option::is_none) {
            return;
        }
        if self.tells_at <= now {
            self.tells_at = now + TELL_EVERY;
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

    /// Writes down how the end stands that sends in a direction, so long after the start.
    pub(super) fn look(&self, direction: Direction, at: Duration, log: &mut Log) {
        let [client, hub] = self.ends.as_slice() else {
            return;
        };
        let (near, far) = match direction {
            Direction::Down => (hub, client),
            Direction::Up => (client, hub),
        };
        let receiver = far.tunnel.receiving().ingress();
        let seen = (receiver.held(), receiver.resequencer());
        log.look(near.tunnel.sending().egress(), seen, at);
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

    /// A datagram arrives at an end.
    fn arrive(&mut self, at: usize, (number, outer): (u32, &Packet), context: &mut Context<'_>) {
        let Some(mut flight) = self.flying.slot(number).and_then(Option::take) else {
            return;
        };
        // RFC 6040 section 4.2: no link marks what is not capable.
        if let (Some(carried), Ecn::Marked) = (&mut flight.packet, outer.ecn) {
            carried.packet.ecn = outer.ecn;
        }
        let end = &mut self.ends[at];
        let now = context.now() + end.clock;
        let nothing = Carried {
            packet: placeholder(flight.udp_len, context.now()),
            back: 0,
        };
        let arrival = Arrival {
            path: flight.path,
            opened: flight.opened,
            udp_len: flight.udp_len,
            source: Way {
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

    /// Hands on what an end delivers, lets it send, and sets its timer.
    fn service(&mut self, at: usize, context: &mut Context<'_>) {
        let now = context.now() + self.ends[at].clock;
        if self.ends.len() > HUB {
            self.tell_airtimes(context);
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
        let due = (due - end.clock).max(context.now() + LEAST_SLEEP);
        if due < end.armed || end.armed <= context.now() {
            end.armed = due;
            context.arm(end.timer, due);
        }
    }

    /// Lets the split connections of an end do what they want to.
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

    /// Hands on what is in order, neighbours joined.
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

    /// Lets the datagrams of an end leave.
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

    /// Lets a datagram leave on its path.
    fn put(&mut self, at: usize, flight: Flight, context: &mut Context<'_>) {
        let path = usize::from(flight.path.0);
        let frame = Packet {
            // Both ends are this node; on the air the way up has no addresses.
            destination: if at == HUB || self.is_shared {
                self.outer[path]
            } else {
                Address::default()
            },
            flow: flight
                .packet
                .map_or_else(Default::default, |carried| carried.packet.flow),
            ecn: flight.ecn,
            ..placeholder(flight.udp_len, context.now())
        };
        let number = self.flying.push(Box::new(flight), context.now());
        let mut frame = Packet {
            body: Body::Tunnel(number),
            ..frame
        };
        // A hub answers to where the newest datagram came from.
        if at == HUB
            && self.translated[path]
            && let Some(way) = self.ends[HUB].tunnel.receiving().source(PathId(path as u16))
        {
            frame.destination_port = way.port;
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
            egress.keep_at_most(KEPT_PACKETS);
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

/// How many layers a tunnel tells apart, and what stripes them unless the scenario says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layering {
    layers: u8,
    scheduler: &'static str,
}

impl Layering {
    /// Of a workload whose packets are of layers.
    pub(super) fn of(workload: &Workload) -> Option<Self> {
        let scheduler = if let Workload::Video { coding, .. } = workload {
            coding.scheduler()
        } else {
            default_of(Class::Layered)
        };
        let layers = workload.layers();
        (layers > 0).then_some(Self { layers, scheduler })
    }

    /// Lets packets be known by their code points, and striped as suits them.
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
        bytes[24..26].copy_from_slice(&(packet.size - 20).to_be_bytes());
        fill_ipv4_checksum(bytes, 20);
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

/// How often the client tells of the air, and how long that is on its way: a little more than over
/// most networks.
const TELL_EVERY: Duration = Duration::from_secs(1);
const CONTROL_DELAY: Duration = Duration::from_millis(50);
/// The clocks of both ends disagree, as real ones do.
const CLOCKS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(5 * 3600)];
const UDP_AND_IP: u16 = 28;
/// Bytes between an inner packet and its outer IP packet.
const OVERHEAD: u16 = UDP_AND_IP + FRAMING as u16;
const MTU: u16 = 1500;
const TUNNEL_PORT: u16 = 4430;
/// A packet that has room for a number behind its headers, IP bytes.
const LEAST_NAMED: u16 = 32;
/// Longer than any packet is on its way.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The finest timer of the daemon's event loop is coarser.
const LEAST_SLEEP: Duration = Duration::from_micros(1);
