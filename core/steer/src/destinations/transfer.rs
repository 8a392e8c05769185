//! Transfers of one destination, derived from counters that are sampled at intervals.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant, NetworkId};

use super::{Counted, Flow};

/// Result of a sample of a destination's flows.
#[derive(Debug, Default)]
pub(super) struct FlowSample {
    /// Port of a new flow.
    pub(super) began: Option<u16>,
    /// Routes whose flows get no answer.
    pub(super) unanswered: Vec<NetworkId>,
    /// Completed transfers, and pieces of long ones.
    pub(super) done: Vec<Done>,
}

/// Completed transfer, or a piece of one.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) way: NetworkId,
    /// Bytes of the whole transfer so far.
    pub(super) bytes: f64,
    pub(super) is_over: bool,
    /// Bytes, and their duration in seconds; `None` if the transfer was too short to measure.
    pub(super) rate: Option<(f64, f64)>,
}

/// Flows of a destination, and their transfers over each route.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    flows: BTreeMap<u64, Seen>,
    running: BTreeMap<NetworkId, Running>,
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    /// Time of the last sample that contained the flow.
    there: Instant,
    counted: [Counted; 2],
}

/// Transfer over one route without a pause, all flows together.
#[derive(Debug)]
struct Running {
    /// Time of the first sample of the transfer.
    start: Instant,
    /// Time of the last sample with bytes of the transfer.
    last: Instant,
    /// Bytes of this piece; `bytes` counts the whole transfer.
    counted: f64,
    bytes: f64,
    looks: u32,
    /// Set once the end of the transfer has been reported.
    is_told: bool,
}

/// Traffic of the flows of a route between two samples.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    bytes: u64,
    /// Set if this side sent more than acknowledgements.
    has_asked: bool,
}

impl Transfers {
    pub(super) fn has_flows(&self) -> bool {
        !self.flows.is_empty()
    }

    pub(super) fn is_busy(&self, now: Instant) -> bool {
        let mut running = self.running.values();
        running.any(|running| now.since(running.last) < BUSY_FOR)
    }

    pub(super) fn sample(&mut self, flows: &[Flow], now: Instant) -> FlowSample {
        let mut looked = FlowSample::default();
        let mut steps: BTreeMap<NetworkId, Step> = BTreeMap::new();
        for flow in flows {
            let seen = self.flows.entry(flow.key).or_insert_with(|| {
                looked.began = Some(flow.to.port());
                Seen {
                    since: now,
                    there: now,
                    counted: Default::default(),
                }
            });
            let step = step(flow, &seen.counted);
            (seen.counted, seen.there) = (flow.counted, now);
            let of_way = steps.entry(flow.way).or_default();
            of_way.bytes += step.bytes;
            of_way.has_asked |= step.has_asked;
            if flow.expects_answer && flow.counted[1].packets == 0 && now.since(seen.since) >= UNANSWERED {
                looked.unanswered.push(flow.way);
            }
        }
        self.flows.retain(|_, seen| seen.there == now);
        for (way, step) in &steps {
            if step.bytes >= MIN {
                self.carry(*way, *step, now, &mut looked.done);
            }
        }
        self.running.retain(|way, running| {
            let quiet = now.since(running.last);
            let has_asked = steps.get(way).is_some_and(|step| step.has_asked);
            let is_kept = quiet < GAP || (quiet < LONGEST_STALL && !has_asked);
            if (quiet >= PAUSE || !is_kept) && !running.is_told {
                looked.done.push(running.done(*way, true));
                running.is_told = true;
            }
            is_kept
        });
        looked
    }

    fn carry(&mut self, way: NetworkId, step: Step, now: Instant, done: &mut Vec<Done>) {
        let bytes = step.bytes as f64;
        if let Some(running) = self.running.get_mut(&way)
            // A response after a new request is another transfer.
            && !(step.has_asked && now.since(running.last) >= GAP)
        {
            running.counted += bytes;
            running.bytes += bytes;
            running.last = now;
            running.looks += 1;
            running.is_told = false;
            if now.since(running.start) >= PIECE {
                done.push(running.done(way, false));
                *running = Running::new(0.0, running.bytes, now);
            }
            return;
        }
        if let Some(before) = self.running.insert(way, Running::new(bytes, bytes, now))
            && !before.is_told
        {
            done.push(before.done(way, true));
        }
    }
}

