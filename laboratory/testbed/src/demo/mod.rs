//! The demonstration: one file, downloaded with a common HTTP client through each of three networks
//! alone, then through all of them together while the best one fails and recovers.
//!
//! Scope: real kernel TCP, a real client program, real daemons; the networks are emulated. The
//! LTE-like capacity comes from a seeded random walk, so that no recordings are needed and every
//! run has the same network.

mod download;
pub mod five;
mod lte;
pub mod neighbours;
mod page;
mod picture;
pub mod simulated;

use std::sync::Arc;

use hawser_netem::scenario::{Links, Network, Scenario, Usage, Via};
use hawser_netem::{Capacity, Jitter, LinkConfig, Trace};
use hawser_units::{Duration, Rate};

pub use download::{Download, Outage};
pub use neighbours::Steady;

use crate::arm::Options;
use crate::report::SAMPLE_MS;

/// Results of the demonstration.
#[derive(Clone, Debug)]
pub struct Demo {
    /// Displayed names, in the order of the networks.
    pub networks: Vec<&'static str>,
    /// Size of one download. Units: bytes of the body.
    pub size: u64,
    /// Downloads: one over each network alone, then the one through all of them.
    pub downloads: Vec<Download>,
    /// Rate of the last download between the events of its networks, if it was measured.
    pub steady: Option<Steady>,
    story: Story,
}

/// Texts of a demonstration's report.
#[derive(Clone, Copy, Debug)]
struct Story {
    /// Subtitle.
    subtitle: &'static str,
    /// Text about a failed network.
    silent: &'static str,
    /// Text about Hawser's part.
    what: &'static str,
    /// Text about the measurement.
    how: &'static str,
}

/// Progress of the demonstration, reported ten times per second.
#[derive(Clone, Debug)]
pub struct DemoProgress<'a> {
    /// Title of the present download.
    pub title: &'a str,
    /// Index of the download, from 0, and their number.
    pub step: (usize, usize),
    /// Time since it started.
    pub elapsed: Duration,
    /// The share of the file that has arrived.
    pub share: f64,
    /// Rate of arrivals. Units: bit/s of the body.
    pub goodput_bps: f64,
    /// Name and rate of every network towards the client. Units: bit/s of frames.
    pub networks: Vec<(&'static str, f64)>,
    /// Networks that are failed at present.
    pub dead: Vec<&'static str>,
}

