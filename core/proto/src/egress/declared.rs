//! Priority for flows whose programs have declared their traffic.
//!
//! Packets within the declaration are sent before other flows, on the most reliable paths that
//! provide the declared rate ([`allocation`]), and on paths that lose no more than the worst of
//! these. Packets beyond the declaration are treated as if nothing had been declared. Declared
//! flows together have priority for at most [`MAX_AHEAD`] of the paths' rate. Flows are admitted to
//! it in the order in which they begin ([`admission`]), each with all of its rate. The rate that
//! admitted flows leave is divided among the rejected ones: those with the lowest rates get all of
//! their rate, the others equal rates. The rest of their traffic is scheduled like that of all
//! flows.
//!
//! ```text
//!                              a tenth of a second ago
//!   declared ---> planned? ---------------------------> plan: needs x paths -> paths, rate ahead
//!                    | yes
//!                    v
//!   does the head keep to it? -- no --> the flow waits for its turn, for any path
//!                    | yes
//!                    v
//!   ahead of all turns, over its paths, or over any while none of these is ready
//! ```
//!
//! Failure: a path that fails is no longer among the views. If none of a flow's paths is available,
//! the flow uses the other available paths. This module retransmits nothing.
//!
//! Source: Piconet section III-C. Deviates: no rate is reserved on a path, so a flow may use every
//! path that is as reliable as its own paths, and it keeps its class and its scheduler.

use hawser_units::{Bytes, Duration, Instant, PathId, Rate};
use hawser_wire::data::FRAMING;
use hawser_wire::deadline::DeclaredFlow;
use hawser_wire::inner::{FlowKey, protocol};

use super::choosing::{Decision, Excess};
use super::turns::{Sending, Turn};
use super::{Egress, Transmit};
use crate::fec::TOLERATED;
use crate::flow::Flows;
use crate::path::FULL_PACKET;
use crate::pool::admission::{self, Standing, Verdict};
use crate::pool::allocation::{self, Channel, FlowNeed, Need, Remainder};
use crate::pool::requirement::{Policer, Requirement};
use crate::scheduler::{PLAN_AGAIN, channels};

/// Maximum number of declared flows of a session; further flows are treated as if nothing had been
/// declared. Source: a bound on work, since each packet is compared with all of them; the number
/// was not measured.
pub const MAX_DECLARED: usize = 64;

/// Requirements that a program declared for a flow.
///
/// Units: bytes of payload of TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Flow that the declaration is about.
    pub key: FlowKey,
    /// Traffic of the flow, and how long its packets are useful.
    pub need: Need,
}

impl Declaration {
    /// Returns the bucket of what may overtake other flows, at this part of the rate.
    ///
    /// Its burst is bounded, because otherwise a flow that rests would earn a long time in which no
    /// other flow sends.
    fn bucket(&self, part: f64) -> Requirement {
        let rate = self.need.traffic.rate().scale(part);
        let most = rate.bytes_in(LONGEST_BURST).0.max(FULL_PACKET);
        Requirement::TokenBucket {
            rate,
            burst: Bytes(self.need.traffic.burst().0.clamp(FULL_PACKET, most)),
        }
    }

    /// Headers of a packet, without options.
    fn headers(&self) -> u64 {
        let ip = if self.key.source.is_ipv6() { 40 } else { 20 };
        let transport = if self.key.protocol == protocol::TCP { 20 } else { 8 };
        ip + transport
    }

    fn payload(&self, len: u64) -> u64 {
        len.saturating_sub(self.headers()).max(1)
    }
}

impl From<&DeclaredFlow> for Declaration {
    fn from(flow: &DeclaredFlow) -> Self {
        let wait = u64::from(flow.longest_wait_ms);
        Self {
            key: flow.key(),
            need: Need {
                traffic: Requirement::TokenBucket {
                    rate: Rate::from_bps(flow.bits_per_second.into()),
                    burst: Bytes(flow.burst_bytes.into()),
                },
                deadline: (wait > 0).then(|| Duration::from_millis(wait)),
            },
        }
    }
}

struct Entry {
    declaration: Declaration,
    slot: Option<u16>,
    policer: Policer,
    standing: Standing,
    /// Payload that went, and what it took of paths, since some time.
    sent: [u64; 2],
    /// Planned paths; empty before the first plan.
    paths: Vec<PathId>,
}

