//! Results of a run.

use hawser_units::{Duration, Instant};
use serde::Serialize;

use super::{Config, HubId, World};

/// Counts and measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Number of clients.
    pub clients: u32,
    /// Simulated time, in s.
    pub duration_s: f64,
    /// Failures of hubs, regions and the database.
    pub failures: u64,
    /// Starts and restarts of clients.
    pub starts: u64,
    /// Changes of hub.
    pub changes: u64,
    /// Times for which a client had no hub although one would have accepted it, s.
    pub outages: Quantiles,
    /// Number of outages longer than 3 s.
    pub longer_than_3_s: u64,
    /// Handshakes that hubs have processed, including those of measurements.
    pub handshakes: u64,
    /// Handshakes dropped because too many waited.
    pub dropped: u64,
    /// Accepted clients, each of which may cause one query of the database.
    pub hellos: u64,
    /// Measurements of hubs' round-trip times.
    pub measurements: u64,
    /// Longest wait of a handshake at a hub, s.
    pub longest_queue_s: f64,
    /// Round-trip time of clients minus that to the nearest hub that would accept them, ms, over
    /// all counts.
    pub detour_ms: Quantiles,
    /// Share of clients that use the nearest such hub or one at about the same distance, over all
    /// counts.
    pub at_nearest: f64,
    /// Clients of the fullest hub in a count, divided by the mean of all working hubs.
    pub imbalance: Quantiles,
    /// Share of clients with a session at a second hub, over all counts.
    pub with_two_sessions: f64,
    /// Control traffic of a client per day: handshakes of 6 kB, hellos of 1 kB, and the pings of
    /// its connections. Units: bytes.
    pub control_bytes_a_day: f64,
    #[serde(skip)]
    outages_s: Vec<f64>,
    #[serde(skip)]
    detours_ms: Vec<f64>,
    #[serde(skip)]
    imbalances: Vec<f64>,
    #[serde(skip)]
    counted: [u64; 3],
}

/// Quantiles of a distribution; zeros for an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Number of values.
    pub count: u64,
    /// Median.
    pub median: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

impl Quantiles {
    /// Creates the quantiles of the values.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = (share * values.len() as f64) as usize;
            values
                .get(place.min(values.len().saturating_sub(1)))
                .copied()
                .unwrap_or(0.0)
        };
        Self {
            count: values.len() as u64,
            median: at(0.5),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

impl Report {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            clients: config.clients,
            duration_s: config.duration.as_secs_f64(),
            failures: 0,
            starts: 0,
            changes: 0,
            outages: Quantiles::default(),
            longer_than_3_s: 0,
            handshakes: 0,
            dropped: 0,
            hellos: 0,
            measurements: 0,
            longest_queue_s: 0.0,
            detour_ms: Quantiles::default(),
            at_nearest: 0.0,
            imbalance: Quantiles::default(),
            with_two_sessions: 0.0,
            control_bytes_a_day: 0.0,
            outages_s: Vec::new(),
            detours_ms: Vec::new(),
            imbalances: Vec::new(),
            counted: [0; 3],
        }
    }

    /// Records an outage of a client while a hub would have accepted it.
    pub(super) fn note_outage(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.longer_than_3_s += u64::from(time > LONG);
        self.outages_s.push(time);
    }
}

impl World<'_> {
    /// Counts the hubs of all clients.
    pub(super) fn count(&mut self) {
        let mut of_hub = vec![0_u64; usize::from(self.config.hubs)];
        for id in 0..self.config.clients {
            let Some(hub) = self.clients[id as usize].hub() else {
                continue;
            };
            of_hub[usize::from(hub)] += 1;
            let open = (0..self.config.hubs).filter(|hub| self.is_open(*hub));
            let nearest = open.map(|hub| self.round_trip_to(id, hub)).min();
            let Some(nearest) = nearest else { continue };
            let detour = self.round_trip_to(id, hub).saturating_sub(nearest);
            self.report.counted[0] += 1;
            self.report.counted[1] += u64::from(detour <= AS_NEAR);
            self.report.counted[2] += u64::from(self.clients[id as usize].has_before());
            self.report.detours_ms.push(detour.as_secs_f64() * 1e3);
        }
        let is_open = |hub: &HubId| self.is_up(*hub);
        let up = (0..self.config.hubs).filter(is_open).count();
        let all: u64 = of_hub.iter().sum();
        if up > 0 && all > 0 {
            let fullest = of_hub.iter().max().copied().unwrap_or(0);
            let mean = all as f64 / up as f64;
            self.report.imbalances.push(fullest as f64 / mean);
        }
    }

    /// Computes the results from the counts.
    pub(super) fn end(&mut self) {
        for id in 0..self.config.clients {
            if let Some(since) = self.clients[id as usize].unserved {
                self.report.note_outage(self.now.since(since));
            }
        }
        let report = &mut self.report;
        report.outages = Quantiles::of(std::mem::take(&mut report.outages_s));
        report.detour_ms = Quantiles::of(std::mem::take(&mut report.detours_ms));
        report.imbalance = Quantiles::of(std::mem::take(&mut report.imbalances));
        let [all, near, two] = report.counted.map(|count| count as f64);
        report.at_nearest = near / all.max(1.0);
        report.with_two_sessions = two / all.max(1.0);
        let days = self.now.since(Instant::ZERO).as_secs_f64() / 86_400.0;
        let of_hubs = report.handshakes as f64 * HANDSHAKE + report.hellos as f64 * HELLO;
        let pings = 86_400.0 / PING_EVERY * PING * (1.0 + report.with_two_sessions);
        report.control_bytes_a_day = of_hubs / f64::from(report.clients) / days + pings;
    }
}

/// Outage that counts as too long. Source: docs/notebook/fleet.md, "Failures". Units: s.
const LONG: f64 = 3.0;
/// Difference below which two hubs count as equally near. Source: `MIN` of
/// `core/proto/src/session/nearest.rs`.
const AS_NEAR: Duration = Duration::from_millis(5);
/// Size of a handshake with UDP and IP headers: at least two packets of 1,200 bytes in each
/// direction (RFC 9000 section 14.1), and the end of both flights. Units: bytes.
const HANDSHAKE: f64 = 6_000.0;
/// Size of a hello and its answer. Units: bytes. Source: our choice, rounded up: a hello, a welcome
/// with addresses and hubs, and their headers.
const HELLO: f64 = 1_000.0;
/// Interval of pings on a control connection. Source: `KEEP_ALIVE` of `system/control/src/tls.rs`.
/// Units: s.
const PING_EVERY: f64 = 5.0;
/// Size of a ping: two packets and their acknowledgements. Units: bytes. Source: our choice,
/// headers of IPv4 and UDP (28 bytes), a short header with a connection id, some frames and the tag
/// of 16 bytes (RFC 9000 section 17.3), rounded up.
const PING: f64 = 4.0 * 75.0;
