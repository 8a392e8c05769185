//! Streaming of a clip in segments of four rates, over Multifacet and over multipath TCP: figure
//! 8b.
//!
//! The client fetches one segment after another, at most two ahead of playback. It requests the
//! highest rate within three quarters of the last segment's throughput, and begins with the lowest.
//!
//! Values that the paper does not state, chosen here: this rule; the hops of figure 8a; the wired
//! delays of figure 8a, with one clip at each. The clip has ten segments as in the paper, but of 6
//! s instead of 30 s.
//!
//! The claim's sentence has two readings: the share of Multifacet's segments at the highest rate,
//! or of those that are of a higher rate than the same segment over MPTCP. The experiment measures
//! the first: the figure counts the segments of each rate and its caption names the highest; it
//! contains no pairs of segments. The second was used until the first results were seen, and is
//! reported as evidence of the order.

use hawser_units::Duration;

use super::floor::{Floor, Flow, START, Scheme, mptcp_config, tcp_config};
use super::rivals::{WIRED, testbed};
use crate::reproduce::{Experiment, ExperimentError, Findings, Quantity, Unit};
use hawser_sim::app::{TcpSink, TcpSource};
use hawser_sim::host::Host;
use hawser_sim::mptcp::{MptcpSink, MptcpSource};

/// Figure 8b.
#[derive(Clone, Copy, Debug)]
pub struct Streaming;

/// Rates of the segments. Source: Multifacet section 5.2. Units: Mb/s.
const RATES: [f64; 4] = [5.0, 10.0, 15.0, 20.0];
/// Number of segments. Source: Multifacet section 5.2, five minutes in segments of 30 s.
const SEGMENTS: usize = 10;
/// Duration of a segment. Source: our choice, shorter than the paper's 30 s (start of this file).
const SEGMENT: Duration = Duration::from_secs(6);
/// Share of the throughput that a client assumes. Source: our choice (start of this file).
const BELIEF: f64 = 0.75;
/// Maximum number of segments fetched ahead of playback. Source: our choice (start of this file).
const AHEAD: u32 = 2;
/// Interval between two samples of the received bytes. Source: our choice, a three-hundredth of
/// [`SEGMENT`], which bounds the error of a segment's rate.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the rate of each of a clip's segments. Units: Mb/s.
fn watch(scheme: Scheme, wired: u64, seed: u64) -> Vec<f64> {
    let mut floor = Floor::new(&testbed(scheme, wired), seed);
    let is_multipath = scheme == Scheme::ByAddress;
    let flow = if is_multipath {
        let config = mptcp_config();
        let source = MptcpSource::new(config, 2, Some(0), START);
        let sink = MptcpSink::new(config, 2, None, START);
        floor.join(0, 2, Box::new(source), Box::new(sink))
    } else {
        let config = tcp_config();
        let source = TcpSource::new(config, Some(0), START);
        floor.join(
            0,
            1,
            Box::new(source),
            Box::new(TcpSink::new(config, None, START)),
        )
    };
    let (mut now, mut shown, mut total) = (START, None, 0);
    let mut chosen = vec![RATES[0]];
    loop {
        let rate = chosen[chosen.len() - 1];
        let began = now;
        let bytes = (rate * 1e6 / 8.0 * SEGMENT.as_secs_f64()) as u64;
        total += bytes;
        extend(&mut floor, flow, total);
        while received(&floor, flow) < total && now < began + SEGMENT * SEGMENTS as u32 {
            now += SAMPLE_INTERVAL;
            floor.network.run(now);
        }
        if chosen.len() == SEGMENTS {
            return chosen;
        }
        let shown = *shown.get_or_insert(now);
        let throughput = bytes as f64 * 8.0 / 1e6 / now.since(began).as_secs_f64();
        let best = RATES.iter().rev().find(|rate| **rate <= BELIEF * throughput);
        chosen.push(*best.unwrap_or(&RATES[0]));
        // Time at which another segment may be fetched.
        let room = shown + SEGMENT * (chosen.len() as u32 - 1).saturating_sub(AHEAD);
        now = now.max(room);
        floor.network.run(now);
    }
}

/// Raises the total number of bytes that the server may send.
fn extend(floor: &mut Floor, flow: Flow, total: u64) {
    let (host, socket) = flow.server;
    floor.network.with_node(host, |host: &mut Host, context| {
        let is_plain = host.with_application(socket, context, |source: &mut TcpSource| source.extend(total));
        if is_plain.is_none() {
            host.with_application(socket, context, |source: &mut MptcpSource| source.extend(total));
        }
    });
}

fn received(floor: &Floor, flow: Flow) -> u64 {
    floor.meter(flow).total()
}

impl Experiment for Streaming {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["M-fig8b"]
    }

    fn claims(&self) -> Vec<String> {
        ["M.fig8b.top", "M.fig8b.order"].map(str::to_owned).to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let clips = WIRED
            .map(|wired| [Scheme::Multifacet, Scheme::ByAddress].map(|scheme| watch(scheme, wired, seed)));
        let pairs = || clips.iter().flat_map(|[ours, theirs]| ours.iter().zip(theirs));
        let share = |count: usize| 100.0 * count as f64 / (SEGMENTS * WIRED.len()) as f64;
        let higher = share(pairs().filter(|(ours, theirs)| ours > theirs).count());
        let top = |rate: &f64| *rate >= RATES[RATES.len() - 1];
        let ours = share(pairs().filter(|(ours, _)| top(ours)).count());
        let theirs = share(pairs().filter(|(_, theirs)| top(theirs)).count());
        let mut findings = Findings::default();
        findings.value("M.fig8b.top", ours, Unit::Percent);
        let percent = |name: &str, value| (name.to_owned(), Quantity::new(value, Unit::Percent));
        findings.shape(
            "M.fig8b.order",
            ours > theirs,
            vec![
                percent("multifacet", ours),
                percent("mptcp", theirs),
                percent("higher than the same over mptcp", higher),
            ],
        );
        Ok(findings)
    }
}
