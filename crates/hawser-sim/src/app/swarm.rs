//! A file from several seeds, in pieces that are asked for ahead.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::outgoing;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Datagram, Ecn, Packet};
use crate::tcp::{Config, Opening, Receiver, Sender};

/// A file as a swarm shares it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pieces {
    /// What connections are like; the client opens them, one to each seed.
    pub config: Config,
    /// How many pieces there are.
    pub count: u64,
    /// Bytes of each.
    pub bytes: u64,
}

impl Pieces {
    fn opened_by_client(self) -> Self {
        let config = Config {
            opening: Opening::ByReceiver,
            ..self.config
        };
        Self { config, ..self }
    }
}

/// Seeds, one on each way, that send as many pieces as they are asked for.
///
/// A request is a datagram with the number of all pieces asked for so far: it stands for a message on the same connection, which is not lost.
#[derive(Debug)]
pub struct Seeds {
    pieces: Pieces,
    senders: Vec<Sender>,
    /// Bytes.
    asked: Vec<u64>,
}

impl Seeds {
    /// Some seeds that have everything.
    #[must_use]
    pub fn new(pieces: Pieces, count: usize) -> Self {
        let pieces = pieces.opened_by_client();
        Self {
            pieces,
            senders: vec![Sender::new(pieces.config); count],
            asked: vec![0; count],
        }
    }
}

impl Application for Seeds {
    fn handle_packet(&mut self, way: usize, packet: &Packet, now: Instant) {
        match &packet.body {
            Body::Tcp(segment) => self.senders[way].handle_segment(segment, now),
            Body::Datagram(datagram) => {
                self.asked[way] = self.asked[way].max(datagram.number * self.pieces.bytes);
            }
            Body::Tunnel(_) => {}
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        for sender in &mut self.senders {
            sender.handle_timeout(now);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let config = self.pieces.config;
        for (way, sender) in self.senders.iter_mut().enumerate() {
            if let Some(segment) = sender.poll_transmit(now) {
                return Some(outgoing(&config, way, segment));
            }
            let left = self.asked[way].saturating_sub(sender.sent());
            let len = left.min(u64::from(config.segment)) as u16;
            if len > 0 && sender.has_room(len) {
                let data = sender.sent();
                return Some(outgoing(&config, way, sender.send(len, data, now)));
            }
        }
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.senders.iter().filter_map(Sender::poll_timeout).min()
    }
}

/// Fetches a file from one seed on each way, more pieces from a faster one.
///
/// It asks a seed for one piece and for as many more as it brought in ten seconds at its present rate, measured over the last five: the rule of
/// the client that the paper modified. Every piece is fetched once.
#[derive(Debug)]
pub struct Leecher {
    pieces: Pieces,
    start: Instant,
    has_begun: bool,
    left: u64,
    seeds: Vec<Connection>,
    done: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    receiver: Receiver,
    asked: u64,
    /// When each of the last pieces was there.
    arrived: VecDeque<Instant>,
    got: u64,
    owes_request: bool,
    repeat_at: Option<Instant>,
}

impl Leecher {
    /// A client of `seeds` seeds that begins at `start`.
    #[must_use]
    pub fn new(pieces: Pieces, seeds: usize, start: Instant) -> Self {
        let pieces = pieces.opened_by_client();
        let connection = || Connection {
            receiver: Receiver::new(pieces.config),
            asked: 0,
            arrived: VecDeque::new(),
            got: 0,
            owes_request: false,
            repeat_at: None,
        };
        Self {
            pieces,
            start,
            has_begun: false,
            left: pieces.count,
            seeds: std::iter::repeat_with(connection).take(seeds).collect(),
            done: None,
        }
    }

    /// When everything was there.
    #[must_use]
    pub fn done(&self) -> Option<Instant> {
        self.done
    }

    fn begin(&mut self, now: Instant) {
        if !self.has_begun && now >= self.start {
            self.has_begun = true;
            for seed in &mut self.seeds {
                seed.receiver.open(now);
            }
        }
    }

    /// Asks a seed for as much as it may have under way.
    fn ask(&mut self, way: usize, now: Instant) {
        let seed = &mut self.seeds[way];
        while seed
            .arrived
            .front()
            .is_some_and(|at| now.since(*at) > RATE_WINDOW)
        {
            seed.arrived.pop_front();
        }
        let rate = seed.arrived.len() as f64 / RATE_WINDOW.as_secs_f64();
        let most = 1 + (AHEAD * rate).ceil() as u64;
        let more = most.saturating_sub(seed.asked - seed.got).min(self.left);
        if more > 0 {
            self.left -= more;
            seed.asked += more;
            seed.owes_request = true;
            seed.repeat_at = Some(now + REPEAT);
        }
    }
}

impl Application for Leecher {
    fn handle_start(&mut self, now: Instant) {
        self.begin(now);
    }

    fn handle_packet(&mut self, way: usize, packet: &Packet, now: Instant) {
        let Body::Tcp(segment) = &packet.body else { return };
        let seed = &mut self.seeds[way];
        let was_open = seed.receiver.is_open();
        seed.receiver
            .handle_segment(segment, packet.sent, packet.ecn, now);
        let got = seed.receiver.received() / self.pieces.bytes;
        let is_new = got > seed.got || seed.receiver.is_open() && !was_open;
        for _ in seed.got..got {
            seed.arrived.push_back(now);
        }
        seed.got = got;
        if seed.receiver.received() > 0 && got < seed.asked {
            seed.repeat_at = Some(now + REPEAT);
        }
        if is_new {
            self.ask(way, now);
        }
        let all: u64 = self.seeds.iter().map(|seed| seed.got).sum();
        if all >= self.pieces.count && self.done.is_none() {
            self.done = Some(now);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        for seed in &mut self.seeds {
            if seed.repeat_at.is_some_and(|at| at <= now) {
                let is_waiting = seed.got < seed.asked;
                seed.owes_request |= is_waiting;
                seed.repeat_at = is_waiting.then(|| now + REPEAT);
            }
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        for (way, seed) in self.seeds.iter_mut().enumerate() {
            if let Some(segment) = seed.receiver.poll_transmit(now) {
                return Some(outgoing(&self.pieces.config, way, segment));
            }
            if std::mem::take(&mut seed.owes_request) {
                return Some(Outgoing {
                    way,
                    size: REQUEST,
                    ecn: Ecn::NotCapable,
                    body: Body::Datagram(Datagram {
                        number: seed.asked,
                        stamp: now,
                        mark: 0,
                    }),
                });
            }
        }
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_begun {
            return Some(self.start);
        }
        let receivers = self.seeds.iter().filter_map(|seed| seed.receiver.poll_timeout());
        let repeats = self.seeds.iter().filter_map(|seed| seed.repeat_at);
        receivers.chain(repeats).min()
    }
}

/// What a download rate is measured over, as KTorrent does.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// How much is asked for ahead, in seconds at the present rate: `PeerDownloader::update` of KTorrent 2.
const AHEAD: f64 = 10.0;
/// A request that seems lost is made again.
const REPEAT: Duration = Duration::from_secs(3);
/// A request message with IP and TCP headers. Units: bytes.
const REQUEST: u16 = 17 + 52;
