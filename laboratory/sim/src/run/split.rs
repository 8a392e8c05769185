//! TCP connections that are split at both ends of a tunnel: a TCP end towards each host, and a
//! stream of the tunnel's own machines between them.
//!
//! ```text
//!   client --TCP-- [ end ] ==stream over all paths== [ end ] --TCP-- server
//! ```
//!
//! Scope: the opening is answered when the far connection is established; the near TCP's window
//! closes when enough bytes wait for the paths; bytes count as read when the far TCP may send them.
//! Limitations: as in the simulated TCP, one direction of data per connection; processing takes no
//! time.

use hawser_netem::scenario::Direction;
use hawser_proto::stream::{Notice, Receiving, SendingNotice};
use hawser_proto::tunnel::{Source, Tunnel};
use hawser_units::{Duration, Instant};
use hawser_wire::stream::{Open, Outcome, StreamId};

use crate::app::outgoing;
use crate::packet::{Address, Body, Ecn, FlowId, Packet, Segment, flag};
use crate::tcp::{self, Receiver, Sender};

/// Split connections.
#[derive(Default)]
pub(super) struct Splits {
    connections: Vec<Connection>,
}

/// Context that an end of the tunnel passes to its connections.
pub(super) struct Work<'a, T, S> {
    pub(super) at: usize,
    pub(super) tunnel: &'a mut Tunnel<usize, T, (), S>,
    /// Lead of the clock of the end over `now`.
    pub(super) clock: Duration,
    pub(super) now: Instant,
}

impl<T: Copy, S: Source> Work<'_, T, S> {
    /// Time by the clock of the end.
    fn here(&self) -> Instant {
        self.now + self.clock
    }

    fn streams(&mut self) -> &mut Receiving {
        let ingress = self.tunnel.receiving_mut().ingress_mut();
        ingress.streams().expect("a tunnel with splits takes streams")
    }
}

/// A connection with both of its ends.
struct Connection {
    flow: FlowId,
    config: tcp::Config,
    total: u64,
    /// The end where its bytes enter the tunnel.
    entrance: usize,
    id: Option<StreamId>,
    open: Option<Open>,
    /// The client's first packet, which is answered when the far connection is established.
    held: Option<Packet>,
    /// A packet of the client with its addresses, the template of later packets.
    example: Option<Packet>,
    receiver: Receiver,
    sender: Sender,
    /// Bytes that entered the stream, that may leave it, and that left it.
    written: u64,
    readable: u64,
    consumed: u64,
    is_finished: bool,
    is_answered: bool,
}

impl Splits {
    pub(super) fn add(&mut self, flow: FlowId, direction: Direction, connection: (tcp::Config, Option<u64>)) {
        let (config, total) = connection;
        self.connections.push(Connection {
            flow,
            config,
            total: total.unwrap_or(u64::MAX),
            entrance: match direction {
                Direction::Down => HUB,
                Direction::Up => 1 - HUB,
            },
            id: None,
            open: None,
            held: None,
            example: None,
            receiver: Receiver::new(config),
            sender: Sender::new(config),
            written: 0,
            readable: 0,
            consumed: 0,
            is_finished: false,
            is_answered: false,
        });
    }

    /// Handles a host's packet at an end; returns whether it is part of a split connection.
    pub(super) fn handle_packet(&mut self, at: usize, packet: &Packet, now: Instant) -> bool {
        let mut connections = self.connections.iter_mut();
        let Some(connection) = connections.find(|connection| connection.flow == packet.flow) else {
            return false;
        };
        if let Body::Tcp(segment) = &packet.body {
            connection.handle_segment(at, segment, packet, now);
        }
        true
    }

    /// Processes the connections of an end; `send` receives packets for its host.
    pub(super) fn work<T: Copy, S: Source>(
        &mut self,
        work: &mut Work<'_, T, S>,
        mut send: impl FnMut(Packet),
    ) {
        self.hear(work);
        for (index, connection) in self.connections.iter_mut().enumerate() {
            connection.work(index, work, &mut send);
        }
    }

