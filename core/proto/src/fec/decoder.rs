//! Receiving side of forward error correction: stores the newest packets of flows with parity, and
//! rebuilds lost ones.
//!
//! A flow is stored from its first parity packet on. Earlier groups are ignored, and so are groups
//! whose packets may have arrived before the first stored packet, because it is unknown whether
//! these packets have arrived.
//!
//! ```text
//!               a parity packet               enough of a group is there
//!   (unknown) -------------------> watched ------------------------------> rebuilt packets
//!       ^                             |
//!       +--- no parity for 10 s, or --+
//!            16 other flows have some
//! ```

use std::collections::VecDeque;

use hawser_units::{Duration, Instant, Sequence};
use hawser_wire::compression::Form;
use hawser_wire::data::{Inner, Kind};
use hawser_wire::frame::Format;
use hawser_wire::parity::{MAX_PACKET, Parity, emit_symbol, parse_symbol, symbol_len};

use super::code::Code;

/// Flows watched at once. Source: a bound on memory, 2 MiB if each position of each flow has a
/// symbol of `MAX_SYMBOL`.
const FLOWS: usize = 16;
/// Positions of a flow that are remembered. Source: two groups of `MAX_COVERED` packets, the
/// largest size of a group in [`hawser_wire::parity`].
const POSITIONS: usize = 64;
/// Number of positions before the first remembered packet that may have overtaken it on a faster
/// path. Source: 160 ms of a call, which has a packet each 20 ms, and 20 ms of a video.
const OVERTAKEN: u32 = 8;
/// Number of incomplete groups of a flow that are stored. Source: our choice, one group that fills,
/// one in the network and two whose parity is late; each more costs the parity of a group, up to 16
/// KB for a flow.
const GROUPS: usize = 4;
/// Time without parity after which a flow is not stored any more. Source: our choice, longer than a
/// pause of a speaker, during which a call sends little; a shorter time allocates a flow's buffers
/// again after each pause.
const IDLE: Duration = Duration::from_secs(10);
/// Groups decoded in a second. Source: two dozen videos of 4 Mbit/s have 1,200 groups of eight
/// packets a second, and at 2 % loss 15 % of these have a packet to rebuild.
const DECODED_PER_SECOND: u64 = 200;
/// Groups decoded at once: those of a quarter of a second. Source: a quarter of
/// [`DECODED_PER_SECOND`].
const DECODED_AT_ONCE: u64 = 50;

/// A lost packet that was recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// Inner header of the recovered packet; its time is that of the parity packet that recovered
    /// it.
    pub inner: Inner,
    /// The inner packet.
    pub packet: Vec<u8>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Sequence number of the last received or recovered packet.
    sequence: Option<Sequence>,
    /// Symbol of the packet; empty if the packet arrived in another form than the protected one.
    symbol: Vec<u8>,
}

#[derive(Debug)]
struct Group {
    base: Sequence,
    covered: u8,
    parity: u8,
    symbols: Vec<(u8, Vec<u8>)>,
}

#[derive(Debug)]
struct Flow {
    id: u16,
    unordered: bool,
    /// Groups from here on are judged.
    from: Sequence,
    /// No packet has come since it is watched.
    is_fresh: bool,
    newest: Sequence,
    heard: Instant,
    places: Vec<Slot>,
    groups: VecDeque<Group>,
}

/// Stores packets and recovers lost ones.
///
/// Cost: O(flows watched) a packet and a copy of those that are watched; 200 runs of the code in a
/// second. Memory: at most 16 flows of 64 packets and 32 symbols of 2 KB each, which is 3 MB;
/// nothing where no parity comes.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Format of the inner packets.
    pub format: Format,
    /// The one that had parity most recently comes last.
    flows: Vec<Flow>,
    rebuilt: VecDeque<Rebuilt>,
    code: Code,
    /// Runs of the code that are left, as of a time.
    allowance: Option<(u64, Instant)>,
}

impl Decoder {
    /// Records an inner packet with its header; returns whether it is new: false if it was
    /// recovered or has arrived before.
    pub fn handle_packet(&mut self, inner: &Inner, packet: &[u8], now: Instant) -> bool {
        let Some(at) = self.find(inner.flow, inner.unordered) else {
            return true;
        };
        if now.since(self.flows[at].heard) > IDLE {
            self.flows.remove(at);
            return true;
        }
        if !self.flows[at].remember(inner, packet) {
            return false;
        }
        let groups = self.flows[at].groups.iter();
        let waiting = groups.clone().position(|group| group.covers(inner.sequence));
        if let Some(group) = waiting {
            self.rebuild(at, group, inner.sent_us, now);
        }
        true
    }

