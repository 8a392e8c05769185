//! Striping of layered flows: important layers use the most reliable paths, and layers without room
//! are dropped.
//!
//! The mark of a packet is its layer ([`Demand::layer`]); the layers of a flow are its sub-flows.
//! [`crate::pool::allocation`] assigns paths to layers whenever paths or needs change. This
//! scheduler stripes packets over the paths of their layer.
//!
//! ```text
//!                       paths or layers changed, or a while ago
//!   packet -> planned? ------------------------------------------> plan: needs x paths -> shares
//!               | yes                                                      |
//!               v                                                          v
//!     has its layer shares? -- no, and there is no room for it --> drop
//!               | yes
//!               v
//!     surplus round robin over its shares -- none of them ready --> wait, or another path that is
//!                                                                   ready and delivers sooner
//! ```
//!
//! Failure: a path that fails is no longer among the views, and the next packet gets a new plan.
//! This module retransmits nothing.

use std::collections::BTreeMap;

use hawser_units::{Bytes, Duration, Instant, PathId, PredictedRate, Rate};
use hawser_wire::data::FRAMING;
use hawser_wire::layer::Layer;

use super::earliest_delivery::arrival;
use super::{Choice, Demand, PathView, Scheduler, SurplusRoundRobin, channels, wait};
use crate::pool::allocation::{self, Channel, FlowNeed, Need, Remainder, Shares};
use crate::pool::requirement::{Observer, Requirement};

/// Assigns the most reliable paths to the base layer, the next ones to the next layer, and none to
/// the last layers if there are not enough paths.
///
/// With marks made from frame kinds ([`hawser_wire::layer::Frame::layer`]) this is frame-priority
/// striping: I before P before B. The needs of each layer are observed, or declared with
/// [`Self::with_needs`]. An observed layer is dropped only when packets accumulate, because the
/// known rate of a path that was never filled is a lower bound. Packets without a mark use all
/// paths by surplus round robin.
///
/// Source: Piconet section III-D (layer-priority and frame-priority striping). Cost: O(paths) a
/// packet, O(layers x paths) a plan; memory grows with the flows of the last seconds.
#[derive(Debug, Default)]
pub struct LayerPriority {
    remainder: Remainder,
    declared: Option<Vec<Need>>,
    subflows: BTreeMap<(u16, Layer), Subflow>,
    unmarked: SurplusRoundRobin,
    planned: Option<Planned>,
    scratch: Vec<PathView>,
}

#[derive(Debug)]
struct Subflow {
    observer: Observer,
    turn: SurplusRoundRobin,
    shares: Shares,
    last: Instant,
}

impl Subflow {
    /// Records what a packet takes of a path: needs are held against rates, which count UDP
    /// payload.
    fn note(&mut self, demand: &Demand, now: Instant) {
        self.observer
            .handle_packet(u64::from(demand.len) + FRAMING as u64, now);
    }
}

/// Inputs of a plan.
#[derive(Clone, Debug, PartialEq)]
struct Planned {
    at: Instant,
    paths: Vec<(PathId, u64, u16)>,
    subflows: usize,
}

impl LayerPriority {
    /// Creates a scheduler with observed needs; each layer has paths of its own while there are
    /// enough.
    #[must_use]
    pub fn new() -> Self {
        Self {
            remainder: Remainder::LastResort,
            ..Self::default()
        }
    }

    /// Creates a scheduler with these needs for the layers of every flow, which drops packets that
    /// exceed them.
    #[must_use]
    pub fn with_needs(needs: Vec<Need>, remainder: Remainder) -> Self {
        Self {
            declared: Some(needs),
            remainder,
            ..Self::default()
        }
    }