    fn of(&mut self, id: StreamId) -> Option<&mut Connection> {
        self.connections
            .iter_mut()
            .find(|connection| connection.id == Some(id))
    }

    /// Handles the tunnel's stream events.
    fn hear<T: Copy, S: Source>(&mut self, work: &mut Work<'_, T, S>) {
        let now = work.now;
        while let Some(notice) = work.streams().poll_notice() {
            match notice {
                Notice::Open(open) => {
                    if let Some(connection) = self.of(open.id) {
                        connection.connect(open, now);
                    }
                }
                Notice::Readable(id) => {
                    let readable = work.streams().readable(id);
                    if let (Some(connection), Some(readable)) = (self.of(id), readable) {
                        connection.readable = readable;
                    }
                }
                Notice::Ended(_) | Notice::Reset(..) => {}
            }
        }
        while let Some(notice) = work.tunnel.sending_mut().egress_mut().poll_stream() {
            match notice {
                SendingNotice::Answered(id, Outcome::Connected) => {
                    if let Some(connection) = self.of(id) {
                        connection.on_connected(now);
                    }
                }
                SendingNotice::Answered(..)
                | SendingNotice::Released(..)
                | SendingNotice::Delivered(_)
                | SendingNotice::Stopped(..) => {}
            }
        }
    }

    /// Returns when a connection of an end must be processed.
    pub(super) fn poll_timeout(&self, at: usize) -> Option<Instant> {
        let due = |connection: &Connection| {
            if at == connection.entrance {
                connection.receiver.poll_timeout()
            } else {
                connection.sender.poll_timeout()
            }
        };
        self.connections.iter().filter_map(due).min()
    }
}

impl Connection {
    fn handle_segment(&mut self, at: usize, segment: &Segment, packet: &Packet, now: Instant) {
        let asks = segment.has(flag::SYN) && !segment.has(flag::ACK);
        if at != HUB && asks && !self.is_answered {
            self.example.get_or_insert(*packet);
            self.held.get_or_insert(*packet);
            return;
        }
        if at == self.entrance {
            self.receiver
                .handle_segment(segment, packet.sent, packet.ecn, now);
        } else {
            self.sender.handle_segment(segment, now);
        }
    }

    /// Opens the connection at the far end.
    fn connect(&mut self, open: Open, now: Instant) {
        self.open = Some(open);
        if self.entrance == HUB {
            self.receiver.open(now);
        } else {
            self.sender.open(now);
        }
    }

    /// Answers the client, as the far connection is established.
    fn on_connected(&mut self, now: Instant) {
        self.is_answered = true;
        let Some(packet) = self.held.take() else { return };
        if let Body::Tcp(segment) = &packet.body {
            self.handle_segment(1 - HUB, segment, &packet, now);
        }
    }

    fn work<T: Copy, S: Source>(
        &mut self,
        index: usize,
        work: &mut Work<'_, T, S>,
        send: &mut impl FnMut(Packet),
    ) {
        self.ask(index, work);
        self.answer(work);
        if work.at == self.entrance {
            self.take_in(work, send);
        } else {
            self.hand_out(work, send);
        }
    }

    /// Requests a connection at the client's end after its client has.
    fn ask<T: Copy, S: Source>(&mut self, index: usize, work: &mut Work<'_, T, S>) {
        let egress = work.tunnel.sending().egress();
        if work.at == HUB || self.id.is_some() || !egress.takes_streams() {
            return;
        }
        let Some(packet) = self.held else { return };
        let id = StreamId::new(2 * index as u32).expect("fewer connections than streams");
        let here = work.here();
        work.streams().open(id, here);
        let open = Open {
            id,
            source: socket(packet.source, packet.source_port),
            destination: socket(packet.destination, packet.destination_port),
            dscp: 0,
            credit: work.streams().first_credit(),
        };
        let egress = work.tunnel.sending_mut().egress_mut();
        egress.open_stream(open, here);
        self.id = Some(id);
    }