    /// Processes the body of a parity packet; returns whether it was one.
    pub fn handle_parity(&mut self, inner: &Inner, body: &[u8], now: Instant) -> bool {
        let Some((parity, symbol)) = Parity::parse(body) else {
            return false;
        };
        let base = inner.sequence;
        let at = self.watch(inner, parity, now);
        let flow = &mut self.flows[at];
        if flow.is_fresh
            || base.is_before(flow.from)
            || flow.newest.distance_from(base) >= POSITIONS as i32
            || flow.is_whole(base, parity.covered)
        {
            return true;
        }
        let known = flow.groups.iter().position(|group| group.base == base);
        let group = match known {
            Some(group) => group,
            None => {
                if flow.groups.len() >= GROUPS {
                    flow.groups.pop_front();
                }
                flow.groups.push_back(Group {
                    base,
                    covered: parity.covered,
                    parity: parity.parity,
                    symbols: Vec::new(),
                });
                flow.groups.len() - 1
            }
        };
        if flow.groups[group].take(parity, symbol) {
            self.rebuild(at, group, inner.sent_us, now);
        }
        true
    }

    /// Returns a packet that was recovered.
    pub fn poll_rebuilt(&mut self) -> Option<Rebuilt> {
        self.rebuilt.pop_front()
    }

    /// Returns the number of stored symbols.
    #[cfg(test)]
    pub(super) fn symbols(&self) -> usize {
        let held = |flow: &Flow| {
            let places = flow.places.iter().filter(|place| !place.symbol.is_empty());
            places.count() + flow.groups.iter().map(|group| group.symbols.len()).sum::<usize>()
        };
        self.flows.iter().map(held).sum()
    }

    fn find(&self, flow: u16, unordered: bool) -> Option<usize> {
        self.flows
            .iter()
            .position(|known| known.id == flow && known.unordered == unordered)
    }

    /// Returns the index of a flow with parity, which becomes the most recently used one.
    fn watch(&mut self, inner: &Inner, parity: Parity, now: Instant) -> usize {
        let known = self.find(inner.flow, inner.unordered);
        let mut flow = match known.map(|at| self.flows.remove(at)) {
            Some(flow) if now.since(flow.heard) <= IDLE => flow,
            Some(_) | None => {
                let from = inner.sequence.add(u32::from(parity.covered));
                Flow {
                    id: inner.flow,
                    unordered: inner.unordered,
                    from,
                    is_fresh: true,
                    newest: inner.sequence,
                    heard: now,
                    places: (0..POSITIONS).map(|_| Slot::default()).collect(),
                    groups: VecDeque::new(),
                }
            }
        };
        flow.heard = now;
        if self.flows.len() >= FLOWS {
            self.flows.remove(0);
        }
        self.flows.push(flow);
        self.flows.len() - 1
    }

    /// Rebuilds what is missing of a group, if enough is there.
    fn rebuild(&mut self, at: usize, group: usize, sent_us: u32, now: Instant) {
        let flow = &mut self.flows[at];
        let Group { base, covered, .. } = flow.groups[group];
        let missing = flow.missing(base, covered);
        if missing > flow.groups[group].symbols.len() {
            return;
        }
        if flow.is_whole(base, covered) {
            flow.groups.remove(group);
            return;
        }
        let is_allowed = covered == 1 || spend(&mut self.allowance, now);
        let Some(group) = flow.groups.remove(group).filter(|_| is_allowed) else {
            return;
        };
        let len = group.symbols.first().map_or(0, |(_, symbol)| symbol.len());
        for sequence in positions(base, covered) {
            let place = &mut flow.places[index(sequence)];
            match place.symbol_of(sequence).map(<[u8]>::len) {
                Some(known) if known > len => return,
                Some(_) => place.symbol.resize(len, 0),
                None => {}
            }
        }
        let symbols = positions(base, covered).map(|sequence| flow.symbol(sequence));
        let known = symbols.enumerate().filter_map(|(n, symbol)| Some((n, symbol?)));
        for (n, symbol) in self.code.decode(covered, group.parity, known, &group.symbols) {
            let sequence = base.add(n as u32);
            let place = &mut flow.places[index(sequence)];
            let Some((header, packet)) = parse_symbol(&symbol) else {
                continue;
            };
            let is_packet = header.form != Form::Compressed && self.format.parse(packet).is_some();
            if place.sequence == Some(sequence) || !is_packet {
                continue;
            }
            let inner = Inner {
                flow: flow.id,
                sequence,
                sent_us,
                unordered: flow.unordered,
                ..header
            };
            self.rebuilt.push_back(Rebuilt {
                inner,
                packet: packet.to_vec(),
            });
            *place = Slot {
                sequence: Some(sequence),
                symbol,
            };
            if flow.newest.is_before(sequence) {
                flow.newest = sequence;
            }
        }
    }
}

