//! Download of a file from several seeds, with requests in advance.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::outgoing;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Datagram, Ecn, Packet};
use crate::tcp::{Config, Opening, Receiver, Sender};

/// A file as a swarm distributes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pieces {
    /// Parameters of the connections; the client opens one to each seed.
    pub config: Config,
    /// Number of pieces.
    pub count: u64,
    /// Size of a piece. Units: bytes.
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

/// Seeds, one per route, that send the requested pieces.
///
/// A request is a datagram with the total number of requested pieces: it represents a message on
/// the same connection, which is not lost.
#[derive(Debug)]
pub struct Seeds {
    pieces: Pieces,
    senders: Vec<Sender>,
    /// Bytes.
    asked: Vec<u64>,
}

impl Seeds {
    /// Creates seeds that have the whole file.
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

/// Downloads a file from one seed per route, as KTorrent 2.2 does.
///
/// Arrivals are processed only four times per second. A seed is assigned a chunk of the file, and
/// more when it is fast or has delivered almost all of one. The blocks of its chunks are requested
/// in order: one, and two more for each block that arrived in the last five seconds, so the number
/// of requested blocks at most triples per poll. The opening takes two more polls: one for the
/// seed's chunks and the client's interest, one for the unchoke. Does not model: fetching the last
/// chunks from both seeds, cancels, hash checks, choking by a seed with a single client.
///
/// Source: KTorrent 2.2.4, `ktorrentcore.cpp` (250 ms), `downloader.cpp` (`normalUpdate`),
/// `peerdownloader.cpp` (`update`, `getMaxChunkDownloads`), `net/speed.cpp` (five seconds).
#[derive(Debug)]
pub struct Leecher {
    pieces: Pieces,
    start: Instant,
    next_poll: Option<Instant>,
    /// Blocks that are not assigned to a seed.
    left: u64,
    seeds: Vec<Connection>,
    done: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    receiver: Receiver,
    /// Number of polls since the connection is open.
    polls: u32,
    /// Blocks of the assigned chunks.
    given: u64,
    /// End of each unfinished chunk, counted in assigned blocks.
    chunks: VecDeque<u64>,
    asked: u64,
    /// Arrival times of the last blocks.
    arrived: VecDeque<Instant>,
    /// Blocks that arrived, and those that were processed.
    came: u64,
    seen: u64,
    owes_request: bool,
    repeat_at: Option<Instant>,
}

impl Connection {
    fn new(config: Config) -> Self {
        Self {
            receiver: Receiver::new(config),
            polls: 0,
            given: 0,
            chunks: VecDeque::new(),
            asked: 0,
            arrived: VecDeque::new(),
            came: 0,
            seen: 0,
            owes_request: false,
            repeat_at: None,
        }
    }

    /// Returns the number of blocks that arrived in the last five seconds.
    fn recent(&self, now: Instant) -> u64 {
        let is_recent = |at: &&Instant| now.since(**at) <= RATE_WINDOW;
        self.arrived.iter().rev().take_while(is_recent).count() as u64
    }

    /// Returns whether the seed gets another chunk; `bytes` is the size of a block.
    fn wants_chunk(&self, bytes: u64, now: Instant) -> bool {
        let recent = self.recent(now);
        let rate = recent * bytes / RATE_WINDOW.as_secs_f64() as u64;
        let most = 1 + rate / FAST;
        let is_nearly_done = self.chunks.back().is_some_and(|end| *end == self.seen + 1);
        let has_room = self.given - self.asked < (2 * Self::max_requests(recent)).max(10);
        self.polls > OPENING_POLLS && has_room && ((self.chunks.len() as u64) < most || is_nearly_done)
    }

    fn max_requests(recent: u64) -> u64 {
        1 + AHEAD * recent / RATE_WINDOW.as_secs_f64() as u64
    }

    fn ask(&mut self, now: Instant) {
        let may = self.seen + Self::max_requests(self.recent(now));
        let asked = may.min(self.given).max(self.asked);
        if asked > self.asked {
            self.asked = asked;
            self.owes_request = true;
            self.repeat_at = Some(now + REPEAT);
        }
    }

    fn forget_before(&mut self, now: Instant) {
        while self
            .arrived
            .front()
            .is_some_and(|at| now.since(*at) > RATE_WINDOW)
        {
            self.arrived.pop_front();
        }
    }
}

impl Leecher {
    /// Creates a client of `seeds` seeds that starts at `start`.
    #[must_use]
    pub fn new(pieces: Pieces, seeds: usize, start: Instant) -> Self {
        let pieces = pieces.opened_by_client();
        let connection = || Connection::new(pieces.config);
        Self {
            pieces,
            start,
            next_poll: None,
            left: pieces.count,
            seeds: std::iter::repeat_with(connection).take(seeds).collect(),
            done: None,
        }
    }

    /// Returns when the client detected that the file was complete.
    #[must_use]
    pub fn done(&self) -> Option<Instant> {
        self.done
    }

    fn begin(&mut self, now: Instant) {
        if self.next_poll.is_none() && now >= self.start {
            self.next_poll = Some(now + POLL_INTERVAL);
            for seed in &mut self.seeds {
                seed.receiver.open(now);
            }
        }
    }