    /// Creates a new plan if the old one is for other paths or sub-flows.
    fn plan(&mut self, paths: &[PathView], now: Instant) {
        let shown = |path: &PathView| {
            (
                path.id,
                path.soon.rate().as_bps() / RATE_STEP,
                (path.loss * LOSS_STEPS) as u16,
            )
        };
        let stale = self.planned.as_ref().is_none_or(|planned| {
            planned.subflows != self.subflows.len()
                || planned.paths.len() != paths.len()
                || planned
                    .paths
                    .iter()
                    .zip(paths)
                    .any(|(old, path)| *old != shown(path))
                || now.since(planned.at) >= PLAN_AGAIN
        });
        if !stale {
            return;
        }
        self.subflows
            .retain(|_, subflow| now.since(subflow.last) < FORGET);
        self.share_out(&channels(paths), now);
        self.planned = Some(Planned {
            at: now,
            paths: paths.iter().map(shown).collect(),
            subflows: self.subflows.len(),
        });
    }

    fn share_out(&mut self, channels: &[Channel], now: Instant) {
        let mut flows: BTreeMap<u16, Vec<Need>> = BTreeMap::new();
        for (&(flow, layer), subflow) in &mut self.subflows {
            let declared = self
                .declared
                .as_ref()
                .and_then(|needs| needs.get(usize::from(layer.0)));
            let need = declared
                .copied()
                .unwrap_or_else(|| observed(&mut subflow.observer, now));
            flows.entry(flow).or_default().push(need);
        }
        let needs: Vec<FlowNeed> = flows
            .into_values()
            .map(|subflows| FlowNeed {
                importance: 0,
                subflows,
            })
            .collect();
        let mut shares = allocation::allocate_flows(&needs, channels, self.remainder)
            .into_iter()
            .flatten();
        for subflow in self.subflows.values_mut() {
            subflow.shares = shares.next().unwrap_or_default();
        }
    }
}

/// Returns the observed traffic of a layer, with some room to grow.
fn observed(observer: &mut Observer, now: Instant) -> Need {
    let traffic = observer.requirement(now).unwrap_or(Requirement::TokenBucket {
        rate: Rate::from_bps(1),
        burst: Bytes(0),
    });
    Need {
        traffic: Requirement::TokenBucket {
            rate: traffic.rate().scale(HEADROOM).max(Rate::from_bps(1)),
            burst: traffic.burst(),
        },
        deadline: None,
    }
}

/// The ready path on which a packet is there sooner than on any of its layer's `own`, if there is
/// one; what a path loses is counted in as the mean wait for its retransmission.
///
/// A picture is a burst, and the paths that its layer has are those of a mean rate: while the burst
/// waits for them, others would be idle.
fn sooner(own: &[PathView], demand: &Demand, paths: &[PathView], now: Instant) -> Option<usize> {
    let expected = |path: &PathView| arrival(path, demand, now) + path.retransmitted_after.mul_f64(path.loss);
    let is_own = |path: &&PathView| own.iter().any(|own| own.id == path.id);
    let at_own = paths.iter().filter(is_own).map(expected).min();
    let ready = paths.iter().enumerate().filter(|(_, path)| path.is_ready(now));
    ready
        .map(|(at, path)| (expected(path), at))
        .min()
        .filter(|&(expected, _)| at_own.is_none_or(|at_own| expected < at_own))
        .map(|(_, at)| at)
}