impl Running {
    fn new(counted: f64, bytes: f64, now: Instant) -> Self {
        Self {
            start: now,
            last: now,
            counted,
            bytes,
            looks: 1,
            is_told: false,
        }
    }

    fn done(&self, way: NetworkId, is_over: bool) -> Done {
        // The transfer began before the first sample and ended before the last one. Both errors
        // cancel out on average if samples have equal intervals.
        let taken = self.last.since(self.start).as_secs_f64();
        let tells = self.looks >= MIN_SAMPLES && taken > 0.0;
        Done {
            way,
            bytes: self.bytes,
            is_over,
            rate: tells.then_some((self.counted, taken)),
        }
    }
}

/// Returns the traffic of a flow between two samples. Counters that restart belong to another flow
/// of the same name.
fn step(flow: &Flow, before: &[Counted; 2]) -> Step {
    let since = |at: usize| {
        let (before, now) = (before[at], flow.counted[at]);
        let packets = now.packets.checked_sub(before.packets);
        match (packets, now.bytes.checked_sub(before.bytes)) {
            (Some(packets), Some(bytes)) => Counted { packets, bytes },
            _ => now,
        }
    };
    let (sent, received) = (since(0), since(1));
    let is_new = *before == <[Counted; 2]>::default();
    let acknowledgement = ACKNOWLEDGEMENT[usize::from(flow.to.is_ipv6())];
    Step {
        bytes: sent.bytes.max(received.bytes),
        has_asked: is_new || sent.bytes > sent.packets * acknowledgement,
    }
}

/// Minimum of bytes in a sample: fewer are acknowledgements or requests. Source: our choice, more
/// than twice an acknowledgement with its options (84 bytes); a larger one ignores short answers.
const MIN: u64 = 200;
/// Maximum size of a packet without payload, for IPv4 and IPv6. Source: headers of IP and TCP (RFC
/// 791, RFC 8200, RFC 9293: 20, 40 and 20 bytes), timestamps (RFC 7323: 12) and one block of a
/// selective acknowledgement (RFC 2018: 12).
const ACKNOWLEDGEMENT: [u64; 2] = [64, 84];
/// Time without bytes, one sample or more, after which a request begins another transfer. Source:
/// our choice, one and a half samples while a destination is busy (`BUSY_INTERVAL` of
/// `destinations.rs`); a shorter one splits transfers at a late sample, a longer one joins a page's
/// objects.
const GAP: Duration = Duration::from_millis(150);
/// Time without bytes after which a transfer has ended, or stalls. Source: our choice, five
/// samples; a shorter one reports a transfer as ended during a retransmission timeout, a longer one
/// delays the next prediction.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum duration of a stall; a longer one is the end of the transfer. Source: our choice; a
/// stall of a network counts against it, and a server that only computes for longer is rare. A
/// longer one takes a user's pause for a stall.
const LONGEST_STALL: Duration = Duration::from_secs(10);
/// Interval at which a long transfer reports its rate. Source: our choice, 20 samples; a shorter
/// one reports the slow start's rate, a longer one leaves a network's change unused for longer.
const PIECE: Duration = Duration::from_secs(2);
/// Minimum number of samples for a rate: fewer are too imprecise. Source: our choice; the first and
/// the last sample are partial, and two whole ones remain.
const MIN_SAMPLES: u32 = 4;
/// Time without an answer after which a route does not reach the destination. Source: the first SYN
/// has been retransmitted by then, as its timeout is 1 s (RFC 6298 section 2).
const UNANSWERED: Duration = Duration::from_secs(2);
/// Time after the last bytes during which a destination counts as busy. Source: our choice, twice
/// [`PAUSE`], so that a transfer that stalls does not free its capacity at once.
const BUSY_FOR: Duration = Duration::from_secs(1);