impl Flow {
    /// Remembers a packet; false when it is there already.
    fn remember(&mut self, inner: &Inner, packet: &[u8]) -> bool {
        let sequence = inner.sequence;
        let from = sequence.add(OVERTAKEN);
        if core::mem::take(&mut self.is_fresh) && self.from.is_before(from) {
            self.from = from;
        }
        let place = &mut self.places[index(sequence)];
        match place.sequence {
            Some(known) if known == sequence => return false,
            // From before what is remembered.
            Some(known) if sequence.is_before(known) => return true,
            Some(_) | None => place.sequence = Some(sequence),
        }
        if self.newest.is_before(sequence) {
            self.newest = sequence;
        }
        place.symbol.clear();
        // A retransmission may have another form than the covered packet.
        if packet.len() <= MAX_PACKET && !inner.retransmission && inner.kind == Kind::Packet {
            place.symbol.resize(symbol_len(packet.len()), 0);
            emit_symbol(inner, packet, &mut place.symbol);
        }
        true
    }

    /// Returns how many symbols of a group are unknown.
    fn missing(&self, base: Sequence, covered: u8) -> usize {
        positions(base, covered)
            .filter(|sequence| self.symbol(*sequence).is_none())
            .count()
    }

    fn symbol(&self, sequence: Sequence) -> Option<&[u8]> {
        self.places[index(sequence)].symbol_of(sequence)
    }

    /// Returns whether every packet of a group arrived, in any form.
    fn is_whole(&self, base: Sequence, covered: u8) -> bool {
        positions(base, covered).all(|sequence| self.places[index(sequence)].sequence == Some(sequence))
    }
}

impl Group {
    fn covers(&self, sequence: Sequence) -> bool {
        (0..i32::from(self.covered)).contains(&sequence.distance_from(self.base))
    }

    /// Adds a symbol, if it is one of the group and new.
    fn take(&mut self, parity: Parity, symbol: &[u8]) -> bool {
        let belongs = (parity.covered, parity.parity) == (self.covered, self.parity)
            && self
                .symbols
                .iter()
                .all(|(index, other)| *index != parity.index && other.len() == symbol.len());
        if belongs {
            self.symbols.push((parity.index, symbol.to_vec()));
        }
        belongs
    }
}

impl Slot {
    /// The symbol of that packet, if it is remembered in the form in which it was covered.
    fn symbol_of(&self, sequence: Sequence) -> Option<&[u8]> {
        (self.sequence == Some(sequence) && !self.symbol.is_empty()).then_some(&self.symbol[..])
    }
}

/// Sequence numbers of a group.
fn positions(base: Sequence, covered: u8) -> impl Iterator<Item = Sequence> {
    (0..u32::from(covered)).map(move |n| base.add(n))
}

fn index(sequence: Sequence) -> usize {
    sequence.0 as usize % POSITIONS
}

/// Takes one run of the code from what is allowed.
fn spend(allowance: &mut Option<(u64, Instant)>, now: Instant) -> bool {
    let (left, since) = allowance.unwrap_or((DECODED_AT_ONCE, now));
    let earned = now.since(since).as_millis() as u64 * DECODED_PER_SECOND / 1000;
    let (left, since) = if earned > 0 {
        ((left + earned).min(DECODED_AT_ONCE), now)
    } else {
        (left, since)
    };
    *allowance = Some((left.saturating_sub(1), since));
    left > 0
}
