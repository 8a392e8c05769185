//! Comparison of a repeater whose access point is throttled with a repeater that keeps its own
//! queue short.
//!
//! Both solve the same problem: an access point that uses the airtime that its repeater needs.
//! Multifacet's throttle reduces the access point's traffic on the shared channel while the
//! repeater's queue is long; FQ-CoDel lets the access point send and drops packets that wait too
//! long, so that senders slow down.

use hawser_units::{Duration, Instant, Rate};

use super::{Comparison, Measure};
use crate::papers::multifacet::floor::{Floor, Load, START, Scheme, Setup, ht};
use crate::papers::multifacet::hops::{forty_five, sixty, thirty, twenty};
use crate::papers::multifacet::others::{Competitor, FAINT, NEAR, Who};
use crate::reproduce::Unit;
use hawser_sim::app::{Cbr, DatagramSink};
use hawser_sim::host::Host;
use hawser_sim::radio::Waiting;

/// Multifacet's throttle against FQ-CoDel at the repeater.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throttling;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    One,
    Four,
    Far,
    Interfered,
    SlowClient,
    Datagrams,
}

const CONDITIONS: [(Condition, &str); 6] = [
    (Condition::One, "one download"),
    (Condition::Four, "four clients"),
    (Condition::Far, "server 50 ms away"),
    (Condition::Interfered, "interferer on and off"),
    (Condition::SlowClient, "client's hop slowest"),
    (Condition::Datagrams, "datagrams at 60 Mb/s"),
];

/// Start and end of the measurement, after the downloads' start. Source: runs of 10 s (Multifacet
/// section 5), without slow start.
const FROM: Duration = Duration::from_secs(3);
const TO: Duration = Duration::from_secs(13);
/// Traffic of an uninvolved client: a call. Source: docs/notebook/throttling.md; 160 bytes are
/// 20 ms of G.711 (RFC 3551 section 4.5.14). Units: payload rate, and bytes per packet.
const SPARSE: (Rate, u16) = (Rate::from_bps(64_000), 160);

impl Condition {
    fn setup(self, contender: usize) -> Setup {
        let (scheme, is_fair) = match contender {
            0 => (Scheme::Multifacet, false),
            1 => (Scheme::Aggregate, true),
            2 => (Scheme::Multifacet, true),
            _ => (Scheme::Aggregate, false),
        };
        let mut setup = match self {
            Self::SlowClient => Setup::new(forty_five(), forty_five(), Some(twenty()), scheme),
            Self::One | Self::Four | Self::Far | Self::Interfered | Self::Datagrams => {
                Setup::new(twenty(), thirty(), Some(sixty()), scheme)
            }
        };
        if is_fair {
            setup.waiting = Waiting::Fair;
        }
        match self {
            Self::Four => setup.clients = 4,
            Self::Far => setup.delay = Duration::from_millis(50),
            Self::Interfered => setup.competitors.push(Competitor {
                channel: setup.channels[1],
                rate: ht(4, 2, false),
                aggregate: 8,
                load: 30.0,
                near: vec![(Who::Repeater, FAINT), (Who::Clients, NEAR)],
                period: Some(Duration::from_secs(1)),
            }),
            Self::One | Self::SlowClient | Self::Datagrams => {}
        }
        setup
    }
}

impl Comparison for Throttling {
    fn name(&self) -> &'static str {
        "throttling"
    }

    fn question(&self) -> &'static str {
        "Does throttling the access point by the repeater's queue win against a repeater with FQ-CoDel?"
    }

    fn contenders(&self) -> &'static [&'static str] {
        &["throttling", "fq-codel", "both", "neither"]
    }

    fn measures(&self) -> &'static [Measure] {
        &[
            Measure {
                name: "all clients' throughput",
                unit: Unit::Mbps,
                is_more_better: true,
            },
            Measure {
                name: "delay of a call's packets, 95th percentile",
                unit: Unit::Millis,
                is_more_better: false,
            },
        ]
    }

    fn conditions(&self) -> Vec<String> {
        CONDITIONS.iter().map(|(_, name)| (*name).to_owned()).collect()
    }

    fn run(&self, condition: usize, contender: usize, seed: u64) -> Vec<f64> {
        let condition = CONDITIONS[condition].0;
        let setup = condition.setup(contender);
        let mut floor = Floor::new(&setup, seed);
        let load = if condition == Condition::Datagrams {
            Load::Udp(Rate::from_mbps(60))
        } else {
            Load::Tcp
        };
        let flows: Vec<_> = (0..setup.clients)
            .map(|client| floor.download(client, load))
            .collect();
        let call = Cbr::new(SPARSE.0, SPARSE.1, (START, Instant::FAR_FUTURE));
        let sink = Box::new(DatagramSink::keeping_arrivals());
        let call = floor.join(0, 1, Box::new(call), sink);
        floor.network.run(START + TO);
        let rate: f64 = flows.iter().map(|flow| floor.rate(*flow, FROM, TO)).sum();
        let (host, socket) = call.client;
        let host: &Host = floor.network.node(host).expect("it is a host");
        let sink: &DatagramSink = host.application(socket).expect("it counts datagrams");
        let measured = sink.arrivals().iter().zip(sink.delays());
        let delays: Vec<f64> = measured
            .filter(|((_, at), _)| *at >= START + FROM)
            .map(|(_, delay)| *delay as f64 / 1e6)
            .collect();
        vec![rate, percentile(delays, 0.95)]
    }
}

/// Returns a percentile; `None` for an empty list.
fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share) as usize;
    values.get(place).copied().unwrap_or(f64::NAN)
}