    /// Processes the blocks that arrived since the last poll.
    fn process_arrivals(&mut self, now: Instant) {
        for way in 0..self.seeds.len() {
            let seed = &mut self.seeds[way];
            seed.polls += u32::from(seed.receiver.is_open());
            seed.forget_before(now);
            while self.seeds[way].seen < self.seeds[way].came {
                let seed = &mut self.seeds[way];
                seed.seen += 1;
                if seed.chunks.front() == Some(&seed.seen) {
                    seed.chunks.pop_front();
                    self.give_chunks(now);
                }
                self.seeds[way].ask(now);
            }
        }
        self.give_chunks(now);
        let seen: u64 = self.seeds.iter().map(|seed| seed.seen).sum();
        if seen >= self.pieces.count && self.done.is_none() {
            self.done = Some(now);
        }
    }

    fn give_chunks(&mut self, now: Instant) {
        for seed in &mut self.seeds {
            if self.left > 0 && seed.wants_chunk(self.pieces.bytes, now) {
                let blocks = CHUNK.min(self.left);
                self.left -= blocks;
                seed.given += blocks;
                seed.chunks.push_back(seed.given);
            }
            seed.ask(now);
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
        seed.receiver
            .handle_segment(segment, packet.sent, packet.ecn, now);
        let came = seed.receiver.received() / self.pieces.bytes;
        for _ in seed.came..came {
            seed.arrived.push_back(now);
        }
        seed.came = came;
        if seed.receiver.received() > 0 && came < seed.asked {
            seed.repeat_at = Some(now + REPEAT);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        if let Some(at) = self.next_poll.filter(|at| *at <= now && self.done.is_none()) {
            self.process_arrivals(now);
            self.next_poll = Some(at + POLL_INTERVAL);
        }
        for seed in &mut self.seeds {
            if seed.repeat_at.is_some_and(|at| at <= now) {
                let is_waiting = seed.came < seed.asked;
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
        let receivers = self.seeds.iter().filter_map(|seed| seed.receiver.poll_timeout());
        let repeats = self.seeds.iter().filter_map(|seed| seed.repeat_at);
        let poll = self.done.is_none().then(|| self.next_poll.unwrap_or(self.start));
        receivers.chain(repeats).chain(poll).min()
    }
}

/// Interval of processing arrivals. Source: `ktorrentcore.cpp` of KTorrent 2.2.4 (see [`Leecher`]).
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Number of polls after which an open connection accepts requests. Source: one poll for the seed's
/// chunks and one for the unchoke (see [`Leecher`]).
const OPENING_POLLS: u32 = 2;
/// Blocks of a chunk. Source: 256 KB in blocks of 16 KB, the default of the official client, which
/// the seeds of Juggler section 6.2.3 were.
const CHUNK: u64 = 16;
/// Download rate per additional chunk of a seed. Units: byte/s. Source: `getMaxChunkDownloads` in
/// `peerdownloader.cpp` of KTorrent 2.2.4.
const FAST: u64 = 50 << 10;
/// Averaging time of a download rate. Source: `net/speed.cpp` of KTorrent 2.2.4.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// Requests in advance, as seconds of the present rate. Source: `update` in `peerdownloader.cpp` of
/// KTorrent 2.2.4.
const AHEAD: u64 = 10;
/// Time after which a lost request is repeated. Source: the initial timeout of TCP until 2011 (RFC
/// 1122 section 4.2.3.1), since a request stands for a message on a TCP connection.
const REPEAT: Duration = Duration::from_secs(3);
/// Request message with IP and TCP headers. Source: BEP 3 of BitTorrent (17 bytes), and headers
/// with timestamps. Units: bytes.
const REQUEST: u16 = 17 + 52;

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 16 << 10;

    fn open() -> Connection {
        Connection {
            polls: OPENING_POLLS + 1,
            ..Connection::new(Config::linux_2_6())
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn bring(seed: &mut Connection, blocks: u64, now: Instant) {
        seed.came += blocks;
        seed.seen = seed.came;
        seed.arrived.extend(std::iter::repeat_n(now, blocks as usize));
    }

    #[test]
    fn what_is_under_way_grows_threefold_and_follows_the_rate() {
        let mut seed = Connection { given: 100, ..open() };
        let mut under_way = Vec::new();
        for poll in 0..4 {
            seed.ask(at(250 * poll));
            under_way.push(seed.asked - seed.seen);
            let blocks = seed.asked - seed.seen;
            bring(&mut seed, blocks, at(250 * poll + 100));
        }
        assert_eq!(under_way, [1, 3, 9, 27]);
        // After 6 s, none of these samples is counted.
        seed.ask(at(7_000));
        assert_eq!(seed.asked - seed.seen, 1);
    }

    #[test]
    fn only_a_fast_seed_gets_a_second_chunk_before_the_first_is_nearly_there() {
        let mut slow = open();
        assert!(slow.wants_chunk(BLOCK, at(0)));
        slow.polls = OPENING_POLLS;
        assert!(!slow.wants_chunk(BLOCK, at(0)), "it has not let the client in");
        let with_chunk = || Connection {
            given: CHUNK,
            asked: CHUNK,
            chunks: VecDeque::from([CHUNK]),
            ..open()
        };
        let mut slow = with_chunk();
        assert!(!slow.wants_chunk(BLOCK, at(0)));
        bring(&mut slow, CHUNK - 1, at(100));
        assert!(slow.wants_chunk(BLOCK, at(200)), "one block is missing");
        let mut fast = with_chunk();
        fast.arrived.extend([at(50); 16]);
        assert!(fast.wants_chunk(BLOCK, at(200)), "256 KB in five seconds");
    }
}
