//! Flows whose programs have declared what they send.
//!
//! What keeps to the declaration goes ahead of other flows, over the most reliable paths that hold
//! it ([`allocation`]) and over those that lose no more than the worst of these. What is beyond it
//! is treated as if nothing had been declared. Declared traffic goes ahead of the rest up to
//! [`MOST_AHEAD`] of what the paths carry: of flows that declare more, those that declare least are
//! ahead with all of it and the others with equal rates; what is left they share with everybody.
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
//! Failure: a path that goes is not among the views any more; where none of a flow's paths is
//! there, it takes those that are. Nothing is sent again here.
//!
//! Source: Piconet section III-C. Deviates: nothing is reserved on a path, so a flow may take every
//! path that is as reliable as those that it has got, and keeps its class and its scheduler.

use hawser_units::{Bytes, Duration, Instant, PathId, Rate};
use hawser_wire::data::FRAMING;
use hawser_wire::deadline::DeclaredFlow;
use hawser_wire::inner::{FlowKey, protocol};

use super::{Decision, Egress, Transmit, Turn};
use crate::fec::TOLERATED;
use crate::flow::Flows;
use crate::path::FULL_PACKET;
use crate::pool::allocation::{self, Channel, FlowNeed, Need, Remainder};
use crate::pool::requirement::{Policer, Requirement};
use crate::scheduler::channels;

/// Flows that may be declared in a session: all of them are looked through for a packet. Others are
/// treated as if nothing had been said.
pub const MOST_DECLARED: usize = 64;

/// What a flow declares.
///
/// Units: bytes of payload of TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Which flow.
    pub key: FlowKey,
    /// What it sends, and how long its packets are of use.
    pub need: Need,
}

impl Declaration {
    /// What may go ahead of other flows, at this part of the rate.
    ///
    /// The burst is bounded, or a flow that rests would earn a long time in which nobody else
    /// sends.
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
    /// Payload that went, and what it took of paths, since some time.
    sent: [u64; 2],
    /// Where it goes; empty before there was a plan.
    paths: Vec<PathId>,
}

impl Entry {
    fn new(declaration: Declaration, now: Instant) -> Self {
        Self {
            declaration,
            slot: None,
            policer: Policer::new(declaration.bucket(1.0), now),
            sent: [0; 2],
            paths: Vec::new(),
        }
    }

    /// A slot may have become another flow's since the last plan.
    fn is_of(&self, slot: u16, key: &FlowKey) -> bool {
        self.slot == Some(slot) && self.declaration.key == *key
    }

    /// What this part of the flow needs of paths, whose rates count all that a packet is carried
    /// with.
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
/// Cost: O([`MOST_DECLARED`]) a packet while flows are declared, nothing otherwise; a plan for all
/// of them ten times a second. Memory: bounded by [`MOST_DECLARED`].
#[derive(Default)]
pub(super) struct Declared {
    entries: Vec<Entry>,
    planned: Option<Instant>,
}

impl Declared {
    /// The place of the declaration that the next packet of a flow keeps to.
    fn holds(&self, slot: u16, key: &FlowKey, len: u64, now: Instant) -> Option<usize> {
        let at = self.entries.iter().position(|entry| entry.is_of(slot, key))?;
        let entry = &self.entries[at];
        // A copy: what is not sent uses nothing up.
        let mut policer = entry.policer;
        policer
            .handle_packet(entry.declaration.payload(len), now)
            .then_some(at)
    }

    /// Takes note of a packet that goes; says whether it keeps to a declaration.
    fn on_sent(&mut self, slot: u16, key: &FlowKey, len: u64, now: Instant) -> bool {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.is_of(slot, key)) else {
            return false;
        };
        let payload = entry.declaration.payload(len);
        entry.note(payload, len + FRAMING as u64);
        entry.policer.handle_packet(payload, now)
    }

