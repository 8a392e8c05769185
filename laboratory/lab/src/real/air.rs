//! Evaluations on real 802.11 stacks in virtual time: hostapd, the kernel's `mac80211` on simulated
//! cards, the daemons, and the medium of `hawser_netem` between the cards.
//!
//! Each evaluation has a kernel of its own (`hawser-lab uml`). The process outside starts this
//! program in the kernel with the requested claims and reads its output; the process inside runs
//! the evaluation.

use std::collections::BTreeMap;

use anyhow::Context;
use hawser_netem::report::Report;
use hawser_netem::scenario::{Network, Scenario, Via, Workload};
use hawser_testbed::{Kernel, OnAir, Options, Progress};
use hawser_units::Duration;

use super::found::Measured;

/// An evaluation of a paper.
pub(super) struct Evaluation {
    /// Name of the set-up in the claims.
    pub(super) setup: &'static str,
    /// Measured claims.
    pub(super) claims: &'static [&'static str],
    /// Equipment of its kernel.
    pub(super) kernel: Inside,
    pub(super) run: fn(&mut Lab<'_>) -> anyhow::Result<Vec<Measured>>,
}

/// Radio equipment of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inside {
    /// Simulated cards, by number, for a world of the testbed.
    Cards(usize),
    /// [`Self::Cards`] that stop their queues as drivers of the papers' time do.
    DriversCards(usize),
    /// Access points, for daemons that the evaluation starts itself.
    AccessPoints(AccessPoints),
}

/// Access points as in `scripts/radio-world`.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessPoints {
    pub(super) described: &'static [&'static str],
    /// Number of cards without an access point.
    pub(super) stations: usize,
    /// Options of the medium; `None`: the kernel delivers frames without airtime.
    pub(super) air: Option<&'static str>,
    pub(super) is_virtual: bool,
}

/// Creates a scenario whose networks are 802.11 links, with a warm-up.
pub(super) fn scenario(
    via: Via,
    networks: [Network; 2],
    workloads: Vec<Workload>,
    (warmup, length): (Duration, Duration),
) -> Scenario {
    Scenario {
        name: via.label(),
        seed: 1,
        duration: warmup + length,
        warmup,
        via,
        schedulers: Vec::new(),
        controller: None,
        networks: networks.into(),
        client_hop: None,
        tcp_ecn: false,
        tcp: Default::default(),
        workloads,
        competing: BTreeMap::new(),
        events: Vec::new(),
    }
}

/// Runs scenarios inside a kernel.
pub(super) struct Lab<'a> {
    setup: &'static str,
    seed: u32,
    options: &'a Options,
    on_progress: &'a mut dyn FnMut(&str, &Progress<'_>),
}

impl Evaluation {
    /// Returns whether time advances only while every program waits.
    pub(super) fn is_virtual(&self) -> bool {
        match self.kernel {
            Inside::Cards(_) | Inside::DriversCards(_) => true,
            Inside::AccessPoints(world) => world.is_virtual,
        }
    }

    /// Returns the kernel of an evaluation.
    ///
    /// # Errors
    /// When the sources from which the kernel is built are missing.
    pub(super) fn kernel(&self) -> anyhow::Result<Kernel> {
        let mut kernel = Kernel::find()?;
        match self.kernel {
            Inside::Cards(cards) => kernel.cards = cards,
            Inside::DriversCards(cards) => {
                (kernel.cards, kernel.card_queue) = (cards, DRIVER);
            }
            Inside::AccessPoints(world) => {
                kernel.cards = world.stations;
                kernel.access_points = world.described.iter().map(|one| (*one).to_owned()).collect();
                kernel.air = world.air.map(str::to_owned);
                kernel.is_virtual = world.is_virtual;
            }
        }
        Ok(kernel)
    }
}

impl<'a> Lab<'a> {
    pub(super) fn new(
        (setup, seed): (&'static str, u32),
        options: &'a Options,
        on_progress: &'a mut dyn FnMut(&str, &Progress<'_>),
    ) -> Self {
        Self {
            setup,
            seed,
            options,
            on_progress,
        }
    }

    /// Returns the seed of the run, from 1.
    pub(super) fn seed(&self) -> u32 {
        self.seed
    }

    /// Returns the options of daemons.
    pub(super) fn options(&self) -> &Options {
        self.options
    }

    /// Runs a scenario of the testbed; `what` describes it in a few words. The medium uses the
    /// scenario's seed in the first run, and another seed in each further run.
    pub(super) fn run(&mut self, what: &str, scenario: &Scenario, on_air: &OnAir) -> anyhow::Result<Report> {
        let mut scenario = scenario.clone();
        scenario.seed += u64::from(self.seed - 1) * SEEDS_OF_A_RUN;
        let what = format!("{}, {what}", self.setup);
        let on_progress = &mut *self.on_progress;
        let mut report = |progress: &Progress<'_>| on_progress(&what, progress);
        hawser_testbed::run_on_air(&scenario, &scenario.via, self.options, on_air, &mut report)
            .with_context(|| what.clone())
    }
}

/// Frames of an access category that a card queues, so that further frames wait in the kernel's
/// queues. Source: two aggregates (`ATH_AGGR_MIN_QDEPTH` in `ath9k.h`, `ath_tx_sched_aggr` in
/// `xmit.c`, Linux 4.11 and later) of the eight frames of the simulator's hops. A card whose
/// firmware queues more is bounded by airtime: 5 ms to 12 ms per station
/// (`IEEE80211_DEFAULT_AQL_TXQ_LIMIT_L` and `_H`, Linux 5.5 and later), 10 to 25 frames at 25
/// Mbit/s.
const DRIVER: usize = 16;
/// Distance between the seeds of two runs, larger than the number of seeds in an evaluation.
/// Source: our choice; an overlap would make two runs depend on each other.
const SEEDS_OF_A_RUN: u64 = 100;