    /// Answers at the hub's end when its connection is established.
    fn answer<T: Copy, S: Source>(&mut self, work: &mut Work<'_, T, S>) {
        let is_open = if self.entrance == HUB {
            self.receiver.is_open()
        } else {
            self.sender.is_open()
        };
        if work.at != HUB || !is_open {
            return;
        }
        if let Some(open) = self.open.take() {
            let (credit, here) = (work.streams().first_credit(), work.here());
            let egress = work.tunnel.sending_mut().egress_mut();
            egress.answer_stream(&open, Outcome::Connected, credit, here);
        }
    }

    /// Moves bytes from the host into the stream.
    fn take_in<T: Copy, S: Source>(&mut self, work: &mut Work<'_, T, S>, send: &mut impl FnMut(Packet)) {
        let (Some(id), here) = (self.id, work.here()) else {
            return;
        };
        let egress = work.tunnel.sending_mut().egress_mut();
        let more = self.receiver.received() - self.written;
        if more > 0 {
            self.written += more;
            egress.write_stream(id, more, here);
        }
        if self.written >= self.total && !std::mem::replace(&mut self.is_finished, true) {
            egress.finish_stream(id, here);
        }
        self.receiver.set_window(egress.stream_room(id));
        while let Some(segment) = self.receiver.poll_transmit(work.now) {
            if let Some(packet) = self.packet(work.at, segment, work.now) {
                send(packet);
            }
        }
    }

    /// Moves bytes of the stream to the host.
    fn hand_out<T: Copy, S: Source>(&mut self, work: &mut Work<'_, T, S>, send: &mut impl FnMut(Packet)) {
        let now = work.now;
        self.sender.handle_timeout(now);
        while let Some(segment) = self.next_segment(now) {
            if let Some(packet) = self.packet(work.at, segment, now) {
                send(packet);
            }
        }
        let read = self.readable.min(self.sender.acknowledged() + SOCKET_BUFFER);
        if let Some(id) = self.id.filter(|_| read > self.consumed) {
            let here = work.here();
            work.streams().consume(id, read - self.consumed, here);
            self.consumed = read;
        }
    }

    fn next_segment(&mut self, now: Instant) -> Option<Segment> {
        if let Some(segment) = self.sender.poll_transmit(now) {
            return Some(segment);
        }
        let sent = self.sender.sent();
        let len = (self.readable - sent).min(u64::from(self.config.segment)) as u16;
        (len > 0 && self.sender.has_room(len)).then(|| self.sender.send(len, sent, now))
    }

    /// Creates a segment for the host at an end.
    fn packet(&self, at: usize, segment: Segment, now: Instant) -> Option<Packet> {
        let example = self.example?;
        let out = outgoing(&self.config, 0, segment);
        let packet = Packet {
            size: out.size,
            ecn: Ecn::NotCapable,
            sent: now,
            body: out.body,
            ..example
        };
        if at == HUB {
            return Some(packet);
        }
        Some(Packet {
            source: example.destination,
            destination: example.source,
            source_port: example.destination_port,
            destination_port: example.source_port,
            ..packet
        })
    }
}

fn socket(address: Address, port: u16) -> std::net::SocketAddr {
    let ip = std::net::Ipv4Addr::from(0x0a00_0000 + address.0);
    (ip, FIRST_PORT + port).into()
}

/// The hub's end of a tunnel; the client's is 0.
///
/// Source: the order of `CLOCKS`, `laboratory/sim/src/run/tunnel.rs`.
pub(super) const HUB: usize = 1;
/// Port of the first application of a host, in the headers for a flow table.
///
/// Source: arbitrary; iperf3's port.
pub(super) const FIRST_PORT: u16 = 5201;
/// Bytes of a connection that a kernel stores beyond the acknowledged ones.
///
/// Source: Linux sets `SO_SNDBUF` to twice the window, and begins with 87 KB (`tcp_wmem`).
const SOCKET_BUFFER: u64 = 256 << 10;
