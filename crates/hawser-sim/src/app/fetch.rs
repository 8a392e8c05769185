//! Blocks of a file, each over a connection of its own: a streaming client that chooses the path of each block, and its server.

use std::collections::BTreeSet;

use hawser_units::Instant;

use super::outgoing;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Packet};
use crate::tcp::{Config, Opening, Receiver, Sender};

/// A file in blocks, over some paths. The way of connection `n` on path `p` is `p * blocks + n`: both ends are joined over that many ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// What connections are like; the client opens them.
    pub config: Config,
    /// How many there are.
    pub count: usize,
    /// Bytes of each.
    pub bytes: u64,
    /// How many paths there are.
    pub paths: usize,
}

/// Sends one block on each connection that is opened.
#[derive(Debug)]
pub struct BlockServer {
    blocks: Blocks,
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
        if let Body::Tcp(segment) = &packet.body {
            let config = self.blocks.config;
            let sender = self.senders[way].get_or_insert_with(|| Box::new(Sender::new(config)));
            sender.handle_segment(segment, now);
            self.live.insert(way);
        }
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
                if len > 0 && sender.has_room(len) {
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

/// Fetches each block once, one at a time on each path: the earliest that nobody fetches, or one further on where the path is slow.
///
/// Source: Juggler section 6.2.2. A path looks at how far the earliest block has moved since its own last one; beyond the number of paths, it is
/// slower than the others and skips as many. Not stated: what happens when that block is taken or beyond the end; the next free one, then.
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

    /// When each block was there.
    #[must_use]
    pub fn done(&self) -> &[Option<Instant>] {
        &self.done
    }

    /// Whether all are.
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
            self.live.remove(&idle?);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_begun {
            return Some(self.start);
        }
        let live = self.live.iter().filter_map(|way| self.receivers[*way].as_ref());
        live.filter_map(|receiver| receiver.poll_timeout()).min()
    }
}
