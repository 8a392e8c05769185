//! Sending side of forward error correction: groups of a flow's packets, and the parity packets
//! after them.
//!
//! ```text
//!              a packet to be covered            full, or SPAN is over
//!   (no group) ----------------------> gathering ---------------------> parity packets, each at its time
//!       ^                                  |                                     |
//!       +---- a place is missing ----------+------------- (no group) <-----------+
//! ```

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::{Inner, Kind};
use hawser_wire::parity::{MAX_COVERED, MAX_PACKET, PARITY_LEN, Parity, emit_symbol, symbol_len};

use super::code::Code;
use super::{SPAN, parity_for};

/// Flows with parity at once. Source: a bound on memory, 2 MiB if each has a full group of symbols
/// of `MAX_SYMBOL`.
const FLOWS: usize = 32;
/// Time without a packet after which a flow may be forgotten. Source: our choice, 20 intervals of
/// the slowest common call, 50 ms; it matters only while more than [`FLOWS`] flows are covered,
/// when a longer one leaves new flows uncovered.
const IDLE: Duration = Duration::from_secs(1);
/// Parity packets that wait for their time or a path; beyond it the oldest are dropped. Source: a
/// bound on memory, 512 KiB of symbols of `MAX_SYMBOL`.
const WAITING: usize = 256;
/// Maximum distance of parity packets, and delay of a copy behind its packet: a network often
/// treats adjacent packets alike. Source: our choice, half of a call's shortest common interval of
/// 20 ms, so that parity comes before the next packet; a longer one delays what it rebuilds.
const APART: Duration = Duration::from_millis(10);
/// Shortest interval between the packets of a flow that gets parity. Source: 1,200 bytes each are
/// 40 Mbit/s then, `TRANSFER_ABOVE` of `flow/behaviour.rs`, beyond which a flow is no call and no
/// video.
const FASTEST: Duration = Duration::from_micros(240);

/// Parameters of the protection of a flow's next packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cover {
    /// Share of packets that are lost on their path.
    pub loss: f64,
    /// Path on which they are sent.
    pub path: PathId,
}

/// A parity packet to be sent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Inner header, except its time.
    pub inner: Inner,
    /// Header of the parity symbol.
    pub parity: Parity,
    /// Parity symbol.
    pub symbol: Vec<u8>,
    /// The path of the packets that it covers; another path is preferred.
    pub covered_on: PathId,
    /// Earliest time to send it.
    at: Instant,
    /// Time after which it is useless.
    pub until: Instant,
}

impl Outgoing {
    /// Bytes of its body.
    #[must_use]
    pub fn len(&self) -> usize {
        PARITY_LEN + self.symbol.len()
    }

    /// Returns false: a symbol contains at least its header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbol.is_empty()
    }
}

#[derive(Debug)]
struct Group {
    /// Inner header of the group's first packet.
    inner: Inner,
    since: Instant,
    loss: f64,
    planned: u8,
    symbols: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Flow {
    cover: Cover,
    /// The mean time between its packets.
    gap: Duration,
    last: Instant,
    group: Option<Group>,
}

/// Collects packets in groups and creates the parity packets of each group.
///
/// Cost: a copy of each covered packet, one run of the code for a group. Memory: at most 32 flows
/// of 32 packets of 2 KB, in practice what they send in 20 ms.
#[derive(Debug, Default)]
pub struct Encoder {
    flows: BTreeMap<u16, Flow>,
    waiting: VecDeque<Outgoing>,
    code: Code,
    /// Memory of symbols that are no longer needed.
    spare: Vec<Vec<u8>>,
}

impl Encoder {
    /// Records that packets of a flow are about to be sent; false when they will not be covered:
    /// the flow is too fast, or there are too many flows.
    pub fn plan(&mut self, flow: u16, cover: Cover, count: u16, now: Instant) -> bool {
        if !self.flows.contains_key(&flow) && self.flows.len() >= FLOWS {
            self.flows
                .retain(|_, flow| flow.group.is_some() || now.since(flow.last) < IDLE);
            if self.flows.len() >= FLOWS {
                return false;
            }
        }
        let state = self.flows.entry(flow).or_insert(Flow {
            cover,
            gap: SPAN,
            last: now,
            group: None,
        });
        state.cover = cover;
        for index in 0..count {
            let since = if index == 0 {
                now.since(state.last)
            } else {
                Duration::ZERO
            };
            state.gap = (state.gap * 7 + since.min(SPAN * 2)) / 8;
        }
        state.last = now;
        state.gap >= FASTEST
    }

