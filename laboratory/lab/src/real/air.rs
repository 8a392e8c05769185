//! Evaluations on real 802.11 stacks: hostapd, the kernel's `mac80211` on simulated cards, the
//! daemons, and our air between the cards, in virtual time.
//!
//! Each evaluation has a kernel of its own (`hawser-lab uml`). Outside, it starts this program in
//! there with the claims that are asked for, and takes what that prints; inside, it runs.

use std::collections::BTreeMap;
use std::ffi::OsString;

use anyhow::{Context, ensure};
use hawser_experiments::reproduce::Selected;
use hawser_netem::report::Report;
use hawser_netem::scenario::{Network, Scenario, Via, Workload};
use hawser_testbed::{Kernel, OnAir, Options, Progress};
use hawser_units::Duration;

use super::found::{Found, Measured};
use super::judge_all;

/// An evaluation of a paper.
pub(super) struct Evaluation {
    /// Its name in the claims.
    pub(super) setup: &'static str,
    /// What it measures.
    pub(super) claims: &'static [&'static str],
    /// What its kernel has.
    pub(super) kernel: Inside,
    pub(super) run: fn(&mut Lab<'_>) -> anyhow::Result<Vec<Measured>>,
}

/// What there is in a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inside {
    /// So many simulated cards, for a world of the testbed.
    Cards(usize),
    /// The same, whose cards stop their queues as drivers of the papers' time do.
    DriversCards(usize),
    /// Access points, for daemons of our own.
    AccessPoints(AccessPoints),
}

/// As `scripts/radio-world` has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessPoints {
    pub(super) described: &'static [&'static str],
    /// Free cards.
    pub(super) stations: usize,
    /// What carries their frames; `None`: the kernel, which takes no time for it.
    pub(super) air: Option<&'static str>,
    pub(super) is_virtual: bool,
}

/// A scenario whose networks are on the air, which begins to count after a while.
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
        beside: BTreeMap::new(),
        events: Vec::new(),
    }
}

/// Runs scenarios inside.
pub(super) struct Lab<'a> {
    setup: &'static str,
    options: &'a Options,
    on_progress: &'a mut dyn FnMut(&str, &Progress<'_>),
}

impl Evaluation {
    /// What it finds of the selected claims.
    pub(super) fn find(
        &'static self,
        selected: &[Selected],
        options: &Options,
        on_progress: &mut dyn FnMut(&str, &Progress<'_>),
    ) -> anyhow::Result<Vec<Found>> {
        if !Kernel::is_here() {
            return self.find_inside(selected, options);
        }
        let mut lab = Lab {
            setup: self.setup,
            options,
            on_progress,
        };
        let found = (self.run)(&mut lab).context(self.setup)?;
        Ok(judge_all(found, selected))
    }

    fn find_inside(&self, selected: &[Selected], options: &Options) -> anyhow::Result<Vec<Found>> {
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
        find_in(kernel, (self.setup, self.claims), selected, options)
    }
}

/// What this program finds of the selected claims of an evaluation when it runs in that kernel.
pub(super) fn find_in(
    mut kernel: Kernel,
    (setup, claims): (&str, &[impl AsRef<str>]),
    selected: &[Selected],
    options: &Options,
) -> anyhow::Result<Vec<Found>> {
    kernel.time_limit_s = TIME_LIMIT_S;
    let words = ["reproduce", "--real", "--runs", "1", "--json"];
    let mut words: Vec<OsString> = words.map(Into::into).into();
    if options.run_dir.is_kept() {
        kernel.kept.push(options.run_dir.path().to_owned());
        words.extend(["--keep".into(), options.run_dir.path().as_os_str().to_owned()]);
    }
    let is_asked = |claim: &&str| selected.iter().any(|(_, _, known)| known.id == **claim);
    let asked = claims.iter().map(AsRef::as_ref).filter(is_asked);
    words.extend(asked.map(OsString::from));
    let program = std::env::current_exe().context("cannot find this program")?;
    let (status, said) = kernel.output(&program, &words).context(setup.to_owned())?;
    let found: Vec<Found> = serde_json::from_str(said.trim())
        .with_context(|| format!("{setup}: its kernel ended with {status}"))?;
    ensure!(!found.is_empty(), "{setup}: its kernel measured nothing");
    Ok(found)
}

impl Lab<'_> {
    /// What daemons need.
    pub(super) fn options(&self) -> &Options {
        self.options
    }

    /// Runs a scenario of the testbed; `what` it is, in a few words.
    pub(super) fn run(&mut self, what: &str, scenario: &Scenario, on_air: &OnAir) -> anyhow::Result<Report> {
        let what = format!("{}, {what}", self.setup);
        let on_progress = &mut *self.on_progress;
        let mut report = |progress: &Progress<'_>| on_progress(&what, progress);
        hawser_testbed::run_on_air(scenario, &scenario.via, self.options, on_air, &mut report)
            .with_context(|| what.clone())
    }
}

/// Frames that a card holds of an access category, so that those above it wait where the kernel
/// sees them. Source: two aggregates (`ATH_AGGR_MIN_QDEPTH` in `ath9k.h`, `ath_tx_sched_aggr` in
/// `xmit.c`, Linux 4.11 and later) of the eight frames of the simulator's hops. A card whose
/// firmware takes more is bounded by airtime: 5 ms to 12 ms a station
/// (`IEEE80211_DEFAULT_AQL_TXQ_LIMIT_L` and `_H`, Linux 5.5 and later), which are 10 to 25 frames
/// at 25 Mbit/s.
const DRIVER: usize = 16;
/// Far beyond what an evaluation takes. Units: seconds of real time.
const TIME_LIMIT_S: u32 = 3600;