impl Entry {
    fn new(declaration: Declaration, now: Instant) -> Self {
        Self {
            declaration,
            slot: None,
            policer: Policer::new(declaration.bucket(1.0), now),
            standing: Standing::default(),
            sent: [0; 2],
            paths: Vec::new(),
        }
    }

    /// A slot may have become another flow's since the last plan.
    fn is_of(&self, slot: u16, key: &FlowKey) -> bool {
        self.slot == Some(slot) && self.declaration.key == *key
    }

    /// Returns the requirements of this part of the flow; rates of paths include all headers.
    fn need(&self, part: f64) -> Need {
        let [payload, carried] = self.sent;
        let framing = if payload == 0 {
            1.0
        } else {
            carried as f64 / payload as f64
        };
        let traffic = self.declaration.bucket(part);
        Need {
            traffic: Requirement::TokenBucket {
                rate: traffic.rate().scale(framing).max(Rate::from_bps(1)),
                burst: Bytes((traffic.burst().0 as f64 * framing) as u64),
            },
            deadline: self.declaration.need.deadline,
        }
    }

    fn note(&mut self, payload: u64, carried: u64) {
        if self.sent[0] > FRAMED_OVER {
            self.sent = self.sent.map(|bytes| bytes / 2);
        }
        self.sent = [self.sent[0] + payload, self.sent[1] + carried];
    }
}

/// The declared flows of a session.
///
/// Cost: O([`MAX_DECLARED`]) a packet while flows are declared, nothing otherwise; a plan for all
/// of them ten times a second. Memory: bounded by [`MAX_DECLARED`].
#[derive(Default)]
pub(super) struct Declared {
    entries: Vec<Entry>,
    planned: Option<Instant>,
    /// Time of the last review of admissions, and the number of flows that were present.
    reviewed: Option<(Instant, usize)>,
}

/// Capacity of the paths.
#[derive(Clone, Copy, Debug)]
struct Capacity {
    /// Rate of all paths together, within the limit of the session; zero while unknown.
    carried: Rate,
    /// Set if no path searches its rate any more.
    is_measured: bool,
}

impl Declared {
    /// Returns the index of the declaration to which the next packet of a flow conforms.
    fn holds(&self, slot: u16, key: &FlowKey, len: u64, now: Instant) -> Option<usize> {
        let at = self.entries.iter().position(|entry| entry.is_of(slot, key))?;
        let entry = &self.entries[at];
        // A copy: what is not sent uses nothing up.
        let mut policer = entry.policer;
        policer
            .handle_packet(entry.declaration.payload(len), now)
            .then_some(at)
    }

    /// Records a packet that goes; returns whether it keeps to a declaration.
    fn on_sent(&mut self, slot: u16, key: &FlowKey, len: u64, now: Instant) -> bool {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.is_of(slot, key)) else {
            return false;
        };
        let payload = entry.declaration.payload(len);
        entry.note(payload, len + FRAMING as u64);
        entry.policer.handle_packet(payload, now)
    }

    fn plan<B: Copy>(&mut self, flows: &Flows<B>, channels: &[Channel], capacity: Capacity, now: Instant) {
        self.planned = Some(now);
        for entry in &mut self.entries {
            entry.slot = flows.slot(&entry.declaration.key);
        }
        self.review(channels, capacity, now);
        let mut present: Vec<&mut Entry> = self
            .entries
            .iter_mut()
            .filter(|entry| entry.slot.is_some())
            .collect();
        let wanted = |entry: &Entry| entry.need(1.0).traffic.rate().as_bps();
        let admitted = present.iter().filter(|entry| entry.standing.is_admitted());
        let reserved: u64 = admitted.map(|entry| wanted(entry)).sum();
        let ahead = capacity.carried.scale(MAX_AHEAD).as_bps();
        let others = present.iter().filter(|entry| !entry.standing.is_admitted());
        let level = if ahead == 0 {
            u64::MAX
        } else {
            level(
                others.map(|entry| wanted(entry)).collect(),
                ahead.saturating_sub(reserved),
            )
        };
        let mut needs: Vec<FlowNeed> = Vec::with_capacity(present.len());
        for entry in &mut present {
            let is_admitted = entry.standing.is_admitted();
            let part = if is_admitted {
                1.0
            } else {
                (level as f64 / wanted(entry) as f64).min(1.0)
            };
            entry.policer.change(entry.declaration.bucket(part));
            needs.push(FlowNeed {
                importance: is_admitted.into(),
                subflows: vec![entry.need(part)],
            });
        }
        let shares = allocation::allocate_flows(&needs, channels, Remainder::Shared);
        for ((entry, flow), shares) in present.into_iter().zip(&needs).zip(shares) {
            let deadline = flow.subflows[0].deadline;
            let is_in_time = |channel: &Channel| deadline.is_none_or(|deadline| channel.delay < deadline);
            let granted = |channel: &&Channel| shares[0].iter().any(|share| share.channel == channel.id);
            // A declaration that does not fit gets all channels that are in time.
            let worst = channels
                .iter()
                .filter(granted)
                .map(|channel| channel.loss)
                .reduce(f64::max);
            let taken = channels
                .iter()
                .filter(|channel| is_in_time(channel) && worst.is_none_or(|worst| channel.loss <= worst));
            entry.paths.clear();
            entry.paths.extend(taken.map(|channel| channel.id));
        }
    }
}