/// Runs all downloads of `size` bytes.
///
/// Must be called on a thread that lives as long as the process: clients and daemons end with the
/// thread.
///
/// # Errors
/// When the lab cannot be built, the HTTP client is missing or fails, or a signal interrupts.
pub fn run(
    size: u64,
    options: &Options,
    on_progress: &mut dyn FnMut(&DemoProgress<'_>),
) -> anyhow::Result<Demo> {
    let scenario = scenario()?;
    let networks: Vec<&'static str> = TITLES.iter().map(|(_, title)| *title).collect();
    Ok(Demo {
        downloads: run_all(
            &routes(),
            (&scenario, Some(VICTIM)),
            (&networks, size),
            options,
            on_progress,
        )?,
        networks,
        size,
        steady: None,
        story: ALL_NETWORKS,
    })
}

/// Returns the systems of the downloads, each with its title: every network alone, then all of
/// them.
fn routes() -> Vec<(Via, String)> {
    let alone = TITLES
        .iter()
        .map(|(name, title)| (Via::Single((*name).to_owned()), format!("{title} alone")));
    alone.chain([(Via::Hub, ALL.to_owned())]).collect()
}

/// Runs a download over each system in turn. `victim`: network that fails during the last one.
fn run_all(
    ways: &[(Via, String)],
    (scenario, victim): (&Scenario, Option<usize>),
    (networks, size): (&[&'static str], u64),
    options: &Options,
    on_progress: &mut dyn FnMut(&DemoProgress<'_>),
) -> anyhow::Result<Vec<Download>> {
    let mut downloads = Vec::new();
    for (step, (via, title)) in ways.iter().enumerate() {
        let job = download::Job {
            scenario,
            via,
            title,
            size,
            networks,
            victim,
        };
        let mut report = |mut progress: DemoProgress<'_>| {
            progress.step = (step, ways.len());
            on_progress(&progress);
        };
        downloads.push(download::run(&job, options, &mut report)?);
    }
    Ok(downloads)
}

impl Demo {
    /// Returns the download through all networks.
    fn together(&self) -> Option<&Download> {
        self.downloads.last()
    }

    /// Returns the shortest download through one network.
    fn best_alone(&self) -> Option<&Download> {
        let alone = &self.downloads[..self.downloads.len().saturating_sub(1)];
        alone.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    /// Returns the main result in one sentence.
    #[must_use]
    pub fn headline(&self) -> String {
        match (self.together(), self.best_alone()) {
            (Some(all), Some(best)) => format!(
                "{:.0} MB in {:.1} s instead of {:.1} s",
                self.size as f64 / 1e6,
                all.seconds,
                best.seconds
            ),
            _ => String::from("nothing was measured"),
        }
    }

    /// Returns a table for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines = vec![format!(
            "  {:<22} {:>9} {:>14} {:>14}",
            "", "time", "mean rate", "longest pause"
        )];
        for download in &self.downloads {
            lines.push(format!(
                "  {:<22} {:>7.1} s {:>7.1} Mbit/s {:>11.0} ms",
                download.title,
                download.seconds,
                download.mean_bps(self.size) / 1e6,
                download.longest_gap_ms
            ));
        }
        if let Some(outage) = self.together().and_then(|all| all.outage) {
            lines.push(format!(
                "  {} {} from {:.1} s to {:.1} s of the last one; the download paused for {:.0} ms.",
                self.networks[outage.network], self.story.silent, outage.from, outage.to, outage.gap_ms
            ));
        }
        lines.extend(self.steady.iter().flat_map(Steady::lines));
        lines.join("\n") + "\n"
    }

    /// Returns the picture as SVG.
    #[must_use]
    pub fn to_svg(&self) -> String {
        picture::draw(self)
    }

    /// Returns the report as one self-contained HTML page.
    #[must_use]
    pub fn to_html(&self) -> String {
        page::write(self)
    }
}

/// Returns the capacity of the LTE-like network as a trace of `seconds,bytes_per_second`.
#[must_use]
pub fn lte_trace() -> String {
    lte::walk(SEED, LTE_MBPS)
}

fn scenario() -> anyhow::Result<Scenario> {
    let lte = Capacity::Trace(Arc::new(Trace::parse(&lte_trace())?));
    let rate = |mbps| Capacity::Rate(Rate::from_mbps(mbps));
    Ok(scenario_of(
        "demo",
        vec![
            network("wifi", (rate(30), rate(30)), 8, 1),
            network("lte", (lte, rate(10)), 35, 3),
            network("dsl", (rate(12), rate(4)), 15, 0),
        ],
    ))
}

fn network(name: &str, (down, up): (Capacity, Capacity), delay_ms: u64, jitter_ms: u64) -> Network {
    let link = |capacity| LinkConfig {
        capacity,
        delay: Duration::from_millis(delay_ms),
        jitter: Jitter {
            sd: Duration::from_millis(jitter_ms),
            reorder: false,
        },
        ..LinkConfig::default()
    };
    Network {
        name: name.to_owned(),
        links: Some(Links {
            down: link(down),
            up: link(up),
        }),
        wifi: None,
        member: None,
        shares: None,
        blocks_udp: false,
        nat: None,
        usage: Usage::default(),
    }
}

fn scenario_of(name: &str, networks: Vec<Network>) -> Scenario {
    Scenario {
        name: name.to_owned(),
        seed: SEED,
        duration: download::TIMEOUT,
        warmup: Duration::ZERO,
        via: Via::Hub,
        schedulers: Vec::new(),
        controller: None,
        tcp_ecn: false,
        tcp: Default::default(),
        networks,
        workloads: Vec::new(),
        client_hop: None,
        competing: std::collections::BTreeMap::new(),
        events: Vec::new(),
    }
}

/// Default size of a download: about half a minute over the middle network, and less than three
/// minutes in total. Source: our choice; a smaller one ends before the outage has been seen, a
/// larger one takes longer than a reader waits. Units: bytes.
pub const SIZE: u64 = 75_000_000;

const TITLES: [(&str, &str); 3] = [("wifi", "Wi-Fi"), ("lte", "LTE"), ("dsl", "DSL")];
const ALL: &str = "All, with Hawser";
/// Seed of the traces. Source: our choice, a trace with both high and low rates.
const SEED: u64 = 4;
/// Middle rate of the LTE-like network. Source: our choice, between the other two networks.
const LTE_MBPS: f64 = 18.0;

const ALL_NETWORKS: Story = Story {
    subtitle: "The same file with curl: over each network alone, then over all of them with Hawser, \
               while Wi-Fi dies and returns.",
    silent: "is dead",
    what: "Hawser makes one network out of all that a machine can reach. A program sees one interface \
           that never changes; its packets travel over every network at once to a hub, which puts them \
           back in order and passes them on.",
    how: "Client, hub and server ran on this machine, each in a network namespace of its own, with the \
          kernel's own TCP, the real Hawser programs and curl. The networks between them were emulated: \
          Wi-Fi with 30 Mbit/s and 8 ms, an LTE-like network that wanders between 5 and 40 Mbit/s with \
          35 ms, DSL with 12 Mbit/s and 15 ms, each delay one way and each queue 100 ms long. The bar of \
          all networks is coloured by what each of them carried; the networks' rates include the headers \
          of every layer, which is why they stand above what curl received.",
};

/// Network that fails: the best one. Source: our choice, since its failure is the most visible.
const VICTIM: usize = 0;

#[cfg(test)]
mod tests;
