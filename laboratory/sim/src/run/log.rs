//! Log of a tunnel's paths over time: the state of the end that sends the scenario's bulk traffic
//! every [`STEP`], and the buffers of the other end. Single packets are in the file of `--pcap`.

use hawser_proto::egress::Egress;
use hawser_proto::path::{Path, State};
use hawser_proto::resequencer;
use hawser_recording::trace::{self, PathSample, Qlog, Sample, TunnelSample};
use hawser_units::Duration;

/// Sampling interval. Source: `BIN` of `laboratory/netem/src/report.rs`.
pub(super) const STEP: Duration = Duration::from_millis(10);

/// Samples of a run.
#[derive(Clone, Debug, Default)]
pub struct Log {
    title: String,
    networks: Vec<String>,
    samples: Vec<Sample>,
}

impl Log {
    pub(super) fn new(title: &str, networks: Vec<String>) -> Self {
        Self {
            title: title.to_owned(),
            networks,
            samples: Vec::new(),
        }
    }

    /// Samples both ends, at this time after the start of the workloads.
    pub(super) fn sample<B: Copy>(
        &mut self,
        egress: &Egress<B>,
        (buffered, receiver): (usize, resequencer::Counters),
        at: Duration,
    ) {
        let path = |path: &Path| {
            let model = path.model();
            Some(PathSample {
                state: state_name(path.state()),
                is_starting: model.is_growing(),
                rate_bps: model.rate().rate().as_bps(),
                window_bytes: model.window(),
                in_flight_bytes: path.in_flight(),
                rtt_ms: millis(model.round_trip()),
                min_rtt_ms: millis(model.base_round_trip()),
                loss: path.loss(),
            })
        };
        let sender = egress.counters();
        self.samples.push(Sample {
            at_ms: millis(at),
            paths: egress.paths().map(path).collect(),
            tunnel: TunnelSample {
                backlog_bytes: egress.flows().backlog(),
                held: buffered as u64,
                retransmitted: sender.retransmitted,
                policed: sender.policed,
                gaps_given_up: receiver.gaps_given_up,
                late: receiver.late,
            },
        });
    }

    /// Returns the samples in order of time.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Returns the events as JSON text sequences ([`Qlog`]).
    #[must_use]
    pub fn qlog(&self) -> String {
        let mut qlog = Qlog::default();
        let records = self
            .samples
            .iter()
            .map(|sample| qlog.records(&self.networks, sample));
        let records: String = records.collect();
        Qlog::header(&self.title, "server") + &records
    }

    /// Returns a page with rates, windows, round trips and more over time ([`trace::picture`]).
    #[must_use]
    pub fn html(&self) -> String {
        trace::picture(&self.title, &self.networks, STEP.as_secs_f64(), &self.samples)
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Validating => "validating",
        State::Active => "active",
        State::Suspect => "suspect",
        State::Dead => "dead",
    }
}