impl Scheduler for LayerPriority {
    fn name(&self) -> &'static str {
        "layer-priority"
    }

    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let Some(layer) = demand.layer else {
            return self.unmarked.choose(demand, paths, now);
        };
        let key = (demand.flow, layer);
        let subflow = self.subflows.entry(key).or_insert_with(|| Subflow {
            observer: Observer::new(now),
            turn: SurplusRoundRobin::new(),
            shares: Shares::new(),
            last: now,
        });
        subflow.last = now;
        self.plan(paths, now);
        let Some(subflow) = self.subflows.get_mut(&key) else {
            return wait(paths, now);
        };
        let total: u64 = paths
            .iter()
            .map(|path| path.soon.rate().as_bps())
            .fold(0, u64::saturating_add);
        let crowded = self.declared.is_some()
            || demand.backlog.0
                > Rate::from_bps(total)
                    .bytes_in(TIMEOUT)
                    .0
                    .max(crowding_backlog(demand.len));
        self.scratch.clear();
        if subflow.shares.is_empty() {
            if layer != Layer(0) && crowded && !paths.is_empty() {
                subflow.note(demand, now);
                return Choice::Drop;
            }
            // The base without any share, or no sign yet that there is too little: wherever it can.
            self.scratch.extend_from_slice(paths);
        } else {
            for share in &subflow.shares {
                let path = paths.iter().find(|path| path.id == share.channel);
                self.scratch.extend(path.map(|path| PathView {
                    soon: PredictedRate::steady(share.rate.max(Rate::from_bps(1))),
                    ..*path
                }));
            }
            self.scratch.sort_unstable_by_key(|path| path.id);
        }
        match subflow.turn.choose(demand, &self.scratch, now) {
            Choice::Send { path, .. } => {
                subflow.note(demand, now);
                let id = self.scratch[path].id;
                let path = paths.iter().position(|path| path.id == id).unwrap_or_default();
                Choice::Send { path, packets: 1 }
            }
            Choice::Wait(until) => {
                let Some(path) = sooner(&self.scratch, demand, paths, now) else {
                    return Choice::Wait(until);
                };
                subflow.note(demand, now);
                Choice::Send { path, packets: 1 }
            }
            other @ (Choice::Duplicate(_) | Choice::Drop) => other,
        }
    }
}

/// Returns the minimum queue that shows that there is not enough rate for all layers, bytes.
fn crowding_backlog(len: u32) -> u64 {
    MIN_BACKLOG.min(u64::from(len) * FEW)
}

/// Maximum age of a plan while nothing seems to change: needs grow without a signal. Source: our
/// choice; a longer one leaves a layer that grows without channels for as long, a shorter one
/// computes plans more often.
pub(crate) const PLAN_AGAIN: Duration = Duration::from_millis(100);

/// Time after which an idle sub-flow returns its channels: longer than the pause between two sparse
/// layers. Source: our choice; a shorter one gives the channels of a sparse layer away between two
/// of its packets, a longer one reserves them for a layer that has ended.
const FORGET: Duration = Duration::from_secs(3);

/// An observed layer may grow by an eighth before the next plan. Source: our choice; a larger one
/// reserves rate that other layers do not get, with a smaller one layers wait for the next plan
/// more often.
const HEADROOM: f64 = 1.125;

/// Minimum change of a path's rate for which a new plan is made at once. Units: bit/s. Source: our
/// choice, a thirtieth of a slow line of 28 kbit/s; larger steps would keep a plan for a path whose
/// rate has fallen, until [`PLAN_AGAIN`].
const RATE_STEP: u64 = 1_000;

/// Inverse of the change of loss from which a new plan is made at once. Source: our choice, 0.1 %,
/// since the base layer's loss is of that order; larger ones would keep a plan until
/// [`PLAN_AGAIN`].
const LOSS_STEPS: f64 = 1_000.0;

/// Transmission time of a queue over all paths from which there is not enough rate for all layers.
/// Source: our choice, a picture and a quarter of a video of 25 a second; a longer one reacts after
/// the base layer was delayed, a shorter one drops enhancement layers at each large picture.
const TIMEOUT: Duration = Duration::from_millis(50);

