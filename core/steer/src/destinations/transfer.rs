//! Transfers of one destination, seen by counters that are read now and then.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant, NetworkId};

use super::{Counted, Flow};

/// What a look at a destination's flows brought.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// The port of a flow that is new.
    pub(super) began: Option<u16>,
    /// Ways whose flows get no answer.
    pub(super) unanswered: Vec<NetworkId>,
    /// Transfers that are over, and pieces of long ones.
    pub(super) done: Vec<Done>,
}

/// A transfer that is over, or a piece of one.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) way: NetworkId,
    /// So far, of the whole transfer.
    pub(super) bytes: f64,
    pub(super) is_over: bool,
    /// Bytes and the seconds that they took; `None` where it was too short to tell.
    pub(super) rate: Option<(f64, f64)>,
}

/// The flows of a destination, and what they transfer over each way.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    flows: BTreeMap<u64, Seen>,
    running: BTreeMap<NetworkId, Running>,
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    /// When it was there last.
    there: Instant,
    counted: [Counted; 2],
}

/// What is transferred over one way without a pause, of all flows together.
#[derive(Debug)]
struct Running {
    /// The look that saw it first.
    start: Instant,
    /// The last look that saw some.
    last: Instant,
    /// Bytes of this piece, and of the whole transfer.
    counted: f64,
    bytes: f64,
    looks: u32,
    /// It has been told as one that is over.
    is_told: bool,
}

/// What the flows of a way did between two looks.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    bytes: u64,
    /// Whether this side sent more than acknowledgements.
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

    pub(super) fn look(&mut self, flows: &[Flow], now: Instant) -> Looked {
        let mut looked = Looked::default();
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
            if step.bytes >= LEAST {
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
            // What comes after a question is another transfer.
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
        // It began before the first look and ended before the last one: by as much in the mean, if
        // looks come as often as each other.
        let taken = self.last.since(self.start).as_secs_f64();
        let tells = self.looks >= FEWEST_LOOKS && taken > 0.0;
        Done {
            way,
            bytes: self.bytes,
            is_over,
            rate: tells.then_some((self.counted, taken)),
        }
    }
}

/// What a flow did between two looks. Counters that start anew belong to another flow of the same
/// name.
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

/// Fewer bytes in a look are acknowledgements, or questions.
const LEAST: u64 = 200;
/// What a packet has that carries nothing: headers of IPv4 or IPv6 and TCP, timestamps, and one
/// block of a selective acknowledgement.
const ACKNOWLEDGEMENT: [u64; 2] = [64, 84];
/// A question after so long without bytes, one look or more, begins another transfer.
const GAP: Duration = Duration::from_millis(150);
/// Without bytes for so long, a transfer is over, or stalls.
const PAUSE: Duration = Duration::from_millis(500);
/// A stall that lasts longer is taken for the end.
const LONGEST_STALL: Duration = Duration::from_secs(10);
/// A long transfer tells what it reaches after each such time.
const PIECE: Duration = Duration::from_secs(2);
/// Looks that saw a transfer, for its rate to be known: those of a shorter one say little.
const FEWEST_LOOKS: u32 = 4;
/// Without an answer for so long, a way does not lead there: the first SYN was repeated then.
const UNANSWERED: Duration = Duration::from_secs(2);
/// How long a destination counts as busy after the last bytes.
const BUSY_FOR: Duration = Duration::from_secs(1);
