//! A peer with valid keys that sends arbitrary packets.

use std::collections::BTreeMap;

use hawser_units::{Instant, PathId, Sequence};
use hawser_wire::compression::Form;
use hawser_wire::data::{Class, Feedback, Inner, Kind, MAX_PACKET_NUMBER, Missing};
use hawser_wire::inner::protocol;
use hawser_wire::parity::{MAX_COVERED, MAX_PARITY, PARITY_LEN, Parity, emit_symbol, symbol_len};

use super::packet::{Packet, header, inner_packet, report_body};

/// A deterministic stream of numbers.
pub(crate) struct Lots(u64);

impl Lots {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns a number of any size, often one at an end of its range.
    pub(crate) fn any(&mut self, bits: u32) -> u64 {
        let most = u64::MAX >> (64 - bits);
        match self.below(6) {
            0 => 0,
            1 => most,
            2 => most / 2 + self.below(3),
            3 => self.below(64),
            _ => self.next() & most,
        }
    }
}

/// Kinds of packets of a peer, for the counts by state.
pub(crate) const MOVES: [&str; 16] = [
    "in order",
    "a gap ahead",
    "far ahead",
    "again",
    "any packet",
    "context",
    "compressed",
    "parity",
    "any parity",
    "true report",
    "false report",
    "any report",
    "probe",
    "true reply",
    "false reply",
    "cut short",
];

const TRUE_REPLY: usize = 13;

/// State of the attacking peer.
pub(crate) struct Peer {
    pub(crate) lots: Lots,
    counters: BTreeMap<PathId, u64>,
    sequences: BTreeMap<u16, u32>,
    /// The newest packet number and all bytes that the node sent on each path.
    heard: BTreeMap<PathId, (u64, u64)>,
    tokens: Vec<(PathId, u64)>,
    sent: Vec<Packet>,
    /// Number of flows that it uses.
    pub(crate) flows: u64,
    /// Set if it may use the last packet number of a path, after which none of its packets there is
    /// accepted.
    pub(crate) ends: bool,
    /// Set if its packets have the minimum size, so that there are as many as its rate allows.
    pub(crate) is_terse: bool,
}

impl Peer {
    pub(crate) fn new(seed: u64) -> Self {
        let mut lots = Lots::new(seed);
        let flows = [4, 64, 1 << 16][lots.below(3) as usize];
        Self {
            lots,
            counters: BTreeMap::new(),
            sequences: BTreeMap::new(),
            heard: BTreeMap::new(),
            tokens: Vec::new(),
            sent: Vec::new(),
            flows,
            ends: true,
            is_terse: false,
        }
    }

    /// Records a packet of the node.
    pub(crate) fn hear(&mut self, packet: &Packet) {
        let (newest, bytes) = self.heard.entry(packet.path).or_default();
        *newest = packet.packet_number;
        *bytes += packet.udp_len();
        if packet.inner.kind == Kind::Probe
            && let Some(token) = packet.body.first_chunk()
        {
            self.tokens.push((packet.path, u64::from_be_bytes(*token)));
            self.tokens.truncate(32);
        }
    }