    fn plan<B: Copy>(&mut self, flows: &Flows<B>, channels: &[Channel], carried: Rate, now: Instant) {
        self.planned = Some(now);
        for entry in &mut self.entries {
            entry.slot = flows.slot(&entry.declaration.key);
        }
        let mut present: Vec<&mut Entry> = self
            .entries
            .iter_mut()
            .filter(|entry| entry.slot.is_some())
            .collect();
        let wanted = |entry: &Entry| entry.need(1.0).traffic.rate().as_bps();
        let level = level(
            present.iter().map(|entry| wanted(entry)).collect(),
            carried.scale(MOST_AHEAD).as_bps(),
        );
        let mut needs: Vec<FlowNeed> = Vec::with_capacity(present.len());
        for entry in &mut present {
            let part = (level as f64 / wanted(entry) as f64).min(1.0);
            entry.policer.change(entry.declaration.bucket(part));
            needs.push(FlowNeed {
                importance: 0,
                subflows: vec![entry.need(part)],
            });
        }
        let shares = allocation::allocate_flows(&needs, channels, Remainder::Shared);
        for ((entry, flow), shares) in present.into_iter().zip(&needs).zip(shares) {
            let deadline = flow.subflows[0].deadline;
            let is_in_time = |channel: &Channel| deadline.is_none_or(|deadline| channel.delay < deadline);
            let granted = |channel: &&Channel| shares[0].iter().any(|share| share.channel == channel.id);
            // What does not fit gets all that there is in time.
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

/// The rate up to which each flow may have what it wants, so that all together have no more than
/// `most`; no bound where nothing is known of that.
///
/// Source: max-min fairness (Bertsekas and Gallager, "Data networks", section 6.5.2).
/// Units: bit/s.
fn level(mut wanted: Vec<u64>, most: u64) -> u64 {
    if most == 0 {
        return u64::MAX;
    }
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
    /// Says which flows have declared what they send, up to [`MOST_DECLARED`]; no others any more.
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
        self.declared.entries = declarations.iter().take(MOST_DECLARED).map(kept).collect();
    }

    /// What a flow has declared, if that is heeded.
    #[must_use]
    pub fn declared(&self, key: &FlowKey) -> Option<Need> {
        let is_it = |entry: &&Entry| entry.declaration.key == *key;
        let entry = self.declared.entries.iter().find(is_it)?;
        Some(entry.declaration.need)
    }

    /// The next packet of a declared flow that keeps to what was declared.
    pub(super) fn poll_declared(&mut self, target: Duration, now: Instant) -> Option<Transmit<B>> {
        if self.declared.entries.is_empty() {
            return None;
        }
        if self.declared.planned.is_none_or(|at| now.since(at) >= PLAN_AGAIN) {
            self.build_views(0, false, now);
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
            let carried = self.limited(Rate::from_bps(measured.sum()));
            self.declared.plan(&self.flows, &channels, carried, now);
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
                        let sending = super::Sending::on([&self.lanes[lane].path].into_iter(), false);
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

    /// The place of the declaration that the head of a flow keeps to.
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

    /// Takes note of bytes that a flow has sent: what keeps to its declaration is no part of its
    /// share.
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

/// The place of a flow that is served before those that take turns.
const AHEAD: usize = usize::MAX;

/// How much of what the paths carry may go ahead of the rest: a quarter is left to everybody, also
/// where a flow declares more than there is.
const MOST_AHEAD: f64 = 0.75;

/// How long what may go at once takes at a flow's own rate, at most: the intra-coded picture of a
/// video, at ten times the size of the others. With [`MOST_AHEAD`], all declared flows together
/// hold the others back for two seconds at most after a rest.
const LONGEST_BURST: Duration = Duration::from_millis(500);

/// How old a plan may become, as in [`crate::scheduler::LayerPriority`].
const PLAN_AGAIN: Duration = Duration::from_millis(100);

/// Over so much payload it is known what headers and framing add: some tens of packets. Units:
/// bytes.
const FRAMED_OVER: u64 = 1 << 16;

#[cfg(test)]
mod tests;
