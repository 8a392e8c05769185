//! The demonstration in virtual time, for machines that allow neither namespaces nor a TUN.
//!
//! Scope: the same networks, the same file, and the session code of the daemons; TCP and the links
//! are modelled. Limitations: no daemon, no program and no kernel takes part, so it shows what the
//! algorithms do and nothing about this machine. Where it runs in place of real packets, the report
//! says so.

use hawser_netem::report::Report;
use hawser_netem::scenario::{Event, Hop, NetworkChange, Scenario, Tcp, Via, Workload};
use hawser_netem::{Change, State};
use hawser_sim::run::{self, Watch};
use hawser_units::{Bytes, Duration};

use super::download::{OUTAGE, OUTAGE_AT};
use super::{
    ALL_NETWORKS, Demo, DemoProgress, Download, Outage, SAMPLE_MS, Story, TITLES, VICTIM, routes, scenario,
};

/// Runs all downloads of `size` bytes in virtual time.
///
/// # Errors
/// When the simulator refuses the scenario, or a download does not end in the time of the
/// demonstration.
pub fn run(size: u64, on_progress: &mut dyn FnMut(&DemoProgress<'_>)) -> anyhow::Result<Demo> {
    let mut scenario = scenario()?;
    scenario.workloads = vec![Workload::Http { size: Bytes(size) }];
    // As a client does unless its configuration says otherwise.
    scenario.tcp = Tcp::Stream;
    let routes = routes();
    let mut downloads = Vec::new();
    for (step, (via, title)) in routes.iter().enumerate() {
        let mut report = |elapsed: Duration, share: f64, goodput_bps: f64| {
            on_progress(&DemoProgress {
                title,
                step: (step, routes.len()),
                elapsed,
                share,
                goodput_bps,
                networks: Vec::new(),
                dead: Vec::new(),
            });
        };
        report(Duration::ZERO, 0.0, 0.0);
        let undisturbed = simulate(&scenario, via)?;
        let download = if *via == Via::Hub {
            with_outage(&scenario, size, title, &undisturbed)?
        } else {
            download(&scenario, size, title, &undisturbed)?
        };
        let elapsed = Duration::from_nanos((download.seconds * 1e9) as u64);
        report(elapsed, 1.0, download.mean_bps(size));
        downloads.push(download);
    }
    Ok(Demo {
        downloads,
        networks: TITLES.iter().map(|(_, title)| *title).collect(),
        size,
        steady: None,
        story: SIMULATED,
    })
}

fn simulate(scenario: &Scenario, via: &Via) -> anyhow::Result<Report> {
    let outcome = run::run(scenario, via, Watch::default(), &mut |_| {})?;
    Ok(outcome.report)
}

/// Repeats the download with the best network dead for a while, from the moment at which
/// [`OUTAGE_AT`] of the file had arrived in the undisturbed run.
fn with_outage(
    scenario: &Scenario,
    size: u64,
    title: &str,
    undisturbed: &Report,
) -> anyhow::Result<Download> {
    let part = (size as f64 * OUTAGE_AT) as u64;
    let from = arrival(undisturbed, part).unwrap_or(Duration::ZERO);
    let set = |at, state| Event {
        at,
        network: VICTIM,
        hop: Hop::WayOut,
        direction: None,
        change: Change {
            state: Some(state),
            ..Change::default()
        },
        network_change: NetworkChange::default(),
    };
    let mut disturbed = scenario.clone();
    disturbed.events = vec![set(from, State::Blackhole), set(from + OUTAGE, State::Up)];
    let report = simulate(&disturbed, &Via::Hub)?;
    let mut download = download(&disturbed, size, title, &report)?;
    download.outage = Some(Outage {
        network: VICTIM,
        from: from.as_secs_f64(),
        to: (from + OUTAGE).as_secs_f64().min(download.seconds),
        gap_ms: report.longest_gap_after_events_ms.unwrap_or(0.0),
    });
    Ok(download)
}

/// Returns when `bytes` of the file had arrived, to 10 ms (a bin of the report).
fn arrival(report: &Report, bytes: u64) -> Option<Duration> {
    let mut sum = 0;
    let bin = report.series.bytes.iter().position(|bin| {
        sum += bin;
        sum >= bytes
    })?;
    Some(Duration::from_millis((bin as u64 + 1) * report.series.bin_ms))
}

fn download(scenario: &Scenario, size: u64, title: &str, report: &Report) -> anyhow::Result<Download> {
    let complete = arrival(report, size);
    let seconds = complete.map(|time| time.as_secs_f64()).ok_or_else(|| {
        anyhow::anyhow!(
            "{title}: the download was not complete after {} s",
            scenario.duration.as_secs_f64()
        )
    })?;
    let series = &report.series;
    let bins = (seconds * 1e3 / SAMPLE_MS as f64).ceil() as usize;
    let per_bin = (SAMPLE_MS / series.bin_ms) as usize;
    let networks = scenario.networks.iter().map(|network| {
        let carried = series.networks.get(&network.name);
        carried.map_or_else(Vec::new, |bytes| bytes.iter().take(bins).copied().collect())
    });
    Ok(Download {
        title: title.to_owned(),
        seconds,
        delivered: series
            .bytes
            .chunks(per_bin)
            .take(bins)
            .map(|bytes| bytes.iter().sum())
            .collect(),
        networks: networks.collect(),
        longest_gap_ms: report.longest_gap_ms,
        outage: None,
    })
}

const SIMULATED: Story = Story {
    subtitle: "Simulated, in virtual time: the same file over each network alone, then over all of \
               them with Hawser, while Wi-Fi dies and returns.",
    how: "Everything was simulated: the session code is that of the real programs, TCP and the networks \
          are models. The networks: \
          Wi-Fi with 30 Mbit/s and 8 ms, an LTE-like network that wanders between 5 and 40 Mbit/s with \
          35 ms, DSL with 12 Mbit/s and 15 ms, each delay one way and each queue 100 ms long. The bar of \
          all networks is coloured by what each of them transferred in both directions; the networks' \
          rates include the headers of every layer, which is why they stand above what arrived.",
    ..ALL_NETWORKS
};