    /// Returns the next packet on a path, and its index in [`MOVES`].
    pub(crate) fn next(&mut self, path: PathId, now: Instant) -> (usize, Packet) {
        // It mostly answers, because otherwise its paths would fail early.
        let is_asked = self.tokens.iter().any(|(on, _)| *on == path);
        let which = if is_asked && self.lots.one_in(3) {
            TRUE_REPLY
        } else {
            self.lots.below(MOVES.len() as u64) as usize
        };
        let (inner, body) = match which {
            0..=6 => self.packet(which, now),
            7 | 8 => self.parity(which == 7, now),
            9..=11 => self.report(which, path, now),
            12 => self.token(Kind::Probe, now),
            TRUE_REPLY => self.reply(path, now),
            14 => self.token(Kind::ProbeReply, now),
            _ => {
                let kinds = [
                    Kind::Packet,
                    Kind::Feedback,
                    Kind::Probe,
                    Kind::ProbeReply,
                    Kind::Parity,
                    Kind::Fragment,
                ];
                let kind = kinds[self.lots.below(6) as usize];
                let len = self.lots.below(12) as usize;
                (self.any_header(kind, now), vec![0; len])
            }
        };
        let packet = Packet {
            path,
            packet_number: self.packet_number(path),
            inner,
            body,
        };
        if self.lots.one_in(20) && !self.sent.is_empty() {
            let at = self.lots.below(self.sent.len() as u64) as usize;
            return (3, self.sent[at].clone());
        }
        self.sent.push(packet.clone());
        if self.sent.len() > 64 {
            self.sent.remove(0);
        }
        (which, packet)
    }

    /// Returns the packets of an honest peer: answers, and a report of all packets of the node.
    pub(crate) fn courtesies(&mut self, path: PathId, now: Instant) -> Vec<Packet> {
        let mut said: Vec<_> = (0..self.tokens.len()).map(|_| self.reply(path, now)).collect();
        said.push(self.report(9, path, now));
        let packet = |(inner, body)| Packet {
            path,
            packet_number: self.packet_number(path),
            inner,
            body,
        };
        said.into_iter().map(packet).collect()
    }

    /// Returns the next packet number, or another one.
    fn packet_number(&mut self, path: PathId) -> u64 {
        let next = self.counters.entry(path).or_insert(1);
        let jump = match self.lots.below(100) {
            0..70 => 0,
            70..90 => self.lots.below(20),
            90..96 => self.lots.below(600),
            96..98 => self.lots.below(100_000),
            // Late, or a replay.
            98 => return next.saturating_sub(self.lots.below(500)),
            _ if self.ends && self.lots.one_in(200) => MAX_PACKET_NUMBER.saturating_sub(*next),
            _ => 0,
        };
        let packet_number = (*next + jump).min(MAX_PACKET_NUMBER);
        *next = packet_number + 1;
        packet_number
    }

    fn any_header(&mut self, kind: Kind, now: Instant) -> Inner {
        let lots = &mut self.lots;
        Inner {
            class: Class::ALL[lots.below(4) as usize],
            checksum_partial: lots.one_in(2),
            unordered: lots.one_in(3),
            backed: lots.one_in(2),
            retransmission: lots.one_in(4),
            form: [Form::Whole, Form::Context, Form::Compressed][lots.below(3) as usize],
            sent_us: if lots.one_in(2) {
                lots.any(32) as u32
            } else {
                now.as_micros_wrapping()
            },
            ..header(kind, lots.any(16) as u16, lots.any(32) as u32, now)
        }
    }

    fn packet(&mut self, which: usize, now: Instant) -> (Inner, Vec<u8>) {
        let flow = self.lots.below(self.flows) as u16;
        let next = self.sequences.entry(flow).or_default();
        let sequence = match which {
            0 | 5 | 6 => *next,
            1 => *next + 1 + self.lots.below(40) as u32,
            2 => next.wrapping_add([8_190, 8_191, 8_192, 20_000, 1 << 30][self.lots.below(5) as usize]),
            _ => next.wrapping_sub(self.lots.below(64) as u32),
        };
        if which == 4 {
            let inner = self.any_header(Kind::Packet, now);
            let len = 40 + self.lots.below(200) as usize;
            return (inner, inner_packet(protocol::TCP, inner.flow, len));
        }
        if Sequence(*next).is_before(Sequence(sequence.wrapping_add(1))) {
            *next = sequence.wrapping_add(1);
        }
        let mut inner = Inner {
            backed: true,
            retransmission: which == 3,
            ..header(Kind::Packet, flow, sequence, now)
        };
        let payload = if self.is_terse {
            0
        } else {
            self.lots.below(1_300) as usize
        };
        let mut body = inner_packet(protocol::TCP, flow, 40 + payload);
        match which {
            5 => inner.form = Form::Context,
            6 => {
                inner.form = Form::Compressed;
                body = vec![self.lots.any(8) as u8; 1 + self.lots.below(100) as usize];
            }
            _ => {}
        }
        (inner, body)
    }