impl Declared {
    /// Decides which present flows are admitted, once per [`admission::RETRY`] and when their
    /// number changes.
    fn review(&mut self, channels: &[Channel], capacity: Capacity, now: Instant) {
        let is_present = |entry: &&mut Entry| entry.slot.is_some();
        let count = self.entries.iter_mut().filter(is_present).count();
        let is_recent = |(at, before): (Instant, usize)| before == count && now.since(at) < admission::RETRY;
        if count == 0 || self.reviewed.is_some_and(is_recent) {
            return;
        }
        self.reviewed = Some((now, count));
        let sum: u64 = channels.iter().map(|channel| channel.rate.as_bps()).sum();
        let within = match capacity.carried.as_bps() {
            0 => 1.0,
            carried => (carried as f64 / sum.max(1) as f64).min(1.0),
        };
        let scaled = |channel: &Channel| Channel {
            rate: channel.rate.scale(MAX_AHEAD * within),
            ..*channel
        };
        let channels: Vec<Channel> = channels.iter().map(scaled).collect();
        let present = self.entries.iter_mut().filter(is_present);
        let (needs, mut standings): (Vec<FlowNeed>, Vec<&mut Standing>) = present
            .map(|entry| {
                let subflows = vec![entry.need(1.0)];
                let need = FlowNeed {
                    importance: 0,
                    subflows,
                };
                (need, &mut entry.standing)
            })
            .unzip();
        let is_measured = capacity.is_measured && capacity.carried != Rate::ZERO;
        admission::review(&needs, &mut standings, &channels, is_measured, now);
    }
}

/// The rate up to which each flow may have what it wants, so that all together have no more than
/// `most`.
///
/// Source: max-min fairness (Bertsekas and Gallager, "Data networks", section 6.5.2).
/// Units: bit/s.
fn level(mut wanted: Vec<u64>, most: u64) -> u64 {
    wanted.sort_unstable();
    let mut left = most;
    for (at, rate) in wanted.iter().enumerate() {
        let equal = left / (wanted.len() - at) as u64;
        if *rate > equal {
            return equal;
        }
        left -= rate;
    }
    u64::MAX
}

impl<B: Copy> Egress<B> {
    /// Sets the flows that have declared what they send, up to [`MAX_DECLARED`], and removes all
    /// others.
    pub fn set_declared(&mut self, declarations: &[Declaration], now: Instant) {
        let before = std::mem::take(&mut self.declared).entries;
        let mut before: Vec<Option<Entry>> = before.into_iter().map(Some).collect();
        let kept = |declaration: &Declaration| {
            let is_it = |entry: &&mut Option<Entry>| {
                entry
                    .as_ref()
                    .is_some_and(|entry| entry.declaration == *declaration)
            };
            let known = before.iter_mut().find(is_it).and_then(Option::take);
            known.unwrap_or_else(|| Entry::new(*declaration, now))
        };
        self.declared.entries = declarations.iter().take(MAX_DECLARED).map(kept).collect();
    }

    /// Returns the accepted declaration of a flow.
    #[must_use]
    pub fn declared(&self, key: &FlowKey) -> Option<Need> {
        let is_it = |entry: &&Entry| entry.declaration.key == *key;
        let entry = self.declared.entries.iter().find(is_it)?;
        Some(entry.declaration.need)
    }

    /// Yields the accepted declarations, with the decision about each.
    pub fn admissions(&self) -> impl Iterator<Item = (&Declaration, Verdict)> {
        let entries = self.declared.entries.iter();
        entries.map(|entry| {
            let verdict = if entry.slot.is_some() {
                entry.standing.verdict()
            } else {
                Verdict::Undecided
            };
            (&entry.declaration, verdict)
        })
    }