/// Minimum queue, in bytes, from which there is not enough rate for all layers. Source: our choice,
/// four full packets, one large picture's first burst, which is no sign of a lack of rate.
const MIN_BACKLOG: u64 = 6_000;
/// Packets up to which a queue does not count: 6 kB are two seconds of a slow line. Source: a sweep
/// of 2 and 3 at 28 kbit/s with 1.2 times the rate of the lines: the base loses 14 and 13 %, 34
/// with 6 kB.
const FEW: u64 = 3;

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open, selected_path};
    use super::*;
    use hawser_units::InnerBytes;

    fn lossy(id: u16, kbps: u64, loss: f64) -> PathView {
        PathView {
            soon: PredictedRate::steady(Rate::from_bps(kbps * 1_000)),
            loss,
            ..open(id, 1, 10)
        }
    }

    fn packet(layer: u8) -> Demand {
        Demand {
            layer: Some(Layer(layer)),
            ..demand(200, 1)
        }
    }

    fn need(kbps: u64) -> Need {
        Need {
            traffic: Requirement::TokenBucket {
                rate: Rate::from_bps(kbps * 1_000),
                burst: Bytes(0),
            },
            deadline: None,
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Returns the path ids of 30 packets of each layer; 0 for dropped ones.
    fn carried(scheduler: &mut LayerPriority, paths: &[PathView], layers: u8, from: u64) -> Vec<Vec<u16>> {
        let mut result = vec![Vec::new(); usize::from(layers)];
        for n in 0..30u64 {
            for layer in 0..layers {
                let choice = scheduler.choose(&packet(layer), paths, at(from + n * 100));
                let id = if choice == Choice::Drop {
                    0
                } else {
                    paths[selected_path(choice)].id.0
                };
                let ids = &mut result[usize::from(layer)];
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        result
    }

    #[test]
    fn each_layer_keeps_to_its_paths_and_shifts_with_them() {
        let mut scheduler = LayerPriority::with_needs(vec![need(15); 3], Remainder::LastResort);
        let mut paths = vec![lossy(1, 20, 0.1), lossy(2, 20, 0.01), lossy(3, 20, 0.05)];
        // The first packets come before the scheduler knows of the other layers.
        carried(&mut scheduler, &paths, 3, 0);
        assert_eq!(carried(&mut scheduler, &paths, 3, 3_000), [[2], [3], [1]]);
        paths[0].loss = 0.0;
        assert_eq!(carried(&mut scheduler, &paths, 3, 6_000), [[1], [2], [3]]);
        paths.remove(0);
        assert_eq!(carried(&mut scheduler, &paths, 3, 9_000), [[2], [3], [0]]);
    }

    #[test]
    fn a_large_base_is_striped_in_proportion() {
        let mut scheduler = LayerPriority::with_needs(vec![need(60)], Remainder::Shared);
        let paths = [lossy(1, 40, 0.0), lossy(2, 40, 0.01)];
        let mut sent = [0u32; 2];
        for n in 0..600 {
            sent[selected_path(scheduler.choose(&packet(0), &paths, at(n)))] += 1;
        }
        assert!(sent[0].abs_diff(400) < 20, "{sent:?}");
    }

    #[test]
    fn a_path_of_unknown_rate_counts_as_the_slowest() {
        let mut scheduler = LayerPriority::with_needs(vec![need(60)], Remainder::Shared);
        let paths = [lossy(1, 40, 0.0), lossy(2, 0, 0.01)];
        let mut sent = [0u32; 2];
        for n in 0..600 {
            sent[selected_path(scheduler.choose(&packet(0), &paths, at(n)))] += 1;
        }
        assert!(sent[0].abs_diff(400) < 20, "{sent:?}");
    }

    #[test]
    fn observed_layers_are_let_go_only_when_packets_pile_up() {
        let mut scheduler = LayerPriority::new();
        let paths = [lossy(1, 20, 0.0)];
        for n in 0..100 {
            let choices = [0, 1].map(|layer| scheduler.choose(&packet(layer), &paths, at(n * 100)));
            assert!(
                choices.iter().all(|choice| matches!(choice, Choice::Send { .. })),
                "{n}"
            );
        }
        let crowd = Demand {
            backlog: InnerBytes(20_000),
            ..packet(1)
        };
        let few = Demand {
            backlog: InnerBytes(crowding_backlog(crowd.len)),
            ..crowd
        };
        assert_eq!(selected_path(scheduler.choose(&few, &paths, at(10_000))), 0);
        assert_eq!(scheduler.choose(&crowd, &paths, at(10_000)), Choice::Drop);
        let base = Demand {
            layer: Some(Layer(0)),
            ..crowd
        };
        assert!(matches!(
            scheduler.choose(&base, &paths, at(10_000)),
            Choice::Send { .. }
        ));
    }

    #[test]
    fn what_a_layer_needs_of_a_path_counts_what_its_packets_are_framed_with() {
        let small = |layer| Demand {
            len: 100,
            backlog: InnerBytes(20_000),
            ..packet(layer)
        };
        let framed = 2 * 8 * (small(0).len as u64 + FRAMING as u64);
        // Two layers of a packet in 10 ms each: the packets alone would fit, with room to grow.
        let paths = [lossy(1, framed / 10, 0.0)];
        let mut scheduler = LayerPriority::new();
        for n in 0..200 {
            scheduler.choose(&small(0), &paths, at(n * 10));
            scheduler.choose(&small(1), &paths, at(n * 10));
        }
        assert_eq!(selected_path(scheduler.choose(&small(0), &paths, at(2_000))), 0);
        assert_eq!(scheduler.choose(&small(1), &paths, at(2_000)), Choice::Drop);
    }

    #[test]
    fn a_layer_waits_for_its_own_paths_until_another_would_deliver_sooner() {
        let mut scheduler = LayerPriority::with_needs(vec![need(15); 2], Remainder::LastResort);
        let mut paths = [lossy(1, 20, 0.0), lossy(2, 20, 0.1)];
        scheduler.choose(&packet(0), &paths, at(0));
        scheduler.choose(&packet(1), &paths, at(0));
        paths[0].ready_at = at(6);
        paths[1].delay += Duration::from_millis(10);
        assert_eq!(scheduler.choose(&packet(0), &paths, at(1)), Choice::Wait(at(6)));
        assert_eq!(
            scheduler.choose(&packet(1), &paths, at(1)),
            Choice::Send { path: 1, packets: 1 }
        );
        paths[0].ready_at = at(12);
        assert_eq!(selected_path(scheduler.choose(&packet(0), &paths, at(1))), 1);
        // One in ten is there 50 ms later: 5 ms in the mean.
        paths[1].retransmitted_after = Duration::from_millis(50);
        assert_eq!(scheduler.choose(&packet(0), &paths, at(1)), Choice::Wait(at(12)));
    }

    #[test]
    fn a_layer_that_sends_nothing_for_three_seconds_gives_its_paths_back() {
        let paths = [lossy(1, 20, 0.0), lossy(2, 20, 0.1)];
        let known = |ms| {
            let mut scheduler = LayerPriority::new();
            scheduler.choose(&packet(0), &paths, at(0));
            scheduler.choose(&packet(1), &paths, at(ms));
            scheduler.subflows.len()
        };
        assert_eq!((known(2_999), known(3_000)), (2, 1));
    }

    #[test]
    fn a_plan_is_made_anew_when_paths_change_and_after_a_while() {
        let paths = [lossy(1, 20, 0.0), lossy(2, 20, 0.1)];
        let planned_at = |change: &dyn Fn(&mut Vec<PathView>), ms: u64| {
            let mut scheduler = LayerPriority::new();
            scheduler.choose(&packet(0), &paths, at(1_000));
            let mut changed = paths.to_vec();
            change(&mut changed);
            scheduler.choose(&packet(0), &changed, at(ms));
            scheduler.planned.expect("planned").at
        };
        assert_eq!(planned_at(&|_| (), 1_099), at(1_000));
        assert_eq!(planned_at(&|_| (), 1_100), at(1_100));
        assert_eq!(planned_at(&|paths| paths[1].loss = 0.1004, 1_001), at(1_000));
        assert_eq!(planned_at(&|paths| paths[1].loss = 0.102, 1_001), at(1_001));
        assert_eq!(planned_at(&|paths| paths.truncate(1), 1_001), at(1_001));
        let faster = |paths: &mut Vec<PathView>| paths[1] = lossy(2, 22, 0.1);
        assert_eq!(planned_at(&faster, 1_001), at(1_001));
    }

    #[test]
    fn unmarked_packets_use_every_path() {
        let mut scheduler = LayerPriority::new();
        let paths = [lossy(1, 20, 0.0), lossy(2, 20, 0.5)];
        let mut sent = [0u32; 2];
        for n in 0..100 {
            sent[selected_path(scheduler.choose(&demand(200, 1), &paths, at(n)))] += 1;
        }
        assert!(sent[0].abs_diff(sent[1]) < 10, "{sent:?}");
    }
}