    fn parity(&mut self, is_sound: bool, now: Instant) -> (Inner, Vec<u8>) {
        let flow = self.lots.below(self.flows.min(24)) as u16;
        let next = self.sequences.entry(flow).or_default();
        let packet = inner_packet(protocol::UDP, flow, 60);
        if is_sound {
            // A group of one: its parity is a copy of a packet that may never have arrived.
            let inner = header(
                Kind::Parity,
                flow,
                next.wrapping_sub(self.lots.below(4) as u32),
                now,
            );
            let mut body = vec![0; PARITY_LEN + symbol_len(packet.len())];
            let parity = Parity {
                covered: 1,
                parity: 1,
                index: 0,
            };
            let (head, symbol) = body.split_first_chunk_mut().expect("room for both");
            parity.emit(head);
            emit_symbol(&Inner::plain(Kind::Packet), &packet, symbol);
            return (inner, body);
        }
        let lots = &mut self.lots;
        let inner = Inner {
            unordered: lots.one_in(2),
            ..header(Kind::Parity, flow, next.wrapping_sub(lots.below(40) as u32), now)
        };
        let parity = Parity {
            covered: 1 + lots.below(u64::from(MAX_COVERED)) as u8,
            parity: 1 + lots.below(u64::from(MAX_PARITY)) as u8,
            index: lots.below(10) as u8,
        };
        let mut body = vec![lots.any(8) as u8; PARITY_LEN + lots.below(1_024) as usize * 2];
        parity.emit(body.first_chunk_mut().expect("room for the numbers"));
        (inner, body)
    }

    fn report(&mut self, which: usize, came_by: PathId, now: Instant) -> (Inner, Vec<u8>) {
        let about = if which > 9 && self.lots.one_in(4) {
            PathId(self.lots.below(4) as u16)
        } else {
            came_by
        };
        let (newest, bytes) = self.heard.get(&about).copied().unwrap_or_default();
        let mut missing = Missing::default();
        let lots = &mut self.lots;
        let mut report = Feedback {
            path: about,
            highest: newest,
            packets: newest as u32,
            bytes,
            received_us: now.as_micros_wrapping(),
            delay_us: 20_000,
            takes_parity: true,
            takes_fragments: true,
            ..Feedback::default()
        };
        if which > 9 {
            for _ in 0..lots.below(17) {
                missing.push(lots.any(16) as u16, lots.any(16) as u16);
            }
            report.missing = missing;
            report.packets = lots.any(32) as u32;
            report.bytes = lots.any(48);
        }
        if which == 11 {
            report.highest = lots.any(48);
            report.received_us = lots.any(32) as u32;
            report.hold_us = lots.any(32) as u32;
            report.delay_us = lots.any(32) as u32;
            report.spread_us = lots.any(32) as u32;
            report.open = lots.any(16) as u16;
        }
        (header(Kind::Feedback, 0, 0, now), report_body(&report))
    }

    fn token(&mut self, kind: Kind, now: Instant) -> (Inner, Vec<u8>) {
        let mut body = self.lots.next().to_be_bytes().to_vec();
        if !self.is_terse {
            body.resize(8 + self.lots.below(3) as usize * 600, 0);
        }
        (header(kind, 0, 0, now), body)
    }

    fn reply(&mut self, path: PathId, now: Instant) -> (Inner, Vec<u8>) {
        let known = self.tokens.iter().rposition(|(on, _)| *on == path);
        let token = known.map_or(1, |at| self.tokens.remove(at).1);
        (header(Kind::ProbeReply, 0, 0, now), token.to_be_bytes().to_vec())
    }
}
