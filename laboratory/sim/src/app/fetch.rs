//! Blocks of a file, each over a connection of its own: a streaming client that chooses the path of
//! each block, and its server.

use std::collections::BTreeSet;

use hawser_units::{Duration, Instant};

use super::outgoing;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Datagram, Ecn, Packet};
use crate::tcp::{Config, Opening, Receiver, Sender};

/// A file in blocks, over some paths. The way of connection `n` on path `p` is `p * blocks + n`:
/// both ends are joined over that many ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// Parameters of connections; the client opens them.
    pub config: Config,
    /// Number of blocks.
    pub count: usize,
    /// Bytes of each.
    pub bytes: u64,
    /// Number of paths.
    pub paths: usize,
}

/// Sends one block on each connection on which it is asked for one.
///
/// A request is a datagram, and stands for the first message of its connection.
#[derive(Debug)]
pub struct BlockServer {
    blocks: Blocks,
    asked: Vec<bool>,
    senders: Vec<Option<Box<Sender>>>,
    live: BTreeSet<usize>,
}

impl BlockServer {
    /// A server of this file.
    #[must_use]
    pub fn new(blocks: Blocks) -> Self {
        Self {
            blocks: blocks.opened_by_client(),
            senders: std::iter::repeat_with(|| None)
                .take(blocks.count * blocks.paths)
                .collect(),
            asked: vec![false; blocks.count * blocks.paths],
            live: BTreeSet::new(),
        }
    }
}

impl Blocks {
    fn opened_by_client(self) -> Self {
        let config = Config {
            opening: Opening::ByReceiver,
            ..self.config
        };
        Self { config, ..self }
    }
}

impl Application for BlockServer {
    fn handle_packet(&mut self, way: usize, packet: &Packet, now: Instant) {
        let config = self.blocks.config;
        let sender = self.senders[way].get_or_insert_with(|| Box::new(Sender::new(config)));
        match &packet.body {
            Body::Tcp(segment) => sender.handle_segment(segment, now),
            Body::Datagram(_) => self.asked[way] = true,
            Body::Tunnel(_) => {}
        }
        self.live.insert(way);
    }