    /// The next packet of a declared flow that keeps to what was declared.
    pub(super) fn poll_declared(&mut self, target: Duration, now: Instant) -> Option<Transmit<B>> {
        if self.declared.entries.is_empty() {
            return None;
        }
        if self.declared.planned.is_none_or(|at| now.since(at) >= PLAN_AGAIN) {
            self.build_views(0, Excess::None, now);
            let mut channels = channels(&self.views);
            for channel in &mut channels {
                // Such losses are no reason to leave a path that is nearer.
                channel.loss = if channel.loss <= TOLERATED {
                    0.0
                } else {
                    channel.loss
                };
            }
            let measured = self.active().map(|path| path.model().rate().as_bps());
            let capacity = Capacity {
                carried: self.limited(Rate::from_bps(measured.sum())),
                is_measured: !self.active().any(|path| path.model().is_growing()),
            };
            self.declared.plan(&self.flows, &channels, capacity, now);
        }
        for at in 0..self.declared.entries.len() {
            let Some(slot) = self.declared.entries[at].slot else {
                continue;
            };
            while self.keeps_to_declared(slot, now).is_some() {
                self.counters.steps += 1;
                match self.choose(slot, target, now) {
                    Decision::Again => {}
                    Decision::Wait(until) => {
                        self.wait = self.wait.min(until);
                        break;
                    }
                    Decision::Send { lane, .. } => {
                        let sending = Sending::on([&self.lanes[lane].path].into_iter(), false);
                        return Some(self.emit(Turn { skip: AHEAD, slot }, lane, 1, sending, now));
                    }
                    Decision::Duplicate(mask) => {
                        return self.emit_copies(Turn { skip: AHEAD, slot }, mask, now);
                    }
                }
            }
        }
        None
    }

    /// Returns the index of the declaration to which the head of a flow conforms.
    pub(super) fn keeps_to_declared(&self, slot: u16, now: Instant) -> Option<usize> {
        if self.declared.entries.is_empty() {
            return None;
        }
        let flow = self.flows.get(slot)?;
        let run = flow.head()?;
        let len = run.len_of(run.next) as u64;
        self.declared.holds(slot, &flow.key, len, now)
    }

    /// Returns how long packets of a flow are of use, where its program has declared it.
    pub(super) fn declared_deadline(&self, slot: u16, key: &FlowKey) -> Option<Duration> {
        let mut entries = self.declared.entries.iter();
        let entry = entries.find(|entry| entry.is_of(slot, key))?;
        entry.declaration.need.deadline
    }

    /// Records bytes that a flow has sent: what keeps to its declaration is no part of its share.
    pub(super) fn account_declared(&mut self, slot: u16, bytes: u64, now: Instant) {
        let Some(flow) = self.flows.get(slot).filter(|_| !self.declared.entries.is_empty()) else {
            return;
        };
        if self.declared.on_sent(slot, &flow.key, bytes, now) {
            self.flows.refund(slot, bytes);
        }
    }

    /// Leaves out of the views what is not for a declared flow, while one that is for it is ready.
    pub(super) fn leave_out_unallocated(&mut self, at: usize, now: Instant) {
        let paths = &self.declared.entries[at].paths;
        if self
            .views
            .iter()
            .any(|view| paths.contains(&view.id) && view.is_ready(now))
        {
            self.leave_out(|egress, lane| {
                !egress.declared.entries[at]
                    .paths
                    .contains(&egress.lanes[lane].path.id)
            });
        }
    }
}

/// Position of a flow that is served before those that take turns.
const AHEAD: usize = usize::MAX;

/// Maximum share of the paths' capacity that may overtake other traffic: a quarter remains for all,
/// even if flows declare more than there is. Source: our choice; with more, transfers stop while
/// declared flows use what they declared, with less, fewer flows are admitted.
const MAX_AHEAD: f64 = 0.75;

/// Maximum burst at a flow's own rate. With [`MAX_AHEAD`], all declared flows together delay the
/// others by at most 2 s after a rest. Source: the intra-coded picture of a video, at ten times the
/// size of the others, which are at most 50 ms apart.
const LONGEST_BURST: Duration = Duration::from_millis(500);

/// Payload after which the bytes that headers and framing add are known. Source: 45 full packets.
/// Units: bytes.
const FRAMED_OVER: u64 = 1 << 16;

#[cfg(test)]
mod tests;