    /// Adds a packet that was sent with this header to the group of its flow.
    pub fn push(&mut self, inner: &Inner, packet: &[u8], now: Instant) {
        let Some(flow) = self.flows.get_mut(&inner.flow) else {
            return;
        };
        let follows = |group: &mut Group| {
            let next = group.inner.sequence.add(group.symbols.len() as u32);
            group.inner.unordered == inner.unordered && next == inner.sequence
        };
        if packet.len() > MAX_PACKET {
            return;
        }
        if let Some(broken) = flow.group.take_if(|group| !follows(group)) {
            self.spare.extend(broken.symbols);
        }
        let planned = (SPAN.as_nanos() / flow.gap.as_nanos().max(1)).clamp(1, u128::from(MAX_COVERED));
        let group = flow.group.get_or_insert_with(|| Group {
            inner: *inner,
            since: now,
            loss: 0.0,
            planned: planned as u8,
            symbols: Vec::new(),
        });
        group.loss = group.loss.max(flow.cover.loss);
        let mut symbol = self.spare.pop().unwrap_or_default();
        symbol.clear();
        symbol.resize(symbol_len(packet.len()), 0);
        emit_symbol(inner, packet, &mut symbol);
        group.symbols.push(symbol);
        if group.symbols.len() >= usize::from(group.planned) {
            self.close(inner.flow, now);
        }
    }

    /// Ends the group of a flow: its parity packets wait for their time.
    fn close(&mut self, flow: u16, now: Instant) {
        let Some(state) = self.flows.get_mut(&flow) else {
            return;
        };
        let Some(mut group) = state.group.take() else {
            return;
        };
        let len = group.symbols.iter().map(Vec::len).max().unwrap_or_default();
        for symbol in &mut group.symbols {
            symbol.resize(len, 0);
        }
        let covered = group.symbols.len() as u8;
        let parity = parity_for(covered, group.loss);
        let step = state.gap.min(APART);
        for (index, symbol) in self.code.encode(&group.symbols, parity).into_iter().enumerate() {
            let at = now + step * (index as u32 + u32::from(covered == 1));
            let outgoing = Outgoing {
                inner: Inner {
                    class: group.inner.class,
                    unordered: group.inner.unordered,
                    flow,
                    sequence: group.inner.sequence,
                    ..Inner::plain(Kind::Parity)
                },
                parity: Parity {
                    covered,
                    parity,
                    index: index as u8,
                },
                symbol,
                covered_on: state.cover.path,
                at,
                until: at + SPAN,
            };
            let place = self.waiting.partition_point(|other| other.at <= at);
            self.waiting.insert(place, outgoing);
        }
        let surplus = self.waiting.len().saturating_sub(WAITING);
        self.waiting.drain(..surplus);
        if self.spare.len() < usize::from(MAX_COVERED) {
            self.spare.append(&mut group.symbols);
        }
    }

    /// Ends the groups whose time has expired, and drops parity packets that would be too late;
    /// returns the number of dropped ones.
    pub fn handle_timeout(&mut self, now: Instant) -> u64 {
        let is_due = |flow: &Flow| flow.group.as_ref().is_some_and(|group| group.since + SPAN <= now);
        while let Some(flow) = self
            .flows
            .iter()
            .find(|(_, flow)| is_due(flow))
            .map(|(id, _)| *id)
        {
            self.close(flow, now);
        }
        let before = self.waiting.len();
        self.waiting.retain(|outgoing| outgoing.until > now);
        (before - self.waiting.len()) as u64
    }

    /// Returns the parity packet that is to be sent now.
    #[must_use]
    pub fn peek(&self, now: Instant) -> Option<&Outgoing> {
        self.waiting.front().filter(|outgoing| outgoing.at <= now)
    }

    /// Removes and returns the parity packet that [`Self::peek`] returns.
    pub fn pop(&mut self) -> Option<Outgoing> {
        self.waiting.pop_front()
    }

    /// Returns when to call [`Self::handle_timeout`]: the end of a group.
    #[must_use]
    pub fn due(&self) -> Instant {
        let groups = self.flows.values().filter_map(|flow| flow.group.as_ref());
        let ends = groups.map(|group| group.since + SPAN);
        ends.min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Returns when [`Self::peek`] will return the next parity packet.
    #[must_use]
    pub fn next_at(&self) -> Instant {
        self.waiting
            .front()
            .map_or(Instant::FAR_FUTURE, |outgoing| outgoing.at)
    }
}