    fn handle_timeout(&mut self, now: Instant) {
        for way in &self.live {
            if let Some(sender) = &mut self.senders[*way] {
                sender.handle_timeout(now);
            }
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let config = self.blocks.config;
        loop {
            let mut ended = None;
            for way in &self.live {
                let Some(sender) = &mut self.senders[*way] else {
                    continue;
                };
                if let Some(segment) = sender.poll_transmit(now) {
                    return Some(outgoing(&config, *way, segment));
                }
                let left = self.blocks.bytes - sender.sent();
                let len = left.min(u64::from(config.segment)) as u16;
                if len > 0 && self.asked[*way] && sender.has_room(len) {
                    let data = sender.sent();
                    return Some(outgoing(&config, *way, sender.send(len, data, now)));
                }
                if sender.acknowledged() >= self.blocks.bytes {
                    ended = Some(*way);
                }
            }
            self.live.remove(&ended?);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let live = self.live.iter().filter_map(|way| self.senders[*way].as_ref());
        live.filter_map(|sender| sender.poll_timeout()).min()
    }
}

/// Fetches each block once, one at a time on each path: the earliest that is not being fetched, or
/// a later one on a slow path.
///
/// Source: Juggler section 6.2.2. A path compares how far the earliest block has moved since its
/// own last one; beyond the number of paths, it is slower than the others and skips as many. Not
/// stated: the case that this block is taken or beyond the end; the next free one is used then.
#[derive(Debug)]
pub struct BlockClient {
    blocks: Blocks,
    start: Instant,
    has_begun: bool,
    receivers: Vec<Option<Box<Receiver>>>,
    live: BTreeSet<usize>,
    taken: Vec<bool>,
    done: Vec<Option<Instant>>,
    paths: Vec<Path>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Path {
    connections: usize,
    /// Way and block under way.
    current: Option<(usize, usize)>,
    /// Time of its request, or of the repetition after silence.
    ask_at: Option<Instant>,
    previous: Option<usize>,
}

impl BlockClient {
    /// A client that begins at `start`.
    #[must_use]
    pub fn new(blocks: Blocks, start: Instant) -> Self {
        Self {
            blocks: blocks.opened_by_client(),
            start,
            has_begun: false,
            receivers: std::iter::repeat_with(|| None)
                .take(blocks.count * blocks.paths)
                .collect(),
            live: BTreeSet::new(),
            taken: vec![false; blocks.count],
            done: vec![None; blocks.count],
            paths: vec![Path::default(); blocks.paths],
        }
    }

    /// Returns when each block was complete.
    #[must_use]
    pub fn done(&self) -> &[Option<Instant>] {
        &self.done
    }

    /// Returns whether all blocks are complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done.iter().all(Option::is_some)
    }

    fn choose(&self, path: usize) -> Option<usize> {
        let earliest = self.taken.iter().position(|taken| !taken)?;
        let delta = match self.paths[path].previous {
            Some(previous) => earliest.saturating_sub(previous),
            None => 0,
        };
        if delta <= self.blocks.paths {
            return Some(earliest);
        }
        let from = (earliest + delta).min(self.blocks.count - 1);
        let later = (from..self.blocks.count).find(|block| !self.taken[*block]);
        later.or(Some(earliest))
    }

    fn begin_next(&mut self, path: usize, now: Instant) {
        let Some(block) = self.choose(path) else {
            self.paths[path].current = None;
            return;
        };
        self.taken[block] = true;
        let way = path * self.blocks.count + self.paths[path].connections;
        self.paths[path].connections += 1;
        self.paths[path].current = Some((way, block));
        self.paths[path].ask_at = None;
        let mut receiver = Receiver::new(self.blocks.config);
        receiver.open(now);
        self.receivers[way] = Some(Box::new(receiver));
        self.live.insert(way);
    }

    fn begin(&mut self, now: Instant) {
        if !self.has_begun && now >= self.start {
            self.has_begun = true;
            for path in 0..self.blocks.paths {
                self.begin_next(path, now);
            }
        }
    }
}

impl Application for BlockClient {
    fn handle_start(&mut self, now: Instant) {
        self.begin(now);
    }

    fn handle_packet(&mut self, way: usize, packet: &Packet, now: Instant) {
        let (Body::Tcp(segment), Some(receiver)) = (&packet.body, &mut self.receivers[way]) else {
            return;
        };
        receiver.handle_segment(segment, packet.sent, packet.ecn, now);
        self.live.insert(way);
        let path = way / self.blocks.count;
        if receiver.received() > 0 {
            self.paths[path].ask_at = None;
        } else if receiver.is_open() {
            self.paths[path].ask_at.get_or_insert(now);
        }
        if receiver.received() >= self.blocks.bytes
            && let Some((current, block)) = self.paths[path].current
            && current == way
        {
            self.done[block] = Some(now);
            self.paths[path].previous = Some(block);
            self.begin_next(path, now);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let config = self.blocks.config;
        loop {
            let mut idle = None;
            for way in &self.live {
                let Some(receiver) = &mut self.receivers[*way] else {
                    continue;
                };
                if let Some(segment) = receiver.poll_transmit(now) {
                    return Some(outgoing(&config, *way, segment));
                }
                if receiver.poll_timeout().is_none() {
                    idle = Some(*way);
                }
            }
            let Some(idle) = idle else { break };
            self.live.remove(&idle);
        }
        let path = self
            .paths
            .iter_mut()
            .find(|path| path.ask_at.is_some_and(|at| at <= now))?;
        path.ask_at = Some(now + ASK_AGAIN);
        let (way, block) = path.current?;
        Some(Outgoing {
            way,
            size: REQUEST,
            ecn: Ecn::NotCapable,
            body: Body::Datagram(Datagram {
                number: block as u64,
                stamp: now,
                mark: 0,
            }),
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_begun {
            return Some(self.start);
        }
        let live = self.live.iter().filter_map(|way| self.receivers[*way].as_ref());
        let asks = self.paths.iter().filter_map(|path| path.ask_at);
        live.filter_map(|receiver| receiver.poll_timeout())
            .chain(asks)
            .min()
    }
}

/// Size of a request for a range of a file in plain HTTP, with IP and TCP headers. Units: bytes.
/// Source: our choice, the 150 bytes of a short request with a host, a path and a range; and IPv4,
/// TCP and timestamps (RFC 791, RFC 9293, RFC 7323: 20, 20 and 12 bytes).
const REQUEST: u16 = 150 + 52;
/// Time after which a request without an answer is repeated. Source: the initial timeout of TCP
/// until 2011 (RFC 1122 section 4.2.3.1), as in the paper's time.
const ASK_AGAIN: Duration = Duration::from_secs(3);
